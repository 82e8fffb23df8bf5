package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/pkg/internal/lockfile"
)

// cache makes one with files of 100 bytes, each last used so many hours ago.
func cache(t *testing.T, files map[string]int) string {
	t.Helper()
	dir := t.TempDir()
	for name, hours := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, make([]byte, 100), 0o644); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Duration(hours) * time.Hour)
		for q := p; q != dir; q = filepath.Dir(q) { // of folders, the oldest of what they hold
			if err := os.Chtimes(q, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func left(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, strings.TrimPrefix(p, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var files = map[string]int{
	"sif/a.sif": 1, "sif/a.json": 900, "logs/a.log": 900,
	"sif/b.sif": 100, "sif/b.json": 0, "logs/b.log": 0,
	"layers/c.tar": 1, "layers/d.tar": 100, "logs/failed.log": 100,
	"base/blobs/sha256/x": 1, "base/blobs/sha256/v": 1, "base/blobs/sha256/y": 100, "base/local/z.json": 100, "lock.json": 900,
	"downloads/blobs/ab/abc": 100, "downloads/urls/ab/abd": 1,
	"sif/.e.sif.KXQZ": 100, "sif/.f.sif.KXQZ": 200, "layers/.tmp-1": 200, "base/blobs/sha256/.w/1234": 200,
}

func TestGC(t *testing.T) {
	old := []string{"base/blobs/sha256/y", "base/local/z.json", "downloads/blobs/ab/abc", "layers/d.tar", "logs/failed.log", "sif/b.sif"}
	half := []string{"base/blobs/sha256/.w", "layers/.tmp-1", "sif/.f.sif.KXQZ"}
	for _, c := range []struct {
		name string
		o    GCOptions
		gone []string
	}{
		{"old", GCOptions{Unused: 50 * time.Hour}, slices.Concat(old, half)},
		{"nothing is so old", GCOptions{Unused: 5000 * time.Hour}, half},
		{"as much as may stay", GCOptions{Keep: 1 << 20}, half},
		{"the last used stay", GCOptions{Keep: 500}, slices.Concat(old, half)}, // a, c, two blobs, a URL
		{"old, of what is too much", GCOptions{Unused: 50 * time.Hour, Keep: 1}, slices.Concat(old, half)},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := cache(t, files)
			c.o.Cache = dir
			before := left(t, dir)
			c.o.DryRun = true
			would, err := GC(c.o)
			if after := left(t, dir); err != nil || !slices.Equal(before, after) {
				t.Errorf("a dry run (%v) leaves %q of %q", err, after, before)
			}
			c.o.DryRun = false
			gone, err := GC(c.o)
			if err != nil || fmt.Sprint(gone) != fmt.Sprint(would) {
				t.Errorf("%v\ndid   %v\nwould %v", err, gone, would)
			}
			var paths []string
			for _, g := range gone {
				paths = append(paths, strings.TrimPrefix(g.Path, dir+"/"))
				if g.Bytes == 0 || g.Used.IsZero() || g.Kind == "" {
					t.Errorf("%+v", g)
				}
			}
			slices.Sort(paths)
			want := slices.Sorted(slices.Values(c.gone))
			if !slices.Equal(paths, want) {
				t.Errorf("gone %q\nwant %q", paths, want)
			}
			for _, f := range left(t, dir) {
				if slices.ContainsFunc(want, func(w string) bool { return f == w || strings.HasPrefix(f, w+"/") }) {
					t.Errorf("%s is still there", f)
				}
			}
			_, report := os.Stat(filepath.Join(dir, "sif/b.json"))
			_, log := os.Stat(filepath.Join(dir, "logs/b.log"))
			if b := slices.Contains(want, "sif/b.sif"); b == (report == nil) || b == (log == nil) {
				t.Errorf("the report of b: %v, its log: %v", report, log)
			}
		})
	}
	if _, err := GC(GCOptions{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no cache of sifbuild") {
		t.Errorf("of a folder that is none: %v", err)
	}
}

// What is being made is somebody's: its lock is held, here or on another node.
func TestGC_LeavesWhatIsHeld(t *testing.T) {
	dir := cache(t, files)
	if err := os.Mkdir(filepath.Join(dir, "locks"), 0o755); err != nil {
		t.Fatal(err)
	}
	held, err := lockfile.Acquire(context.Background(), filepath.Join(dir, "locks/b"))
	if err != nil {
		t.Fatal(err)
	}
	gone, err := GC(GCOptions{Cache: dir, Unused: 50 * time.Hour})
	if err != nil || slices.ContainsFunc(gone, func(g Gone) bool { return strings.HasSuffix(g.Path, "b.sif") }) {
		t.Errorf("%v, %v", gone, err)
	}
	held.Release()
	gone, err = GC(GCOptions{Cache: dir, Unused: 50 * time.Hour})
	if err != nil || len(gone) != 1 || !strings.HasSuffix(gone[0].Path, "b.sif") {
		t.Errorf("when it is free: %v, %v", gone, err)
	}
}
