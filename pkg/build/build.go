// Package build makes images out of plans: each step once, whatever number of
// images begin with it, in scratch folders of this node; what is worth keeping
// goes into a cache that nodes share. An image is named by everything that went
// into it, so what is there already is not built again.
package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/check"
	"fence/pkg/dockerfile"
	"fence/pkg/internal/lockfile"
	"fence/pkg/job"
	"fence/pkg/step"
	"fence/pkg/tree"
)

// Options are how images are built.
type Options struct {
	Cache    string      // folder of images, layers and logs; may be on shared storage
	Scratch  string      // folder on a disk of this node that can hold an overlay
	Fence    string      // the fence binary that RUN steps come under
	Platform v1.Platform // of the images
	Bases    Bases
	// From are the places that gave this process any of a base, Blobs the names of
	// the files of the cache that it consists of; nil: none are known.
	From, Blobs func(dockerfile.Base) []string
	Require     []string          // commands that an image must have in the end
	Config      []step.File       // there while a RUN step runs, where the image has the folder for it
	Secrets     map[string]string // files by the id of --mount=type=secret
	Jobs        int               // images that are built at a time; 0: one
	Timeout     time.Duration     // of one attempt at one image; 0: none
	Idle        time.Duration     // that a RUN step may print nothing; 0: for ever
	Retries     int               // of each class of failures that may pass
	CPUs        int               // for packing; 0: all that this process may use
	Patience    time.Duration     // with registries that take no more requests, for one image
	Least       Least             // what has to be free for one build more
	// Apptainer is the path of the node's, which each new image is started
	// with once; "" if there is none. NoSmoke leaves that out.
	Apptainer string
	NoSmoke   bool
	// Sandbox is the path of the Apptainer that steps begin inside; "" where
	// this node lets its users make user namespaces themselves. What is built is
	// the same.
	Sandbox  string
	Say      func(text string) // what a person who waits wants to know, a line; nil discards
	Progress func(Event)       // nil discards; called from several goroutines
}

// Bases gives what stages begin with.
type Bases interface {
	// Layers are the layer tars of a base, the lowest first.
	Layers(ctx context.Context, b dockerfile.Base) ([]step.Stream, error)
}

// Event is that something has begun or ended.
type Event struct {
	Image string // key
	Step  int    // from 1; 0 before the first
	Of    int
	Text  string // what is being done
	Again bool   // it failed and is tried again, which counts against Options.Retries
}

// Builder builds images; Close removes what it has on this node.
type Builder struct {
	o       Options
	scratch *scratch
	layers  *layers
	held    []*hold
	jobs    slots // an image that is being built has one
	packs   slots // an image that is being packed
	room    *room
	pulls   pulls
}

// New prepares to build.
func New(o Options) (*Builder, error) {
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if o.Progress == nil {
		o.Progress = func(Event) {}
	}
	o.Platform = dockerfile.NormalPlatform(o.Platform)
	if o.CPUs == 0 {
		o.CPUs = job.This().CPUs()
	}
	for _, sub := range []string{"sif", "layers", "logs", "locks"} {
		if err := os.MkdirAll(filepath.Join(o.Cache, sub), 0o755); err != nil {
			return nil, fmt.Errorf("the cache (--cache): %w", err)
		}
	}
	s, err := newScratch(o.Scratch, o.Sandbox)
	if err != nil {
		return nil, err
	}
	l := &layers{scratch: s, cache: o.Cache, calls: map[string]*call{}, failing: map[string]failing{}, needed: newNeeded()}
	return &Builder{o: o, scratch: s, layers: l, jobs: make(slots, max(o.Jobs, 1)), packs: make(slots, packsAtOnce(o.CPUs)),
		room: newRoom(o.Least, o.Say, s.dir, o.Cache), pulls: newPulls(o.Bases)}, nil
}

// Planned is a Builder that names images and builds none.
func Planned(o Options) *Builder {
	o.Platform = dockerfile.NormalPlatform(o.Platform)
	return &Builder{o: o}
}

// StepKeys names the steps of a plan, and so what plans have in common.
func (b *Builder) StepKeys(p *dockerfile.Plan) []string {
	k := newKeys(p, b.o.Platform, b.profile())
	var all []string
	for _, st := range p.Stages {
		all = append(all, k.Steps[st.Index]...)
	}
	return all
}

// Has says whether the image of a key is there.
func (b *Builder) Has(key string) bool {
	_, err := os.Stat(b.Image(key))
	_, err2 := os.Stat(b.reportFile(key))
	return err == nil && err2 == nil
}

