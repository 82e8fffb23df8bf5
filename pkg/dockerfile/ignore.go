package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

var errNoContext = errors.New("there is no context folder to take files from")

const (
	ignoreFile = ".dockerignore"
	maxIgnore  = 1 << 20 // bytes of a .dockerignore
)

// ignore is what .dockerignore leaves out of dir. For the context, the file
// beside the Dockerfile with .dockerignore after its name counts alone, if there
// is one, even if it is empty.
func (b *builder) ignore(dir string, context bool) ([]string, error) {
	if context && b.o.File != "" && b.o.File != "-" {
		folder, name := filepath.Split(b.o.File)
		if folder == "" {
			folder = "."
		}
		data, err := readInside(folder, name+ignoreFile)
		if err == nil {
			return patterns(b.o.File+ignoreFile, data)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading %s: %w", b.o.File+ignoreFile, err)
		}
	}
	data, err := readInside(dir, ignoreFile)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("reading the context: %w", err)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, ignoreFile), err)
	}
	if context {
		b.inputs[ignoreFile] = true
	}
	return patterns(filepath.Join(dir, ignoreFile), data)
}

// readInside reads a small file of dir; a link that leads out of dir, a FIFO or
// a device is an error.
func readInside(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a file")
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIgnore+1))
	if err == nil && len(data) > maxIgnore {
		err = fmt.Errorf("it is larger than %d MiB", maxIgnore>>20)
	}
	return data, err
}

func patterns(file string, data []byte) ([]string, error) {
	list, err := ignorefile.ReadAll(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	for _, p := range list {
		if _, err := patternmatcher.New([]string{p}); err != nil {
			return nil, fmt.Errorf("reading %s: %q: %w", file, p, err)
		}
	}
	return list, nil
}
