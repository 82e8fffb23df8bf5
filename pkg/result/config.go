package result

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Config is TRIAL/config.json, and config in a trial's record: Harbor's
// TrialConfig. What it says beyond that is in Kwargs, where Harbor's own models
// keep what only a backend or an agent knows. It holds no variable's value.
type Config struct {
	Task              TaskConfig        `json:"task"`
	TrialName         string            `json:"trial_name"`
	TrialsDir         string            `json:"trials_dir"` // the job folder
	TimeoutMultiplier float64           `json:"timeout_multiplier"`
	Agent             AgentConfig       `json:"agent"`
	Environment       EnvironmentConfig `json:"environment"`
	JobID             string            `json:"job_id"`
}

// TaskConfig names a task.
type TaskConfig struct {
	Path   string `json:"path"`
	Source string `json:"source,omitempty"` // the dataset
}

// AgentConfig names who acts.
type AgentConfig struct {
	Name      string         `json:"name"`
	ModelName *string        `json:"model_name"`
	Kwargs    map[string]any `json:"kwargs"`
}

// EnvironmentConfig names the backend. Type is one of Harbor's, for it refuses
// others: of those, singularity is what Apptainer was called.
type EnvironmentConfig struct {
	Type   string         `json:"type"`
	Kwargs map[string]any `json:"kwargs"`
}

// Environment is the backend of every trial here.
func Environment(kwargs map[string]any) EnvironmentConfig {
	if kwargs == nil {
		kwargs = map[string]any{}
	}
	return EnvironmentConfig{Type: "singularity", Kwargs: kwargs}
}

// JobConfig is DIR/config.json: Harbor's JobConfig, and Settings.
type JobConfig struct {
	JobName           string            `json:"job_name"`
	JobsDir           string            `json:"jobs_dir"`
	Attempts          int               `json:"n_attempts"`
	Concurrent        int               `json:"n_concurrent_trials"`
	TimeoutMultiplier float64           `json:"timeout_multiplier"`
	Retry             RetryConfig       `json:"retry"`
	Environment       EnvironmentConfig `json:"environment"`
	Agents            []AgentConfig     `json:"agents"`
	Tasks             []TaskConfig      `json:"tasks"`

	// Ours.
	Settings []Setting `json:"settings"`
	Skipped  []Skipped `json:"skipped,omitempty"`
}

// Skipped is a task that was asked for and of which there is no trial.
type Skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// RetryConfig is how often what may pass is tried again.
type RetryConfig struct {
	Max int `json:"max_retries"`
}

// Setting is something that all trials of one job folder have in common, by the
// flag that a person sets it with.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Difference is a setting that is not as it was; "" where it was or is not set.
type Difference struct {
	Name string `json:"name"`
	Was  string `json:"was"`
	Is   string `json:"is"`
}

func (d Difference) String() string {
	return fmt.Sprintf("%s was %s and is now %s", d.Name, cmp.Or(d.Was, "not set"), cmp.Or(d.Is, "not set"))
}

// Differs says which settings are not as they were, in the order of now, those
// last that are not set now. One that is there several times has all its values.
func Differs(was, now []Setting) (all []Difference) {
	seen := map[string]bool{}
	for _, s := range slices.Concat(now, was) {
		if before, after := values(was, s.Name), values(now, s.Name); before != after && !seen[s.Name] {
			all = append(all, Difference{s.Name, before, after})
		}
		seen[s.Name] = true
	}
	return all
}

func values(of []Setting, name string) string {
	var all []string
	for _, s := range of {
		if s.Name == name {
			all = append(all, s.Value)
		}
	}
	return strings.Join(all, ", ")
}
