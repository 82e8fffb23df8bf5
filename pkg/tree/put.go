package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// put copies anything but a folder to the path to.
func (k *copier) put(from, to string, e Entry) error {
	replaced, err := k.clear(to)
	if err != nil {
		return err
	}
	var note Special // of what the disk cannot hold
	switch e.Type {
	case "file", "socket":
		if err := k.putFile(from, to, e); err != nil {
			return err
		}
		delete(k.specials, to)
		if replaced {
			k.specials[to] = Special{Path: to}
		}
		return nil
	case "link":
		err = k.dst.symlink(e.Link, to)
	case "fifo":
		if err = k.dst.mkfifo(to); err == nil {
			err = k.dst.chmod(to, k.change(e.Mode, false))
		}
	case "char", "block":
		note, err = k.device(from, e)
	}
	if err != nil {
		return err
	}
	if _, note.Owner, err = k.sourceAttrs(from, false); err != nil {
		return err
	}
	delete(k.specials, to)
	if note.Path = to; note.Owner != (Owner{}) || note.Device != "" || replaced {
		k.specials[to] = note
	}
	if note.Device != "" {
		return nil
	}
	st, err := k.src.lstat(from)
	if err != nil {
		return k.changed(from, err)
	}
	return k.dst.chtime(to, st.Mtim)
}

// device describes a device node of the source, which becomes an entry of the
// list only.
func (k *copier) device(from string, e Entry) (Special, error) {
	s := Special{Device: e.Type[:1], Mode: k.change(e.Mode, false)}
	if d, ok := k.devices[from]; ok {
		s.Major, s.Minor = d.Major, d.Minor
		return s, nil
	}
	st, err := k.src.lstat(from)
	if err != nil {
		return s, k.changed(from, err)
	}
	s.Major, s.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	return s, nil
}

// putFile copies a file's bytes, or links it to the name it was copied to
// before; a socket's bytes are none.
func (k *copier) putFile(from, to string, e Entry) error {
	st, err := k.src.lstat(from)
	if err != nil {
		return k.changed(from, err)
	}
	attrs, o, err := k.sourceAttrs(from, e.Type == "file")
	if err != nil {
		return err
	}
	if id := (inode{st.Dev, st.Ino}); st.Nlink > 1 {
		if first, ok := k.links[id]; ok {
			return k.dst.link(k.dst, first, to)
		}
		k.links[id] = to
	}
	m := meta{k.change(e.Mode, false), o, st.Mtim, attrs}
	if e.Type == "socket" {
		return k.dst.writeFile(to, nil, m)
	}
	return k.copyBytes(from, to, e, m)
}

// copyBytes copies a file and compares it with what was planned.
func (k *copier) copyBytes(from, to string, e Entry, m meta) error {
	in, err := k.src.openFile(from)
	if err != nil {
		if errors.Is(err, errNotRegular) {
			return &ChangedError{from}
		}
		return k.changed(from, err)
	}
	defer in.Close()
	n, err := io.ReadFull(in, k.buf)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		sum := sha256.Sum256(k.buf[:n])
		if e.SHA256 != "" && e.SHA256 != hex.EncodeToString(sum[:]) {
			return &ChangedError{from}
		}
		return k.dst.writeFile(to, k.buf[:n], m)
	}
	if err != nil {
		return inside("read", from, err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return inside("read", from, err)
	}
	out, err := k.dst.create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := copyFile(out, in); err != nil {
		return inside("copy", from, err)
	}
	if e.SHA256 != "" {
		// What was written is what counts: the source may change after it was read.
		if _, err := out.Seek(0, io.SeekStart); err != nil {
			return err
		}
		h := sha256.New()
		if _, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{out}, k.buf); err != nil {
			return inside("read back", from, err)
		}
		if hex.EncodeToString(h.Sum(nil)) != e.SHA256 {
			return &ChangedError{from}
		}
	}
	return k.dst.finishFile(int(out.Fd()), to, m)
}

// copyFile copies the bytes of one file to another that is empty: by sharing
// blocks where the file system can, and without filling holes.
func copyFile(out, in *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &st); err != nil {
		return err
	}
	if st.Size == 0 || unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	if st.Blocks*512 >= st.Size {
		_, err := io.Copy(out, in) // copy_file_range(2)
		return err
	}
	for at := int64(0); ; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // nothing but a hole up to the end
			return out.Truncate(st.Size)
		}
		if err != nil { // no such thing here
			_, err = io.Copy(out, in)
			return err
		}
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := in.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, hole-data); err != nil && err != io.EOF {
			return err
		}
		at = hole
	}
}

// sortSpecials lists specials by path.
func sortSpecials(m map[string]Special) []Special {
	list := make([]Special, 0, len(m))
	for _, s := range m {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Special) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// MergeSpecials puts the specials of a layer on those of the layers below, and
// so on. An entry that says nothing (owner 0:0, no device) removes what earlier
// lists have at its path and below, and is kept no longer.
func MergeSpecials(lists ...[]Special) []Special {
	var sum []Special // sorted
	for _, list := range lists {
		m := map[string]Special{}
		for _, s := range sum {
			m[s.Path] = s
		}
		for _, s := range list {
			if s.Owner != (Owner{}) || s.Device != "" {
				continue
			}
			delete(m, s.Path)
			// "0" is the byte after the slash.
			from, _ := slices.BinarySearchFunc(sum, s.Path+"/", byPath)
			to, _ := slices.BinarySearchFunc(sum, s.Path+"0", byPath)
			for _, below := range sum[from:to] {
				delete(m, below.Path)
			}
		}
		for _, s := range list {
			if s.Owner != (Owner{}) || s.Device != "" {
				m[s.Path] = s
			}
		}
		sum = sortSpecials(m)
	}
	return sum
}

func byPath(s Special, p string) int { return strings.Compare(s.Path, p) }

// unpack unpacks a match that is a tar to Dest, and reports whether it was one.
func (k *copier) unpack(m Match) (bool, error) {
	f, err := k.src.openFile(m.Path)
	if err != nil {
		return false, k.changed(m.Path, err)
	}
	defer f.Close()
	if ok, err := isTar(f); !ok || err != nil {
		return false, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	at, _, err := resolve(k.dst.look, relative(k.Dest), true)
	if err != nil {
		return true, err
	}
	if _, err := k.dst.mkdirAll(at, 0o755, k.Owner); err != nil {
		return true, err
	}
	fd, err := k.dst.dir(at)
	if err != nil {
		return true, err
	}
	if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return true, err
	}
	h := sha256.New()
	whole := io.TeeReader(f, h)
	x := newExtractor(&rooted{stack: []level{{".", fd}}}, k.Limits)
	defer x.r.Close()
	x.add, x.owner = true, k.Owner
	if err := x.run(whole); err != nil {
		return true, err
	}
	if _, err := io.Copy(io.Discard, whole); err != nil {
		return true, err
	}
	if m.Entry.SHA256 != "" && hex.EncodeToString(h.Sum(nil)) != m.Entry.SHA256 {
		return true, &ChangedError{m.Path}
	}
	for p, s := range x.specials {
		s.Path = relative(at + "/" + p)
		k.specials[s.Path] = s
	}
	k.dst.forget(at)
	return true, nil
}
