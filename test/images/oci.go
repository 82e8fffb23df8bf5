package images

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ReadImage reads the filesystem that the layers of an image make, by the rules
// of the OCI image specification (whiteouts, and what replaces what).
func ReadImage(image v1.Image) (Tree, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	t := Empty()
	for number, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			return nil, err
		}
		err = errors.Join(t.apply(number, tar.NewReader(r)), r.Close())
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", number, err)
		}
	}
	t.findLinks()
	return t, nil
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// kinds of tar entries; a hard link is none of them.
var kinds = map[byte]string{tar.TypeReg: "file", tar.TypeDir: "dir", tar.TypeSymlink: "link", tar.TypeFifo: "fifo", tar.TypeChar: "char", tar.TypeBlock: "block"}

func (t Tree) apply(number int, r *tar.Reader) error {
	mine := map[string]bool{} // what this layer made: its whiteouts are about those below
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean("/" + h.Name)
		dir, file := path.Split(name)
		dir = path.Clean(dir)
		if file == opaque {
			t.remove(dir, true, mine)
			continue
		}
		if gone, ok := strings.CutPrefix(file, whiteout); ok {
			t.remove(path.Join(dir, gone), false, mine)
			continue
		}
		for above := dir; above != "/"; above = path.Dir(above) {
			if _, ok := t[above]; !ok {
				t[above] = node{kind: "dir", mode: 0o755}
				mine[above] = true
			}
		}
		var n node
		if h.Typeflag == tar.TypeLink {
			n = t[path.Clean("/"+h.Linkname)]
			if n.kind == "" {
				return fmt.Errorf("%s is a hard link to %s, which is not there", name, h.Linkname)
			}
		} else {
			e := Entry{Type: kinds[h.Typeflag], Mode: uint32(h.Mode), UID: h.Uid, GID: h.Gid, Link: h.Linkname,
				Major: uint32(h.Devmajor), Minor: uint32(h.Devminor), MTime: h.ModTime, Content: r,
				Inode: fmt.Sprintf("%d %s", number, name)}
			if n, err = read(e); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if old, ok := t[name]; ok && (old.kind != "dir" || n.kind != "dir") {
			t.remove(name, false, nil)
		}
		t[name] = n
		mine[name] = true
	}
}

// remove takes away a path and what is below it, or only what is below it,
// except what is spared.
func (t Tree) remove(name string, below bool, spared map[string]bool) {
	for other := range t {
		if spared[other] || other == "/" {
			continue
		}
		if other == name && !below || strings.HasPrefix(other, strings.TrimSuffix(name, "/")+"/") {
			delete(t, other)
		}
	}
}
