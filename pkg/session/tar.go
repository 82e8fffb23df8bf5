package session

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/text"
)

// beneath opens a path below dir without following any link.
func beneath(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
		if err != unix.EINTR && err != unix.EAGAIN { // EAGAIN: something was renamed meanwhile
			return fd, err
		}
	}
}

// folder opens a folder below dir; those that are missing are made, one by one.
func folder(dir int, name string) (int, error) {
	fd, err := beneath(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != unix.ENOENT {
		return fd, err
	}
	parent, err := folder(dir, path.Dir(name))
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, path.Base(name), 0o755); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return beneath(parent, path.Base(name), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// base opens an absolute folder.
func base(name string, open func(dir int, name string) (int, error)) (int, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	if !path.IsAbs(name) {
		return -1, errorf(CodeUsage, "the folder %s is not an absolute path", name)
	}
	fd, err := open(root, "."+path.Clean(name))
	return fd, wrap(name, err)
}

// maxDepth bounds the descriptors that a tree takes, one for each folder above.
const maxDepth = 400

// short is a name that fits into a line.
func short(name string) string {
	if len(name) > 200 {
		return name[:90] + "..." + name[len(name)-90:]
	}
	return name
}

func wrap(name string, err error) error {
	name = short(name)
	switch {
	case err == nil:
		return nil
	case err == unix.ELOOP || err == unix.EXDEV:
		return errorf(CodeLost, "%s: there is a link in this path, and none is followed", name)
	}
	return errorf(CodeLost, "%s: %v", name, err)
}

// local is a name in a tar stream as a path below the folder.
func local(name string) (string, error) {
	if clean := path.Clean(name); filepath.IsLocal(name) && filepath.IsLocal(clean) && !slices.Contains(strings.Split(name, "/"), "..") {
		return clean, nil
	}
	return "", errorf(CodeUsage, "%q leads out of the folder", name)
}

// reader knows whether the stream has ended. A tar stream says itself where
// it ends: one that does so without is cut short, or none.
type reader struct {
	r   io.Reader
	eof bool
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.eof = r.eof || err == io.EOF
	return n, err
}

// unpack writes a tar stream below a folder: files, folders, links. What has
// a name already is replaced, except folders.
func unpack(dir string, stream io.Reader) error {
	root, err := base(dir, folder)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	type done struct {
		name string
		h    *tar.Header
	}
	var folders []done // their modes come last: one may forbid to write
	in := &reader{r: stream}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if err == io.EOF && !in.eof {
			break
		}
		if err != nil {
			return errorf(CodeUsage, "this is no tar stream, or a part of one: %v", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader || h.Typeflag == 'V' {
			continue // a comment of git's, a name of the whole: no file
		}
		name, err := local(h.Name)
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir || h.Typeflag == 'D' { // GNU's, with a list of what is in it
			fd, err := folder(root, name)
			if err != nil {
				return wrap(name, err)
			}
			unix.Close(fd)
			folders = append(folders, done{name, h})
			continue
		}
		if name == "." {
			return errorf(CodeUsage, "%q is the folder itself", h.Name)
		}
		parent, err := folder(root, path.Dir(name))
		if err == nil {
			err = entry(root, parent, path.Base(name), h, r)
			unix.Close(parent)
		}
		var e *Error
		if errors.As(err, &e) {
			return e
		} else if errors.Is(err, io.ErrUnexpectedEOF) {
			return errorf(CodeUsage, "%s: the stream ends in the middle of it", name)
		} else if err != nil {
			return wrap(name, err)
		}
	}
	// Who writes it should not fail for its padding.
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return err
	}
	for _, f := range slices.Backward(folders) {
		fd, err := beneath(root, f.name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			err = finish(fd, f.h)
			unix.Close(fd)
		}
		if err != nil {
			return wrap(f.name, err)
		}
	}
	return nil
}

func entry(root, parent int, name string, h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeGNUSparse { // it is read with its holes
		h.Typeflag = tar.TypeReg
	}
	if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink && h.Typeflag != tar.TypeLink {
		return errorf(CodeUsage, "%q is neither a file, nor a folder, nor a link", h.Name)
	}
	var target int
	if h.Typeflag == tar.TypeLink { // before the name is taken: it may be its own
		to, err := local(h.Linkname)
		if err != nil {
			return err
		}
		if target, err = beneath(root, path.Dir(to), unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
		defer unix.Close(target)
		if own, _ := local(h.Name); to == own {
			return nil
		}
	}
	if err := unix.Unlinkat(parent, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return unix.Symlinkat(h.Linkname, parent, name)
	case tar.TypeLink:
		return unix.Linkat(target, path.Base(h.Linkname), parent, name, 0) // of a link: the link
	}
	fd, err := beneath(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	return finish(fd, h)
}

// finish sets mode and time. Whose it is cannot be chosen, and so
// set-user-ID would be about the wrong user.
func finish(fd int, h *tar.Header) error {
	if err := unix.Fchmod(fd, uint32(h.Mode&0o777)); err != nil {
		return err
	}
	t := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{t, t}, unix.AT_EMPTY_PATH)
}

// pack writes paths below a folder as a tar stream: files, folders and links
// as what they are. Sockets, pipes and devices are left out, and named.
func pack(dir string, names []string, out io.Writer) error {
	open := func(at int, name string) (int, error) {
		return beneath(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	root, err := base(dir, open)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	w := tar.NewWriter(out)
	for _, name := range names {
		clean, err := local(name)
		if err != nil {
			return err
		}
		parent, err := open(root, path.Dir(clean))
		if err == nil {
			err = add(w, parent, path.Base(clean), clean)
			unix.Close(parent)
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			err = wrap(name, err)
		}
		if err != nil {
			return err
		}
	}
	return w.Close()
}

// add writes one name in the folder parent, and what is below it.
func add(w *tar.Writer, parent int, name, as string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wrap(as, err)
	}
	leave := func(why string) error {
		fmt.Fprintf(os.Stderr, "fence: %s is left out: %s\n", text.Printable(short(as)), why)
		return nil
	}
	h := &tar.Header{Name: as, Mode: int64(st.Mode & 0o777), ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX}
	fd := -1
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(parent, name, buf)
		if err != nil {
			return wrap(as, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(buf[:n])
		return w.WriteHeader(h)
	case unix.S_IFDIR:
		if strings.Count(as, "/") >= maxDepth {
			return leave("it lies too deep")
		}
		fd, err = beneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		h.Typeflag, h.Name = tar.TypeDir, as+"/"
	case unix.S_IFREG:
		// It may be another one by now: a pipe would keep us waiting.
		fd, err = beneath(parent, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
				err = errors.New("it was replaced while it was read")
			}
		}
		h.Typeflag, h.Size = tar.TypeReg, st.Size
	default:
		return leave("it is neither a file, nor a folder, nor a link")
	}
	f := os.NewFile(uintptr(fd), as)
	if fd >= 0 {
		defer f.Close()
	}
	if err == nil {
		err = w.WriteHeader(h)
	}
	if err == nil && h.Typeflag == tar.TypeReg {
		var n int64
		if n, err = io.CopyN(w, f, h.Size); err == io.EOF {
			err = fmt.Errorf("it became shorter while it was read: %d bytes of %d", n, h.Size)
		}
	}
	if err != nil || h.Typeflag == tar.TypeReg {
		return wrap(as, err)
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return wrap(as, err)
	}
	slices.Sort(names)
	for _, n := range names {
		if err := add(w, fd, n, path.Join(as, n)); err != nil {
			return err
		}
	}
	return nil
}

// askedFor are the paths that get is to pack, in parts. None lies below
// another: each name comes once.
func askedFor(argv []string) (asked [][]string, err error) {
	for _, name := range argv[min(1, len(argv)):] {
		clean, err := local(name)
		if err != nil {
			return nil, err
		}
		next := parts(clean)
		for _, a := range asked {
			if n := min(len(a), len(next)); slices.Equal(a[:n], next[:n]) {
				return nil, errorf(CodeUsage, "%q is asked for twice", name)
			}
		}
		asked = append(asked, next)
	}
	return asked, nil
}

func parts(name string) []string {
	if name == "." {
		return []string{}
	}
	return strings.Split(name, "/")
}

// errCut is for streams without their end.
var errCut = errorf(CodeLost, "what the domain packed ends before its end")

// repack passes on what pack would have written: whoever is in the domain may
// have had a hand in the stream. pack goes through each folder in order, so no
// name comes twice, and what has names below it is a folder.
func repack(asked [][]string, stream io.Reader, out io.Writer) error {
	in := &reader{r: stream}
	r, w := tar.NewReader(in), tar.NewWriter(out)
	at := -1 // in asked
	var last []string
	var open bool // last is a folder
	for {
		h, err := r.Next()
		if err == io.EOF && !in.eof {
			break
		} else if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return errCut
		} else if err != nil {
			return errorf(CodeLost, "what the domain packed is no tar stream: %v", err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		clean, err := local(name)
		next := parts(clean)
		up := next[:max(0, len(next)-1)]
		begins := at + 1 + slices.IndexFunc(asked[at+1:], func(a []string) bool { return slices.Equal(a, next) })
		switch {
		case err != nil || clean != name:
			return odd(h.Name, "leads elsewhere")
		case !slices.Contains([]byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink}, h.Typeflag) || h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "":
			return odd(h.Name, "is neither a file, nor a folder, nor a link")
		case begins > at:
			at = begins
		case at < 0 || slices.Compare(next, last) <= 0 || len(up) < len(asked[at]) || len(last) < len(up) || !slices.Equal(last[:len(up)], up) || len(last) == len(up) && !open:
			return odd(h.Name, "was not asked for, or comes out of order")
		}
		if last, open = next, h.Typeflag == tar.TypeDir; open {
			name += "/"
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o777, ModTime: h.ModTime, Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); errors.Is(err, io.ErrUnexpectedEOF) {
			return errCut
		} else if err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, stream)
	return err
}

func odd(name, why string) error {
	return errorf(CodeLost, "the domain did not pack this as it should, and it was not taken: %.200q %s", name, why)
}
