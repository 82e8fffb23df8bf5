package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/lockfile"
	"fence/pkg/internal/readfile"
	"fence/pkg/internal/strictjson"
)

// LockSchema names the lock file's format.
const LockSchema = "sifbuild.lock/v1"

// lockText is a lock file: what tags lead to, by their full names.
type lockText struct {
	Schema string         `json:"schema"`
	Images map[string]pin `json:"images"`
}

// pin is what a tag led to.
type pin struct {
	Digest   v1.Hash   `json:"digest"`
	From     string    `json:"from"`     // who said so
	Resolved time.Time `json:"resolved"` // when
}

// pins are what tags lead to, for this process and all that use the lock file.
// What is in the file stays, whatever the registry says by now; what two
// processes ask at a time is what the first of them has written.
type pins struct {
	o     Options
	flush sync.Mutex // one writes at a time, what all have by then

	mu    sync.Mutex
	known map[string]pin
	asked map[string]bool // by this Client
	used  map[string]pin  // what the file had before, and was taken
	fresh map[string]pin  // not yet in the file
}

func readPins(o Options) (*pins, error) {
	p := &pins{o: o, known: map[string]pin{}, asked: map[string]bool{}, used: map[string]pin{}, fresh: map[string]pin{}}
	if o.Lock == "" {
		return p, nil
	}
	all, err := readLock(o.Lock)
	if err != nil {
		return nil, err
	}
	p.known = all
	return p, nil
}

// readLock reads a lock file; one that is not there is empty.
func readLock(path string) (map[string]pin, error) {
	data, err := readfile.Regular(path, DocumentLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]pin{}, nil
	}
	if err == nil {
		var all map[string]pin
		if all, err = parseLock(data); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("the lock file %s: %w; without the file, all tags are resolved anew", path, err)
}

func parseLock(data []byte) (map[string]pin, error) {
	var text struct {
		Schema string `json:"schema"`
		Images map[string]struct {
			Digest   string `json:"digest"`
			From     string `json:"from"`
			Resolved string `json:"resolved"`
		} `json:"images"`
	}
	if _, err := strictjson.Unmarshal(data, &text); err != nil {
		return nil, err
	}
	if text.Schema != LockSchema {
		return nil, fmt.Errorf("it is of the kind %q, not %s", text.Schema, LockSchema)
	}
	all := map[string]pin{}
	for n, e := range text.Images {
		ref, err := name.NewTag(n, name.StrictValidation)
		if err != nil || Show(ref.Name()) != n {
			return nil, fmt.Errorf("%q is not the full name of an image with its tag, such as docker.io/library/debian:12", n)
		}
		p := pin{From: e.From}
		if p.Digest, err = v1.NewHash(e.Digest); err != nil || p.Digest.Algorithm != "sha256" {
			return nil, fmt.Errorf("%s: %q is not a digest", n, e.Digest)
		}
		if p.Resolved, err = time.Parse(time.RFC3339, e.Resolved); err != nil {
			return nil, fmt.Errorf("%s: %q is not a time", n, e.Resolved)
		}
		all[n] = p
	}
	return all, nil
}

// get is what a tag leads to, as far as that is settled.
func (p *pins) get(ref name.Reference) (v1.Hash, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := Show(ref.Name())
	is, ok := p.known[n]
	if ok && !p.asked[n] {
		if p.o.UpdateLock {
			return v1.Hash{}, false
		}
		p.used[n] = is
	}
	return is.Digest, ok
}

// put settles what a tag leads to, and returns that: another process may have
// been faster.
func (p *pins) put(ctx context.Context, ref name.Reference, is pin) (v1.Hash, error) {
	n := Show(ref.Name())
	p.mu.Lock()
	p.known[n], p.fresh[n], p.asked[n] = is, is, true
	p.mu.Unlock()
	if p.o.Lock == "" {
		return is.Digest, nil
	}
	p.flush.Lock()
	defer p.flush.Unlock()
	p.mu.Lock()
	_, missing := p.fresh[n] // or whoever wrote last wrote it too
	p.mu.Unlock()
	if missing {
		if err := p.write(ctx); err != nil && (p.o.LockMust || ctx.Err() != nil) {
			return v1.Hash{}, fmt.Errorf("keeping what %s leads to in the lock file: %w", n, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[n].Digest, nil
}

// write adds what is fresh to the file.
func (p *pins) write(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(p.o.Lock), 0o755); err != nil {
		return err
	}
	lock, err := lockfile.Acquire(ctx, p.o.Lock+".lock")
	if err != nil {
		return err
	}
	defer lock.Release()
	all, err := readLock(p.o.Lock)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := false
	for n, is := range p.fresh {
		if was, ok := all[n]; ok && !p.o.UpdateLock {
			p.known[n] = was
		} else {
			all[n], changed = is, true
		}
	}
	if !changed {
		clear(p.fresh)
		return nil
	}
	err = atomicfile.Write(p.o.Lock, func(w io.Writer) error { _, err := w.Write(lockBytes(all)); return err })
	if err == nil {
		clear(p.fresh)
	}
	return err
}

// lockBytes is a lock file's text.
func lockBytes(all map[string]pin) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(lockText{LockSchema, all}); err != nil {
		panic("BUG: " + err.Error())
	}
	return text.Bytes()
}

// Pinned are the tags that were taken from the lock file, and when the first of
// them was resolved.
func (c *Client) Pinned() (n int, oldest time.Time) {
	c.pins.mu.Lock()
	defer c.pins.mu.Unlock()
	for _, is := range c.pins.used {
		if oldest.IsZero() || is.Resolved.Before(oldest) {
			oldest = is.Resolved
		}
	}
	return len(c.pins.used), oldest
}
