package build

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fence/pkg/dockerfile"
	"fence/pkg/registry"
	"fence/pkg/step"
	"fence/pkg/tree"
)

func TestNeeded(t *testing.T) {
	for _, c := range []struct {
		name string
		add  [][]string          // by build
		with map[string][]string // made on others
		want []string            // that goes when each build ends, in order
	}{
		{"of two builds, nothing in common", [][]string{{"base1", "a"}, {"base2", "b"}}, nil, []string{"a base1", "b base2"}},
		{"the beginning in common", [][]string{{"base", "a"}, {"base", "b"}, {"base"}}, nil, []string{"a", "b", "base"}},
		{"twice the same", [][]string{{"base", "a"}, {"base", "a"}}, nil, []string{"", "a base"}},
		{"layers that go with others", [][]string{{"base", "a"}, {"base", "a", "b"}}, map[string][]string{"a": {"merged", "required"}, "b": {"more"}}, []string{"", "a b base merged more required"}},
		{"layers on those", [][]string{{"a"}, {"b"}}, map[string][]string{"a": {"on"}, "on": {"top"}}, []string{"a on top", "b"}},
		{"layers on what no build has named", [][]string{{"a"}}, map[string][]string{"other": {"on"}}, []string{"a"}},
	} {
		n := newNeeded()
		for _, names := range c.add {
			n.add(names)
		}
		for below, all := range c.with {
			for _, name := range all {
				n.made(name, chain{{key: "lowest"}, {key: below}})
			}
		}
		n.made(c.add[0][0], nil) // what builds have named goes with nothing
		for i, names := range c.add {
			gone := n.drop(names)
			slices.Sort(gone)
			if got := strings.Join(gone, " "); got != c.want[i] {
				t.Errorf("%s: when build %d ends %q goes, want %q", c.name, i, got, c.want[i])
			}
		}
		if len(n.by) != 0 {
			t.Errorf("%s: left are %v", c.name, n.by)
		}
	}
}

// Everything in a plan that a layer is made of has its name in scratchNames,
// besides those that have their names from another layer.
func TestScratchNames(t *testing.T) {
	p := plan()
	from := func(digest string) dockerfile.From {
		return dockerfile.From{Base: &dockerfile.Base{Digest: digest}}
	}
	mounted := from("sha256:mounted")
	p.Stages[0].Steps[0].Run.Mounts = []dockerfile.Mount{{Type: "cache", ID: "c"}, {Type: "bind", From: &mounted}}
	p.Stages[1].Steps[2].Copy.From = from("sha256:copied")
	p.Stages[1].Steps[1].Copy.Link = true
	k := newKeys(p, amd64, nil)
	got := k.scratchNames(p)
	for what, name := range map[string]string{
		"the image": k.Image, "the base": k.Base[2], "the first base": k.Base[0], "a step": k.Steps[2][0], "the last step": k.last(2), "a step of another stage": k.last(0),
		"what a mount is of": digest("base", "sha256:mounted"), "what is copied from": digest("base", "sha256:copied"), "what --link copies onto": digest("scratch"),
	} {
		if !slices.Contains(got, name) {
			t.Errorf("%s is not there", what)
		}
	}
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("not each once: %v", got)
	}
}

