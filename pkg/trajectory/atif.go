package trajectory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"fence/pkg/internal/atomicfile"
)

// Version is the form of trajectories that is written.
const Version = "ATIF-v1.7"

// The types of ATIF (Harbor, src/harbor/models/trajectories), without what
// needs images. What is empty is left out.

// Trajectory is a whole trajectory.json.
type Trajectory struct {
	SchemaVersion string        `json:"schema_version"`
	SessionID     string        `json:"session_id,omitempty"`    // of the run
	TrajectoryID  string        `json:"trajectory_id,omitempty"` // of this one
	Agent         Agent         `json:"agent"`
	Steps         []Step        `json:"steps"` // at least one
	FinalMetrics  *FinalMetrics `json:"final_metrics,omitempty"`
	Extra         any           `json:"extra,omitempty"`
	Subagents     []Trajectory  `json:"subagent_trajectories,omitempty"`
}

// Agent says who acted.
type Agent struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	ModelName string `json:"model_name,omitempty"`
	Extra     any    `json:"extra,omitempty"`
}

// Step is one of system, user or agent.
type Step struct {
	StepID           int          `json:"step_id"` // from 1, without gaps
	Timestamp        string       `json:"timestamp,omitempty"`
	Source           string       `json:"source"`
	ModelName        string       `json:"model_name,omitempty"`
	Message          string       `json:"message"`
	ReasoningContent string       `json:"reasoning_content,omitempty"`
	ToolCalls        []ToolCall   `json:"tool_calls,omitempty"`
	Observation      *Observation `json:"observation,omitempty"`
	Metrics          *Metrics     `json:"metrics,omitempty"`
	LLMCallCount     *int         `json:"llm_call_count,omitempty"`
	Extra            any          `json:"extra,omitempty"`
}

// ToolCall is one command.
type ToolCall struct {
	ID        string `json:"tool_call_id"`
	Function  string `json:"function_name"`
	Arguments any    `json:"arguments"`
}

// Observation is what came back.
type Observation struct {
	Results []Result `json:"results"`
}

// Result is one part of it.
type Result struct {
	SourceCallID string `json:"source_call_id,omitempty"`
	Content      string `json:"content,omitempty"`
	Subagents    []Ref  `json:"subagent_trajectory_ref,omitempty"`
}

// Ref names one of the trajectory's own Subagents.
type Ref struct {
	TrajectoryID string `json:"trajectory_id"`
	Extra        any    `json:"extra,omitempty"`
}

// Metrics are of one call.
type Metrics struct {
	PromptTokens     *int      `json:"prompt_tokens,omitempty"`
	CompletionTokens *int      `json:"completion_tokens,omitempty"`
	CachedTokens     *int      `json:"cached_tokens,omitempty"`
	PromptIDs        []int     `json:"prompt_token_ids,omitempty"`
	CompletionIDs    []int     `json:"completion_token_ids,omitempty"`
	Logprobs         []float64 `json:"logprobs,omitempty"`
}

// FinalMetrics are sums, with the calls of hand-overs.
type FinalMetrics struct {
	PromptTokens     *int `json:"total_prompt_tokens,omitempty"`
	CompletionTokens *int `json:"total_completion_tokens,omitempty"`
	CachedTokens     *int `json:"total_cached_tokens,omitempty"`
	Steps            int  `json:"total_steps"`
}

