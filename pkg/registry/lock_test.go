package registry

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/test/registrytest"
)

func hash(t testing.TB, img v1.Image) v1.Hash {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// What a tag led to stays, run by run, until somebody asks for an update or
// takes the file away.
func TestLock(t *testing.T) {
	reg := registrytest.Serve(t)
	was, is := picture(t, 1), picture(t, 1)
	ref := tag(t, reg.Push("some/image:1", was))
	o := Options{Lock: filepath.Join(t.TempDir(), "new", "lock.json")}
	resolve := func(o Options) v1.Hash {
		t.Helper()
		h, err := client(t, o).Resolve(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := resolve(o); h != hash(t, was) {
		t.Errorf("first: %v", h)
	}
	reg.Push("some/image:1", is)
	if h := resolve(o); h != hash(t, was) || reg.Counts() != nothing {
		t.Errorf("resumed: %v, %s", h, reg.Counts())
	}
	if h := resolve(Options{}); h != hash(t, is) {
		t.Errorf("without a file: %v", h)
	}
	up := o
	up.UpdateLock = true
	reg.Reset(nil)
	cl := client(t, up)
	for range 2 {
		if h, err := cl.Resolve(t.Context(), ref); h != hash(t, is) || err != nil || reg.Counts() != "HEAD 1, manifests 0, blobs 0" {
			t.Errorf("updated: %v, %v, %s", h, err, reg.Counts())
		}
	}
	reg.Push("some/image:1", was)
	if h := resolve(o); h != hash(t, is) {
		t.Errorf("after the update: %v", h)
	}
	cl = client(t, o)
	if n, _ := cl.Pinned(); n != 0 {
		t.Errorf("before anybody asks: %d", n)
	}
	if _, err := cl.Resolve(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if n, oldest := cl.Pinned(); n != 1 || oldest.IsZero() {
		t.Errorf("%d, the oldest of %v", n, oldest)
	}
	if err := os.Remove(o.Lock); err != nil {
		t.Fatal(err)
	}
	if h := resolve(o); h != hash(t, was) {
		t.Errorf("without the file: %v", h)
	}
	left, err := os.ReadDir(filepath.Dir(o.Lock))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// What the lock file says and no registry has any more is said as that.
func TestLock_Gone(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := tag(t, reg.Push("some/image:1", picture(t, 1)))
	o := Options{Lock: filepath.Join(t.TempDir(), "lock.json")}
	if _, err := client(t, o).Resolve(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	reg.Reset(registrytest.First(9, "GET manifests", registrytest.Status(404)))
	if _, _, err := client(t, o).Top(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "does not have sha256:") || !strings.Contains(err.Error(), "--update-lock asks anew") {
		t.Error(err)
	}
}

// Several processes at a time: nobody's tags are lost.
func TestLock_Together(t *testing.T) {
	reg := registrytest.Serve(t)
	var refs []name.Reference
	for n := range 20 {
		refs = append(refs, tag(t, reg.Push(fmt.Sprintf("image%d:1", n), picture(t, 1))))
	}
	o := Options{Lock: filepath.Join(t.TempDir(), "lock.json")}
	var wg sync.WaitGroup
	for p := range 2 {
		cl := client(t, o) // as a process: nothing shared but the file
		for _, r := range refs[10*p : 10*p+10] {
			wg.Go(func() {
				if _, err := cl.Resolve(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if all, err := readLock(o.Lock); err != nil || len(all) != len(refs) {
		t.Errorf("%d in the file, %v", len(all), err)
	}
}

// Of a tag that moves, all processes that began before anybody had asked have
// what the first was told.
func TestLock_Moves(t *testing.T) {
	reg := registrytest.Serve(t)
	first := picture(t, 1)
	ref := tag(t, reg.Push("moving:1", first))
	o := Options{Lock: filepath.Join(t.TempDir(), "lock.json")}
	for _, cl := range []*Client{client(t, o), client(t, o), client(t, o)} {
		if h, err := cl.Resolve(t.Context(), ref); err != nil || h != hash(t, first) {
			t.Errorf("%v, %v", h, err)
		}
		reg.Push("moving:1", picture(t, 1))
	}
}

func TestLock_Damaged(t *testing.T) {
	const good = `{"schema":"sifbuild.lock/v1","images":{"docker.io/library/debian:12":{"digest":"sha256:` + digits + `","from":"x","resolved":"2026-01-02T03:04:05Z"}}}`
	for text, want := range map[string]string{
		good:                                  "",
		"":                                    "empty",
		strings.Replace(good, "}}}", "}}", 1): "cut short",
		strings.Replace(good, "lock/v1", "lock/v2", 1):                    `of the kind "sifbuild.lock/v2"`,
		strings.Replace(good, "docker.io/library/debian:12", "debian", 1): `"debian" is not the full name`,
		strings.Replace(good, digits, "1", 1):                             `"sha256:1" is not a digest`,
		strings.Replace(good, "sha256:", "sha512:", 1):                    "is not a digest",
		strings.Replace(good, "2026", "x", 1):                             "is not a time",
		strings.Replace(good, `"from"`, `"form"`, 1):                      "form",
	} {
		file := filepath.Join(t.TempDir(), "lock.json")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{Lock: file})
		if (err == nil) != (want == "") || err != nil && !(strings.Contains(err.Error(), want) && strings.Contains(err.Error(), "the lock file "+file) && strings.HasSuffix(err.Error(), "without the file, all tags are resolved anew")) {
			t.Errorf("%s\n%v, not %q", text, err, want)
		}
	}
}

const digits = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// What is read is written as it was.
func FuzzLock(f *testing.F) {
	f.Add([]byte(`{"schema":"sifbuild.lock/v1","images":{}}`))
	f.Add([]byte(`{"schema":"sifbuild.lock/v1","images":{"docker.io/library/debian:12":{"digest":"sha256:` + digits + `","from":"x","resolved":"2026-01-02T03:04:05Z"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseLock(data)
		if err != nil {
			if all != nil {
				t.Fatal("an error, and half a file")
			}
			return
		}
		again, err := parseLock(lockBytes(all))
		if err != nil {
			t.Fatalf("%v\n%s", err, lockBytes(all))
		}
		if a, b := lockBytes(all), lockBytes(again); !bytes.Equal(a, b) {
			t.Fatalf("%s\n%s", a, b)
		}
	})
}

func FuzzFlags(f *testing.F) {
	f.Add("docker.io=mirror.example.org/hub")
	f.Add("docker.io=http://[::1]:5000")
	f.Add("docker.io=80/6h")
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := ParseMirror(s); err == nil {
			if _, err := name.NewRepository(m.repo(m.Of.Repo("library/x")).Name()); err != nil && strings.Contains(m.At.RegistryStr(), ".") {
				t.Fatalf("%q: %v", s, err)
			}
		}
		if l, err := ParseLimit(s); err == nil && (l.Pulls < 1 || l.In <= 0 || l.bucket().rate <= 0) {
			t.Fatalf("%q: %+v", s, l)
		}
	})
}
