package tree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// hashers is how many files are read at once: more than a few gain nothing on
// one disk, and a node is shared.
func hashers() int { return min(runtime.GOMAXPROCS(0), 8) }

// hashAll fills in SHA256 of all files of matches.
func hashAll(root string, matches []Match) error {
	type job struct {
		path  string
		entry *Entry
	}
	var jobs []job
	add := func(p string, e *Entry) {
		if e.Type == "file" {
			jobs = append(jobs, job{p, e})
		}
	}
	for i := range matches {
		m := &matches[i]
		add(m.Path, &m.Entry)
		for j := range m.Below {
			add(path.Join(m.Path, m.Below[j].Path), &m.Below[j])
		}
	}
	work := make(chan job)
	g, ctx := errgroup.WithContext(context.Background())
	for range hashers() {
		g.Go(func() error {
			r, err := openRoot(root)
			if err != nil {
				return err
			}
			defer r.Close()
			buf := make([]byte, 256<<10)
			for j := range work {
				if err := hashEntry(r, j.path, j.entry, buf); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(work)
		for _, j := range jobs {
			select {
			case work <- j:
			case <-ctx.Done(): // one failed
				return nil
			}
		}
		return nil
	})
	return g.Wait()
}

// hashEntry fills in the digest and the size that was read.
func hashEntry(r *rooted, p string, e *Entry, buf []byte) error {
	f, err := r.openFile(p)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buf)
	if err != nil {
		return inside("read", p, err)
	}
	e.Size, e.SHA256 = n, hex.EncodeToString(h.Sum(nil))
	return nil
}
