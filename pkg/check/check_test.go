package check

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/sif"
	"fence/test/bed"
)

const (
	x86 = 62
	arm = 183
)

// elfFile is the beginning of a 64-bit ELF file for a machine, with a loader
// unless that is "".
func elfFile(machine uint16, loader string) string {
	b := make([]byte, 64+56)
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[18:], machine)
	if loader != "" {
		le.PutUint64(b[32:], 64)
		le.PutUint16(b[54:], 56)
		le.PutUint16(b[56:], 1)
		le.PutUint32(b[64:], 3)
		le.PutUint64(b[72:], uint64(len(b)))
		le.PutUint64(b[96:], uint64(len(loader)+1))
		b = append(append(b, loader...), 0)
	}
	return string(b)
}

// file is an entry of an image: text "-> X" is a link.
type file struct {
	text string
	mode fs.FileMode
}

// plain is an image that nothing is wrong with.
func plain() map[string]file {
	return map[string]file{
		"usr/bin/sh":      {elfFile(x86, "/lib64/ld.so"), 0o755},
		"bin":             {"-> usr/bin", 0},
		"usr/lib64/ld.so": {elfFile(x86, ""), 0o755},
		"lib64":           {"-> /usr/lib64", 0},
		"usr/bin/tmux":    {"-> ../../opt/tmux-3", 0},
		"opt/tmux-3":      {elfFile(x86, ""), 0o755},
		"usr/bin/env":     {elfFile(x86, ""), 0o755},
		"usr/bin/tool":    {"#!/usr/bin/env tmux\n", 0o755},
		"usr/bin/script":  {"#! /bin/sh -e\n", 0o755},
	}
}

