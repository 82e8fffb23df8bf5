package tree

import (
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
	for i := range matches {
		m := &matches[i]
		jobs = append(jobs, job{m.Path, &m.Entry})
		for j := range m.Below {
			jobs = append(jobs, job{path.Join(m.Path, m.Below[j].Path), &m.Below[j]})
		}
	}
	work := make(chan job)
	var g errgroup.Group
	stop := make(chan struct{})
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
	failed := make(chan error, 1)
	go func() { failed <- g.Wait(); close(stop) }()
feed:
	for _, j := range jobs {
		if j.entry.Type != "file" {
			continue
		}
		select {
		case work <- j:
		case <-stop:
			break feed
		}
	}
	close(work)
	return <-failed
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
