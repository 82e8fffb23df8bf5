package blobs

import (
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// verified is the reader of Verify.
type verified struct {
	r    io.ReadCloser
	d    v1.Descriptor
	sum  hash.Hash
	size int64
	end  error
}

// Verify reads r as the blob d, and ends in an error in place of io.EOF unless
// r was that, to the last byte: Wrong, or io.ErrUnexpectedEOF for less. A size
// of 0 or less is not known.
func Verify(r io.ReadCloser, d v1.Descriptor) (io.ReadCloser, error) {
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
		err = Wrong{v.d.Digest.String(), fmt.Sprintf("longer than %d bytes", v.d.Size)}
	case err == io.EOF && v.d.Size > 0 && v.size < v.d.Size:
		err = fmt.Errorf("%s ends after %d of %d bytes: %w", v.d.Digest, v.size, v.d.Size, io.ErrUnexpectedEOF)
	case err == io.EOF:
		if got := v.d.Digest.Algorithm + ":" + hex.EncodeToString(v.sum.Sum(nil)); got != v.d.Digest.String() {
			err = Wrong{v.d.Digest.String(), got}
		}
	}
	v.end = err
	return n, err
}

func (v *verified) Close() error { return v.r.Close() }
