package tree

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// yard is a root folder with things beside it that nothing may touch.
type yard struct{ base, root string }

func newYard(t testing.TB) yard {
	t.Helper()
	y := yard{base: t.TempDir()}
	y.root = filepath.Join(y.base, "in/root")
	grow(t, y.base, "in/root/", "canary/secret=the_canary", "canary/d/", "in/secret=the_canary", "secret=the_canary")
	return y
}

// around shows everything but the root folder: paths, modes, sizes, times,
// link counts, bytes.
func (y yard) around(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(y.base, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		if p == y.root {
			return fs.SkipDir
		}
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		fmt.Fprint(&b, p, st.Mode, st.Size, st.Mtim, st.Ctim, st.Nlink)
		if d.Type().IsRegular() {
			data, err := os.ReadFile(p)
			must(t, err)
			fmt.Fprintf(&b, "%x", sha256.Sum256(data))
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// escapes are tars that lead out of a root two folders below a canary, if what
// unpacks them lets them.
func escapes(y yard) map[string][]member {
	canary := filepath.Join(y.base, "canary")
	through := func(link ...member) []member {
		return append(link, fileOf("l/secret", "overwritten"), fileOf("l/new", "new"), dirOf("l/d/", 0o777), fileOf("l/.wh.secret", ""), fileOf("l/.wh..wh..opq", ""))
	}
	return map[string][]member{
		"dots":                      {fileOf("../../canary/secret", "overwritten")},
		"dots inside":               {dirOf("a/", 0o755), fileOf("a/../../../canary/new", "new")},
		"an absolute name":          {fileOf(canary+"/new", "new")},
		"through an absolute link":  through(linkOf("l", canary)),
		"through a relative link":   through(linkOf("l", "../../canary")),
		"through two links":         through(linkOf("m", "../.."), linkOf("l", "m/canary")),
		"a link over a folder":      through(dirOf("l/", 0o755), fileOf("l/x", "x"), linkOf("l", canary)),
		"a link over itself":        {linkOf("l", canary+"/secret"), fileOf("l", "overwritten")},
		"a link to a link":          {linkOf("l", "m"), linkOf("m", canary+"/secret"), fileOf("l", "overwritten")},
		"a hard link out":           {hardOf("h", "../../canary/secret"), fileOf("h", "overwritten")},
		"an absolute hard link":     {hardOf("h", canary+"/secret"), fileOf("h", "overwritten")},
		"a hard link through links": {linkOf("l", canary), hardOf("h", "l/secret"), member{h: tar.Header{Name: "h", Mode: 0o777}, body: "overwritten"}},
		"a hard link to a link":     {linkOf("l", canary+"/secret"), hardOf("h", "l"), fileOf("h", "overwritten")},
		"a mode through a link":     {linkOf("l", canary+"/secret"), hardOf("h", "l"), {h: tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "l", Mode: 0o777}}},
		"a folder over a link":      {linkOf("l", canary+"/d"), {h: tar.Header{Name: "l/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 5, Gid: 5}}},
		"a folder, then a link":     {dirOf("l/", 0o700), fileOf("l/f", ""), linkOf("l", canary)},
		"whiteout of dots":          {fileOf(".wh...", ""), fileOf("a/.wh...", ""), fileOf(".wh..", ""), fileOf(".wh.", "")},
		"opaque root above":         {fileOf("../.wh..wh..opq", "")},
		"whiteout through a link":   {linkOf("l", "../.."), fileOf("l/.wh.canary", ""), fileOf("l/.wh..wh..opq", "")},
		"our own attributes": {{h: tar.Header{Name: "f", Format: tar.FormatPAX, PAXRecords: map[string]string{
			"SCHILY.xattr." + OwnerAttr: "66:66", "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.user.overlay.redirect": "/x", "SCHILY.xattr.trusted.overlay.opaque": "y"}}}},
		"twice":                   {fileOf("f", "1"), fileOf("f", "2"), dirOf("f/", 0o755), fileOf("f/x", "x"), fileOf("f", "3")},
		"below a file":            {fileOf("f", "1"), fileOf("f/x", "x")},
		"device":                  {{h: tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 8}}, fileOf("sda", "overwritten")},
		"in a whiteout":           {fileOf("a/.wh.b/c", "c"), fileOf(".wh..wh.plnk/1", "")},
		"links in a circle":       {linkOf("a", "b"), linkOf("b", "a"), fileOf("a/x", "x")},
		"odd names":               {fileOf("new\nline", ""), fileOf(strings.Repeat("n", 255), ""), fileOf("\xff\xfe", ""), linkOf("-rf", "*")},
		"a name that is too long": {fileOf(strings.Repeat("n", 256), "")},
	}
}

// naive is how not to do it: what it changes shows that an escape is one.
func naive(root string, members []member) {
	for _, m := range members {
		p := root + "/" + m.h.Name // no cleaning, and the kernel follows everything
		if filepath.IsAbs(m.h.Name) {
			p = m.h.Name
		}
		dir, base := filepath.Split(p)
		if base == opaqueName {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				os.RemoveAll(dir + e.Name())
			}
			continue
		}
		if name, ok := strings.CutPrefix(base, whPrefix); ok {
			os.RemoveAll(dir + name)
			continue
		}
		switch m.h.Typeflag {
		case tar.TypeDir:
			os.MkdirAll(p, 0o755)
			os.Chmod(p, os.FileMode(m.h.Mode))
		case tar.TypeSymlink:
			os.RemoveAll(p)
			os.Symlink(m.h.Linkname, p)
		case tar.TypeLink:
			target := filepath.Join(root, m.h.Linkname)
			if filepath.IsAbs(m.h.Linkname) {
				target = m.h.Linkname
			}
			os.Link(target, p)
			os.Chmod(p, os.FileMode(m.h.Mode))
		case tar.TypeReg, 0:
			os.WriteFile(p, []byte(m.body), 0o644)
		}
	}
}

// harmless escapes reach nothing even when done naively: they are there for
// what they would do inside.
var harmless = map[string]bool{
	"our own attributes": true, "twice": true, "below a file": true, "device": true, "in a whiteout": true, "links in a circle": true, "odd names": true,
	"a name that is too long": true, "a folder, then a link": true,
}

func TestUnpack_StaysInside(t *testing.T) {
	ways := map[string]func(y yard, data []byte) error{
		"apply": func(y yard, data []byte) error {
			_, err := Unpack(bytes.NewReader(data), y.root, UnpackOptions{Apply: true})
			return err
		},
		"layer": func(y yard, data []byte) error {
			_, err := Unpack(bytes.NewReader(data), y.root, UnpackOptions{})
			return err
		},
		"add": func(y yard, data []byte) error {
			src := filepath.Join(y.root, "src")
			must(t, os.Mkdir(src, 0o755))
			must(t, os.WriteFile(filepath.Join(src, "t"), data, 0o644))
			matches, err := Select(src, Selection{Sources: []string{"t"}})
			must(t, err)
			_, err = Copy(y.root, CopyRequest{Root: src, Matches: matches, Dest: "/", Unpack: true})
			return err
		},
	}
	for name := range escapes(newYard(t)) {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			before := y.around(t)
			naive(y.root, escapes(y)[name])
			if reached := y.around(t) != before; reached == harmless[name] {
				t.Errorf("control: done naively it reaches something outside: %v", reached)
			}
			for way, unpack := range ways {
				y := newYard(t)
				before := y.around(t)
				err := unpack(y, archive(t, escapes(y)[name]...))
				if after := y.around(t); after != before {
					t.Errorf("%s (%v) changed something outside: before\n%s\nafter\n%s", way, err, before, after)
				}
				must(t, filepath.WalkDir(y.root, func(p string, d fs.DirEntry, err error) error {
					must(t, err)
					if data, err := os.ReadFile(p); err == nil && d.Type().IsRegular() && strings.Contains(string(data), "the_canary") {
						t.Errorf("%s: %s has the canary's bytes", way, p)
					}
					for _, a := range []string{OwnerAttr, opaqueAttr, "user.overlay.redirect", "trusted.overlay.opaque"} {
						if n, _ := unix.Lgetxattr(p, a, nil); n > 0 && name == "our own attributes" {
							t.Errorf("%s: %s has %s", way, p, a)
						}
					}
					return nil
				}))
			}
		})
	}
}

// TestCopy_StaysInside has links in the destination and in the source that lead
// out. "..", absolute targets and circles are in other tests.
func TestCopy_StaysInside(t *testing.T) {
	y := newYard(t)
	canary := filepath.Join(y.base, "canary")
	grow(t, y.root, "dst/a->"+canary, "dst/b->../../../canary", "dst/secret->"+canary+"/secret", "dst/d->"+canary+"/d", "src/f=new", "src/d/secret=new", "src/d/d/x=x",
		"src/l->"+canary+"/secret", "src/m->../../../canary/secret", "src/k->"+canary)
	before := y.around(t)
	dst, src := filepath.Join(y.root, "dst"), filepath.Join(y.root, "src")
	for _, source := range []string{"l", "m", "k", "k/secret", "k/*", "[lm]", "../../canary/secret", "d/../../../../canary/secret"} {
		var missing *NotFoundError
		if m, err := Select(src, Selection{Sources: []string{source}, Hash: true}); !errors.As(err, &missing) {
			t.Errorf("%s gave %s, %v", source, show(m), err)
		}
	}
	matches, err := Select(src, Selection{Sources: []string{"f"}})
	must(t, err)
	for _, dest := range []string{"/a/f", "/a/", "/b/f", "/b/", "/secret", "/a/../../x", "/../../canary/f"} {
		_, err := Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: dest})
		must(t, err)
	}
	matches, err = Select(src, Selection{Sources: []string{"d"}})
	must(t, err)
	if _, err := Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/"}); err == nil {
		t.Error("a folder went over a link")
	}
	must(t, Mkdir(dst, "/b/made", &Owner{5, 5}))
	if _, _, err := ResolveOwner(dst, "bob"); err != nil {
		t.Error(err)
	}
	if after := y.around(t); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	must(t, os.WriteFile(filepath.Join(dst, "a/f"), nil, 0o644))
	if y.around(t) == before {
		t.Error("control: the usual way does not lead out, so this shows nothing")
	}
}

