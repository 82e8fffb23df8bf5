package trial

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/sif"
	"fence/pkg/spec"
	"fence/test/bed"
)

func TestRun_OracleAndNop(t *testing.T) {
	for _, c := range []struct {
		agent Agent
		want  string
	}{{Oracle{}, "reward 1, done"}, {Nop{}, "reward 0, done"}} {
		b := newBench(t)
		b.Agent = c.agent
		r := Run(t.Context(), b.Options)
		if got := brief(r); got != c.want {
			t.Errorf("%T: %s, want %s: %+v", c.agent, got, c.want, r.Fault)
		}
		if !b.boxes[0].ended {
			t.Error("the container is left")
		}
		if r.Usage.MemoryBytes != 7 || r.Usage.CPUSec != 1 || r.Isolation == nil || !r.Isolation.Below || r.Verify.From != "reward.txt" {
			t.Errorf("the record lacks what the container was: %+v %+v %+v", r.Usage, r.Isolation, r.Verify)
		}
	}
}

// In Harbor's order: nothing of the tests is there before the agent's phase is
// over, the solution comes for the oracle alone, and all of it in its domain.
func TestRun_Order(t *testing.T) {
	b := newBench(t)
	b.Spec.Environment.Files = filepath.Join(b.Spec.Task.Dir, "environment") // of a task with a docker_image
	if err := errors.Join(os.Mkdir(b.Spec.Environment.Files, 0o755), os.WriteFile(filepath.Join(b.Spec.Environment.Files, "data"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	Run(t.Context(), b.Options)
	if _, err := os.Stat(filepath.Join(b.boxes[0].root, "app/data")); err != nil {
		t.Errorf("the environment's files: %v", err)
	}
	want := []string{
		"put agent /logs", "put agent /app", "put agent /solution", "run agent (/solution/solve.sh) > /logs/agent/oracle.txt 2>&1", "get agent /logs/agent",
		"run verifier /logs/verifier", "put verifier /", "run verifier exec /tests/test.sh > /logs/verifier/test-stdout.txt 2>&1", "get verifier /logs/verifier",
	}
	if got := b.boxes[0].calls; !slices.Equal(got, want) {
		t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	b = newBench(t)
	b.Agent = Nop{}
	Run(t.Context(), b.Options)
	for _, call := range b.boxes[0].calls {
		if strings.Contains(call, "solution") {
			t.Errorf("without an oracle: %s", call)
		}
	}
}

func TestRun_Faults(t *testing.T) {
	lost := &session.Error{Code: session.CodeLost, Text: "the session is gone"}
	limit := &box.Error{Class: "memory_limit", Cause: "agent", Message: "over"}
	onTests := func(exit session.Exit, err error) func(*fake, box.Command, session.Streams) (session.Exit, error) {
		return func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
			if isTests(c) {
				f.writes("logs/verifier/reward.txt", "1") // it does not count
				return exit, err
			}
			return passes(f, c, s)
		}
	}
	reward := func(name, text string) func(b *bench) {
		return func(b *bench) {
			b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
				if isTests(c) && name != "" {
					f.writes("logs/verifier/"+name, text)
				}
				return session.Exit{}, nil
			}
		}
	}
	for name, c := range map[string]struct {
		change func(b *bench)
		want   string
	}{
		"no image":   {func(b *bench) { b.Broken = &result.Fault{Phase: "build", Class: "image_missing", Cause: "infra"} }, "reward none, build image_missing infra"},
		"start":      {func(b *bench) { b.fails(errors.New("no")) }, "reward none, start start_failed infra"},
		"image":      {func(b *bench) { b.fails(&box.Error{Class: "image_invalid", Cause: "infra"}) }, "reward none, start image_invalid infra"},
		"unfenced":   {func(b *bench) { b.fails(&box.Error{Class: "not_isolated", Cause: "infra"}) }, "reward none, isolation not_isolated infra"},
		"start time": {func(b *bench) { b.hangs(time.Millisecond) }, "reward none, start start_timeout infra"},
		"upload":     {func(b *bench) { b.put = failing("agent", "/logs", lost) }, "reward none, setup setup_failed infra"},
		"unhealthy": {func(b *bench) {
			b.Spec.Environment.Healthcheck = &spec.Healthcheck{Command: "sick", Retries: 2}
			b.run = func(*fake, box.Command, session.Streams) (session.Exit, error) { return session.Exit{Code: 1}, nil }
		}, "reward none, setup healthcheck task"},
		"no solution":                   {func(b *bench) { b.Spec.Task.Solution = "" }, "reward none, agent solution_missing task"},
		"a solution that cannot be run": {func(b *bench) { b.Spec.SolutionRefused = &spec.Refused{Reason: "no variable"} }, "reward none, setup setup_failed task"},
		"agent over its memory": {func(b *bench) {
			b.run = func(f *fake, c box.Command, _ session.Streams) (session.Exit, error) {
				return session.Exit{}, f.dies(limit)
			}
		}, "reward none, agent memory_limit task, error"},
		"a model over its memory": {func(b *bench) { b.Agent = model{func(e Env) error { return e.Box.(*fake).dies(limit) }} }, "reward none, agent memory_limit agent, error"},
		"the node over its memory": {func(b *bench) {
			b.run = func(f *fake, c box.Command, _ session.Streams) (session.Exit, error) {
				return session.Exit{}, f.dies(&box.Error{Class: "memory_limit", Cause: "unknown"})
			}
		}, "reward none, agent memory_limit unknown, error"},
		"a broken model": {func(b *bench) { b.Agent = model{func(Env) error { return errors.New("no server") }} }, "reward none, agent agent_error unknown, error"},
		"a model's fault": {func(b *bench) {
			b.Agent = model{func(Env) error { return Faultf("agent", "model_gone", "infra", "", "x") }}
		}, "reward none, agent model_gone infra, error"},
		"no room for a record": {func(b *bench) {
			b.Agent = model{func(e Env) error {
				return fmt.Errorf("turn 1: %w", &fs.PathError{Op: "write", Path: filepath.Join(e.Dir, "turns.jsonl"), Err: unix.EDQUOT})
			}}
		}, "reward none, agent out_full infra, error"},
		"no room elsewhere": {func(b *bench) {
			b.Agent = model{func(e Env) error { return &fs.PathError{Op: "write", Path: "/elsewhere", Err: unix.ENOSPC} }}
		}, "reward none, agent agent_error unknown, error"},
		"no room for rewards": {func(b *bench) {
			b.get = failing("verifier", "/logs/verifier", &fs.PathError{Op: "write", Path: "reward.txt", Err: unix.ENOSPC})
		}, "reward none, verify out_full infra, done"},
		"tests not uploaded": {func(b *bench) { b.put = failing("verifier", "/", lost) }, "reward none, verify upload_failed infra, done"},
		"verifier over time": {func(b *bench) { b.run = onTests(session.Exit{Code: 124, TimedOut: true}, nil) }, "reward none, verify verifier_timeout task, done"},
		"verifier killed":    {func(b *bench) { b.run = onTests(session.Exit{Code: 137, Signal: 9}, nil) }, "reward none, verify reward_missing unknown, done"},
		"verifier lost":      {func(b *bench) { b.run = onTests(session.Exit{}, &box.Error{Class: "session_lost", Cause: "agent"}) }, "reward none, verify session_lost unknown, done"},
		"over its disk at the end": {func(b *bench) {
			b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
				if isTests(c) {
					f.writes("logs/verifier/reward.txt", "1")
					f.dies(&box.Error{Class: "disk_limit", Cause: "agent"})
				}
				return session.Exit{}, nil
			}
		}, "reward none, verify disk_limit task, done"},
		"rewards not fetched": {func(b *bench) { b.get = failing("verifier", "/logs/verifier", lost) }, "reward none, verify download_failed infra, done"},
		"too many files": {func(b *bench) {
			b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
				for i := range logsMost.files + 1 {
					if isTests(c) {
						f.writes(fmt.Sprintf("logs/verifier/%d", i), "")
					}
				}
				return session.Exit{}, nil
			}
		}, "reward none, verify download_failed task, done"},
		"artifact not fetched":  {func(b *bench) { separate(b); b.get = failing("agent", "/app", errors.New("no")) }, "reward none, verify download_failed infra, done"},
		"artifact that changes": {func(b *bench) { separate(b); b.get = failing("agent", "/app", lost) }, "reward none, verify download_failed task, done"},
		"artifact behind a lost domain": {func(b *bench) {
			separate(b)
			b.Agent, b.get = model{large}, failing("agent", "/app", &box.Error{Class: "session_lost", Cause: "agent"})
		}, "reward none, verify session_lost agent, done"},
		"artifact of a model's, large": {func(b *bench) { separate(b); b.Agent = model{large}; artifactsMost.all = 1 }, "reward none, verify download_failed agent, done"},
		"over its memory before its artifacts": {func(b *bench) {
			separate(b)
			b.Spec.Verifier.Collect = []spec.Collect{{Command: "collect"}}
			b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
				if c.Argv[len(c.Argv)-1] == "collect" {
					return session.Exit{}, f.dies(limit)
				}
				return passes(f, c, s)
			}
		}, "reward none, verify memory_limit task, done"},
		"killed among its artifacts": {func(b *bench) {
			separate(b)
			b.get = func(_, dir string) error { // what is asked for has come whole
				if dir == "/app" {
					b.boxes[0].dies(&box.Error{Class: "container_killed", Cause: "infra"})
				}
				return nil
			}
		}, "reward none, verify container_killed infra, done"},
		"gone after its model, which leaves nothing to keep": {func(b *bench) {
			separate(b)
			b.Spec.Artifacts = nil
			b.Agent = model{func(e Env) error { e.Box.(*fake).dies(limit); return nil }}
		}, "reward none, verify memory_limit agent, done"},
		"an earlier reward that cannot be removed": {func(b *bench) { b.full = 3 }, "reward none, verify upload_failed infra, done"},
		"verifier killed with its box": {func(b *bench) {
			b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
				if isTests(c) {
					f.dies(limit)
					return session.Exit{Code: 137, Signal: 9}, nil
				}
				return session.Exit{}, nil
			}
		}, "reward none, verify memory_limit task, done"},
		"verifier over time, after a model": {func(b *bench) {
			b.Agent, b.run = model{func(Env) error { return nil }}, onTests(session.Exit{Code: 124, TimedOut: true}, nil)
		}, "reward none, verify verifier_timeout agent, done"},
		"no reward":    {reward("", ""), "reward none, verify reward_missing task, done"},
		"empty reward": {reward("reward.txt", " \n"), "reward none, verify reward_empty task, done"},
		"a link": {func(b *bench) {
			b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
				if isTests(c) {
					f.writes("logs/verifier/reward.txt", "1")
					if err := os.Symlink("/tmp/reward", filepath.Join(f.root, "logs/verifier/reward.json")); err != nil {
						return session.Exit{}, err
					}
				}
				return session.Exit{}, nil
			}
		}, "reward none, verify reward_invalid task, done"},
		"nan": {reward("reward.txt", "nan"), "reward none, verify reward_invalid task, done"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			logs, artifacts := logsMost, artifactsMost
			logsMost.files = 50
			defer func() { logsMost, artifactsMost = logs, artifacts }()
			c.change(b)
			r := Run(t.Context(), b.Options)
			if got := brief(r); got != c.want {
				t.Errorf("%s\nwant %s\n%s", got, c.want, read(t, b.Dir, "trial.log"))
			}
			if r.ExceptionInfo == nil || r.ExceptionInfo.Type == "" {
				t.Error("Harbor's tools are not told")
			}
			for _, f := range b.boxes {
				if !f.ended {
					t.Error("the container is left")
				}
			}
		})
	}
}

