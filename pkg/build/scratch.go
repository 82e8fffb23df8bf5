package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/step"
)

// scratch is a folder of this process alone on a disk of this node: layers,
// mounts and logs of builds under way. It is gone when the process is, and what
// a killed process left is removed by the next.
type scratch struct {
	dir  string
	lock *os.File
}

const scratchPrefix = "sifbuild-"

// newScratch makes a scratch folder in parent, which must exist.
func newScratch(parent string) (*scratch, error) {
	if err := sweep(parent); err != nil {
		return nil, err
	}
	// Only its owner may look into it: files in it may be setuid.
	dir, err := os.MkdirTemp(parent, scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("making a scratch folder (--scratch): %w", err)
	}
	s := &scratch{dir: dir}
	if s.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("locking the scratch folder %s: %w", dir, err)
	}
	for _, sub := range []string{"layers", "work"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// work is a new folder for one step, on the filesystem of the layers.
func (s *scratch) work() (string, error) { return os.MkdirTemp(filepath.Join(s.dir, "work"), "") }

func (s *scratch) layer(key string) string { return filepath.Join(s.dir, "layers", key) }

func (s *scratch) close() error {
	err := remove(s.dir)
	s.lock.Close()
	return err
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
			os.Remove(dir)
			continue
		} else if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = remove(dir)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes a folder that may hold folders without any permission.
func remove(dirs ...string) error {
	_, err := step.Do(context.Background(), step.Spec{Remove: dirs}, os.Stderr)
	if err != nil {
		return fmt.Errorf("removing %s: %w", strings.Join(dirs, ", "), err)
	}
	return nil
}
