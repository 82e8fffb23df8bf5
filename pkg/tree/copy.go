package tree

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	mode "github.com/tonistiigi/dchapes-mode"
	"golang.org/x/sys/unix"
)

// CopyRequest is what one COPY or ADD puts into a root folder.
type CopyRequest struct {
	Root    string  // folder that Matches are in
	Matches []Match // of Select; a SHA256 that is set is checked
	Files   []File  // more files, after the matches
	Dest    string  // absolute, in the root folder copied to; a slash at the end means a folder

	// Owner is of everything that is made; nil means 0:0, or with KeepOwners
	// whoever Root notes.
	Owner      *Owner
	KeepOwners bool      // Root is of a stage or an image, not of a context
	Specials   []Special // of Root, for KeepOwners and for devices

	Chmod  string // octal or symbolic, as of --chmod; "" keeps modes
	Unpack bool   // ADD: a match that is a tar, compressed or not, is unpacked to Dest instead
	Limits Limits // for Unpack
}

// File is a file whose bytes are at hand.
type File struct {
	Name  string // its name in a destination folder
	Data  []byte
	Mode  uint32    // permission bits
	MTime time.Time // zero: now
}

// ChangedError says that a file is not what it was when the copy was planned.
type ChangedError struct{ Path string }

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q changed while it was being copied: build again when nothing writes there", e.Path)
}

// Copy puts files into the root folder dst, as BuildKit does, and returns what
// the disk cannot hold of them:
//
//   - The contents of a folder are merged into Dest. A folder that is there
//     keeps its mode and owner if it is Dest itself, and takes those of the
//     source if it is below. Anything else is called Dest, or goes into it if
//     that is a folder or ends with a slash.
//   - Folders that lead to Dest, and Dest if it is made for a folder's contents,
//     get mode 0755, or that of an octal Chmod, and Owner. Links among them, and
//     Dest itself, are followed inside dst; links below Dest are not.
//   - A file replaces anything but a folder. Hard links within a match stay.
//     A socket becomes an empty file.
//   - Names that begin with .wh. are names like others, though an image in
//     layers cannot hold them (see Pack).
//   - Modes are exact, whatever the umask; mtimes are the sources'.
//   - Chmod counts for folders and files, never for links; a tar's members have
//     their own modes, and owners unless Owner is set.
//
// A special entry with owner 0:0 stands where something was replaced that may
// have had another.
func Copy(dst string, c CopyRequest) ([]Special, error) {
	k := &copier{CopyRequest: c, specials: map[string]Special{}, devices: map[string]Special{}, owners: map[string]Owner{}, buf: make([]byte, wholeFile)}
	var err error
	if k.change, k.parentMode, err = parseChmod(c.Chmod); err != nil {
		return nil, err
	}
	if k.dst, err = openRoot(dst); err != nil {
		return nil, err
	}
	defer k.dst.Close()
	if len(c.Matches) > 0 {
		if k.src, err = openRoot(c.Root); err != nil {
			return nil, err
		}
		defer k.src.Close()
	}
	for _, s := range c.Specials {
		if s.Device != "" {
			k.devices[s.Path] = s
		}
		k.owners[s.Path] = s.Owner
	}
	for _, m := range c.Matches {
		if err := k.match(m); err != nil {
			return nil, fmt.Errorf("copying %q to %s: %w", m.Source, c.Dest, err)
		}
	}
	for _, f := range c.Files {
		if err := k.file(f); err != nil {
			return nil, fmt.Errorf("writing %s to %s: %w", f.Name, c.Dest, err)
		}
	}
	return sortSpecials(k.specials), nil
}

// copier is one Copy under way.
type copier struct {
	CopyRequest
	src, dst   *rooted
	change     func(mode uint32, dir bool) uint32
	parentMode uint32
	specials   map[string]Special // of dst, so far
	devices    map[string]Special // of Root
	owners     map[string]Owner   // of Root, where no attribute can be
	links      map[inode]string   // of the match: where the first name of a file went
	buf        []byte
}

// inode tells files with several names.
type inode struct{ dev, ino uint64 }

