package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fence/pkg/internal/sandboxtest"
)

// grow makes a tree from lines "PATH", with a suffix that says what it is:
// "d/" a folder, "f=TEXT" a file, "l->TARGET" a link, "h<OTHER" a hard link, "p|"
// a FIFO. " MODE" at the end sets permission bits.
func grow(t testing.TB, root string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, mode, moded := strings.Cut(line, " ")
		var perm os.FileMode
		if moded {
			var bits uint32
			if _, err := fmt.Sscanf(mode, "%o", &bits); err != nil {
				t.Fatal(err)
			}
			perm = os.FileMode(bits)
		}
		var err error
		p := filepath.Join(root, strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("=|><", r) })[0])
		p = strings.TrimSuffix(p, "-")
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		switch {
		case strings.Contains(name, "->"):
			_, target, _ := strings.Cut(name, "->")
			err = os.Symlink(target, p)
		case strings.Contains(name, "<"):
			_, other, _ := strings.Cut(name, "<")
			err = os.Link(filepath.Join(root, other), p)
		case strings.Contains(name, "="):
			_, text, _ := strings.Cut(name, "=")
			err = os.WriteFile(p, []byte(text), 0o644)
		case strings.HasSuffix(name, "|"):
			err = syscall.Mkfifo(p, 0o644)
		default:
			err = os.MkdirAll(p, 0o755)
		}
		must(t, err)
		if moded {
			must(t, syscall.Chmod(p, uint32(perm)))
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// show writes matches one per line: SOURCE > PATH (NAME): entries.
func show(matches []Match) string {
	var b strings.Builder
	for _, m := range matches {
		fmt.Fprintf(&b, "%s@%s", m.Path, m.Entry.Type)
		if m.Entry.Type != "dir" {
			fmt.Fprintf(&b, "(%s)", m.Name)
		}
		for _, e := range m.Below {
			mark := map[string]string{"dir": "/", "link": "->" + e.Link, "fifo": "|", "socket": "=", "char": "%"}[e.Type]
			if e.Way {
				mark += "~"
			}
			fmt.Fprintf(&b, " %s%s", e.Path, mark)
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

var contextLines = []string{
	"top=t", "src/a=1", "src/b/c=2", "src/lnk->a", "src/b/up->../a", "toplnk->top", "a1/x=1", "a2/x=2", "a3=3",
	"abs->/src/a", "host->/etc/hostname", "dangle->nowhere", "out->../../etc/passwd", "dirlnk->src/b", "far->abs",
	"loop1->loop2", "loop2->loop1", "q?=q", "empty/", "deep/er/est/f.txt=f", "deep/er/g.md=g", "new\nline=n", "fifo|",
}

func TestSelect(t *testing.T) {
	root := t.TempDir()
	grow(t, root, contextLines...)
	for _, c := range []struct {
		name    string
		sources []string
		ignore  []string
		exclude []string
		parents bool
		want    string
	}{
		{"file", []string{"top"}, nil, nil, false, "top@file(top)"},
		{"slashes and dots are nothing", []string{"/./src/../top/"}, nil, nil, false, "top@file(top)"},
		{"up stops at the root", []string{"../../top"}, nil, nil, false, "top@file(top)"},
		{"folder", []string{"src"}, nil, nil, false, "src@dir a b/ b/c b/up->../a lnk->a"},
		{"empty folder", []string{"empty"}, nil, nil, false, "empty@dir"},
		{"several in order", []string{"top", "a3"}, nil, nil, false, "top@file(top)\na3@file(a3)"},
		{"named link is followed", []string{"toplnk"}, nil, nil, false, "top@file(toplnk)"},
		{"absolute link begins at the root", []string{"abs"}, nil, nil, false, "src/a@file(abs)"},
		{"link to a link", []string{"far"}, nil, nil, false, "src/a@file(far)"},
		{"link to a folder", []string{"dirlnk"}, nil, nil, false, "src/b@dir c up->../a"},
		{"through a link", []string{"dirlnk/c"}, nil, nil, false, "src/b/c@file(c)"},
		{"up after a link is the link's target's parent", []string{"src/b/up"}, nil, nil, false, "src/a@file(up)"},
		{"pattern, sorted", []string{"a*"}, nil, nil, false, "a1@dir x\na2@dir x\na3@file(a3)\nsrc/a@file(abs)"},
		{"pattern follows links it finds", []string{"src/*"}, nil, nil, false, "src/a@file(a)\nsrc/b@dir c up->../a\nsrc/a@file(lnk)"},
		{"pattern below a followed link", []string{"dirlnk/*"}, nil, nil, false, "src/b/c@file(c)\nsrc/a@file(up)"},
		{"wildcard elements enter no link", []string{"dirl*/c"}, nil, nil, false, ""},
		{"elements one by one", []string{"*/x"}, nil, nil, false, "a1/x@file(x)\na2/x@file(x)"},
		{"a star is no slash", []string{"d*txt"}, nil, nil, false, ""},
		{"no match is no error", []string{"*.nope"}, nil, nil, false, ""},
		{"class", []string{"a[12]/x"}, nil, nil, false, "a1/x@file(x)\na2/x@file(x)"},
		{"escaped in a pattern", []string{`q\?*`}, nil, nil, false, "q?@file(q?)"},
		{"newline in a name", []string{"new*"}, nil, nil, false, "new\nline@file(new\nline)"},
		{"fifo", []string{"fif*"}, nil, nil, false, "fifo@fifo(fifo)"},
		{"ignore all but", []string{"."}, []string{"*", "!src/b"}, nil, false, ".@dir src/ src/b/ src/b/c src/b/up->../a"},
		{"ignore order", []string{"."}, []string{"*", "!src", "src/b"}, nil, false, ".@dir src/ src/a src/lnk->a"},
		{"ignore below an exception", []string{"src"}, []string{"src/**", "!src/b/c"}, nil, false, "src@dir b/ b/c"},
		{"ignored link target", []string{"a*"}, []string{"src", "abs"}, nil, false, "a1@dir x\na2@dir x\na3@file(a3)"},
		{"ignored folder brought back by a wildcard", []string{"deep"}, []string{"deep", "!**/*.md"}, nil, false, "deep@dir er/ er/g.md"},
		{"exception that matches nothing", []string{"*"}, []string{"*", "!deep/nope"}, nil, false, ""},
		{"exclude", []string{"src"}, nil, []string{"b"}, false, "src@dir a lnk->a"},
		{"exclude never hides a source", []string{"top", "a[3]"}, nil, []string{"top", "a3"}, false, "top@file(top)\na3@file(a3)"},
		{"exclude is relative to the source", []string{"src"}, nil, []string{"src/b", "c"}, false, "src@dir a b/ b/c b/up->../a lnk->a"},
		{"exclude with exception", []string{"src"}, nil, []string{"*", "!b/c"}, false, "src@dir b/~ b/c"},
		{"parents", []string{"deep/er/est/f.txt"}, nil, nil, true, ".@dir deep/~ deep/er/~ deep/er/est/~ deep/er/est/f.txt"},
		{"parents, folder", []string{"./src/b/"}, nil, nil, true, ".@dir src/~ src/b/ src/b/c src/b/up->../a"},
		{"parents, pattern", []string{"a*/x"}, nil, nil, true, ".@dir a1/~ a1/x a2/~ a2/x"},
		{"parents, stars", []string{"deep/**/*.md"}, nil, nil, true, ".@dir deep/~ deep/er/~ deep/er/g.md"},
		{"parents, pivot", []string{"deep/./er/g.md"}, nil, nil, true, "deep@dir er/~ er/g.md"},
		{"parents, pattern before the pivot", []string{"a?/./x"}, nil, nil, true, "a1@dir x\na2@dir x\na3@file(a3)"},
		{"parents keep a named link", []string{"src/lnk"}, nil, nil, true, ".@dir src/~ src/lnk->a"},
		{"parents, nothing matches", []string{"nope*"}, nil, nil, true, ".@dir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Select(root, Selection{Sources: c.sources, Ignore: c.ignore, Exclude: c.exclude, Parents: c.parents})
			if err != nil {
				t.Fatal(err)
			}
			if s := show(got); s != c.want {
				t.Errorf("got\n%s\nwant\n%s", s, c.want)
			}
		})
	}
}

func TestSelect_NotFound(t *testing.T) {
	root := t.TempDir()
	grow(t, root, contextLines...)
	for _, c := range []struct {
		source string
		ignore []string
		want   NotFoundError
	}{
		{"nope", nil, NotFoundError{Source: "nope"}},
		{"src/nope", nil, NotFoundError{Source: "src/nope"}},
		{"dirlnk/nope", nil, NotFoundError{Source: "dirlnk/nope"}},
		{"nope/*", nil, NotFoundError{Source: "nope/*"}},
		{"../etc/passwd", nil, NotFoundError{Source: "../etc/passwd"}},
		{"top", []string{"to*"}, NotFoundError{Source: "top", Ignored: true}},
		{"src/b/c", []string{"src"}, NotFoundError{Source: "src/b/c", Ignored: true}},
		{"toplnk", []string{"top"}, NotFoundError{Source: "toplnk", Ignored: true}},
		{"host", nil, NotFoundError{Source: "host", Link: "host"}},
		{"out", nil, NotFoundError{Source: "out", Link: "out"}},
		{"dangle", nil, NotFoundError{Source: "dangle", Link: "dangle"}},
		{"dangl*", nil, NotFoundError{Source: "dangl*", Link: "dangle"}},
		{"dangle/x", nil, NotFoundError{Source: "dangle/x", Link: "dangle"}},
	} {
		_, err := Select(root, Selection{Sources: []string{c.source}, Ignore: c.ignore})
		var e *NotFoundError
		if !errors.As(err, &e) || *e != c.want {
			t.Errorf("%s: got %#v (%v), want %#v", c.source, e, err, c.want)
		}
	}
	for _, source := range []string{"loop1", "a[", "top/x", "src/[a-"} {
		if got, err := Select(root, Selection{Sources: []string{source}}); err == nil {
			t.Errorf("%s gave %s", source, show(got))
		}
	}
	for what, s := range map[string]Selection{".dockerignore": {Ignore: []string{"ok", "[x"}}, "--exclude": {Exclude: []string{"ok", "[x"}}} {
		s.Sources = []string{"src"}
		if _, err := Select(root, s); err == nil || !strings.HasPrefix(err.Error(), what+`: "[x"`) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	for source, want := range map[string]NotFoundError{
		"deep/nope": {}, ".": {}, "dirlnk/c": {Link: "dirlnk"}, "a1/./x/y": {}, "deep/er": {Ignored: true},
	} {
		want.Source = source
		_, err := Select(root, Selection{Sources: []string{source}, Parents: true, Ignore: []string{"deep/er"}})
		var e *NotFoundError
		if !errors.As(err, &e) || *e != want {
			t.Errorf("--parents %s: got %#v (%v), want %#v", source, e, err, want)
		}
	}
}

func TestSelect_Entries(t *testing.T) {
	root := t.TempDir()
	grow(t, root, "d/ 1750", "d/f=hello 4711", "d/l->f", "d/p|")
	got, err := Select(root, Selection{Sources: []string{"d"}, Hash: true, Devices: []Special{{Path: "d/null", Device: "c", Mode: 0o20666, Major: 1, Minor: 3}}})
	must(t, err)
	sum := sha256.Sum256([]byte("hello"))
	want := []Entry{
		{Path: "f", Type: "file", Mode: 0o4711, Size: 5, SHA256: hex.EncodeToString(sum[:])},
		{Path: "l", Type: "link", Mode: 0o777, Link: "f"},
		{Path: "null", Type: "char", Mode: 0o666},
		{Path: "p", Type: "fifo", Mode: 0o644},
	}
	if len(got) != 1 || got[0].Entry != (Entry{Path: ".", Type: "dir", Mode: 0o1750}) || !slices.Equal(got[0].Below, want) {
		t.Errorf("got %+v", got)
	}
}

// TestSelect_Unreadable has an ordinary user, as at plan time.
func TestSelect_Unreadable(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		grow(t, root, "ok=1", "secret=2 0", "dir/f=f", "many/1=1", "many/2=2")
		must(t, os.Chmod(filepath.Join(root, "dir"), 0))
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "dir"), 0o700) })
		for _, c := range []struct {
			ignore []string
			err    string
		}{
			{[]string{"secret", "dir"}, ""},
			{[]string{"dir"}, "/secret: permission denied"},
			{[]string{"secret"}, "/dir: permission denied"},
			{[]string{"secret", "dir", "!dir/f"}, "/dir"},
		} {
			m, err := Select(root, Selection{Sources: []string{"."}, Ignore: c.ignore, Hash: true})
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%v: %s, %v", c.ignore, show(m), err)
			}
		}
		if _, err := Select(root, Selection{Sources: []string{"secret"}}); err != nil {
			t.Errorf("what a file is can be seen without reading it: %v", err)
		}
	})
}

func TestCopy_SocketsAreEmptyFiles(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	must(t, syscall.Mknod(filepath.Join(src, "s"), syscall.S_IFSOCK|0o750, 0))
	matches, err := Select(src, Selection{Sources: []string{"."}, Hash: true})
	must(t, err)
	if got := show(matches); got != ".@dir s=" {
		t.Errorf("got %s", got)
	}
	_, err = Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/x"})
	must(t, err)
	if got, want := list(t, dst, nil), lines("x/", "x/s= 0750"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
