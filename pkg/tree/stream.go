package tree

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// decompress tells a stream's compression by its first bytes: gzip, bzip2, xz,
// zstd, or none. done frees what it took.
func decompress(in io.Reader) (out io.Reader, done func(), err error) {
	buffered := bufio.NewReaderSize(in, 256<<10)
	done = func() {}
	head, err := buffered.Peek(10)
	if err != nil && err != io.EOF {
		return nil, done, err
	}
	var name string
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b, 8}):
		name = "gzip"
		out, err = gzip.NewReader(buffered)
	case bytes.HasPrefix(head, []byte("BZh")):
		out, err = bzip2.NewReader(buffered), nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		name = "xz"
		out, err = xz.NewReader(buffered)
	case isZstd(head):
		name = "zstd"
		var d *zstd.Decoder
		if d, err = zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20)); err == nil {
			out, done = d, d.Close
		}
	default:
		return buffered, done, nil
	}
	if err != nil {
		return nil, func() {}, fmt.Errorf("reading %s: %w", name, err)
	}
	return out, done, nil
}

// isZstd knows frames (RFC 8878, 3.1.1) and skippable frames (3.1.2).
func isZstd(head []byte) bool {
	return bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18})
}

// isTar reports whether a file is a tar, compressed or not: whether its first
// header can be read, as BuildKit judges.
func isTar(f *os.File) (bool, error) {
	plain, done, err := decompress(f)
	if err != nil {
		return false, nil
	}
	defer done()
	_, err = tar.NewReader(plain).Next()
	return err == nil, nil
}

// capped is a reader that fails when it has given more than it may.
type capped struct {
	r    io.Reader
	left int64
	what string
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, &LimitError{c.what}
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.r.Read(p)
	c.left -= int64(n)
	return n, err
}

// isSparse reports whether a tar holds a file without its zeros.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// holes writes a file and leaves out blocks of zeros. The caller sets the size.
type holes struct{ f *os.File }

var zeros [4096]byte

func (h *holes) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		block := p[n:min(n+len(zeros), len(p))]
		var err error
		if bytes.Equal(block, zeros[:len(block)]) {
			_, err = h.f.Seek(int64(len(block)), io.SeekCurrent)
		} else {
			_, err = h.f.Write(block)
		}
		if err != nil {
			return n, err
		}
		n += len(block)
	}
	return len(p), nil
}
