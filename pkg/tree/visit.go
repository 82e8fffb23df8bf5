package tree

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Visited is one path of a tree as it is on disk.
type Visited struct {
	Path string // relative to the root; "." is the root itself
	unix.Stat_t
	// Err is why a folder could not be listed; nothing of what is in it is
	// visited then.
	Err error

	r *rooted
}

// Open opens a regular file for reading.
func (v *Visited) Open() (*os.File, error) { return v.r.openFile(v.Path) }

// Link is where a link leads, as written. Reading it moves its access time.
func (v *Visited) Link() (string, error) { return v.r.readlink(v.Path) }

// At calls f with a descriptor of the folder that v lies in, good for the
// at-calls only and only until f returns, and v's name in it.
func (v *Visited) At(f func(dir int, name string) error) error {
	fd, name, err := v.r.parent(v.Path)
	if err != nil {
		return err
	}
	return f(fd, name)
}

// Visit goes through the tree at root, which somebody else may be changing:
// folders before what is in them, by name, nothing followed. What goes away
// meanwhile is left out. A folder of the caller's
// that is shut is opened for as long as it takes. At depth folders below each other it goes no deeper:
// such a folder has an Err.
//
// f gets what is there; fs.SkipDir leaves out what is in a folder, any other
// error ends it. v is good until f returns.
func Visit(root string, depth int, f func(v *Visited) error) error {
	r, err := openRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	return visit(r, ".", depth, f)
}

// errTooDeep is for a folder that is not gone into.
var errTooDeep = errors.New("folders are nested too deep")

func visit(r *rooted, p string, depth int, f func(*Visited) error) error {
	v := Visited{Path: p, r: r}
	st, err := r.lstat(p)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return err
	}
	v.Stat_t = st
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return f(&v)
	}
	var names []string
	if depth == 0 {
		v.Err = errTooDeep
	} else {
		if st.Mode&0o500 != 0o500 && r.chmod(p, st.Mode|0o500) == nil {
			defer func() { _ = r.chmod(p, st.Mode) }() // it may be gone
		}
		names, v.Err = r.names(p)
	}
	switch err := f(&v); {
	case err == fs.SkipDir:
		return nil
	case err != nil:
		return err
	}
	for _, name := range names {
		if err := visit(r, join(p, name), depth-1, f); err != nil {
			return err
		}
	}
	return nil
}
