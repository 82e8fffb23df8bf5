// Package probe tries what a process here can reach, and says what it found.
//
// A report claims "denied" only where an attempt was made and refused. It
// reads nothing that may be a secret, writes nothing with a name, sends at
// most one byte to the operator's own canary, and never waits without a
// deadline.
package probe

// ReportSchema names the format of Report.
const ReportSchema = "probe.report/v1"

// Outcome is what one attempt came to. The zero value is not an outcome.
type Outcome string

const (
	Reachable   Outcome = "reachable"   // it worked, or the code behind it answered
	Denied      Outcome = "denied"      // refused by a control
	Absent      Outcome = "absent"      // there is no such thing here
	Unreachable Outcome = "unreachable" // the network said no way there; proves nothing alone
	Timeout     Outcome = "timeout"     // no answer before the deadline
	Error       Outcome = "error"       // the probe itself failed
	Skipped     Outcome = "skipped"     // not asked for, or cannot be asked here
	Info        Outcome = "info"        // a value, not an attempt
)

// Report is all that one run of probe found.
type Report struct {
	Schema   string          `json:"schema"` // ReportSchema
	Tool     Tool            `json:"tool"`
	Run      Run             `json:"run"`
	Subject  Subject         `json:"subject"`
	Controls Controls        `json:"controls"`
	Checks   []Finding       `json:"checks"`
	Summary  map[Outcome]int `json:"summary"`
}

// Tool is the probe that made a report.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Run is when and how a report was made.
type Run struct {
	Label      string   `json:"label,omitempty"` // host, before, after, or what --label said
	Time       string   `json:"time"`            // RFC 3339, UTC
	DurationMS int64    `json:"duration_ms"`
	Argv       []string `json:"argv"`
}

// Subject is the process and node a report speaks of.
type Subject struct {
	Hostname string            `json:"hostname"`
	BootID   string            `json:"boot_id"`
	Kernel   string            `json:"kernel"`
	Arch     string            `json:"arch"`
	UID      int               `json:"uid"`
	GID      int               `json:"gid"`
	Runtime  string            `json:"runtime,omitempty"` // "apptainer", "docker", ...; "" on a bare node
	Slurm    map[string]string `json:"slurm,omitempty"`   // job_id, step_id, node
}

// Controls are the protections in force on the probing process.
type Controls struct {
	NoNewPrivs bool              `json:"no_new_privs"`
	Seccomp    SeccompState      `json:"seccomp"`
	Landlock   LandlockState     `json:"landlock"`
	CapEff     string            `json:"cap_eff"` // hexadecimal, as in /proc/PID/status
	CapBnd     string            `json:"cap_bnd"`
	Namespaces map[string]uint64 `json:"ns"` // inode of /proc/self/ns/NAME
}

// SeccompState is what /proc/self/status says of seccomp(2).
type SeccompState struct {
	Mode     int  `json:"mode"` // 0 none, 1 strict, 2 filter
	Filters  int  `json:"filters"`
	Listener bool `json:"listener"` // a user-notification supervisor is attached
}

// LandlockState is what the kernel has and what is on this process.
type LandlockState struct {
	ABI    int `json:"abi"`    // 0: not available
	Errata int `json:"errata"` // bit mask, see landlock_create_ruleset(2)
	Layers int `json:"layers"` // rulesets in force here; -1: could not tell
}

// Finding is one attempt and its outcome, with what proves it.
type Finding struct {
	ID        string   `json:"id"`
	Target    string   `json:"target,omitempty"`
	Group     string   `json:"group"`
	Severity  string   `json:"severity"`         // high, medium, low, info
	Attack    []string `json:"attack,omitempty"` // MITRE ATT&CK technique ids
	Outcome   Outcome  `json:"outcome"`
	Mechanism string   `json:"mechanism,omitempty"` // best guess at what refused it
	Errno     string   `json:"errno,omitempty"`     // "EACCES"
	Syscall   string   `json:"syscall,omitempty"`
	ElapsedMS float64  `json:"elapsed_ms"`
	Evidence  string   `json:"evidence,omitempty"` // what was done and what came back, one line
	DependsOn []string `json:"depends_on,omitempty"`
}
