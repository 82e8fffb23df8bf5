package taint

import (
	"io/fs"
	"path"

	"fence/pkg/sif"
)

// index is an image whose folders are listed once: an agent may make many
// files of whose like the image has none.
type index struct {
	img     *sif.Image
	folders map[string]map[string]bool // nil: no folder
	lists   map[string][]string
}

func newIndex(img *sif.Image) *index {
	return &index{img: img, folders: map[string]map[string]bool{}, lists: map[string][]string{}}
}

// list lists the folder at p, if the image has it.
func (x *index) list(p string) (names map[string]bool, err error) {
	if names, ok := x.folders[p]; ok {
		return names, nil
	}
	if ok, err := x.has(p); err != nil || !ok {
		return nil, err // not remembered: there is no end of such names
	}
	list, err := x.img.Names(p)
	if err != nil && err != fs.ErrNotExist {
		return nil, err
	}
	if err == nil {
		names = map[string]bool{}
	}
	for _, n := range list {
		names[n] = true
	}
	x.folders[p], x.lists[p] = names, list
	return names, nil
}

func (x *index) has(p string) (bool, error) {
	if p == "." {
		return true, nil
	}
	names, err := x.list(path.Dir(p))
	return names[path.Base(p)], err
}

// Lookup is that of a sif.Image.
func (x *index) Lookup(p string) (sif.Entry, error) {
	if ok, err := x.has(p); err != nil {
		return sif.Entry{}, err
	} else if !ok {
		return sif.Entry{}, fs.ErrNotExist
	}
	return x.img.Lookup(p)
}

// Names is that of a sif.Image.
func (x *index) Names(p string) ([]string, error) {
	switch names, err := x.list(p); {
	case err != nil:
		return nil, err
	case names == nil:
		return nil, fs.ErrNotExist
	}
	return x.lists[p], nil
}
