package fetch

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

// digest is what an index says a body must hash to. The zero digest is none.
type digest struct {
	algo string // a name in hashes
	sum  string // lower-case hex
}

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

// newDigest is the zero digest unless sum is one of algo.
func newDigest(algo, sum string) digest {
	algo, sum = strings.ToLower(algo), strings.ToLower(sum)
	for _, h := range hashes {
		if h.algo == algo && isHex(sum, h.size) {
			return digest{algo, sum}
		}
	}
	return digest{}
}

// parseIntegrity reads npm's dist.integrity, the Subresource Integrity of W3C:
// "sha512-BASE64 sha1-BASE64". The strongest counts.
func parseIntegrity(s string) digest {
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

// strongest is the best digest among sums in hex, by their names.
func strongest(sums map[string]string) digest {
	for _, h := range hashes {
		if d := newDigest(h.algo, sums[h.algo]); d != (digest{}) {
			return d
		}
	}
	return digest{}
}

func (d digest) String() string {
	if d == (digest{}) {
		return ""
	}
	return d.algo + ":" + d.sum
}

// hash is a new hash of d's kind. d is not none.
func (d digest) hash() hash.Hash {
	for _, h := range hashes {
		if h.algo == d.algo {
			return h.new()
		}
	}
	panic("BUG: a digest of the kind " + d.algo)
}

// is reports whether sum is d's, or d is none.
func (d digest) is(sum []byte) bool {
	want, _ := hex.DecodeString(d.sum)
	return d == (digest{}) || bytes.Equal(want, sum)
}
