package build

import (
	"os"
	"path/filepath"
	"slices"

	"fence/pkg/dockerfile"
)

// needed says how many builds, to come or under way, need what scratch has of a
// name.
type needed struct {
	by map[string]int
	// with are layers that no build names before it comes to them (merged ones,
	// what --require installs), by the layer that they lie on: they go with it.
	with map[string][]string
}

func newNeeded() needed { return needed{map[string]int{}, map[string][]string{}} }

// add counts a build that needs those, each named once.
func (n needed) add(names []string) {
	for _, name := range names {
		n.by[name]++
	}
}

// drop says that a build has ended that was added, and what nobody needs now.
func (n needed) drop(names []string) (gone []string) {
	for _, name := range names {
		if n.by[name]--; n.by[name] == 0 {
			delete(n.by, name)
			gone = append(gone, name)
		}
	}
	for i := 0; i < len(gone); i++ {
		gone = append(gone, n.with[gone[i]]...)
		delete(n.with, gone[i])
	}
	return gone
}

// made notes a layer that was made on others.
func (n needed) made(name string, on chain) {
	if n.by[name] == 0 && len(on) > 0 {
		below := on[len(on)-1].key
		n.with[below] = append(n.with[below], name)
	}
}

// scratchNames are the names of what a build of a plan makes in scratch or
// finds there, each once: its layers, and its image's, for its caches.
func (k keys) scratchNames(p *dockerfile.Plan) []string {
	all := []string{k.Image}
	for _, st := range p.Stages {
		all = append(append(all, k.Base[st.Index]), k.Steps[st.Index]...)
		for _, s := range st.Steps {
			if s.Copy != nil {
				all = append(all, k.from(s.Copy.From))
				if s.Copy.Link {
					all = append(all, k.from(dockerfile.From{Scratch: true}))
				}
			}
			if s.Run == nil {
				continue
			}
			for _, m := range s.Run.Mounts {
				if m.From != nil {
					all = append(all, k.from(*m.From))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// need keeps what scratch has of an image that is wanted, or will have, until
// release is called. What nobody else needs then is removed.
func (b *Builder) need(w Want) (release func()) {
	names := newKeys(w.Plan, b.o.Platform, b.profile()).scratchNames(w.Plan)
	b.layers.mu.Lock()
	defer b.layers.mu.Unlock()
	b.layers.needed.add(names)
	return func() { b.layers.drop(names) }
}

// drop removes what nobody needs now that a build has ended. What cannot be
// removed is left to the end of the run, which says why.
func (l *layers) drop(names []string) {
	away, err := l.scratch.work()
	l.mu.Lock()
	gone := l.needed.drop(names)
	if err != nil {
		l.mu.Unlock()
		return
	}
	for _, name := range gone {
		// Out of the way at once: a later build may make it again meanwhile.
		if moved := os.Rename(l.scratch.layer(name), filepath.Join(away, name)); moved == nil {
			delete(l.calls, name)
		}
		os.Rename(l.scratch.caches(name), filepath.Join(away, name+".caches")) // if it has any
	}
	l.mu.Unlock()
	remove(away)
}
