package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fence/pkg/sif"
)

// smallest is the size below which equal files mean nothing, in bytes: empty
// __init__.py, one-line configurations, a marker.
const smallest = 64

// copies looks for the files of a task's folder in the image, by content.
// Names do not matter; files shorter than smallest bytes do not count.
func (r *Report) copies(t tree, what, dir string) {
	inside := "/" + what
	if e, ok := t.resolve(what); ok && e.Mode.IsDir() {
		var there []string
		for _, p := range t.sorted() {
			if strings.HasPrefix(p, what+"/") && !t[p].Mode.IsDir() {
				there = append(there, p)
			}
		}
		if len(there) > 0 {
			r.add("copy", Warning, there, "remove it from the image unless the task means it: a trial puts its own there", "the image has %d files in %s", len(there), inside)
		}
	}
	if dir == "" {
		return
	}
	known, sizes, err := hashes(dir)
	if err != nil {
		r.add("copy", Fault, nil, "", "whether %s is in the image cannot be told: %v", what, err)
		return
	}
	var found, from []string
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
		if name, ok := known[sum]; ok {
			found, from = append(found, p), append(from, name)
		}
	}
	if len(found) > 0 {
		r.add("copy", Warning, found, fmt.Sprintf("add it to .dockerignore, or COPY less; files under %d bytes do not count", smallest),
			"%d files of the image are copies of the task's %s (/%s is %s): an agent can read them", len(found), what, found[0], filepath.Join(what, from[0]))
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

// hashes are the files in dir that count, by digest, and their sizes.
func hashes(dir string) (known map[string]string, sizes map[int64]bool, err error) {
	known, sizes = map[string]string{}, map[int64]bool{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
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
		known[sum], sizes[info.Size()] = rel, true
		return err
	})
	return known, sizes, err
}
