package images

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"fence/test/bed"
)

func bases(t *testing.T) []Image {
	t.Helper()
	all, err := Bases()
	if err != nil {
		bed.Missing(t, "%v", err)
	}
	return all
}

// The same image comes out of every form that it is written in.
func TestBases(t *testing.T) {
	digests := map[string]bool{}
	for _, base := range bases(t) {
		tree, err := base.Tree()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		digest, err := base.WriteLayout(filepath.Join(dir, "one"))
		if err != nil {
			t.Fatal(err)
		}
		again, err := base.WriteLayout(filepath.Join(dir, "two"))
		if err != nil || again != digest || digests[digest.String()] {
			t.Errorf("%s: %s, then %s (%v), others %v", base.Name, digest, again, err, digests)
		}
		digests[digest.String()] = true
		index, err := layout.ImageIndexFromPath(filepath.Join(dir, "one"))
		if err != nil {
			t.Fatal(err)
		}
		image, err := index.Image(digest)
		if err != nil {
			t.Fatal(err)
		}
		read, err := ReadImage(image)
		if err != nil {
			t.Fatal(err)
		}
		if d := Diff(tree, read, true); d != "" {
			t.Errorf("%s: the layout has\n%s", base.Name, d)
		}
		if !strings.Contains(Diff(Empty(), tree, false), "\nfile 0755 0:0 /bin/busybox <busybox>\n") {
			t.Errorf("%s: the program is not known by its content", base.Name)
		}
	}
}

// The bases have no link to a program that their busybox is not.
func TestApplets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	if err := bases(t)[0].WriteFolder(dir); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(dir, "bin/busybox"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	has := strings.Fields(string(out))
	for _, applet := range strings.Fields(applets) {
		if !slices.Contains(has, applet) {
			t.Errorf("busybox has no %s", applet)
		}
	}
}

func TestWriteFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	if err := bases(t)[0].WriteFolder(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{
		"root": fs.ModeDir | 0o700, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "bin/busybox": 0o755,
		"etc/shadow": 0o640, "bin/ash": fs.ModeSymlink | 0o777,
	} {
		if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		} else if fi.Mode() != want {
			t.Errorf("%s is %v, not %v", name, fi.Mode(), want)
		}
	}
}

func TestCanonical(t *testing.T) {
	got, err := Canonical([]byte(`{"Env":["A=<b>"],"Cmd":null,"Entrypoint":[],"User":"","Labels":{},"ArgsEscaped":true,` +
		`"Healthcheck":{"Interval":60000000000000001,"Test":["CMD"]}}`))
	want := "{\n  \"Env\": [\n    \"A=<b>\"\n  ],\n  \"Healthcheck\": {\n    \"Interval\": 60000000000000001,\n" +
		"    \"Test\": [\n      \"CMD\"\n    ]\n  }\n}\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := Canonical([]byte(`[]`)); err == nil || got != "" {
		t.Errorf("a list: %q, %v", got, err)
	}
}