// Close ends a Builder that builds nothing any more.
func (b *Builder) Close() error {
	var err error
	for _, h := range b.held {
		err = errors.Join(err, h.close())
	}
	return errors.Join(err, b.scratch.close())
}

// Key names the image that a plan gives.
func (b *Builder) Key(p *dockerfile.Plan) string {
	return newKeys(p, b.o.Platform, b.profile()).Image
}

func (b *Builder) profile() any { return struct{ Require []string }{b.o.Require} }

// Image is where the image of a key is, whether or not it is there.
func (b *Builder) Image(key string) string { return filepath.Join(b.o.Cache, "sif", key+".sif") }

// one is the build of one image.
type one struct {
	*Builder
	plan   *dockerfile.Plan
	keys   keys
	stages map[int]chain
	log    *os.File
	report *Report
	tasks  []check.Task
	steps  int
	total  int
}

// Build makes the image of a plan, unless it is there, and tries once. The
// report says what was done, also beside an error. What tasks have that their
// agents must not see is looked for in the image.
func (b *Builder) Build(ctx context.Context, name string, p *dockerfile.Plan, tasks ...check.Task) (*Report, error) {
	w := Want{Key: b.Key(p), Plan: p, Names: []string{name}, Tasks: tasks}
	holding, release := b.hold(w), b.need(w)
	b.jobs <- struct{}{}
	defer b.jobs.give()
	r, leave, err := b.attempt(ctx, w, 1, holding)
	release()
	leave()
	return r, err
}

func (b *Builder) report(w Want) *Report {
	r := newReport(w.Names[0], w.Key, b.Image(w.Key), b.o.Platform.Architecture)
	for _, w := range w.Plan.Warnings {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s:%d: %s", w.File, w.Line, w.Text))
	}
	return r
}

// attempt is one try at an image. The caller has one of the jobs' slots, which
// is given to others while this image waits for something. holding is why what
// it needs of the cache could not be held, nil if it is. The caller calls leave
// when it has removed what is not needed again: others wait for the room.
func (b *Builder) attempt(ctx context.Context, w Want, nth int, holding error) (r *Report, leave func(), err error) {
	r, leave = b.report(w), func() {}
	defer func(began time.Time) {
		if r.Seconds == 0 {
			r.Seconds = time.Since(began).Seconds()
		}
		if err != nil {
			r.Fault = b.fault(ctx, err, r.Log)
		}
	}(time.Now())
	if b.there(w, r) {
		return r, leave, b.catchUp(ctx, r, w.Tasks)
	}
	if ctx.Err() != nil {
		return r, leave, context.Cause(ctx)
	}
	if holding != nil {
		return r, leave, holding
	}
	if err := b.pull(ctx, w.Plan); err != nil {
		return r, leave, err
	}
	// Others who want the same image wait for it, on whatever node.
	lock, _, err := lockfile.Try(b.lockFile(w.Key))
	if err == nil && lock == nil {
		b.o.Progress(Event{Image: w.Key, Text: "its turn: another run may be building it"})
		err = b.jobs.without(func() (err error) {
			lock, err = lockfile.Acquire(ctx, b.lockFile(w.Key))
			return err
		})
	}
	if lock != nil {
		defer lock.Release()
	}
	if err != nil {
		return r, leave, fmt.Errorf("the cache (--cache): %w", err)
	}
	if b.there(w, r) {
		return r, leave, b.catchUp(ctx, r, w.Tasks)
	}
	enough, err := b.room.enter(ctx)
	if err != nil {
		return r, leave, err
	}
	return r, enough, b.locked(ctx, w, r, nth)
}

// locked builds the image of a key whose lock the caller has.
func (b *Builder) locked(ctx context.Context, w Want, r *Report, nth int) error {
	start := time.Now()
	defer func() { r.Seconds = time.Since(start).Seconds() }()
	if err := unfinished(b.o.Cache, "sif", w.Key); err != nil {
		return err
	}
	r.Log, r.Engine = b.logFile(w.Key), b.scratch.engine.name()
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if nth == 1 {
		flags |= os.O_TRUNC
	}
	log, err := os.OpenFile(r.Log, flags, 0o644)
	if err != nil {
		return fmt.Errorf("the log of a build: %w", err)
	}
	defer log.Close()
	if nth > 1 {
		fmt.Fprintf(log, "== attempt %d\n", nth)
	}
	if b.o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, b.o.Timeout, ErrTimeout)
		defer cancel()
	}
	o := &one{Builder: b, plan: w.Plan, keys: newKeys(w.Plan, b.o.Platform, b.profile()), stages: map[int]chain{}, log: log, report: r, tasks: w.Tasks}
	for _, st := range w.Plan.Stages {
		o.total += len(st.Steps)
	}
	err = o.build(ctx)
	r.Bases = b.bases(w.Plan)
	if err != nil {
		if errors.Is(context.Cause(ctx), ErrTimeout) && !errors.Is(err, ErrTimeout) {
			err = fmt.Errorf("%w: %v", ErrTimeout, err) // whatever fails when it is ended
		}
		return err
	}
	if r.Cached {
		return b.catchUp(ctx, r, w.Tasks)
	}
	r.Seconds = time.Since(start).Seconds()
	return b.keep(r)
}

