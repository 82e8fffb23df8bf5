package build

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/lockfile"
	"fence/pkg/step"
	"fence/pkg/tree"
)

// layer is what one step changed, on this node's scratch disk.
type layer struct {
	key      string
	specials []tree.Special
}

// layers keeps the layers of a run, each for as long as a build needs it: it is
// made once, by the build that wants it first; the others wait for it.
type layers struct {
	scratch *scratch
	cache   string // where layers outlive the run: only those worth keeping
	mu      sync.Mutex
	calls   map[string]*call
	failing map[string]failing // by key: what failed just now, in a way that may pass
	needed  needed
}

// failing is a step that failed: until a time nobody tries it again, for a
// thousand images with one step in common would ask a server a thousand times.
type failing struct {
	err   error
	times int
	until time.Time
}

type call struct {
	done  chan struct{}
	layer layer
	err   error
}

// folder is where overlayfs finds a layer.
func (l *layers) folder(key string) string { return filepath.Join(l.scratch.layer(key), "fs") }

// get gives the layer of that name, which lies on those of on, making it if this
// run has not yet: out of the cache if keep is set and it is there, else by
// build, which fills the folder that it is given. fresh says that build did it.
func (l *layers) get(ctx context.Context, key string, on chain, keep bool, build func(dir string) ([]tree.Special, error)) (la layer, fresh bool, err error) {
	for {
		l.mu.Lock()
		c, running := l.calls[key]
		if f := l.failing[key]; !running && time.Now().Before(f.until) {
			l.mu.Unlock()
			return layer{}, false, f.err
		}
		if !running {
			c = &call{done: make(chan struct{})}
			l.calls[key] = c
		}
		l.mu.Unlock()
		if !running {
			c.layer, fresh, c.err = l.make(ctx, key, on, keep, build)
			l.mu.Lock()
			if c.err != nil {
				delete(l.calls, key) // another build has its own time and attempts
			} else {
				l.needed.made(key, on)
			}
			l.note(key, c.err)
			l.mu.Unlock()
			close(c.done)
			return c.layer, fresh, c.err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return layer{}, false, context.Cause(ctx)
		}
		var failed *step.Failure
		if c.err == nil || own(c.err) || errors.As(c.err, &failed) {
			return c.layer, false, c.err // it would fail here, too
		}
	}
}

// own says that a command itself failed, for whichever build it was run.
func own(err error) bool {
	var status *StatusError
	var idle *IdleError
	return errors.As(err, &status) || errors.As(err, &idle)
}

// note remembers how a step ended, if it did. The caller has l.mu.
func (l *layers) note(key string, err error) {
	if !own(err) {
		delete(l.failing, key)
		return
	}
	if f := classify(err, ""); f.Retry {
		times := l.failing[key].times + 1
		most := patience(f.Class, times)
		l.failing[key] = failing{err, times, time.Now().Add(most/4 + rand.N(most))}
	}
}

// rests is how long a step is not tried for.
func (l *layers) rests(key string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.failing[key].until), 0)
}

func (l *layers) make(ctx context.Context, key string, on chain, keep bool, build func(dir string) ([]tree.Special, error)) (la layer, fresh bool, err error) {
	la.key = key
	work, err := l.scratch.work()
	if err != nil {
		return la, false, err
	}
	defer func() {
		if _, statErr := os.Lstat(work); statErr == nil {
			err = cmp.Or(err, remove(work))
		}
	}()
	dir := filepath.Join(work, "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return la, false, err
	}
	if !keep {
		la.specials, err = build(dir)
	} else {
		la.specials, fresh, err = l.cached(ctx, key, on, work, dir, build)
	}
	if err != nil {
		return la, false, err
	}
	if _, err := os.Lstat(dir); err != nil {
		return la, false, err
	}
	return la, fresh || !keep, os.Rename(work, l.scratch.layer(key))
}

// cached fills dir from the cache, or builds and keeps what it built. Others
// who want the same step wait for it, on whatever node.
func (l *layers) cached(ctx context.Context, key string, on chain, work, dir string, build func(dir string) ([]tree.Special, error)) (specials []tree.Special, fresh bool, err error) {
	lock, err := lockfile.Acquire(ctx, filepath.Join(l.cache, "locks", key))
	if err != nil {
		return nil, false, err
	}
	defer lock.Release()
	name := filepath.Join(l.cache, "layers", key+".tar")
	switch whole, err := compressed(name); {
	case err == nil && !whole:
		// Nothing that store wrote: a lost write of the storage, or somebody else's file.
		if err := os.Remove(name); err != nil {
			return nil, false, err
		}
	case err == nil:
		use(name)
		u := step.Unpack{Out: dir, Below: l.folders(on)}
		specials, err := l.unpack(ctx, work, u, func() (io.ReadCloser, error) { return os.Open(name) })
		if err != nil {
			err = fmt.Errorf("the cached step %s: %w", name, err)
			if ctx.Err() == nil && os.Remove(name) == nil {
				err = &CacheError{err}
			}
			return nil, false, err
		}
		return specials, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, err
	}
	if err := unfinished(l.cache, "layers", key); err != nil {
		return nil, false, err
	}
	if specials, err = build(dir); err != nil {
		return nil, false, err
	}
	if err := l.store(ctx, work, dir, specials, name); err != nil {
		return nil, false, fmt.Errorf("keeping a step in the cache: %w", err)
	}
	return specials, true, nil
}

