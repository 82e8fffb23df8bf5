package tree

import (
	"fmt"
	"io"
	"slices"
)

// UnpackOptions say what a layer is unpacked to.
type UnpackOptions struct {
	// Apply changes a tree: what whiteouts name is removed from dir. Otherwise
	// dir becomes a layer for an overlay that is mounted with userxattr.
	Apply bool
	// Below are the layer folders below, the lowest first: a folder that the tar
	// has something in and does not describe looks as it does there. Not for Apply.
	Below    []string
	Specials []Special // of the tree so far
	Limits   Limits
}

// Unpack reads an OCI or Docker layer tar, compressed by zstd, gzip, xz or
// bzip2 or not at all, into the folder dir, which exists. Nothing outside dir is
// made, changed or read, whatever the tar says; a name or hard link that leads
// out is an error. It returns the specials of the tree when the layer is on it.
//
// What whiteouts name is what the layers below have, wherever in the tar they
// stand (OCI image layer specification, Whiteouts). Device nodes are special
// entries; in a layer a whiteout keeps their place.
//
// After an error dir holds a part and is good for nothing.
func Unpack(r io.Reader, dir string, o UnpackOptions) ([]Special, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	x := newExtractor(root, o.Limits)
	if !o.Apply {
		x.overlay = true
		x.below = slices.Clone(o.Below)
		slices.Reverse(x.below)
	}
	for _, s := range o.Specials {
		x.specials[s.Path] = s
	}
	if err := x.run(r); err != nil {
		return nil, err
	}
	return MergeSpecials(sortSpecials(x.specials)), nil
}

// Merge puts layers (folders as Unpack and overlayfs make them, the lowest
// first) together in the folder out, which is made, by hard links: out is a
// layer again, with the effect of all of them. The layers must not be changed
// while out is there, and lie on one file system with it.
func Merge(layers []string, out string) error {
	if err := mkdirNew(out); err != nil {
		return err
	}
	r, err := openRoot(out)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, layer := range layers {
		if err := mergeOne(r, layer); err != nil {
			return fmt.Errorf("putting layer %s on the others: %w", layer, err)
		}
	}
	return nil
}
