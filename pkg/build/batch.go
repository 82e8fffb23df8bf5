package build

import (
	"context"
	"sync"
	"time"

	"fence/pkg/check"
	"fence/pkg/dockerfile"
)

// Want is an image that somebody wants: a plan, and the names of those who do.
type Want struct {
	Key   string
	Plan  *dockerfile.Plan
	Names []string // sorted; the first names the build
	Tasks []check.Task
}

// All builds images, at most jobs at a time, and hands each report to done as
// soon as it is there, one at a time. It returns when all have one. Those that
// ctx does not let begin are reported as stopped.
func (b *Builder) All(ctx context.Context, wants []Want, jobs int, done func(Want, *Report)) {
	next := make(chan Want)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range min(max(jobs, 1), len(wants)) {
		wg.Go(func() {
			for w := range next {
				r := b.retried(ctx, w)
				mu.Lock()
				done(w, r)
				mu.Unlock()
			}
		})
	}
	for _, w := range wants {
		next <- w
	}
	close(next)
	wg.Wait()
}

// retried builds, and again while what failed may work the next time.
func (b *Builder) retried(ctx context.Context, w Want) *Report {
	for attempt := 1; ; attempt++ {
		r, err := b.Build(ctx, w.Names[0], w.Plan, w.Tasks...)
		r.Attempts = attempt
		if err == nil {
			return r
		}
		if r.Fault == nil {
			r.Fault = classify(err, tail(r.Log))
		}
		r.Image = ""
		if ctx.Err() != nil || !r.Fault.Retry || attempt > b.o.Retries {
			return r
		}
		b.o.Log.Info("again", "image", w.Key, "name", w.Names[0], "class", r.Fault.Class, "attempt", attempt)
		select {
		case <-time.After(time.Duration(attempt) * b.o.Pause):
		case <-ctx.Done():
		}
	}
}
