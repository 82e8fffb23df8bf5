package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"fence/pkg/result"
)

// What a run keeps of its trials is without the tokens of all turns, and what it
// prints is with them.
func TestOutcome_Record(t *testing.T) {
	var out bytes.Buffer
	var all outcome
	details := result.AgentResult{RolloutDetails: []json.RawMessage{json.RawMessage(`"each-token"`)}}
	trial := result.Trial{StepResults: []result.StepResult{{AgentResult: &details}}}
	if err := all.record(trial, "/out", json.NewEncoder(&out)); err != nil {
		t.Fatal(err)
	}
	kept, err := json.Marshal(all.trials)
	if err != nil || len(all.trials) != 1 || strings.Contains(string(kept), "each-token") || strings.Count(out.String(), "each-token") != 1 {
		t.Errorf("kept %s, printed %s, %v", kept, out.String(), err)
	}
}

// A record that has a reward has two things to say it; one is enough to compare.
func TestInWords(t *testing.T) {
	one := 1.0
	for want, trial := range map[string]result.Trial{
		"reward 1, agent done, in 0.0 s":            {Reward: &one, Agent: result.AgentEnd{Stop: "done"}},
		"reward 1, b 2, agent done, in 0.0 s":       {Reward: &one, VerifierResult: &result.VerifierResult{Rewards: map[string]float64{"reward": 1, "b": 2}}, Agent: result.AgentEnd{Stop: "done"}},
		"no verdict: reward_missing: there is none": {Fault: &result.Fault{Class: "reward_missing", Message: "there is none"}},
	} {
		if got := inWords(trial); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
