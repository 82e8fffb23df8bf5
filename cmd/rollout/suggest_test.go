package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/pkg/cli"
	"fence/pkg/result"
	"fence/pkg/spec"
	"fence/pkg/task"
)

func TestNeeds(t *testing.T) {
	list := strings.Split("abcdefghijk", "")
	for _, c := range []struct {
		really, want string
	}{
		{"a", "a"}, {"k", "k"}, {"f", "f"},
		{"ab", "ab"},
		{"x", ""}, // nothing of the list helps
	} {
		asked := 0
		got, err := needs(list, func(some []string) (bool, error) {
			asked++
			for _, one := range strings.Split(c.really, "") {
				if !slices.Contains(some, one) {
					return false, nil
				}
			}
			return true, nil
		})
		if text := strings.Join(got, ""); err != nil || text != c.want {
			t.Errorf("needs %q: found %q, %v", c.really, text, err)
		}
		if asked > 9 {
			t.Errorf("needs %q: asked %d times", c.really, asked)
		}
	}
}

// Each line is what a policy file or a command line takes.
func TestPropose(t *testing.T) {
	var out strings.Builder
	propose(&out, "gdb", []string{"ptrace kcmp"})
	want := `rollout: gdb: its solution passes with this
    [[open]]
    syscall = "ptrace"
    why = "gdb: its solution calls it"
    [[open]]
    syscall = "kcmp"
    why = "gdb: its solution calls it"
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	propose(&out, "a\x1bb", []string{network})
	if !strings.Contains(out.String(), "--net host --why '"+cli.Printable("a\x1bb")) {
		t.Error(fmt.Sprintf("%q", out.String()))
	}
}

// What is in the folder for such trials is not removed, whoever put it there.
func TestWidened_RemovesNothing(t *testing.T) {
	j := &setup{out: t.TempDir()}
	kept := write(t, filepath.Join(j.out, ".rollout/suggest/a-1/mine"), "")
	it := item{broken: &result.Fault{Phase: "build", Class: "image_missing", Cause: "infra"}}
	for range 2 {
		if r, err := j.widened(t.Context(), it, "a-1", nil); err != nil || r.Fault == nil || r.Fault.Class != "image_missing" {
			t.Errorf("%+v, %v", r.Fault, err)
		}
	}
	if logs, _ := filepath.Glob(filepath.Join(j.out, ".rollout/suggest/a-1-*/trial.log")); len(logs) != 2 {
		t.Errorf("the two trials have %v", logs)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// The word that a record has for a fault is text here, whatever it is.
func TestValidated(t *testing.T) {
	dir, reward := t.TempDir(), 0.0
	for name, trial := range map[string]result.Trial{
		"a": {AgentInfo: result.AgentInfo{Name: "oracle"}, Fault: &result.Fault{Phase: "start", Class: "\x1b[2J", Cause: "infra"}},
		"b": {AgentInfo: result.AgentInfo{Name: "nop"}, Reward: &reward, VerifierResult: &result.VerifierResult{Rewards: map[string]float64{"reward": 0}}},
	} {
		trial.TrialName, trial.TaskName, trial.Task, trial.TaskID, trial.Config = name, "t", "/t", result.TaskID{Path: "/t"}, json.RawMessage("{}")
		trial.TaskChecksum = "as it was"
		trial.Attempt, trial.Tries, trial.StartedAt, trial.FinishedAt = 1, 1, time.Unix(1, 0), time.Unix(2, 0)
		write(t, filepath.Join(dir, name, result.ConfigFile), `{"task":{"path":"/t"}}`)
		if err := result.Write(filepath.Join(dir, name), trial); err != nil {
			t.Fatal(err)
		}
	}
	var said strings.Builder
	it := item{Spec: spec.Spec{Task: task.Task{Dir: "/t"}}}
	for checksum, want := range map[string]string{"as it was": `its oracle has no verdict: \x1b[2J`, "another": "it has changed since it was validated"} {
		said.Reset()
		it.Checksum = checksum
		if _, err := validated(&said, dir, []item{it}); err == nil || said.String() != "rollout: left out /t: "+want+"\n" {
			t.Errorf("%q, %v", said.String(), err)
		}
	}
}