// parseChmod reads --chmod: how it changes a mode, and the mode of folders
// that lead to the destination.
func parseChmod(s string) (change func(uint32, bool) uint32, parents uint32, err error) {
	if s == "" {
		return func(m uint32, _ bool) uint32 { return m }, 0o755, nil
	}
	if n, err := strconv.ParseUint(s, 8, 32); err == nil {
		if n > 0o7777 {
			return nil, 0, fmt.Errorf("--chmod=%s: an octal mode is at most 7777", s)
		}
		return func(uint32, bool) uint32 { return uint32(n) }, uint32(n) & 0o777, nil
	}
	set, err := mode.ParseWithUmask(s, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("--chmod=%s is no mode: %w", s, err)
	}
	return func(m uint32, dir bool) uint32 { return unixMode(set.Apply(goMode(m, dir))) }, 0o755, nil
}

// goMode and unixMode translate permission bits with setuid, setgid and sticky.
func goMode(m uint32, dir bool) os.FileMode {
	out := os.FileMode(m & 0o777)
	for bit, flag := range map[uint32]os.FileMode{unix.S_ISUID: os.ModeSetuid, unix.S_ISGID: os.ModeSetgid, unix.S_ISVTX: os.ModeSticky} {
		if m&bit != 0 {
			out |= flag
		}
	}
	if dir {
		out |= os.ModeDir
	}
	return out
}

func unixMode(m os.FileMode) uint32 {
	out := uint32(m.Perm())
	for bit, flag := range map[uint32]os.FileMode{unix.S_ISUID: os.ModeSetuid, unix.S_ISGID: os.ModeSetgid, unix.S_ISVTX: os.ModeSticky} {
		if m&flag != 0 {
			out |= bit
		}
	}
	return out
}

// newOwner is the owner of what no source stands for.
func (k *copier) newOwner() Owner {
	if k.Owner != nil {
		return *k.Owner
	}
	return Owner{}
}

// destination makes the folders that lead to Dest and returns where something
// of the given kind and name goes.
func (k *copier) destination(dir bool, name string) (string, error) {
	lead := k.Dest
	if base := path.Base(k.Dest); !strings.HasSuffix(k.Dest, "/") && base != "." {
		lead = path.Dir(k.Dest)
	}
	at, _, err := resolve(k.dst.look, relative(lead), true)
	if err != nil {
		return "", err
	}
	if _, err := k.dst.mkdirAll(at, k.parentMode, k.Owner); err != nil {
		return "", err
	}
	at, format, err := resolve(k.dst.look, relative(k.Dest), true)
	if err != nil {
		return "", err
	}
	if !dir && format == unix.S_IFDIR {
		return path.Join(at, name), nil
	}
	made := path.Dir(at)
	if dir && format == 0 {
		made = at
	}
	_, err = k.dst.mkdirAll(made, k.parentMode, k.Owner)
	return at, err
}

// match copies what one source names.
func (k *copier) match(m Match) error {
	if k.Unpack && m.Entry.Type == "file" {
		if done, err := k.unpack(m); done || err != nil {
			return err
		}
	}
	k.links = map[inode]string{}
	to, err := k.destination(m.Entry.Type == "dir", m.Name)
	if err != nil {
		return err
	}
	if m.Entry.Type != "dir" {
		return k.put(m.Path, to, m.Entry)
	}
	st, err := k.dst.lstat(to)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return inside("copy a folder to", to, unix.ENOTDIR)
	}
	var open []folder // those under way, the outermost first
	closeTo := func(p string) error {
		for len(open) > 0 && (p == "" || !under(p, open[len(open)-1].to)) {
			f := open[len(open)-1]
			open = open[:len(open)-1]
			if err := k.finish(f); err != nil {
				return err
			}
		}
		return nil
	}
	for _, e := range m.Below {
		from, to := path.Join(m.Path, e.Path), path.Join(to, e.Path)
		if err := closeTo(to); err != nil {
			return err
		}
		if e.Type != "dir" {
			if err := k.put(from, to, e); err != nil {
				return err
			}
			continue
		}
		f, err := k.folder(from, to, e)
		if err != nil {
			return err
		}
		open = append(open, f)
	}
	if err := closeTo(""); err != nil {
		return err
	}
	src, err := k.src.lstat(m.Path)
	if err != nil {
		return err
	}
	return k.dst.chtime(to, src.Mtim)
}

