// Package harbor holds what rollout leaves against Harbor's own models, the
// ones that its viewer and everybody's scripts read results with: the package
// harbor of PyPI, in the part harbor of the test bed.
package harbor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/result"
	"fence/pkg/runner"
	"fence/pkg/spec"
	"fence/pkg/task"
	"fence/test/bed"
)

// models runs models.py with Harbor's models.
func models(t *testing.T, args ...string) (string, error) {
	t.Helper()
	bed.Require(t, "harbor")
	cmd := exec.CommandContext(t.Context(), filepath.Join(bed.Dir(), "harbor", "bin", "python"), append([]string{"-W", "ignore", "models.py"}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "HOME="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, stderr.String())
	}
	return string(out), err
}

// job is a job folder with trials of every kind.
func job(t *testing.T) string {
	t.Helper()
	var specs []spec.Spec
	for i := range 6 {
		name := fmt.Sprintf("task-%d", i)
		one := spec.Spec{Task: task.Task{Name: name, Dir: "/data/set/" + name, Source: "set"}, Checksum: strings.Repeat("0", 64)}
		if i == 5 {
			one.Task.Source = ""
		}
		specs = append(specs, one)
	}
	model := "m"
	agents := []result.AgentConfig{{Name: "oracle"}, {Name: "terminus", ModelName: &model, Kwargs: map[string]any{"max_turns": 30}}}
	try := func(_ context.Context, i runner.Item, _ string) result.Trial {
		at := time.Now()
		span := &result.Timing{StartedAt: at, FinishedAt: &at}
		one, zero, n := 1.0, 0.0, 10
		r := result.Trial{StartedAt: at, AgentInfo: result.AgentInfo{Name: i.Agent.Name, Version: "1.0.0"}, EnvironmentSetup: span, AgentExecution: &result.Timing{StartedAt: at}, Agent: result.AgentEnd{Stop: "done"}}
		used := &result.AgentResult{InputTokens: &n, OutputTokens: &n, Metadata: map[string]any{"turns": 3}}
		if i.Agent.ModelName != nil {
			r.AgentInfo.ModelInfo = &result.ModelInfo{Name: model, Provider: "hosted_vllm"}
			r.AgentResult = used
		}
		rewarded := func(v float64) {
			r.Reward, r.VerifierResult = &v, &result.VerifierResult{Rewards: map[string]float64{"reward": v}}
		}
		broke := func(phase, class, cause, exception string) {
			r.Fault = &result.Fault{Phase: phase, Class: class, Cause: cause, Message: "it broke"}
			r.ExceptionInfo = &result.ExceptionInfo{Type: exception, Message: "it broke", At: at}
		}
		switch rewarded(one); i.Spec.Task.Name {
		case "task-0":
			rewarded(zero)
		case "task-1":
			rewarded(float64(i.Attempt % 2))
		case "task-2": // an agent that ran out of time, and was judged
			rewarded(zero)
			r.Agent.Stop = "time_cap"
			r.ExceptionInfo = &result.ExceptionInfo{Type: "AgentTimeoutError", Message: "30 minutes", At: at}
		case "task-3":
			if i.Attempt == 1 {
				r.Reward, r.VerifierResult = nil, nil
				broke("start", "session_lost", "task", "RuntimeError")
			}
		case "task-4":
			r.AgentResult = nil
			r.StepResults = []result.StepResult{{StepName: "one", AgentResult: used, VerifierResult: r.VerifierResult, AgentExecution: span, Reward: &one}, {StepName: "two", AgentResult: used, VerifierResult: r.VerifierResult, Reward: &one}}
		case "task-5": // the dataset adhoc, with two rewards
			r.VerifierResult = &result.VerifierResult{Rewards: map[string]float64{"quality": 0.5, "speed": 0.125 * float64(i.Attempt)}}
			half := 0.5
			r.Reward = &half
		}
		return r
	}
	out := filepath.Join(t.TempDir(), "2026-01-31__18-00-00")
	s, err := runner.Run(t.Context(), runner.Options{Out: out, Items: runner.Items(specs, agents, 4), Jobs: 2, Try: try, Settings: []result.Setting{{Name: "--net", Value: "none"}}})
	if err != nil || !s.Done() || s.Trials != 48 {
		t.Fatalf("%+v, %v", s, err)
	}
	return out
}

// Harbor's models take all that a run leaves, and count it as it does.
func TestModels_TakeOurs(t *testing.T) {
	out := job(t)
	said, err := models(t, "read", out)
	if err != nil || said != "ok 48 2 0\n" { // pass@2 of two agents in one dataset: one trial of four has no reward
		t.Fatalf("%s%v", said, err)
	}
	// And would refuse what is not so.
	found, err := result.Trials(out)
	if err != nil || len(found) != 48 {
		t.Fatalf("%d trials, %v", len(found), err)
	}
	path := filepath.Join(found[0].Dir, result.ResultFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`"task_id": {`: `"task": {`, `"trial_name": "`: `"trial_name": "other`, found[0].Trial.ID: "no UUID", `"agent_info": {`: `"agent": {`, `"type": "singularity"`: `"type": "rollout"`,
	} {
		bad := strings.Replace(string(good), from, to, 1)
		if bad == string(good) {
			t.Errorf("no %s in\n%s", from, good)
			continue
		}
		if err := os.WriteFile(path, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if said, err := models(t, "read", out); err == nil {
			t.Errorf("with %s: %s", to, said)
		}
	}
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	// A job's figures that are wrong are seen, too.
	path = filepath.Join(out, result.ResultFile)
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.Replace(data, []byte(`"n_errors": `), []byte(`"n_errors": 1`), 1), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if said, err := models(t, "read", out); err == nil {
		t.Errorf("with other figures: %s", said)
	}
}

// What Harbor itself leaves is read as far as it says the same.
func TestModels_GiveTheirs(t *testing.T) {
	out := filepath.Join(t.TempDir(), "job")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if said, err := models(t, "write", out); err != nil {
		t.Fatalf("%s%v", said, err)
	}
	found, err := result.Trials(out)
	if err != nil || len(found) != 9 {
		t.Fatalf("%d trials, %v", len(found), err)
	}
	want := map[string]string{
		"solved": "1 done", "two-rewards": "0.75 done", "timed-out": "0 time_cap", "steps": "1 done", "running": "not done",
		"no-reward": "verify RewardFileNotFoundError task", "environment": "start EnvironmentStartTimeoutError infra",
		"context": "agent ContextLengthExceededError agent", "strange": "agent RuntimeError unknown",
	}
	for _, f := range found {
		name, _, _ := strings.Cut(filepath.Base(f.Dir), "__")
		var got string
		switch {
		case errors.Is(f.Err, fs.ErrNotExist):
			got = "not done"
		case f.Err != nil:
			got = f.Err.Error()
		case f.Trial.Fault != nil:
			got = f.Trial.Fault.Phase + " " + f.Trial.Fault.Class + " " + f.Trial.Fault.Cause
		default:
			got = fmt.Sprint(*f.Trial.Reward, " ", f.Trial.Agent.Stop)
		}
		if got != want[name] {
			t.Errorf("%s: %s, want %s", name, got, want[name])
		}
		if r := f.Trial; r != nil && (r.Source != "set" || r.Task != "/data/set/"+name || r.AgentInfo.ModelInfo.Name != "m" || r.StartedAt.IsZero()) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
