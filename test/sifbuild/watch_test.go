package sifbuild

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"fence/test/moments"
)

// watch calls do at the nth thing that a build does to its cache and its
// scratch folder, and returns how many there were until stop was called.
func (p *place) watch(nth int, do func()) (stop func() int) {
	p.t.Helper()
	return moments.Watch(p.t, func(n int) {
		if n == nth {
			do()
		}
	}, p.path("cache"), p.path("scratch"))
}

// gone waits until none of the processes that the test's commands started is
// left.
func (p *place) gone() {
	p.t.Helper()
	moments.Gone(p.t, p.processes)
}

// whole says that everything in the cache is: each image opens and can be read
// to its end, each step's archive too, no file is half there, and no lock is held.
func (p *place) whole() {
	p.t.Helper()
	p.wholeCache(p.path("cache"))
}

func (p *place) wholeCache(cache string) {
	p.t.Helper()
	p.must(filepath.WalkDir(cache, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
		case strings.HasPrefix(d.Name(), "."), filepath.Base(filepath.Dir(name)) == "locks":
			p.t.Errorf("in the cache: %s", strings.TrimPrefix(name, cache))
		case filepath.Ext(name) == ".sif":
			p.listing(name)
		case filepath.Ext(name) == ".tar":
			if err := readLayer(name); err != nil {
				p.t.Errorf("%s: %v", name, err)
			}
		}
		return nil
	}))
}

func readLayer(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	plain, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer plain.Close()
	for r := tar.NewReader(plain); ; {
		if _, err := r.Next(); err == io.EOF {
			_, err = io.Copy(io.Discard, plain) // and the checksum is right
			return err
		} else if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
}