// TestCopy_SwappedForALink has a folder become a link out between Select and
// Copy, and during it.
func TestCopy_SwappedForALink(t *testing.T) {
	y := newYard(t)
	grow(t, y.root, "src/d/secret=mine", "dst/d/secret=old")
	src, dst := filepath.Join(y.root, "src"), filepath.Join(y.root, "dst")
	matches, err := Select(src, Selection{Sources: []string{"d"}})
	must(t, err)
	before := y.around(t)
	must(t, os.RemoveAll(filepath.Join(src, "d")))
	must(t, os.Symlink(filepath.Join(y.base, "canary"), filepath.Join(src, "d")))
	if _, err := Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/n"}); err == nil {
		t.Error("a folder that became a link was copied")
	}
	must(t, os.Remove(filepath.Join(src, "d")))
	grow(t, src, "d/secret=mine")

	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // swaps both as fast as it can
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, dir := range []string{src, dst} {
				d := filepath.Join(dir, "d")
				if i%2 == 0 {
					_ = os.Rename(d, d+".away")
					_ = os.Symlink(filepath.Join(y.base, "canary"), d)
				} else {
					_ = os.Remove(d)
					_ = os.Rename(d+".away", d)
				}
			}
		}
	}()
	for range 500 {
		_, _ = Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/d"})
		_, _ = Select(src, Selection{Sources: []string{"d"}, Hash: true})
	}
	close(stop)
	<-done
	if after := y.around(t); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	for _, p := range []string{"d/secret", "d.away/secret"} {
		if fi, err := os.Lstat(filepath.Join(dst, filepath.Dir(p))); err != nil || !fi.IsDir() {
			continue // the link that it was swapped for
		}
		if data, err := os.ReadFile(filepath.Join(dst, p)); err == nil && strings.Contains(string(data), "canary") {
			t.Error("the canary's bytes were copied")
		}
	}
}

