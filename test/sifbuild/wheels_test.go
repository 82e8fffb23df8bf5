package sifbuild

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// makeWheel is a wheel with a module that has the project's name, and says that
// it requires others.
func makeWheel(t *testing.T, name, version, tag string, files map[string]string, requires ...string) []byte {
	t.Helper()
	base := strings.ReplaceAll(name, "-", "_")
	info := base + "-" + version + ".dist-info/"
	all := maps.Clone(files)
	if all == nil {
		all = map[string]string{}
	}
	all[base+"/__init__.py"] = fmt.Sprintf("version = %q\n", version)
	metadata := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	for _, r := range requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	all[info+"METADATA"] = metadata
	all[info+"WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + tag + "\n"
	record := info + "RECORD,,\n"
	for _, p := range slices.Sorted(maps.Keys(all)) {
		sum := sha256.Sum256([]byte(all[p]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", p, base64.RawURLEncoding.EncodeToString(sum[:]), len(all[p]))
	}
	all[info+"RECORD"] = record
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, p := range slices.Sorted(maps.Keys(all)) {
		// As it is, so that a test finds its bytes; with the length in front, which
		// uv needs.
		size := uint64(len(all[p]))
		w, err := z.CreateRaw(&zip.FileHeader{Name: p, Method: zip.Store, CRC32: crc32.ChecksumIEEE([]byte(all[p])), CompressedSize64: size, UncompressedSize64: size})
		if err == nil {
			_, err = w.Write([]byte(all[p]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// library is the header of a shared library for a machine.
func library(machine elf.Machine) string {
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	_ = binary.Write(&b, binary.LittleEndian, h)
	return b.String()
}

// wheelIndex is a package index on this node that counts what is fetched.
type wheelIndex struct {
	URL   string
	mu    sync.Mutex
	files map[string][]byte // by name
	sums  map[string]string // what it says of a file's digest, "" for nothing; by default the truth
	got   map[string]int
	hold  map[string]chan bool // a file that is sent by half: the channel gets true then
}

func newIndex(t *testing.T) *wheelIndex {
	x := &wheelIndex{files: map[string][]byte{}, sums: map[string]string{}, got: map[string]int{}, hold: map[string]chan bool{}}
	s := httptest.NewServer(x)
	t.Cleanup(s.Close)
	x.URL = s.URL + "/simple"
	return x
}

func (x *wheelIndex) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if name, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
		x.got[name]++
		if data, ok := x.files[name]; ok {
			if halfway := x.hold[name]; halfway != nil {
				w.Header().Set("Content-Length", fmt.Sprint(len(data)))
				w.Write(data[:len(data)/2])
				w.(http.Flusher).Flush()
				x.mu.Unlock()
				halfway <- true
				<-r.Context().Done()
				x.mu.Lock()
				return
			}
			w.Write(data)
			return
		}
	}
	if project, ok := strings.CutPrefix(r.URL.Path, "/simple/"); ok {
		page := ""
		for _, name := range slices.Sorted(maps.Keys(x.files)) {
			if strings.HasPrefix(name, strings.ReplaceAll(strings.TrimSuffix(project, "/"), "-", "_")+"-") {
				sum, said := x.sums[name]
				if !said {
					sum = fmt.Sprintf("#sha256=%x", sha256.Sum256(x.files[name]))
				}
				page += fmt.Sprintf("<a href=\"/files/%s%s\">%[1]s</a>\n", name, sum)
			}
		}
		if page != "" {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<!DOCTYPE html><html><body>\n"+page+"</body></html>")
			return
		}
	}
	http.NotFound(w, r)
}

// wheel puts one into the index, and gives its name.
func (x *wheelIndex) wheel(t *testing.T, name, version, tag string, files map[string]string, requires ...string) string {
	t.Helper()
	file := strings.ReplaceAll(name, "-", "_") + "-" + version + "-" + tag + ".whl"
	x.set(file, makeWheel(t, name, version, tag, files, requires...))
	return file
}

func (x *wheelIndex) set(file string, data []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.files[file] = data
}

func (x *wheelIndex) fetched(file string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.got[file]
}
