package session

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// makePlaces makes folders of a domain's own. No part of their paths is a
// link, which could be changed to lead elsewhere.
func makePlaces(places []string) error {
	for _, p := range places {
		if err := eachPart(p, func(dir string) error {
			err := os.Mkdir(dir, 0o755)
			if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
				if st, e := os.Lstat(dir); e == nil && st.IsDir() {
					return nil
				} else if e == nil {
					return &Error{CodeUsage, dir + " is not a folder, and a domain cannot have it for its own", ""}
				}
			}
			return err
		}); err != nil {
			var e *Error
			if errors.As(err, &e) {
				return err
			}
			return &Error{CodeNotRun, "making a place for one domain alone: " + err.Error(), "give the container a root that can be written: --overlay DIR, or --writable-tmpfs"}
		}
	}
	return nil
}

func eachPart(p string, f func(dir string) error) error {
	for i := range p {
		if i > 0 && p[i] == '/' {
			if err := f(p[:i]); err != nil {
				return err
			}
		}
	}
	return f(p)
}

// emptyPlaces takes away what others have put there, who are gone. A folder
// stays the one it was: rules hold for it.
func emptyPlaces(places []string) error {
	for _, p := range places {
		err := eachPart(p, func(dir string) error {
			if st, err := os.Lstat(dir); err != nil || st.IsDir() {
				return nil
			}
			return os.Remove(dir)
		})
		if err == nil {
			err = makePlaces([]string{p})
		}
		if err == nil {
			err = empty(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func empty(dir string) error {
	// What their owner has shut is opened first.
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o755)
		}
		return nil
	})
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.Contains(name, "/") {
			return unix.EUCLEAN
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
