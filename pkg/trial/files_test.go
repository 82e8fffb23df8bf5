package trial

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree lists a folder: names, modes and lengths.
func listed(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		rel, _ := filepath.Rel(dir, p)
		all = append(all, info.Mode().String()[:4]+" "+rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestUnpack(t *testing.T) {
	limits := most{file: 10, all: 100, files: 5}
	for name, c := range map[string]struct {
		in   []tar.Header
		want []string
		err  string
	}{
		"files and folders": {[]tar.Header{{Name: ".", Typeflag: tar.TypeDir}, {Name: "a", Size: 3, Mode: 0o4777}, {Name: "d/b", Size: 1, Mode: 0o600}}, []string{"-rwx a", "drwx d", "-rw- d/b"}, ""},
		"a link":            {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}}, nil, ""},
		"below a link":      {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: "l/x", Size: 1}}, []string{"drwx l", "-rw- l/x"}, ""},
		"out":               {[]tar.Header{{Name: "../x", Size: 1}, {Name: "/y", Size: 1}}, nil, ""},
		"twice":             {[]tar.Header{{Name: "a", Size: 1}, {Name: "a", Size: 2}}, []string{"-rw- a"}, "exists"},
		"cut":               {[]tar.Header{{Name: "a", Size: 12}}, []string{"-rw- a"}, ""},
		"many":              {slices.Repeat([]tar.Header{{Name: "d", Typeflag: tar.TypeDir}}, 6), []string{"drwx d"}, "over 5 files"},
	} {
		dir := t.TempDir()
		_, err := unpack(tarOf(t, c.in...), dir, limits, nil, nil)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if got := listed(t, dir); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if name == "cut" && !strings.HasPrefix(read(t, dir, "a"), "xxxxxxxxxx\n[rollout: cut here, 2 more bytes") {
			t.Errorf("no marker: %q", read(t, dir, "a"))
		}
	}
	if _, err := unpack(tarOf(t, tar.Header{Name: "a", Size: 101}), t.TempDir(), most{all: 100, files: 5}, nil, nil); !errors.Is(err, errTooMuch) {
		t.Errorf("101 bytes of 100: %v", err)
	}
	// A file of holes that would take hours to come, for a little of it.
	stream := io.MultiReader(bytes.NewReader(headerOf(t, tar.Header{Name: "holes", Size: 1 << 40, Mode: 0o644})), endless{})
	if got, err := unpack(stream, t.TempDir(), logsMost, nil, nil); !errors.Is(err, errTooMuch) || got.bytes > 0 {
		t.Errorf("1 TB: %+v, %v", got, err)
	}
}

// endless is a file without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func headerOf(t *testing.T, h tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"test.sh": 0o600, "run": 0o775, "d/solve": 0o600, "d/data": 0o666} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o777), os.WriteFile(at, []byte("x"), mode), os.Chmod(at, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "link")), os.Symlink("d/solve", filepath.Join(dir, "solve.sh"))); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(pack(w, dir, "tests", "test.sh", "solve.sh"), w.Close()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	want := []string{"drwxr-xr-x tests ", "drwxr-xr-x tests/d ", "-rw-r--r-- tests/d/data ", "-rwxr-xr-x tests/d/solve ", "Lrwxr-xr-x tests/link /etc/passwd", "-rwxr-xr-x tests/run ", "Lrwxr-xr-x tests/solve.sh d/solve", "-rwxr-xr-x tests/test.sh "}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// What a container wrote is had although it is gone, and nothing else is.
func TestSalvage(t *testing.T) {
	upper, to := t.TempDir(), t.TempDir()
	logs := filepath.Join(upper, "logs/agent")
	err := errors.Join(os.MkdirAll(filepath.Join(logs, "d"), 0o755), os.WriteFile(filepath.Join(to, "a"), []byte("ours"), 0o600), os.WriteFile(filepath.Join(logs, "a"), nil, 0o600), os.WriteFile(filepath.Join(logs, "d/oracle.txt"), []byte("so far"), 0o600),
		os.Symlink("/etc/passwd", filepath.Join(logs, "link")), os.WriteFile(filepath.Join(upper, "other"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if err := salvage(upper, "logs/agent", to); err != nil {
		t.Fatal(err)
	}
	if got, want := listed(t, to), []string{"-rw- a", "drwx d", "-rw- d/oracle.txt"}; !slices.Equal(got, want) || read(t, to, "d/oracle.txt") != "so far" || read(t, to, "a") != "ours" {
		t.Errorf("%q, want %q", got, want)
	}
	if err := os.RemoveAll(logs); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", logs); err != nil {
		t.Fatal(err)
	}
	to = t.TempDir()
	if err := salvage(upper, "logs/agent", to); err != nil || len(listed(t, to)) > 0 {
		t.Errorf("a link in the place of the folder is followed: %v, %v", listed(t, to), err)
	}
}

// Whatever comes out of a container: nothing is made outside of the folder, and
// in it files and folders alone, within the limits.
func FuzzUnpack(f *testing.F) {
	for _, names := range [][]string{{"a", "d/b"}, {"../a"}, {"/a"}, {"d/../../a"}, {"a", "a/b"}, {".", "a\x00b"}} {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, name := range names {
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 1, Format: tar.FormatPAX}); err == nil {
				w.Write([]byte("x"))
			}
			_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name + "l", Linkname: "/etc"})
		}
		w.Close()
		f.Add(out.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "dir")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		m := most{file: 100, all: 1000, files: 10}
		_, _ = unpack(bytes.NewReader(data), dir, m, nil, nil)
		if out := listed(t, parent); len(out) > 1 && slices.ContainsFunc(out, func(line string) bool { return !strings.HasPrefix(line[5:], "dir") }) {
			t.Fatalf("outside: %q", out)
		}
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&^fs.ModeDir != 0 {
				t.Errorf("%s is a %v", p, d.Type())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
