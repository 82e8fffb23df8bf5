package build

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	dir "fence/pkg/scratch"
	"fence/pkg/step"
	"fence/pkg/tree"
)

// scratch is a folder of this process alone on a disk of this node: layers,
// mounts and logs of builds under way.
type scratch struct {
	own    *dir.Dir
	dir    string // its path
	engine engine
}

const scratchPrefix = "sifbuild-"

// newScratch makes a scratch folder in parent, which must exist. Steps are done
// inside the Apptainer of a path, if there is one.
func newScratch(parent, apptainer string) (*scratch, error) {
	own, err := dir.New(parent, scratchPrefix)
	if err != nil {
		return nil, err
	}
	s := &scratch{own: own, dir: own.Path}
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
	s.engine.close()
	return s.own.Close()
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

// remove removes folders that may hold folders without any permission.
func remove(dirs ...string) (err error) {
	for _, dir := range dirs {
		err = errors.Join(err, tree.RemoveAll(dir))
	}
	return err
}
