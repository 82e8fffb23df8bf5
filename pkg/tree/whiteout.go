package tree

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in a layer that say what it removes (OCI image layer specification,
// Whiteouts).
const (
	whPrefix      = ".wh."
	opaqueName    = ".wh..wh..opq"
	otherMetadata = ".wh..wh." // of aufs
)

// whiteout does what a .wh. name in the folder at asks for.
func (x *extractor) whiteout(at, base string) error {
	if base == opaqueName {
		return x.opaque(at)
	}
	if strings.HasPrefix(base, otherMetadata) {
		return nil
	}
	name := strings.TrimPrefix(base, whPrefix)
	if name == "" || name == "." || name == ".." {
		return errors.New("a whiteout that names nothing")
	}
	p := path.Join(at, name)
	st, err := x.r.lstat(p)
	if err != nil && !isNotExist(err) {
		return err
	}
	there := err == nil
	if x.made[p] { // it is of this layer: only what the layers below have there goes
		if there && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return x.opaque(p)
		}
		return nil
	}
	x.drop(p)
	if !x.overlay {
		return x.r.remove(p)
	}
	x.note(Special{Path: p})
	if there {
		return nil
	}
	return x.hide(p)
}

// opaque hides what the layers below have in the folder at p.
func (x *extractor) opaque(p string) error {
	if err := x.folderFor(p); err != nil {
		return err
	}
	if x.overlay && p == "." {
		return errors.New("the root folder hides all layers below: such a layer is a base of its own")
	}
	if x.overlay {
		if err := x.setOpaque(p); err != nil {
			return err
		}
	}
	return x.keepMade(p)
}

// keepMade removes what is below p and not of this tar.
func (x *extractor) keepMade(p string) error {
	names, err := x.r.names(p)
	if err != nil {
		return err
	}
	for q := range x.specials {
		if q != p && under(q, p) && !x.made[q] {
			delete(x.specials, q)
		}
	}
	for _, name := range names {
		q := path.Join(p, name)
		if !x.made[q] {
			if err := x.r.remove(q); err != nil {
				return err
			}
			continue
		}
		st, err := x.r.lstat(q)
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := x.keepMade(q); err != nil {
				return err
			}
		}
	}
	return nil
}

func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// setOpaque has the folder at p hide what the layers below have there, and what
// is noted of that.
func (x *extractor) setOpaque(p string) error {
	x.hiding[p] = true
	x.note(Special{Path: p})
	return x.r.setAttr(p, attr{opaqueAttr, []byte("y")})
}

// looksBelow is what the folder at p is like in the layers below.
func (x *extractor) looksBelow(p string) (meta, error) {
	m := meta{mode: 0o755, mtime: unix.Timespec{Nsec: unix.UTIME_NOW}}
	layer, st, err := findBelow(x.below, p)
	if err != nil || layer == nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return m, err
	}
	m.mode, m.mtime = st.Mode&0o7777, st.Mtim
	m.owner, err = layer.ownerAt(p)
	return m, err
}

// findBelow returns which of the layers, the topmost last, shows something at
// p when all are on each other, and what; nil if there is nothing.
func findBelow(layers []*rooted, p string) (*rooted, unix.Stat_t, error) {
	parts := strings.Split(p, "/")
next:
	for i := len(layers) - 1; i >= 0; i-- {
		layer, at := layers[i], "."
		opaque := false
		for n, name := range parts {
			at = join(at, name)
			st, err := layer.lstat(at)
			if isNotExist(err) {
				if opaque {
					break next
				}
				continue next
			}
			if err != nil || isWhiteout(st) {
				return nil, st, err
			}
			if n == len(parts)-1 {
				return layer, st, nil
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				break next
			}
			attrs, err := layer.attrs(at)
			if err != nil {
				return nil, st, err
			}
			opaque = opaque || isOpaque(attrs)
		}
	}
	return nil, unix.Stat_t{}, nil
}

// hide makes a whiteout at p; with filter, if the layers below show something
// there. Where they do not, overlayfs would list a name that is not there: it filters only
// folders that several layers have.
func (x *extractor) hide(p string) error {
	for at := path.Dir(p); ; at = path.Dir(at) {
		if x.hiding[at] {
			return nil
		}
		if at == "." {
			break
		}
	}
	if x.filter {
		if layer, _, err := findBelow(x.below, p); layer == nil || err != nil {
			return err
		}
	}
	if err := x.folderFor(path.Dir(p)); err != nil {
		return err
	}
	return x.r.whiteout(p)
}

// mark remembers that this tar made p, and the folders above.
func (x *extractor) mark(p string) {
	for ; !x.made[p]; p = path.Dir(p) {
		x.made[p] = true
	}
}

// note remembers what the disk cannot hold, or that there is nothing of the kind.
func (x *extractor) note(s Special) {
	_, old := x.specials[s.Path]
	if s.Owner != (Owner{}) || s.Device != "" || old || x.overlay {
		x.specials[s.Path] = s
	}
}

// drop forgets what is noted at and below p, but for what this tar made.
func (x *extractor) drop(p string) {
	for q := range x.specials {
		if under(q, p) && !x.made[q] {
			delete(x.specials, q)
		}
	}
}
