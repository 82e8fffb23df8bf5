package probe

import "strings"

// advice is what to do about a result that is not yes: first by what was
// seen, then by the check's id, the longest prefix first.
func advice(r Result) string {
	switch {
	case r.Seen == nil && r.Before != nil:
		return "give probe the same flags and the same --canary in both runs"
	case r.Seen == nil && r.Want != "proof":
		return "make the report with this version of probe; --canary, --shared, --tcp and --udp say what to try"
	case r.Seen != nil && r.Seen.Outcome == Skipped && r.Want == "closed":
		switch r.ID {
		case "net.tcp.out", "net.tcp.cluster":
			return "name a host outside this node, in both runs: --tcp HOST:PORT"
		case "net.udp.out":
			return "name a host outside this node, in both runs: --udp HOST:PORT"
		}
		return "start 'probe listen --canary FILE' outside the container and give --canary to both runs"
	case r.Seen != nil && r.Seen.Outcome == Timeout:
		return "run it again; if it hangs again, see what serves " + nonEmpty(r.Target, "it")
	case r.Answer == CannotTell && r.Seen != nil && r.Seen.Outcome == Unreachable:
		return "give --before a report in which the same target was reached"
	case r.Answer == CannotTell && r.Want == "closed" && r.Before != nil && r.Before.Outcome != Reachable:
		return "make BEFORE while the canary is up, in the same container without the fence"
	}
	for p := r.ID; p != ""; p = parent(p) {
		if a, ok := adviceFor[p]; ok {
			return a
		}
	}
	return "run the command behind 'fence --'"
}

func nonEmpty(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// parent is the id without its last word.
func parent(id string) string {
	i := strings.LastIndexByte(id, '.')
	return id[:max(i, 0)]
}

var adviceFor = map[string]string{
	"ctl.seccomp":         "run the command behind 'fence --', and see 'fence check' for why a filter could not be loaded",
	"ctl.landlock.layers": "run the command behind 'fence --', and see 'fence check' for what this kernel's Landlock can do",
	"ctl.nnp":             "run the command behind 'fence --'",
	"ctl.fds":             "something passes an open descriptor in: start the command behind 'fence --', which closes all but 0, 1 and 2",
	"fs":                  "do not mount it: eval \"$(fence env)\" before apptainer, else fence --hide PATH",
	"fs.task":             "the task's own directory must be writable: fence --write DIR",
	"proc":                "keep the host's processes out of sight: apptainer --pid, and a kernel whose Landlock confines signals (see 'fence check')",
	"ipc":                 "do not mount the socket's directory; give the container its own /tmp and --ipc",
	"net":                 "run the command behind 'fence --net none'",
	"dev":                 "use apptainer's minimal /dev (--contain), and the default policy of fence",
	"sys":                 "run the command behind 'fence --', whose filter refuses this call",
	"cred":                "start from a clean environment and do not mount the home directory: eval \"$(fence env)\"",
	"cred.env":            "start from a clean environment: eval \"$(fence env)\"; fence drops what looks like a credential",
	"slurm":               "do not mount Slurm's and munge's sockets and configuration: eval \"$(fence env)\"",
	"ssh":                 "do not mount the home directory or an agent's socket: eval \"$(fence env)\"",
	"pmix":                "start from a clean environment: eval \"$(fence env)\"",
	"work":                "the fence took away what tasks need: see 'fence explain', and open it with a why",
}
