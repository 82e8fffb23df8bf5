package base

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fence/pkg/registry"
)

// registry is the base that a registry has.
func (s *Store) registry(ctx context.Context, image string, platform v1.Platform) (Base, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return Base{}, errors.New("it is not the name of an image: write NAME, NAME:TAG or REGISTRY/NAME@sha256:DIGEST")
	}
	if s.opt.Registry == nil {
		return Base{}, registry.ErrOffline
	}
	top, raw, err := s.opt.Registry.Top(ctx, ref)
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
	c, repo := s.opt.Registry, ref.Context()
	d, err := s.describe(ctx, documents{c, repo}, []v1.Descriptor{from}, "", platform)
	if err != nil {
		return Base{}, err
	}
	b, err := d.base(func(ctx context.Context) (content, error) {
		return pulled{c, repo}, c.Fetch(ctx, repo, d.manifest.Layers)
	})
	b.Source, b.from = registry.Show(repo.Name()), func() []string { return c.From(repo) }
	b.blobs = []v1.Hash{top, d.digest, d.manifest.Config.Digest}
	for _, l := range d.manifest.Layers {
		b.blobs = append(b.blobs, l.Digest)
	}
	return b, err
}

// documents are what describes the images of a repository, pulled their layers.
type (
	documents struct {
		c    *registry.Client
		repo name.Repository
	}
	pulled documents
)

func (r documents) open(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	data, err := r.c.Document(ctx, r.repo, d)
	return io.NopCloser(bytes.NewReader(data)), err
}

func (r pulled) open(ctx context.Context, l v1.Descriptor) (io.ReadCloser, error) {
	return r.c.Open(ctx, r.repo, l)
}
