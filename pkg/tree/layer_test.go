package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

// names lists what a tar has, one entry a line.
func names(t testing.TB, data []byte) string {
	t.Helper()
	var b strings.Builder
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return strings.TrimSuffix(b.String(), "\n")
		}
		must(t, err)
		fmt.Fprintf(&b, "%s %c %04o %d:%d", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid)
		if h.Linkname != "" {
			b.WriteString(" " + h.Linkname)
		}
		if h.Devmajor != 0 {
			fmt.Fprintf(&b, " %d,%d", h.Devmajor, h.Devminor)
		}
		b.WriteByte('\n')
	}
}

func packed(t testing.TB, layer string, specials []Special, o PackOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, Pack(&b, layer, specials, o))
	return b.Bytes()
}

func whiteoutAt(t testing.TB, p string) {
	t.Helper()
	must(t, syscall.Mknod(p, syscall.S_IFCHR, 0))
}

func opaqueAt(t testing.TB, p string) {
	t.Helper()
	must(t, unix.Setxattr(p, opaqueAttr, []byte("y"), 0))
}

func TestPack(t *testing.T) {
	layer := t.TempDir()
	grow(t, layer, "d/ 1750", "d/f=f 4711", "d/g<d/f", "d/l->../x", "d/p| 600", "o/n=n", "new\nline=1")
	whiteoutAt(t, filepath.Join(layer, "d/gone"))
	whiteoutAt(t, filepath.Join(layer, "d/null"))
	opaqueAt(t, filepath.Join(layer, "o"))
	must(t, unix.Setxattr(filepath.Join(layer, "o"), "user.overlay.impure", []byte("y"), 0))
	must(t, unix.Setxattr(filepath.Join(layer, "o/n"), "user.kept", []byte("v"), 0))
	must(t, SetOwner(filepath.Join(layer, "d/f"), Owner{5, 6}))
	must(t, os.Chmod(filepath.Join(layer, "d/f"), 0o711|os.ModeSetuid))
	specials := []Special{
		{Path: "d/l", Owner: Owner{7, 8}},
		{Path: "d/null", Owner: Owner{1, 2}, Device: "c", Mode: 0o666, Major: 1, Minor: 3},
		{Path: "d/f", Owner: Owner{99, 99}}, // a file's owner is its attribute
		{Path: "d/device"},                  // of a layer below, and gone
		{Path: "d/p"},                       // which was another's
	}
	data := packed(t, layer, specials, PackOptions{})
	want := lines("./ 5 0755 0:0",
		"d/ 5 1750 0:0", "d/.wh.device 0 0000 0:0", "d/f 0 4711 5:6", "d/g 1 4711 5:6 d/f", "d/.wh.gone 0 0000 0:0", "d/l 2 0777 7:8 ../x",
		"d/.wh.null 0 0000 0:0", "d/null 3 0666 1:2 1,3", "d/p 6 0600 0:0", "new\nline 0 0644 0:0", "o/ 5 0755 0:0", "o/.wh..wh..opq 0 0000 0:0", "o/n 0 0644 0:0")
	if got := names(t, data); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !bytes.Equal(data, packed(t, layer, specials, PackOptions{})) {
		t.Error("the same layer gave other bytes")
	}
	if bytes.Contains(data, []byte("user.overlay")) || bytes.Contains(data, []byte(OwnerAttr)) {
		t.Error("attributes that are ours are in the tar")
	}
	if !bytes.Contains(data, []byte("SCHILY.xattr.user.kept=v")) {
		t.Error("an attribute of the image is not in the tar")
	}
}

func TestPack_RefusesReservedNames(t *testing.T) {
	layer := t.TempDir()
	grow(t, layer, "d/.wh.x=")
	if err := Pack(io.Discard, layer, nil, PackOptions{}); err == nil || !strings.Contains(err.Error(), "d/.wh.x") {
		t.Errorf("got %v", err)
	}
}

