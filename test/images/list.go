package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Entry is one path of a filesystem, wherever that is kept.
type Entry struct {
	Path  string // with or without a leading slash; the root is "/" or "."
	Type  string // file, dir, link, fifo, char, block or socket
	Mode  uint32 // permission bits, setuid, setgid and sticky as in stat(2)
	UID   int
	GID   int
	Link  string // target of a link, as written
	Major uint32 // of char and block
	Minor uint32
	MTime time.Time
	// Inode tells hard links: files with the same one, not "", are one file.
	Inode string
	// Content of a file; it is read before the next entry is asked for.
	Content io.Reader
}

// Tree is a filesystem by path; every path begins with a slash and "/" is
// always there.
type Tree map[string]node

type node struct {
	kind         string
	mode         uint32
	uid, gid     int
	content      string // of a file, as want has it
	link         string
	major, minor uint32
	mtime        int64
	inode        string
	same         string // first path of the same inode, unless that is this one
}

const (
	longest    = 400 // bytes of text that are shown whole
	programTag = "<busybox>"
)

// Empty is the filesystem of scratch.
func Empty() Tree { return Tree{"/": {kind: "dir", mode: 0o755}} }

// Read reads a filesystem. A path that is given twice is an error, and so is
// one that is not clean.
func Read(entries iter.Seq2[Entry, error]) (Tree, error) {
	t := Empty()
	given := map[string]bool{}
	for e, err := range entries {
		if err != nil {
			return nil, err
		}
		name := path.Clean("/" + e.Path)
		if given[name] {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		given[name] = true
		n, err := read(e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t[name] = n
	}
	t.findLinks()
	return t, nil
}

func read(e Entry) (node, error) {
	n := node{kind: e.Type, mode: e.Mode & 0o7777, uid: e.UID, gid: e.GID, mtime: e.MTime.Unix()}
	switch e.Type {
	case "dir", "fifo", "socket":
	case "link":
		n.link, n.mode = e.Link, 0o777
	case "char", "block":
		n.major, n.minor = e.Major, e.Minor
	case "file":
		n.inode = e.Inode
		if e.Content == nil {
			return node{}, errors.New("a file without content")
		}
		var err error
		n.content, err = describe(e.Content)
		return n, err
	default:
		return node{}, fmt.Errorf("a %q is nothing that an image holds", e.Type)
	}
	return n, nil
}

// describe is the content of a file as want has it.
func describe(r io.Reader) (string, error) {
	sum := sha256.New()
	var head bytes.Buffer
	size, err := io.Copy(sum, io.TeeReader(r, &limited{&head, longest + 1}))
	if err != nil {
		return "", err
	}
	if size <= longest && isText(head.Bytes()) {
		return strconv.Quote(head.String()), nil
	}
	digest := sum.Sum(nil)
	if program, err := busyboxDigest(); err == nil && bytes.Equal(program, digest) {
		return programTag, nil
	}
	return fmt.Sprintf("%d sha256:%s", size, hex.EncodeToString(digest)[:12]), nil
}

// limited keeps the first bytes that are written to it and accepts the rest.
type limited struct {
	to   *bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	l.to.Write(p[:n])
	return len(p), nil
}

func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	for _, r := range string(b) {
		if !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r) {
			return false
		}
	}
	return true
}

// findLinks fills in same.
func (t Tree) findLinks() {
	first := map[string]string{}
	for _, name := range t.paths() {
		n := t[name]
		n.same = ""
		if n.inode != "" {
			if other, ok := first[n.inode]; ok {
				n.same = other
			} else {
				first[n.inode] = name
			}
		}
		t[name] = n
	}
}

func (t Tree) paths() []string {
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Diff says in which paths t differs from base, as the lines of want, each with
// a newline. Times count only if asked for, and only those of files.
func Diff(base, t Tree, mtimes bool) string {
	names := base.paths()
	for name := range t {
		if _, ok := base[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		before, was := base[name]
		after, is := t[name]
		switch {
		case !is:
			// Where there is no folder any more, nothing is in it.
			if t[path.Dir(name)].kind == "dir" {
				fmt.Fprintf(&b, "gone %s\n", quote(name))
			}
		case !was || before.line(name, mtimes) != after.line(name, mtimes):
			fmt.Fprintln(&b, after.line(name, mtimes))
		}
	}
	return b.String()
}

func (n node) line(name string, mtimes bool) string {
	var b strings.Builder
	b.WriteString(n.kind)
	if n.kind != "link" {
		fmt.Fprintf(&b, " %04o", n.mode)
	}
	fmt.Fprintf(&b, " %d:%d %s", n.uid, n.gid, quote(name))
	switch n.kind {
	case "file":
		b.WriteString(" " + n.content)
	case "link":
		b.WriteString(" -> " + quote(n.link))
	case "char", "block":
		fmt.Fprintf(&b, " %d,%d", n.major, n.minor)
	}
	if n.same != "" {
		b.WriteString(" = " + quote(n.same))
	}
	if mtimes && n.kind == "file" {
		fmt.Fprintf(&b, " mtime=%d", n.mtime)
	}
	return b.String()
}

// quote leaves a plain path as it is.
func quote(s string) string {
	for _, r := range s {
		if r <= ' ' || r > '~' || r == '"' || r == '\\' || r == '`' {
			return strconv.Quote(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

// DiffLines are the lines that one text has and the other has not.
func DiffLines(want, got string) string {
	in := func(text string) map[string]bool {
		m := map[string]bool{}
		for line := range strings.Lines(text) {
			m[line] = true
		}
		return m
	}
	w, g := in(want), in(got)
	var out strings.Builder
	for line := range strings.Lines(want) {
		if !g[line] {
			out.WriteString("- " + line)
		}
	}
	for line := range strings.Lines(got) {
		if !w[line] {
			out.WriteString("+ " + line)
		}
	}
	return out.String()
}
