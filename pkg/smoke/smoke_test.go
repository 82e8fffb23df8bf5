package smoke

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/apptainer"
	"fence/pkg/sif"
	"fence/test/bed"
)

// asUser is set for the child in which an ordinary user starts images: it
// holds Apptainer's path and fence's.
const asUser = "SMOKE_AS_USER"

func TestMain(m *testing.M) {
	apptainer.Main()
	os.Exit(m.Run())
}

// child runs the test once more as the bed's ordinary user, and says whether
// this process is that one.
func child(t *testing.T) (tools func(t *testing.T) Tools, isChild bool) {
	t.Helper()
	if paths := os.Getenv(asUser); paths != "" {
		apptainer, fence, _ := strings.Cut(paths, " ")
		return func(t *testing.T) Tools {
			dir, err := os.MkdirTemp("", "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { exec.Command("sh", "-c", `chmod -R u+rwX "$0"; rm -rf "$0"`, dir).Run() })
			return Tools{Apptainer: apptainer, Fence: fence, Scratch: dir}
		}, true
	}
	bed.Require(t, "users", "apptainer", "images")
	public := filepath.Join(bed.TempDir(t), "smoke.test")
	compile := exec.Command("go", "test", "-c", "-o", public, ".")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := bed.Command(t, public, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = bed.TempDir(t)
	cmd.Env = append(cmd.Env, asUser+"="+filepath.Join(bed.Dir(), "bin", "apptainer")+" "+bed.Bin(t, "fence"), "TMPDIR="+bed.TempDir(t), "BED_DIR="+bed.Dir())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return nil, false
}

// image packs a root folder with a configuration. It is of the root file system of a
// bed's image, by links to it, with what Apptainer needs.
func image(t *testing.T, root string, config v1.Config, change string) string {
	t.Helper()
	dir := t.TempDir()
	full := filepath.Join(dir, "root")
	if out, err := exec.Command("cp", "-r", "--no-preserve=ownership", bed.Root(root), full).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if change != "" {
		sh := exec.Command("sh", "-euc", change)
		sh.Dir = full
		if out, err := sh.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := sif.Add(full, sif.Overlay(config, nil)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mksquashfs", full, dir+"/fs", "-all-root", "-noappend", "-quiet", "-processors", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name := filepath.Join(dir, "image.sif")
	if err := sif.Write(name, dir+"/fs", sif.Meta{Arch: "amd64", Config: config}); err != nil {
		t.Fatal(err)
	}
	return name
}

// Images start, and what is not as it must be is said by name.
func TestRun(t *testing.T) {
	tools, ok := child(t)
	if !ok {
		return
	}
	odd := []string{"PATH=/bin", "EMPTY=", "QUOTE=it's \"x\" $HOME `id` \\", "LINES=a\nb\r\n", "A.B=c", "HOME=/somewhere", "IFS=:", "TWICE=1", "TWICE=2", "TERM=none", "LC_ALL=C", "TMPDIR=/x", "LD_LIBRARY_PATH=/lib/x"}
	for _, c := range []struct {
		name   string
		root   string
		config v1.Config
		change string
		alter  func(*Image)
		want   []string // of the Failure
		warns  string
	}{
		{name: "plain", root: "busybox", config: v1.Config{Env: odd, WorkingDir: "/bin"}},
		{name: "no shell", root: "static"},
		{name: "required", root: "busybox", alter: func(i *Image) { i.Require = []string{"ls", "tmux"} }, want: []string{"its shell finds no command tmux"}},
		{name: "workdir", root: "busybox", config: v1.Config{WorkingDir: "/gone"}, want: []string{"its WORKDIR /gone is not there when it runs"}},
		{name: "workdir, private", root: "busybox", config: v1.Config{WorkingDir: "/tmp/x"}, change: "mkdir -p tmp/x", warns: "its WORKDIR /tmp/x is not there when it runs: each container has its own /tmp"},
		{name: "environment", root: "busybox", alter: func(i *Image) { i.Config.Env = []string{"X=1"} }, want: []string{"its commands do not get the variables of its configuration: X"}},
		{name: "credentials", root: "busybox", config: v1.Config{Env: []string{"API_TOKEN=x"}}, warns: "its variables API_TOKEN look like credentials"},
		{name: "no such shell", root: "static", alter: func(i *Image) { i.Shell = true }, want: []string{"its shell does not run a script to the end: /bin/sh: no such command"}},
		{name: "umask", root: "busybox", change: `rm bin/sh; printf '#!/bin/busybox sh\numask 077\nexec /bin/busybox sh "$@"\n' >bin/sh; chmod 755 bin/sh`, want: []string{`its umask is "0077", not 022`}},
		{name: "no image", root: "busybox", alter: func(i *Image) { i.Path = "/etc/passwd" }, want: []string{"nothing ran in it: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := Image{Path: image(t, c.root, c.config, c.change), Config: c.config, Shell: c.root != "static"}
			if c.alter != nil {
				c.alter(&i)
			}
			warnings, err := Run(t.Context(), tools(t), i)
			var f *Failure
			switch {
			case len(c.want) == 0 && err != nil:
				t.Errorf("%v\n%+v", err, errors.As(err, &f))
			case len(c.want) > 0 && (!errors.As(err, &f) || len(f.What) != len(c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
			if f != nil {
				t.Log(f.What, f.Said)
				for n, w := range c.want {
					if !strings.Contains(f.What[n], w) {
						t.Errorf("%q, want %q", f.What[n], w)
					}
				}
			}
			if got := strings.Join(warnings, "\n"); !strings.Contains(got, c.warns) || c.warns == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, c.warns)
			}
		})
	}
}

// hanging makes a shell that leaves something running and does not end.
const hanging = `rm bin/sh; printf '#!/bin/busybox sh\n/bin/busybox setsid /bin/busybox sleep 9999 &\n: >/started; sleep 9999\n' >bin/sh; chmod 755 bin/sh`

// A start that does not end is ended, with all that it left running, when its
// caller has had enough.
func TestRun_Canceled(t *testing.T) {
	tools, ok := child(t)
	if !ok {
		return
	}
	path := image(t, "busybox", v1.Config{}, hanging)
	to := tools(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(to.Scratch, "overlay/upper/started")); err == nil {
				cancel(enough)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	_, err := Run(ctx, to, Image{Path: path, Shell: true})
	if err != enough {
		t.Errorf("%v, want %v", err, enough)
	}
	if out := processes(path); out != "" {
		t.Errorf("left running:\n%s", out)
	}
}

// processes are those that have an image in their command line, or are what
// hanging leaves.
func processes(path string) (found string) {
	out, _ := exec.Command("ps", "-eo", "args").Output()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, path) || strings.HasSuffix(line, "sleep 9999\n") {
			found += line
		}
	}
	return found
}

// Who starts an image can be killed at any moment: nothing of it stays.
func TestRun_Killed(t *testing.T) {
	tools, ok := child(t)
	if !ok {
		return
	}
	to := tools(t)
	if path := os.Getenv("SMOKE_HANG"); path != "" {
		to.Scratch = os.Getenv("SMOKE_SCRATCH")
		_, err := Run(t.Context(), to, Image{Path: path, Shell: true})
		t.Fatal(err)
	}
	path := image(t, "busybox", v1.Config{}, hanging)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestRun_Killed$")
	cmd.Env = append(os.Environ(), "SMOKE_HANG="+path, "SMOKE_SCRATCH="+to.Scratch)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(to.Scratch, "overlay/upper/started")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if processes(path) == "" {
		t.Error("nothing runs, and it should")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for processes(path) != "" { // the test's time is the limit
		time.Sleep(10 * time.Millisecond)
	}
}