// layers are three images' worth of rules, lowest first, and what is there when
// all are on each other.
var layers = [][]member{
	{
		{h: tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}},
		dirOf("a/", 0o700), fileOf("a/one", "1"), fileOf("a/two", "2"), dirOf("a/deep/", 0o755), fileOf("a/deep/x", "x"),
		fileOf("f", "f"), hardOf("g", "f"), linkOf("l", "a"), dirOf("t/", 0o1777), fileOf("t/old", "o"), dirOf("lib/", 0o755), linkOf("ll", "/lib"),
		{h: tar.Header{Name: "n", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 3, Uid: 5, Gid: 5}},
		{h: tar.Header{Name: "owned", Typeflag: tar.TypeSymlink, Linkname: "x", Uid: 5, Gid: 5}},
		{h: tar.Header{Name: "m", Typeflag: tar.TypeBlock, Mode: 0o600, Devmajor: 8, Devminor: 1}},
		dirOf("e/", 0o755), fileOf("e/e", "e"),
	},
	{
		fileOf("a/.wh.one", ""), fileOf("a/three", "3"), fileOf("a/deep/.wh..wh..opq", ""), fileOf("a/deep/y", "y"), fileOf(".wh.m", ""),
		fileOf("t/new", "n"), dirOf("l/", 0o755), fileOf("l/in", "in"), linkOf("owned", "y"), fileOf(".wh.e", ""), fileOf("e", "now a file"),
	},
	{
		fileOf(".wh.f", ""), dirOf("e/", 0o750), fileOf("e/new", "n"), {h: tar.Header{Name: "a/two", Mode: 0o600, Uid: 1, Gid: 2}, body: "22"}, fileOf(".wh.nothing", ""),
	},
}

var layersTogether = lines(
	"a/ 0700", "a/deep/", "a/deep/y=y", "a/three=3", "a/two=22 0600 1:2", "e/ 0750", "e/new=n", "g=f", "l/", "l/in=in",
	"lib/", "ll->/lib", "n%char 1,3 0666 5:5", "owned->y", "t/ 1777", "t/new=n", "t/old=o")

func TestUnpack_Applies(t *testing.T) {
	dir := t.TempDir()
	var specials []Special
	for i, l := range layers {
		data := archive(t, l...)
		if i == 1 {
			data = pack(t, data, "zstd")
		}
		var err error
		specials, err = Unpack(bytes.NewReader(data), dir, UnpackOptions{Apply: true, Specials: specials})
		must(t, err)
	}
	if got := list(t, dir, specials); got != layersTogether {
		t.Errorf("got\n%s\nwant\n%s", got, layersTogether)
	}
}

// unpackLayers unpacks each layer into a folder of its own.
func unpackLayers(t *testing.T) (dirs []string, specials []Special) {
	t.Helper()
	for _, l := range layers {
		dir := t.TempDir()
		must(t, os.Chmod(dir, 0o755))
		of, err := Unpack(bytes.NewReader(archive(t, l...)), dir, UnpackOptions{Below: append([]string{}, dirs...)})
		must(t, err)
		specials = MergeSpecials(specials, of)
		dirs = append(dirs, dir)
	}
	return dirs, specials
}

// asUser runs f as an ordinary user who is user 0 of a namespace with mounts
// of its own, as builds do.
func asUser(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	uid, gid := os.Geteuid(), os.Getegid()
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, Credential: &syscall.Credential{NoSetGroups: true}}
	if uid == 0 {
		uid, gid = sandboxtest.Nobody, sandboxtest.Nobody
	}
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	sandboxtest.Child{Root: true, Attr: attr}.Run(t, f)
}