// separate has the tests in a container of their own, with what the agent left.
func separate(b *bench) {
	b.VerifierImages = map[string]string{"": "/v.sif"}
	b.Spec.Artifacts = []spec.Artifact{{Source: "/app/done", Destination: "app/done"}, {Source: "/app/none", Destination: "app/none"}}
	b.Spec.Verifier.Separate = &spec.Environment{HasTests: true, MemoryMB: 3}
}

func large(e Env) error {
	e.Box.(*fake).writes("app/done", "yes")
	return nil
}

// fails makes the container not start.
func (b *bench) fails(err error) {
	b.Start = func(context.Context, box.Options) (Box, error) { return nil, err }
}

// hangs makes the start last until it is ended.
func (b *bench) hangs(limit time.Duration) {
	b.Spec.Environment.BuildTimeout = limit
	b.Start = func(ctx context.Context, _ box.Options) (Box, error) { <-ctx.Done(); return nil, ctx.Err() }
}

func failing(domain, dir string, err error) func(string, string) error {
	return func(d, at string) error {
		if d == domain && at == dir {
			return err
		}
		return nil
	}
}

// model is an agent that is none of the scripted.
type model struct{ act func(Env) error }

func (model) Info() result.AgentInfo { return result.AgentInfo{Name: "model"} }
func (model) Scripted() bool         { return false }
func (m model) Run(_ context.Context, e Env) (result.AgentEnd, error) {
	return result.AgentEnd{Stop: "done"}, m.act(e)
}

