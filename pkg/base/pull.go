package base

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/lockfile"
)

// The folder of a Store holds
//
//	sha256-HEX/           one image, as an OCI layout of its own, whole
//	describe/sha256-HEX   an index, a manifest or a configuration
//	tags/HEX.json         what a name last led to, for when there is no network
//	local/HEX.json        digests of local bases
//
// and, while an image is fetched, a lock and a folder that begin with a dot.

// registry is the base that a registry has.
func (s *Store) registry(ctx context.Context, image string, platform v1.Platform) (Base, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return Base{}, errors.New("it is not the name of an image: write NAME, NAME:TAG or REGISTRY/NAME@sha256:DIGEST")
	}
	top, err := s.digest(ctx, ref)
	if err != nil {
		return Base{}, err
	}
	c := &documents{s: s, repo: ref.Context(), seen: map[v1.Hash][]byte{}}
	raw, err := document(ctx, c, v1.Descriptor{Digest: top, MediaType: types.OCIManifestSchema1})
	if err != nil {
		return Base{}, err
	}
	var kind struct {
		MediaType types.MediaType
		Manifests []json.RawMessage
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		return Base{}, fmt.Errorf("its manifest %s: %w", top, err)
	}
	from := v1.Descriptor{Digest: top, MediaType: types.OCIManifestSchema1}
	if kind.MediaType.IsIndex() || kind.Manifests != nil {
		from.MediaType = types.OCIImageIndex
	}
	d, err := s.describe(ctx, c, []v1.Descriptor{from}, "", platform)
	if err != nil {
		return Base{}, err
	}
	b, err := d.base(func(ctx context.Context) (content, error) { return s.pull(ctx, ref.Context(), d) })
	b.Source = ref.Context().Name()
	return b, err
}

// digest is what a name leads to now. HEAD is not counted by Docker Hub's
// limit; GET is.
func (s *Store) digest(ctx context.Context, ref name.Reference) (v1.Hash, error) {
	if d, ok := ref.(name.Digest); ok {
		return v1.NewHash(d.DigestStr())
	}
	sum := sha256.Sum256([]byte(ref.Name()))
	file := filepath.Join(s.opt.Dir, "tags", hex.EncodeToString(sum[:16])+".json")
	if s.opt.Offline {
		var was struct{ Digest v1.Hash }
		if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &was) == nil {
			return was.Digest, nil
		}
		return v1.Hash{}, errors.New("it is not local, and --offline allows no request: fetch it once without, or give it with --base")
	}
	var h v1.Hash
	err := s.remote.do(ctx, ref.Context().Registry, func(p *remote.Puller) error {
		d, err := p.Head(ctx, ref)
		if err == nil {
			h = d.Digest
		}
		return err
	})
	if err != nil {
		return v1.Hash{}, err
	}
	s.keep(file, mustJSON(map[string]string{"name": ref.Name(), "digest": h.String()}))
	return h, nil
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return append(data, '\n')
}

// keep writes a file that saves a request later. Where it cannot be written,
// the request is made.
func (s *Store) keep(file string, data []byte) {
	if s.opt.Dir == "" || os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	_ = atomicfile.Write(file, func(w io.Writer) error { _, err := w.Write(data); return err })
}

// documents is what describes the images of a repository: kept here, or asked
// of the registry.
type documents struct {
	s    *Store
	repo name.Repository
	mu   sync.Mutex
	seen map[v1.Hash][]byte
}

