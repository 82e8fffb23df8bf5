package sif

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// packed is a squashfs of files, made with every kind of entry.
func packed(t testing.TB, dir string, files map[string]string, pseudo ...string) string {
	t.Helper()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for p, text := range files {
		p = filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			if err := os.Symlink(to, p); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "squashfs")
	if err := Pack(t.Context(), root, out, PackOptions{Processors: 1, MemMiB: 64, Pseudo: pseudo}); err != nil {
		t.Fatal(err)
	}
	return out
}

var meta = Meta{
	Arch:   "amd64",
	Config: v1.Config{Env: []string{"A=it's\n"}, Entrypoint: []string{"x"}, Labels: map[string]string{"l": "v"}},
	Labels: map[string]string{"m": "w"},
	Owners: []Owner{{Path: "b", UID: 5, GID: 6}, {Path: "a", Device: "c", Mode: 0o600, Major: 1, Minor: 3}},
	Report: json.RawMessage(`{"schema":"x"}`),
}

func TestWriteAndOpen(t *testing.T) {
	needPacker(t)
	dir := t.TempDir()
	squashfs := packed(t, dir, map[string]string{"bin/tool": "text", "etc/link": "-> ../bin/tool", "big": strings.Repeat("0123456789", 100_000)},
		"bin/tool m 4755 0 0", "dev d 1777 0 0", "dev/tty300 c 620 0 0 4 300", "dev/disk b 660 0 0 2050 3", "etc/secret f 600 0 0 echo s")
	one, two := filepath.Join(dir, "one.sif"), filepath.Join(dir, "two.sif")
	for _, p := range []string{one, two, two} { // a second time over the first
		if err := Write(p, squashfs, meta); err != nil {
			t.Fatal(err)
		}
	}
	a, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(two); string(a) != string(b) {
		t.Error("the same input gave two images")
	}

	img, err := Open(one)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	owners := []Owner{meta.Owners[1], meta.Owners[0]}
	if !reflect.DeepEqual(img.Config, meta.Config) || !reflect.DeepEqual(img.Owners, owners) || string(img.Report) != string(meta.Report) ||
		!img.HasConfig || !img.Made || img.Arch != "amd64" || img.Size != int64(len(a)) || !reflect.DeepEqual(img.Labels, map[string]string{"l": "v", "m": "w"}) {
		t.Errorf("read back: %+v", img)
	}
	if data, err := fs.ReadFile(img.FS(), "bin/tool"); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	for p, want := range map[string]string{"bin/tool": "urwxr-xr-x", "etc/link": "Lrwxrwxrwx", ".": "drwxr-xr-x"} {
		if e, err := img.Lookup(p); err != nil || e.Mode.String() != want || e.Path != p {
			t.Errorf("%s: %v %v", p, e.Mode, err)
		}
	}
	if e, err := img.Lookup("bin/tool"); err == nil {
		r, err := e.Open()
		if data, _ := io.ReadAll(r); err != nil || string(data) != "text" {
			t.Errorf("%q %v", data, err)
		}
	}
	if names, err := img.Names("etc"); err != nil || fmt.Sprint(names) != "[link secret]" {
		t.Errorf("%v %v", names, err)
	}
	for _, p := range []string{"none", "bin/none", "bin/tool/x", "etc/link/x"} {
		if _, err := img.Lookup(p); err != fs.ErrNotExist {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, p := range []string{"none", "bin/tool", "etc/link"} {
		if names, err := img.Names(p); err != fs.ErrNotExist {
			t.Errorf("%s: %v %v", p, names, err)
		}
	}
	want := map[string]string{
		".": "drwxr-xr-x", "big": "-rw-r--r--", "bin": "drwxr-xr-x", "bin/tool": "urwxr-xr-x", "dev": "dtrwxrwxrwx", "dev/disk": "Drw-rw---- 2050 3",
		"dev/tty300": "Dcrw--w---- 4 300", "etc": "drwxr-xr-x", "etc/link": "Lrwxrwxrwx -> ../bin/tool", "etc/secret": "-rw-------",
	}
	var order []string
	err = img.Walk(func(e Entry) error {
		order = append(order, e.Path)
		got := e.Mode.String()
		if e.Link != "" {
			got += " -> " + e.Link
		}
		if e.Mode&fs.ModeDevice != 0 {
			got += fmt.Sprintf(" %d %d", e.Major, e.Minor)
		}
		if got != want[e.Path] {
			t.Errorf("%s: %s, not %s", e.Path, got, want[e.Path])
		}
		delete(want, e.Path)
		if e.Path == "big" || e.Path == "bin/tool" {
			r, err := e.Open()
			if err != nil {
				return err
			}
			data, err := io.ReadAll(r)
			if err != nil || int64(len(data)) != e.Size {
				t.Errorf("%s: %d bytes, %v", e.Path, len(data), err)
			}
		}
		return nil
	})
	if err != nil || len(want) > 0 {
		t.Errorf("%v; not seen: %v in %q", err, want, order)
	}
}

func TestRuns(t *testing.T) {
	img := &Image{Path: "x.sif", Arch: "arm64"}
	if err := img.Runs("arm64"); err != nil {
		t.Error(err)
	}
	want := "x.sif is for arm64, this node is amd64: build it from its Dockerfile here, or run it on an arm64 node"
	if err := img.Runs("amd64"); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

func TestWrite_Refuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.sif")
	if err := Write(path, filepath.Join(dir, "none"), meta); err == nil || !strings.Contains(err.Error(), "none: no such file") {
		t.Error(err)
	}
	squashfs := filepath.Join(dir, "squashfs")
	if err := os.WriteFile(squashfs, []byte("hsqs"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := meta
	bad.Arch = "vax"
	if err := Write(path, squashfs, bad); err == nil || !strings.Contains(err.Error(), "vax") {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if err := Write(path, squashfs, meta); err != nil {
		t.Errorf("the control: %v", err)
	}
}

// other makes an image with sif/v2 alone: what Write does not make.
func other(t *testing.T, name string, parts ...sif.DescriptorInput) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := sif.CreateContainerAtPath(path, sif.OptCreateWithDescriptors(parts...))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.UnloadContainer(); err != nil {
		t.Fatal(err)
	}
	return path
}

func part(t *testing.T, fstype sif.FSType, kind sif.PartType, data string) sif.DescriptorInput {
	t.Helper()
	in, err := sif.NewDescriptorInput(sif.DataPartition, strings.NewReader(data), sif.OptPartitionMetadata(fstype, kind, "amd64"))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestOpen_Refuses(t *testing.T) {
	needPacker(t)
	dir := t.TempDir()
	squashfs := packed(t, dir, map[string]string{"a": strings.Repeat("x", 1000)})
	good := filepath.Join(dir, "good.sif")
	if err := Write(good, squashfs, meta); err != nil {
		t.Fatal(err)
	}
	img, err := Open(good)
	if err != nil {
		t.Fatalf("the control: %v", err)
	}
	img.Close()
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, data []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	json1, err := sif.NewDescriptorInput(sif.DataGenericJSON, strings.NewReader("{"), sif.OptObjectName(configObject))
	if err != nil {
		t.Fatal(err)
	}
	valid, err := os.ReadFile(squashfs)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, text string }{
		{filepath.Join(dir, "none.sif"), "no such file"},
		{dir, "is not a SIF image: it is not a regular file"},
		{file("empty", nil), "is not a SIF image: it is empty"},
		{file("text", []byte("FROM scratch\n")), "is not a SIF image"},
		{squashfs, "is not a SIF image: it is a bare squashfs"},
		{file("head", data[:100]), "is a damaged SIF image (reading global header"},
		{file("descriptors", data[:5000]), "is a damaged SIF image (reading descriptors"},
		{file("short", data[:len(data)-100]), "is cut off: its root should end at byte "},
		{file("many", binary.LittleEndian.AppendUint64(data[:88:88], 1<<40)), "it promises 1099511627776 objects"},
		{other(t, "nothing"), "without a root partition"},
		{other(t, "data", part(t, sif.FsSquash, sif.PartData, string(valid))), "without a root partition"},
		{other(t, "encrypted", part(t, sif.FsEncryptedSquashfs, sif.PartPrimSys, "x")), "is encrypted: make an image"},
		{other(t, "gocryptfs", part(t, sif.FsGocryptfsSquashfs, sif.PartPrimSys, "x")), "is encrypted: make an image"},
		{other(t, "ext3", part(t, sif.FsExt3, sif.PartPrimSys, "x")), "holds an ext3 file system"},
		{other(t, "raw", part(t, sif.FsRaw, sif.PartPrimSys, "x")), "holds a root of the type "},
		{other(t, "garbage", part(t, sif.FsSquash, sif.PartPrimSys, strings.Repeat("x", 500))), "is a damaged SIF image (its squashfs"},
		{other(t, "json", json1, part(t, sif.FsSquash, sif.PartPrimSys, string(valid))), "is a damaged SIF image (its oci-config.json"},
	} {
		img, err := Open(c.path)
		if err == nil || img != nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, not %q", filepath.Base(c.path), err, c.text)
		}
	}
}

// Whatever the bytes are, opening and walking an image ends, without a panic.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	squashfs := packed(f, dir, map[string]string{"a/b/c": "text", "a/l": "-> b"})
	path := filepath.Join(dir, "seed.sif")
	if err := Write(path, squashfs, meta); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(88), uint64(1<<40), uint16(0), byte(0))
	f.Add(uint16(len(seed)-4096), uint64(1), uint16(4096), byte(1))
	f.Fuzz(func(t *testing.T, at uint16, number uint64, at2 uint16, b byte) {
		data := slices.Clone(seed)
		copy(data[int(at)%len(data):], binary.LittleEndian.AppendUint64(nil, number))
		data[int(at2)%len(data)] ^= b
		p := filepath.Join(t.TempDir(), "x.sif")
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := Open(p)
		if err != nil {
			return
		}
		defer img.Close()
		_ = img.Walk(func(e Entry) error {
			if !fs.ValidPath(e.Path) {
				t.Errorf("path %q", e.Path)
			}
			if e.Mode.IsRegular() {
				if r, err := e.Open(); err == nil {
					_, _ = io.Copy(io.Discard, r)
				}
			}
			return nil
		})
	})
}

// Files with holes, wherever those are, are read whole.
func TestEntry_Holes(t *testing.T) {
	needPacker(t)
	const block = 128 << 10 // of mksquashfs
	text := strings.Repeat("content", block/7+1)[:block]
	hole := strings.Repeat("\x00", block)
	files := map[string]string{
		"empty": "", "hole": hole, "holes": hole + hole + hole, "short": hole[:100], "hole and a bit": hole + hole[:7],
		"last": text + hole, "last but for a bit": text + hole + "x", "first": hole + text, "middle": text + hole + text[:9],
		"two": text + hole + hole, "ends in zeros": text + text[:10] + hole[10:],
	}
	dir := t.TempDir()
	squashfs := packed(t, dir, files)
	image := filepath.Join(dir, "holes.sif")
	if err := Write(image, squashfs, Meta{Arch: "amd64"}); err != nil {
		t.Fatal(err)
	}
	img, err := Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	seen := 0
	err = img.Walk(func(e Entry) error {
		want, ok := files[e.Path]
		if !ok {
			return nil
		}
		seen++
		r, err := e.Open()
		if err != nil {
			return err
		}
		got, err := io.ReadAll(r)
		if err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v, want %d", e.Path, len(got), err, len(want))
		}
		return nil
	})
	if err != nil || seen != len(files) {
		t.Errorf("%d files, %v", seen, err)
	}
}
