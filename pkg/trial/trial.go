// Package trial runs one task once: it starts a container, lets an agent act in
// it, and has the task's tests judge what came of that, in the order of
// Harbor's. What it cannot judge has a fault and no reward. Nothing that comes
// out of a container is trusted, and nothing of the caller's goes in but the
// task's own files.
package trial

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fence/pkg/box"
	"fence/pkg/internal/text"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/spec"
	"fence/pkg/taint"
)

// Box is a container that stays up while commands run in its two domains; see
// box.Box.
type Box interface {
	Run(ctx context.Context, c box.Command, s session.Streams) (session.Exit, error)
	Put(ctx context.Context, domain, dir string, tar io.Reader) error
	Get(ctx context.Context, domain, dir string, paths []string, tar io.Writer) error
	End(ctx context.Context, domain string) error
	Done() <-chan struct{}
	Err() error
	Isolation() result.Isolation
	Usage() result.Usage
	Upper() string
	Workdir() string
	Domain(user string) string
	Config() box.Config
	Close() error
}

// Options are one trial.
type Options struct {
	Spec  spec.Spec
	Agent Agent
	Dir   string // the trial's folder on the host; it is there
	// Broken is why no trial can begin, if so: there is no image, or the gate
	// does not let it pass.
	Broken *result.Fault

	// Start starts a container. Box is how: all but its network, environment,
	// users and private folders, which the task has a say in, as it has in limits
	// where it asks for less. Its Scratch is an empty folder of this trial's alone.
	Start func(context.Context, box.Options) (Box, error)
	Box   box.Options
	// VerifierImages are those of verifiers that have a container of their own, by
	// step; "" is the name of a task's that has none.
	VerifierImages map[string]string
	// Network is the most that a task gets: none, loopback or host.
	Network, Why string
	// Gate is how the probe's gate ended on this node with this image.
	Gate string
	// Host is by whom and on what it is run.
	Host *result.Host

	Env         map[string]string // of every command, over the image's: a wheelhouse's
	VerifierEnv map[string]string // of the tests: a grader's bundle
	// VerifierPath are folders in front of the tests' PATH.
	VerifierPath []string

	Times         Times
	StrictVerdict bool // a tainted verdict is a fault
	// Phase is told, for people, what the trial is about to do; may be nil.
	Phase func(string)
	Now   func() time.Time
}

// Times are factors of what a task allows for each phase.
type Times struct{ Build, Agent, Verifier float64 }

// scale is a time with its factor; 0 is no limit, and a factor of 0 is none.
func scale(d time.Duration, factor float64) time.Duration {
	return time.Duration(float64(d) * cmp.Or(factor, 1))
}

// harness bounds what is not the task's: uploads and downloads.
const harness = 10 * time.Minute

// run is a trial on its way.
type run struct {
	Options
	r     *result.Trial
	log   io.Writer
	box   Box
	acted bool // the agent has begun
	watch *taint.Watch
}