// Layers are made once while anybody needs them, are gone when nobody does,
// with what was merged of them, and can be made again then.
func TestNeed(t *testing.T) {
	b, err := New(Options{Cache: t.TempDir(), Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	want := func(steps ...string) Want {
		p := &dockerfile.Plan{Stages: []dockerfile.Stage{{}}}
		for _, s := range steps {
			p.Stages[0].Steps = append(p.Stages[0].Steps, dockerfile.Step{Workdir: &dockerfile.Workdir{Path: s}})
		}
		return Want{Key: b.Key(p), Plan: p}
	}
	ran := map[string]int{}
	get := func(key string, on chain) {
		t.Helper()
		_, _, err := b.layers.get(t.Context(), key, on, false, func(dir string) ([]tree.Special, error) {
			ran[key]++
			return nil, os.Mkdir(filepath.Join(dir, "closed"), 0)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	long, short := want("/a", "/b"), want("/a")
	steps := b.StepKeys(long.Plan)
	release := []func(){b.need(long), b.need(short)}
	cache := filepath.Join(b.scratch.caches(long.Key), "pip")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	there := func(when string, want ...string) {
		t.Helper()
		for _, key := range []string{digest("scratch"), steps[0], steps[1], "merged"} {
			_, err := os.Stat(b.layers.folder(key))
			if (err == nil) != slices.Contains(want, key) {
				t.Errorf("%s: %s is there: %t", when, key, err == nil)
			}
		}
	}
	all := func() {
		get(digest("scratch"), nil)
		get(steps[0], chain{{key: digest("scratch")}})
		get("merged", chain{{key: digest("scratch")}, {key: steps[0]}})
		get(steps[1], chain{{key: digest("scratch")}, {key: "merged"}})
	}
	all()
	all()
	there("both are under way", digest("scratch"), steps[0], steps[1], "merged")
	release[0]()
	there("one is", digest("scratch"), steps[0], "merged")
	if _, err := os.Stat(cache); err == nil {
		t.Error("a cache of an image that is done is there")
	}
	release[1]()
	there("none is")
	if work, err := os.ReadDir(filepath.Join(b.scratch.dir, "work")); err != nil || len(work) > 0 {
		t.Errorf("left are %v, %v", work, err)
	}
	if len(b.layers.calls) != 0 {
		t.Errorf("%d layers are still known", len(b.layers.calls))
	}
	for key, n := range ran {
		if n != 1 {
			t.Errorf("%s was made %d times", key, n)
		}
	}
	release[0] = b.need(long)
	all()
	there("again", digest("scratch"), steps[0], steps[1], "merged")
	release[0]()
	there("and over")
}

// tars gives out bases of one file each; those whose digest begins with "bad"
// when they are fetched, and not when they are to be unpacked: some other time
// if it begins with "bad later".
type tars struct {
	mu            sync.Mutex
	asked         map[string]int
	fetch, unpack func(digest string) // called before; nil: not
}

func (b *tars) Layers(_ context.Context, base dockerfile.Base) ([]step.Stream, error) {
	b.mu.Lock()
	b.asked[base.Digest]++
	asked, before := b.asked[base.Digest], b.fetch
	again := asked > 1
	if again {
		before = b.unpack
	}
	b.mu.Unlock()
	if before != nil {
		before(base.Digest)
	}
	switch {
	case asked == 2 && strings.HasPrefix(base.Digest, "bad later"):
		return nil, &registry.RateLimited{Registry: "r", Until: time.Now()}
	case again && strings.HasPrefix(base.Digest, "bad"):
		return nil, &registry.Refused{Registry: "r", Status: 404, Text: "no"}
	}
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	err := w.WriteHeader(&tar.Header{Name: base.Digest, Mode: 0o644})
	return []step.Stream{func() (io.ReadCloser, error) { return io.NopCloser(&data), nil }}, err
}

// However many images there are, scratch holds the layers of those that are
// being built, and what others have in common with them; also if they fail. A
// second attempt finds what the first has made.
func TestAll_Scratch(t *testing.T) {
	const images, jobs = 20, 2
	bases := &tars{asked: map[string]int{}}
	b, err := New(Options{Cache: t.TempDir(), Scratch: t.TempDir(), Bases: bases, Jobs: jobs, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	most := 0
	bases.unpack = func(string) {
		mu.Lock()
		defer mu.Unlock()
		all, err := os.ReadDir(filepath.Join(b.scratch.dir, "layers"))
		if err != nil {
			t.Error(err)
		}
		most = max(most, len(all))
	}
	var wants []Want
	for i := range images {
		p := &dockerfile.Plan{File: "D"}
		bad := fmt.Sprint("bad", i)
		if i == images-1 {
			bad = "bad later"
		}
		for n, digest := range []string{"shared", fmt.Sprint("own", i), bad} {
			p.Stages = append(p.Stages, dockerfile.Stage{Index: n, From: dockerfile.From{Base: &dockerfile.Base{Name: "r/x", Digest: digest}}})
		}
		wants = append(wants, Want{Key: b.Key(p), Plan: p, Names: []string{fmt.Sprint(i)}})
	}
	b.All(t.Context(), wants, func(w Want, r *Report) {
		if r.Fault == nil || r.Fault.Class != "not_found" {
			t.Errorf("%s: %+v", w.Names[0], r.Fault)
		}
	})
	for digest, n := range bases.asked { // to be fetched, and to be unpacked
		want := 2
		if digest == "bad later" {
			want = 3
		}
		if n != want {
			t.Errorf("%s was asked for %d times, want %d", digest, n, want)
		}
	}
	if most < 2 || most > 1+jobs {
		t.Errorf("%d layers were there at a time, want the one that all share and one for each that is being built", most)
	}
	if left, err := os.ReadDir(filepath.Join(b.scratch.dir, "layers")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// Who waits for room on a disk sees what the one before has given back.
func TestAll_ScratchGivesRoom(t *testing.T) {
	made, waits := make(chan struct{}), make(chan struct{})
	bases := &tars{asked: map[string]int{}}
	o := Options{Cache: t.TempDir(), Scratch: t.TempDir(), Bases: bases, Jobs: 2, Least: Least{Disk: gib}}
	o.Say = func(text string) {
		if strings.Contains(text, "no further build begins") {
			close(waits)
		}
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.room.free = func([]string) ([]free, error) {
		left := free{"disk", "the disk", 8 * gib, -1}
		if _, err := os.Stat(b.layers.folder(digest("base", "first"))); err == nil {
			left.bytes = 0
		}
		return []free{left}, nil
	}
	bases.unpack = func(digest string) {
		if digest == "bad first" {
			close(made)
			<-waits
		}
	}
	var wants []Want
	for _, name := range []string{"first", "second"} {
		p := &dockerfile.Plan{File: "D"}
		for n, digest := range []string{name, "bad " + name} {
			p.Stages = append(p.Stages, dockerfile.Stage{Index: n, From: dockerfile.From{Base: &dockerfile.Base{Name: "r/x", Digest: digest}}})
		}
		wants = append(wants, Want{Key: b.Key(p), Plan: p, Names: []string{name}})
	}
	bases.fetch = func(digest string) {
		if digest == "second" {
			<-made
		}
	}
	b.All(t.Context(), wants, func(w Want, r *Report) {
		if r.Fault == nil || r.Fault.Class != "not_found" {
			t.Errorf("%s: %+v", w.Names[0], r.Fault)
		}
	})
}
