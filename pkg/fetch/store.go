package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"fence/pkg/fetch/index"
)

// A store is a folder of what has been fetched:
//
//	urls/ab/abcd...   JSON, one entry for each key, named by the key's SHA-256
//	blobs/12/1234...  the bodies, named by their own SHA-256
//	tmp/              what is on its way
//
// Files come into urls and blobs whole, by rename, and are never changed, so
// processes of several nodes may share the folder. Nothing is synced to disk:
// a body is compared with its name before a process uses it for the first
// time, and what a crash has left of a file is as good as none.
type store struct {
	dir string

	mu    sync.Mutex
	whole map[string]os.FileInfo // bodies that this process has compared with their names
}

// entry is what a store knows of one key.
type entry struct {
	Key     string            // in full: two keys never share an entry
	SHA256  string            // of the body, lower-case hex
	Size    int64             // of the body, bytes
	Header  map[string]string // what is passed on of upstream's, see passedOn
	Checked time.Time         // when upstream last said that this is the body
}

// used is how old a file's time of last change may get before a use renews it.
const used = time.Hour

func openStore(dir string) (*store, error) {
	for _, sub := range []string{"urls", "blobs", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("making the download cache: %w", err)
		}
	}
	return &store{dir: dir, whole: map[string]os.FileInfo{}}, nil
}

func (s *store) entryPath(key string) string {
	sum := sha256.Sum256([]byte(key))
	name := hex.EncodeToString(sum[:])
	return filepath.Join(s.dir, "urls", name[:2], name)
}

func (s *store) blobPath(sum string) string { return filepath.Join(s.dir, "blobs", sum[:2], sum) }

// open finds the entry of key and opens its body. It returns nil, nil when
// there is none, or when it is not whole.
func (s *store) open(key string) (*entry, *os.File) {
	path := s.entryPath(key)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil
	}
	var e entry
	if json.Unmarshal(data, &e) != nil || e.Key != key || index.NewDigest("sha256", e.SHA256).IsNone() {
		return nil, nil
	}
	f, err := os.Open(s.blobPath(e.SHA256))
	if err != nil {
		return nil, nil
	}
	if !s.isWhole(f, e) {
		f.Close()
		os.Remove(f.Name())
		return nil, nil
	}
	now := time.Now()
	for _, name := range []string{path, f.Name()} {
		if st, err := os.Stat(name); err == nil && now.Sub(st.ModTime()) > used {
			_ = os.Chtimes(name, now, now) // another user's folder: it is collected earlier
		}
	}
	return &e, f
}

// isWhole reports whether f is the body that e names.
func (s *store) isWhole(f *os.File, e entry) bool {
	st, err := f.Stat()
	if err != nil || st.Size() != e.Size {
		return false
	}
	s.mu.Lock()
	seen := s.whole[e.SHA256]
	s.mu.Unlock()
	if seen != nil && os.SameFile(seen, st) {
		return true
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, e.Size)); err != nil || hex.EncodeToString(h.Sum(nil)) != e.SHA256 {
		return false
	}
	s.mu.Lock()
	s.whole[e.SHA256] = st
	s.mu.Unlock()
	return true
}

// keep moves the file tmp, whose content is e's body, into the store.
func (s *store) keep(tmp string, e *entry) error {
	blob := s.blobPath(e.SHA256)
	if err := os.MkdirAll(filepath.Dir(blob), 0o700); err != nil {
		return err
	}
	if err := os.Rename(tmp, blob); err != nil {
		return err
	}
	return s.put(e)
}

// put writes e over what the store has for its key.
func (s *store) put(e *entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	f, err := s.temp()
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	path := s.entryPath(e.Key)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// diskError says that the cache cannot be written, without its path: builds
// may read it.
type diskError struct{ error }

func (d *diskError) Unwrap() error { return d.error }

func onDisk(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return &diskError{fmt.Errorf("writing to the download cache: %w; sifbuild gc makes room", err)}
}

func (s *store) temp() (*os.File, error) { return os.CreateTemp(filepath.Join(s.dir, "tmp"), "") }

// Collected is what Collect has done.
type Collected struct {
	Files     int   // removed
	Bytes     int64 // removed
	LeftBytes int64
}

// Collect makes room in the cache folder dir, also while proxies use it: it
// removes what was not used for unused, then what was used least recently
// until at most maxBytes are left, and what killed proxies left more than a
// day ago. A folder that does not exist is an empty one.
func Collect(dir string, unused time.Duration, maxBytes int64) (Collected, error) {
	type file struct {
		path string
		size int64
		used time.Time
	}
	var files []file
	var done Collected
	now := time.Now()
	tmp := filepath.Join(dir, "tmp")
	for _, sub := range []string{"urls", "blobs", "tmp"} {
		err := filepath.WalkDir(filepath.Join(dir, sub), func(path string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) || (err == nil && !d.Type().IsRegular()) {
				return nil
			}
			if err != nil {
				return err
			}
			st, err := d.Info()
			if err != nil {
				return nil // another has removed it
			}
			if filepath.Dir(path) != tmp {
				files = append(files, file{path, st.Size(), st.ModTime()})
				done.LeftBytes += st.Size()
			} else if now.Sub(st.ModTime()) > 24*time.Hour {
				_ = os.Remove(path) // its maker may be doing the same
			}
			return nil
		})
		if err != nil {
			return done, fmt.Errorf("looking through the download cache: %w", err)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if now.Sub(f.used) <= unused && done.LeftBytes <= maxBytes {
			break
		}
		if err := os.Remove(f.path); err != nil && !os.IsNotExist(err) {
			return done, fmt.Errorf("making room in the download cache: %w", err)
		}
		done.Files++
		done.Bytes += f.size
		done.LeftBytes -= f.size
	}
	return done, nil
}
