package build

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"fence/pkg/check"
	"fence/pkg/dockerfile"
	"fence/pkg/registry"
)

// Want is an image that somebody wants: a plan, and the names of those who do.
type Want struct {
	Key   string
	Plan  *dockerfile.Plan
	Names []string // sorted; the first names the build
	Tasks []check.Task
}

// All builds images, at most Options.Jobs at a time and in that order, and hands
// each report to done as soon as it is there, one at a time. It returns when all
// have one. What waits (for a registry, for another node that builds the same
// image, for its next attempt) keeps nobody else from building. When ctx ends,
// what is being built is ended, and reported as stopped like what had not begun.
func (b *Builder) All(ctx context.Context, wants []Want, done func(Want, *Report)) {
	holding := b.hold(wants...)
	var release []func()
	for _, w := range wants {
		release = append(release, b.need(w))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, w := range wants {
		b.jobs <- struct{}{}
		wg.Go(func() {
			defer b.jobs.give()
			r := b.retried(ctx, w, holding, release[i])
			mu.Lock()
			defer mu.Unlock()
			done(w, r)
		})
	}
	wg.Wait()
}

// retried builds, and again while what failed may pass, as often as Options
// allow for each class of failures; and when a registry wants to hear again that
// took no more requests, for as long as Options.Patience allows. The caller has a
// slot of the jobs. When it is over, release is called, and before another build
// has the room, which is to see the space that comes back; unless ctx has ended,
// for then the reports are more urgent, and Close removes all.
func (b *Builder) retried(ctx context.Context, w Want, holding error, release func()) *Report {
	begun, tries, budget := time.Now(), []Try{}, map[string]int{}
	for nth := 1; ; nth++ {
		r, leave, err := b.attempt(ctx, w, nth, holding)
		r.Attempts, r.Tries = nth, tries
		end := func() *Report {
			if ctx.Err() == nil {
				release()
			}
			leave()
			return r
		}
		if err == nil {
			return end()
		}
		r.Image = ""
		class := r.Fault.Class
		until, told := registry.Until(err)
		again := !until.After(begun.Add(b.o.Patience))
		if !registry.Limited(err) {
			budget[class]++
			again = budget[class] <= b.o.Retries
		}
		if ctx.Err() != nil || !r.Fault.Retry || !again {
			return end()
		}
		leave()
		// Full jitter: those that failed together do not come back together, and
		// not before the step they have in common may be tried again.
		var pause time.Duration
		if told {
			pause = max(0, time.Until(until)) + rand.N(time.Second)
		} else {
			pause = rand.N(patience(class, budget[class]))
		}
		if r.rest > pause {
			pause = r.rest + rand.N(time.Second)
		}
		tries = append(tries, Try{Class: class, Message: r.Fault.Message, Seconds: r.Seconds, Pause: pause.Seconds()})
		b.o.Progress(Event{Image: w.Key, Text: "failed (" + class + "), and is tried again in " + pause.Round(time.Second).String(), Again: !registry.Limited(err)})
		_ = b.jobs.without(func() error {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			return nil
		})
	}
}

// patience is how long at most one waits before the nth retry after failures of
// a class: longer each time, and longer for a server that asked for it.
func patience(class string, nth int) time.Duration {
	first, most := 10*time.Second, 2*time.Minute
	switch class {
	case "rate_limit":
		first, most = time.Minute, 10*time.Minute
	case "cache": // the damaged file is gone: there is nothing to wait for
		first = time.Millisecond
	}
	return min(first<<min(nth-1, 10), most)
}