// An agent's timeout, and the end of its domain by its own hand, are followed
// by the verifier, as any end.
func TestRun_VerifiesAfter(t *testing.T) {
	for want, exit := range map[string]func(*fake) (session.Exit, error){
		"reward 1, time_cap": func(*fake) (session.Exit, error) { return session.Exit{Code: 124, TimedOut: true}, nil },
		"reward 1, session_lost": func(*fake) (session.Exit, error) {
			return session.Exit{}, &box.Error{Class: "session_lost", Cause: "agent", Message: "the domain agent is lost"}
		},
		"reward 1, done": func(*fake) (session.Exit, error) { return session.Exit{Code: 3}, nil },
	} {
		b := newBench(t)
		b.Spec.Agent.Timeout = time.Hour // more than the agent had of its own
		b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
			if !isSolve(c) {
				return passes(f, c, s)
			}
			f.writes("app/done", "")
			return exit(f)
		}
		r := Run(t.Context(), b.Options)
		if got := brief(r); got != want {
			t.Errorf("%s, want %s: %+v", got, want, r.Fault)
		}
		if r.Agent.Stop == "time_cap" && (r.ExceptionInfo == nil || r.ExceptionInfo.Type != "AgentTimeoutError" || strings.Contains(r.ExceptionInfo.Message, "1h")) {
			t.Errorf("Harbor's AgentTimeoutError is missing, or says what the task allows: %+v", r.ExceptionInfo)
		}
		if r.Agent.ExitCode != nil && *r.Agent.ExitCode == 3 && read(t, b.Dir, "agent/exit-code.txt") != "3\n" {
			t.Error("agent/exit-code.txt does not say 3")
		}
	}
}

