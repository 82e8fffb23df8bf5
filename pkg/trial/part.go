package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/spec"
	"fence/pkg/verdict"
)

// part is what an agent is given at a time: most tasks are one.
type part struct {
	name        string // of a step, "" for a task that has none
	instruction string
	agent       spec.Agent
	verifier    spec.Verifier
	health      *spec.Healthcheck
	artifacts   []spec.Artifact
	workdir     string   // a step's own files on the host
	solution    string   // on the host
	tests       []string // on the host; what is in a later one counts
}

func parts(s spec.Spec) (all []part) {
	if len(s.Steps) == 0 {
		return []part{{instruction: s.Instruction, agent: s.Agent, verifier: s.Verifier, artifacts: s.Artifacts, solution: s.Task.Solution, tests: folders(s.Task.Tests)}}
	}
	for _, st := range s.Steps {
		all = append(all, part{
			name: st.Name, instruction: st.Instruction, agent: st.Agent, verifier: st.Verifier, health: st.Healthcheck,
			artifacts: st.Artifacts, workdir: st.Workdir, solution: st.Solution, tests: folders(s.Task.Tests, st.Tests),
		})
	}
	return all
}

func folders(names ...string) []string {
	return slices.DeleteFunc(names, func(dir string) bool {
		st, err := os.Stat(dir)
		return dir == "" || err != nil || !st.IsDir()
	})
}

// ended is how a part came out.
type ended struct {
	result.StepResult
	err error // why it has no verdict
}

// steps runs the parts of a task one after the other in one container, as long
// as each reaches what the next needs.
func (r *run) steps(ctx context.Context) error {
	var verdicts []map[string]float64
	for i, p := range parts(r.Spec) {
		dir := filepath.Join(r.Dir, "steps", p.name)
		end := r.part(ctx, p, dir)
		turns := r.r.Agent.Turns
		r.r.Agent, r.r.AgentExecution = end.Agent, end.AgentExecution
		r.r.Agent.Turns += turns
		r.r.Verify, r.r.VerifierTiming = end.Verify, end.Verifier
		r.r.StepResults = append(r.r.StepResults, end.StepResult)
		if end.err != nil {
			return end.err
		}
		verdicts = append(verdicts, end.VerifierResult.Rewards)
		if short := verdict.Short(end.VerifierResult.Rewards, r.Spec.Steps[i].MinReward); short != "" {
			r.say("step %s: no next step: %s", p.name, short)
			break
		}
	}
	rewards, err := verdict.Combine(r.Spec.StepReward, verdicts)
	if err != nil {
		return Faultf("verify", "reward_invalid", "task", "", "%v", err)
	}
	if len(rewards) == 0 {
		return Faultf("verify", "reward_missing", "task", "", "no step has a reward that counts")
	}
	reward := result.One(rewards)
	r.r.VerifierResult, r.r.Reward = &result.VerifierResult{Rewards: rewards}, &reward
	return nil
}

// part runs one part, whose record is the folder dir.
func (r *run) part(ctx context.Context, p part, dir string) (end ended) {
	end.StepName = p.name
	for _, name := range []string{"agent", "verifier", "artifacts"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			end.err = r.because(ctx, nil, "start", "internal", "infra", fmt.Errorf("the trial's folder: %w", err))
			return end
		}
	}
	end.err = r.play(ctx, p, dir, &end.StepResult)
	if end.err != nil {
		f := end.err.(*Fault).Fault
		end.Fault, end.Reward, end.VerifierResult = &f, nil, nil
		end.ExceptionInfo = r.exception(exception(f), f.Message)
	}
	return end
}

func (r *run) play(ctx context.Context, p part, dir string, end *result.StepResult) error {
	if p.name != "" {
		if err := r.prepare(ctx, p); err != nil {
			return r.because(ctx, r.box, "setup", "setup_failed", "task", err)
		}
	}
	if err := r.before(); err != nil {
		return err
	}
	var acted error
	_ = r.timed(strings.TrimSpace("agent "+p.name), &end.AgentExecution, func() error {
		acted = r.act(ctx, p, dir, end)
		return nil
	})
	r.fetchLogs(ctx, dir)
	if acted != nil {
		return acted
	}
	for _, c := range p.verifier.Collect {
		r.collect(ctx, c)
	}
	kept, err := r.artifacts(ctx, p.artifacts, filepath.Join(dir, "artifacts"), p.verifier.Separate != nil)
	if err == nil && !alive(r.box) { // tests that have a container of their own would not see it
		err = errors.New("the container has ended")
	}
	if err != nil {
		return r.because(ctx, r.box, "verify", "download_failed", "infra", err)
	}
	r.after(p.verifier)
	return r.timed(strings.TrimSpace("verify "+p.name), &end.Verifier, func() error { return r.judge(ctx, p, dir, kept, end) })
}

