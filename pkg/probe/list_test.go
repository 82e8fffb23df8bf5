package probe

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestChecks_AreComplete(t *testing.T) {
	seen := map[string]bool{}
	groups := []string{"ctl", "fs", "proc", "net", "dev", "sys", "cred", "slurm", "work"}
	for _, c := range Checks() {
		if seen[c.ID] || !checkID.MatchString(c.ID) {
			t.Errorf("%s: not a name, or not the first of its name", c.ID)
		}
		seen[c.ID] = true
		if !slices.Contains(groups, c.Group) || !slices.Contains(severities, c.Severity) || c.Worker == "" {
			t.Errorf("%s: group %q severity %q worker %q", c.ID, c.Group, c.Severity, c.Worker)
		}
		if c.What == "" || c.Why == "" || strings.HasSuffix(c.What, ".") || strings.HasSuffix(c.Why, ".") {
			t.Errorf("%s: what %q, why %q", c.ID, c.What, c.Why)
		}
		if c.Worker == classNone {
			if _, ok := composites[c.ID]; !ok {
				t.Errorf("%s: no rule computes it", c.ID)
			}
			continue
		}
		if c.try == nil {
			t.Errorf("%s: nothing to try", c.ID)
		}
		if c.Targeted != (c.targets != nil) {
			t.Errorf("%s: targeted %v", c.ID, c.Targeted)
		}
		for _, a := range c.Attack {
			if !strings.HasPrefix(a, "T1") {
				t.Errorf("%s: %q is no ATT&CK technique", c.ID, a)
			}
		}
	}
	// The guide's five rows, and what gates ask for, rest on these.
	for _, id := range []string{
		"fs.shared.list", "fs.shared.read", "fs.shared.write", "fs.shared.stat", "net.tcp.canary", "net.tcp.out", "net.udp.socket", "net.udp.canary",
		"ctl.seccomp", "ctl.landlock.layers", "ctl.nnp", "fs.task.write", "net.ifaces", "net.loopback.own", "slurm.submit", "ssh.lateral",
	} {
		if !seen[id] {
			t.Errorf("%s is gone", id)
		}
	}
}

// TestChecks_HaveAFindingForNoTargets: a list that may be empty needs words
// for that. Fixed lists are not.
func TestChecks_HaveAFindingForNoTargets(t *testing.T) {
	s := newSite(task{}, func(line) {})
	for _, c := range Checks() {
		if c.targets == nil || c.none != nil {
			continue
		}
		if len(c.targets(s)) == 0 {
			t.Errorf("%s: no targets here, and nothing to say", c.ID)
		}
	}
}

func TestChecks_NeverOpenWhatOpeningDisturbs(t *testing.T) {
	for p, want := range map[string]bool{
		"/dev/watchdog": true, "/dev/watchdog0": true, "/dev/st0": true, "/dev/nst0": true, "/dev/ttyS0": true, "/dev/sg3": true, "/dev/../dev/snapshot": true, "/proc/kcore": true,
		"/sys/kernel/debug/tracing": true, "/sys/kernel/debug": true, "/dev/infiniband/issm0": true, "/dev/rtc": true,
		"/dev/null": false, "/dev/stdin": false, "/dev/stderr": false, "/dev/kvm": false, "/dev/tty": false, "/dev/infiniband/uverbs0": false,
	} {
		if neverOpen(p) != want {
			t.Errorf("neverOpen(%s) = %v", p, !want)
		}
	}
	s := newSite(task{}, nil)
	for _, p := range unopenedTargets(s) {
		if f := tryDevice(s, p); f.Outcome != Skipped && f.Outcome != Absent && f.Outcome != Denied {
			t.Errorf("%s: %s", p, f.Outcome)
		}
	}
	if f := s.openNothing("/proc/kcore", os.O_RDONLY, 0); f.Outcome != Skipped {
		t.Errorf("/proc/kcore: %s", f.Outcome)
	}
}

func TestReport_OfNothingFoundSaysSo(t *testing.T) {
	r := run{table: []Check{{ID: "a.b", Group: "x", Severity: "low", Worker: classFS}}, found: map[Key]Finding{}}
	if fs := r.report(); len(fs) != 1 || fs[0].Outcome != Error || fs[0].Severity != "low" {
		t.Errorf("%+v", fs)
	}
}
