package build

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fence/pkg/internal/lockfile"
)

// GCOptions say what of a cache may go.
type GCOptions struct {
	Cache  string
	Unused time.Duration // what nobody has used for so long; 0: whatever its age
	Keep   int64         // bytes that may stay, the last used first; 0: no bound
	DryRun bool
}

// Gone is what GC removed, or would: a file, or the folder of what is half done.
type Gone struct {
	Schema string    `json:"schema"`
	Path   string    `json:"path"`
	Kind   string    `json:"kind"` // image, step, base, download, log or remains
	Bytes  int64     `json:"bytes"`
	Used   time.Time `json:"used"`
}

// GoneSchema names the record of one removed file.
const GoneSchema = "sifbuild.gone/v1"

// remains is how long what a killed process left half done is kept: longer
// than any build goes on.
const remains = 7 * 24 * time.Hour

// GC removes what has not been used for long from a cache: images with their
// reports and logs, steps, bases, downloads; and what killed processes left.
// Something counts as used when it was made or a build took it (its time of
// last change is set then). What a run under way needs is left alone, on
// whatever node: its bases, its steps and images, there or not yet.
func GC(o GCOptions) ([]Gone, error) {
	if _, err := os.Stat(filepath.Join(o.Cache, "sif")); err != nil {
		return nil, fmt.Errorf("%s is no cache of sifbuild: %w", o.Cache, err)
	}
	all, err := things(o.Cache)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Gone) int { return cmp.Or(b.Used.Compare(a.Used), strings.Compare(a.Path, b.Path)) })
	known := runs(o.Cache)
	held, err := heldNames(o.Cache)
	if err != nil {
		return nil, err
	}
	gone := []Gone{}
	var kept int64
	for _, t := range all {
		least, bound := o.Unused, o.Keep
		if t.Kind == "remains" {
			least, bound = remains, 0
		}
		if old := time.Since(t.Used) >= least; !old || bound > 0 && kept+t.Bytes <= bound || held[t.key()] {
			kept += t.Bytes
			continue
		}
		if o.DryRun {
			gone = append(gone, t)
			continue
		}
		if now := runs(o.Cache); !slices.Equal(now, known) { // one may have begun since
			if held, err = heldNames(o.Cache); err != nil {
				return gone, err
			}
			if known = now; held[t.key()] {
				continue
			}
		}
		removed, err := t.remove(o.Cache)
		if removed {
			gone = append(gone, t)
		}
		if err != nil {
			return gone, err
		}
	}
	return gone, nil
}

// things are what a cache holds, as it is removed.
func things(cache string) (all []Gone, err error) {
	add := func(kind, path string) error {
		t := Gone{Schema: GoneSchema, Kind: kind, Path: path}
		if strings.HasPrefix(filepath.Base(path), ".") {
			t.Kind = "remains"
		}
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return ignoreGone(err)
			}
			info, err := d.Info()
			if err != nil {
				return ignoreGone(err)
			}
			if d.Type().IsRegular() {
				t.Bytes += info.Size()
			}
			if info.ModTime().After(t.Used) { // of a folder: when any of it was used last
				t.Used = info.ModTime()
			}
			return nil
		})
		if err == nil && !t.Used.IsZero() {
			all = append(all, t)
		}
		return err
	}
	for _, in := range []struct{ dir, kind string }{
		{"sif", "image"}, {"layers", "step"}, {"base/blobs/sha256", "base"}, {"base/local", "base"}, {"logs", "log"},
		{"locks", "remains"}, {"runs", "remains"},
	} {
		entries, err := os.ReadDir(filepath.Join(cache, in.dir))
		if ignoreGone(err) != nil {
			return nil, err
		}
		for _, e := range entries {
			p := filepath.Join(cache, in.dir, e.Name())
			switch name := e.Name(); {
			case in.dir == "sif" && strings.HasSuffix(name, ".json") && !strings.HasPrefix(name, "."):
				continue // with its image
			case in.dir == "logs" && exists(filepath.Join(cache, "sif", strings.TrimSuffix(name, ".log")+".sif")):
				continue // with its image
			}
			if err := add(in.kind, p); err != nil {
				return nil, err
			}
		}
	}
	// A download is a file of its own; its blob goes when it has not been used either.
	err = filepath.WalkDir(filepath.Join(cache, "downloads"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		return add("download", p)
	})
	return all, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// key is the name that a run holds t by.
func (t Gone) key() string {
	return strings.TrimSuffix(filepath.Base(t.Path), filepath.Ext(t.Path))
}

// remove removes t, unless a build is at it: that one holds the lock of its
// key, on whatever node.
func (t Gone) remove(cache string) (removed bool, err error) {
	key := t.key()
	if t.Kind == "image" || t.Kind == "step" || t.Kind == "log" {
		if err := os.MkdirAll(filepath.Join(cache, "locks"), 0o755); err != nil {
			return false, err
		}
		lock, _, err := lockfile.Try(filepath.Join(cache, "locks", key))
		if err != nil || lock == nil {
			return false, err
		}
		defer lock.Release()
	}
	if t.Kind == "image" {
		// First the report: an image without one counts for nothing.
		for _, beside := range []string{filepath.Join(cache, "sif", key+".json"), filepath.Join(cache, "logs", key+".log")} {
			if err := os.Remove(beside); ignoreGone(err) != nil {
				return false, err
			}
		}
	}
	return true, os.RemoveAll(t.Path)
}

// use marks something of the cache as used now. Where that is not allowed, it
// is collected earlier.
func use(path string) {
	now := time.Now()
	if st, err := os.Stat(path); err == nil && now.Sub(st.ModTime()) > time.Hour {
		_ = os.Chtimes(path, now, now)
	}
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
