package build

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/lockfile"
)

// hold says to others who use a cache what of it a run needs: GC leaves that
// alone for as long as the run lives. It is a list of names, runs/ID.json in the
// cache, and a lock beside it, runs/ID.lock.
type hold struct {
	path string // without its ending
	lock *lockfile.Lock
}

// newHold holds what has these names. What dead runs held is given up.
func newHold(cache string, names []string) (*hold, error) {
	dir := filepath.Join(cache, "runs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := heldNames(cache); err != nil {
		return nil, err
	}
	h := &hold{path: filepath.Join(dir, rand.Text())}
	lock, _, err := lockfile.Try(h.path + ".lock")
	if err != nil {
		return nil, err
	}
	h.lock = lock
	slices.Sort(names)
	err = atomicfile.Write(h.path+".json", func(w io.Writer) error { return json.NewEncoder(w).Encode(slices.Compact(names)) })
	if err != nil {
		h.close()
		return nil, fmt.Errorf("saying what of the cache is needed: %w", err)
	}
	return h, nil
}

func (h *hold) close() error {
	if h == nil {
		return nil
	}
	err := os.Remove(h.path + ".json")
	h.lock.Release()
	return ignoreGone(err)
}

// runs are the lists that runs hold. One is written once, under a new name.
func runs(cache string) []string {
	all, _ := filepath.Glob(filepath.Join(cache, "runs", "*.json"))
	return all
}

// heldNames are what living runs hold. What dead ones have left is removed.
func heldNames(cache string) (map[string]bool, error) {
	all := map[string]bool{}
	for _, list := range runs(cache) {
		path := strings.TrimSuffix(list, ".json")
		if !lockfile.Held(path + ".lock") {
			if err := errors.Join(ignoreGone(os.Remove(list)), ignoreGone(os.Remove(path+".lock"))); err != nil {
				return nil, err
			}
			continue
		}
		var names []string
		if err := readJSON(list, &names); ignoreGone(err) != nil {
			return nil, fmt.Errorf("what a run needs of the cache, %s: %w", list, err)
		}
		for _, n := range names {
			all[n] = true
		}
	}
	return all, nil
}

// needs are the names of what a plan's build takes from the cache and puts there.
func (b *Builder) needs(w Want) []string {
	all := map[string]bool{w.Key: true}
	for _, key := range b.StepKeys(w.Plan) {
		all[key] = true
	}
	for _, u := range uses(w.Plan) {
		if b.o.Blobs != nil {
			for _, name := range b.o.Blobs(u.base) {
				all[name] = true
			}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// hold holds what wants need, if not all of them are there.
func (b *Builder) hold(wants ...Want) error {
	if !slices.ContainsFunc(wants, func(w Want) bool { return !b.Has(w.Key) }) {
		return nil
	}
	var names []string
	for _, w := range wants {
		names = append(names, b.needs(w)...)
	}
	h, err := newHold(b.o.Cache, names)
	if err == nil {
		b.held = append(b.held, h)
	}
	return err
}
