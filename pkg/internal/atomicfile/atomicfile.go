// Package atomicfile writes files that appear whole or not at all, also when
// the writer is killed or the node goes down.
package atomicfile

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes the file path with what fill writes to it. Until fill has
// returned without an error and all is on disk, path is what it was before.
// The new file's mode is 0666 less the umask.
//
// A path that exists and is no regular file (/dev/stdout, a FIFO) is written
// to as it is.
func Write(path string, fill func(io.Writer) error) (err error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		return through(path, fill)
	}
	dir := filepath.Dir(path)
	tmp := filepath.Join(dir, "."+filepath.Base(path)+"."+rand.Text()[:8])
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return plain(path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(tmp)
		}
	}()
	if err = fill(f); err != nil {
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) && pe.Path == tmp {
			pe.Path = path
		}
		return err
	}
	if err = f.Sync(); err != nil {
		return plain(path, err)
	}
	if err = f.Close(); err != nil {
		return plain(path, err)
	}
	if err = os.Rename(tmp, path); err != nil {
		return plain(path, err)
	}
	if d, e := os.Open(dir); e == nil {
		_ = d.Sync() // not every filesystem syncs a directory, and the file is whole already
		d.Close()
	}
	return nil
}

func through(path string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(fill(f), f.Close())
}

// plain names the file that was asked for in place of the temporary one.
func plain(path string, err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		return &fs.PathError{Op: pe.Op, Path: path, Err: pe.Err}
	case errors.As(err, &le):
		return &fs.PathError{Op: le.Op, Path: path, Err: le.Err}
	}
	return err
}
