package probe

import (
	"slices"
	"time"
)

// CheckSchema names the format of Check where one is printed as a record.
const CheckSchema = "probe.check/v1"

// Check is one thing that probe tries.
type Check struct {
	ID       string   `json:"id"`
	Group    string   `json:"group"`
	Severity string   `json:"severity"` // what an open door is worth: high, medium, low, info
	Attack   []string `json:"attack,omitempty"`
	What     string   `json:"what"`   // what it tries
	Why      string   `json:"why"`    // why that matters on a cluster
	Worker   string   `json:"worker"` // the hazard class: its checks share a child process
	Targeted bool     `json:"targeted"`

	// targets lists what to try it on. It runs in the worker, under the
	// check's deadline. nil: one attempt, without a target.
	targets func(*site) []string
	// none is the finding when there are no targets.
	none func(*site) Finding
	// try makes one attempt. It fills in the outcome and what proves it;
	// the rest of the Finding comes from the Check.
	try func(*site, string) Finding
	// died reads what a signal that killed the worker in this attempt means,
	// where it means anything but "the probe broke".
	died func(signal string) (Finding, bool)
	// limit is the attempt's deadline, 0 for the usual one.
	limit time.Duration
}

// Hazard classes. Each runs in a worker of its own, so that what hangs, kills
// or taints a process does that to no other check.
const (
	classSelf     = "self"     // reads the state of the process
	classLandlock = "landlock" // restricts itself
	classListener = "listener" // installs a seccomp filter on itself
	classFDs      = "fds"      // looks at inherited descriptors
	classShared   = "shared"   // touches network filesystems
	classFS       = "fs"
	classProc     = "proc"
	classIPC      = "ipc"
	classNet      = "net"    // sockets that lead nowhere
	classNetOut   = "netout" // sockets that lead out; waits for answers
	classDev      = "dev"
	classSys      = "sys" // system calls that a filter may kill for
	classI386     = "i386"
	classCred     = "cred"
	classSlurm    = "slurm"
	classWork     = "work"
	classNone     = "parent" // computed from other findings
)

// concurrent are the classes whose attempts are made side by side: each may
// wait for something far away.
var concurrent = []string{classShared, classNetOut}

// Checks lists every check, in the order of a report.
func Checks() []Check {
	all := slices.Concat(
		ctlChecks(), fsChecks(), sharedChecks(), procChecks(), ipcChecks(), netChecks(), netOutChecks(),
		devChecks(), sysChecks(), credChecks(), slurmChecks(), workChecks(),
	)
	for i := range all {
		all[i].Targeted = all[i].targets != nil
	}
	return all
}

// to makes the targets function of a fixed list.
func to(targets ...string) func(*site) []string {
	return func(*site) []string { return targets }
}

// nothing is the finding of a check that had nothing to be tried on.
func nothing(o Outcome, evidence string) func(*site) Finding {
	return func(*site) Finding { return Finding{Outcome: o, Evidence: evidence} }
}
