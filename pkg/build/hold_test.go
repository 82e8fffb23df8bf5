package build

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"fence/pkg/dockerfile"
	"fence/pkg/internal/lockfile"
)

// GC takes nothing that a living run needs, and all of it when that has ended,
// however it ended.
func TestGC_Held(t *testing.T) {
	plan := &dockerfile.Plan{File: "D", Stages: []dockerfile.Stage{{
		From:  dockerfile.From{Base: &dockerfile.Base{Name: "x", Digest: "d"}},
		Steps: []dockerfile.Step{{Run: &dockerfile.Run{Argv: []string{"true"}}}},
	}}}
	b := Planned(Options{Blobs: func(b dockerfile.Base) []string { return []string{b.Digest + "1", b.Digest + "2"} }})
	b.o.Cache = cache(t, map[string]int{"base/blobs/sha256/d1": 100, "base/blobs/sha256/d2": 100, "base/blobs/sha256/e1": 100, "layers/other.tar": 100, "sif/other.sif": 100})
	step := b.StepKeys(plan)[0]
	kept := []string{"base/blobs/sha256/d1", "base/blobs/sha256/d2", "layers/" + step + ".tar"}
	if err := os.WriteFile(filepath.Join(b.o.Cache, kept[2]), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := b.hold(Want{Key: b.Key(plan), Plan: plan}); err != nil {
		t.Fatal(err)
	}
	collect := func() []string {
		t.Helper()
		if _, err := GC(GCOptions{Cache: b.o.Cache, Unused: time.Nanosecond}); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(left(t, b.o.Cache), func(name string) bool { return filepath.Dir(name) == "runs" })
	}
	if got := collect(); !slices.Equal(got, kept) {
		t.Errorf("beside a run: %q, want %q", got, kept)
	}
	if err := b.held[0].close(); err != nil {
		t.Fatal(err)
	}
	if got := collect(); len(got) > 0 {
		t.Errorf("after a run: %q", got)
	}

	// One that was killed: its lock is another process's number by now.
	dead, err := newHold(b.o.Cache, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.Release()
	if lockfile.Held(dead.path + ".lock") {
		t.Error("a lock that was released is held")
	}
	if got, err := heldNames(b.o.Cache); len(got) > 0 || err != nil {
		t.Errorf("of a dead run: %v, %v", got, err)
	}
	if got := left(t, b.o.Cache); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

// Warnings of an image that is there are about the Dockerfile of the one who asks.
func TestThere_Warnings(t *testing.T) {
	plan := func(file string, line int) *dockerfile.Plan {
		return &dockerfile.Plan{File: file, Warnings: []dockerfile.Warning{{File: file, Line: 1, Text: "odd"}}, Stages: []dockerfile.Stage{
			{Index: 0, Steps: []dockerfile.Step{{Line: 2, Workdir: &dockerfile.Workdir{Path: "/a"}}}},
			{Index: 1, Steps: []dockerfile.Step{{Line: line, Workdir: &dockerfile.Workdir{Path: "/b"}}}},
		}}
	}
	b := Planned(Options{})
	b.o.Cache = cache(t, map[string]int{"sif/x": 0})
	first := Want{Key: "k", Plan: plan("first", 5), Names: []string{"first"}}
	r := b.report(first)
	r.warn(first.Plan, 2, "nobody: there is none")
	r.warn(first.Plan, 0, "it started late")
	if want := []string{"first:1: odd", "first:5: nobody: there is none", "it started late"}; !slices.Equal(r.Warnings, want) {
		t.Errorf("of the build: %q", r.Warnings)
	}
	if err := os.WriteFile(b.Image("k"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and when it was kept once more
		if err := b.keep(r); err != nil {
			t.Fatal(err)
		}
		second := Want{Key: "k", Plan: plan("second", 9), Names: []string{"second"}}
		r = b.report(second)
		if !b.there(second, r) {
			t.Fatal("it is not there")
		}
		if want := []string{"second:1: odd", "second:9: nobody: there is none", "it started late"}; !slices.Equal(r.Warnings, want) || r.Name != "second" || !r.Cached {
			t.Errorf("from the cache: %+v", r)
		}
	}
}