func TestRun_Stopped(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
		cancel(errors.New("the job ends"))
		return session.Exit{}, context.Canceled
	}
	r := Run(ctx, b.Options)
	if got := brief(r); got != "reward none, stopped stopped infra, error" || !strings.Contains(r.Fault.Message, "the job ends") {
		t.Errorf("%s: %+v", got, r.Fault)
	}
}

func TestRun_Steps(t *testing.T) {
	for name, c := range map[string]struct {
		how   string
		least map[string]float64
		solve func(f *fake, step string)
		want  string
		steps int
	}{
		"all":     {"mean", nil, func(f *fake, _ string) { f.writes("app/done", "") }, "reward 1, done", 2},
		"half":    {"mean", nil, func(f *fake, s string) { only(f, s == "two") }, "reward 0.5, done", 2},
		"final":   {"final", nil, func(f *fake, s string) { only(f, s == "two") }, "reward 1, done", 2},
		"stopped": {"final", map[string]float64{"reward": 1}, func(f *fake, s string) { only(f, s == "two") }, "reward 0, done", 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Spec.StepReward = c.how
			for _, step := range []string{"one", "two"} {
				dir := filepath.Join(b.Spec.Task.Dir, "steps", step, "tests")
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				b.Spec.Steps = append(b.Spec.Steps, spec.Step{Name: step, Tests: dir, Solution: b.Spec.Task.Solution, MinReward: c.least, Verifier: b.Spec.Verifier})
			}
			step := 0
			b.run = func(f *fake, cmd box.Command, s session.Streams) (session.Exit, error) {
				if isSolve(cmd) {
					c.solve(f, b.Spec.Steps[step].Name)
					step++
					return session.Exit{}, nil
				}
				return passes(f, cmd, s)
			}
			r := Run(t.Context(), b.Options)
			if got := brief(r); got != c.want || len(r.StepResults) != c.steps {
				t.Errorf("%s after %d steps, want %s after %d: %+v", got, len(r.StepResults), c.want, c.steps, r.Fault)
			}
			if got := read(t, b.Dir, "steps/one/verifier/reward.txt"); got != "0" && got != "1" {
				t.Errorf("the first step's reward.txt is %q", got)
			}
		})
	}
}

