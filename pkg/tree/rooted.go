package tree

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// rooted is a root folder held open. Every path given to its methods is
// relative to it, clean, and free of links: each component is opened below the
// one before without following anything, so that no call can act outside,
// even on a tree that changes under it. resolve makes such paths out of others.
//
// It is not for concurrent use.
type rooted struct {
	stack []level // the root, then of the folders that lead to the one used last the deepest
}

// level is a folder held open.
type level struct {
	path string // relative to the root
	fd   int
}

// heldOpen is how many folders stay open at most, the root and the deepest: a
// deeper path costs more calls, not more descriptors. What is done next is near
// what was done last, so of 3,000 nested folders few are opened twice.
const heldOpen = 256

// errTooManyLinks is what the kernel says of links in a circle, too.
var errTooManyLinks = unix.ELOOP

func openRoot(name string) (*rooted, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &rooted{stack: []level{{".", fd}}}, nil
}

func (r *rooted) Close() {
	for _, l := range r.stack {
		unix.Close(l.fd)
	}
	r.stack = nil
}

// dir returns a descriptor of the folder at p, which is valid until the next
// call of a method. It is opened with O_PATH: good for the at-calls only.
func (r *rooted) dir(p string) (int, error) {
	for len(r.stack) > 1 && !under(p, r.stack[len(r.stack)-1].path) {
		r.pop()
	}
	top := r.stack[len(r.stack)-1]
	if top.path == p {
		return top.fd, nil
	}
	rest := p
	if top.path != "." {
		rest = p[len(top.path)+1:]
	}
	at := top.path
	for name := range strings.SplitSeq(rest, "/") {
		fd, err := retry(func() (int, error) {
			return unix.Openat(top.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
		at = path.Join(at, name)
		if err != nil {
			return -1, inside("open", at, err)
		}
		if len(r.stack) >= heldOpen {
			unix.Close(r.stack[1].fd)
			r.stack = slices.Delete(r.stack, 1, 2)
		}
		top = level{at, fd}
		r.stack = append(r.stack, top)
	}
	return top.fd, nil
}

func (r *rooted) pop() {
	last := len(r.stack) - 1
	unix.Close(r.stack[last].fd)
	r.stack = r.stack[:last]
}

// forget closes what is held open at and below p: it is about to be removed.
func (r *rooted) forget(p string) {
	for len(r.stack) > 1 && under(r.stack[len(r.stack)-1].path, p) {
		r.pop()
	}
}

// parent returns a descriptor of the folder that holds p, and p's name in it.
// The root itself is "." in itself.
func (r *rooted) parent(p string) (int, string, error) {
	fd, err := r.dir(path.Dir(p))
	return fd, path.Base(p), err
}

// lstat describes what is at p, a link itself.
func (r *rooted) lstat(p string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, name, err := r.parent(p)
	if err != nil {
		return st, err
	}
	_, err = retry(func() (int, error) { return 0, unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, inside("stat", p, err)
}

func (r *rooted) readlink(p string) (string, error) {
	fd, name, err := r.parent(p)
	if err != nil {
		return "", err
	}
	buf := make([]byte, unix.PathMax)
	n, err := retry(func() (int, error) { return unix.Readlinkat(fd, name, buf) })
	if err != nil {
		return "", inside("readlink", p, err)
	}
	return string(buf[:n]), nil
}

// names lists the folder at p, in the order of bytes.
func (r *rooted) names(p string) ([]string, error) {
	fd, err := r.dir(p)
	if err != nil {
		return nil, err
	}
	list, err := retry(func() (int, error) {
		return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, inside("read", p, err)
	}
	f := os.NewFile(uintptr(list), p)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, inside("read", p, errors.Unwrap(err))
	}
	slices.Sort(names)
	return names, nil
}

// open opens what is at p without following a link.
func (r *rooted) open(p string, flags int, perm uint32) (*os.File, error) {
	fd, name, err := r.parent(p)
	if err != nil {
		return nil, err
	}
	n, err := retry(func() (int, error) {
		return unix.Openat(fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	})
	if err != nil {
		return nil, inside("open", p, err)
	}
	return os.NewFile(uintptr(n), p), nil
}

// openFile opens the regular file at p for reading; should it have become a
// FIFO, that does not block.
func (r *rooted) openFile(p string) (*os.File, error) {
	f, err := r.open(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, inside("stat", p, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, inside("open", p, errNotRegular)
	}
	return f, nil
}

var errNotRegular = errors.New("no regular file any more: it changed while it was being read")

// lookup says what is at a path, for resolve: the type bits of its mode and,
// of a link, where it leads.
type lookup func(p string) (format uint32, link string, err error)

func (r *rooted) look(p string) (uint32, string, error) {
	st, err := r.lstat(p)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return st.Mode & unix.S_IFMT, "", err
	}
	link, err := r.readlink(p)
	return unix.S_IFLNK, link, err
}

// resolve follows p as a process would whose root folder this is: absolute
// links begin at the root, and ".." stops there. What is not there counts as a
// folder, so the result may not exist; format is 0 then. With last, a link at
// the end is followed as well.
func resolve(look lookup, p string, last bool) (resolved string, format uint32, err error) {
	at, rest, links := ".", strings.Split(p, "/"), 0
	format = unix.S_IFDIR
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." || name == ".." {
			if format != unix.S_IFDIR && format != 0 {
				return "", 0, inside("open", at, unix.ENOTDIR)
			}
			if name == ".." {
				at, format = path.Dir(at), unix.S_IFDIR
			}
			continue
		}
		next := path.Join(at, name)
		mode, link, err := look(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			at, format = next, 0
			continue
		case err != nil:
			return "", 0, err
		case mode == unix.S_IFLNK && (last || len(rest) > 0):
			if links++; links > 255 {
				return "", 0, inside("open", p, errTooManyLinks)
			}
			if strings.HasPrefix(link, "/") {
				at = "."
			}
			format = unix.S_IFDIR
			rest = append(strings.Split(link, "/"), rest...)
			continue
		}
		at, format = next, mode
	}
	return at, format, nil
}

// relative makes any path one below the root: cleaned as text, ".." clamped.
func relative(p string) string {
	if p = path.Join("/", p)[1:]; p == "" {
		return "."
	}
	return p
}

// under reports whether p is dir or below it.
func under(p, dir string) bool {
	return dir == "." || p == dir || len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// inside names a path as the root folder's owner would write it.
func inside(op, p string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path.Join("/", p), Err: err}
}

// retry repeats a call that a signal interrupted (signal(7): file systems in
// user space and on networks do that).
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