// folder is a folder that is finished when everything is in it.
type folder struct {
	from, to string
	e        Entry
	made     bool
}

// folder begins a folder below the destination.
func (k *copier) folder(from, to string, e Entry) (folder, error) {
	f := folder{from: from, to: to, e: e}
	st, err := k.dst.lstat(to)
	switch {
	case isNotExist(err):
		f.made = true
		return f, k.dst.mkdir(to)
	case err != nil:
		return f, err
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return f, inside("copy a folder to", to, unix.ENOTDIR)
	}
	return f, nil
}

// finish gives a folder what the source says. One that is only a way and was
// there takes the mode alone, and none its time: BuildKit does so.
func (k *copier) finish(f folder) error {
	if f.e.Way && !f.made {
		return k.dst.chmod(f.to, f.e.Mode)
	}
	st, err := k.src.lstat(f.from)
	if err != nil {
		return k.changed(f.from, err)
	}
	attrs, o, err := k.sourceAttrs(f.from, true)
	if err != nil {
		return err
	}
	m := meta{k.change(f.e.Mode, true), o, st.Mtim, attrs}
	if f.e.Way {
		m.mtime = unix.Timespec{Nsec: unix.UTIME_NOW}
	}
	return k.dst.finishDir(f.to, m)
}

// sourceAttrs returns the attributes to keep and the owner to note for a copy
// of what is at from.
func (k *copier) sourceAttrs(from string, canNote bool) ([]attr, Owner, error) {
	if !k.KeepOwners {
		return nil, k.newOwner(), nil
	}
	var attrs []attr
	o := k.owners[from]
	if canNote {
		all, err := k.src.attrs(from)
		if err != nil {
			return nil, o, err
		}
		if o, err = owner(all); err != nil {
			return nil, o, inside("read "+OwnerAttr+" of", from, err)
		}
		for _, a := range all {
			if !ours(a.name) {
				attrs = append(attrs, a)
			}
		}
	}
	if k.Owner != nil {
		o = *k.Owner
	}
	return attrs, o, nil
}

// changed makes an error of what was there when it was selected.
func (k *copier) changed(p string, err error) error {
	if isNotExist(err) {
		return &ChangedError{p}
	}
	return err
}

// file writes a file whose bytes are at hand.
func (k *copier) file(f File) error {
	if path.Base(f.Name) != f.Name || f.Name == ".." {
		return fmt.Errorf("%q is no name of a file", f.Name)
	}
	to, err := k.destination(false, f.Name)
	if err != nil {
		return err
	}
	if _, err := k.clear(to); err != nil {
		return err
	}
	mtime := unix.Timespec{Nsec: unix.UTIME_NOW}
	if !f.MTime.IsZero() {
		mtime = unix.NsecToTimespec(f.MTime.UnixNano())
	}
	return k.dst.writeFile(to, f.Data, meta{mode: k.change(f.Mode, false), owner: k.newOwner(), mtime: mtime})
}

// clear makes room for a file at p. It reports whether something was there.
func (k *copier) clear(p string) (bool, error) {
	st, err := k.dst.lstat(p)
	switch {
	case isNotExist(err):
		return false, nil
	case err != nil:
		return false, err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return false, &fs.PathError{Op: "replace the folder", Path: path.Join("/", p), Err: unix.EISDIR}
	}
	return true, k.dst.remove(p)
}

// Mkdir makes the folder p (absolute) of WORKDIR in the root folder dst, and
// those that lead to it, with mode 0755 and the given owner; nil is root, and the
// group of a setgid folder. Links are followed inside dst. A folder that is there is left as it is, something else in the
// way is an error.
func Mkdir(dst, p string, owner *Owner) error {
	r, err := openRoot(dst)
	if err != nil {
		return err
	}
	defer r.Close()
	at, _, err := resolve(r.look, relative(p), true)
	if err != nil {
		return err
	}
	_, err = r.mkdirAll(at, 0o755, owner)
	return err
}
