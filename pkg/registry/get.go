package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"fence/pkg/internal/blobs"
	"fence/pkg/internal/lockfile"
)

// DocumentLimit is how long a document may be that describes an image, in
// bytes. Registries refuse to store longer ones (the OCI distribution
// specification says 4 MiB; some allow more).
const DocumentLimit = 16 << 20

// ErrOffline is what is not there and would take a request.
var ErrOffline = errors.New("it is not local, and --offline allows no request: fetch it once without, or give it with --base")

// Resolve is what a name leads to: by the name itself, by the lock file, else by
// whoever is asked. It is the same for as long as the Client lives, and for as
// long as the lock file says so.
func (c *Client) Resolve(ctx context.Context, ref name.Reference) (v1.Hash, error) {
	if d, ok := ref.(name.Digest); ok {
		return v1.NewHash(d.DigestStr())
	}
	unlock, err := c.flights.lock(ctx, "tag "+ref.Name())
	if err != nil {
		return v1.Hash{}, err
	}
	defer unlock()
	if h, ok := c.pins.get(ref); ok {
		return h, nil
	}
	if c.o.Offline {
		return v1.Hash{}, ErrOffline
	}
	var h v1.Hash
	by, err := c.ask(ctx, ref.Context(), func(s source) (err error) {
		h, err = s.head(ctx, s.repo, ref.Identifier())
		return err
	})
	if err != nil {
		return v1.Hash{}, err
	}
	return c.pins.put(ctx, ref, pin{Digest: h, From: by, Resolved: c.clock.Now().UTC().Truncate(1e9)})
}

// Top is the index or manifest that a name leads to.
func (c *Client) Top(ctx context.Context, ref name.Reference) (v1.Hash, []byte, error) {
	h, err := c.Resolve(ctx, ref)
	if err != nil {
		return h, nil, err
	}
	data, err := c.Document(ctx, ref.Context(), v1.Descriptor{Digest: h, MediaType: types.OCIManifestSchema1})
	var refused *Refused
	if _, tag := ref.(name.Tag); tag && errors.As(err, &refused) && refused.Status == http.StatusNotFound && c.o.Lock != "" {
		err = &Refused{refused.Registry, refused.Status, fmt.Sprintf("the registry %s does not have %s, which is what the lock file %s says that the name led to: --update-lock asks anew", refused.Registry, h, c.o.Lock)}
	}
	return h, data, err
}

// head is what a tag leads to. HEAD is not counted by Docker Hub's limit; GET
// is, and made only of a registry that does not answer HEAD with a digest.
func (h *host) head(ctx context.Context, repo name.Repository, tag string) (v1.Hash, error) {
	resp, err := h.send(ctx, http.MethodHead, repo, "manifests", tag)
	var status *transport.Error
	switch {
	case err == nil:
		resp.Body.Close()
		if d, err := v1.NewHash(resp.Header.Get("Docker-Content-Digest")); err == nil {
			return d, nil
		}
	case !errors.As(err, &status) || status.StatusCode != http.StatusMethodNotAllowed && status.StatusCode != http.StatusNotImplemented:
		return v1.Hash{}, err
	}
	var d v1.Hash
	err = h.receive(ctx, repo, "manifests", tag, func(r io.Reader) (err error) {
		d, _, err = v1.SHA256(io.LimitReader(r, DocumentLimit))
		return err
	})
	return d, err
}

// Document is what describes an image: an index, a manifest or a configuration.
func (c *Client) Document(ctx context.Context, repo name.Repository, d v1.Descriptor) ([]byte, error) {
	key := d.Digest.String()
	c.mu.Lock()
	data, ok := c.seen[key]
	c.mu.Unlock()
	if ok {
		return data, nil
	}
	kind := "blobs"
	if d.MediaType.IsImage() || d.MediaType.IsIndex() {
		kind = "manifests"
	}
	err := c.have(ctx, repo, d, kind, func(r io.Reader) error {
		v, err := blobs.Verify(io.NopCloser(io.LimitReader(r, DocumentLimit)), d)
		if err != nil {
			return err
		}
		if data, err = io.ReadAll(v); err != nil {
			return err
		}
		if c.o.Dir != "" {
			if err := c.blobs.Save(d, bytes.NewReader(data)); !readOnly(err) {
				return err
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen[key] = data
		return nil
	})
	if err != nil {
		return nil, err
	}
	if data == nil {
		f, err := c.blobs.Open(d.Digest, d.Size)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil {
			return nil, err
		} else if st.Size() > DocumentLimit { // a layer, which is there under that name
			return nil, &Refused{show(repo.Registry), 0, fmt.Sprintf("it is damaged: %s describes an image and has %d bytes", d.Digest, st.Size())}
		}
		return io.ReadAll(f)
	}
	return data, nil
}

// Fetch brings layers into the folder, a few at a time.
func (c *Client) Fetch(ctx context.Context, repo name.Repository, layers []v1.Descriptor) error {
	if c.o.Dir == "" {
		return errors.New("an image of a registry needs a folder to be kept in: name one with --cache")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(3) // as docker pull
	for _, l := range layers {
		if l.Size <= 0 { // else it could be sent for ever
			return &Refused{show(repo.Registry), 0, fmt.Sprintf("it is damaged: the size of its layer %s is %d", l.Digest, l.Size)}
		}
		g.Go(func() error {
			err := c.have(ctx, repo, l, "blobs", func(r io.Reader) error { return c.blobs.Save(l, r) })
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("fetching the layer %s: %w", l.Digest, err)
			}
			return err
		})
	}
	return g.Wait()
}

// Open opens a layer, and fetches it first if it is not in the folder.
func (c *Client) Open(ctx context.Context, repo name.Repository, l v1.Descriptor) (io.ReadCloser, error) {
	f, err := c.blobs.Open(l.Digest, l.Size)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := c.Fetch(ctx, repo, []v1.Descriptor{l}); err != nil {
		return nil, err
	}
	return c.blobs.Open(l.Digest, l.Size)
}

// have makes sure that a blob is in the folder: else it is fetched, by one
// process at a time, and given to keep.
func (c *Client) have(ctx context.Context, repo name.Repository, d v1.Descriptor, kind string, keep func(io.Reader) error) error {
	unlock, err := c.flights.lock(ctx, d.Digest.String())
	if err != nil {
		return err
	}
	defer unlock()
	if there, err := c.has(d); there || err != nil {
		return err
	}
	if c.o.Offline {
		return ErrOffline
	}
	if c.o.Dir != "" {
		path, err := c.blobs.Lock(d.Digest)
		var lock *lockfile.Lock
		if err == nil {
			lock, err = lockfile.Acquire(ctx, path)
		}
		switch {
		case err == nil:
			defer lock.Release()
			if there, err := c.has(d); there || err != nil {
				return err
			}
			if err := c.blobs.Tidy(d.Digest); err != nil {
				return err
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case !readOnly(err):
			return c.full(err)
		}
	}
	_, err = c.ask(ctx, repo, func(s source) error {
		return s.receive(ctx, s.repo, kind, d.Digest.String(), keep)
	})
	if err != nil && onDisk(err) {
		// This process may have stood still for so long that another took its place.
		if there, _ := c.has(d); there {
			return nil
		}
	}
	return c.full(err)
}

// readOnly says that the folder is one that others write to.
func readOnly(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// full names the folder where its disk is what failed.
func (c *Client) full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk of %s is full: %w", c.o.Dir, err)
	}
	return err
}

func (c *Client) has(d v1.Descriptor) (bool, error) {
	f, err := c.blobs.Open(d.Digest, d.Size)
	if err == nil {
		return true, f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return false, err
}
