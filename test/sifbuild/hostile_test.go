package sifbuild

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The process that notes owners has rights that a RUN line has not. Links by
// which it could be led out of the step's root folder lead nowhere: nothing of
// the user's is made, changed or seen.
func TestHostile_LinksOutOfTheRoot(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("mine")
	p.write("mine/setuid", "#!/bin/sh\n", 0o755)
	if err := os.Chmod(p.path("mine/setuid"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	out := strings.Repeat("../", 16) + strings.TrimPrefix(p.path("mine"), "/")
	var lines strings.Builder
	lines.WriteString("FROM busybox\nRUN mkdir /w && cd /w")
	for n := range 30 {
		for _, proc := range []string{"1", "self"} {
			for _, way := range []string{fmt.Sprintf("fd/%d", n), "root", "cwd"} {
				if n > 0 && way[0] != 'f' {
					continue
				}
				link := fmt.Sprintf("%s-%s", proc, strings.ReplaceAll(way, "/", ""))
				fmt.Fprintf(&lines, " && ln -s /proc/%[1]s/%[2]s/%[4]s %[3]s && { mknod %[3]s/planted c 1 3; chown 7:7 %[3]s/setuid; ls -n %[3]s/setuid && touch /seen; true; } 2>/dev/null",
					proc, way, link, out)
			}
		}
	}
	// The control: the same calls by the same paths do their work inside.
	lines.WriteString("\nRUN mkdir /in && ln -s /in /w/in && cd /w && mknod in/dev c 1 3 && touch in/f && chmod 4755 in/f && chown 7:7 in/f && ls -n in/f | cut -c1-10 > /mode\n")
	p.task("hostile", lines.String())
	r := p.build(nil)["hostile"]
	if mode := p.file(r.Image, "/mode"); mode != "-rwxr-xr-x\n" {
		t.Errorf("the control: a program that changed hands is %q", mode)
	}
	info, err := os.Stat(p.path("mine/setuid"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode()&os.ModeSetuid == 0 {
		t.Error("the user's program is no longer setuid")
	}
	if n, err := unix.Listxattr(p.path("mine/setuid"), nil); n != 0 || err != nil {
		t.Errorf("attributes of the user's program: %d bytes, %v", n, err)
	}
	entries, err := os.ReadDir(p.path("mine"))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("in the user's folder: %v", entries)
	}
	if _, seen := p.listing(r.Image)["seen"]; seen {
		t.Error("a RUN line saw the user's file")
	}
}

// What a step mounts cannot stand in the way of what starts the command.
func TestHostile_MountsOverWhatStartsTheCommand(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for name, target := range map[string]string{"proc": "/proc", "below": "/proc/self", "sys": "/sys", "dev": "/dev", "fence": "/.fence", "link": "/lnk"} {
		p.task(name, "FROM busybox AS evil\nCOPY inside /evil/self/exe\nCOPY inside /evil/fence\nCOPY inside /evil/sifbuild\n"+
			"FROM busybox\nRUN ln -s /proc /lnk\nRUN --mount=type=bind,from=evil,source=/evil,target="+target+" true\n")
		p.program(name, "inside")
	}
	p.task("control", "FROM busybox AS evil\nCOPY inside /evil/self/exe\nFROM busybox\nRUN --mount=type=bind,from=evil,source=/evil,target=/mnt test -x /mnt/self/exe\n")
	p.program("control", "inside")
	for name, r := range p.run(p.command(nil)).records {
		switch {
		case name == "control":
			if r.Fault != nil {
				t.Errorf("%s: %s", name, r.Fault.Message)
			}
		case r.Fault == nil || r.Fault.Class != "source" || !strings.Contains(r.Fault.Message, "which every step has"):
			t.Errorf("%s: %+v", name, r.Fault)
		}
	}
}

// Nor can links in the image, or what is no folder, where a step has its own.
func TestHostile_LinksForWhatEveryStepHas(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{".fence", "proc", "dev", "sys"} {
		for to, what := range map[string]string{"dev": "/dev", "proc": "/proc", "self": "/proc/self/cwd", "tmp": "/tmp", "nowhere": "/nowhere"} {
			task := strings.Trim(name, ".") + "-" + to
			p.task(task, "FROM scratch\nADD root.tar /\nCOPY inside /inside\nRUN [\"/inside\", \"get\"]\n")
			p.write(context(task)+"/root.tar", link(t, name, what), 0o644)
			p.program(task, "inside")
		}
	}
	for name, r := range p.run(p.command(nil, "-j", "2")).records {
		if r.Fault == nil || r.Fault.Class != "source" || !strings.Contains(r.Fault.Message, "every step has a folder of its own there") {
			t.Errorf("%s: %+v", name, r.Fault)
		}
	}
	p.clean()
}

// link is a tar of one link.
func link(t *testing.T, name, to string) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A command has no descriptor of its log: it could make a program of it, setuid
// to the user, in a folder that everybody may enter.
func TestHostile_Log(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("log", "FROM busybox\nCOPY inside /inside\nRUN echo said; /inside chmod-out; echo $? > /status; readlink /proc/self/fd/2 > /what\n")
	p.program("log", "inside")
	r := p.build(nil)["log"]
	if status := p.file(r.Image, "/status"); status != "0\n" {
		t.Errorf("fchmod(1): status %s", status)
	}
	if what := p.file(r.Image, "/what"); !strings.HasPrefix(what, "pipe:") {
		t.Errorf("the command says what it has to say to %s", what)
	}
	for _, name := range []string{r.Log, filepath.Join(p.path("cache"), "logs")} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Mode&0o6000 != 0 {
			t.Errorf("%s has the mode %o", name, st.Mode)
		}
	}
	if text, err := os.ReadFile(r.Log); err != nil || !strings.Contains(string(text), "said\n") {
		t.Errorf("the log: %v\n%s", err, text)
	}
}

// An image of the cache that was cut short is made again, and not said to be there.
func TestDamagedImage(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN echo made > /made\n")
	first := p.build(nil)["a"]
	for _, size := range []int64{first.Bytes - 1, 0} {
		if err := os.Truncate(first.Image, size); err != nil {
			t.Fatal(err)
		}
		if r := p.build(nil)["a"]; r.Cached || p.file(r.Image, "/made") != "made\n" {
			t.Errorf("with %d of %d bytes left: %+v", size, first.Bytes, r)
		}
	}
	if r := p.build(nil)["a"]; !r.Cached {
		t.Error("the control: the image was made again")
	}
}

// A step of the cache that is empty, or cut short, is made again: it is no step
// that changed nothing.
func TestDamagedStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN head -c 100000 /dev/urandom > /random && echo made > /made\nRUN cat /made > /again\n")
	first := p.build(nil)["a"]
	for _, size := range []int64{0, 3, 5000} {
		layers, err := filepath.Glob(p.path("cache/layers/*.tar"))
		if err != nil || len(layers) != 2 {
			t.Fatal(layers, err)
		}
		for _, name := range layers {
			if info, err := os.Stat(name); err != nil || info.Size() <= size {
				continue
			}
			if err := os.Truncate(name, size); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(first.Image); err != nil {
			t.Fatal(err)
		}
		// One attempt for each step that is cut short: it is removed, and made again.
		r := p.build(nil, "--retries", "2")["a"]
		if got := p.file(r.Image, "/again"); got != "made\n" {
			t.Errorf("with %d bytes left: %q", size, got)
		}
	}
}