// Run runs a trial to its end, which is always told: by a verdict or a fault.
// When ctx ends, the trial does, with the class stopped and ctx's cause.
func Run(ctx context.Context, o Options) result.Trial {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Phase == nil {
		o.Phase = func(string) {}
	}
	r := result.Trial{
		AgentInfo: o.Agent.Info(), StartedAt: o.Now().UTC(), Image: o.Box.Image, Tainted: []result.Taint{}, Warnings: slices.Clone(o.Spec.Warnings),
	}
	r.Node, _ = os.Hostname()
	t := &run{Options: o, r: &r, log: io.Discard}
	log, err := os.OpenFile(filepath.Join(o.Dir, "trial.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	switch {
	case err != nil:
		err = t.because(ctx, nil, "start", "internal", "infra", fmt.Errorf("the trial's log: %w", err))
	case o.Broken != nil:
		defer log.Close()
		t.log, err = log, &Fault{*o.Broken}
	default:
		defer log.Close()
		t.log = log
		if c, ok := o.Agent.(checker); ok {
			err = c.Check(o.Spec)
		}
		if err == nil {
			err = t.all(ctx)
		}
	}
	if t.watch != nil {
		t.watch.Close()
	}
	if t.box != nil {
		t.close(t.box)
	}
	if err != nil {
		f := t.because(ctx, nil, "start", "internal", "unknown", err).(*Fault).Fault
		r.Fault, r.Reward, r.VerifierResult = &f, nil, nil
		r.ExceptionInfo = t.exception(exception(f), f.Message)
		t.say("fault: phase %s, class %s, cause %s: %s", f.Phase, f.Class, f.Cause, f.Message)
		r.ExceptionInfo.Traceback = fmt.Sprintf("%s: %s\n", r.ExceptionInfo.Type, text.Printable(f.Message))
		if f.Hint != "" {
			r.ExceptionInfo.Traceback += "hint: " + f.Hint + "\n"
		}
	}
	r.FinishedAt = o.Now().UTC()
	if r.Reward != nil {
		t.say("reward %v", *r.Reward)
	}
	return r
}

func (r *run) exception(name, message string) *result.ExceptionInfo {
	return &result.ExceptionInfo{Type: name, Message: message, At: r.Now().UTC()}
}

// say writes a line of the trial's log.
func (r *run) say(format string, a ...any) {
	line := text.Printable(fmt.Sprintf(format, a...)) // some of it is a command's
	fmt.Fprintf(r.log, "%s %s\n", r.Now().UTC().Format("2006-01-02T15:04:05.000Z"), line)
}

// warn is a line of the log that the record has too.
func (r *run) warn(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	r.say("warning: %s", text)
	r.r.Warnings = append(r.r.Warnings, text)
}

// timed runs a phase and says how long it took.
func (r *run) timed(name string, to **result.Timing, phase func() error) error {
	t := &result.Timing{StartedAt: r.Now().UTC()}
	*to = t
	r.Phase(name)
	r.say("%s: begins", name)
	err := phase()
	end := r.Now().UTC()
	t.FinishedAt = &end
	r.say("%s: ended after %.3f s", name, end.Sub(t.StartedAt).Seconds())
	return err
}

// close ends a container. What it needed is known then.
func (r *run) close(b Box) {
	if err := b.Close(); err != nil {
		r.warn("what a container left could not be removed: %v", err)
	}
	u, total := b.Usage(), &r.r.Usage
	total.MemoryBytes = max(total.MemoryBytes, u.MemoryBytes)
	total.DiskBytes = max(total.DiskBytes, u.DiskBytes)
	total.Processes = max(total.Processes, u.Processes)
	total.CPUSec += u.CPUSec
}

func (r *run) all(ctx context.Context) error {
	if err := r.timed("start", &r.r.EnvironmentSetup, func() (err error) {
		o := r.Box
		o.Folders, _ = taint.Folders(o.Image) // an image that cannot be read is told of by the start
		o.AgentUser, o.Users, o.VerifierUser = users(r.Spec)
		if r.box, err = r.start(ctx, "box", r.Spec.Environment, o); err != nil {
			return err
		}
		i := r.box.Isolation()
		i.Asked, i.Gate, i.Host = r.Spec.Environment.Network.Mode, r.Gate, r.Host
		r.r.Isolation = &i
		return r.setup(ctx)
	}); err != nil {
		return err
	}
	if len(r.Spec.Steps) > 0 {
		return r.steps(ctx)
	}
	p := parts(r.Spec)[0]
	end := r.part(ctx, p, r.Dir)
	r.r.Agent, r.r.AgentResult, r.r.AgentExecution = end.Agent, end.AgentResult, end.AgentExecution
	r.r.VerifierResult, r.r.VerifierTiming, r.r.Reward, r.r.Verify = end.VerifierResult, end.Verifier, end.Reward, end.Verify
	r.r.ExceptionInfo = end.ExceptionInfo
	return end.err
}

// private are the folders that only the verifier's domain has.
var private = []string{"/tests", "/logs/verifier", verifierOwn}

// start starts a container for an environment.
func (r *run) start(ctx context.Context, name string, e spec.Environment, o box.Options) (Box, error) {
	o.Network, o.Why = r.Granted()
	o.Workdir = e.Workdir
	o.Scratch = filepath.Join(o.Scratch, name)
	if err := os.Mkdir(o.Scratch, 0o700); err != nil {
		return nil, r.because(ctx, nil, "start", "scratch_gone", "infra", err)
	}
	o.Private = private
	o.Env = maps.Clone(e.Env)
	if o.Env == nil {
		o.Env = map[string]string{}
	}
	maps.Copy(o.Env, r.Env)
	o.Limits.Memory = tighter(o.Limits.Memory, int64(e.MemoryMB)<<20)
	o.Limits.Disk = tighter(o.Limits.Disk, int64(e.StorageMB)<<20)
	limit := scale(e.BuildTimeout, r.Times.Build)
	started, cancel := ctx, context.CancelFunc(func() {})
	if limit > 0 {
		started, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	b, err := r.Start(started, o)
	if err != nil && ctx.Err() == nil && started.Err() != nil {
		return nil, Faultf("start", "start_timeout", "infra", "--timeout-multiplier, or fewer at a time: -n", "the container was not up after %v (build_timeout_sec)", limit)
	}
	return b, r.because(ctx, nil, "start", "start_failed", "infra", err)
}

// tighter is the lesser of two limits, of which 0 is none.
func tighter(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Granted is the network that the trial gets, and why: the least that anybody
// asks for. A task without a network has its own servers, as with docker.
func (o Options) Granted() (mode, why string) {
	mode = cmp.Or(o.Network, "loopback")
	asked := []spec.Network{o.Spec.Environment.Network, o.Spec.Agent.Network}
	verifiers := []spec.Verifier{o.Spec.Verifier}
	for _, s := range o.Spec.Steps {
		asked, verifiers = append(asked, s.Agent.Network), append(verifiers, s.Verifier)
	}
	for _, v := range verifiers {
		asked = append(asked, v.Network)
		if v.Separate != nil {
			asked = append(asked, v.Separate.Network)
		}
	}
	for _, n := range asked {
		if mode == "host" && (n.Mode == "no-network" || n.Mode == "allowlist") {
			mode = "loopback"
		}
	}
	if mode != "host" {
		return mode, ""
	}
	return mode, o.Why
}

// setup makes the folders that every trial has, and brings the task's own files.
func (r *run) setup(ctx context.Context) error {
	fail := func(what string, err error) error {
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
		return r.because(ctx, r.box, "setup", "setup_failed", "infra", err)
	}
	if err := r.agentFolders(ctx); err != nil {
		return fail("making /logs/agent", err)
	}
	if dir := r.Spec.Environment.Files; dir != "" {
		if err := r.toWorkdir(ctx, dir); err != nil {
			return fail("uploading "+dir, err)
		}
	}
	if err := r.healthy(ctx, r.Spec.Environment.Healthcheck, ""); err != nil {
		return fail("health check", err)
	}
	return nil
}

// agentFolders are those of Harbor's that an agent finds.
func (r *run) agentFolders(ctx context.Context) error {
	return put(ctx, r.box, box.Agent, "/logs", func(w *tar.Writer) error { return add(w, entry{"agent/", "", 0o777}, entry{"artifacts/", "", 0o777}) })
}

// toWorkdir uploads a folder's content to where the task's commands begin.
func (r *run) toWorkdir(ctx context.Context, dir string) error {
	return put(ctx, r.box, box.Agent, r.box.Workdir(), func(w *tar.Writer) error { return pack(w, dir, ".") })
}

// healthy waits until a user's health check says yes. As with docker, what fails
// in the start period does not count; the first try is made at once.
func (r *run) healthy(ctx context.Context, h *spec.Healthcheck, user string) error {
	if h == nil {
		return nil
	}
	began, failed := r.Now(), 0
	for {
		said := &lastWords{}
		exit, err := r.box.Run(ctx, box.Command{Domain: r.box.Domain(user), Argv: shell(h.Command), Timeout: h.Timeout}, session.Streams{Out: said, Err: said})
		if err != nil {
			return err
		}
		if exit.Code == 0 {
			return nil
		}
		r.say("health check ended with %d", exit.Code)
		pause := h.StartInterval
		if r.Now().Sub(began) >= h.StartPeriod {
			pause = h.Interval
			if failed++; failed >= max(h.Retries, 1) {
				return Faultf("setup", "healthcheck", "task", "", "the health check failed %d times; the last ended with %d: %s", failed, exit.Code, said)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.box.Done():
			return errors.New("the container has ended")
		case <-time.After(pause):
		}
	}
}
