package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"fence/pkg/internal/readfile"
	"fence/pkg/internal/text"
)

// Checksum is Harbor's task_checksum of a folder: sha256 by the Dirhash
// standard (https://github.com/andhus/dirhash), which counts the names and
// contents of files and not their modes; links count as what they lead to, and
// empty folders not at all. A link that leads out of the folder is a *Refused:
// a task is somebody else's, and what it links to may be yours.
func Checksum(dir string) (string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	h := hasher{root: root, done: map[string]string{}}
	sum, err := h.folder(root)
	if err == nil && sum == "" {
		err = &Refused{Reason: "it has no file"}
	}
	return sum, err
}

type hasher struct {
	root string
	// done has the sum of each folder by its real path; "" of an empty one, and
	// open of one that is being read.
	done map[string]string
}

const open = "open"

// folder is the sum of a folder without links in its path, "" if it is empty.
func (h *hasher) folder(dir string) (string, error) {
	h.done[dir] = open
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var all []string
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if !utf8.ValidString(e.Name()) {
			return "", h.refused(at, "has a name that is not UTF-8, which Harbor does not take: rename it")
		}
		real := at
		if e.Type()&fs.ModeSymlink != 0 {
			if real, err = filepath.EvalSymlinks(at); errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return "", h.refused(at, "is a link that cannot be followed")
			}
			if rel, err := filepath.Rel(h.root, real); err != nil || !filepath.IsLocal(rel) {
				return "", h.refused(at, "is a link that leads out of the task: copy it there")
			}
		}
		st, err := os.Stat(real)
		if err != nil {
			return "", err
		}
		switch {
		case st.IsDir():
			sum, ok := h.done[real]
			if sum == open {
				return "", h.refused(at, "is a link to a folder around it")
			}
			if !ok {
				if sum, err = h.folder(real); err != nil {
					return "", err
				}
			}
			if sum != "" {
				all = append(all, "dirhash:"+sum+"\x00name:"+e.Name())
			}
		case st.Mode().IsRegular():
			sum, err := hashFile(real)
			if err != nil {
				return "", err
			}
			all = append(all, "data:"+sum+"\x00name:"+e.Name())
		}
	}
	h.done[dir] = ""
	if len(all) > 0 {
		slices.Sort(all)
		sum := sha256.Sum256([]byte(strings.Join(all, "\x00\x00")))
		h.done[dir] = hex.EncodeToString(sum[:])
	}
	return h.done[dir], nil
}

func (h *hasher) refused(at, what string) error {
	rel, _ := filepath.Rel(h.root, at)
	return &Refused{Reason: text.Printable(fmt.Sprintf("its %s %s", rel, what))}
}

func hashFile(name string) (string, error) {
	f, err := readfile.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