// Each command is its user's; who is not said is the task's agent, or for what
// is the container's own the image's user.
func TestRun_Users(t *testing.T) {
	b := newBench(t)
	b.Spec.Agent.User = "app"
	b.VerifierImages = map[string]string{"one": "/one.sif", "two": "/two.sif"}
	b.Spec.Environment.Healthcheck = &spec.Healthcheck{Command: "healthy"}
	collect := []spec.Collect{{Command: "collect"}, {Command: "collect-db", User: "db"}}
	for _, step := range []spec.Step{
		{Name: "one", Agent: spec.Agent{User: "app"}, Verifier: spec.Verifier{User: "judge", Collect: collect}},
		{Name: "two", Agent: spec.Agent{User: "other"}, Healthcheck: &spec.Healthcheck{Command: "healthy-two"}, Verifier: spec.Verifier{User: "jury", Separate: &spec.Environment{HasTests: true}}},
	} {
		step.Solution, step.Verifier.Timeout = b.Spec.Task.Solution, time.Minute
		b.Spec.Steps = append(b.Spec.Steps, step)
	}
	if r := Run(t.Context(), b.Options); len(b.boxes) != 2 {
		t.Fatalf("%s in %d containers: %+v", brief(r), len(b.boxes), r.Fault)
	}
	main, own := b.boxes[0].options, b.boxes[1].options
	if own.Image != "/two.sif" {
		t.Errorf("the separate tests have the image %q", own.Image)
	}
	if main.AgentUser != "app" || main.VerifierUser != "judge" || !slices.Equal(main.Users, []string{"", "app", "db", "other"}) || own.AgentUser != "jury" || own.VerifierUser != "jury" || own.Users != nil {
		t.Errorf("users %q %q %q, and of the separate tests %q %q %q", main.AgentUser, main.Users, main.VerifierUser, own.AgentUser, own.Users, own.VerifierUser)
	}
	var got []string
	for _, call := range b.boxes[0].calls {
		if domain, ok := strings.CutPrefix(call, "run "); ok && !strings.HasPrefix(domain, box.Verifier) && !strings.HasSuffix(call, "/solution") {
			got = append(got, domain)
		} else if strings.HasPrefix(call, "put ") && strings.HasSuffix(call, "/solution") {
			got = append(got, call)
		}
	}
	solve := fmt.Sprintf(solve, "/solution/solve.sh", "/logs/agent/oracle.txt")
	if want := []string{"agent- healthy", "put agent /solution", "agent " + solve, "agent- collect", "agent-db collect-db", "agent-other healthy-two", "put agent-other /solution", "agent-other " + solve}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a command says is text in the log and in what stands for a traceback.
func TestRun_LogIsText(t *testing.T) {
	b := newBench(t)
	b.Spec.Verifier.Collect = []spec.Collect{{Command: "collect"}}
	b.Spec.Environment.Healthcheck = &spec.Healthcheck{Command: "healthy"}
	sick := 0
	b.run = func(f *fake, c box.Command, s session.Streams) (session.Exit, error) {
		switch c.Argv[len(c.Argv)-1] {
		case "healthy":
			fmt.Fprint(s.Out, "\x1b[2J")
			return session.Exit{Code: sick}, nil
		case "collect":
			fmt.Fprint(s.Err, "\x1b[2J")
			return session.Exit{Code: 1}, nil
		}
		return passes(f, c, s)
	}
	for _, sick = range []int{0, 1} {
		r := Run(t.Context(), b.Options)
		said := read(t, b.Dir, "trial.log")
		if r.ExceptionInfo != nil {
			said += r.ExceptionInfo.Traceback
		}
		if !strings.Contains(said, `\x1b[2J`) || strings.Contains(said, "\x1b") || (sick == 1) != (r.Fault != nil) {
			t.Errorf("%q, %+v", said, r.Fault)
		}
		if err := errors.Join(os.RemoveAll(b.Box.Scratch), os.Mkdir(b.Box.Scratch, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
}

func only(f *fake, yes bool) {
	if yes {
		f.writes("app/done", "")
	}
}

// What the tests open of the agents' is known by who can have written it: a
// step's agent has processes that live on, and tests may be elsewhere.
func TestRun_Watched(t *testing.T) {
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		bed.Missing(t, "mksquashfs")
	}
	dir := t.TempDir()
	image := filepath.Join(dir, "i.sif")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "root/usr/bin"), 0o755), os.WriteFile(filepath.Join(dir, "root/usr/bin/sh"), []byte("the image's"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sif.Pack(t.Context(), filepath.Join(dir, "root"), filepath.Join(dir, "s"), sif.PackOptions{Processors: 1, MemMiB: 64}), sif.Write(image, filepath.Join(dir, "s"), sif.Meta{Arch: "amd64"})); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		separate string // which of two parts have tests in a container of their own: n or y
		writes   string // when somebody writes a shell
		want     string
	}{
		{"an agent", "nn", "agent 1", "/usr/bin/sh"},
		{"the harness, before any agent", "nn", "setup 1", ""},
		{"beside the harness, after an agent", "nn", "setup 2", "/usr/bin/sh"},
		{"nobody", "ny", "", ""},
		{"an agent, before tests that are elsewhere", "ny", "agent 2", ""},
		{"an agent whose own tests are elsewhere", "yn", "agent 1", "/usr/bin/sh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.Spec.Steps, b.Box.Image, b.VerifierImages = nil, image, map[string]string{"": image}
			for i, step := range []string{"1", "2"} {
				workdir := filepath.Join(b.Spec.Task.Dir, step)
				if err := errors.Join(os.Mkdir(workdir, 0o755), os.WriteFile(filepath.Join(workdir, "setup.sh"), nil, 0o644)); err != nil {
					t.Fatal(err)
				}
				s := spec.Step{Name: step, Workdir: workdir, Solution: b.Spec.Task.Solution}
				if c.separate[i] == 'y' {
					s.Verifier.Separate = &spec.Environment{}
				}
				b.Spec.Steps = append(b.Spec.Steps, s)
			}
			step := 0
			b.run = func(f *fake, cmd box.Command, _ session.Streams) (session.Exit, error) {
				phase := ""
				switch {
				case strings.Contains(cmd.Argv[len(cmd.Argv)-1], "setup.sh"):
					step++
					phase = "setup"
					if cmd.Timeout != 0 {
						t.Errorf("setup.sh has %v, and the task says nothing of it", cmd.Timeout)
					}
				case isSolve(cmd):
					phase = "agent"
				case isTests(cmd):
					for _, p := range []string{"tests/test.sh", "usr/bin/sh"} {
						_, _ = os.ReadFile(filepath.Join(f.root, p))
					}
					f.writes("logs/verifier/reward.txt", "1")
				}
				if fmt.Sprint(phase, " ", step) == c.writes {
					f.writes("usr/bin/sh", "another")
				}
				return session.Exit{}, nil
			}
			start := b.Start
			b.Start = func(ctx context.Context, o box.Options) (Box, error) {
				bx, err := start(ctx, o)
				f := bx.(*fake)
				f.upper = f.root
				return bx, errors.Join(err, os.Mkdir(filepath.Join(f.root, "tests"), 0o755))
			}
			r := Run(t.Context(), b.Options)
			var got []string
			for _, x := range r.Tainted {
				got = append(got, x.Path)
			}
			if strings.Join(got, " ") != c.want || brief(r) != "reward 1, done" || len(r.Warnings) > 0 {
				t.Errorf("%s, tainted by %v, want %q: %v %v", brief(r), r.Tainted, c.want, r.Fault, r.Warnings)
			}
		})
	}
}

