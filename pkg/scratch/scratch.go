// Package scratch makes folders for what a process has on a disk of its node
// while it works.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// Dir is a folder of this process alone. It is gone when the process is: what a
// killed one left is removed by the next that makes one there.
type Dir struct {
	Path string // only its owner may look into it; lock, in it, is taken
	lock *os.File
}

// New makes a folder in parent, which must exist, whose name begins with prefix.
func New(parent, prefix string) (*Dir, error) {
	if err := sweep(parent, prefix); err != nil {
		return nil, err
	}
	for {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, fmt.Errorf("making a scratch folder (--scratch): %w", err)
		}
		d, err := take(path)
		if err != nil {
			os.RemoveAll(path)
			return nil, fmt.Errorf("locking the scratch folder %s: %w", path, err)
		}
		if d != nil {
			return d, nil
		}
	}
}

// InMemory says whether the folder takes the node's memory: it is on tmpfs(5), so
// that what is in it counts against the job's.
func (d *Dir) InMemory() bool {
	var st unix.Statfs_t
	return unix.Statfs(d.Path, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// Free is the room that its disk has for the user, in bytes.
func (d *Dir) Free() int64 {
	var st unix.Statfs_t
	if unix.Statfs(d.Path, &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// Close removes the folder, also what is in folders without any permission.
func (d *Dir) Close() error {
	defer d.lock.Close()
	return discard(d.Path)
}

// take makes a new folder this process's. It is nil if another process has swept
// the folder away before.
func take(dir string) (*Dir, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	var st unix.Stat_t
	switch {
	case err == unix.EWOULDBLOCK, err == nil && unix.Fstat(int(lock.Fd()), &st) == nil && st.Nlink == 0:
		lock.Close()
		return nil, nil
	case err != nil:
		lock.Close()
		return nil, err
	}
	return &Dir{Path: dir, lock: lock}, nil
}

// discard removes a scratch folder whose lock the caller has. The lock goes
// last: without it what is left would be nobody's.
func discard(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var failed error
	for _, e := range entries {
		if e.Name() != "lock" {
			failed = errors.Join(failed, tree.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if failed != nil {
		return failed
	}
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		return err
	}
	return ignoreGone(os.Remove(dir)) // one that sweeps may have been faster
}

// sweep removes the scratch folders of this user whose process is gone.
func sweep(parent, prefix string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("the scratch folder (--scratch): %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		if !strings.HasPrefix(e.Name(), prefix) || !e.IsDir() {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || int(st.Uid) != os.Geteuid() {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			// Killed between making the folder and the lock, or about to make it.
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
				err = ignoreGone(discard(dir)) // its end was not, for want of descriptors, say
				if err != nil {
					return err
				}
			}
			os.Remove(dir)
			continue
		} else if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = ignoreGone(discard(dir)) // another may have been faster
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// ignoreGone is err, or nil where something was not there.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
