package fetch

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func sum256(s string) []byte { h := sha256.Sum256([]byte(s)); return h[:] }

func files(t *testing.T, dir, sub string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, sub, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestTheCacheOutlivesItsProxy: another proxy, on another node, serves from it.
func TestTheCacheOutlivesItsProxy(t *testing.T) {
	dir := t.TempDir()
	newWorldIn(t, dir).fill()
	w := newWorldIn(t, dir)
	victim(t, w, deb, "a package")
	if len(w.seen) != 0 {
		t.Errorf("upstream was asked: %v", w.seen)
	}
}

func (w *world) fill() {
	w.serve("deb.test", body200("a package"))
	w.get(deb)
}

// TestBrokenCaches: what is in the folder is not believed.
func TestBrokenCaches(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"nothing": func(string) error { return nil },
		"a body of the right length": func(dir string) error {
			return os.WriteFile(files(t, dir, "blobs")[0], []byte("a packagE"), 0o600)
		},
		"a cut body": func(dir string) error { return os.Truncate(files(t, dir, "blobs")[0], 3) },
		"a body that grew": func(dir string) error {
			return os.WriteFile(files(t, dir, "blobs")[0], []byte("a package, and"), 0o600)
		},
		"no body":        func(dir string) error { return os.Remove(files(t, dir, "blobs")[0]) },
		"a cut entry":    func(dir string) error { return os.Truncate(files(t, dir, "urls")[0], 20) },
		"an empty entry": func(dir string) error { return os.Truncate(files(t, dir, "urls")[0], 0) },
		"another's entry": func(dir string) error {
			name := files(t, dir, "urls")[0]
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(name, bytes.Replace(text, []byte("deb.test"), []byte("bad.test"), 1), 0o600)
		},
		"a name that leads out": func(dir string) error {
			return os.WriteFile(files(t, dir, "urls")[0], []byte(`{"Key":"get `+deb+`","SHA256":"../../../../etc/passwd"}`), 0o600)
		},
	} {
		dir := t.TempDir()
		newWorldIn(t, dir).fill()
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		w := newWorldIn(t, dir)
		w.serve("deb.test", body200("a package"))
		victim(t, w, deb, "a package")
		want := 1
		if name == "nothing" {
			want = 0
		}
		if n := w.asked("GET " + deb); n != want {
			t.Errorf("%s: upstream was asked %d times, not %d", name, n, want)
		}
		victim(t, newWorldIn(t, dir), deb, "a package") // it was mended
	}
}

func TestOneBodyOfManyURLsIsKeptOnce(t *testing.T) {
	dir := t.TempDir()
	w := newWorldIn(t, dir)
	w.serve("a.test", body200("same"))
	w.serve("b.test", body200("same"))
	w.get("http://a.test/pool/x.deb")
	w.get("http://b.test/pool/x.deb")
	if b, u := files(t, dir, "blobs"), files(t, dir, "urls"); len(b) != 1 || len(u) != 2 {
		t.Errorf("%v, %v", b, u)
	}
}

// TestACacheThatCannotBeWritten stands for a full disk. What is in the cache is
// served all the same.
func TestACacheThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	w := newWorldIn(t, dir)
	w.serve("deb.test", body200("x", "ETag", `"x"`))
	w.get("http://deb.test/InRelease")
	if err := os.RemoveAll(filepath.Join(dir, "tmp")); err != nil {
		t.Fatal(err)
	}
	a := do(t, w.client(), "GET", deb)
	w.later(time.Hour)
	victim(t, w, "http://deb.test/InRelease", "x")
	want := "sifbuild's download proxy: getting " + deb + ": writing to the download cache: no such file or directory; sifbuild gc makes room\n"
	if a.StatusCode != 502 || a.body != want {
		t.Errorf("%s %q", a.Status, a.body)
	}
}

func TestCollect(t *testing.T) {
	if got, err := Collect(filepath.Join(t.TempDir(), "none"), time.Hour, 0); err != nil || got != (Collected{}) {
		t.Errorf("%+v, %v", got, err)
	}
	day := 24 * time.Hour
	for _, c := range []struct {
		name     string
		unused   time.Duration
		maxBytes int64
		left     string
	}{
		{"nothing to do", 10 * day, 1000, "abcT"},
		{"by age", 2 * day, 1000, "abT"},
		{"by size", 10 * day, 250, "abT"},
		{"by size, harder", 10 * day, 199, "aT"},
		{"all", 10 * day, 0, "T"},
	} {
		dir := t.TempDir()
		if _, err := openStore(dir); err != nil {
			t.Fatal(err)
		}
		put := func(name string, age time.Duration) {
			path := filepath.Join(dir, name)
			os.MkdirAll(filepath.Dir(path), 0o700)
			if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
				t.Fatal(err)
			}
			at := time.Now().Add(-age)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
		put("blobs/aa/a", day/2)
		put("blobs/bb/b", day)
		put("urls/cc/c", 3*day)
		put("tmp/T", day/2)
		put("tmp/D", 2*day)
		got, err := Collect(dir, c.unused, c.maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		left := ""
		for _, name := range []string{"blobs/aa/a", "blobs/bb/b", "urls/cc/c", "tmp/T", "tmp/D"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				left += filepath.Base(name)
			}
		}
		n := 4 - len(c.left)
		if left != c.left || got != (Collected{n, int64(n) * 100, int64(3-n) * 100}) {
			t.Errorf("%s: left %q, %+v", c.name, left, got)
		}
	}
}

// TestUseKeeps: what is used is not collected as unused.
func TestUseKeeps(t *testing.T) {
	dir := t.TempDir()
	w := newWorldIn(t, dir)
	w.fill()
	old := time.Now().Add(-48 * time.Hour)
	age := func() {
		for _, f := range append(files(t, dir, "blobs"), files(t, dir, "urls")...) {
			if err := os.Chtimes(f, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	age()
	w.get(deb)
	if got, err := Collect(dir, 24*time.Hour, 1<<20); err != nil || got.Files != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	age()
	if got, err := Collect(dir, 24*time.Hour, 1<<20); err != nil || got.Files != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	victim(t, w, deb, "a package") // while a proxy runs
}