func TestUnpack_BrokenArchives(t *testing.T) {
	good := archive(t, fileOf("a", strings.Repeat("x", 2000)), fileOf("b", "y"))
	for name, data := range map[string][]byte{
		"cut in a file": good[:1500], "cut in a header": good[:700], "cut gzip": pack(t, good, "gzip")[:60], "cut zstd": pack(t, good, "zstd")[:30],
		"in a whiteout": archive(t, fileOf("a/.wh.b/c", "c")), "noise": bytes.Repeat([]byte("noise"), 1000),
	} {
		if _, err := Unpack(bytes.NewReader(data), t.TempDir(), UnpackOptions{}); err == nil {
			t.Errorf("%s was no error", name)
		}
	}
	for name, data := range map[string][]byte{"nothing": {}, "metadata of aufs": archive(t, fileOf(".wh..wh.plnk/1", ""), fileOf(".wh..wh.aufs", "")), "whole": good, "no end mark": good[:len(good)-1024]} {
		if _, err := Unpack(bytes.NewReader(data), t.TempDir(), UnpackOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnpack_OddTimes(t *testing.T) {
	for _, when := range []time.Time{time.Unix(-1<<40, 0), time.Unix(1<<40, 0), time.Unix(0, 0)} {
		m := fileOf("f", "")
		m.h.ModTime, m.h.Format = when, tar.FormatPAX
		if _, err := Unpack(bytes.NewReader(archive(t, m)), t.TempDir(), UnpackOptions{}); err != nil {
			t.Errorf("%v: %v", when, err)
		}
	}
}

// Deep in a tree the folders that are open are those about: to go from one of
// 3,000 nested folders to the next takes no way from the root.
func TestRooted_HoldsTheDeepest(t *testing.T) {
	root := t.TempDir()
	r, err := openRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	deep := strings.TrimSuffix(strings.Repeat("d/", 3*heldOpen), "/")
	for p := "d"; len(p) <= len(deep); p += "/d" {
		if err := r.mkdir(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.dir(deep); err != nil {
		t.Fatal(err)
	}
	if len(r.stack) > heldOpen {
		t.Errorf("%d folders are open", len(r.stack))
	}
	for p := deep; len(p) > len(deep)-heldOpen; p = path.Dir(p) {
		open := r.stack[len(r.stack)-1]
		if fd, err := r.dir(p); err != nil || fd != open.fd || open.path != p {
			t.Fatalf("the folder %d levels up was not open: %v", (len(deep)-len(p))/2, err)
		}
		r.pop()
	}
	// What is not open any more is found again.
	if err := r.mkdir("d/other"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.dir(deep); err != nil {
		t.Fatal(err)
	}
}