// TestLayersInAnOverlay has the kernel say what layers mean: alone, and merged.
func TestLayersInAnOverlay(t *testing.T) {
	asUser(t, func(t *testing.T) {
		dirs, specials := unpackLayers(t)
		merged := filepath.Join(t.TempDir(), "merged")
		must(t, Merge(dirs[:1], dirs[1:], merged))
		all := filepath.Join(t.TempDir(), "all")
		must(t, Merge(nil, dirs, all))
		for name, lower := range map[string][]string{"each": dirs, "two merged": {dirs[0], merged}, "all merged": {all}} {
			t.Run(name, func(t *testing.T) {
				lower := slices.Clone(lower)
				top, upper := overlay(t, lower...)
				if got := list(t, top, specials); got != layersTogether {
					t.Errorf("got\n%s\nwant\n%s", got, layersTogether)
				}
				// What a step changes comes out as a layer that does the same elsewhere.
				must(t, os.RemoveAll(filepath.Join(top, "a/deep")))
				must(t, os.Mkdir(filepath.Join(top, "a/deep"), 0o755))
				must(t, os.WriteFile(filepath.Join(top, "a/deep/z"), []byte("z"), 0o600))
				must(t, os.Remove(filepath.Join(top, "g")))
				must(t, SetOwner(filepath.Join(top, "a/two"), Owner{3, 4}))
				must(t, os.Chmod(filepath.Join(top, "lib"), 0))
				changed := list(t, top, specials)
				flat := t.TempDir()
				var notes []Special
				for _, l := range layers {
					var err error
					notes, err = Unpack(bytes.NewReader(archive(t, l...)), flat, UnpackOptions{Apply: true, Specials: notes})
					must(t, err)
				}
				step := packed(t, upper, nil, PackOptions{Zstd: true})
				notes, err := Unpack(bytes.NewReader(step), flat, UnpackOptions{Apply: true, Specials: notes})
				must(t, err)
				if got := list(t, flat, notes); got != changed {
					t.Errorf("packed and applied it is\n%s\nand in the overlay\n%s", got, changed)
				}
				// And as a layer again, which is how steps are cached.
				cached := t.TempDir()
				of, err := Unpack(bytes.NewReader(step), cached, UnpackOptions{})
				must(t, err)
				again, _ := overlay(t, append(lower, cached)...)
				if got := list(t, again, MergeSpecials(specials, of)); got != changed {
					t.Errorf("packed and unpacked it is\n%s\nand was\n%s", got, changed)
				}
				var a, b unix.Stat_t
				must(t, errors.Join(unix.Stat(upper, &a), unix.Stat(cached, &b)))
				if a.Mode != b.Mode || a.Mtim != b.Mtim {
					t.Errorf("the top folder was %o %v and is %o %v", a.Mode, a.Mtim, b.Mode, b.Mtim)
				}
			})
		}
	})
}

func TestPackUnpack_RoundTrip(t *testing.T) {
	dirs, _ := unpackLayers(t)
	for i, dir := range dirs {
		var specials []Special
		if i == 0 {
			specials = []Special{{Path: "n", Device: "c", Mode: 0o666, Major: 1, Minor: 3}, {Path: "owned", Owner: Owner{5, 5}}}
		}
		data := packed(t, dir, specials, PackOptions{Zstd: i == 1})
		again := t.TempDir()
		must(t, os.Chmod(again, 0o755))
		got, err := Unpack(bytes.NewReader(data), again, UnpackOptions{})
		must(t, err)
		if a, b := list(t, dir, specials), list(t, again, got); a != b {
			t.Errorf("layer %d was\n%s\nand is\n%s", i, a, b)
		}
		if !bytes.Equal(data, packed(t, again, got, PackOptions{Zstd: i == 1})) {
			t.Errorf("layer %d: packed again it has other bytes", i)
		}
	}
}

