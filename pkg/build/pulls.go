package build

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"

	"fence/pkg/dockerfile"
)

// pullsAtOnce is how many images one registry is asked for at a time.
const pullsAtOnce = 2

// pulls brings bases to this node, so many of one registry at a time, and none
// while another waits for what its registry does not give out for now.
type pulls struct {
	bases Bases
	mu    *sync.Mutex
	by    map[string]slots // by digest, one each, and by registry
	there map[string]bool  // by digest
}

func newPulls(b Bases) pulls {
	return pulls{bases: b, mu: &sync.Mutex{}, by: map[string]slots{}, there: map[string]bool{}}
}

func (p *pulls) slots(name string, n int) slots {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[name] == nil {
		p.by[name] = make(slots, n)
	}
	return p.by[name]
}

func (p *pulls) has(digest string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there[digest]
}

// get fetches a base, unless this run has.
func (p *pulls) get(ctx context.Context, b dockerfile.Base) error {
	registry := ""
	if ref, err := name.ParseReference(b.Name); err == nil {
		registry = ref.Context().RegistryStr()
	}
	for _, s := range []slots{p.slots("digest "+b.Digest, 1), p.slots("registry "+registry, pullsAtOnce)} {
		if err := s.take(ctx); err != nil {
			return err
		}
		defer s.give()
		if p.has(b.Digest) {
			return nil
		}
	}
	if _, err := p.bases.Layers(ctx, b); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there[b.Digest] = true
	return nil
}

// pull brings the bases of a plan to this node. It is nobody's turn to build
// meanwhile: a registry may let us wait for long.
func (b *Builder) pull(ctx context.Context, p *dockerfile.Plan) error {
	for _, u := range uses(p) {
		if b.pulls.has(u.base.Digest) {
			continue
		}
		b.o.Progress(Event{Image: b.Key(p), Text: "fetching " + u.base.Name})
		if err := b.jobs.without(func() error { return b.pulls.get(ctx, u.base) }); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", p.File, u.line, u.text, err)
		}
	}
	return nil
}

// use is a place in a Dockerfile that needs a base.
type baseUse struct {
	base dockerfile.Base
	line int
	text string
}

// uses are the places where a plan needs bases.
func uses(p *dockerfile.Plan) (all []baseUse) {
	add := func(f *dockerfile.From, line int, text string) {
		if f != nil && f.Base != nil {
			all = append(all, baseUse{*f.Base, line, text})
		}
	}
	for _, st := range p.Stages {
		add(&st.From, st.Line, "FROM")
		for _, s := range st.Steps {
			if s.Copy != nil {
				add(&s.Copy.From, s.Line, s.Text)
			}
			if s.Run != nil {
				for _, m := range s.Run.Mounts {
					add(m.From, s.Line, s.Text)
				}
			}
		}
	}
	return all
}

// bases are the images that a plan takes from, each once.
func (b *Builder) bases(p *dockerfile.Plan) []BaseUse {
	all := []BaseUse{}
	for _, u := range uses(p) {
		is := BaseUse{u.base.Name, u.base.Digest, []string{}}
		if b.o.From != nil {
			is.From = append(is.From, b.o.From(u.base)...)
		}
		if !slices.ContainsFunc(all, func(o BaseUse) bool { return o.Name == is.Name && o.Digest == is.Digest }) {
			all = append(all, is)
		}
	}
	return all
}
