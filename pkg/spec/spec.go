// Package spec reads all that a task in Harbor's format asks of a trial: what
// is to be done, by whom, for how long, with which network, and how it is
// graded. Package task reads what its image is made from. Nothing is run here.
package spec

import (
	"time"

	"fence/pkg/task"
)

// Spec is a task as a trial needs it. Every value is as the trial is to have
// it: templates are filled in, defaults are Harbor's.
type Spec struct {
	Task     task.Task
	Title    string // [task] name, "org/name"; "" if there is none
	Checksum string // Dirhash (sha256) of the folder, as Harbor's task_checksum

	Instruction string // without canary lines; "" if there are Steps
	Agent       Agent
	Verifier    Verifier
	SolutionEnv map[string]string
	Environment Environment
	Artifacts   []Artifact

	Steps      []Step // more than one part, in order; empty for most tasks
	StepReward string // "mean" or "final"

	Metadata map[string]any // [metadata], as it is
	Warnings []string       // keys that nobody knows, and the like
}

// Agent is what whoever solves the task is given.
type Agent struct {
	Timeout time.Duration // 0: no limit
	User    string        // name or number; "" is the image's USER
	Network Network       // while it runs; the zero value is the environment's
}

// Verifier is how the task is graded.
type Verifier struct {
	Timeout time.Duration
	Env     map[string]string
	User    string
	Network Network
	// Separate is the environment of a verifier that has its own: what the
	// agent left is not there, but for the artifacts. Nil for most tasks.
	Separate *Environment
	Collect  []Collect // run in the agent's environment after the agent
}

// Collect is a command that brings out what is to be graded.
type Collect struct {
	Command string
	Timeout time.Duration
	User    string
}

// Environment is the container.
type Environment struct {
	BuildTimeout time.Duration
	CPUs         int // 0 where the task says nothing
	MemoryMB     int
	StorageMB    int
	Network      Network
	Env          map[string]string // of every command
	Workdir      string            // "" is the image's WORKDIR
	Healthcheck  *Healthcheck
}

// Network is what a task asks for; the runner decides what it gets.
type Network struct {
	Mode  string   // "" not said; "public", "no-network" or "allowlist"
	Hosts []string // of an allowlist
}

// Healthcheck has docker's meaning: failures in the start period do not count.
type Healthcheck struct {
	Command                                       string
	Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries                                       int
}

// Artifact is a path that is kept after the agent.
type Artifact struct {
	Source      string
	Destination string // in the trial's folder artifacts/, relative
	Exclude     []string
}

// Step is one part of a task with several.
type Step struct {
	Name        string
	Instruction string
	Agent       Agent
	Verifier    Verifier
	Healthcheck *Healthcheck
	Artifacts   []Artifact
	// MinReward is what must be reached for the next step to begin: by key,
	// "reward" for a bare number. Nil: whatever.
	MinReward map[string]float64

	Workdir  string // steps/NAME/workdir on the host, "" for none
	Tests    string // steps/NAME/tests
	Solution string // steps/NAME/solution
}

// Refused is a task that no trial here can be made of, with what the person can
// do.
type Refused struct{ Reason, Advice string }

func (e *Refused) Error() string { return e.Reason }
