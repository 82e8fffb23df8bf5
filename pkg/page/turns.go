package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"fence/pkg/internal/readfile"
	"fence/pkg/trajectory"
)

// turn is a step of a trajectory as it is shown.
type turn struct {
	Source   string   `json:"source"`
	N        int      `json:"n,omitempty"` // of the agent's turns, from 1; 0 of what is none
	At       float64  `json:"at"`          // milliseconds since 1970, 0 where nobody noted it
	Message  string   `json:"message"`
	Thoughts string   `json:"thoughts,omitempty"`
	Calls    []action `json:"calls"`
	Seen     string   `json:"seen"` // what the agent was shown of it
	Input    *int     `json:"in"`
	Output   *int     `json:"out"`
	End      float64  `json:"end"`             // as At: when its output was there, 0 where nobody noted it
	Notes    []string `json:"notes,omitempty"` // what was wrong with the reply
	Fence    []string `json:"fence,omitempty"` // words in the output that a closed door may have caused
}

// action is a tool that was called: keys that were typed, or anything else.
type action struct {
	Name     string   `json:"name"`
	Keys     *string  `json:"keys"`
	Duration *float64 `json:"duration"`
	Args     string   `json:"args,omitempty"`
}

// atif is as much of a trajectory as is shown: the Agent Trajectory Interchange
// Format, ATIF-v1.0 to v1.7 (Harbor, docs/rfcs/0001-trajectory-format.md).
type atif struct {
	Schema string `json:"schema_version"`
	Steps  []struct {
		Timestamp string  `json:"timestamp"`
		Source    string  `json:"source"`
		Message   content `json:"message"`
		Reasoning string  `json:"reasoning_content"`
		ToolCalls []struct {
			Name string          `json:"function_name"`
			Args json.RawMessage `json:"arguments"`
		} `json:"tool_calls"`
		Observation *struct {
			Results []struct {
				Content content `json:"content"`
			} `json:"results"`
		} `json:"observation"`
		Metrics *struct {
			Prompt     *int `json:"prompt_tokens"`
			Completion *int `json:"completion_tokens"`
		} `json:"metrics"`
	} `json:"steps"`
}

// content is a text, or parts of which some are texts.
type content string