func open(t *testing.T, arch string, config v1.Config, files map[string]file) *sif.Image {
	t.Helper()
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		bed.Missing(t, "mksquashfs (Debian: squashfs-tools)")
	}
	root, dir := filepath.Join(t.TempDir(), "root"), t.TempDir()
	for p, f := range files {
		full := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(f.text, "-> "); ok {
			err = os.Symlink(to, full)
		} else if f.mode.IsDir() {
			err = os.MkdirAll(full, 0o755)
		} else if err = os.WriteFile(full, []byte(f.text), 0o644); err == nil {
			err = os.Chmod(full, f.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	squashfs, path := filepath.Join(dir, "squashfs"), filepath.Join(dir, "x.sif")
	if err := sif.Pack(t.Context(), root, squashfs, sif.PackOptions{Processors: 1, MemMiB: 64}); err != nil {
		t.Fatal(err)
	}
	if err := sif.Write(path, squashfs, sif.Meta{Arch: arch, Config: config}); err != nil {
		t.Fatal(err)
	}
	img, err := sif.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func TestRun(t *testing.T) {
	secret := strings.Repeat("the test\n", 20)
	tests := t.TempDir()
	for name, text := range map[string]string{"test_outputs.py": secret, "__init__.py": "", "small.txt": "a small file\n"} {
		if err := os.WriteFile(filepath.Join(tests, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		arch   string
		config v1.Config
		files  map[string]file // added to plain; mode 0 and no link removes
		o      Options
		want   []string // "class level text"
		ok     bool
	}{
		{name: "nothing wrong", o: Options{Arch: "amd64", Require: []string{"tmux", "tool", "script", "/bin/sh"}, Tasks: []Task{{"a", tests, tests}}}, ok: true},
		{name: "another architecture", arch: "arm64", o: Options{Arch: "amd64"}, want: []string{"arch fault x.sif is for arm64, this node is amd64"}},
		{name: "mislabelled", files: map[string]file{"usr/bin/sh": {elfFile(arm, ""), 0o755}}, want: []string{"shell fault /bin/sh is a program for arm64, not for amd64"}},
		{name: "no loader", files: map[string]file{"usr/lib64/ld.so": {}}, want: []string{"shell fault /bin/sh needs the loader /lib64/ld.so, which is missing"}},
		{name: "no shell", files: map[string]file{"usr/bin/sh": {}}, want: []string{"shell warning it has no /bin/sh"}, ok: true},
		{name: "a command of another architecture", files: map[string]file{"opt/tmux-3": {elfFile(arm, ""), 0o755}}, o: Options{Require: []string{"tmux"}},
			want: []string{"command fault it must have the command tmux: /usr/bin/tmux is a program for arm64, not for amd64"}},
		{name: "no command", o: Options{Require: []string{"python3", "/opt/none"}},
			want: []string{"command fault it must have the command python3: it is not in its PATH, /usr/local/sbin:", "command fault it must have the command /opt/none: there is no such file"}},
		{name: "not on the image's PATH", config: v1.Config{Env: []string{"PATH=/opt:/sbin"}}, o: Options{Require: []string{"tmux", "tmux-3"}},
			want: []string{"command fault it must have the command tmux: it is not in its PATH, /opt:/sbin"}},
		{name: "not executable", files: map[string]file{"opt/tmux-3": {elfFile(x86, ""), 0o644}}, o: Options{Require: []string{"tmux"}}, want: []string{"command fault it must have the command tmux: /usr/bin/tmux is no program"}},
		{name: "a dangling link", files: map[string]file{"opt/tmux-3": {}}, o: Options{Require: []string{"tmux"}}, want: []string{"command fault it must have the command tmux: it is not in its PATH"}},
		{name: "a loop of links", files: map[string]file{"usr/bin/loop": {"-> loop", 0}}, o: Options{Require: []string{"loop"}}, want: []string{"command fault it must have the command loop: it is not in its PATH"}},
		{name: "a link out of the root", files: map[string]file{"usr/bin/up": {"-> ../../../../../opt/tmux-3", 0}}, o: Options{Require: []string{"up"}}, ok: true},
		{name: "an interpreter is missing", files: map[string]file{"usr/bin/script": {"#!/opt/python\n", 0o755}, "usr/bin/tool": {"#!/usr/bin/env ruby\n", 0o755}}, o: Options{Require: []string{"script", "tool"}},
			want: []string{"command fault it must have the command script: /usr/bin/script is a script: /opt/python is missing", "command fault it must have the command tool: /usr/bin/tool is a script of ruby: it is not in its PATH"}},
		{name: "a script of itself", files: map[string]file{"usr/bin/self": {"#!/usr/bin/self\n", 0o755}}, o: Options{Require: []string{"self"}}, want: []string{"command fault it must have the command self: /usr/bin/self is a script"}},
		{name: "a script without its first line", files: map[string]file{"usr/bin/bare": {"echo\n", 0o755}}, o: Options{Require: []string{"bare"}}, ok: true},
		{name: "no program", files: map[string]file{"usr/bin/junk": {"MZ\x00", 0o755}}, o: Options{Require: []string{"junk"}}, want: []string{"command fault it must have the command junk: /usr/bin/junk is no program"}},
		{name: "leftovers", files: map[string]file{".fence/fence": {"x", 0o755}}, want: []string{"leftover fault 1 paths"}},
		{name: "copies", files: map[string]file{"app/hidden": {secret, 0o644}, "app/other": {strings.ToUpper(secret), 0o644}, "app/small": {"a small file\n", 0o644}, "app/empty": {"", 0o644}},
			o: Options{Tasks: []Task{{"none", "", ""}, {"one", tests, ""}}}, want: []string{"copy warning 1 file of the image is in the tests of its tasks, where an agent can read them: /app/hidden is tests/test_outputs.py of one"}, ok: true},
		{name: "a copy of a solution", files: map[string]file{"x": {secret, 0o600}}, o: Options{Tasks: []Task{{"one", "", tests}}},
			want: []string{"copy warning 1 file of the image is in the solution of its tasks", "unreadable note"}, ok: true},
		{name: "own tests folder", files: map[string]file{"tests/x": {"x", 0o644}}, want: []string{"copy warning the image has 1 files in /tests"}, ok: true},
		{name: "tests that cannot be read", o: Options{Tasks: []Task{{"one", "/nonexistent", ""}}}, want: []string{"copy fault whether the tests of one is in the image cannot be told"}},
		{name: "closed files and setuid", files: map[string]file{"etc/shadow": {"x", 0o640}, "usr/bin/su": {elfFile(x86, ""), 0o755 | fs.ModeSetuid}},
			want: []string{"unreadable note 1 files and folders are closed", "setuid note 1 programs"}, ok: true},
		{name: "a repository without commits", files: map[string]file{"app/.git/HEAD": {"ref: refs/heads/main\n", 0o644}, "app/.git/objects": {"", fs.ModeDir}, "app/.git/refs": {"", fs.ModeDir}}, ok: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := plain()
			for p, f := range c.files {
				files[p] = f
				if f == (file{}) {
					delete(files, p)
				}
			}
			arch := c.arch
			if arch == "" {
				arch = "amd64"
			}
			img := open(t, arch, c.config, files)
			r := Run(img, c.o)
			var got []string
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%s %s %s", f.Class, f.Level, strings.ReplaceAll(f.Text, filepath.Dir(img.Path)+"/", "")))
			}
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) || r.OK() != c.ok {
				t.Errorf("ok %v\n%s\nwant\n%s", r.OK(), strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if r.Files < len(files) || r.Unpacked == 0 || r.Bytes == 0 || r.Schema != Schema {
				t.Errorf("%+v", r)
			}
		})
	}
}

// The future of a repository shows, whether its commits are packed or not.
func TestRun_Git(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		bed.Missing(t, "git")
	}
	for _, pack := range []bool{false, true} {
		root := t.TempDir()
		git := func(args ...string) string {
			cmd := exec.Command("git", args...)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("git %v: %v\n%s", args, err, out)
			}
			return strings.TrimSpace(string(out))
		}
		git("init", "-q", "-b", "main")
		git("commit", "-q", "--allow-empty", "-m", "past")
		git("commit", "-q", "--allow-empty", "-m", "future")
		future := git("rev-parse", "HEAD")
		if pack {
			git("gc", "-q")
		}
		git("checkout", "-q", "-b", "task", "HEAD~1")
		files := plain()
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(p)
			rel, _ := filepath.Rel(root, p)
			files["app/"+rel] = file{string(data), 0o644}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r := Run(open(t, "amd64", v1.Config{}, files), Options{})
		if len(r.Findings) != 2 || !r.OK() {
			t.Fatalf("%+v", r.Findings)
		}
		for i, want := range []string{"references of the repository /app/.git lead to commits that HEAD does not: ", "holds 1 commits that HEAD does not lead to, such as " + future} {
			if f := r.Findings[i]; f.Class != "git" || f.Level != Warning || !strings.Contains(f.Text, want) {
				t.Errorf("pack %v: %+v", pack, f)
			}
		}
	}
}

// Real images: merged /usr, links of busybox, Debian's tmux.
func TestRun_Bed(t *testing.T) {
	bed.Require(t, "images")
	for name, require := range map[string][]string{"debian": {"tmux", "python3", "/usr/bin/less"}, "busybox": {"/bin/ls"}} {
		img, err := sif.Open(bed.Image(name))
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		if r := Run(img, Options{Arch: "amd64", Require: require}); !r.OK() {
			t.Errorf("%s: %+v", name, r.Findings)
		}
		if r := Run(img, Options{Arch: "amd64", Require: []string{"nosuch"}}); r.OK() {
			t.Errorf("%s has a command that is not there", name)
		}
	}
}
