package session

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text = "text of " + h.Name
			h.Size = int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	w.Close()
	return &b
}

// What a stream holds lies below the folder, or is refused.
func TestUnpack(t *testing.T) {
	const reg, dir, sym, hard = tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	for _, tc := range []struct {
		name    string
		stream  []tar.Header
		refused string
	}{
		{"files and folders", []tar.Header{{Typeflag: dir, Name: "d/", Mode: 0o500}, {Typeflag: reg, Name: "d/f", Mode: 0o4755}, {Typeflag: reg, Name: "./a/b/c"}}, ""},
		{"the folder itself", []tar.Header{{Typeflag: dir, Name: "./", Mode: 0o750}, {Typeflag: reg, Name: "./f"}}, ""},
		{"links", []tar.Header{{Typeflag: reg, Name: "f"}, {Typeflag: sym, Name: "s", Linkname: "/etc/passwd"}, {Typeflag: hard, Name: "h", Linkname: "f"}, {Typeflag: hard, Name: "h2", Linkname: "s"}}, ""},
		{"a file twice", []tar.Header{{Typeflag: reg, Name: "f"}, {Typeflag: reg, Name: "f"}}, ""},
		{"a file as a link to itself", []tar.Header{{Typeflag: reg, Name: "./f"}, {Typeflag: hard, Name: "./f", Linkname: "./f"}}, ""},
		{"a file in place of a link", []tar.Header{{Typeflag: sym, Name: "f", Linkname: "../outside"}, {Typeflag: reg, Name: "f"}}, ""},
		{"..", []tar.Header{{Typeflag: reg, Name: "../outside"}}, "leads out"},
		{".. in the middle", []tar.Header{{Typeflag: reg, Name: "a/../../outside"}}, "leads out"},
		{".. that stays", []tar.Header{{Typeflag: reg, Name: "a/../f"}}, "leads out"},
		{"absolute", []tar.Header{{Typeflag: reg, Name: "/etc/outside"}}, "leads out"},
		{"through a link of its own", []tar.Header{{Typeflag: sym, Name: "l", Linkname: ".."}, {Typeflag: reg, Name: "l/outside"}}, "there is a link in this path"},
		{"a folder through it", []tar.Header{{Typeflag: sym, Name: "l", Linkname: ".."}, {Typeflag: dir, Name: "l/outside"}}, "there is a link in this path"},
		{"a folder that is a link", []tar.Header{{Typeflag: sym, Name: "l", Linkname: ".."}, {Typeflag: dir, Name: "l", Mode: 0o700}}, "link"},
		{"through a link that was there", []tar.Header{{Typeflag: reg, Name: "there/outside"}}, "there is a link in this path"},
		{"a hard link out", []tar.Header{{Typeflag: hard, Name: "h", Linkname: "../secret"}}, "leads out"},
		{"a hard link to an absolute path", []tar.Header{{Typeflag: hard, Name: "h", Linkname: "/etc/passwd"}}, "leads out"},
		{"a hard link through a link", []tar.Header{{Typeflag: hard, Name: "h", Linkname: "there/secret"}}, "link"},
		{"a device", []tar.Header{{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}, "neither a file"},
		{"a pipe", []tar.Header{{Typeflag: tar.TypeFifo, Name: "p"}}, "neither a file"},
		{"a file as the folder", []tar.Header{{Typeflag: reg, Name: "."}}, "is the folder itself"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			top := t.TempDir()
			into := filepath.Join(top, "into")
			for _, err := range []error{os.Mkdir(into, 0o755), os.WriteFile(filepath.Join(top, "secret"), []byte("s"), 0o644), os.Symlink("..", filepath.Join(into, "there"))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			before, _ := os.Stat(top)
			err := unpack(into, tarOf(t, tc.stream...))
			if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%v, want %q", err, tc.refused)
			}
			names, _ := os.ReadDir(top)
			after, _ := os.Stat(top)
			if len(names) != 2 || after.Mode() != before.Mode() {
				t.Errorf("outside is %v, %v", names, after.Mode())
			}
			var st unix.Stat_t
			if unix.Stat(filepath.Join(top, "secret"), &st); st.Nlink != 1 {
				t.Error("the secret has another name")
			}
			if err != nil {
				return
			}
			for _, h := range tc.stream {
				p := filepath.Join(into, h.Name)
				info, err := os.Lstat(p)
				if err != nil {
					t.Error(err)
					continue
				}
				if data, _ := os.ReadFile(p); h.Typeflag == reg && string(data) != "text of "+h.Name {
					t.Errorf("%s is %q", h.Name, data)
				}
				if want := os.FileMode(h.Mode & 0o777); want != 0 && info.Mode()&0o7777 != want && h.Typeflag != sym && h.Typeflag != hard {
					t.Errorf("%s has mode %v", h.Name, info.Mode())
				}
			}
		})
	}
	if err := unpack(t.TempDir(), strings.NewReader("no tar at all, and long enough to be a header of one"+strings.Repeat(".", 600))); err == nil {
		t.Error("that is no tar stream")
	}
	whole := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "f"}).Bytes()
	for n := range len(whole) {
		if n%512 == 0 || n%512 == 7 {
			if err := unpack(t.TempDir(), bytes.NewReader(whole[:n])); err == nil {
				t.Errorf("a stream of %d bytes, cut at %d, is taken", len(whole), n)
			}
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	os.Symlink("/tmp", link)
	if err := unpack(link, tarOf(t)); err == nil || !strings.Contains(err.Error(), "link") {
		t.Errorf("the folder is a link: %v", err)
	}
	if err := unpack("relative", tarOf(t)); err == nil {
		t.Error("a relative folder is taken")
	}
}

// What is packed and unpacked again is the same; what is no file is left out,
// and nothing is read through a link.
func TestPack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	when := time.Unix(1_700_000_000, 0)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(from, "d/empty"), 0o755), os.WriteFile(filepath.Join(from, "d/f"), []byte("text"), 0o640),
		os.WriteFile(filepath.Join(from, "d/zero"), nil, 0o600), os.Symlink("/etc/passwd", filepath.Join(from, "d/s")),
		os.Symlink("/etc", filepath.Join(from, "out")), unix.Mkfifo(filepath.Join(from, "d/pipe"), 0o644),
		os.Chtimes(filepath.Join(from, "d/f"), when, when),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := pack(from, []string{"d"}, &b); err != nil {
		t.Fatal(err)
	}
	if err := unpack(to, &b); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "d/f")); string(data) != "text" {
		t.Errorf("%q %v", data, err)
	}
	if info, err := os.Stat(filepath.Join(to, "d/f")); err != nil || info.Mode() != 0o640 || !info.ModTime().Equal(when) {
		t.Errorf("%v %v", info, err)
	}
	if link, _ := os.Readlink(filepath.Join(to, "d/s")); link != "/etc/passwd" {
		t.Errorf("the link leads to %q", link)
	}
	if _, err := os.Lstat(filepath.Join(to, "d/pipe")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pipe: %v", err)
	}
	if _, err := os.Stat(filepath.Join(to, "d/empty")); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"../x": "leads out", "/etc/passwd": "leads out", "out/passwd": "there is a link in this path", "absent": "no such file"} {
		b.Reset()
		if err := pack(from, []string{name}, &b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	b.Reset()
	if err := pack(from, []string{"out"}, &b); err != nil {
		t.Errorf("a link as what it is: %v", err)
	}
}

// Whatever a domain says that it packed, what was not asked for does not come
// out: the client takes the stream apart.
func TestGet_OfALiar(t *testing.T) {
	const reg, dir, sym = tar.TypeReg, tar.TypeDir, tar.TypeSymlink
	all := func(h ...tar.Header) []tar.Header { return h }
	folder := tar.Header{Typeflag: dir, Name: "o/"}
	link := tar.Header{Typeflag: sym, Name: "o/l", Linkname: "/etc"}
	for _, tc := range []struct {
		name, asked string
		stream      []tar.Header
		refused     string
	}{
		{"what was asked for", "o", all(folder, tar.Header{Typeflag: reg, Name: "o/a"}, tar.Header{Typeflag: dir, Name: "o/d/"}, tar.Header{Typeflag: reg, Name: "o/d/f"}, tar.Header{Typeflag: reg, Name: "o/d.f"}, link), ""},
		{"everything", ".", all(tar.Header{Typeflag: dir, Name: "./"}, tar.Header{Typeflag: dir, Name: "a/"}, tar.Header{Typeflag: reg, Name: "a/b"}, tar.Header{Typeflag: reg, Name: "c"}), ""},
		{"of several, the last", "a/x b/y c", all(tar.Header{Typeflag: reg, Name: "b/y"}, tar.Header{Typeflag: reg, Name: "c"}), ""},
		{"..", "o", all(folder, tar.Header{Typeflag: reg, Name: "o/../../x"}), "leads elsewhere"},
		{"an absolute name", "o", all(tar.Header{Typeflag: reg, Name: "/tmp/x"}), "leads elsewhere"},
		{"an unclean name", "o", all(folder, tar.Header{Typeflag: reg, Name: "o//x"}), "leads elsewhere"},
		{"another name", "o", all(tar.Header{Typeflag: reg, Name: "ox"}), "was not asked for"},
		{"beside", "o", all(folder, tar.Header{Typeflag: reg, Name: "p"}), "was not asked for"},
		{"through a link", "o", all(folder, link, tar.Header{Typeflag: reg, Name: "o/l/x"}), "out of order"},
		{"through the link that was asked for", "o", all(tar.Header{Typeflag: sym, Name: "o", Linkname: "/"}, tar.Header{Typeflag: reg, Name: "o/x"}), "out of order"},
		{"a link's name again", "o", all(folder, link, tar.Header{Typeflag: reg, Name: "o/l"}), "out of order"},
		{"a link for a folder", "o", all(folder, tar.Header{Typeflag: dir, Name: "o/d/"}, tar.Header{Typeflag: sym, Name: "o/d", Linkname: "/"}), "out of order"},
		{"back in order", "o", all(folder, tar.Header{Typeflag: reg, Name: "o/b"}, tar.Header{Typeflag: reg, Name: "o/a"}), "out of order"},
		{"without its folder", "o", all(folder, tar.Header{Typeflag: reg, Name: "o/d/f"}), "out of order"},
		{"a hard link", "o", all(folder, tar.Header{Typeflag: tar.TypeLink, Name: "o/h", Linkname: "/etc/shadow"}), "is neither a file"},
		{"a device", "o", all(folder, tar.Header{Typeflag: tar.TypeBlock, Name: "o/h"}), "is neither a file"},
		{"a file in the place of the names", "a b", all(tar.Header{Typeflag: reg, Name: "b"}, tar.Header{Typeflag: reg, Name: "a"}), "was not asked for"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i := range tc.stream {
				tc.stream[i].Mode = 0o4755
			}
			var out bytes.Buffer
			err := liar(t, tarOf(t, tc.stream...).Bytes()).Get(t.Context(), Command{}, "/", strings.Fields(tc.asked), &out)
			var e *Error
			if tc.refused != "" {
				if !errors.As(err, &e) || e.Code != CodeLost || !strings.Contains(e.Text, tc.refused) {
					t.Fatalf("%v, want %q", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for r, i := tar.NewReader(&out), 0; ; i++ {
				h, err := r.Next()
				if err == io.EOF && i == len(tc.stream) {
					return
				}
				if text, _ := io.ReadAll(r); err != nil || h.Name != tc.stream[i].Name || h.Mode != 0o755 || h.Typeflag == reg && string(text) != "text of "+h.Name {
					t.Fatalf("%d: %v %+v", i, err, h)
				}
			}
		})
	}
	stream := tarOf(t, tar.Header{Typeflag: reg, Name: "o"}).Bytes()
	for _, n := range []int{0, 512, 520, 1024} {
		if err := liar(t, stream[:n]).Get(t.Context(), Command{}, "/", []string{"o"}, io.Discard); err == nil || !strings.Contains(err.Error(), "ends before its end") {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	if err := liar(t, nil).Get(t.Context(), Command{}, "/", []string{"o", "o/x"}, io.Discard); err == nil || !strings.Contains(err.Error(), "asked for twice") {
		t.Errorf("a name below another: %v", err)
	}
}

// liar is a session that says of every command that it wrote this and ended
// well.
func liar(t *testing.T, stream []byte) *Client {
	ours, theirs, err := pair(maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer ours.close()
		var h hello
		var q request
		_, _ = ours.recv(&h)
		fds, err := ours.recv(&q)
		if err != nil {
			return
		}
		w := os.NewFile(uintptr(fds[1]), "stdout")
		w.Write(stream)
		w.Close()
		closeAll([]int{fds[0], fds[2], fds[3], fds[4]})
		_ = ours.send(hello{Schema})
		_ = ours.send(reply{Exit: &Exit{}})
	}()
	return &Client{dial: func() (*conn, error) { return newConn(theirs, maxRequest) }}
}
