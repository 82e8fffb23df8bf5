package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

func TestVisit(t *testing.T) { testVisit(t) }

func TestVisit_AsAnOrdinaryUser(t *testing.T) { sandboxtest.Run(t, testVisit) }

func testVisit(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "dir")
	grow(t, base, "canary/f=f", "dir/a/b/c=c", "dir/l->../canary", "dir/shut/x/y=y", "dir/p|", "dir/skip/z=z", "dir/t=t")
	must(t, os.Chmod(filepath.Join(dir, "shut/x"), 0))
	must(t, os.Chmod(filepath.Join(dir, "shut"), 0o300))
	must(t, os.Chmod(filepath.Join(dir, "t"), 0o400))
	var got []string
	err := Visit(dir, 5, func(v *Visited) error {
		got = append(got, v.Path)
		switch v.Path {
		case "skip":
			return fs.SkipDir
		case "l":
			to, err := v.Link()
			if err != nil || to != "../canary" {
				t.Errorf("the link: %q %v", to, err)
			}
			if f, err := v.Open(); err == nil {
				f.Close()
				t.Error("a link was opened")
			}
		case "p":
			if f, err := v.Open(); err == nil {
				f.Close()
				t.Error("a FIFO was opened")
			}
		case "t":
			f, err := v.Open()
			must(t, err)
			defer f.Close()
			if data, err := io.ReadAll(f); err != nil || string(data) != "t" {
				t.Errorf("%q %v", data, err)
			}
		case "shut/x/y":
			must(t, v.At(func(dir int, name string) error {
				var st unix.Stat_t
				if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Ino != v.Ino {
					t.Errorf("%v, inodes %d and %d", err, st.Ino, v.Ino)
				}
				return nil
			}))
		}
		return v.Err
	})
	if want := "[. a a/b a/b/c l p shut shut/x shut/x/y skip t]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("visited %v, %v, want %s", got, err, want)
	}
	mode := func(name string, want fs.FileMode) {
		if st, err := os.Lstat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	mode("shut", 0o300)
	must(t, os.Chmod(filepath.Join(dir, "shut"), 0o700))
	mode("shut/x", 0)

	var deep error
	must(t, Visit(dir, 1, func(v *Visited) error {
		if v.Path == "a" {
			deep = v.Err
		}
		return nil
	}))
	if deep == nil {
		t.Error("it went deeper than it was to")
	}
	stop := errors.New("stop")
	if err := Visit(dir, 5, func(v *Visited) error { return stop }); err != stop {
		t.Errorf("%v", err)
	}
	if err := Visit(filepath.Join(base, "none"), 5, func(v *Visited) error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	// What goes away meanwhile is left out.
	must(t, Visit(dir, 5, func(v *Visited) error {
		if v.Path == "a" {
			return os.RemoveAll(filepath.Join(dir, "a/b"))
		}
		return nil
	}))
	must(t, RemoveAll(dir)) // the usual way cannot
}
