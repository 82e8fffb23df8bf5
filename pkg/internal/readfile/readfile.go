// Package readfile reads files that somebody else made.
package readfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Open opens a regular file for reading, links followed. A FIFO, device or
// folder is an error, and is not waited for.
func Open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Ends reads what Open opens, of a long file the first head and the last tail
// bytes; so many between them are left out.
func Ends(name string, head, tail int64) (begin, end []byte, left int64, err error) {
	f, err := Open(name)
	if err != nil {
		return nil, nil, 0, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, nil, 0, err
	}
	if left = max(0, size-head-tail); left == 0 {
		head = min(head, size)
		tail = size - head
	}
	begin, end = make([]byte, head), make([]byte, tail)
	n, err := f.ReadAt(begin, 0)
	if err == nil || err == io.EOF {
		begin = begin[:n]
		n, err = f.ReadAt(end, size-tail)
	}
	if err != nil && err != io.EOF {
		return nil, nil, 0, err
	}
	return begin, end[:n], left, nil // the file may have become shorter
}

// Regular reads what Open opens. More than limit bytes are an error.
func Regular(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d KiB, more than such a file is", name, limit>>10)
	}
	return data, nil
}
