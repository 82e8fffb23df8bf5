package taint

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// entry is a library as ld.so finds it.
type entry struct{ name, path string }

// The cache's own layout, with or without that of before glibc 2.2 ahead of it
// (glibc, sysdeps/generic/dl-cache.h). Text is found by its distance from
// magic.
const (
	oldMagic    = "ld.so-1.7.0"
	oldHeader   = 16
	oldEntry    = 12
	cacheMagic  = "glibc-ld.so.cache1.1"
	cacheHeader = 48
	cacheEntry  = 24
)

var errNoCache = errors.New("not a cache of ld.so")

// parseCache reads an ld.so.cache.
func parseCache(data []byte) ([]entry, error) {
	if bytes.HasPrefix(data, []byte(oldMagic)) && len(data) >= oldHeader {
		// Programs look only where the new one must begin, aligned to 8 bytes.
		at := (oldHeader + oldEntry*uint64(binary.NativeEndian.Uint32(data[12:])) + 7) &^ 7
		data = data[min(at, uint64(len(data))):]
	}
	if !bytes.HasPrefix(data, []byte(cacheMagic)) || len(data) < cacheHeader {
		return nil, errNoCache
	}
	var order binary.ByteOrder = binary.LittleEndian
	if data[28]&3 == 3 { // cache_file_new_flags_endian_big
		order = binary.BigEndian
	}
	n := uint64(order.Uint32(data[20:]))
	if n*cacheEntry > uint64(len(data)-cacheHeader) {
		return nil, errNoCache
	}
	text := func(at uint32) (string, bool) {
		if uint64(at) >= uint64(len(data)) {
			return "", false
		}
		s, _, ok := bytes.Cut(data[at:], []byte{0})
		return string(s), ok
	}
	entries := make([]entry, 0, n)
	for i := range n {
		e := data[cacheHeader+i*cacheEntry:]
		name, ok1 := text(order.Uint32(e[4:]))
		path, ok2 := text(order.Uint32(e[8:]))
		if !ok1 || !ok2 {
			return nil, errNoCache
		}
		entries = append(entries, entry{name, path})
	}
	return entries, nil
}

// misled is the first library that now is found where it was not before; "" if
// there is none. known says where else a library of the image is found
// without a cache, by name.
func misled(before, now []entry, known func(name string) []string) (name, path string) {
	had := map[string][]string{}
	for _, e := range before {
		had[e.name] = append(had[e.name], e.path)
	}
	for _, e := range now {
		places, ok := had[e.name]
		if !ok {
			places = known(e.name)
			had[e.name] = places
		}
		ok = len(places) == 0
		for _, p := range places {
			ok = ok || sameLibrary(p, e.path)
		}
		if !ok {
			return e.name, e.path
		}
	}
	return "", ""
}

// sameLibrary says whether two paths are one where /lib is a link to usr/lib.
func sameLibrary(a, b string) bool {
	clean := func(p string) string {
		for len(p) > 0 && p[0] == '/' {
			p = p[1:]
		}
		return string(bytes.TrimPrefix([]byte(p), []byte("usr/")))
	}
	return clean(a) == clean(b)
}