func (c *documents) open(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if data, ok := c.seen[d.Digest]; ok {
		return io.NopCloser(bytes.NewReader(data)), nil
	}
	file := filepath.Join(c.s.opt.Dir, "describe", dirName(d.Digest))
	if data, err := os.ReadFile(file); err == nil && c.s.opt.Dir != "" {
		if h, _, err := v1.SHA256(bytes.NewReader(data)); err == nil && h == d.Digest {
			c.seen[d.Digest] = data
			return io.NopCloser(bytes.NewReader(data)), nil
		}
	}
	if c.s.opt.Offline {
		return nil, errors.New("it is not local, and --offline allows no request: fetch it once without, or give it with --base")
	}
	var data []byte
	err := c.s.remote.do(ctx, c.repo.Registry, func(p *remote.Puller) (err error) {
		data, err = c.fetch(ctx, p, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.seen[d.Digest] = data
	c.s.keep(file, data)
	return io.NopCloser(bytes.NewReader(data)), nil
}

// fetch asks for one document, and checks it, so that a wrong one is asked
// for again.
func (c *documents) fetch(ctx context.Context, p *remote.Puller, d v1.Descriptor) ([]byte, error) {
	ref := c.repo.Digest(d.Digest.String())
	var r io.ReadCloser
	if d.MediaType.IsImage() || d.MediaType.IsIndex() {
		got, err := p.Get(ctx, ref)
		if err != nil {
			return nil, mismatch(d.Digest, err)
		}
		r = io.NopCloser(bytes.NewReader(got.Manifest))
	} else {
		l, err := p.Layer(ctx, ref)
		if err != nil {
			return nil, err
		}
		if r, err = l.Compressed(); err != nil {
			return nil, err
		}
	}
	defer r.Close()
	v, err := verify(io.NopCloser(io.LimitReader(r, describeLimit)), d)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(v)
	return data, mismatch(d.Digest, err)
}

// mismatch makes the library's error about a wrong digest ours: it is worth
// another try.
func mismatch(h v1.Hash, err error) error {
	if err != nil && (strings.Contains(err.Error(), "does not match requested digest") || strings.Contains(err.Error(), "error verifying")) {
		return wrong{h.String(), "something else"}
	}
	return err
}

func dirName(h v1.Hash) string { return h.Algorithm + "-" + h.Hex }

// whole says whether the layout dir has all of the image, and marks it as used
// just now: what is long unused may be removed, file by file.
func (d described) whole(dir string) bool {
	if !isLayout(dir) {
		return false
	}
	now := time.Now()
	for _, l := range append([]v1.Descriptor{d.manifest.Config}, d.manifest.Layers...) {
		p := filepath.Join(dir, blobPath(l.Digest))
		if st, err := os.Stat(p); err != nil || (l.Size > 0 && st.Size() != l.Size) {
			return false
		}
		_ = os.Chtimes(p, now, now)
	}
	return true
}

// pull fetches the image d, unless it is there, into a folder that appears
// whole or not at all. One process fetches at a time; what a killed one had
// whole is used again, and so is what is left of an image of which files
// were removed.
func (s *Store) pull(ctx context.Context, repo name.Repository, d described) (layoutDir, error) {
	dir := filepath.Join(s.opt.Dir, dirName(d.digest))
	if d.whole(dir) {
		return layoutDir(dir), nil
	}
	if s.opt.Offline {
		return "", errors.New("its layers are not local, and --offline allows no request: fetch it once without, or give it with --base")
	}
	if s.opt.Dir == "" {
		return "", errors.New("an image of a registry needs a folder to be kept in: name one with --cache")
	}
	if err := os.MkdirAll(s.opt.Dir, 0o755); err != nil {
		return "", fmt.Errorf("keeping it: %w", err)
	}
	part := filepath.Join(s.opt.Dir, "."+dirName(d.digest))
	lock, err := lockfile.Acquire(ctx, part+".lock")
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if d.whole(dir) {
		return layoutDir(dir), nil
	}
	if err := os.Rename(dir, part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(dir); err != nil { // both are there: a process was killed between
			return "", fmt.Errorf("mending it: %w", err)
		}
	}
	if err := s.fill(ctx, repo, d, part); err != nil {
		return "", errCtx(ctx, full(s.opt.Dir, err))
	}
	if err := os.Rename(part, dir); err != nil && !d.whole(dir) {
		return "", fmt.Errorf("keeping it: %w", err)
	}
	return layoutDir(dir), nil
}

// full names the cache where its disk is what failed.
func full(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk of %s is full: %w", dir, err)
	}
	return err
}

// fill makes the layout of d in the folder part.
func (s *Store) fill(ctx context.Context, repo name.Repository, d described, part string) error {
	blobs := filepath.Join(part, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(blobs, "*.part-*")) // of a process that was killed
	if err != nil {
		return err
	}
	for _, p := range old {
		os.Remove(p)
	}
	for h, data := range d.raw {
		if err := save(filepath.Join(part, blobPath(h)), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	want := map[v1.Hash]v1.Descriptor{}
	for _, l := range d.manifest.Layers {
		want[l.Digest] = l
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(3) // as docker pull
	for _, l := range want {
		g.Go(func() error { return s.layer(gctx, repo, l, filepath.Join(part, blobPath(l.Digest))) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{{MediaType: d.mediaType(), Digest: d.digest, Size: int64(len(d.raw[d.digest]))}}}
	for name, data := range map[string][]byte{"index.json": mustJSON(index), "oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}` + "\n")} {
		if err := save(filepath.Join(part, name), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return nil
}

func (d described) mediaType() types.MediaType {
	if d.manifest.MediaType != "" {
		return d.manifest.MediaType
	}
	return types.OCIManifestSchema1
}

// save makes a file that is on disk, whole, when it has its name.
func save(path string, r io.Reader) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// layer brings one layer to path: from an earlier try, from another image that
// has it too, or from the registry.
func (s *Store) layer(ctx context.Context, repo name.Repository, l v1.Descriptor, path string) error {
	if st, err := os.Stat(path); err == nil && (l.Size <= 0 || st.Size() == l.Size) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	there, err := filepath.Glob(filepath.Join(s.opt.Dir, "*", blobPath(l.Digest)))
	if err != nil {
		return err
	}
	for _, p := range there {
		if st, err := os.Stat(p); err == nil && st.Size() == l.Size && os.Link(p, path) == nil {
			return nil
		}
	}
	err = s.remote.do(ctx, repo.Registry, func(p *remote.Puller) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		rl, err := p.Layer(ctx, repo.Digest(l.Digest.String()))
		if err != nil {
			return err
		}
		r, err := rl.Compressed()
		if err != nil {
			return err
		}
		defer r.Close()
		v, err := verify(moving(r, cancel), l)
		if err != nil {
			return err
		}
		err = save(path, v)
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			return cause
		}
		return mismatch(l.Digest, err)
	})
	if err != nil {
		return fmt.Errorf("fetching the layer %s: %w", l.Digest, err)
	}
	return nil
}

var errStalled = fmt.Errorf("nothing came for %v", stall)

// moving cancels a transfer that stands still.
func moving(r io.ReadCloser, cancel context.CancelCauseFunc) io.ReadCloser {
	t := time.AfterFunc(stall, func() { cancel(errStalled) })
	return &watched{r, t}
}

type watched struct {
	io.ReadCloser
	t *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.t.Reset(stall)
	if err != nil {
		w.t.Stop()
	}
	return n, err
}
