package build

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"fence/pkg/dockerfile"
	"fence/pkg/step"
)

// heldBases say that they were asked for, and answer when they are let.
type heldBases struct {
	asked chan string
	let   map[string]chan error
}

func (h *heldBases) Layers(ctx context.Context, b dockerfile.Base) ([]step.Stream, error) {
	h.asked <- b.Digest
	select {
	case err := <-h.let[b.Digest]:
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Two images of a registry are fetched at a time, one request is made for each,
// and a registry that lets them wait keeps nobody from another.
func TestPulls(t *testing.T) {
	h := &heldBases{asked: make(chan string), let: map[string]chan error{"a": make(chan error), "b": make(chan error), "c": make(chan error), "d": make(chan error)}}
	p := newPulls(h)
	var wg sync.WaitGroup
	results := map[string]error{}
	var mu sync.Mutex
	get := func(image, digest, who string) {
		wg.Go(func() {
			err := p.get(t.Context(), dockerfile.Base{Name: image, Digest: digest})
			mu.Lock()
			defer mu.Unlock()
			results[who] = err
		})
	}
	get("slow.test/a", "a", "a")
	get("slow.test/a:2", "a", "a again")
	if got := <-h.asked; got != "a" {
		t.Fatal(got)
	}
	get("slow.test/b", "b", "b")
	if got := <-h.asked; got != "b" {
		t.Fatal(got)
	}
	get("slow.test/c", "c", "c")
	get("other.test/d", "d", "d")
	if got := <-h.asked; got != "d" { // not c
		t.Fatalf("a third of one registry was asked for, or none of the other: %s", got)
	}
	h.let["d"] <- nil
	h.let["b"] <- errors.New("away")
	if got := <-h.asked; got != "c" {
		t.Fatal(got)
	}
	h.let["a"] <- nil
	h.let["c"] <- nil
	wg.Wait()
	if len(h.asked) > 0 || results["b"] == nil || results["a"] != nil || results["a again"] != nil || results["c"] != nil || results["d"] != nil {
		t.Errorf("%v", results)
	}
	if !p.has("a") || p.has("b") {
		t.Error("what is there is not known")
	}
}

// A base that cannot be had is said with the line that wants it.
func TestPull_SaysWhere(t *testing.T) {
	plan := &dockerfile.Plan{File: "D", Stages: []dockerfile.Stage{{Line: 3, From: dockerfile.From{Scratch: true}, Steps: []dockerfile.Step{
		{Line: 4, Text: "COPY --from=x a b", Copy: &dockerfile.Copy{From: dockerfile.From{Base: &dockerfile.Base{Name: "x", Digest: "x"}}}},
		{Line: 5, Text: "RUN y", Run: &dockerfile.Run{Mounts: []dockerfile.Mount{{From: &dockerfile.From{Base: &dockerfile.Base{Name: "y", Digest: "y"}}}}}},
	}}, {Line: 6, From: dockerfile.From{Base: &dockerfile.Base{Name: "z", Digest: "z"}}}}}
	var lines []string
	for _, u := range uses(plan) {
		lines = append(lines, fmt.Sprint(u.line, u.text, u.base.Name))
	}
	if got := strings.Join(lines, ", "); got != "4COPY --from=x a bx, 5RUN yy, 6FROMz" {
		t.Errorf("%s", got)
	}
	h := &heldBases{asked: make(chan string, 1), let: map[string]chan error{"x": make(chan error, 1)}}
	h.let["x"] <- errors.New("no such image")
	b := Planned(Options{Bases: h, Progress: func(Event) {}})
	b.pulls, b.jobs = newPulls(h), make(slots, 1)
	if err := b.pull(t.Context(), plan); err == nil || err.Error() != "D:4: COPY --from=x a b: no such image" {
		t.Error(err)
	}
}