// Where it cannot be told what the tests opened, that is a warning, and with
// StrictVerdict a fault that may be another time's.
func TestRun_NotWatched(t *testing.T) {
	for strict, want := range map[bool]string{false: "reward 1, done", true: "reward none, verify tainted unknown"} {
		b := newBench(t)
		b.StrictVerdict = strict
		b.Box.Image = filepath.Join(b.Dir, "no-image")
		start := b.Start
		b.Start = func(ctx context.Context, o box.Options) (Box, error) {
			bx, err := start(ctx, o)
			f := bx.(*fake)
			f.upper = f.root
			return bx, err
		}
		r := Run(t.Context(), b.Options)
		said := strings.Join(r.Warnings, " ")
		if strict && r.Fault != nil {
			said = r.Fault.Message
		}
		if brief(r) != want || len(r.Tainted) != 1 || r.Tainted[0].Path != "/" || !strings.Contains(said, "cannot be told") || strict && r.VerifierResult != nil {
			t.Errorf("strict %v: %s, want %s, tainted by %v: %s", strict, brief(r), want, r.Tainted, said)
		}
	}
}

// A verifier of its own sees what the agent left as artifacts, and nothing else.
func TestRun_Separate(t *testing.T) {
	b := newBench(t)
	separate(b)
	b.Box.Limits, b.Spec.Environment.StorageMB = box.Limits{Memory: 4 << 20, Disk: 4 << 20}, 2
	r := Run(t.Context(), b.Options)
	if got := brief(r); got != "reward 1, done" || len(b.boxes) != 2 {
		t.Fatalf("%s in %d containers: %+v\n%s", got, len(b.boxes), r.Fault, read(t, b.Dir, "trial.log"))
	}
	if !b.boxes[0].ended || b.boxes[1].options.Image != "/v.sif" {
		t.Errorf("the agent's container ended: %v; the verifier's image: %s", b.boxes[0].ended, b.boxes[1].options.Image)
	}
	if a, v := b.boxes[0].options.Limits, b.boxes[1].options.Limits; a.Memory != 4<<20 || a.Disk != 2<<20 || v.Memory != 3<<20 || v.Disk != 4<<20 {
		t.Errorf("limits of the agent's container: %+v, of the verifier's: %+v", a, v)
	}
	if r.Usage.CPUSec != 2 {
		t.Errorf("of two containers: %+v", r.Usage)
	}
	if !strings.Contains(read(t, b.Dir, "artifacts/manifest.json"), `"failed"`) || read(t, b.Dir, "artifacts/app/done") != "yes" {
		t.Errorf("artifacts: %s", read(t, b.Dir, "artifacts/manifest.json"))
	}
	for _, call := range b.boxes[1].calls {
		if strings.HasPrefix(call, "put agent") {
			t.Errorf("the agent's domain is used: %s", call)
		}
	}
	if _, err := os.Lstat(filepath.Join(b.boxes[1].root, "tests/test.sh")); err == nil {
		t.Error("its image has the tests, and they were brought")
	}
	// Where the tests see it anyway, an artifact that does not come is only noted.
	b = newBench(t)
	separate(b)
	b.Spec.Verifier.Separate, b.get = nil, failing("agent", "/app", errors.New("no"))
	if got := brief(Run(t.Context(), b.Options)); got != "reward 1, done" {
		t.Error(got)
	}
}

func TestGranted(t *testing.T) {
	for _, c := range []struct{ flag, task, agent, verifier, want string }{
		{"", "", "", "", "loopback"}, {"", "public", "", "", "loopback"}, {"none", "public", "", "", "none"}, {"none", "no-network", "", "", "none"},
		{"host", "", "", "", "host"}, {"host", "public", "", "", "host"}, {"host", "no-network", "", "", "loopback"}, {"host", "allowlist", "", "", "loopback"},
		{"host", "public", "no-network", "", "loopback"}, {"host", "public", "", "no-network", "loopback"}, {"host", "public", "", "public", "host"},
	} {
		o := Options{Network: c.flag, Why: "because"}
		o.Spec.Environment.Network.Mode, o.Spec.Agent.Network.Mode = c.task, c.agent
		o.Spec.Verifier.Separate = &spec.Environment{Network: spec.Network{Mode: c.verifier}}
		if mode, why := o.Granted(); mode != c.want || (why != "") != (mode == "host") {
			t.Errorf("--net %s, task %q, agent %q, verifier %q: %s (%q), want %s", c.flag, c.task, c.agent, c.verifier, mode, why, c.want)
		}
	}
}
