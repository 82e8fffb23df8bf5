package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fence/pkg/result"
	"fence/pkg/trajectory"
)

// A trial of a model is shown with its turns, and one of them in full, whatever
// the model wrote; of a task with steps, each step's.
func TestTurns(t *testing.T) {
	const evil = "\x1b]0;x\a\u202e"
	n := 100
	turns := []trajectory.Turn{
		{Turn: 1, Kind: trajectory.Act, Prompt: "You are given a terminal.\n\nTask: " + evil, Reply: "I will look.", Error: "no JSON object is in it", ModelSec: 2},
		{Turn: 2, Kind: trajectory.Summary, Prompt: "Sum up.", Reply: "Nothing was done.", ModelSec: 1},
		{Turn: 2, Kind: trajectory.Act, Reply: "{", Finish: "length", Error: "the reply was cut off", ModelSec: 9},
		{Turn: 3, Kind: trajectory.Act, Prompt: "ERROR: ...", Reply: `{"analysis": ...`, Reasoning: "Hm.", PromptTokens: &n, CompletionTokens: &n, ModelSec: 2, TerminalSec: 1.25, Warnings: []string{"AUTO-CORRECTED: a brace"},
			Commands: []trajectory.Command{{Keystrokes: "curl http://192.0.2.1/" + strings.Repeat("long/", 20) + "\nls\n", Duration: 1}, {Keystrokes: evil + "C-c", Duration: 0.25}}, Output: "curl: Network is unreachable " + evil + "\n$", Fence: []string{"Network is unreachable"}},
		{Turn: 4, Kind: trajectory.Act, Commands: []trajectory.Command{{Keystrokes: evil + "q"}}, TaskComplete: true, Stop: "done"},
	}
	write := func(dir string) {
		if err := os.MkdirAll(filepath.Join(dir, "agent"), 0o755); err != nil {
			t.Fatal(err)
		}
		log, err := trajectory.Create(filepath.Join(dir, "agent", "turns.jsonl"))
		for _, x := range turns {
			if err == nil {
				err = log.Add(x)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	one := trial("set", "task", "terminus", "0", model("m"))
	one.Agent.Turns = 4
	one.AgentResult = &result.AgentResult{Metadata: map[string]any{"unread_replies": 1.0, "truncated_replies": 1.0, "hand_overs": 1.0}}
	one.Dir = t.TempDir()
	write(one.Dir)
	steps := one
	steps.Dir = t.TempDir()
	steps.StepResults = []result.StepResult{{StepName: "a"}, {StepName: ".."}, {StepName: "b"}}
	write(filepath.Join(steps.Dir, "steps", "b"))
	var text bytes.Buffer
	for _, of := range []struct {
		trial Trial
		n     int
	}{{one, 0}, {one, 3}, {one, 2}, {steps, 0}, {steps, 4}} {
		blocks, err := Turns(of.trial, of.n)
		if err != nil {
			t.Fatal(err)
		}
		Text(&text, blocks, 80)
	}
	golden(t, "turns.txt", text.Bytes())
	wide(t, text.String(), 80)
	if strings.ContainsAny(text.String(), "\x1b\a\u202e") {
		t.Errorf("it has control characters:\n%q", text.String())
	}
	if blocks, err := Turns(one, 5); len(blocks) > 0 || err != nil {
		t.Errorf("a turn that there was not: %v, %v", blocks, err)
	}
	if rows := Show(one, 0)[0].Rows; !strings.Contains(fmt.Sprint(rows), "1 reply could not be read, 1 cut off; 1 hand-over to a summary") {
		t.Errorf("%q", rows)
	}
	if err := os.WriteFile(filepath.Join(one.Dir, "agent", "turns.jsonl"), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Turns(one, 0); err == nil {
		t.Error("what is no turn was read")
	}
	never := trial("set", "task", "terminus", "0")
	never.Agent.Turns, never.AgentResult = 3, &result.AgentResult{Metadata: map[string]any{"unread_replies": 2.0, "truncated_replies": 1.0}}
	if got := Likely(never); got != "no reply of the model could be read" {
		t.Errorf("of a model that never kept to the protocol: %q", got)
	}
	never.Agent.Turns = 4
	if got := Likely(never); got != "" {
		t.Errorf("the control: one that did once: %q", got)
	}
}
