package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func walk(entries ...Entry) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func file(path, text string) Entry {
	return Entry{Path: path, Type: "file", Mode: 0o644, Content: strings.NewReader(text)}
}

func TestDiff(t *testing.T) {
	base := []Entry{
		file("same", "s"), file("changed", "old"), file("gone", ""),
		{Path: "dir", Type: "dir", Mode: 0o755}, file("dir/f", ""),
		{Path: "was", Type: "dir", Mode: 0o755}, file("was/f", ""), file("touched", "t"),
	}
	for i := range base {
		base[i].MTime = time.Unix(1, 0)
	}
	before, err := Read(walk(base...))
	if err != nil {
		t.Fatal(err)
	}
	touched := file("touched", "t")
	touched.MTime = time.Unix(7, 0)
	same := file("/same", "s")
	same.MTime = time.Unix(1, 0)
	hard := func(e Entry, inode string) Entry { e.Inode = inode; return e }
	after, err := Read(walk(
		Entry{Path: ".", Type: "dir", Mode: 0o711}, same, file("./changed", "new\n"), touched,
		Entry{Path: "dir", Type: "link", Link: "a b"},
		Entry{Path: "was", Type: "file", Mode: 0o4755, UID: 5, GID: 6, Content: strings.NewReader(strings.Repeat("x", 401))},
		file("long", strings.Repeat("\"", 400)), file("binary", "\x00"), file("esc", "\x1b[m"), file("latin", "\xe4"),
		hard(file("h2", "h"), "1"), hard(file("h1", "h"), "1"), hard(file("h0", "h"), "2"),
		Entry{Path: "p", Type: "fifo", Mode: 0o600}, Entry{Path: "c", Type: "char", Mode: 0o666, Major: 1, Minor: 3},
		Entry{Path: "b", Type: "block", Mode: 0o660, Major: 7}, file("a\nb ü", ""), Entry{Path: "l", Type: "link", Link: ""},
	))
	if err != nil {
		t.Fatal(err)
	}
	want := `dir 0711 0:0 /
file 0644 0:0 "/a\nb ü" ""
block 0660 0:0 /b 7,0
file 0644 0:0 /binary 1 sha256:6e340b9cffb3
char 0666 0:0 /c 1,3
file 0644 0:0 /changed "new\n"
link 0:0 /dir -> "a b"
file 0644 0:0 /esc 3 sha256:aacbb7d44293
gone /gone
file 0644 0:0 /h0 "h"
file 0644 0:0 /h1 "h"
file 0644 0:0 /h2 "h" = /h1
link 0:0 /l -> ""
file 0644 0:0 /latin 1 sha256:5e1effe9b7ba
file 0644 0:0 /long "` + strings.Repeat(`\"`, 400) + `"
fifo 0600 0:0 /p
file 4755 5:6 /was 401 sha256:257d2e9bd85b
`
	if got := Diff(before, after, false); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Diff(before, before, true); got != "" {
		t.Errorf("a tree differs from itself in %s", got)
	}
	got := Diff(before, after, true)
	if !strings.Contains(got, "\nfile 0644 0:0 /touched \"t\" mtime=7\n") || strings.Contains(got, "/same") || strings.Contains(got, "dir 0711 0:0 / mtime") {
		t.Errorf("with times:\n%s", got)
	}
	// What is below a folder that is gone is not said again.
	less, err := Read(walk())
	if err != nil {
		t.Fatal(err)
	}
	if got := Diff(before, less, false); got != "gone /changed\ngone /dir\ngone /gone\ngone /same\ngone /touched\ngone /was\n" {
		t.Errorf("everything gone:\n%s", got)
	}
}

func TestReadRefuses(t *testing.T) {
	broken := func(yield func(Entry, error) bool) { yield(Entry{}, errors.New("broken")) }
	for words, entries := range map[string]iter.Seq2[Entry, error]{
		"broken":     broken,
		"twice":      walk(file("a", ""), file("/a", "")),
		"content":    walk(Entry{Path: "a", Type: "file"}),
		`a "door"`:   walk(Entry{Path: "a", Type: "door"}),
		"unreadable": walk(Entry{Path: "a", Type: "file", Content: io.MultiReader(strings.NewReader("x"), unreadable{})}),
	} {
		if tree, err := Read(entries); err == nil || tree != nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, wanted one with %q", err, words)
		}
	}
}

type unreadable struct{}

func (unreadable) Read([]byte) (int, error) { return 0, errors.New("unreadable") }

func TestReadImage(t *testing.T) {
	type h = tar.Header
	dir := func(name string, mode int64) h { return h{Name: name, Typeflag: tar.TypeDir, Mode: mode} }
	reg := func(name string) h { return h{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	link := func(name, to string) h { return h{Name: name, Typeflag: tar.TypeLink, Linkname: to} }
	for name, x := range map[string]struct {
		layers [][]h
		want   string
	}{
		"parents are made": {[][]h{{reg("a/b/f")}},
			"dir 0755 0:0 /a\ndir 0755 0:0 /a/b\nfile 0644 0:0 /a/b/f \"\"\n"},
		"a whiteout takes away what is below it": {[][]h{{dir("a", 0o700), reg("a/f"), reg("ab")}, {reg(".wh.a")}},
			"file 0644 0:0 /ab \"\"\n"},
		"a whiteout spares what its own layer has": {[][]h{{reg("a/f")}, {reg("a/g"), reg(".wh.a"), reg("a/h")}},
			"dir 0755 0:0 /a\nfile 0644 0:0 /a/g \"\"\nfile 0644 0:0 /a/h \"\"\n"},
		"an opaque folder has only what is new": {[][]h{{reg("a/f"), reg("b")}, {dir("a", 0o711), reg("a/g"), reg("a/.wh..wh..opq")}},
			"dir 0711 0:0 /a\nfile 0644 0:0 /a/g \"\"\nfile 0644 0:0 /b \"\"\n"},
		"a folder over a folder keeps what is in it": {[][]h{{reg("a/f")}, {dir("a/", 0o700)}},
			"dir 0700 0:0 /a\nfile 0644 0:0 /a/f \"\"\n"},
		"anything else over a folder does not": {[][]h{{reg("a/f")}, {reg("a")}}, "file 0644 0:0 /a \"\"\n"},
		"hard links, also to the layer below": {[][]h{{reg("./b")}, {link("a", "b"), link("c", "/a")}},
			"file 0644 0:0 /a \"\"\nfile 0644 0:0 /b \"\" = /a\nfile 0644 0:0 /c \"\" = /a\n"},
		"a file anew is no hard link any more": {[][]h{{reg("a"), link("b", "a")}, {reg("a")}},
			"file 0644 0:0 /a \"\"\nfile 0644 0:0 /b \"\"\n"},
		"the root itself": {[][]h{{dir("./", 0o700)}}, "dir 0700 0:0 /\n"},
	} {
		got, err := ReadImage(imageOf(t, x.layers))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if lines := Diff(Empty(), got, false); lines != x.want {
			t.Errorf("%s: got\n%swant\n%s", name, lines, x.want)
		}
	}
	if _, err := ReadImage(imageOf(t, [][]h{{link("a", "b")}})); err == nil || !strings.Contains(err.Error(), "/a is a hard link") {
		t.Errorf("a hard link to nothing: %v", err)
	}
}

func imageOf(t *testing.T, layers [][]tar.Header) v1.Image {
	t.Helper()
	image := empty.Image
	for _, headers := range layers {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	return image
}
