// Package runner runs trials: tasks times attempts, several at a time, each
// once, whoever else works in the same folder, until all are done or it is told
// to stop; and again from there. It does not know what a trial is made of.
package runner

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"fence/pkg/internal/lockfile"
	"fence/pkg/job"
	"fence/pkg/result"
)

// Options are what a run is told.
type Options struct {
	Out     string    // the job folder, absolute; made if it is missing
	Items   []Item    // all of the job
	Shard   job.Shard // this run's share of them; the zero value is all
	Jobs    int       // trials at a time
	Retries int       // of a trial, when what failed may pass
	// Settings are what all trials of a folder have in common, besides agent and
	// model: with others there than these, none is run.
	Settings []result.Setting
	// Skipped are tasks that were asked for and are in no Item.
	Skipped []result.Skipped
	// Environment is the backend's part of each trial's config.json.
	Environment result.EnvironmentConfig

	// Try makes one try of a trial in its folder, which is empty but for
	// config.json and earlier tries. It returns when nothing of the trial is
	// left running; when ctx ends it ends the trial, with a fault. What follows
	// from the Item is filled in here, and so is the result written.
	Try func(ctx context.Context, i Item, dir string) result.Trial
	// Record is given each trial of this run's share as it ends, those first
	// that were done before, one at a time. An error ends the run.
	Record func(result.Trial) error
	Event  func(Event)  // progress, one at a time; may be nil
	Say    func(string) // a line for people; may be nil

	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error // returns early with the cause of ctx's end
}

// Summary is what came of a run's share.
type Summary struct {
	Trials  int // that were to be
	Kept    int // done before
	Ended   int // done now
	Faults  int // of Kept and Ended: without a reward
	Stopped int // under way when the run was stopped
	Left    int // not begun, for the same reason
}

// Done says that every trial has a result.
func (s Summary) Done() bool { return s.Kept+s.Ended == s.Trials }

// Full is a job folder in which a trial could not write what it had to.
type Full struct{ Message, Hint string }

func (e *Full) Error() string { return e.Message }

// Event is something that happened to a trial.
type Event struct {
	Item  Item
	Kind  Kind
	Text  string        // of Begun: what it does now; of Again: why
	Trial *result.Trial // of Kept and Ended
}

// Kind of an event.
type Kind int

// Begun comes once for each phase of a trial, Kept and Ended once for each.
const (
	Kept Kind = iota
	Begun
	Again // a try has ended, and another will follow
	Ended
	Stopped
)

// Run runs this run's share of trials. It returns when none is running: because
// all are done, because ctx has ended (which is no error: the same again goes
// on), or because the job folder cannot be used or written to: then no other is
// begun, and those under way come to their ends.
func Run(ctx context.Context, o Options) (Summary, error) {
	o.defaults()
	mine := Share(o.Items, o.Shard)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f, err := openFolder(ctx, o, mine)
	if err != nil {
		return Summary{Trials: len(mine), Left: len(mine)}, err
	}
	r := &run{o: o, folder: f, cancel: cancel, slots: make(chan struct{}, o.Jobs)}
	r.sum.Trials = len(mine)
	r.all(ctx, mine)
	r.sum.Left = r.sum.Trials - r.sum.Kept - r.sum.Ended - r.sum.Stopped
	err = f.close(r.sum)
	return r.sum, cmp.Or(r.err, err)
}

func (o *Options) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if o.Record == nil {
		o.Record = func(result.Trial) error { return nil }
	}
	if o.Environment.Type == "" {
		o.Environment = result.Environment(nil)
	}
	o.Jobs = max(1, o.Jobs)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run is a run under way.
type run struct {
	o      Options
	folder *folder
	cancel context.CancelCauseFunc
	slots  chan struct{}

	records sync.Mutex // of who reads them slowly, no trial is to know
	mu      sync.Mutex
	sum     Summary
	err     error // what ended the run
}

// all runs the trials that are not done, and then waits for those that others
// have begun.
func (r *run) all(ctx context.Context, mine []Item) {
	rest := r.kept(ctx, mine)
	var wg sync.WaitGroup
	var theirs []Item
	var owner lockfile.Owner
	for _, i := range rest {
		if r.take(ctx) != nil {
			break
		}
		wg.Go(func() {
			defer r.give()
			lock, who, err := r.folder.try(i)
			switch {
			case err != nil:
				r.drain(err)
			case lock == nil:
				r.mu.Lock()
				theirs, owner = append(theirs, i), who
				r.mu.Unlock()
			default:
				r.locked(ctx, i, lock)
			}
		})
	}
	wg.Wait()
	if r.failed() != nil {
		return
	}
	if len(theirs) > 0 && ctx.Err() == nil {
		r.o.Say(fmt.Sprintf("waits for what others run in the same folder: %d trials, one by %s", len(theirs), owner))
	}
	for _, i := range theirs {
		wg.Go(func() {
			lock, err := r.folder.wait(ctx, i)
			if err != nil {
				if ctx.Err() == nil {
					r.drain(err)
				}
				return
			}
			if r.take(ctx) != nil {
				lock.Release()
				return
			}
			defer r.give()
			r.locked(ctx, i, lock)
		})
	}
	wg.Wait()
}

