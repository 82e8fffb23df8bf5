package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits bound what unpacking takes; zero fields are the defaults.
type Limits struct {
	Bytes   int64 // of all files together; 64 GiB
	Entries int   // 4 million
	Path    int   // bytes of a path, or of a link's target; 4,095
}

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = 64 << 30
	}
	if l.Entries == 0 {
		l.Entries = 4 << 20
	}
	if l.Path == 0 {
		l.Path = unix.PathMax - 1
	}
	return l
}

// LimitError says that a tar takes more than it may.
type LimitError struct{ What string }

func (e *LimitError) Error() string { return "the archive has more than " + e.What }

// extractor puts the entries of one tar into a folder.
type extractor struct {
	r        *rooted
	limits   Limits
	overlay  bool      // whiteouts become what overlayfs understands; else what they name is removed
	add      bool      // the tar is one that ADD unpacks: see member and into
	owner    *Owner    // of every entry, whatever the tar says
	filter   bool      // with overlay: only whiteouts that hide something in below
	below    []*rooted // layer folders below, the topmost last
	specials map[string]Special

	bytes   int64
	entries int
	made    map[string]bool // by this tar, with the folders above
	dirs    map[string]meta // folders, to be finished when everything is in them
	hiding  map[string]bool // opaque folders, in a layer
	buf     []byte
}

func newExtractor(r *rooted, l Limits) *extractor {
	return &extractor{
		r: r, limits: l.withDefaults(), specials: map[string]Special{},
		made: map[string]bool{}, dirs: map[string]meta{}, hiding: map[string]bool{}, buf: make([]byte, wholeFile),
	}
}

// run unpacks a tar, compressed or not.
func (x *extractor) run(in io.Reader) error {
	plain, done, err := decompress(in)
	if err != nil {
		return err
	}
	defer done()
	// Beside files there are headers and padding, and entries that are skipped.
	tr := tar.NewReader(&capped{r: plain, left: x.limits.Bytes + 1<<30, what: fmt.Sprintf("%d bytes", x.limits.Bytes)})
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		if x.entries++; x.entries > x.limits.Entries {
			return &LimitError{fmt.Sprintf("%d entries", x.limits.Entries)}
		}
		if err := x.entry(h, tr); err != nil {
			return fmt.Errorf("unpacking %q: %w", short(h.Name), err)
		}
	}
	return x.finishDirs()
}

// short keeps an error to one line, whatever names a tar has.
func short(name string) string {
	if len(name) > 200 {
		return name[:200] + "..."
	}
	return name
}

// entry unpacks one entry.
func (x *extractor) entry(h *tar.Header, in io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if len(h.Name) > x.limits.Path || len(h.Linkname) > x.limits.Path {
		return &LimitError{fmt.Sprintf("%d bytes in a path", x.limits.Path)}
	}
	name, err := x.member(h.Name)
	if err != nil {
		return err
	}
	m, err := x.meta(h)
	if err != nil {
		return err
	}
	if name == "." {
		if !x.add && h.Typeflag == tar.TypeDir {
			x.dirs["."] = m
		}
		return nil
	}
	base := path.Base(name)
	at, err := x.into(path.Dir(name))
	if err != nil {
		return err
	}
	if !x.add {
		if strings.HasPrefix(base, whPrefix) {
			return x.whiteout(at, base)
		}
		if strings.HasPrefix(name, otherMetadata) {
			return nil
		}
		if strings.Contains("/"+name, "/"+whPrefix) {
			return errors.New("it is in something that a layer removes")
		}
	}
	if err := x.folderFor(at); err != nil {
		return err
	}
	p := path.Join(at, base)
	switch h.Typeflag {
	case tar.TypeLink:
		return x.hardLink(h, p)
	case tar.TypeChar, tar.TypeBlock:
		return x.device(h, p, m)
	}
	opaque, err := x.replace(p, h.Typeflag == tar.TypeDir)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = x.folder(p, m, opaque)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = x.file(h, in, p, m)
	case tar.TypeSymlink:
		if err = x.r.symlink(h.Linkname, p); err == nil {
			err = x.r.chtime(p, m.mtime)
		}
		x.note(Special{Path: p, Owner: m.owner})
	case tar.TypeFifo:
		if err = x.r.mkfifo(p); err == nil {
			err = errors.Join(x.r.chmod(p, m.mode), x.r.chtime(p, m.mtime))
		}
		x.note(Special{Path: p, Owner: m.owner})
	default:
		err = fmt.Errorf("an entry of type %q is nothing that a file system holds", h.Typeflag)
	}
	if err != nil {
		return err
	}
	x.mark(p)
	return nil
}

