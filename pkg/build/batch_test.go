package build

import (
	"context"
	"testing"
	"time"

	"fence/pkg/dockerfile"
	"fence/pkg/registry"
	"fence/pkg/step"
)

// answers are what a registry says, one after the other, the last for ever.
type answers []error

func (a *answers) Layers(context.Context, dockerfile.Base) ([]step.Stream, error) {
	err := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	return nil, err
}

// A registry's limit is waited out for as long as one likes, and is none of the
// retries; what it refuses for good is not asked again.
func TestAll_Limited(t *testing.T) {
	soon := &registry.RateLimited{Registry: "r", Until: time.Now()}
	refused := &registry.Refused{Registry: "r", Status: 404, Text: "no"}
	for name, c := range map[string]struct {
		says     answers
		patience time.Duration
		class    string
		attempts int
	}{
		"until it has no limit": {answers{soon, soon, refused}, time.Minute, "not_found", 3},
		"too long a wait":       {answers{&registry.RateLimited{Registry: "r", Until: time.Now().Add(time.Hour)}, refused}, time.Minute, "rate_limit", 1},
		"no patience":           {answers{&registry.RateLimited{Registry: "r", Until: time.Now().Add(time.Hour)}, refused}, 0, "rate_limit", 1},
		"refused":               {answers{refused}, time.Minute, "not_found", 1},
		"a node without it":     {answers{&registry.Refused{Registry: "r", Text: "no"}}, time.Minute, "network", 1},
	} {
		b, err := New(Options{Cache: t.TempDir(), Scratch: t.TempDir(), Bases: &c.says, Patience: c.patience})
		if err != nil {
			t.Fatal(err)
		}
		plan := &dockerfile.Plan{File: "D", Stages: []dockerfile.Stage{{From: dockerfile.From{Base: &dockerfile.Base{Name: "r/x", Digest: "d"}}}}}
		b.All(t.Context(), []Want{{Key: b.Key(plan), Plan: plan, Names: []string{name}}}, func(_ Want, r *Report) {
			if r.Fault == nil || r.Fault.Class != c.class || r.Attempts != c.attempts {
				t.Errorf("%s: %d attempts, %+v", name, r.Attempts, r.Fault)
			}
		})
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