// compressed says whether a file begins as store's do. What is cut short later
// is found out when it is unpacked: zstd ends with a checksum.
func compressed(name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && magic == [4]byte{0x28, 0xb5, 0x2f, 0xfd}, nil // RFC 8878, 3.1.1
}

// CacheError is a file of the cache that is damaged, and removed by now.
type CacheError struct{ Err error }

func (e *CacheError) Error() string {
	return e.Err.Error() + " (removed: the next attempt makes it again)"
}
func (e *CacheError) Unwrap() error { return e.Err }

// unpack fills a folder from layer tars, lowest first.
func (l *layers) unpack(ctx context.Context, work string, u step.Unpack, streams ...step.Stream) ([]tree.Special, error) {
	u.Streams = len(streams)
	r, err := l.scratch.engine.do(ctx, step.Spec{Dir: work, Unpack: &u}, os.Stderr, streams...)
	return r.Specials, err
}

// store writes a layer into the cache, whole or not at all.
func (l *layers) store(ctx context.Context, work, dir string, specials []tree.Special, name string) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".")
	if err != nil {
		return err
	}
	if err := errors.Join(tmp.Chmod(0o644), tmp.Close()); err != nil { // nodes and people may share a cache
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := l.scratch.engine.do(ctx, step.Spec{Dir: work, Tar: &step.Tar{Layer: dir, Specials: specials, Out: tmp.Name()}}, os.Stderr); err != nil {
		return err
	}
	_, err = first(tmp.Name(), name)
	return err
}

// first gives a file that is whole its name, unless another has it already: a
// node that sees others' files late may have made the same once more. What has
// the name is never replaced, for those who are reading it may know its old
// size for a while.
func first(made, name string) (mine bool, err error) {
	switch err = os.Link(made, name); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrExist):
		return false, nil
	}
	return true, os.Rename(made, name) // a file system without hard links
}

// unfinished removes what a killed build has begun to write for a key (each
// such file is named .KEY and more, as by atomicfile). The caller has the key's
// lock, so nobody is writing it.
func unfinished(cache, sub, key string) error {
	names, err := filepath.Glob(filepath.Join(cache, sub, "."+key+".*"))
	for _, name := range names {
		err = errors.Join(err, ignoreGone(os.Remove(name)))
	}
	return err
}

// maxLayers is how many layers one overlay is made of: the kernel takes 500
// (OVL_MAX_STACK), and each costs a little at every look-up.
const maxLayers = 48

// chain is the layers that a stage consists of so far, lowest first.
type chain []layer

func (c chain) specials() []tree.Special {
	var all [][]tree.Special
	for _, l := range c {
		all = append(all, l.specials)
	}
	return tree.MergeSpecials(all...)
}

// folders are where the layers are, lowest first.
func (l *layers) folders(c chain) []string {
	var out []string
	for _, la := range c {
		out = append(out, l.folder(la.key))
	}
	return out
}

// lower are the folders, highest first, as an overlay wants them.
func (l *layers) lower(c chain) []string {
	out := l.folders(c)
	slices.Reverse(out)
	return out
}

// shorten makes one layer of all but the lowest, if there are too many.
func (l *layers) shorten(ctx context.Context, c chain) (chain, error) {
	if len(c) <= maxLayers {
		return c, nil
	}
	key := digest("merged", c[len(c)-1].key)
	merged, _, err := l.get(ctx, key, c, false, func(dir string) ([]tree.Special, error) {
		work, err := l.scratch.work()
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(work)
		if err := os.Remove(dir); err != nil {
			return nil, err // it is made
		}
		_, err = l.scratch.engine.do(ctx, step.Spec{Dir: work, Merge: &step.Merge{Below: []string{l.folder(c[0].key)}, Layers: l.folders(c[1:]), Out: dir}}, os.Stderr)
		return c.specials(), err
	})
	return chain{layer{key: c[0].key}, merged}, err // all specials are in the upper one
}

// writeJSON writes a record, whole or not at all.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}
