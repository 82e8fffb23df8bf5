package sif

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"
	"time"

	squashfslow "github.com/sylabs/squashfs/low"
	"github.com/sylabs/squashfs/low/inode"
)

// Entry is one path of an image.
type Entry struct {
	Path  string      // relative to the root; "." is the root itself
	Mode  fs.FileMode // as of package fs: setuid is fs.ModeSetuid
	Size  int64       // bytes, of a file
	Link  string      // where a link leads, as written
	Major uint32      // of a device
	Minor uint32
	MTime time.Time
	// Inode is the same for names of one file.
	Inode uint32

	base squashfslow.FileBase
	img  *Image
}

// Open reads a file's content, from its beginning.
func (e Entry) Open() (io.Reader, error) {
	var r io.Reader
	err := guard(func() (err error) {
		r, err = e.base.GetReader(&e.img.root.Low)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", e.img.Path, e.Path, err)
	}
	if last := e.lastHole(); last > 0 {
		r = io.MultiReader(r, io.LimitReader(zeros{}, last))
	}
	return &content{io.LimitReader(r, e.Size), e, 0}, nil
}

// lastHole is how many bytes of zeros the library (sylabs/squashfs 1.0.6) leaves
// out at the end of a file: a last block that is a hole, if it is a whole one.
func (e Entry) lastHole() int64 {
	var sizes []uint32
	var fragment uint32
	switch data := e.base.Inode.Data.(type) {
	case inode.File:
		sizes, fragment = data.BlockSizes, data.FragInd
	case inode.EFile:
		sizes, fragment = data.BlockSizes, data.FragInd
	}
	block := int64(e.img.root.Low.Superblock.BlockSize)
	if n := len(sizes); n == 0 || sizes[n-1]&^(1<<24) != 0 || fragment != math.MaxUint32 || e.Size%block != 0 {
		return 0
	}
	return block
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// content reads a file and notices that it ends too early.
type content struct {
	r   io.Reader
	e   Entry
	got int64
}

func (c *content) Read(p []byte) (n int, err error) {
	err = guard(func() (err error) { n, err = c.r.Read(p); return err })
	c.got += int64(n)
	if err == io.EOF && c.got < c.e.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%s: %s: %w", c.e.img.Path, c.e.Path, err)
	}
	return n, err
}

// Walk calls visit with every path of the image, folders before what is in
// them, each folder's names in byte order, until visit returns an error. fs.SkipDir
// leaves out what is in a folder.
func (img *Image) Walk(visit func(Entry) error) error {
	var stop error
	err := guard(func() error {
		root := img.root.Low.Root
		e, err := img.entry(root.FileBase, ".")
		if err != nil {
			return err
		}
		stop = img.walk(root, e, nil, visit)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s %w", img.Path, err)
	}
	return stop
}

func (img *Image) walk(d squashfslow.Directory, e Entry, above []uint32, visit func(Entry) error) error {
	if err := visit(e); err == fs.SkipDir {
		return nil
	} else if err != nil {
		return err
	}
	for _, up := range above {
		if up == e.Inode {
			return fmt.Errorf("%s is a damaged SIF image: the folder %s is inside itself", img.Path, e.Path)
		}
	}
	above = append(above, e.Inode)
	for _, de := range d.Entries {
		if de.Name == "" || de.Name == "." || de.Name == ".." || strings.ContainsAny(de.Name, "/\x00") {
			return fmt.Errorf("%s is a damaged SIF image: the folder %s holds the name %q", img.Path, e.Path, de.Name)
		}
		p := de.Name
		if e.Path != "." {
			p = e.Path + "/" + de.Name
		}
		base, err := img.root.Low.BaseFromEntry(de)
		if err != nil {
			return fmt.Errorf("%s is a damaged SIF image: %s: %w", img.Path, p, err)
		}
		sub, err := img.entry(base, p)
		if err != nil {
			return err
		}
		if !sub.Mode.IsDir() {
			if err := visit(sub); err != nil && err != fs.SkipDir {
				return err
			}
			continue
		}
		dir, err := base.ToDir(&img.root.Low)
		if err != nil {
			return fmt.Errorf("%s is a damaged SIF image: %s: %w", img.Path, p, err)
		}
		if err := img.walk(dir, sub, above, visit); err != nil {
			return err
		}
	}
	return nil
}

// entry is what an inode says.
func (img *Image) entry(b squashfslow.FileBase, p string) (Entry, error) {
	e := Entry{Path: p, Mode: fs.FileMode(b.Inode.Perm & 0o777), MTime: time.Unix(int64(b.Inode.ModTime), 0), Inode: b.Inode.Num, base: b, img: img}
	for bit, mode := range map[uint16]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if b.Inode.Perm&bit != 0 {
			e.Mode |= mode
		}
	}
	switch data := b.Inode.Data.(type) {
	case inode.File, inode.EFile:
		e.Size = int64(b.Inode.Size())
	case inode.Directory, inode.EDirectory:
		e.Mode |= fs.ModeDir
	case inode.Symlink:
		e.Mode, e.Link = e.Mode|fs.ModeSymlink, string(data.Target)
	case inode.ESymlink:
		e.Mode, e.Link = e.Mode|fs.ModeSymlink, string(data.Target)
	case inode.Device:
		e.device(b.Inode.Type, data.Dev)
	case inode.EDevice:
		e.device(b.Inode.Type, data.Dev)
	case inode.IPC, inode.EIPC:
		e.Mode |= fs.ModeNamedPipe
		if b.Inode.Type == inode.Sock || b.Inode.Type == inode.ESock {
			e.Mode = e.Mode&^fs.ModeNamedPipe | fs.ModeSocket
		}
	default:
		return e, fmt.Errorf("%s is a damaged SIF image: %s is of an unknown type", img.Path, p)
	}
	if e.Size < 0 {
		return e, fmt.Errorf("%s is a damaged SIF image: %s has %d bytes", img.Path, p, e.Size)
	}
	return e, nil
}

// device takes a device number apart as new_decode_dev of the kernel does.
func (e *Entry) device(kind uint16, dev uint32) {
	e.Mode |= fs.ModeDevice
	if kind == inode.Char || kind == inode.EChar {
		e.Mode |= fs.ModeCharDevice
	}
	e.Major, e.Minor = (dev>>8)&0xfff, dev&0xff|(dev>>12)&0xfff00
}
