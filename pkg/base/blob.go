package base

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
)

// wrong is content that is not what its digest says.
type wrong struct{ digest, got string }

func (e wrong) Error() string {
	return fmt.Sprintf("the content of %s is damaged: it is %s", e.digest, e.got)
}

// verified reads a blob and ends in an error unless it was the whole of what
// its descriptor says.
type verified struct {
	r    io.ReadCloser
	d    v1.Descriptor
	sum  hash.Hash
	size int64
	end  error
}

// verify reads r as the blob d. A size of 0 or less is not known.
func verify(r io.ReadCloser, d v1.Descriptor) (*verified, error) {
	sum, err := v1.Hasher(d.Digest.Algorithm)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Digest, err)
	}
	return &verified{r: r, d: d, sum: sum}, nil
}

func (v *verified) Read(p []byte) (int, error) {
	if v.end != nil {
		return 0, v.end
	}
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	v.size += int64(n)
	switch {
	case v.d.Size > 0 && v.size > v.d.Size:
		err = wrong{v.d.Digest.String(), fmt.Sprintf("longer than %d bytes", v.d.Size)}
	case err == io.EOF && v.d.Size > 0 && v.size < v.d.Size:
		err = fmt.Errorf("%s ends after %d of %d bytes: %w", v.d.Digest, v.size, v.d.Size, io.ErrUnexpectedEOF)
	case err == io.EOF:
		if got := v.d.Digest.Algorithm + ":" + hex.EncodeToString(v.sum.Sum(nil)); got != v.d.Digest.String() {
			err = wrong{v.d.Digest.String(), got}
		}
	}
	v.end = err
	return n, err
}

func (v *verified) Close() error { return v.r.Close() }

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
