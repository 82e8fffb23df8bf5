package base

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fence/pkg/internal/blobs"
	"fence/pkg/internal/readfile"
	"fence/pkg/registry"
)

// A content is where blobs are found by digest: a layout, an archive, what
// was fetched, a registry. What it gives is not yet checked.
type content interface {
	open(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)
}

// document reads a blob that describes an image, and checks it.
func document(ctx context.Context, c content, d v1.Descriptor) ([]byte, error) {
	if d.Size > registry.DocumentLimit {
		return nil, fmt.Errorf("%s has %d bytes, too many for what describes an image", d.Digest, d.Size)
	}
	r, err := c.open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	v, err := blobs.Verify(io.NopCloser(io.LimitReader(r, registry.DocumentLimit)), d)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(v)
}

// described is an image as its manifest and configuration describe it.
type described struct {
	digest   v1.Hash
	manifest v1.Manifest
	config   v1.ConfigFile
	raw      map[v1.Hash][]byte // the manifest and the configuration
}

// describe reads the image that one of these descriptors leads to. tag
// chooses among several of one platform by their reference names.
func (s *Store) describe(ctx context.Context, c content, from []v1.Descriptor, tag string, platform v1.Platform) (described, error) {
	d, err := s.choose(ctx, c, from, tag, platform, 0)
	if err != nil {
		return described{}, err
	}
	raw, err := document(ctx, c, d)
	if err != nil {
		return described{}, fmt.Errorf("reading its manifest: %w", err)
	}
	out := described{digest: d.Digest, raw: map[v1.Hash][]byte{d.Digest: raw}}
	if err := json.Unmarshal(raw, &out.manifest); err != nil {
		return described{}, fmt.Errorf("its manifest %s: %w", d.Digest, err)
	}
	switch {
	case out.manifest.SchemaVersion == 1:
		return described{}, errors.New("it is in the format that Docker gave up in 2017 (schema 1): pull and push it with a current docker")
	case out.manifest.Config.Digest == v1.Hash{}:
		return described{}, fmt.Errorf("its manifest %s names no configuration: this is no container image", d.Digest)
	}
	cfg, err := document(ctx, c, out.manifest.Config)
	if err != nil {
		return described{}, fmt.Errorf("reading its configuration: %w", err)
	}
	out.raw[out.manifest.Config.Digest] = cfg
	if err := json.Unmarshal(cfg, &out.config); err != nil {
		return described{}, fmt.Errorf("its configuration %s: %w", out.manifest.Config.Digest, err)
	}
	if is := platformOf(out.config); !fits(is, platform) {
		return described{}, s.errPlatform(platform, []string{is.String()})
	}
	if n, m := len(out.config.RootFS.DiffIDs), len(out.manifest.Layers); n != m {
		return described{}, fmt.Errorf("it is damaged: %d layers, and %d in its configuration", m, n)
	}
	return out, nil
}

func platformOf(c v1.ConfigFile) v1.Platform {
	return v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
}

