// Package readfile reads files that somebody else made.
package readfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Regular reads a regular file, links followed. A larger one than limit bytes
// is an error, and so is a FIFO, device or folder, which is not waited for.
func Regular(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d KiB, more than such a file is", name, limit>>10)
	}
	return data, nil
}
