// Package result is what a trial and a run leave on disk: Harbor's job folder
// (https://github.com/laude-institute/harbor, src/harbor/models), with fields
// of our own that its tools pass over.
package result

import (
	"encoding/json"
	"time"
)

// Schema is the first field of a trial's record.
const Schema = "rollout.trial/v1"

// Trial is DIR/TRIAL/result.json, and a line on stdout. What Harbor requires
// has its names; times are UTC.
type Trial struct {
	Schema string `json:"schema"`

	ID           string          `json:"id"` // UUID
	TaskName     string          `json:"task_name"`
	TrialName    string          `json:"trial_name"`
	TrialURI     string          `json:"trial_uri"` // file://
	TaskID       TaskID          `json:"task_id"`
	Source       string          `json:"source,omitempty"` // dataset
	TaskChecksum string          `json:"task_checksum"`
	Config       json.RawMessage `json:"config"` // Harbor's TrialConfig

	AgentInfo        AgentInfo       `json:"agent_info"`
	AgentResult      *AgentResult    `json:"agent_result"`
	VerifierResult   *VerifierResult `json:"verifier_result"`
	ExceptionInfo    *ExceptionInfo  `json:"exception_info"`
	StartedAt        time.Time       `json:"started_at"`
	FinishedAt       time.Time       `json:"finished_at"`
	EnvironmentSetup *Timing         `json:"environment_setup"`
	AgentSetup       *Timing         `json:"agent_setup"`
	AgentExecution   *Timing         `json:"agent_execution"`
	VerifierTiming   *Timing         `json:"verifier"`
	StepResults      []StepResult    `json:"step_results"`

	// Ours. A fault means that Reward is null.
	Task      string     `json:"task"`    // the task's folder
	Attempt   int        `json:"attempt"` // 1..k of --attempts
	Tries     int        `json:"tries"`   // with retries; 1 is none
	Reward    *float64   `json:"reward"`
	Agent     AgentEnd   `json:"agent"`
	Verify    *VerifyEnd `json:"verify"`
	Fault     *Fault     `json:"fault"`
	Tainted   []Taint    `json:"tainted"`
	Isolation *Isolation `json:"isolation"`
	Usage     Usage      `json:"usage"`
	Image     string     `json:"image"`
	Node      string     `json:"node"`
	Warnings  []string   `json:"warnings,omitempty"`
}

// TaskID is Harbor's for a task folder.
type TaskID struct {
	Path string `json:"path"`
}

// AgentInfo says who acted.
type AgentInfo struct {
	Name      string     `json:"name"`
	Version   string     `json:"version"`
	ModelInfo *ModelInfo `json:"model_info"`
}

// ModelInfo is the model of an agent that has one.
type ModelInfo struct {
	Name     string `json:"name"`
	Provider string `json:"provider,omitempty"`
}

// AgentResult is what the agent used; nulls where nobody counted.
type AgentResult struct {
	InputTokens    *int              `json:"n_input_tokens"`
	CacheTokens    *int              `json:"n_cache_tokens"`
	OutputTokens   *int              `json:"n_output_tokens"`
	CostUSD        *float64          `json:"cost_usd"`
	RolloutDetails []json.RawMessage `json:"rollout_details"`
	Metadata       map[string]any    `json:"metadata"`
}

// VerifierResult are the rewards by name.
type VerifierResult struct {
	Rewards map[string]float64 `json:"rewards"`
}

// ExceptionInfo is a fault under the class names that Harbor's tools look for.
type ExceptionInfo struct {
	Type      string    `json:"exception_type"`
	Message   string    `json:"exception_message"`
	Traceback string    `json:"exception_traceback"`
	At        time.Time `json:"occurred_at"`
}

// Timing is how long a phase took.
type Timing struct {
	StartedAt  time.Time  `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"`
}

// StepResult is one part of a task with several.
type StepResult struct {
	StepName       string          `json:"step_name"`
	AgentResult    *AgentResult    `json:"agent_result"`
	VerifierResult *VerifierResult `json:"verifier_result"`
	ExceptionInfo  *ExceptionInfo  `json:"exception_info"`
	AgentExecution *Timing         `json:"agent_execution"`
	Verifier       *Timing         `json:"verifier"`

	Reward *float64   `json:"reward"`
	Agent  AgentEnd   `json:"agent"`
	Verify *VerifyEnd `json:"verify"`
	Fault  *Fault     `json:"fault"`
}

// AgentEnd is how the agent ended: of a task with steps, in the last that was
// begun, but for the turns, which are those of all.
type AgentEnd struct {
	Stop     string `json:"stop"`                // one of Stops, "" if it never began
	ExitCode *int   `json:"exit_code,omitempty"` // of a scripted agent
	Turns    int    `json:"turns,omitempty"`
}

// Stops are the ends of an agent; after each the verifier runs, but after error.
var Stops = []string{"done", "turn_cap", "time_cap", "token_cap", "context", "session_lost", "error"}

// VerifyEnd is how the tests ended. Their exit code does not count.
type VerifyEnd struct {
	ExitCode *int   `json:"exit_code"` // null if it did not end by itself
	From     string `json:"from"`      // "reward.json", "reward.txt" or ""
}

// Fault is why there is no reward.
type Fault struct {
	Phase   string `json:"phase"` // one of Phases
	Class   string `json:"class"` // see docs/records.md
	Cause   string `json:"cause"` // one of Causes
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what the person can do
}

// Phases and Causes of a fault.
var (
	Phases = []string{"build", "start", "setup", "agent", "verify", "isolation", "stopped"}
	Causes = []string{"infra", "task", "agent", "unknown"}
)

// Taint is a file that the agent changed and the verifier then executed or
// loaded without having been told to by the task.
type Taint struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Isolation is what held while the trial ran, for the operators.
type Isolation struct {
	Agent    Domain   `json:"agent"`
	Verifier Domain   `json:"verifier"`
	Below    bool     `json:"below"`            // the agent's domain lies below the verifier's
	Beside   string   `json:"beside,omitempty"` // why it does not
	Gate     string   `json:"gate"`             // "pass", or "off: WHY"
	Asked    string   `json:"network_asked"`    // by the task
	Opened   []Opened `json:"opened"`           // every loosening, with its why
	Limits   string   `json:"limits"`           // "watchdog" or "step"
	Host     *Host    `json:"host,omitempty"`
}

// Host is by whom and on what trials were run; "" and 0 are not known.
type Host struct {
	User      string `json:"user"` // and number
	Job       string `json:"job"`  // Slurm's, JOB or ARRAY_ELEMENT
	Rollout   string `json:"rollout"`
	Apptainer string `json:"apptainer"`
	Kernel    string `json:"kernel"`
	Landlock  int    `json:"landlock_abi"`
	Server    string `json:"model_server"` // that rollout itself asked, outside of the fence
}

// Domain is one fence of the trial.
type Domain struct {
	Policy  string `json:"policy"`
	Form    string `json:"form"`
	Network string `json:"network"` // what is enforced: none, loopback, proxy, host
}

// Opened is something that the policy has not by itself.
type Opened struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Usage is what a trial needed at its most.
type Usage struct {
	MemoryBytes int64   `json:"memory_bytes"`
	DiskBytes   int64   `json:"disk_bytes"`
	Processes   int     `json:"processes"`
	CPUSec      float64 `json:"cpu_sec"`
}
