package terminus

import (
	"context"
	"errors"
	"path/filepath"

	"fence/pkg/internal/readfile"
	"fence/pkg/model"
	"fence/pkg/result"
	"fence/pkg/trajectory"
)

// Files that Play leaves.
const (
	TurnsFile      = "turns.jsonl"
	TrajectoryFile = "trajectory.json"
)

// Play is Run with its record in a folder: a line in TurnsFile after every
// call of the model, and the whole as ATIF in TrajectoryFile when the agent
// has ended, however that was (none, if there was nothing to ask). session
// names the run, and modelName the model, in what is written. The AgentResult
// is what a trial's record says of it.
func Play(ctx context.Context, m Model, t Terminal, o Options, dir, session, modelName string) (End, result.AgentResult, error) {
	path := filepath.Join(dir, TurnsFile)
	log, err := trajectory.Create(path)
	if err != nil {
		return End{Stop: "error"}, result.AgentResult{}, err
	}
	o.Record = log.Add
	end, err := Run(ctx, m, t, o)
	if failed := log.Close(); err == nil {
		err = failed
	}
	turns, failed := ReadTurns(path)
	if failed == nil && end.Opening != "" {
		agent := trajectory.Agent{Name: "terminus", Version: Version, ModelName: modelName, Extra: map[string]string{"parser": "json"}}
		failed = trajectory.Build(session, agent, end.Opening, turns).Write(filepath.Join(dir, TrajectoryFile))
	}
	if err == nil {
		err = failed
	}
	if err != nil {
		end.Stop = "error"
	}
	return end, used(end, turns), err
}

// ReadTurns reads a TurnsFile.
func ReadTurns(path string) ([]trajectory.Turn, error) {
	f, err := readfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return trajectory.Read(f)
}

// used is an End as Harbor's tools look for it, with the counts of our own in
// its metadata.
func used(e End, turns []trajectory.Turn) result.AgentResult {
	return result.AgentResult{
		InputTokens: e.Tokens.Prompt, CacheTokens: e.Tokens.Cached, OutputTokens: e.Tokens.Completion,
		RolloutDetails: trajectory.Details(turns),
		Metadata: map[string]any{
			"n_episodes": e.Turns, "truncated_replies": e.Truncated, "unread_replies": e.Unread, "hand_overs": e.Summaries,
			"turns_that_met_the_fence": e.MetFence, "tokens_estimated": e.Estimated,
			"model_sec": e.ModelTime.Seconds(), "terminal_sec": e.TerminalTime.Seconds(),
		},
	}
}

// Fault is what an error of Run's is in a trial's record, if it is the model
// server's: "model_" and its class. What the server did is nothing that the
// model or the task can be blamed for.
func Fault(err error) (result.Fault, bool) {
	var e *model.Error
	if !errors.As(err, &e) {
		return result.Fault{}, false
	}
	return result.Fault{Phase: "agent", Class: "model_" + string(e.Class), Cause: "infra", Message: e.Error(), Hint: e.Hint}, true
}
