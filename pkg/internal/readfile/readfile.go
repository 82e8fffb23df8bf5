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
