package blobs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func describe(t *testing.T, text string) v1.Descriptor {
	t.Helper()
	h, n, err := v1.SHA256(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v1.Descriptor{Digest: h, Size: n}
}

func read(s *Store, d v1.Descriptor) (string, error) {
	f, err := s.Open(d.Digest, d.Size)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return string(data), err
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	d := describe(t, "content")
	if _, err := read(s, d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not there: %v", err)
	}
	for name, r := range map[string]io.Reader{
		"other bytes": strings.NewReader("c0ntent"), "too long": strings.NewReader("content and more"), "too short": strings.NewReader("con"),
		"broken off": io.MultiReader(strings.NewReader("con"), iotest.ErrReader(io.ErrUnexpectedEOF)),
	} {
		if err := s.Save(d, r); err == nil {
			t.Errorf("%s: kept", name)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := s.Save(d, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, New(dir)} {
		for _, size := range []int64{d.Size, 0} {
			if got, err := read(s, v1.Descriptor{Digest: d.Digest, Size: size}); got != "content" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
	}
	if _, err := read(New(""), d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the Store of no folder: %v", err)
	}
}

// What is not what its name says is found out by the next process, whatever its
// size, and is gone then.
func TestStore_Damaged(t *testing.T) {
	for name, text := range map[string]string{"other bytes": "c0ntent", "shorter": "con", "longer": "content and more", "empty": ""} {
		dir := t.TempDir()
		d := describe(t, "content")
		if err := New(dir).Save(d, strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, Path(d.Digest))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := read(New(dir), d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: still there (%v)", name, err)
		}
	}
}

// Several writers of one blob do each other no harm.
func TestStore_Writers(t *testing.T) {
	dir := t.TempDir()
	d := describe(t, strings.Repeat("content", 1<<16))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := New(dir).Save(d, strings.NewReader(strings.Repeat("content", 1<<16))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := read(New(dir), d); len(got) != 7<<16 || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// What is used is marked as used, for whoever collects what is not.
func TestStore_Used(t *testing.T) {
	dir := t.TempDir()
	s, d := New(dir), describe(t, "content")
	if err := s.Save(d, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	path, old := filepath.Join(dir, Path(d.Digest)), time.Now().Add(-48*time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := read(s, d); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || !st.ModTime().After(old.Add(time.Hour)) {
		t.Errorf("%v, %v", st.ModTime(), err)
	}
}
