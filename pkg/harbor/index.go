package harbor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/lockfile"
	"fence/pkg/internal/readfile"
)

// Link makes the name file in the cache lead to an image in it, in place of
// whatever it led to before. A file of that name which is no link stays: it is
// somebody's image.
func Link(cache, file, image string) error {
	rel, err := filepath.Rel(cache, image)
	if err != nil {
		return fmt.Errorf("the name %s for %s: %w", file, image, err)
	}
	name := filepath.Join(cache, file)
	if at, err := os.Readlink(name); err == nil && at == rel {
		return nil
	}
	if st, err := os.Lstat(name); err == nil && st.Mode().Type() != fs.ModeSymlink {
		return fmt.Errorf("%s is there and no link of sifbuild's: remove it, so that Harbor takes the image that was built", name)
	}
	// A link cannot be made over another: this one moves there.
	next := fmt.Sprintf("%s/.%s.%d", cache, file, os.Getpid())
	if err := os.Symlink(rel, next); err != nil {
		return fmt.Errorf("Harbor's name for an image: %w", err)
	}
	if err := os.Rename(next, name); err != nil {
		os.Remove(next)
		return fmt.Errorf("Harbor's name for an image: %w", err)
	}
	return nil
}

// Unlink takes a name away.
func Unlink(cache, file string) error {
	name := filepath.Join(cache, file)
	if st, err := os.Lstat(name); err != nil || st.Mode().Type() != fs.ModeSymlink {
		return nil
	}
	return os.Remove(name)
}

// Sweep removes the names of images that are gone, here and in the index.
func Sweep(ctx context.Context, cache string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	var all []error
	for _, e := range entries {
		name := filepath.Join(cache, e.Name())
		if at, err := os.Readlink(name); err != nil || !strings.HasPrefix(at, "sif/") {
			continue
		}
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			all = append(all, os.Remove(name))
		}
	}
	if _, err := os.Stat(filepath.Join(cache, IndexFile)); err == nil {
		all = append(all, Merge(ctx, cache, nil))
	}
	return errors.Join(all...)
}

// IndexFile is the index of a cache, IndexSchema what it begins with.
const (
	IndexFile   = "index.json"
	IndexSchema = "sifbuild.index/v1"
)

// Index lists the images of a cache by their tasks.
type Index struct {
	Schema string  `json:"schema"`
	Images []Entry `json:"images"`
}

// Entry is a task, and where its image is.
type Entry struct {
	Task        string   `json:"task"`
	Dockerfile  string   `json:"dockerfile_sha256"`      // "" if it has none
	Environment string   `json:"environment_sha256"`     // of all files beside it, see folder
	DockerImage string   `json:"docker_image,omitempty"` // what task.toml names
	Key         string   `json:"key"`
	Image       string   `json:"image"` // from the cache
	Files       []string `json:"files"` // names that lead there
}

func (e Entry) compare(f Entry) int {
	return cmp.Or(strings.Compare(e.Task, f.Task), strings.Compare(e.Dockerfile, f.Dockerfile),
		strings.Compare(e.Environment, f.Environment), strings.Compare(e.DockerImage, f.DockerImage))
}

// ReadIndex reads a cache's index; it is empty if there is none.
func ReadIndex(cache string) (Index, error) {
	x := Index{Schema: IndexSchema, Images: []Entry{}}
	data, err := readfile.Regular(filepath.Join(cache, IndexFile), 256<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return x, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &x)
	}
	if err == nil && x.Schema != IndexSchema {
		err = fmt.Errorf("its schema is %q, not %s", x.Schema, IndexSchema)
	}
	if err != nil {
		return Index{}, fmt.Errorf("the index %s: %w; without the file it is made anew", filepath.Join(cache, IndexFile), err)
	}
	return x, nil
}

// Merge adds entries to the index of a cache, in place of those for the same
// task and content, and leaves out those whose image is gone. Several processes
// may do so at a time.
func Merge(ctx context.Context, cache string, add []Entry) error {
	// Most runs find all as it is, and leave the cache as it was.
	if x, err := ReadIndex(cache); err == nil && !x.merge(cache, add) {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(cache, "locks"), 0o755); err != nil {
		return fmt.Errorf("the index of %s: %w", cache, err)
	}
	lock, err := lockfile.Acquire(ctx, filepath.Join(cache, "locks", "index"))
	if err != nil {
		return fmt.Errorf("the index of %s: %w", cache, err)
	}
	defer lock.Release()
	x, err := ReadIndex(cache)
	if err != nil {
		return err
	}
	if !x.merge(cache, add) {
		return nil
	}
	data, err := json.MarshalIndent(x, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(cache, IndexFile), func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}

// merge is what Merge does to an index, and whether that changes it.
func (x *Index) merge(cache string, add []Entry) bool {
	before := slices.Clone(x.Images)
	x.Images = append(slices.Clone(add), x.Images...)
	slices.SortStableFunc(x.Images, Entry.compare) // the new before the old
	x.Images = slices.CompactFunc(x.Images, func(a, b Entry) bool { return a.compare(b) == 0 })
	x.Images = slices.DeleteFunc(x.Images, func(e Entry) bool {
		_, err := os.Stat(filepath.Join(cache, e.Image))
		return errors.Is(err, fs.ErrNotExist)
	})
	return !slices.EqualFunc(before, x.Images, func(a, b Entry) bool {
		return a.compare(b) == 0 && a.Key == b.Key && a.Image == b.Image && slices.Equal(a.Files, b.Files)
	})
}
