package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// PackOptions say how a layer is written.
type PackOptions struct {
	Zstd bool // compressed, at the fastest level; else plain
}

// Pack writes a layer as an OCI layer tar: the upper folder of an overlay that
// was mounted with userxattr, or a folder of Unpack or Merge. Whiteouts
// (character devices 0/0) and opaque folders (user.overlay.opaque) become .wh.
// names, owners come from OwnerAttr and specials, files with several names are
// written once, the root folder is "./". Sockets are left out. specials are of
// this layer; one that says nothing is a whiteout where the layer has nothing:
// a device of the layers below, which is in no folder, is gone. The same folder
// gives the same bytes.
//
// A name that begins with .wh. cannot be part of a layer and is an error.
func Pack(w io.Writer, layer string, specials []Special, o PackOptions) error {
	r, err := openRoot(layer)
	if err != nil {
		return err
	}
	defer r.Close()
	v, err := newView(r, nil, specials)
	if err != nil {
		return err
	}
	if o.Zstd {
		z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		if err := newPacker(v, specials, z).run(); err != nil {
			z.Close()
			return err
		}
		return z.Close()
	}
	return newPacker(v, specials, w).run()
}

// packer writes one tar.
type packer struct {
	v     *view
	notes map[string]Owner
	gone  map[string][]string // names by folder
	tw    *tar.Writer
	links map[inode]string
	buf   []byte
}

func newPacker(v *view, specials []Special, w io.Writer) *packer {
	k := &packer{v: v, notes: map[string]Owner{}, gone: map[string][]string{}, tw: tar.NewWriter(w), links: map[inode]string{}, buf: make([]byte, 256<<10)}
	for _, s := range specials {
		k.notes[s.Path] = s.Owner
		if s.Device == "" && s.Owner == (Owner{}) {
			k.gone[path.Dir(s.Path)] = append(k.gone[path.Dir(s.Path)], path.Base(s.Path))
		}
	}
	return k
}

func (k *packer) run() error {
	if err := k.path("."); err != nil {
		return err
	}
	return k.tw.Close()
}

// ErrReserved says that a layer cannot hold a file of this name.
var ErrReserved = errors.New("a name that begins with " + whPrefix + " means a removal in a layer; call it something else")

// folder writes what is in the folder at dir.
func (k *packer) folder(dir string) error {
	names, err := k.v.names(dir)
	if err != nil {
		return err
	}
	for _, name := range k.gone[dir] {
		if _, there := slices.BinarySearch(names, name); !there {
			if err := k.mark(join(dir, whPrefix+name)); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		p := join(dir, name)
		if strings.HasPrefix(name, whPrefix) {
			return fmt.Errorf("/%s: %w", p, ErrReserved)
		}
		if err := k.path(p); err != nil {
			return fmt.Errorf("packing /%s: %w", p, err)
		}
	}
	return nil
}

// path writes what is at p, and below it.
func (k *packer) path(p string) error {
	if s, ok := k.v.devices[p]; ok {
		st, err := k.v.r.lstat(p)
		if err == nil && isWhiteout(st) { // the layers below have something there
			if err := k.mark(join(path.Dir(p), whPrefix+path.Base(p))); err != nil {
				return err
			}
			return k.device(s)
		}
		if isNotExist(err) {
			return k.device(s)
		}
	}
	st, err := k.v.r.lstat(p)
	if err != nil {
		return err
	}
	h := &tar.Header{Format: tar.FormatPAX, Name: p, Mode: int64(st.Mode & 0o7777), ModTime: time.Unix(st.Mtim.Unix())}
	if isWhiteout(st) {
		return k.mark(join(path.Dir(p), whPrefix+path.Base(p)))
	}
	switch typeOf(st.Mode) {
	case "dir":
		return k.dir(h, p)
	case "file":
		return k.file(h, p, st)
	case "link":
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = k.v.r.readlink(p); err != nil {
			return err
		}
	case "fifo":
		h.Typeflag = tar.TypeFifo
	case "char":
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	case "block":
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeBlock, int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	case "socket":
		return nil
	}
	h.Uid, h.Gid = k.notes[p].UID, k.notes[p].GID
	return k.tw.WriteHeader(h)
}

// mark writes a name that says what the layer removes. Its time is the epoch:
// it has none.
func (k *packer) mark(name string) error {
	return k.tw.WriteHeader(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, ModTime: time.Unix(0, 0)})
}

// noted adds what the attributes of a file or folder say.
func (k *packer) noted(h *tar.Header, p string) ([]attr, error) {
	attrs, err := k.v.r.attrs(p)
	if err != nil {
		return nil, err
	}
	o, err := owner(attrs)
	if err != nil {
		return nil, err
	}
	h.Uid, h.Gid = o.UID, o.GID
	for _, a := range attrs {
		switch {
		case a.name == overlayPrefix+"redirect" || a.name == overlayPrefix+"metacopy":
			return nil, fmt.Errorf("the contents are in another layer (%s): mount overlays without redirect_dir and metacopy", a.name)
		case ours(a.name):
		default:
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+a.name] = string(a.value)
		}
	}
	return attrs, nil
}

func (k *packer) dir(h *tar.Header, p string) error {
	h.Typeflag, h.Name = tar.TypeDir, p+"/"
	attrs, err := k.noted(h, p)
	if err != nil {
		return err
	}
	if err := k.tw.WriteHeader(h); err != nil {
		return err
	}
	if isOpaque(attrs) {
		if err := k.mark(join(p, opaqueName)); err != nil {
			return err
		}
	}
	return k.folder(p)
}

func (k *packer) file(h *tar.Header, p string, st unix.Stat_t) error {
	h.Typeflag = tar.TypeReg
	if _, err := k.noted(h, p); err != nil {
		return err
	}
	if id := (inode{st.Dev, st.Ino}); st.Nlink > 1 {
		if first, ok := k.links[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return k.tw.WriteHeader(h)
		}
		k.links[id] = p
	}
	f, err := k.v.r.openFile(p)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Size = st.Size
	if err := k.tw.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.CopyBuffer(struct{ io.Writer }{k.tw}, io.LimitReader(f, st.Size), k.buf); err != nil {
		return err
	} else if n != st.Size {
		return &ChangedError{p}
	}
	return nil
}

// device writes a device that is not on disk, with the time of a mark.
func (k *packer) device(s Special) error {
	h := &tar.Header{
		Format: tar.FormatPAX, Typeflag: tar.TypeChar, Name: s.Path, Mode: int64(s.Mode & 0o7777),
		Uid: s.Owner.UID, Gid: s.Owner.GID, Devmajor: int64(s.Major), Devminor: int64(s.Minor), ModTime: time.Unix(0, 0),
	}
	if s.Device == "b" {
		h.Typeflag = tar.TypeBlock
	}
	return k.tw.WriteHeader(h)
}