// prepare brings a step's own files.
func (r *run) prepare(ctx context.Context, p part) error {
	// What its processes go on writing there is their affair.
	if _, err := r.box.Run(ctx, box.Command{Domain: box.Agent, Argv: box.Empty("/logs/agent", "/solution"), Timeout: harness}, session.Streams{}); err != nil {
		return err
	}
	if err := r.agentFolders(ctx); err != nil {
		return err
	}
	if p.workdir != "" {
		if err := r.toWorkdir(ctx, p.workdir); err != nil {
			return fmt.Errorf("uploading the step's files: %w", err)
		}
		if st, err := os.Stat(filepath.Join(p.workdir, "setup.sh")); err == nil && st.Mode().IsRegular() {
			said := &lastWords{}
			exit, err := r.box.Run(ctx, box.Command{Domain: r.box.Domain(p.agent.User), Argv: shell("${BASH:-sh} ./setup.sh")}, session.Streams{Out: said, Err: said})
			if err != nil {
				return err
			}
			if exit.Code != 0 {
				return fmt.Errorf("the step's setup.sh ended with %d: %s", exit.Code, said)
			}
		}
	}
	return r.healthy(ctx, p.health, p.agent.User)
}

// act is the agent's phase.
func (r *run) act(ctx context.Context, p part, dir string, end *result.StepResult) error {
	r.acted = true
	end.AgentResult = &result.AgentResult{RolloutDetails: nil}
	began := time.Now()
	var err error
	end.Agent, err = r.Agent.Run(ctx, Env{
		Box: r.boxOf(p.agent.User), Instruction: p.instruction, Timeout: scale(p.agent.Timeout, r.Times.Agent), Dir: filepath.Join(dir, "agent"), Log: r.say,
		Solution: p.solution, SolutionEnv: r.Spec.SolutionEnv, Used: end.AgentResult,
	})
	r.say("agent: %s", end.Agent.Stop)
	if end.Agent.Stop == "time_cap" {
		end.ExceptionInfo = r.exception("AgentTimeoutError", fmt.Sprintf("the agent was ended after %v", time.Since(began).Round(time.Second)))
	}
	if err == nil {
		return nil
	}
	if end.Agent.Stop == "session_lost" && ctx.Err() == nil && alive(r.box) {
		// Its domain is gone, by its own doing; the verifier's is not.
		r.say("agent: %v", err)
		return nil
	}
	end.Agent.Stop = "error"
	return r.because(ctx, r.box, "agent", "agent_error", "unknown", err)
}

// fetchLogs brings the agent's logs, as far as they can be had.
func (r *run) fetchLogs(ctx context.Context, dir string) {
	to := filepath.Join(dir, "agent")
	if ctx.Err() != nil {
		return
	}
	if !alive(r.box) {
		if err := salvage(r.box.Upper(), "logs/agent", to); err != nil {
			r.say("the agent's logs are lost with the container: %v", err)
		}
		return
	}
	err := get(ctx, r.box, box.Agent, "/logs/agent", []string{"."}, func(in io.Reader) error {
		t, err := unpack(in, to, logsMost, thereIn(to), nil)
		r.left("agent/", t)
		return err
	})
	if err != nil && ctx.Err() == nil {
		r.warn("the agent's logs could not be fetched whole: %v", err)
	}
}

// left says what did not come out of the container.
func (r *run) left(in string, t took) {
	const some = 5
	for i, text := range t.left {
		if i == some {
			r.say("%s: and %d more", in, len(t.left)-some)
			break
		}
		r.say("%s: %s", in, text)
	}
}

// collect runs a command that brings out what is to be graded. One that fails
// is said, and no more, as with Harbor.
func (r *run) collect(ctx context.Context, c spec.Collect) {
	said := &lastWords{}
	exit, err := r.box.Run(ctx, box.Command{Domain: r.box.Domain(c.User), Argv: shell(c.Command), Timeout: c.Timeout}, session.Streams{Out: said, Err: said})
	switch {
	case err != nil:
		r.warn("collect_failed: %.100q: %v", c.Command, err)
	case exit.Code != 0:
		r.warn("collect_failed: %.100q ended with %d: %s", c.Command, exit.Code, said)
	}
}

// lastWords keeps the end of what a command says.
type lastWords struct{ text []byte }

func (l *lastWords) Write(p []byte) (int, error) {
	const most = 300
	l.text = append(l.text, p...)
	if over := len(l.text) - most; over > 0 {
		l.text = slices.Delete(l.text, 0, over)
	}
	return len(p), nil
}

func (l *lastWords) String() string { return strings.TrimSpace(string(l.text)) }
