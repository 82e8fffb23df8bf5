// Package build makes images out of plans: each step once, whatever number of
// images begin with it, in scratch folders of this node; what is worth keeping
// goes into a cache that nodes share. An image is named by everything that went
// into it, so what is there already is not built again.
package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/check"
	"fence/pkg/dockerfile"
	"fence/pkg/internal/lockfile"
	"fence/pkg/sif"
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
	Require  []string          // commands that an image must have in the end
	Config   []step.File       // there while a RUN step runs, where the image has the folder for it
	Secrets  map[string]string // files by the id of --mount=type=secret
	Timeout  time.Duration     // of one attempt at one image; 0: none
	Retries  int               // of what may work the next time
	Pause    time.Duration     // before the first retry; twice as long before the second, and so on
	CPUs     int               // for packing; 0: all that this process may use
	// Apptainer is the path of the node's, which each new image is started
	// with once; "" if there is none. NoSmoke leaves that out.
	Apptainer string
	NoSmoke   bool
	// Sandbox is the path of the Apptainer that steps begin inside; "" where
	// this node lets its users make user namespaces themselves. What is built is
	// the same.
	Sandbox  string
	Log      *slog.Logger // nil discards
	Progress func(Event)  // nil discards; called from several goroutines
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
}

// StatusError is a command that failed.
type StatusError struct {
	File   string
	Line   int
	Text   string
	Status int
	Log    string // what it said
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s:%d: %s: exit status %d", e.File, e.Line, e.Text, e.Status)
}

// ArchError is a command for another architecture than the node's.
type ArchError struct {
	File string
	Line int
	Text string
	Base string
}

func (e *ArchError) Error() string {
	return fmt.Sprintf("%s:%d: %s: the stage is for %s and this node is %s: build on a %s node, or begin with an image for %s", e.File, e.Line, e.Text, e.Base, runtime.GOARCH, e.Base, runtime.GOARCH)
}

// ErrTimeout is the cause of a build that took longer than Options.Timeout.
var ErrTimeout = errors.New("the build took longer than --timeout allows")

// Builder builds images; Close removes what it has on this node.
type Builder struct {
	o       Options
	scratch *scratch
	layers  *layers
}

// New prepares to build.
func New(o Options) (*Builder, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(Event) {}
	}
	o.Platform = dockerfile.NormalPlatform(o.Platform)
	if o.CPUs == 0 {
		o.CPUs = runtime.NumCPU()
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
	l := &layers{scratch: s, cache: o.Cache, calls: map[string]*call{}}
	return &Builder{o: o, scratch: s, layers: l}, nil
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
func (b *Builder) Close() error { return b.scratch.close() }

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

// Build makes the image of a plan, unless it is there. The report says what
// was done, also beside an error. What tasks have that their agents must not
// see is looked for in the image.
func (b *Builder) Build(ctx context.Context, name string, p *dockerfile.Plan, tasks ...check.Task) (*Report, error) {
	start := time.Now()
	k := newKeys(p, b.o.Platform, b.profile())
	r := newReport(name, k.Image, b.Image(k.Image), b.o.Platform.Architecture)
	for _, w := range p.Warnings {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s:%d: %s", w.File, w.Line, w.Text))
	}
	if b.there(k.Image, r) {
		r.Seconds = time.Since(start).Seconds()
		return r, b.catchUp(ctx, r, tasks)
	}
	if err := ctx.Err(); err != nil {
		return r, context.Cause(ctx)
	}
	// Others who want the same image wait for it, on whatever node.
	b.o.Progress(Event{Image: k.Image, Text: "its turn: another run may be building it"})
	lock, err := lockfile.Acquire(ctx, filepath.Join(b.o.Cache, "locks", k.Image))
	if err != nil {
		return r, fmt.Errorf("the cache (--cache): %w", err)
	}
	defer lock.Release()
	if b.there(k.Image, r) {
		r.Seconds = time.Since(start).Seconds()
		return r, b.catchUp(ctx, r, tasks)
	}
	if err := unfinished(b.o.Cache, "sif", k.Image); err != nil {
		return r, err
	}
	r.Log = b.logFile(k.Image)
	log, err := os.OpenFile(r.Log, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o644)
	if err != nil {
		return r, fmt.Errorf("the log of a build: %w", err)
	}
	defer log.Close()
	if b.o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, b.o.Timeout, ErrTimeout)
		defer cancel()
	}
	o := &one{Builder: b, plan: p, keys: k, stages: map[int]chain{}, log: log, report: r, tasks: tasks}
	for _, st := range p.Stages {
		o.total += len(st.Steps)
	}
	err = o.build(ctx)
	r.Seconds = time.Since(start).Seconds()
	if err != nil {
		log := r.Log
		var status *StatusError
		if errors.As(err, &status) {
			log = status.Log
		}
		r.Fault = classify(err, tail(log))
		return r, err
	}
	return r, writeJSON(b.reportFile(k.Image), r)
}

