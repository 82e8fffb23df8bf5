package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzUnpack unpacks what may be a tar in all three ways. Nothing beside the
// root may change, an error leaves no list, and a layer that unpacks can be
// packed, unpacked and packed again to the same bytes.
func FuzzUnpack(f *testing.F) {
	y := newYard(f)
	for _, members := range escapes(y) {
		f.Add(archive(f, members...))
	}
	for _, l := range layers {
		f.Add(archive(f, l...))
		f.Add(pack(f, archive(f, l...), "gzip"))
	}
	f.Add([]byte("BZh9"))
	limits := Limits{Bytes: 1 << 20, Entries: 200}
	f.Fuzz(func(t *testing.T, data []byte) {
		y := newYard(t)
		defer RemoveAll(y.base)
		grow(t, y.root, "old/f=f", "old/l->../..", "abs->"+filepath.Join(y.base, "canary"), "src/", "apply/", "layer/", "add/")
		must(t, os.WriteFile(filepath.Join(y.root, "src/t"), data, 0o644))
		before := y.around(t)
		layer := filepath.Join(y.root, "layer")
		specials, err := Unpack(bytes.NewReader(data), layer, UnpackOptions{Limits: limits})
		if err != nil && specials != nil {
			t.Errorf("an error, and a list: %v", specials)
		}
		if err == nil {
			roundTrip(t, layer, specials)
		}
		_, _ = Unpack(bytes.NewReader(data), y.root, UnpackOptions{Apply: true, Limits: limits})
		if matches, err := Select(filepath.Join(y.root, "src"), Selection{Sources: []string{"t*"}}); err == nil {
			_, _ = Copy(y.root, CopyRequest{Root: filepath.Join(y.root, "src"), Matches: matches, Dest: "/add/", Unpack: true, Limits: limits})
		}
		if after := y.around(t); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})
}

func roundTrip(t *testing.T, layer string, specials []Special) {
	var first, second bytes.Buffer
	if err := Pack(&first, layer, specials, PackOptions{}); err != nil {
		t.Fatalf("packing what was unpacked: %v", err)
	}
	again := t.TempDir()
	defer RemoveAll(again)
	got, err := Unpack(bytes.NewReader(first.Bytes()), again, UnpackOptions{})
	if err != nil {
		t.Fatalf("unpacking what was packed: %v", err)
	}
	if err := Pack(&second, again, got, PackOptions{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("packed again, it is\n%s\nand was\n%s", names(t, second.Bytes()), names(t, first.Bytes()))
	}
}

// FuzzSelect selects with any source and patterns, and copies what it gave. It
// reads and changes nothing outside, and what it names is there.
func FuzzSelect(f *testing.F) {
	for _, s := range []string{".", "*", "a[", "a/../../canary/secret", "abs/*", "l/*/..", "**", "src/./b", "\\*", "x/./*", "[^a]*", "/", "up/up/up/../*"} {
		f.Add(s, "*\n!src", "b\n!b/c", false)
		f.Add(s, "", "", true)
	}
	f.Fuzz(func(t *testing.T, source, ignore, exclude string, parents bool) {
		y := newYard(t)
		defer os.RemoveAll(y.base)
		grow(t, y.root, "src/a=1", "src/b/c=2", "src/abs->"+filepath.Join(y.base, "canary"), "src/l->../../canary", "src/up->..", "src/x/y/z=3", "dst/abs->"+y.base, "src/in->/b")
		before := y.around(t)
		root := filepath.Join(y.root, "src")
		split := func(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }) }
		matches, err := Select(root, Selection{Sources: []string{source}, Ignore: split(ignore), Exclude: split(exclude), Parents: parents, Hash: true})
		if err != nil && matches != nil {
			t.Errorf("an error, and %s", show(matches))
		}
		for _, m := range matches {
			for _, e := range append([]Entry{m.Entry}, m.Below...) {
				p := filepath.Join(root, m.Path, e.Path)
				fi, err := os.Lstat(p)
				if err != nil || !strings.HasPrefix(p, root) || typeOfInfo(fi) != e.Type {
					t.Errorf("%q has %+v: %v", source, e, err)
				}
			}
		}
		for _, dest := range []string{"/", "/abs/x", source} {
			_, err := Copy(filepath.Join(y.root, "dst"), CopyRequest{Root: root, Matches: matches, Dest: "/" + dest, Unpack: true})
			var changed *ChangedError
			if errors.As(err, &changed) {
				t.Errorf("nothing changed: %v", err)
			}
		}
		if after := y.around(t); after != before {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})
}

func typeOfInfo(fi fs.FileInfo) string {
	switch fi.Mode().Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "dir"
	case fs.ModeSymlink:
		return "link"
	}
	return fmt.Sprint(fi.Mode())
}

// FuzzAccounts reads user and group files of any image.
func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n", "root:root")
	f.Add(":::", "::", ":")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		root := t.TempDir()
		must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
		must(t, os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwd), 0o644))
		must(t, os.WriteFile(filepath.Join(root, "etc/group"), []byte(group), 0o644))
		if u, err := ResolveUser(root, spec); err != nil && (u.UID != 0 || u.Home != "") {
			t.Errorf("an error, and %v", u)
		}
		if o, ok, err := ResolveOwner(root, spec); err != nil && (ok || o != Owner{}) {
			t.Errorf("an error, and %v", o)
		}
	})
}
