// Package harbor gives images the names under which Harbor's Apptainer workers
// look for them, and keeps an index of what is there. Harbor is the runner
// whose task format this project reads.
package harbor

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/readfile"
	"fence/pkg/task"
)

// Named is a task with what its image is looked for by. Digests are 64 digits.
type Named struct {
	Task        string   // the task's name
	Dockerfile  string   // digest of the Dockerfile; "" if there is none
	Environment string   // digest of the folder that it is in; "" if there is none
	Files       []string // names of files in the worker's image cache, those first that it tries first
}

// Name reads what a task's image is made from. A worker is given a folder of
// images and takes, in this order, TASK.sif, build_TASK-HASH.sif and any
// file that ends in -HASH.sif, where HASH is the beginning of a digest: older
// workers digest the Dockerfile alone, newer ones all files of its folder. Two
// tasks of one name with the same Dockerfile and other files are one to an older
// worker, see [Shared]. TASK.sif, which says nothing of the content, is for
// tasks without a Dockerfile alone.
func Name(t task.Task) (Named, error) {
	n := Named{Task: t.Name}
	if t.Dockerfile == "" {
		n.Files = []string{t.Name + ".sif"}
		return n, nil
	}
	h := sha256.New()
	if err := add(h, t.Dockerfile); err != nil {
		return n, fmt.Errorf("the digest of %s: %w", t.Dockerfile, err)
	}
	n.Dockerfile = hex.EncodeToString(h.Sum(nil))
	var err error
	if n.Environment, err = folder(t.Context); err != nil {
		return n, fmt.Errorf("the digest of %s: %w", t.Context, err)
	}
	for _, digest := range []string{n.Environment, n.Dockerfile} {
		n.Files = append(n.Files, "build_"+t.Name+"-"+digest[:12]+".sif")
	}
	return n, nil
}

// Shared are the file names that would have to be the images of several keys
// at once: no such file may be made. keys[i] is the image of named[i].
func Shared(named []Named, keys []string) map[string]bool {
	of, shared := map[string]string{}, map[string]bool{}
	for i, n := range named {
		for _, file := range n.Files {
			if key, ok := of[file]; ok && key != keys[i] {
				shared[file] = true
			}
			of[file] = keys[i]
		}
	}
	return shared
}

// folder digests the files below a folder as newer workers do: sorted by their
// path from there, the length of the path in four bytes (the highest first), the
// path, the length of the content in four bytes, the content. Links count as
// what they lead to, as when a file is opened; nothing else counts.
func folder(dir string) (string, error) {
	var files [][]string // parts of paths: Python's order of them
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			rel, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			files = append(files, strings.Split(rel, "/"))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	slices.SortFunc(files, slices.Compare)
	h := sha256.New()
	for _, parts := range files {
		rel := strings.Join(parts, "/")
		length(h, int64(len(rel)))
		io.WriteString(h, rel)
		st, err := os.Stat(filepath.Join(dir, rel))
		if err != nil {
			return "", err
		}
		length(h, st.Size())
		if err := add(h, filepath.Join(dir, rel)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// length adds a number of bytes. A worker cannot name a folder with a file of
// 4 GiB, whose length has no such form: any digest will do.
func length(h hash.Hash, n int64) {
	binary.Write(h, binary.BigEndian, uint32(min(n, math.MaxUint32)))
}

func add(h hash.Hash, name string) error {
	f, err := readfile.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return err
}
