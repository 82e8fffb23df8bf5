package tree

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

func mkdirNew(p string) error {
	if err := os.Mkdir(p, 0o700); err != nil {
		return err
	}
	return os.Chmod(p, 0o755)
}

// mergeOne puts one layer on what is in out.
func mergeOne(out *rooted, layer string) error {
	in, err := openRoot(layer)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := walk(in, ".", func(p string, st unix.Stat_t) error { return mergePath(out, in, p, st) }); err != nil {
		return err
	}
	// Times come last: filling a folder changes its own.
	return walk(in, ".", func(p string, st unix.Stat_t) error {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		return errors.Join(out.chmod(p, st.Mode), out.chtime(p, st.Mtim))
	})
}

// mergePath puts what a layer has at p on what out has there.
func mergePath(out, in *rooted, p string, st unix.Stat_t) error {
	old, err := out.lstat(p)
	there := err == nil
	if err != nil && !isNotExist(err) {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if there {
			if err := out.remove(p); err != nil {
				return err
			}
		}
		return out.linkOrCopy(in, p, st)
	}
	attrs, err := in.attrs(p)
	if err != nil {
		return err
	}
	wasDir := there && old.Mode&unix.S_IFMT == unix.S_IFDIR
	opaque := isOpaque(attrs)
	replaced := there && (!wasDir || opaque && p != ".")
	if replaced {
		if err := out.remove(p); err != nil {
			return err
		}
	}
	if !wasDir || replaced {
		if err := out.mkdir(p); err != nil {
			return err
		}
	} else if err := out.setOwner(p, Owner{}); err != nil {
		return err
	}
	for _, a := range attrs {
		if a.name != opaqueAttr && a.name != OwnerAttr && ours(a.name) {
			continue
		}
		if err := out.setAttr(p, a); err != nil {
			return err
		}
	}
	if there && !wasDir && !opaque { // what was there hid the layers below: so must the folder
		return out.setAttr(p, attr{opaqueAttr, []byte("y")})
	}
	return nil
}

func isOpaque(attrs []attr) bool {
	for _, a := range attrs {
		if a.name == opaqueAttr && string(a.value) == "y" {
			return true
		}
	}
	return false
}

// dropWhiteouts removes from the folder at dir the whiteouts that hide nothing:
// overlayfs would list them where no other layer has the folder. hidden says
// that a folder above is opaque.
func dropWhiteouts(r *rooted, below []*rooted, dir string, hidden bool) error {
	attrs, err := r.attrs(dir)
	if err != nil {
		return err
	}
	hidden = hidden || isOpaque(attrs)
	names, err := r.names(dir)
	if err != nil {
		return err
	}
	before, err := r.lstat(dir)
	if err != nil {
		return err
	}
	changed := false
	for _, name := range names {
		p := join(dir, name)
		st, err := r.lstat(p)
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := dropWhiteouts(r, below, p, hidden); err != nil {
				return err
			}
			continue
		}
		if !isWhiteout(st) {
			continue
		}
		if !hidden {
			layer, _, err := findBelow(below, p)
			if err != nil {
				return err
			}
			if layer != nil {
				continue
			}
		}
		changed = true
		if err := r.remove(p); err != nil {
			return err
		}
	}
	if changed {
		return r.chtime(dir, before.Mtim)
	}
	return nil
}

// linkOrCopy gives out the file that in has at p: the same one, or a copy where
// it has too many names already.
func (r *rooted) linkOrCopy(in *rooted, p string, st unix.Stat_t) error {
	err := r.link(in, p, p)
	if !errors.Is(err, unix.EMLINK) || st.Mode&unix.S_IFMT != unix.S_IFREG {
		if errors.Is(err, unix.EXDEV) {
			return &fs.PathError{Op: "link", Path: path.Join("/", p), Err: errors.New("the layers and their sum are on different file systems")}
		}
		return err
	}
	from, err := in.openFile(p)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := r.create(p)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := copyFile(to, from); err != nil {
		return inside("copy", p, err)
	}
	attrs, err := in.attrs(p)
	if err != nil {
		return err
	}
	o, err := owner(attrs)
	if err != nil {
		return err
	}
	return r.finishFile(int(to.Fd()), p, meta{st.Mode, o, st.Mtim, attrs})
}

// walk calls f for the folder at p and everything below it, folders before what
// is in them, by name.
func walk(r *rooted, p string, f func(p string, st unix.Stat_t) error) error {
	st, err := r.lstat(p)
	if err != nil {
		return err
	}
	if err := f(p, st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	names, err := r.names(p)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := walk(r, path.Join(p, name), f); err != nil {
			return err
		}
	}
	return nil
}
