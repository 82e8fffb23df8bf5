package tree

import (
	"errors"
	"io"
)

// Limits bound what unpacking takes; zero fields are the defaults.
type Limits struct {
	Bytes   int64 // of all files together; 64 GiB
	Entries int   // 4 million
	Path    int   // bytes of a path; 4,095
}

// PackOptions say how a layer is written.
type PackOptions struct {
	Zstd bool // compressed; else plain
}

// Pack writes a layer as an OCI layer tar: the upper folder of an overlay that
// was mounted with userxattr. Whiteouts (character devices 0/0) and opaque
// folders (user.overlay.opaque) become .wh. files, owners come from OwnerAttr
// and specials. The same folder gives the same bytes.
func Pack(w io.Writer, layer string, specials []Special, o PackOptions) error {
	return errors.ErrUnsupported
}

// UnpackOptions say what a layer is unpacked to.
type UnpackOptions struct {
	// Apply changes a tree: what whiteouts name is removed from dir. Otherwise
	// dir becomes a layer for an overlay that is mounted with userxattr.
	Apply    bool
	Specials []Special // with Apply: of the tree so far
	Limits   Limits
}

// Unpack reads an OCI or Docker layer tar, compressed by zstd or gzip or not,
// into dir. Nothing outside dir is made, changed or read, whatever the tar
// says. What the disk cannot hold is returned; with Apply that is the list for
// the whole tree.
func Unpack(r io.Reader, dir string, o UnpackOptions) ([]Special, error) {
	return nil, errors.ErrUnsupported
}

// Merge puts layers (folders as Unpack makes them, the lowest first) together
// into the new folder out, by hard links: out is a layer again and has the same
// effect as all of them. The layers must not be changed while out is there.
func Merge(layers []string, out string) error { return errors.ErrUnsupported }

// MergeSpecials adds lists, later ones on top of earlier ones.
func MergeSpecials(lists ...[]Special) []Special { return nil }

// RemoveAll removes dir with everything in it, folders that nobody may enter
// included. It follows no link. A dir that is not there is no error.
func RemoveAll(dir string) error { return errors.ErrUnsupported }