func (c *content) UnmarshalJSON(data []byte) error {
	var s string
	if json.Unmarshal(data, &s) == nil {
		*c = content(s)
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	var all []string
	for _, p := range parts {
		if p.Type == "text" {
			all = append(all, p.Text)
		} else {
			all = append(all, "["+p.Type+"]")
		}
	}
	*c = content(strings.Join(all, "\n"))
	return nil
}

// turnsOf reads what an agent did, from its folder: turns.jsonl, which grows
// while it works, else the trajectory. With them comes how many are left out,
// from the middle, because there is too much to show. No files are no turns.
func turnsOf(dir string) ([]turn, int, error) {
	turns, err := fromLog(filepath.Join(dir, "turns.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		turns, err = fromATIF(filepath.Join(dir, "trajectory.json"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for i := range turns {
		turns[i].few()
	}
	kept := fit(turns)
	return kept, len(turns) - len(kept), err
}

// fromLog reads rollout.turn/v1 records.
func fromLog(path string) ([]turn, error) {
	all, err := trajectory.ReadFile(path)
	turns := []turn{}
	for i, x := range all {
		at := milliseconds(x.StartedAt)
		if x.Kind == trajectory.Act && (i == 0 || all[i-1].Kind != trajectory.Act) {
			turns = append(turns, turn{Source: "user", At: at, End: at, Message: short(x.Prompt, maxText), Calls: []action{}})
		}
		t := turn{Source: "agent", N: x.Turn, At: at, Thoughts: short(x.Reasoning, maxText), Calls: []action{}, Seen: short(x.Output, maxText),
			Input: x.PromptTokens, Output: x.CompletionTokens, End: at + 1000*seconds(x.ModelSec+x.TerminalSec), Fence: x.Fence}
		t.Message = strings.TrimSpace(x.Analysis + "\n\n" + x.Plan)
		if x.Kind != trajectory.Act {
			t.Source, t.N = "the conversation was too long: "+x.Kind, 0
		}
		if x.Error != "" || t.Message == "" {
			t.Message = x.Reply
		}
		t.Message = short(t.Message, maxText)
		if x.Error != "" {
			t.Notes = append(t.Notes, "nothing of it was done: "+short(x.Error, maxText))
		}
		for _, w := range x.Warnings {
			t.Notes = append(t.Notes, short(w, maxText))
		}
		if x.Finish != "" && x.Finish != "stop" {
			t.Notes = append(t.Notes, "the reply ended by: "+x.Finish)
		}
		for _, c := range x.Commands {
			k := short(c.Keystrokes, maxText)
			t.Calls = append(t.Calls, action{Name: "bash_command", Keys: &k, Duration: &c.Duration})
		}
		if x.TaskComplete {
			t.Calls = append(t.Calls, action{Name: "mark_task_complete"})
		}
		turns = append(turns, t)
	}
	return turns, err
}

// fromATIF reads a trajectory, Harbor's own too.
func fromATIF(path string) ([]turn, error) {
	data, err := readfile.Regular(path, maxFile)
	if err != nil {
		return nil, err
	}
	var doc atif
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s is no trajectory: %w", path, err)
	}
	turns := []turn{}
	nth := 0
	for _, s := range doc.Steps {
		t := turn{Source: s.Source, Message: short(string(s.Message), maxText), Thoughts: short(s.Reasoning, maxText), Calls: []action{}}
		if s.Source == "agent" {
			nth++
			t.N = nth
		}
		if at, err := time.Parse(time.RFC3339Nano, s.Timestamp); err == nil {
			t.At = milliseconds(at)
		}
		for _, c := range s.ToolCalls {
			t.Calls = append(t.Calls, actionOf(c.Name, c.Args))
		}
		if s.Observation != nil {
			var seen []string
			for _, r := range s.Observation.Results {
				seen = append(seen, string(r.Content))
			}
			t.Seen = short(strings.Join(seen, "\n"), maxText)
		}
		if s.Metrics != nil {
			t.Input, t.Output = s.Metrics.Prompt, s.Metrics.Completion
		}
		if n := len(turns); n > 0 {
			turns[n-1].End = t.At
		}
		turns = append(turns, t)
	}
	return turns, nil
}

// milliseconds are those since 1970, with their fractions: what a turn was shown
// was recorded before it began, by less than one may be.
func milliseconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1000 }

// few leaves out calls and notes of a turn that has more than anybody reads.
func (t *turn) few() {
	t.Notes = t.Notes[:min(len(t.Notes), maxNotes)]
	all := 0
	for i, c := range t.Calls {
		if all += c.size(); i == maxCalls || all > maxCallText {
			t.Notes = append(t.Notes, fmt.Sprintf("%d more calls of it are not in this report", len(t.Calls)-i))
			t.Calls = t.Calls[:i]
			break
		}
	}
	t.Fence = t.Fence[:min(len(t.Fence), maxNotes)]
}

// size is about what a turn takes on a page, in characters.
func (t turn) size() int {
	n := 256 + len(t.Message) + len(t.Thoughts) + len(t.Seen)
	for _, c := range t.Calls {
		n += 64 + c.size()
	}
	return n
}

func (a action) size() int {
	n := len(a.Args)
	if a.Keys != nil {
		n += len(*a.Keys)
	}
	return n
}

// fit leaves out turns of the middle until the rest can be shown.
func fit(turns []turn) []turn {
	all := 0
	from, to := 0, len(turns)
	for from < to && all <= maxTurns {
		if from <= len(turns)-to {
			all += turns[from].size()
			from++
		} else {
			to--
			all += turns[to].size()
		}
	}
	return append(append([]turn{}, turns[:from]...), turns[to:]...)
}

func actionOf(name string, args json.RawMessage) action {
	a := action{Name: name}
	var keys struct {
		Keys     *string  `json:"keystrokes"`
		Duration *float64 `json:"duration"`
	}
	if json.Unmarshal(args, &keys) == nil && keys.Keys != nil {
		k := short(*keys.Keys, maxText)
		a.Keys, a.Duration = &k, keys.Duration
		return a
	}
	if flat := bytes.TrimSpace(args); len(flat) > 0 && !bytes.Equal(flat, []byte("{}")) {
		a.Args = short(string(flat), maxText)
	}
	return a
}
