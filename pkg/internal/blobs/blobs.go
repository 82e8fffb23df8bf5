// Package blobs is a folder of content named by its digest: manifests,
// configurations and layers of images. Images that have a blob in common share
// the one file.
//
//	blobs/sha256/HEX     a blob, whole
//	blobs/sha256/.HEX/*  what is on its way
//
// A file has its name when all of it is on disk, and is never changed, so
// processes and nodes may share the folder, and a writer that is killed leaves
// only a part. Storage can lose what it was told to keep: a file is compared
// with its name before a process uses it for the first time.
package blobs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Store is such a folder; it is made when it is first written to. It can be
// used by several goroutines. The Store of the empty path holds nothing.
type Store struct {
	dir string

	mu    sync.Mutex
	whole map[v1.Hash]fs.FileInfo // files that this process has compared with their names
}

// New is the Store in dir.
func New(dir string) *Store { return &Store{dir: dir, whole: map[v1.Hash]fs.FileInfo{}} }

// Path is where the blob h is below a layout's or a Store's folder.
func Path(h v1.Hash) string { return filepath.Join("blobs", h.Algorithm, h.Hex) }

// Open opens a blob and marks it as used, so that it is collected late. A file
// that is not what its name says is removed, and then as one that is not there:
// the error is fs.ErrNotExist. A size of 0 or less is not known.
func (s *Store) Open(h v1.Hash, size int64) (*os.File, error) {
	if s.dir == "" {
		return nil, fs.ErrNotExist
	}
	f, err := os.Open(filepath.Join(s.dir, Path(h)))
	if err != nil {
		return nil, err
	}
	st, err := s.compare(f, v1.Descriptor{Digest: h, Size: size})
	if err != nil {
		f.Close()
		var bad Wrong
		if errors.As(err, &bad) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.Join(fs.ErrNotExist, except(os.Remove(f.Name()), fs.ErrNotExist))
		}
		return nil, err
	}
	if now := time.Now(); now.Sub(st.ModTime()) > time.Hour {
		_ = os.Chtimes(f.Name(), now, now) // where that is not allowed, it is collected earlier
	}
	return f, nil
}

// compare reads f, unless this process has: as the same file of the same size
// and time.
func (s *Store) compare(f *os.File, d v1.Descriptor) (fs.FileInfo, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	seen := s.whole[d.Digest]
	s.mu.Unlock()
	if seen != nil && os.SameFile(seen, st) && seen.Size() == st.Size() {
		return st, nil
	}
	v, err := Verify(io.NopCloser(f), d)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, v); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.whole[d.Digest] = st
	s.mu.Unlock()
	return st, nil
}

// Save makes a blob of what r gives. Content that is not what the descriptor
// says is an error, and nothing is kept.
func (s *Store) Save(d v1.Descriptor, r io.Reader) error {
	v, err := Verify(io.NopCloser(r), d)
	if err != nil {
		return err
	}
	parts := s.parts(d.Digest)
	var f *os.File
	for range 10 {
		if err := os.MkdirAll(parts, 0o755); err != nil {
			return err
		}
		// Another writer that is done may have removed the folder just now.
		if f, err = os.CreateTemp(parts, ""); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	defer os.Remove(parts) // unless others are in it
	defer os.Remove(f.Name())
	_, err = io.Copy(f, v)
	st, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(s.dir, Path(d.Digest))); err != nil {
		return err
	}
	s.mu.Lock()
	s.whole[d.Digest] = st
	s.mu.Unlock()
	return nil
}

func (s *Store) parts(h v1.Hash) string {
	return filepath.Join(s.dir, filepath.Dir(Path(h)), "."+h.Hex)
}

// Lock is the path of a lock that a process may hold while it fetches a blob,
// so that only one does. Its folder is made.
func (s *Store) Lock(h v1.Hash) (string, error) {
	if err := os.MkdirAll(filepath.Dir(s.parts(h)), 0o755); err != nil {
		return "", err
	}
	return s.parts(h) + ".lock", nil
}

// Tidy removes what killed processes had of a blob. Whoever calls it has the
// blob's Lock.
func (s *Store) Tidy(h v1.Hash) error { return os.RemoveAll(s.parts(h)) }

func except(err, not error) error {
	if errors.Is(err, not) {
		return nil
	}
	return err
}

// Wrong is content that is not what its digest says.
type Wrong struct{ Digest, Got string }

func (e Wrong) Error() string {
	return fmt.Sprintf("the content of %s is damaged: it is %s", e.Digest, e.Got)
}
