package kernels

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// writeInitramfs writes the files as a "newc" cpio archive, not compressed: unpacking is the slower part under emulation.
func writeInitramfs(to string, files []File) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &cpio{w: bufio.NewWriterSize(f, 1<<20), seen: map[string]bool{"/": true}}
	for _, file := range files {
		if err := w.add(file); err != nil {
			return err
		}
	}
	if err := w.entry("TRAILER!!!", 0, 0, nil); err != nil {
		return err
	}
	if err := w.w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

type cpio struct {
	w     *bufio.Writer
	n     int64 // bytes written
	inode int
	seen  map[string]bool
}

func (c *cpio) add(f File) error {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
		return fmt.Errorf("%q is not a clean absolute path", f.Path)
	}
	if c.seen[f.Path] {
		return fmt.Errorf("%s is there twice", f.Path)
	}
	if dir := path.Dir(f.Path); !c.seen[dir] {
		if err := c.add(File{Path: dir, Mode: fs.ModeDir | 0o755}); err != nil {
			return err
		}
	}
	c.seen[f.Path] = true
	perm := uint32(f.Mode.Perm())
	switch {
	case f.Mode&fs.ModeDir != 0:
		if perm == 0 {
			perm = 0o755
		}
		return c.entry(f.Path[1:], 0o040000|perm, f.UID, nil)
	case f.Mode&fs.ModeDevice != 0: // only the console is ever needed before devtmpfs
		return c.entry(f.Path[1:], 0o020600, 0, nil)
	}
	if perm == 0 {
		perm = 0o755
	}
	data := f.Data
	if f.From != "" {
		var err error
		if data, err = os.ReadFile(f.From); err != nil {
			return err
		}
	}
	return c.entry(f.Path[1:], 0o100000|perm, f.UID, data)
}

func (c *cpio) entry(name string, mode uint32, owner int, data []byte) error {
	c.inode++
	major, minor := 0, 0
	if mode&0o170000 == 0o020000 {
		major, minor = 5, 1
	}
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.inode, mode, owner, owner, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	for _, part := range []string{header + name + "\x00", string(data)} {
		n, err := io.WriteString(c.w, part)
		c.n += int64(n)
		if err != nil {
			return err
		}
		for ; c.n%4 != 0; c.n++ {
			if err := c.w.WriteByte(0); err != nil {
				return err
			}
		}
	}
	return nil
}
