package tree

import (
	"fmt"
	"io"
)

// UnpackOptions say what a layer is unpacked to.
type UnpackOptions struct {
	// Apply changes a tree: what whiteouts name is removed from dir. Otherwise
	// dir becomes a layer for an overlay that is mounted with userxattr.
	Apply bool
	// Below are the layer folders below, the lowest first; not for Apply. With
	// them whiteouts are made only where these show something, and a folder that
	// the tar has something in but does not describe looks as it does there; an
	// empty list is for the lowest layer. nil takes whiteouts as they are: right
	// for what Pack made of an overlay's upper folder, and for no other tar.
	Below    []string
	Specials []Special // with Apply: of the tree so far
	Limits   Limits
}

// Unpack reads an OCI or Docker layer tar, compressed by zstd, gzip, xz or
// bzip2 or not at all, into the folder dir, which exists. Nothing outside dir is
// made, changed or read, whatever the tar says; a name or hard link that leads
// out is an error. It returns the specials of the whole tree with Apply, else
// those of this layer, for MergeSpecials.
//
// What whiteouts name is what the layers below have, wherever in the tar they
// stand (OCI image layer specification, Whiteouts). Device nodes are special
// entries only.
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
		x.overlay, x.filter = true, o.Below != nil
		if x.below, err = openAll(o.Below); err != nil {
			return nil, err
		}
		defer closeAll(x.below)
	}
	if o.Apply {
		for _, s := range o.Specials {
			x.specials[s.Path] = s
		}
	}
	if err := x.run(r); err != nil {
		return nil, err
	}
	list := sortSpecials(x.specials)
	if o.Apply {
		list = MergeSpecials(list)
	}
	return list, nil
}

// Merge puts layers (folders as Unpack and overlayfs make them, the lowest
// first) together in the folder out, which is made, by hard links: out is a
// layer again, with the effect of all of them on top of below, the layers that
// it will lie on, the lowest first; with none of those no whiteout is left. The
// layers must not be changed while out is there, and lie on one file system
// with it.
func Merge(below, layers []string, out string) error {
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
	lower, err := openAll(below)
	if err != nil {
		return err
	}
	defer closeAll(lower)
	return dropWhiteouts(r, lower, ".", false)
}

func openAll(dirs []string) (all []*rooted, err error) {
	for _, dir := range dirs {
		r, err := openRoot(dir)
		if err != nil {
			closeAll(all)
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func closeAll(all []*rooted) {
	for _, r := range all {
		r.Close()
	}
}
