package result

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fence/pkg/internal/readfile"
)

// Load is Read, and reads what Harbor itself left, too, as far as it says what a
// Trial does. What it does not say stays empty.
func Load(dir string) (Trial, error) {
	path := filepath.Join(dir, ResultFile)
	data, err := readfile.Regular(path, limit)
	if err != nil {
		return Trial{}, err
	}
	var which struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &which); err != nil {
		return Trial{}, fmt.Errorf("%s: %w", path, err)
	}
	decode := Decode
	if which.Schema == "" {
		decode = Foreign
	}
	t, err := decode(data)
	if err != nil {
		return Trial{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Foreign reads a TrialResult of Harbor's own.
//
// Harbor keeps no fault apart from what an agent may do: an agent that ran out
// of time, or whose last command failed, has a reward all the same, and that is
// its end here. Every other exception is a fault, and its class is the
// exception's name; whose doing it was is not known but for those that say so.
func Foreign(data []byte) (Trial, error) {
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return Trial{}, err
	}
	zones(doc)
	data, err := json.Marshal(doc)
	if err != nil {
		return Trial{}, err
	}
	var t Trial
	if err := json.Unmarshal(data, &t); err != nil {
		return Trial{}, err
	}
	if t.TrialName == "" || t.TaskName == "" || t.AgentInfo.Name == "" {
		return Trial{}, fmt.Errorf("it is no result of a trial: trial_name, task_name or agent_info is missing")
	}
	t = t.Normal()
	t.Attempt, t.Tries = max(t.Attempt, 1), max(t.Tries, 1)
	t.Task = t.TaskID.Path
	if id, ok := doc["task_id"].(map[string]any); ok && t.Task == "" {
		t.Task = strings.Trim(fmt.Sprint(id["org"], "/", id["name"]), "/")
	}
	t.Reward, t.Fault, t.Agent = verdict(t.VerifierResult, t.ExceptionInfo)
	for i, s := range t.StepResults {
		t.StepResults[i].Reward, t.StepResults[i].Fault, t.StepResults[i].Agent = verdict(s.VerifierResult, s.ExceptionInfo)
	}
	return t, nil
}

// zones gives times without a zone, as Harbor's occurred_at, one: UTC, for it
// is not known which.
func zones(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if s, ok := e.(string); ok && strings.HasSuffix(k, "_at") {
				if _, err := time.Parse(time.RFC3339, s); err != nil {
					v[k] = s + "Z"
				}
				continue
			}
			if k != "config" && k != "metadata" {
				zones(e)
			}
		}
	case []any:
		for _, e := range v {
			zones(e)
		}
	}
}

// ends are the exceptions after which Harbor grades what there is, as ends of
// an agent.
var ends = map[string]string{
	"AgentTimeoutError":           "time_cap",
	"NonZeroAgentExitCodeError":   "done",
	"ContextLengthExceededError":  "context",
	"ContextWindowExceededError":  "context",
	"OutputLengthExceededError":   "token_cap",
	"OutputTokenExceededError":    "token_cap",
	"AgentSafetyRefusalError":     "done",
	"ContentPolicyViolationError": "done",
}

// causes are those of exceptions whose name says it, with the phase they are of.
var causes = map[string][2]string{
	"EnvironmentStartTimeoutError": {"start", "infra"},
	"SandboxBuildFailedError":      {"build", "unknown"},
	"HealthcheckError":             {"setup", "task"},
	"AgentSetupTimeoutError":       {"setup", "infra"},
	"MemoryLimitExceededError":     {"agent", "unknown"},
	"AddTestsDirError":             {"verify", "infra"},
	"DownloadVerifierDirError":     {"verify", "infra"},
	"VerifierTimeoutError":         {"verify", "task"},
	"RewardFileNotFoundError":      {"verify", "task"},
	"RewardFileEmptyError":         {"verify", "task"},
	"VerifierOutputParseError":     {"verify", "task"},
	"CancelledError":               {"stopped", "infra"},
}

func verdict(v *VerifierResult, e *ExceptionInfo) (*float64, *Fault, AgentEnd) {
	end := AgentEnd{Stop: "done"}
	if e != nil {
		stop, ok := ends[e.Type]
		if !ok || v == nil || len(v.Rewards) == 0 {
			f := Fault{Phase: "agent", Class: e.Type, Cause: "unknown", Message: firstLine(e.Message)}
			if c, ok := causes[e.Type]; ok {
				f.Phase, f.Cause = c[0], c[1]
			}
			if ok {
				f.Cause = "agent"
			}
			return nil, &f, AgentEnd{Stop: stop}
		}
		end.Stop = stop
	}
	if v == nil || len(v.Rewards) == 0 {
		return nil, &Fault{Phase: "verify", Class: "reward_missing", Cause: "unknown", Message: "there is no reward and no exception"}, end
	}
	r := One(v.Rewards)
	return &r, nil, end
}

// One is the one number of rewards that have names: that of "reward", else the
// only one, else the mean of all.
func One(rewards map[string]float64) float64 {
	if r, ok := rewards["reward"]; ok {
		return r
	}
	sum, parts, n := 0.0, 0.0, float64(len(rewards))
	for _, k := range slices.Sorted(maps.Keys(rewards)) {
		sum += rewards[k]
		parts += rewards[k] / n
	}
	if !finite(sum) { // it is larger than any number; the mean is not
		return parts
	}
	return sum / n
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
