package gitdir

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Types of objects in a pack, gitformat-pack(5).
const (
	typeCommit   = 1
	typeTag      = 4
	typeOffDelta = 6
	typeRefDelta = 7
)

var errPack = errors.New("it is damaged")

// pack is a pack with its index.
type pack struct {
	data    []byte
	offsets map[string]uint64
	done    map[uint64][]byte // contents by offset, since deltas share their bases
}

// packs reads the commits and tags in packs.
func (r *repository) packs() {
	for _, name := range r.names {
		base, ok := strings.CutSuffix(name, ".pack")
		if !ok || !strings.HasPrefix(name, "objects/pack/") {
			continue
		}
		if err := r.pack(base); err != nil {
			r.skip("%s: %v", name, err)
		}
	}
}

func (r *repository) pack(base string) error {
	index, err := r.read(base + ".idx")
	if err != nil {
		return err
	}
	p := pack{done: map[uint64][]byte{}}
	if p.offsets, err = readIndex(index); err != nil {
		return err
	}
	if p.data, err = r.read(base + ".pack"); err != nil {
		return err
	}
	bad := 0
	for id, at := range p.offsets {
		kind, err := p.kind(at)
		var text []byte
		if err == nil && (kind == typeCommit || kind == typeTag) {
			text, err = p.content(at, 0)
		}
		switch {
		case err != nil:
			bad++
		case kind == typeCommit:
			r.add(id, "commit", text)
		case kind == typeTag:
			r.add(id, "tag", text)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of its objects cannot be read", bad)
	}
	return nil
}

// readIndex reads an index of version 2, which git writes since 2008.
func readIndex(data []byte) (map[string]uint64, error) {
	const head, fan = 8, 4 * 256
	if len(data) < head+fan+40 || string(data[:8]) != "\xfftOc\x00\x00\x00\x02" {
		return nil, errors.New("its index is not of version 2")
	}
	n := uint64(binary.BigEndian.Uint32(data[head+fan-4:]))
	names, small := uint64(head+fan), uint64(head+fan)+n*24
	large := small + n*4
	if large+40 > uint64(len(data)) {
		return nil, errPack
	}
	all := make(map[string]uint64, n)
	for i := range n {
		at := uint64(binary.BigEndian.Uint32(data[small+4*i:]))
		if at&(1<<31) != 0 {
			from := large + 8*(at&^(1<<31))
			if from+8 > uint64(len(data)) {
				return nil, errPack
			}
			at = binary.BigEndian.Uint64(data[from:])
		}
		all[hex.EncodeToString(data[names+20*i:names+20*i+20])] = at
	}
	return all, nil
}

// deepest is how long a chain of deltas may be; git makes 50 to 250.
const deepest = 5000

// header reads what stands before an object's bytes: its type, its size, where
// its base is if it is a delta, and where the bytes begin. depth is how many
// deltas led to it.
func (p pack) header(begin uint64, depth int) (kind byte, size, base, next uint64, err error) {
	if depth > deepest {
		return 0, 0, 0, 0, errPack
	}
	at := begin
	b, err := p.byte(&at)
	kind, size = b>>4&7, uint64(b&15)
	for shift := 4; b&0x80 != 0 && err == nil; shift += 7 {
		if b, err = p.byte(&at); shift > 57 {
			err = errPack
		}
		size |= uint64(b&0x7f) << shift
	}
	switch {
	case err != nil:
	case kind == typeOffDelta:
		b, err = p.byte(&at)
		back := uint64(b & 0x7f)
		for b&0x80 != 0 && err == nil {
			b, err = p.byte(&at)
			back = (back+1)<<7 | uint64(b&0x7f)
		}
		if base = begin - back; back == 0 || back > begin {
			err = errPack
		}
	case kind == typeRefDelta:
		if uint64(len(p.data))-at < 20 {
			return 0, 0, 0, 0, errPack
		}
		var ok bool
		if base, ok = p.offsets[hex.EncodeToString(p.data[at:at+20])]; !ok {
			err = errors.New("it builds on an object that is not in it")
		}
		at += 20
	}
	return kind, size, base, at, err
}

func (p pack) byte(at *uint64) (byte, error) {
	if *at >= uint64(len(p.data)) {
		return 0, errPack
	}
	*at++
	return p.data[*at-1], nil
}

// kind is an object's type, which a delta has from its base.
func (p pack) kind(at uint64) (byte, error) {
	for depth := 0; ; depth++ {
		kind, _, base, _, err := p.header(at, depth)
		if err != nil || (kind != typeOffDelta && kind != typeRefDelta) {
			return kind, err
		}
		at = base
	}
}

// content is an object's bytes.
func (p pack) content(at uint64, depth int) (out []byte, err error) {
	if out, ok := p.done[at]; ok {
		return out, nil
	}
	defer func() {
		if err == nil {
			p.done[at] = out
		}
	}()
	kind, size, base, next, err := p.header(at, depth)
	if err != nil {
		return nil, err
	}
	if size > commitLimit {
		return nil, errPack
	}
	z, err := zlib.NewReader(bytes.NewReader(p.data[next:]))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	data, err := io.ReadAll(io.LimitReader(z, int64(size)))
	if err != nil || uint64(len(data)) != size {
		return nil, errPack
	}
	if kind != typeOffDelta && kind != typeRefDelta {
		return data, nil
	}
	from, err := p.content(base, depth+1)
	if err != nil {
		return nil, err
	}
	return applyDelta(from, data)
}

// applyDelta makes an object of its base and a delta: two sizes, then copies
// of ranges of the base and bytes to insert.
func applyDelta(base, delta []byte) ([]byte, error) {
	r := bytes.NewReader(delta)
	if _, err := number(r); err != nil {
		return nil, err
	}
	size, err := number(r)
	if err != nil || size > commitLimit {
		return nil, errPack
	}
	var out []byte
	for r.Len() > 0 {
		op, _ := r.ReadByte()
		if op&0x80 == 0 {
			insert := make([]byte, op)
			if n, _ := r.Read(insert); n != int(op) || op == 0 {
				return nil, errPack
			}
			out = append(out, insert...)
			continue
		}
		var at, n uint64
		for bit := range 7 {
			if op&(1<<bit) == 0 {
				continue
			}
			b, err := r.ReadByte()
			if err != nil {
				return nil, errPack
			}
			if bit < 4 {
				at |= uint64(b) << (8 * bit)
			} else {
				n |= uint64(b) << (8 * (bit - 4))
			}
		}
		if n == 0 {
			n = 0x10000
		}
		if at > uint64(len(base)) || n > uint64(len(base))-at || uint64(len(out))+n > size {
			return nil, errPack
		}
		out = append(out, base[at:at+n]...)
	}
	if uint64(len(out)) != size {
		return nil, errPack
	}
	return out, nil
}

func number(r io.ByteReader) (n uint64, err error) {
	for shift := 0; shift < 63; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, errPack
		}
		if n |= uint64(b&0x7f) << shift; b&0x80 == 0 {
			return n, nil
		}
	}
	return 0, errPack
}
