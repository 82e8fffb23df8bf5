// Package base finds the images that builds begin with: a root folder, an OCI
// layout, an image archive or a SIF that a person names, or an image of a
// registry, which is fetched once and kept by its digest. What is local costs
// no request.
//
// All content is checked against its digest when it is read.
package base

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/registry"
)

// Options say where bases come from.
type Options struct {
	// Dir is the folder in which the digests of local bases are remembered,
	// shared by processes and nodes. It is made when it is first needed.
	Dir string
	// Registry asks the registries; nil asks none.
	Registry *registry.Client
	// Local are the bases that a person gives: what a Dockerfile calls them,
	// and the folder or file they are.
	Local map[string]string
	// Node is this node's platform, for messages; the zero value is this
	// program's.
	Node v1.Platform
}

// Store finds bases. It remembers what it found, so that a name means one
// image for as long as the Store lives, and what it did not find. It can be
// used by several goroutines.
type Store struct {
	opt Options
	now func() time.Time

	mu    sync.Mutex
	found map[string]*find
}

// find is what came of looking for a name.
type find struct {
	mu    sync.Mutex
	done  bool
	base  Base
	err   error
	until time.Time // when err is worth another look; zero for never
}

// New is a Store.
func New(opt Options) *Store {
	if opt.Node.Architecture == "" {
		opt.Node = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	}
	s := &Store{opt: opt, now: time.Now, found: map[string]*find{}}
	if opt.Registry != nil {
		s.now = opt.Registry.Now
	}
	return s
}

// Base is an image that a build begins with.
type Base struct {
	Name     string      // as it was asked for
	Digest   string      // of the content for this platform: "sha256:" and hex digits
	Config   v1.Config   // empty for a root folder
	Platform v1.Platform // as asked for
	Folder   string      // of a root folder, its path; else ""
	Source   string      // where it comes from, for people
	Warnings []string    // what a person may want to know

	from   func() []string
	blobs  []v1.Hash
	layers func(context.Context) ([]Layer, error)
}

// Layer is a tar stream, to be unpacked over those before it. Whiteouts are
// as in the OCI image specification.
type Layer struct {
	Digest string // of the stream, or of what it is made from
	// Open reads the stream, uncompressed. Content that is not what its digest
	// says ends in an error in place of io.EOF.
	Open func() (io.ReadCloser, error)
}

// From are the places that gave something of the base to this process: its path,
// or the registry and its mirrors, the first first. There are none where all of
// it was in the cache.
func (b Base) From() []string {
	if b.from != nil {
		return b.from()
	}
	return []string{b.Source}
}

// Blobs are the digests, without "sha256:", of what an image of a registry
// consists of, as its files in the cache are named; none for another base.
func (b Base) Blobs() (names []string) {
	for _, h := range b.blobs {
		names = append(names, h.Hex)
	}
	return names
}

// Layers are the base's layers, the lowest first. An image of a registry is
// fetched now, unless it was before.
func (s *Store) Layers(ctx context.Context, b Base) ([]Layer, error) {
	if b.layers == nil {
		return nil, fmt.Errorf("BUG: the base %q was not resolved", b.Name)
	}
	return b.layers(ctx)
}

// Resolve finds the image that a Dockerfile calls by this name, for this
// platform. Of an image in a registry only what describes it is fetched. Every
// error is one line that names the image.
func (s *Store) Resolve(ctx context.Context, image string, platform v1.Platform) (Base, error) {
	if platform.OS == "" {
		platform.OS = "linux"
	}
	key := image + " " + platform.String()
	s.mu.Lock()
	f := s.found[key]
	if f == nil {
		f = &find{}
		s.found[key] = f
	}
	s.mu.Unlock()

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done && (f.err == nil || f.until.IsZero() || s.now().Before(f.until)) {
		return f.base, f.err
	}
	b, err := s.resolve(ctx, image, platform)
	if err != nil {
		// A refusal stands for as long as the Store lives, what may pass until it is
		// worth another try: a thousand builds of one base do not ask a thousand times.
		f.until, _ = registry.Until(err)
		f.base, f.err = Base{}, fmt.Errorf("base image %s: %w", image, err)
		f.done = ctx.Err() == nil
		return f.base, f.err
	}
	b.Name, b.Platform = image, platform
	f.base, f.err, f.done = b, nil, true
	return b, nil
}

func (s *Store) resolve(ctx context.Context, image string, platform v1.Platform) (Base, error) {
	if where, ok := s.named(image); ok {
		return s.local(ctx, image, where, platform)
	}
	return s.registry(ctx, image, platform)
}

// named is what a person gave for a name, written as it is or in another form
// of the same name: python:3.12 is docker.io/library/python:3.12.
func (s *Store) named(image string) (string, bool) {
	if where, ok := s.opt.Local[image]; ok {
		return where, true
	}
	full := canonical(image)
	for n, where := range s.opt.Local {
		if full != "" && canonical(n) == full {
			return where, true
		}
	}
	return "", false
}

// canonical is the full form of an image's name, "" if it is none.
func canonical(image string) string {
	ref, err := name.ParseReference(image)
	if err != nil {
		return ""
	}
	return ref.Name()
}

// local is the base at a path: what is there decides what it is.
func (s *Store) local(ctx context.Context, image, where string, platform v1.Platform) (Base, error) {
	st, err := os.Stat(where)
	if err != nil {
		return Base{}, fmt.Errorf("given as a local base: %w", err)
	}
	abs, err := filepath.Abs(where)
	if err != nil {
		return Base{}, err
	}
	var b Base
	switch {
	case st.IsDir() && isLayout(abs):
		b, err = s.layout(ctx, image, layoutDir(abs), platform)
	case st.IsDir():
		b, err = s.folder(ctx, abs)
	case isSIF(abs):
		b, err = s.image(ctx, abs, platform)
	default:
		b, err = s.archive(ctx, image, abs, platform)
	}
	if err != nil {
		return Base{}, fmt.Errorf("given as %s: %w", where, err)
	}
	b.Source = abs
	return b, nil
}

// PlatformError says that an image is for others, and what can be done: programs
// of another architecture are not emulated.
type PlatformError struct {
	Wanted, Node v1.Platform
	There        []string // what the image is for
}

func (e *PlatformError) Error() string {
	node := "this node is " + e.Node.String()
	if e.Wanted.Architecture != e.Node.Architecture {
		node = "the build is for " + e.Wanted.String() + " and " + node
	}
	return fmt.Sprintf("it is for %s, %s: name an image for %s, or build on a node of the image's architecture", list(e.There), node, e.Wanted)
}

func (s *Store) errPlatform(wanted v1.Platform, there []string) error {
	return &PlatformError{wanted, s.opt.Node, there}
}

func list(words []string) string {
	if len(words) == 0 {
		return "no platform"
	}
	return strings.Join(words, ", ")
}
