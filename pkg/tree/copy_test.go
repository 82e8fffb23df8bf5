package tree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// list shows a tree, one path a line: NAME, mark and contents, " MODE" where it
// is not 0755 for folders and 0644 for files, " UID:GID" where it is not 0:0,
// " = OTHER" for a second name of a file.
func list(t testing.TB, root string, specials []Special) string {
	t.Helper()
	var b strings.Builder
	first := map[uint64]string{}
	for o, err := range Walk(root, specials) {
		must(t, err)
		usual, same := uint32(0o644), ""
		switch o.Type {
		case "dir":
			fmt.Fprintf(&b, "%s/", o.Path)
			usual = 0o755
		case "file":
			data, err := os.ReadFile(filepath.Join(root, o.Path))
			must(t, err)
			fmt.Fprintf(&b, "%s=%s", o.Path, data)
			var st syscall.Stat_t
			must(t, syscall.Lstat(filepath.Join(root, o.Path), &st))
			if other, ok := first[st.Ino]; ok {
				same = " = " + other
			} else {
				first[st.Ino] = o.Path
			}
		case "link":
			fmt.Fprintf(&b, "%s->%s", o.Path, o.Link)
			usual = 0o777
		case "fifo":
			fmt.Fprintf(&b, "%s|", o.Path)
		default:
			fmt.Fprintf(&b, "%s%%%s %d,%d", o.Path, o.Type, o.Major, o.Minor)
		}
		if o.Mode != usual {
			fmt.Fprintf(&b, " %04o", o.Mode)
		}
		if o.Owner != (Owner{}) {
			fmt.Fprintf(&b, " %v", o.Owner)
		}
		b.WriteString(same + "\n")
	}
	_, rest, _ := strings.Cut(b.String(), "\n") // without the root
	return strings.TrimSuffix(rest, "\n")
}

func lines(l ...string) string { return strings.Join(l, "\n") }

// copyRow is one copy: what is there, what is copied, what comes out.
type copyRow struct {
	name     string
	src, dst []string
	sources  []string
	sel      Selection
	req      CopyRequest
	want     string
	err      string // instead of want
}

