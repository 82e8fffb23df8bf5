package taint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"fence/test/bed"
)

// cacheOf is an ld.so.cache with those entries.
func cacheOf(order binary.ByteOrder, entries ...entry) []byte {
	data := make([]byte, cacheHeader+cacheEntry*len(entries))
	copy(data, cacheMagic)
	order.PutUint32(data[20:], uint32(len(entries)))
	data[28] = 2
	if order == binary.BigEndian {
		data[28] = 3
	}
	for i, e := range entries {
		for j, s := range []string{e.name, e.path} {
			order.PutUint32(data[cacheHeader+cacheEntry*i+4+4*j:], uint32(len(data)))
			data = append(data, s+"\x00"...)
		}
	}
	return data
}

func TestParseCache(t *testing.T) {
	want := []entry{{"libz.so.1", "/lib/libz.so.1"}, {"liba.so", "/usr/local/lib/liba.so"}}
	good := cacheOf(binary.LittleEndian, want...)
	// As glibc before 2.32 writes it: an old one of one entry, and a gap.
	old := make([]byte, 32)
	copy(old, oldMagic)
	binary.NativeEndian.PutUint32(old[12:], 1)
	// One that programs do not look at, before the one that they do.
	decoy := make([]byte, oldHeader, 1024)
	copy(decoy, oldMagic)
	decoy = append(decoy, cacheOf(binary.LittleEndian, entry{"decoy", "x"})...)
	for len(decoy)%oldEntry != oldHeader%oldEntry || len(decoy)%8 != 0 {
		decoy = append(decoy, 0)
	}
	binary.NativeEndian.PutUint32(decoy[12:], uint32((len(decoy)-oldHeader)/oldEntry))
	for name, data := range map[string][]byte{"little": good, "big": cacheOf(binary.BigEndian, want...), "after an old one": append(old, good...), "decoy": append(decoy, good...)} {
		if got, err := parseCache(data); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	many := bytes.Clone(good)
	binary.LittleEndian.PutUint32(many[20:], 1<<31)
	outside := bytes.Clone(good)
	binary.LittleEndian.PutUint32(outside[cacheHeader+4:], 1<<31)
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("x"), "magic": []byte(cacheMagic), "cut": good[:len(good)-1], "many": many, "outside": outside, "old": old, "inside": append([]byte("x"), good...),
	} {
		if got, err := parseCache(data); err == nil || got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The node's own, as ldconfig reads it.
func TestParseCache_Real(t *testing.T) {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		bed.Missing(t, "a cache of the dynamic linker: %v", err)
	}
	got, err := parseCache(data)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/sbin/ldconfig", "-p").Output()
	if err != nil {
		t.Fatal(err)
	}
	var want, have []string
	for line := range strings.Lines(string(out)) {
		if name, rest, ok := strings.Cut(line, " ("); ok && strings.HasPrefix(line, "\t") {
			_, at, _ := strings.Cut(rest, " => ")
			want = append(want, strings.TrimSpace(name)+" "+strings.TrimSpace(at))
		}
	}
	for _, e := range got {
		have = append(have, e.name+" "+e.path)
	}
	if len(want) == 0 || !slices.Equal(have, want) {
		t.Errorf("%d entries, ldconfig says %d", len(have), len(want))
	}
}

func TestMisled(t *testing.T) {
	before := []entry{{"libz.so.1", "/lib/x/libz.so.1"}, {"libc.so.6", "/lib/x/libc.so.6"}, {"libc.so.6", "/lib32/libc.so.6"}}
	known := func(name string) []string {
		if name == "libm.so.6" {
			return []string{"usr/lib/x/libm.so.6"}
		}
		return nil
	}
	for _, row := range []struct {
		now  []entry
		want string
	}{
		{before, ""},
		{before[:1], ""},
		{append([]entry{{"libnew.so", "/opt/libnew.so"}, {"libnew.so", "/opt/other/libnew.so"}}, before...), ""},
		{append([]entry{{"libz.so.1", "/usr/lib/x/libz.so.1"}}, before...), ""},
		{append([]entry{{"libz.so.1", "/usr/local/lib/libz.so.1"}}, before...), "libz.so.1 /usr/local/lib/libz.so.1"},
		{append(slices.Clone(before), entry{"libc.so.6", "/opt/libc.so.6"}), "libc.so.6 /opt/libc.so.6"},
		{[]entry{{"libm.so.6", "/lib/x/libm.so.6"}}, ""},
		{[]entry{{"libm.so.6", "/opt/libm.so.6"}}, "libm.so.6 /opt/libm.so.6"},
	} {
		name, at := misled(before, row.now, known)
		if got := strings.TrimSpace(fmt.Sprint(name, " ", at)); got != row.want {
			t.Errorf("%v: %s, want %s", row.now, got, row.want)
		}
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add(cacheOf(binary.LittleEndian, entry{"a", "b"}))
	f.Add(cacheOf(binary.BigEndian, entry{"a", "b"}))
	f.Add([]byte(oldMagic + "\x00\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseCache(data)
		if err != nil {
			if got != nil {
				t.Fatal(got)
			}
			return
		}
		again, err := parseCache(cacheOf(binary.LittleEndian, got...))
		if err != nil || !slices.Equal(got, again) {
			t.Fatalf("%v %v %v", got, again, err)
		}
	})
}