// Build makes a trajectory of turns, as Terminus-2 maps its own: the opening,
// which the model was sent first, is a step of the user's, every turn one of
// the agent's with its commands as tool calls and the message that answered it
// as observation. A hand-over is a step of the system's with its three calls as
// trajectories within this one, and one of the user's with what came of it.
func Build(session string, agent Agent, opening string, turns []Turn) Trajectory {
	t := Trajectory{SchemaVersion: Version, SessionID: session, TrajectoryID: session, Agent: agent}
	add := func(s Step) {
		s.StepID = len(t.Steps) + 1
		t.Steps = append(t.Steps, s)
	}
	var sum Tokens
	var refs []Ref
	met := 0
	add(Step{Source: "user", Message: opening})
	if len(turns) > 0 {
		t.Steps[0].Timestamp = stamp(turns[0])
	}
	for i, turn := range turns {
		sum.Add(turn)
		if len(turn.Fence) > 0 {
			met++
		}
		at := stamp(turn)
		if turn.Kind != Act {
			id := fmt.Sprintf("%s-%s-%d", session, turn.Kind, i+1)
			refs = append(refs, Ref{TrajectoryID: id, Extra: map[string]string{"call": turn.Kind}})
			t.Subagents = append(t.Subagents, Trajectory{
				SchemaVersion: Version, SessionID: session, TrajectoryID: id, Agent: agent,
				Steps: []Step{
					{StepID: 1, Timestamp: at, Source: "user", Message: turn.Prompt},
					called(Step{StepID: 2, Timestamp: at, Source: "agent", Message: turn.Reply}, turn),
				},
			})
			continue
		}
		if refs != nil {
			add(Step{Timestamp: at, Source: "system", Message: "The conversation had become too long and was handed over.",
				Observation: &Observation{Results: []Result{{Subagents: refs}}},
				Extra:       map[string]any{"context_management": map[string]string{"type": "compaction", "boundary": "replace"}}})
			add(Step{Timestamp: at, Source: "user", Message: turn.Prompt})
		}
		refs = nil
		// What the terminal showed went to the model with the next prompt.
		answer := turn.Output
		if i+1 < len(turns) && turns[i+1].Kind == Act {
			answer = turns[i+1].Prompt
		}
		add(acted(turn, at, answer))
	}
	if refs != nil { // the agent ended in a hand-over
		add(Step{Source: "system", Message: "The conversation had become too long, and the agent ended while it was handed over.",
			Observation: &Observation{Results: []Result{{Subagents: refs}}}})
	}
	t.FinalMetrics = &FinalMetrics{sum.Prompt, sum.Completion, sum.Cached, len(t.Steps)}
	t.Extra = map[string]int{"turns_that_met_the_fence": met}
	return t
}

func stamp(t Turn) string { return t.StartedAt.UTC().Format(time.RFC3339Nano) }

// acted is a turn in the terminal, and the message that answered it.
func acted(turn Turn, at, answer string) Step {
	s := called(Step{Timestamp: at, Source: "agent", Message: message(turn)}, turn)
	n := turn.Turn - 1 // Terminus-2 counts episodes from 0
	for i, c := range turn.Commands {
		s.ToolCalls = append(s.ToolCalls, ToolCall{fmt.Sprintf("call_%d_%d", n, i+1), "bash_command", c})
	}
	r := Result{Content: answer}
	if len(turn.Commands) == 1 {
		r.SourceCallID = s.ToolCalls[0].ID
	}
	if turn.TaskComplete {
		s.ToolCalls = append(s.ToolCalls, ToolCall{fmt.Sprintf("call_%d_task_complete", n), "mark_task_complete", struct{}{}})
	}
	if r.Content != "" {
		s.Observation = &Observation{Results: []Result{r}}
	}
	return s
}

// called adds to a step what the call of the model was.
func called(s Step, turn Turn) Step {
	one := 1
	s.LLMCallCount = &one
	s.ReasoningContent = turn.Reasoning
	s.Metrics = &Metrics{turn.PromptTokens, turn.CompletionTokens, turn.CachedTokens, turn.PromptIDs, turn.CompletionIDs, turn.Logprobs}
	return s
}

// message is what the model thought; the reply itself if it was not understood.
func message(turn Turn) string {
	if turn.Error != "" {
		return turn.Reply
	}
	var parts []string
	if turn.Analysis != "" {
		parts = append(parts, "Analysis: "+turn.Analysis)
	}
	if turn.Plan != "" {
		parts = append(parts, "Plan: "+turn.Plan)
	}
	return strings.Join(parts, "\n")
}

// numbers is an array of numbers with a line for each. No string in JSON has
// a line end in it, so it is found in no string.
var numbers = regexp.MustCompile(`\[\n\s*-?[0-9][-+.0-9eE]*(?:,\n\s*-?[0-9][-+.0-9eE]*)*\n\s*\]`)

var lineEnd = regexp.MustCompile(`\n\s*`)

// Write puts a trajectory into a file, as Harbor lays it out: two spaces a
// level, and lists of numbers on one line.
func (t Trajectory) Write(path string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(t); err != nil {
		return err
	}
	data := numbers.ReplaceAllFunc(b.Bytes(), func(list []byte) []byte {
		flat := lineEnd.ReplaceAll(list, nil)
		return bytes.ReplaceAll(flat, []byte(","), []byte(", "))
	})
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}
