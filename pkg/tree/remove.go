package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RemoveAll removes dir with everything in it, folders that nobody may enter
// included. It follows no link. A dir that is not there is no error.
func RemoveAll(dir string) error {
	r, err := openRoot(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.remove(filepath.Base(dir)); err != nil {
		return fmt.Errorf("removing %s: %w", dir, err)
	}
	return nil
}

// remove removes what is at p and everything below it; nothing there is no
// error.
func (r *rooted) remove(p string) error {
	r.forget(p)
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	err = (&remover{top: -1}).remove(fd, name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return inside("remove", p, err)
}

// remover removes one tree, one folder at a time, so that a folder swapped for
// a link is not followed.
type remover struct {
	top   int // the folder that the tree consists of
	moved int
}

// deepest is how many folders are open at once. A RUN step can nest them far
// deeper than a path or the number of descriptors allows; what is deeper is
// moved to the top first.
const deepest = 100

func (rm *remover) remove(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM { // EPERM is what POSIX wants for a folder
		return err
	}
	fd, openErr := openToChange(dir, name)
	if openErr == unix.ENOTDIR {
		return err
	}
	if openErr != nil {
		return openErr
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if depth == 0 {
		rm.top = fd
	}
	for kept := 0; ; {
		names, err := f.Readdirnames(1024)
		// What is open somewhere, NFS and FUSE rename instead of removing it, again and again.
		if len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool {
			return !strings.HasPrefix(n, ".nfs") && !strings.HasPrefix(n, ".fuse_hidden")
		}) {
			if kept++; kept > 3 {
				return fmt.Errorf("%s: %w (a process has it open)", names[0], unix.EBUSY)
			}
		}
		for _, below := range names {
			if depth == deepest {
				rm.moved++
				err := unix.Renameat2(fd, below, rm.top, fmt.Sprintf(".removing-%d-%s", rm.moved, below[:min(len(below), 100)]), unix.RENAME_NOREPLACE)
				if err == nil {
					continue
				}
			}
			if err := rm.remove(fd, below, depth+1); err != nil && err != unix.ENOENT {
				return fmt.Errorf("%s: %w", below, err)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		// Removing while reading hides entries from the reader on some file systems.
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// openToChange opens a folder for reading after making sure that its owner may
// read, enter and change it.
func openToChange(dir int, name string) (int, error) {
	const flags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	pinned, err := unix.Openat(dir, name, unix.O_PATH|flags, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pinned)
	var st unix.Stat_t
	if err := unix.Fstat(pinned, &st); err != nil {
		return -1, err
	}
	if st.Mode&0o700 != 0o700 {
		// A failure shows when the folder is opened or emptied.
		_ = unix.Chmod("/proc/self/fd/"+strconv.Itoa(pinned), st.Mode&0o7777|0o700)
	}
	return unix.Openat(pinned, ".", unix.O_RDONLY|flags, 0)
}
