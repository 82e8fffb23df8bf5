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
	// SolutionRefused is why the solution cannot be run though the task can: a
	// variable that it needs is not there. Nil for most tasks.
	SolutionRefused *Refused
	Environment     Environment
	Artifacts       []Artifact // /logs/artifacts is always one

	// Steps are the parts of a task with several, in order; empty for most. What
	// a step does not say it has from the task, so that each is complete.
	Steps      []Step
	StepReward string // "mean" or "final"

	Metadata map[string]any // [metadata], as it is
	// NeedsWhy is not "" for a task that is not run without a reason given by
	// the person who runs it: it is this, such as "its category is security".
	NeedsWhy string
	Warnings []string // keys that nobody knows, and the like; a line each
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
	Collect  []Collect // run in the agent's environment after the agent; a failure is noted
}

// Collect is a command that brings out what is to be graded.
type Collect struct {
	Command string
	Timeout time.Duration
	User    string // "" is the image's USER, whoever the agent is
}

// Environment is the container.
type Environment struct {
	BuildTimeout time.Duration // for its image and its start
	// Image is a prebuilt image and Context a folder with a Dockerfile; the
	// first goes before the second. Of the task's own environment, package task
	// knows more. A separate verifier's Context is its folder tests, also where
	// it has an Image; neither: its image is the task's.
	Image, Context string
	// HasTests says of a separate verifier that its image has /tests itself:
	// nothing is put there.
	HasTests bool
	// Files is a folder whose files are put into the working directory at the
	// start, as Harbor does with environment/ of a prebuilt image; "" is none.
	Files string

	CPUs        float64 // 0 where the task says nothing
	MemoryMB    int
	StorageMB   int
	Network     Network
	Env         map[string]string // of every command
	Workdir     string            // "" is the image's WORKDIR
	Healthcheck *Healthcheck
}

// Network is what a task asks for; the runner decides what it gets.
type Network struct {
	Mode  string   // "" not said; "public", "no-network" or "allowlist"
	Hosts []string // of an allowlist
}

// Healthcheck has docker's meaning: failures in the start period do not count,
// and so many Retries in a row mean that it is not healthy.
type Healthcheck struct {
	Command                                       string
	Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries                                       int
}

// Artifact is a path that is kept after the agent. None is there in many trials.
type Artifact struct {
	Source      string   // in the container; from the working directory if relative
	Destination string   // in the trial's folder artifacts/; relative, clean, never ""
	Exclude     []string // patterns for tar --exclude
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
	Tests    string // steps/NAME/tests, put over the task's tests; "" for none
	Solution string // steps/NAME/solution, or the task's if there is none
}

// Refused is a task that no trial here can be made of, with what the person can
// do. Both are one line; the advice may be "".
type Refused struct{ Reason, Advice string }

func (e *Refused) Error() string { return e.Reason }