// take waits for a slot: fewer than Options.Jobs trials are running with it.
func (r *run) take(ctx context.Context) error {
	if ctx.Err() != nil { // both may be so, and then no trial begins
		return context.Cause(ctx)
	}
	select {
	case r.slots <- struct{}{}:
		if err := r.failed(); err != nil { // while it was waited for
			r.give()
			return err
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *run) give() { <-r.slots }

// drain ends the run with the trials that are under way: what it has to write
// cannot be written.
func (r *run) drain(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = cmp.Or(r.err, err)
}

// fail ends the run now.
func (r *run) fail(err error) {
	r.drain(err)
	r.cancel(err)
}

func (r *run) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// kept tells of the trials that are done, and returns the others.
func (r *run) kept(ctx context.Context, mine []Item) (rest []Item) {
	others := 0
	const at = 64 // are read at a time: a network's file system answers slowly, and many at once
	for some := range slices.Chunk(mine, at) {
		found, changed := make([]*result.Trial, len(some)), make([]bool, len(some))
		var wg sync.WaitGroup
		for n, i := range some {
			wg.Go(func() { found[n], changed[n] = r.folder.done(i) })
		}
		wg.Wait()
		for n, t := range found {
			if ctx.Err() != nil {
				return nil
			}
			if changed[n] {
				others++
			}
			if t == nil {
				rest = append(rest, some[n])
				continue
			}
			r.tell(some[n], Kept, *t)
		}
	}
	if r.sum.Kept+others > 0 {
		said := fmt.Sprintf("%s: %d of %d trials are done already", who(mine[0].Agent), r.sum.Kept, len(mine))
		if others > 0 {
			said += fmt.Sprintf("; done again are those whose tasks have changed since: %d", others)
		}
		r.o.Say(said)
	}
	return rest
}

// tell records a trial that has its result.
func (r *run) tell(i Item, kind Kind, t result.Trial) {
	r.records.Lock()
	defer r.records.Unlock()
	r.folder.tally(t)
	if kind == Ended {
		r.folder.log("%s: %s", i.Name, said(t))
	}
	r.mu.Lock()
	if kind == Kept {
		r.sum.Kept++
	} else {
		r.sum.Ended++
	}
	if t.Fault != nil {
		r.sum.Faults++
	}
	r.o.Event(Event{Item: i, Kind: kind, Trial: &t})
	r.mu.Unlock()
	if err := r.o.Record(t); err != nil {
		if _, full := result.Unwritable(err); full {
			r.drain(err)
			return
		}
		r.fail(err)
	}
}

func (r *run) event(i Item, kind Kind, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.o.Event(Event{Item: i, Kind: kind, Text: text})
}

// locked runs a trial that nobody else can run meanwhile. It has a slot.
func (r *run) locked(ctx context.Context, i Item, lock *lockfile.Lock) {
	defer lock.Release()
	if t, _ := r.folder.done(i); t != nil { // by somebody else, since it was looked at
		r.tell(i, Kept, *t)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	taken := fmt.Errorf("the trial %s was taken over by another process, for which this one stood still for too long", i.Name)
	alone := make(chan struct{})
	defer close(alone)
	go func() {
		select {
		case <-lock.Lost():
			cancel(taken)
		case <-alone:
		}
	}()
	for nth := 1; ; nth++ {
		t, err := r.try(ctx, i, lock)
		if err != nil {
			r.drain(err)
			return
		}
		if t == nil {
			cancel(taken) // unless there was another reason
			r.stopped(ctx, i)
			return
		}
		if nth > r.o.Retries || !passes(t.Fault) || ctx.Err() != nil {
			r.tell(i, Ended, *t)
			return
		}
		// Full jitter: those that failed together do not come back together.
		pause := rand.N(patience(nth))
		r.event(i, Again, fmt.Sprintf("%s: %s; is tried again in %s", t.Fault.Class, t.Fault.Message, pause.Round(time.Second)))
		r.folder.log("%s: try %d: %s: %s", i.Name, t.Tries, t.Fault.Class, t.Fault.Message)
		r.give()
		err = r.o.Sleep(ctx, pause)
		if err == nil {
			err = r.take(ctx)
		}
		if err != nil {
			r.slots <- struct{}{} // the caller gives it back
			r.tell(i, Ended, *t)
			return
		}
	}
}

// try is one try of a trial. It is nil if the trial was stopped, or is another
// process's now, whose folder it is.
func (r *run) try(ctx context.Context, i Item, lock *lockfile.Lock) (*result.Trial, error) {
	dir, tries, err := r.folder.prepare(i)
	if err != nil {
		return nil, err
	}
	i.Tries = tries
	i.Phase = func(text string) { r.event(i, Begun, text) }
	i.Phase("")
	r.folder.running(+1)
	defer r.folder.running(-1)
	began := r.o.Now()
	t := r.o.Try(ctx, i, dir)
	// A trial that has come to its verdict has one, also when the end came
	// meanwhile. A fault may be of that end.
	if ctx.Err() != nil && t.Reward == nil || lock.Taken() {
		return nil, nil
	}
	t = r.folder.fill(i, dir, began, t)
	if err := r.folder.write(dir, t); err != nil {
		r.drain(err)
		r.o.Say(fmt.Sprintf("%s: %s; that cannot be written, so the trial is not done", i.Name, said(t)))
		return nil, err
	}
	if t.Fault != nil && t.Fault.Class == result.OutFull { // the others' would end so, too
		r.drain(&Full{i.Name + ": " + t.Fault.Message, t.Fault.Hint})
	}
	return &t, nil
}

func (r *run) stopped(ctx context.Context, i Item) {
	r.folder.log("%s: stopped: %v", i.Name, context.Cause(ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Stopped++
	r.o.Event(Event{Item: i, Kind: Stopped, Text: context.Cause(ctx).Error()})
}