// choose goes through indexes to the manifest of the image for a platform.
func (s *Store) choose(ctx context.Context, c content, from []v1.Descriptor, tag string, platform v1.Platform, depth int) (v1.Descriptor, error) {
	var there []string
	var fit []v1.Descriptor
	for _, d := range from {
		if d.Annotations["vnd.docker.reference.type"] == "attestation-manifest" {
			continue // buildx keeps how an image was built beside it
		}
		if d.Platform != nil {
			there = append(there, d.Platform.String())
			if !fits(*d.Platform, platform) {
				continue
			}
		}
		fit = append(fit, d)
	}
	fit = best(fit, tag, platform)
	switch {
	case len(fit) == 0 && len(there) == 0:
		return v1.Descriptor{}, errors.New("it holds no image")
	case len(fit) == 0:
		slices.Sort(there)
		return v1.Descriptor{}, s.errPlatform(platform, slices.Compact(there))
	case len(fit) > 1:
		var names []string
		for _, d := range fit {
			names = append(names, cmpOr(d.Annotations[refName], d.Digest.String()))
		}
		return v1.Descriptor{}, fmt.Errorf("it holds several images for %s (%s): name it by one of their tags, or keep one image in it", platform, strings.Join(names, ", "))
	}
	d := fit[0]
	if !d.MediaType.IsIndex() {
		return d, nil
	}
	if depth > 8 {
		return v1.Descriptor{}, errors.New("its indexes lead to ever more indexes")
	}
	raw, err := document(ctx, c, d)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("reading its index: %w", err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(raw, &index); err != nil {
		return v1.Descriptor{}, fmt.Errorf("its index %s: %w", d.Digest, err)
	}
	return s.choose(ctx, c, index.Manifests, "", platform, depth+1)
}

// refName is the annotation that names an image in a layout (OCI image layout
// specification); containerd and docker save write the full name beside it.
const (
	refName  = "org.opencontainers.image.ref.name"
	fullName = "io.containerd.image.name"
)

// best leaves out those that others fit better: by tag, by variant, and those
// that are the same.
func best(all []v1.Descriptor, tag string, platform v1.Platform) []v1.Descriptor {
	for _, better := range []func(v1.Descriptor) bool{
		func(d v1.Descriptor) bool { return tag != "" && canonical(d.Annotations[fullName]) == canonical(tag) },
		func(d v1.Descriptor) bool { return tag != "" && sameTag(d.Annotations[refName], tag) },
		func(d v1.Descriptor) bool { return d.Platform != nil },
		func(d v1.Descriptor) bool { return d.Platform != nil && d.Platform.Variant == platform.Variant },
	} {
		if some := slices.DeleteFunc(slices.Clone(all), func(d v1.Descriptor) bool { return !better(d) }); len(some) > 0 {
			all = some
		}
	}
	return slices.CompactFunc(all, func(a, b v1.Descriptor) bool { return a.Digest == b.Digest })
}

// sameTag says whether a reference name in a layout, a tag or a whole name, is
// that of the image.
func sameTag(ref, image string) bool {
	if ref == "" {
		return false
	}
	if t, err := name.NewTag(image); err == nil && t.TagStr() == ref {
		return true
	}
	return canonical(ref) == canonical(image)
}

// fits says whether an image for is runs where want is wanted. arm64 has one
// variant in use, v8, which some write and some do not.
func fits(is, want v1.Platform) bool {
	if is.OS != want.OS || is.Architecture != want.Architecture {
		return false
	}
	return want.Variant == "" || is.Variant == want.Variant || is.Variant == "" || (want.Architecture == "arm64" && want.Variant == "v8")
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// layoutDir is an OCI image layout: a folder with index.json and
// blobs/ALGORITHM/HEX.
type layoutDir string

func isLayout(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "oci-layout"))
	_, err2 := os.Stat(filepath.Join(dir, "index.json"))
	return err == nil && err2 == nil
}

func (l layoutDir) open(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	return readfile.Open(filepath.Join(string(l), blobs.Path(d.Digest)))
}

func (s *Store) layout(ctx context.Context, image string, l layoutDir, platform v1.Platform) (Base, error) {
	data, err := readfile.Regular(filepath.Join(string(l), "index.json"), 16<<20)
	if err != nil {
		return Base{}, err
	}
	return s.indexed(ctx, image, data, l, platform)
}

// indexed is the base that the index.json of a layout leads to.
func (s *Store) indexed(ctx context.Context, image string, index []byte, c content, platform v1.Platform) (Base, error) {
	var top v1.IndexManifest
	if err := json.NewDecoder(bytes.NewReader(index)).Decode(&top); err != nil {
		return Base{}, fmt.Errorf("its index.json: %w", err)
	}
	d, err := s.describe(ctx, c, top.Manifests, image, platform)
	if err != nil {
		return Base{}, err
	}
	return d.base(func(context.Context) (content, error) { return c, nil })
}

// base is the image as a Base whose blobs come from what is gives.
func (d described) base(is func(context.Context) (content, error)) (Base, error) {
	for _, l := range d.manifest.Layers {
		if !l.MediaType.IsLayer() && !strings.Contains(string(l.MediaType), "tar") || l.MediaType == types.DockerForeignLayer {
			return Base{}, fmt.Errorf("its layer %s is of the type %s, which is no part of a Linux image that can be fetched", l.Digest, l.MediaType)
		}
	}
	return Base{Digest: d.digest.String(), Config: d.config.Config, layers: func(ctx context.Context) ([]Layer, error) {
		c, err := is(ctx)
		if err != nil {
			return nil, err
		}
		var all []Layer
		for i, l := range d.manifest.Layers {
			all = append(all, Layer{Digest: d.config.RootFS.DiffIDs[i].String(), Open: func() (io.ReadCloser, error) {
				r, err := c.open(ctx, l)
				if err != nil {
					return nil, fmt.Errorf("reading the layer %s: %w", l.Digest, err)
				}
				v, err := blobs.Verify(r, l)
				if err != nil {
					r.Close()
					return nil, err
				}
				return decompress(v)
			}})
		}
		return all, nil
	}}, nil
}
