package build

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/step"
	"fence/pkg/tree"
)

// scratch is a folder of this process alone on a disk of this node: layers,
// mounts and logs of builds under way. It is gone when the process is, and what
// a killed process left is removed by the next.
type scratch struct {
	dir    string
	lock   *os.File
	engine engine
}

const scratchPrefix = "sifbuild-"

// newScratch makes a scratch folder in parent, which must exist. Steps are done
// inside the Apptainer of a path, if there is one.
func newScratch(parent, apptainer string) (*scratch, error) {
	if err := sweep(parent); err != nil {
		return nil, err
	}
	var s *scratch
	for s == nil {
		// Only its owner may look into it: files in it may be setuid.
		dir, err := os.MkdirTemp(parent, scratchPrefix)
		if err != nil {
			return nil, fmt.Errorf("making a scratch folder (--scratch): %w", err)
		}
		if s, err = lockScratch(dir); err != nil {
			os.RemoveAll(dir)
			return nil, fmt.Errorf("locking the scratch folder %s: %w", dir, err)
		}
	}
	s.engine = engine{apptainer: apptainer, work: s.work}
	for _, sub := range []string{"layers", "work"} {
		if err := os.Mkdir(filepath.Join(s.dir, sub), 0o700); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// work is a new folder for one step, on the filesystem of the layers.
func (s *scratch) work() (string, error) { return os.MkdirTemp(filepath.Join(s.dir, "work"), "") }

func (s *scratch) layer(key string) string { return filepath.Join(s.dir, "layers", key) }

// caches is the folder of what RUN --mount=type=cache keeps for an image.
func (s *scratch) caches(image string) string { return filepath.Join(s.dir, "caches", image) }

func (s *scratch) close() error {
	defer s.lock.Close()
	s.engine.close()
	return discard(s.dir)
}

// room is an error when the disk is full: a command that ended well may have
// written half of a file then, and shells go on after a failure.
func (s *scratch) room() error {
	const least = 256 << 10
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return fmt.Errorf("the scratch folder %s: %w", s.dir, err)
	}
	if left := int64(st.Bavail) * st.Bsize; left < least {
		return &step.Failure{Kind: "disk", Text: fmt.Sprintf("the disk of the scratch folder %s is full after this command (%d KiB are left), so what it wrote may not be whole; --scratch names another", filepath.Dir(s.dir), left>>10)}
	}
	return nil
}

// lockScratch makes a new folder this process's. It is nil if another process
// has swept the folder away before.
func lockScratch(dir string) (*scratch, error) {
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
	return &scratch{dir: dir, lock: lock}, nil
}

// discard removes a scratch folder whose lock the caller has. The lock goes
// last: without it what is left would be nobody's.
func discard(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all []string
	for _, e := range entries {
		if e.Name() != "lock" {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	if err := remove(all...); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		return err
	}
	return ignoreGone(os.Remove(dir)) // one that sweeps may have been faster
}

// sweep removes the scratch folders of this user whose process is gone.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("the scratch folder (--scratch): %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		if !strings.HasPrefix(e.Name(), scratchPrefix) || !e.IsDir() {
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

// remove removes folders that may hold folders without any permission.
func remove(dirs ...string) (err error) {
	for _, dir := range dirs {
		err = errors.Join(err, tree.RemoveAll(dir))
	}
	return err
}