// there fills in the report of an image that is in the cache.
func (b *Builder) there(key string, r *Report) bool {
	var made Report
	if readJSON(b.reportFile(key), &made) != nil {
		return false
	}
	// Of another size it is not what was looked at: a lost write of the storage, a copy that was cut short.
	if info, err := os.Stat(b.Image(key)); err != nil || info.Size() != made.Bytes {
		return false
	}
	// What it says of the work was true when that was done.
	made.Name, made.Cached, made.Built, made.Reused = r.Name, true, 0, made.Built+made.Reused
	made.Image, made.Log = r.Image, b.logFile(key) // a cache can be moved
	made.lists()
	*r = made
	use(r.Image)
	return true
}

func (b *Builder) reportFile(key string) string {
	return strings.TrimSuffix(b.Image(key), ".sif") + ".json"
}

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
			var status *StatusError
			if errors.As(err, &status) {
				if status.Log != o.report.Log {
					o.note("-- it failed for another image, see %s\n", status.Log)
				}
				return &StatusError{o.plan.File, s.Line, s.Text, status.Status, status.Log} // as this Dockerfile has it
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

// step does one step on top of c, into dir.
func (o *one) step(ctx context.Context, c chain, s dockerfile.Step, dir string) ([]tree.Special, error) {
	spec := step.Spec{Lower: o.layers.lower(c), Upper: dir, Dir: filepath.Dir(dir)}
	var err error
	switch {
	case s.Run != nil:
		if spec.Run, err = o.run(ctx, s.Run, spec.Dir); err == nil {
			spec.Run.Specials = c.specials()
		}
	case s.Copy != nil:
		if s.Copy.Link {
			// As if nothing was there: links and modes below do not count.
			empty, err := o.begin(ctx, dockerfile.From{Scratch: true}, digest("scratch"), nil)
			if err != nil {
				return nil, err
			}
			spec.Like, spec.Lower = spec.Lower[0], o.layers.lower(empty)
		}
		spec.Copy, err = o.copy(ctx, s.Copy, spec.Dir)
	case s.Workdir != nil:
		spec.Workdir = &step.Workdir{Path: s.Workdir.Path, User: s.Workdir.User}
	}
	if err != nil {
		return nil, err
	}
	r, err := o.scratch.engine.do(ctx, spec, o.log)
	for _, w := range r.Warnings {
		o.report.Warnings = append(o.report.Warnings, fmt.Sprintf("%s:%d: %s", o.plan.File, s.Line, w))
	}
	if err == nil && r.Exit != 0 {
		err = &StatusError{o.plan.File, s.Line, s.Text, r.Exit, o.report.Log}
	}
	if err == nil && s.Run != nil {
		err = o.scratch.room()
	}
	return r.Specials, err
}

// pack makes the image.
func (o *one) pack(ctx context.Context, c chain, st *dockerfile.Stage) error {
	o.say("packing")
	began := time.Now()
	defer func() { o.note("== packed: %.1f s\n", time.Since(began).Seconds()) }()
	work, err := o.scratch.work()
	if err != nil {
		return err
	}
	defer remove(work)
	upper := filepath.Join(work, "fs")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	squashfs := filepath.Join(work, "root.squashfs")
	r, err := o.scratch.engine.do(ctx, step.Spec{Lower: o.layers.lower(c), Upper: upper, Dir: work, Squash: &step.Squash{
		Config: st.Config, Specials: c.specials(), Out: squashfs, CPUs: o.o.CPUs,
	}}, o.log)
	if err != nil {
		return err
	}
	meta := sif.Meta{Arch: st.Platform.Architecture, Config: st.Config, StartInterval: st.StartInterval}
	for _, p := range r.Owners {
		meta.Owners = append(meta.Owners, sif.Owner{Path: p.Path, UID: p.Owner.UID, GID: p.Owner.GID})
	}
	for _, d := range r.Specials {
		meta.Owners = append(meta.Owners, sif.Owner{Path: d.Path, UID: d.Owner.UID, GID: d.Owner.GID, Device: d.Device, Mode: d.Mode, Major: d.Major, Minor: d.Minor})
	}
	return o.publish(ctx, squashfs, meta)
}

// tail is the end of a log: what a build said before it failed.
func tail(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 16 << 10
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, size-most), io.SeekStart)
	}
	data, _ := io.ReadAll(io.LimitReader(f, most))
	return string(data)
}
