package trial

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/spec"
)

// Agent acts in a trial, between its start and its verdict.
type Agent interface {
	Info() result.AgentInfo
	// Scripted says that what it does is the task's or nothing, and no model's.
	Scripted() bool
	// Run acts until the agent is done or a cap is reached, which are ends like
	// others; the verifier comes after each. An error (a *Fault says what it
	// is) means that there is nothing to verify.
	Run(ctx context.Context, e Env) (result.AgentEnd, error)
}

// checker is an agent that knows before the start that it can do nothing.
type checker interface{ Check(spec.Spec) error }

// Env is what an agent is given: its domain of the container, never the
// verifier's, and no path of the task's folder but a solution's.
type Env struct {
	Box         Box
	Instruction string
	Timeout     time.Duration // 0: no limit; the agent keeps it
	Dir         string        // its logs on the host, artifacts of the trial's record
	Log         func(format string, a ...any)

	Solution    string // folder of the reference solution on the host
	SolutionEnv map[string]string

	// Used is where an agent that knows says what it needed.
	Used *result.AgentResult
}

// Nop does nothing: a task that it passes rewards everybody.
type Nop struct{}

func (Nop) Info() result.AgentInfo { return result.AgentInfo{Name: "nop", Version: "1.0.0"} }
func (Nop) Scripted() bool         { return true }

func (Nop) Run(context.Context, Env) (result.AgentEnd, error) {
	return result.AgentEnd{Stop: "done"}, nil
}

// Oracle runs the task's reference solution.
type Oracle struct{}

func (Oracle) Info() result.AgentInfo { return result.AgentInfo{Name: "oracle", Version: "1.0.0"} }
func (Oracle) Scripted() bool         { return true }

// solve runs a script in the way of Harbor's: started itself, by bash where it
// has no first line that says by what.
const solve = `(%s) > %s 2>&1`

func (Oracle) Run(ctx context.Context, e Env) (result.AgentEnd, error) {
	if err := hasSolution(e.Solution); err != nil {
		return result.AgentEnd{}, err
	}
	err := put(ctx, e.Box, box.Agent, "/solution", func(w *tar.Writer) error { return pack(w, e.Solution, ".", "solve.sh") })
	if err != nil {
		return result.AgentEnd{Stop: "error"}, fmt.Errorf("uploading the solution: %w", err)
	}
	env := map[string]string{"DEBIAN_FRONTEND": "noninteractive"}
	maps.Copy(env, e.SolutionEnv)
	exit, err := e.Box.Run(ctx, box.Command{
		Domain: box.Agent, Argv: shell(fmt.Sprintf(solve, "/solution/solve.sh", "/logs/agent/oracle.txt")),
		Env: env, Timeout: e.Timeout,
	}, session.Streams{})
	if err != nil {
		var lost *box.Error
		if errors.As(err, &lost) && lost.Class == "session_lost" {
			return result.AgentEnd{Stop: "session_lost"}, err
		}
		return result.AgentEnd{Stop: "error"}, err
	}
	if exit.TimedOut {
		return result.AgentEnd{Stop: "time_cap"}, nil
	}
	if exit.Code != 0 {
		e.Log("the solution ended with %d", exit.Code)
		if err := os.WriteFile(filepath.Join(e.Dir, "exit-code.txt"), fmt.Appendln(nil, exit.Code), 0o644); err != nil {
			return result.AgentEnd{Stop: "error"}, err
		}
	}
	return result.AgentEnd{Stop: "done", ExitCode: &exit.Code}, nil
}

// hasSolution says whether there is something that the oracle can run.
func hasSolution(dir string) error {
	if dir != "" {
		if st, err := os.Stat(filepath.Join(dir, "solve.sh")); err == nil && st.Mode().IsRegular() {
			return nil
		}
	}
	return Faultf("agent", "solution_missing", "task", "an oracle cannot be run for this task; nop can", "it has no solution/solve.sh")
}

// Check says why an oracle has nothing to do in a task.
func (Oracle) Check(s spec.Spec) error {
	if no := s.SolutionRefused; no != nil {
		return Faultf("setup", "setup_failed", "task", no.Advice, "the solution cannot be run: %s", no.Reason)
	}
	for _, p := range parts(s) {
		if err := hasSolution(p.solution); err != nil {
			return err
		}
	}
	return nil
}

// shell is a command for bash, as Harbor has it, where the image has one, else
// for sh.
func shell(command string) []string {
	return []string{"/bin/sh", "-c", `for sh in /bin/bash /usr/bin/bash /usr/local/bin/bash; do [ -x $sh ] && exec $sh -c "$1"; done; exec /bin/sh -c "$1"`, "sh", command}
}
