package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/sif"
)

// smallest is the size below which equal files mean nothing, in bytes: empty
// __init__.py, one-line configurations, a marker.
const smallest = 64

// places says that an image brings folders of its own where a trial puts a
// task's.
func (r *Report) places(t tree) {
	for _, what := range []string{"tests", "solution"} {
		var there []string
		for _, p := range t.sorted() {
			if strings.HasPrefix(p, what+"/") && !t[p].Mode.IsDir() {
				there = append(there, p)
			}
		}
		if len(there) > 0 {
			r.add("copy", Warning, there, "remove it from the image unless the task means it: a trial puts its own there", "the image has %d files in /%s", len(there), what)
		}
	}
}

// secret is a file of a task that an image must not have.
type secret struct{ task, what, name string }

// copies looks for files of the tasks' folders in the image, by content. Names
// do not matter; files shorter than smallest bytes do not count.
func (r *Report) copies(t tree, tasks []Task) {
	known, sizes := map[string]secret{}, map[int64]bool{}
	for _, task := range tasks {
		for _, f := range [][2]string{{"tests", task.Tests}, {"solution", task.Solution}} {
			what, dir := f[0], f[1]
			if dir == "" {
				continue
			}
			err := hashes(dir, func(name, sum string, size int64) {
				if _, ok := known[sum]; !ok {
					known[sum], sizes[size] = secret{task.Name, what, name}, true
				}
			})
			if err != nil {
				r.add("copy", Fault, nil, "", "whether the %s of %s is in the image cannot be told: %v", what, task.Name, err)
				r.Findings[len(r.Findings)-1].untold = true
			}
		}
	}
	found, first := map[string][]string{}, map[string]secret{}
	for _, p := range t.sorted() {
		e := t[p]
		if !e.Mode.IsRegular() || !sizes[e.Size] {
			continue
		}
		sum, err := hashEntry(e)
		if err != nil {
			r.add("damaged", Fault, []string{p}, "build it again, or copy it again from where it is whole", "%v", err)
			return
		}
		if s, ok := known[sum]; ok {
			if found[s.what] == nil {
				first[s.what] = s
			}
			found[s.what] = append(found[s.what], p)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		paths, s := found[what], first[what]
		r.add("copy", Warning, paths, fmt.Sprintf("add it to .dockerignore, or COPY less; files under %d bytes do not count", smallest),
			"%s in the %s of its tasks, where an agent can read them: /%s is %s of %s", filesAre(len(paths)), what, paths[0], filepath.Join(what, s.name), s.task)
	}
}

func hashEntry(e sif.Entry) (string, error) {
	r, err := e.Open()
	if err != nil {
		return "", err
	}
	return hashOf(r)
}

func hashOf(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// hashes visits the files in dir that count.
func hashes(dir string, visit func(name, sum string, size int64)) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Size() < smallest {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		sum, err := hashOf(f)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		visit(rel, sum, info.Size())
		return err
	})
}

func filesAre(n int) string {
	if n == 1 {
		return "1 file of the image is"
	}
	return fmt.Sprintf("%d files of the image are", n)
}