var copyRows = []copyRow{
	{name: "file to a name", src: []string{"f=1 4711"}, sources: []string{"f"}, req: CopyRequest{Dest: "/a/b/c"}, want: lines("a/", "a/b/", "a/b/c=1 4711")},
	{name: "file to a folder by its slash", src: []string{"f=1"}, sources: []string{"f"}, req: CopyRequest{Dest: "/a/b/"}, want: lines("a/", "a/b/", "a/b/f=1")},
	{name: "file to a folder that is there", src: []string{"f=1"}, dst: []string{"a/ 700"}, sources: []string{"f"}, req: CopyRequest{Dest: "/a"}, want: lines("a/ 0700", "a/f=1")},
	{name: "a link's name, its target's bytes", src: []string{"f=1", "l->f"}, sources: []string{"l"}, req: CopyRequest{Dest: "/a/"}, want: lines("a/", "a/l=1")},
	{
		name: "a folder's contents, links as they are", src: []string{"d/ 700", "d/s/ 2750", "d/s/f=1", "d/l->/etc/passwd", "d/p| 600"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"},
		want: lines("x/", "x/l->/etc/passwd", "x/p| 0600", "x/s/ 2750", "x/s/f=1"),
	},
	{
		name: "merged into a folder", src: []string{"d/s/ 750", "d/f=new"}, dst: []string{"x/ 700", "x/s/ 700", "x/f=old 600", "x/k=k"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x/"},
		want: lines("x/ 0700", "x/f=new", "x/k=k", "x/s/ 0750"),
	},
	{name: "several, the last wins a name", src: []string{"a=1", "b=2"}, sources: []string{"a", "b"}, req: CopyRequest{Dest: "/x"}, want: "x=2"},
	{name: "destination through links", src: []string{"f=1"}, dst: []string{"t/", "l->/t", "up->../../../new"}, sources: []string{"f"}, req: CopyRequest{Dest: "/l/x"}, want: lines("l->/t", "t/", "t/x=1", "up->../../../new")},
	{name: "destination that is a dangling link", src: []string{"f=1"}, dst: []string{"up->../../../new/x"}, sources: []string{"f"}, req: CopyRequest{Dest: "/up"}, want: lines("up->../../../new/x", "new/", "new/x=1")},
	{name: "a link below the destination is replaced", src: []string{"d/a=1"}, dst: []string{"k=k", "x/a->/k"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"}, want: lines("k=k", "x/", "x/a=1")},
	{name: "a second name of the old file keeps its bytes", src: []string{"f=new"}, dst: []string{"x=old", "y<x"}, sources: []string{"f"}, req: CopyRequest{Dest: "/x"}, want: lines("x=new", "y=old")},
	{name: "hard links stay within a match", src: []string{"d/a=1", "d/b<d/a", "c<d/a"}, sources: []string{"d", "c"}, req: CopyRequest{Dest: "/x/"}, want: lines("x/", "x/a=1", "x/b=1 = x/a", "x/c=1")},
	{name: "owner", src: []string{"d/s/f=1", "d/l->f"}, sources: []string{"d"}, req: CopyRequest{Dest: "/n/x", Owner: &Owner{5, 6}}, want: lines("n/ 5:6", "n/x/ 5:6", "n/x/l->f 5:6", "n/x/s/ 5:6", "n/x/s/f=1 5:6")},
	{name: "octal chmod, for folders and new parents, not for links", src: []string{"d/s/", "d/f=1", "d/l->f"}, sources: []string{"d"}, req: CopyRequest{Dest: "/n/x", Chmod: "4640"}, want: lines("n/ 0640", "n/x/ 0640", "n/x/f=1 4640", "n/x/l->f", "n/x/s/ 4640")},
	{name: "symbolic chmod, not for new parents", src: []string{"d/s/ 700", "d/f=1"}, sources: []string{"d"}, req: CopyRequest{Dest: "/n", Chmod: "go-r,u+s,a+X"}, want: lines("n/", "n/f=1 4600", "n/s/ 4711")},
	{name: "chmod that is none", src: []string{"f=1"}, sources: []string{"f"}, req: CopyRequest{Dest: "/n", Chmod: "rwx"}, err: "--chmod=rwx"},
	{name: "chmod that is too much", src: []string{"f=1"}, sources: []string{"f"}, req: CopyRequest{Dest: "/n", Chmod: "17777"}, err: "at most 7777"},
	{name: "a folder that is only a way", src: []string{"d/b/ 750", "d/b/x=x", "d/b/y=y"}, dst: []string{"n/b/ 700"}, sources: []string{"d"}, sel: Selection{Exclude: []string{"*", "!b/x"}}, req: CopyRequest{Dest: "/n", Chmod: "711", Owner: &Owner{5, 6}}, want: lines("n/", "n/b/ 0750", "n/b/x=x 0711 5:6")},
	{name: "parents", src: []string{"a/b/ 700", "a/b/f=1", "a/g=g"}, sources: []string{"a/b/f"}, sel: Selection{Parents: true}, req: CopyRequest{Dest: "/n"}, want: lines("n/", "n/a/", "n/a/b/ 0700", "n/a/b/f=1")},
	{name: "file over a folder", src: []string{"d/f=1"}, dst: []string{"x/f/"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"}, err: "/x/f"},
	{name: "folder over a file", src: []string{"d/f/"}, dst: []string{"x/f=1"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"}, err: "/x/f"},
	{name: "folder over a link to a folder", src: []string{"d/f/"}, dst: []string{"t/", "x/f->/t"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"}, err: "/x/f"},
	{name: "folder to a file", src: []string{"d/f=1"}, dst: []string{"x=1"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"}, err: "/x"},
	{name: "below a file", src: []string{"f=1"}, dst: []string{"x=1"}, sources: []string{"f"}, req: CopyRequest{Dest: "/x/y"}, err: "/x"},
	{name: "links in a circle", src: []string{"f=1"}, dst: []string{"a->b", "b->a"}, sources: []string{"f"}, req: CopyRequest{Dest: "/a/y"}, err: "too many"},
	{name: "a name that removes in a layer", src: []string{"d/.wh.k=", "d/f=1"}, dst: []string{"x/k=k"}, sources: []string{"d"}, req: CopyRequest{Dest: "/x"}, want: lines("x/", "x/.wh.k=", "x/f=1", "x/k=k")},
	{name: "an inline file whose name is a path", req: CopyRequest{Dest: "/x/", Files: []File{{Name: "a/b"}}}, err: "a/b"},
	{name: "inline files", req: CopyRequest{Dest: "/x/", Files: []File{{Name: "A", Data: []byte("a"), Mode: 0o644}, {Name: "B", Data: []byte("b"), Mode: 0o755}}}, want: lines("x/", "x/A=a", "x/B=b 0755")},
}

func TestCopy(t *testing.T) {
	for _, mask := range []int{0o022, 0o077, 0} {
		old := syscall.Umask(mask)
		for _, row := range copyRows {
			t.Run(fmt.Sprintf("%s, umask %03o", row.name, mask), func(t *testing.T) { row.run(t) })
		}
		syscall.Umask(old)
	}
}

func (row copyRow) run(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	old := syscall.Umask(0o022)
	grow(t, src, row.src...)
	grow(t, dst, row.dst...)
	syscall.Umask(old)
	row.runIn(t, src, dst)
}

func (row copyRow) runIn(t *testing.T, src, dst string) {
	t.Helper()
	row.sel.Sources, row.sel.Hash = row.sources, true
	matches, err := Select(src, row.sel)
	must(t, err)
	row.req.Root, row.req.Matches = src, matches
	specials, err := Copy(dst, row.req)
	if row.err != "" {
		if err == nil || !strings.Contains(err.Error(), row.err) {
			t.Errorf("got %v, want an error with %q; the tree is\n%s", err, row.err, list(t, dst, specials))
		}
		return
	}
	must(t, err)
	want := strings.Split(row.want, "\n")
	got := strings.Split(list(t, dst, specials), "\n")
	if !sameLines(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), row.want)
	}
}

func sameLines(a, b []string) bool {
	count := map[string]int{}
	for _, l := range a {
		count[l]++
	}
	for _, l := range b {
		count[l]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

func TestCopy_TakesOwnersFromAStage(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	grow(t, src, "d/ 700", "d/f=1 4750", "d/l->f", "d/p| 600", "d/s/ 2775", "d/g=g")
	must(t, SetOwner(filepath.Join(src, "d/f"), Owner{5, 6}))
	must(t, SetOwner(filepath.Join(src, "d/s"), Owner{7, 8}))
	of := []Special{
		{Path: "d/l", Owner: Owner{9, 9}}, {Path: "d/p", Owner: Owner{3, 3}},
		{Path: "d/n", Owner: Owner{1, 2}, Device: "c", Mode: 0o660, Major: 1, Minor: 3},
	}
	run := func(t *testing.T, dst string, change func(*CopyRequest)) string {
		matches, err := Select(src, Selection{Sources: []string{"d"}, Devices: of})
		must(t, err)
		req := CopyRequest{Root: src, Matches: matches, Dest: "/x", KeepOwners: true, Specials: of}
		change(&req)
		specials, err := Copy(dst, req)
		must(t, err)
		return list(t, dst, specials)
	}
	kept := run(t, dst, func(*CopyRequest) {})
	if want := lines("x/", "x/f=1 4750 5:6", "x/g=g", "x/l->f 9:9", "x/n%char 1,3 0660 1:2", "x/p| 0600 3:3", "x/s/ 2775 7:8"); kept != want {
		t.Errorf("got\n%s\nwant\n%s", kept, want)
	}
	owned := run(t, t.TempDir(), func(r *CopyRequest) { r.Owner = &Owner{4, 4}; r.Chmod = "700" })
	if want := lines("x/ 0700 4:4", "x/f=1 0700 4:4", "x/g=g 0700 4:4", "x/l->f 4:4", "x/n%char 1,3 0700 4:4", "x/p| 0700 4:4", "x/s/ 0700 4:4"); owned != want {
		t.Errorf("got\n%s\nwant\n%s", owned, want)
	}
	// The same names without an owner: what was noted before goes.
	plain := t.TempDir()
	grow(t, plain, "d/f=2", "d/l->g", "d/s/", "d/p=p")
	matches, err := Select(plain, Selection{Sources: []string{"d"}})
	must(t, err)
	specials, err := Copy(dst, CopyRequest{Root: plain, Matches: matches, Dest: "/x"})
	must(t, err)
	after := list(t, dst, MergeSpecials([]Special{{Path: "x/l", Owner: Owner{9, 9}}, {Path: "x/p", Owner: Owner{3, 3}}}, specials))
	if want := lines("x/", "x/f=2", "x/g=g", "x/l->g", "x/p=p", "x/s/"); after != want {
		t.Errorf("got\n%s\nwant\n%s", after, want)
	}
}

func TestCopy_Times(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	grow(t, src, "d/s/f=1", "d/l->s")
	when := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	for _, p := range []string{"d/s/f", "d/s", "d"} {
		must(t, os.Chtimes(filepath.Join(src, p), when, when))
	}
	matches, err := Select(src, Selection{Sources: []string{"d"}})
	must(t, err)
	_, err = Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/n/x"})
	must(t, err)
	for _, p := range []string{"n/x/s/f", "n/x/s", "n/x"} {
		fi, err := os.Lstat(filepath.Join(dst, p))
		must(t, err)
		if !fi.ModTime().Equal(when) {
			t.Errorf("%s: %v", p, fi.ModTime())
		}
	}
}

func TestCopy_SeesAChange(t *testing.T) {
	for name, change := range map[string]func(p string) error{
		"other bytes of the same size": func(p string) error { return os.WriteFile(p, []byte("two"), 0o644) },
		"longer":                       func(p string) error { return os.WriteFile(p, []byte("one and more"), 0o644) },
		"gone":                         os.Remove,
		"a FIFO now": func(p string) error {
			return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o644))
		},
		"nothing": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			src := t.TempDir()
			grow(t, src, "d/f=one")
			matches, err := Select(src, Selection{Sources: []string{"d"}, Hash: true})
			must(t, err)
			must(t, change(filepath.Join(src, "d/f")))
			_, err = Copy(t.TempDir(), CopyRequest{Root: src, Matches: matches, Dest: "/"})
			var changed *ChangedError
			if errors.As(err, &changed) != (name != "nothing") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCopy_LeavesHoles(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	f, err := os.Create(filepath.Join(src, "f"))
	must(t, err)
	_, err = f.WriteAt([]byte("end"), 64<<20)
	must(t, err)
	must(t, f.Close())
	matches, err := Select(src, Selection{Sources: []string{"f"}, Hash: true})
	must(t, err)
	_, err = Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/f"})
	must(t, err)
	var st syscall.Stat_t
	must(t, syscall.Stat(filepath.Join(dst, "f"), &st))
	if st.Size != 64<<20+3 || st.Blocks*512 > 1<<20 {
		t.Errorf("size %d, %d bytes on disk", st.Size, st.Blocks*512)
	}
}

// archive makes a tar of headers; Size and the bytes come from body.
func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if m.h.Typeflag == 0 {
			m.h.Typeflag = tar.TypeReg
		}
		if m.h.Mode == 0 {
			m.h.Mode = 0o644
		}
		if m.h.Size == 0 {
			m.h.Size = int64(len(m.body))
		}
		must(t, w.WriteHeader(&m.h))
		_, err := w.Write([]byte(m.body))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

type member struct {
	h    tar.Header
	body string
}

func dirOf(name string, mode int64) member {
	return member{h: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}}
}

func fileOf(name, body string) member { return member{h: tar.Header{Name: name}, body: body} }

func linkOf(name, target string) member {
	return member{h: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}}
}

func hardOf(name, target string) member {
	return member{h: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}}
}

func TestAdd_Unpacks(t *testing.T) {
	plain := archive(t,
		member{h: tar.Header{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 7, Gid: 8}},
		member{h: tar.Header{Name: "./d/f", Mode: 0o4751, Uid: 7, Gid: 8}, body: "f"},
		hardOf("./d/h", "./d/f"), member{h: tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Uid: 1, Gid: 2}},
		fileOf("../../up", "u"), fileOf("/abs/x", "x"), fileOf(".wh.old", ""),
	)
	want := lines("x/ 0750", "x/.wh.old=", "x/abs/", "x/abs/x=x", "x/d/ 0700 7:8", "x/d/f=f 4751 7:8", "x/d/h=f 4751 7:8 = x/d/f", "x/d/k=k", "x/l->/etc/passwd 1:2", "x/old=o", "x/up=u")
	mine := strings.NewReplacer(" 7:8", " 5:5", " 1:2", " 5:5", "old=\n", "old= 5:5\n", "x=x", "x=x 5:5", "up=u", "up=u 5:5").Replace(want)
	for name, data := range map[string][]byte{"tar": plain, "gzip": pack(t, plain, "gzip"), "zstd": pack(t, plain, "zstd"), "xz": pack(t, plain, "xz")} {
		for _, owner := range []*Owner{nil, {5, 5}} {
			t.Run(fmt.Sprint(name, owner), func(t *testing.T) {
				src, dst := t.TempDir(), t.TempDir()
				must(t, os.WriteFile(filepath.Join(src, "t"), data, 0o644))
				grow(t, dst, "x/ 750", "x/d/k=k", "x/l=old", "x/old=o")
				matches, err := Select(src, Selection{Sources: []string{"t"}, Hash: true})
				must(t, err)
				specials, err := Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/x", Unpack: true, Owner: owner, Chmod: "600"})
				must(t, err)
				want := want
				if owner != nil {
					want = mine
				}
				if got := list(t, dst, specials); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func pack(t testing.TB, data []byte, how string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		w, err = zstd.NewWriter(&b)
	case "xz":
		w, err = xz.NewWriter(&b)
	}
	must(t, err)
	_, err = w.Write(data)
	must(t, err)
	must(t, w.Close())
	return b.Bytes()
}

func TestAdd_CopiesWhatIsNoTar(t *testing.T) {
	src, dst := t.TempDir(), t.TempDir()
	grow(t, src, "text=no_tar", "empty=")
	must(t, os.WriteFile(filepath.Join(src, "x.gz"), pack(t, []byte("text"), "gzip"), 0o644))
	must(t, os.WriteFile(filepath.Join(src, "broken.gz"), []byte{0x1f, 0x8b, 8, 0, 0}, 0o644))
	matches, err := Select(src, Selection{Sources: []string{"*"}})
	must(t, err)
	_, err = Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: "/x/", Unpack: true})
	must(t, err)
	if got := strings.Count(list(t, dst, nil), "\n"); got != 4 {
		t.Errorf("got\n%s", list(t, dst, nil))
	}
}

func TestMkdir(t *testing.T) {
	dst := t.TempDir()
	grow(t, dst, "have/ 700", "l->/other", "f=1")
	must(t, Mkdir(dst, "/have/a/../b", &Owner{5, 6}))
	must(t, Mkdir(dst, "/l/x", nil))
	must(t, Mkdir(dst, "/../..", &Owner{5, 5}))
	if err := Mkdir(dst, "/f/x", nil); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if err := Mkdir(dst, "/f", nil); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("over a file: %v", err)
	}
	if got, want := list(t, dst, nil), lines("f=1", "have/ 0700", "have/b/ 5:6", "l->/other", "other/", "other/x/"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
