package base

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"

	"github.com/klauspost/compress/zstd"
)

// stream is an uncompressed layer. It ends well only when what it was made
// from did, to the last byte.
type stream struct {
	io.Reader
	below *bufio.Reader
	close []func() error
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil {
		err = rest(s.below, err)
	}
	return n, err
}

// rest is the error of what is left of the blob, which says more than that of
// its decompression, or else err.
func rest(r io.Reader, err error) error {
	if _, e := io.Copy(io.Discard, r); e != nil {
		return e
	}
	return err
}

func (s *stream) Close() error {
	var first error
	for _, c := range s.close {
		if err := c(); first == nil {
			first = err
		}
	}
	return first
}

// decompress reads r as gzip, zstd or as it is, by its first bytes: media
// types are not always right.
func decompress(r io.ReadCloser) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<17)
	s := &stream{Reader: b, below: b, close: []func() error{r.Close}}
	switch magic, _ := b.Peek(4); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			defer r.Close()
			return nil, rest(b, err)
		}
		s.Reader, s.close = z, []func() error{z.Close, r.Close}
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1))
		if err != nil {
			r.Close()
			return nil, err
		}
		s.Reader, s.close = z, []func() error{func() error { z.Close(); return nil }, r.Close}
	}
	return s, nil
}