func TestUnpack_ImpliedFoldersLookAsBelow(t *testing.T) {
	below, dir := t.TempDir(), t.TempDir()
	grow(t, below, "t/ 1777", "t/s/ 700")
	must(t, SetOwner(filepath.Join(below, "t/s"), Owner{5, 6}))
	_, err := Unpack(bytes.NewReader(archive(t, fileOf("t/s/new/f", "f"))), dir, UnpackOptions{Below: []string{below}})
	must(t, err)
	if got, want := list(t, dir, nil), lines("t/ 1777", "t/s/ 0700 5:6", "t/s/new/", "t/s/new/f=f"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestUnpack_Limits(t *testing.T) {
	deep := strings.Repeat("d/", 600)
	big := tar.Header{Name: "big", Size: 100 << 30, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	var claim bytes.Buffer
	must(t, tar.NewWriter(&claim).WriteHeader(&big))
	for _, c := range []struct {
		name   string
		data   []byte
		limits Limits
		limit  bool
	}{
		{"100 GB said, nothing there", claim.Bytes(), Limits{}, true},
		{"bytes", archive(t, fileOf("a", "12345"), fileOf("b", "12345")), Limits{Bytes: 9}, true},
		{"bytes that fit", archive(t, fileOf("a", "12345"), fileOf("b", "12345")), Limits{Bytes: 10}, false},
		{"entries", archive(t, fileOf("a", ""), fileOf("b", "")), Limits{Entries: 1}, true},
		{"entries that fit", archive(t, fileOf("a", ""), fileOf("b", "")), Limits{Entries: 2}, false},
		{"a long path", archive(t, fileOf(deep+"f", "")), Limits{Path: 1200}, true},
		{"a long path that fits", archive(t, fileOf(deep+"f", "")), Limits{}, false},
		{"a long link", archive(t, linkOf("l", strings.Repeat("x", 5000))), Limits{}, true},
		{"zeros packed small", pack(t, archive(t, fileOf("z", strings.Repeat("\x00", 8<<20))), "zstd"), Limits{Bytes: 1 << 20}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Unpack(bytes.NewReader(c.data), dir, UnpackOptions{Limits: c.limits})
			var limit *LimitError
			if errors.As(err, &limit) != c.limit || !c.limit && err != nil {
				t.Errorf("got %v", err)
			}
			must(t, RemoveAll(dir))
		})
	}
}

func TestMergeSpecials(t *testing.T) {
	one := []Special{{Path: "b", Owner: Owner{1, 1}}, {Path: "a", Device: "c"}, {Path: "d/x", Device: "c"}, {Path: "d/y/z", Device: "b"}, {Path: "d.x", Device: "c"}, {Path: "dd", Device: "c"}}
	two := []Special{{Path: "b"}, {Path: "c", Owner: Owner{2, 2}}, {Path: "d"}, {Path: "d/new", Device: "c"}, {Path: "a", Owner: Owner{3, 3}, Device: "c"}}
	want := []Special{{Path: "a", Owner: Owner{3, 3}, Device: "c"}, {Path: "c", Owner: Owner{2, 2}}, {Path: "d.x", Device: "c"}, {Path: "d/new", Device: "c"}, {Path: "dd", Device: "c"}}
	if got := MergeSpecials(one, two, nil, []Special{{Path: "none"}}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRemoveAll(t *testing.T) {
	asUser(t, func(t *testing.T) { // whoever is user 0 of a namespace may chmod, and does not have to
		testRemoveAll(t)
	})
}

func TestRemoveAll_AsAnOrdinaryUser(t *testing.T) { sandboxtest.Run(t, testRemoveAll) }

func testRemoveAll(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "dir")
	grow(t, base, "canary/f=f", "dir/a/b/c=c", "dir/l->../canary", "dir/deny/x/y=y", "dir/p|")
	must(t, os.Chmod(filepath.Join(dir, "deny/x"), 0))
	must(t, os.Chmod(filepath.Join(dir, "deny"), 0))
	must(t, os.Chmod(filepath.Join(dir, "a"), 0o555))
	if os.Geteuid() != 0 {
		if err := os.RemoveAll(dir); err == nil {
			t.Error("the usual way works here: this shows nothing")
		}
	}
	must(t, RemoveAll(dir))
	must(t, RemoveAll(dir)) // there is nothing any more
	must(t, RemoveAll(filepath.Join(base, "nowhere/at/all")))
	if got := list(t, base, nil); got != lines("canary/", "canary/f=f") {
		t.Errorf("left is\n%s", got)
	}
	// Folders nested deeper than a path can say.
	must(t, os.Mkdir(dir, 0o755))
	at, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	for range 3000 {
		must(t, unix.Mkdirat(at, "down", 0o755))
		next, err := unix.Openat(at, "down", unix.O_PATH, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	must(t, RemoveAll(dir))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	// A link is removed, not followed.
	must(t, os.Symlink("canary", dir))
	must(t, RemoveAll(dir))
	if _, err := os.Stat(filepath.Join(base, "canary/f")); err != nil {
		t.Error(err)
	}
}
