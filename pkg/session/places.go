package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
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

// notMounted refuses places that cannot be emptied, as they are the caller's.
func notMounted(places []string) error {
	mounts, err := host.Mounts()
	if err != nil {
		return err
	}
	for _, p := range places {
		for _, m := range mounts {
			if m.Path == p || strings.HasPrefix(m.Path, p+"/") {
				return &Error{CodeNotRun, fmt.Sprintf("%s is mounted, and cannot be emptied when others have had it: this node has no user namespaces, and nothing can be hidden from them", m.Path),
					"take a folder of the container's own, and fence put"}
			}
		}
	}
	return nil
}

// empty removes all that is in a folder, however deep: what lies in a folder is
// moved up before that is removed.
func empty(dir string) error {
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer top.Close()
	fd, number := int(top.Fd()), 0
	for {
		names, err := namesIn(fd)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := remove(fd, name, func(parent int, child string) error {
				for {
					number++
					err := unix.Renameat2(parent, child, fd, fmt.Sprintf(".%d", number), unix.RENAME_NOREPLACE)
					if err != unix.EEXIST {
						return err
					}
				}
			}); err != nil {
				return fmt.Errorf("removing %.100q: %w", name, err)
			}
		}
	}
}

// remove takes one name away, with the files in it if it is a folder; folders
// in it are given to up.
func remove(parent int, name string, up func(parent int, child string) error) error {
	if err := unix.Unlinkat(parent, name, 0); err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	// What its owner has shut is opened first.
	if err := unix.Fchmodat(parent, name, 0o700, 0); err != nil {
		return err
	}
	fd, err := beneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := namesIn(fd)
	if err != nil {
		return err
	}
	for _, child := range names {
		err := unix.Unlinkat(fd, child, 0)
		if err == unix.EISDIR || err == unix.EPERM {
			if err = unix.Fchmodat(fd, child, 0o700, 0); err == nil { // else it cannot be moved
				err = up(fd, child)
			}
		}
		if err != nil {
			return err
		}
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

// namesIn lists a folder again, from its beginning.
func namesIn(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again), "folder")
	defer f.Close()
	return f.Readdirnames(-1)
}