func (b *Builder) reportFile(key string) string {
	return strings.TrimSuffix(b.Image(key), ".sif") + ".json"
}

func (b *Builder) lockFile(key string) string { return filepath.Join(b.o.Cache, "locks", key) }

func (b *Builder) logFile(key string) string { return filepath.Join(b.o.Cache, "logs", key+".log") }

func (o *one) say(text string) {
	o.o.Progress(Event{Image: o.keys.Image, Step: o.steps, Of: o.total, Text: text})
}

func (o *one) build(ctx context.Context) error {
	for i := range o.plan.Stages {
		if err := o.stage(ctx, &o.plan.Stages[i]); err != nil {
			return err
		}
	}
	last := &o.plan.Stages[len(o.plan.Stages)-1]
	c := o.stages[last.Index]
	c, err := o.require(ctx, c, last)
	if err != nil {
		return err
	}
	return o.pack(ctx, c, last)
}

// stage makes all layers of a stage.
func (o *one) stage(ctx context.Context, st *dockerfile.Stage) error {
	first, err := o.begin(ctx, st.From, o.keys.Base[st.Index], st.Matches)
	if err != nil {
		return fmt.Errorf("%s:%d: FROM: %w", o.plan.File, st.Line, err)
	}
	c := first
	for i, s := range st.Steps {
		if s.Run != nil && st.Platform.Architecture != runtime.GOARCH {
			return &ArchError{File: o.plan.File, Line: s.Line, Text: s.Text, Base: st.Platform.Architecture}
		}
		o.steps++
		o.say(s.Text)
		if c, err = o.layers.shorten(ctx, c); err != nil {
			return err
		}
		key, began := o.keys.Steps[st.Index][i], time.Now()
		o.note("== %s:%d: %s\n", o.plan.File, s.Line, s.Text)
		la, fresh, err := o.layers.get(ctx, key, c, s.Run != nil, func(dir string) ([]tree.Special, error) {
			return o.step(ctx, c, s, dir)
		})
		if err != nil {
			o.report.rest = o.layers.rests(key)
			var status *StatusError
			if errors.As(err, &status) {
				if status.Log != o.report.Log {
					o.note("-- it failed for another image, see %s\n", status.Log)
				}
				own := *status // as this Dockerfile has it
				own.File, own.Line, own.Text = o.plan.File, s.Line, s.Text
				return &own
			}
			return fmt.Errorf("%s:%d: %s: %w", o.plan.File, s.Line, s.Text, err)
		}
		if fresh {
			o.note("-- %.1f s\n", time.Since(began).Seconds())
			o.report.Built++
		} else {
			o.note("-- made before (%s)\n", key)
			o.report.Reused++
		}
		c = append(c[:len(c):len(c)], la)
	}
	o.stages[st.Index] = c
	return nil
}

func (o *one) note(format string, args ...any) { fmt.Fprintf(o.log, format, args...) }

// begin is what a stage begins with.
func (o *one) begin(ctx context.Context, f dockerfile.From, key string, matches []tree.Match) (chain, error) {
	if f.Stage != nil {
		return o.stages[*f.Stage], nil
	}
	la, _, err := o.layers.get(ctx, key, nil, false, func(dir string) ([]tree.Special, error) {
		switch {
		case f.Base != nil:
			o.say("unpacking " + f.Base.Name)
			streams, err := o.o.Bases.Layers(ctx, *f.Base)
			if err != nil {
				return nil, err
			}
			return o.layers.unpack(ctx, filepath.Dir(dir), step.Unpack{Out: dir, Apply: true}, streams...)
		case f.Context != "":
			copied := filepath.Join(filepath.Dir(dir), "empty")
			if err := os.Mkdir(copied, 0o755); err != nil {
				return nil, err
			}
			r, err := o.scratch.engine.do(ctx, step.Spec{Lower: []string{copied}, Upper: dir, Dir: filepath.Dir(dir), Copy: &step.Copy{
				Request: tree.CopyRequest{Root: f.Context, Matches: matches, Dest: "/"},
			}}, o.log)
			return r.Specials, err
		}
		return nil, nil // scratch
	})
	return chain{la}, err
}
