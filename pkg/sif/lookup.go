package sif

import (
	"fmt"
	"io/fs"

	squashfslow "github.com/sylabs/squashfs/low"
)

// Lookup is what is at a path, relative to the root, as it is stored: no link
// is followed. Nothing there is fs.ErrNotExist.
func (img *Image) Lookup(p string) (Entry, error) {
	var e Entry
	err := img.lookup(p, func(b squashfslow.FileBase) (err error) {
		e, err = img.entry(b, p)
		return err
	})
	return e, err
}

// Names lists the folder at a path, in byte order.
func (img *Image) Names(p string) ([]string, error) {
	var names []string
	err := img.lookup(p, func(b squashfslow.FileBase) error {
		if !b.IsDir() {
			return fs.ErrNotExist
		}
		d, err := b.ToDir(&img.root.Low)
		for _, e := range d.Entries {
			names = append(names, e.Name)
		}
		return err
	})
	return names, err
}

func (img *Image) lookup(p string, use func(squashfslow.FileBase) error) error {
	var missing, failed error
	err := guard(func() error {
		root := img.root.Low.Root
		b, err := root.Open(&img.root.Low, p)
		if err == fs.ErrNotExist {
			missing = err
			return nil
		}
		if err != nil {
			return fmt.Errorf("is a damaged SIF image (%s: %w): build or copy it again", p, err)
		}
		failed = use(b)
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s %w", img.Path, err)
	case missing != nil:
		return missing
	}
	return failed
}