// member cleans the name of an entry. One that leads out is refused in a layer;
// for ADD it stops at the destination, as in BuildKit, which makes that the
// root folder while it unpacks.
func (x *extractor) member(name string) (string, error) {
	if x.add {
		return relative(name), nil
	}
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if !filepath.IsLocal(clean) {
		return "", errors.New("the name leads out of the archive")
	}
	return clean, nil
}

// into returns the folder that a member's folder dir is, links followed. For
// ADD a link on the way must lead somewhere, as in BuildKit.
func (x *extractor) into(dir string) (string, error) {
	if _, err := x.r.dir(dir); err == nil {
		return dir, nil // all of it is there, without a link
	}
	at := "."
	for name := range strings.SplitSeq(dir, "/") {
		next := join(at, name)
		to, format, err := resolve(x.r.look, next, true)
		if err != nil {
			return "", err
		}
		if format == 0 && to != next && x.add {
			return "", inside("open", next, unix.ENOENT)
		}
		at = to
	}
	return at, nil
}

// meta reads what a header says of mode, owner, time and attributes.
func (x *extractor) meta(h *tar.Header) (meta, error) {
	m := meta{mode: uint32(h.Mode & 0o7777), owner: Owner{h.Uid, h.Gid}}
	if x.owner != nil {
		m.owner = *x.owner
	}
	if m.owner.UID < 0 || m.owner.GID < 0 || m.owner.UID > math.MaxUint32 || m.owner.GID > math.MaxUint32 {
		return m, fmt.Errorf("%v is no owner", m.owner)
	}
	if t := h.ModTime; t.Year() > 1900 && t.Year() < 2262 { // what nanoseconds in 64 bits hold
		m.mtime = unix.NsecToTimespec(t.UnixNano())
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if ok && !ours(name) && (strings.HasPrefix(name, "user.") || name == capabilityAttr) {
			m.attrs = append(m.attrs, attr{name, []byte(value)})
		}
	}
	slices.SortFunc(m.attrs, func(a, b attr) int { return strings.Compare(a.name, b.name) })
	return m, nil
}

// replace makes room for an entry at p. Only a folder may stay, for a folder.
// It reports whether a folder that is now made must hide what is below it.
func (x *extractor) replace(p string, dir bool) (opaque bool, err error) {
	st, err := x.r.lstat(p)
	if isNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	format := st.Mode & unix.S_IFMT
	if dir && format == unix.S_IFDIR {
		return false, nil
	}
	x.forgetBelow(p, format == unix.S_IFDIR)
	if x.add {
		x.specials[p] = Special{Path: p} // there may have been a note that is not known here
	}
	return x.overlay, x.r.remove(p)
}

// forgetBelow forgets everything about p and what is below it.
func (x *extractor) forgetBelow(p string, dir bool) {
	delete(x.made, p)
	delete(x.dirs, p)
	delete(x.hiding, p)
	delete(x.specials, p)
	if !dir {
		return
	}
	for q := range x.made {
		if under(q, p) {
			delete(x.made, q)
		}
	}
	for q := range x.dirs {
		if under(q, p) {
			delete(x.dirs, q)
		}
	}
	x.drop(p)
}

// folderFor makes the folder at p and those above, for an entry in it: they
// look like those of the layers below, or 0755 and 0:0.
func (x *extractor) folderFor(p string) error {
	st, err := x.r.lstat(p)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil
	case err == nil && !(x.overlay && isWhiteout(st)):
		return inside("make a folder at", p, unix.ENOTDIR)
	case err != nil && !isNotExist(err):
		return err
	}
	if err := x.folderFor(path.Dir(p)); err != nil {
		return err
	}
	opaque, err := x.replace(p, true)
	if err != nil {
		return err
	}
	m, err := x.looksBelow(p)
	if err != nil {
		return err
	}
	if x.add {
		above, ok := x.dirs[path.Dir(p)]
		if !ok {
			if st, err = x.r.lstat(path.Dir(p)); err != nil {
				return err
			}
			above.mode = st.Mode
		}
		m.mode |= above.mode & unix.S_ISGID // as mkdir(2) does it
	}
	if err := x.folder(p, m, opaque); err != nil {
		return err
	}
	x.mark(p)
	return nil
}

