package index

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"strings"
)

// Digest is what an index says a body must hash to. The zero Digest is none.
type Digest struct {
	algo string // a name in hashes
	sum  string // lower-case hex
}

// IsNone reports whether d says nothing.
func (d Digest) IsNone() bool { return d == Digest{} }

// Algo is "sha1", "sha256", "sha384", "sha512", or "" for none.
func (d Digest) Algo() string { return d.algo }

// hashes are those that a body is compared with, the strongest first. SHA-1 is
// all that npm has for old packages; nothing is ever found by it alone.
var hashes = []struct {
	algo string
	size int
	new  func() hash.Hash
}{
	{"sha512", sha512.Size, sha512.New},
	{"sha384", sha512.Size384, sha512.New384},
	{"sha256", sha256.Size, sha256.New},
	{"sha1", sha1.Size, sha1.New},
}

// NewDigest is the zero Digest unless sum is one of algo.
func NewDigest(algo, sum string) Digest {
	algo, sum = strings.ToLower(algo), strings.ToLower(sum)
	for _, h := range hashes {
		if h.algo == algo && isHex(sum, h.size) {
			return Digest{algo, sum}
		}
	}
	return Digest{}
}

// ParseIntegrity reads npm's dist.integrity, the Subresource Integrity of W3C:
// "sha512-BASE64 sha1-BASE64". The strongest counts.
func ParseIntegrity(s string) Digest {
	found := map[string]string{}
	for word := range strings.FieldsSeq(s) {
		algo, rest, _ := strings.Cut(word, "-")
		rest, _, _ = strings.Cut(rest, "?")
		if sum, err := base64.StdEncoding.DecodeString(rest); err == nil {
			found[algo] = hex.EncodeToString(sum)
		}
	}
	return strongest(found)
}

// strongest is the best Digest among sums in hex, by their names.
func strongest(sums map[string]string) Digest {
	for _, h := range hashes {
		if d := NewDigest(h.algo, sums[h.algo]); d != (Digest{}) {
			return d
		}
	}
	return Digest{}
}

func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return d.algo + ":" + d.sum
}

// Hash is a new hash of d's kind. d is not none.
func (d Digest) Hash() hash.Hash {
	for _, h := range hashes {
		if h.algo == d.algo {
			return h.new()
		}
	}
	panic("BUG: a Digest of the kind " + d.algo)
}

// Is reports whether sum is d's, or d is none.
func (d Digest) Is(sum []byte) bool {
	want, _ := hex.DecodeString(d.sum)
	return d == (Digest{}) || bytes.Equal(want, sum)
}

// isHex reports whether s is n bytes in lower-case hex.
func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == n && hex.EncodeToString(b) == s
}