// folder makes the folder at p unless it is there, and has it finished later.
func (x *extractor) folder(p string, m meta, opaque bool) error {
	if err := x.r.mkdir(p); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if !x.hiding[p] {
		delete(x.specials, p)
	}
	if opaque {
		if err := x.setOpaque(p); err != nil {
			return err
		}
	}
	x.dirs[p] = m
	return nil
}

// finishDirs gives folders what their entries said, the deepest first: modes
// that deny and times that count are in nobody's way then.
func (x *extractor) finishDirs() error {
	paths := make([]string, 0, len(x.dirs))
	for p := range x.dirs {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	slices.Reverse(paths)
	for _, p := range paths {
		if err := x.r.finishDir(p, x.dirs[p]); err != nil {
			return err
		}
	}
	return nil
}

// file writes a regular file; zeros of a sparse one are left out.
func (x *extractor) file(h *tar.Header, in io.Reader, p string, m meta) error {
	if h.Size > x.limits.Bytes-x.bytes {
		return &LimitError{fmt.Sprintf("%d bytes", x.limits.Bytes)}
	}
	x.bytes += h.Size
	delete(x.specials, p)
	if h.Size <= int64(len(x.buf)) {
		data := x.buf[:h.Size]
		if _, err := io.ReadFull(in, data); err != nil {
			return err
		}
		return x.r.writeFile(p, data, m)
	}
	f, err := x.r.create(p)
	if err != nil {
		return err
	}
	defer f.Close()
	var out io.Writer = struct{ io.Writer }{f}
	if isSparse(h) {
		out = &holes{f: f}
	}
	if _, err := io.CopyBuffer(out, in, x.buf); err != nil {
		return err
	}
	if isSparse(h) {
		if err := f.Truncate(h.Size); err != nil {
			return err
		}
	}
	return x.r.finishFile(int(f.Fd()), p, m)
}

// device remembers a device node. In a layer a whiteout takes its place if the
// layers below show something there.
func (x *extractor) device(h *tar.Header, p string, m meta) error {
	if h.Devmajor < 0 || h.Devminor < 0 || h.Devmajor > math.MaxUint32 || h.Devminor > math.MaxUint32 {
		return fmt.Errorf("%d:%d is no device", h.Devmajor, h.Devminor)
	}
	s := Special{Path: p, Owner: m.owner, Device: "c", Mode: m.mode, Major: uint32(h.Devmajor), Minor: uint32(h.Devminor)}
	if h.Typeflag == tar.TypeBlock {
		s.Device = "b"
	}
	return x.putDevice(s)
}

// putDevice makes room for a device and remembers it.
func (x *extractor) putDevice(s Special) error {
	st, err := x.r.lstat(s.Path)
	if err != nil && !isNotExist(err) {
		return err
	}
	if err != nil || !(x.overlay && isWhiteout(st)) {
		if _, err := x.replace(s.Path, false); err != nil {
			return err
		}
		if x.filter {
			if err := x.hide(s.Path); err != nil {
				return err
			}
		}
	}
	x.note(s)
	x.mark(s.Path)
	return nil
}

// hardLink gives a file of the tree another name.
func (x *extractor) hardLink(h *tar.Header, p string) error {
	target, err := x.member(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", short(h.Linkname), err)
	}
	old, format, err := resolve(x.r.look, target, false)
	if err != nil {
		return err
	}
	s, noted := x.specials[old]
	switch {
	case old == p:
		return nil
	case format == unix.S_IFDIR:
		return fmt.Errorf("hard link to the folder %q", short(h.Linkname))
	case format == 0 && s.Device == "":
		return fmt.Errorf("hard link to %q, which is not there", short(h.Linkname))
	}
	s.Path = p
	if s.Device != "" {
		return x.putDevice(s)
	}
	if _, err := x.replace(p, false); err != nil {
		return err
	}
	if noted {
		x.note(s)
	}
	x.mark(p)
	return x.r.link(x.r, old, p)
}
