package probe

import (
	"slices"
	"strings"
	"testing"
)

// findings makes findings of "id[target] outcome" lines.
func findings(lines ...string) []Finding {
	var out []Finding
	for _, l := range lines {
		name, outcome, _ := strings.Cut(l, " ")
		id, target, _ := strings.Cut(strings.TrimSuffix(name, "]"), "[")
		out = append(out, Finding{ID: id, Target: target, Outcome: Outcome(outcome)})
	}
	return out
}

func TestCompose(t *testing.T) {
	for _, c := range []struct {
		name, id string
		fs       []Finding
		want     Outcome
	}{
		{"all open by munge", "slurm.submit", findings("slurm.munge[/run/munge] reachable", "slurm.munge[/var/run] absent", "slurm.ctld[c:6817] reachable", "slurm.conf[/etc] reachable"), Reachable},
		{"by a token and the REST server", "slurm.submit", findings("slurm.munge absent", "slurm.jwt[SLURM_JWT] reachable", "slurm.ctld denied", "slurm.restd[c:6820] reachable", "slurm.conf.server[SLURM_CONF_SERVER] reachable"), Reachable},
		{"no identity", "slurm.submit", findings("slurm.munge absent", "slurm.sack absent", "slurm.jwt absent", "slurm.ctld[c:6817] reachable", "slurm.conf[/etc] reachable"), Absent},
		{"no socket", "slurm.submit", findings("slurm.munge[/run] reachable", "slurm.ctld denied", "slurm.restd denied", "slurm.conf[/etc] reachable"), Denied},
		{"closed though another leg is unknown", "slurm.submit", findings("slurm.munge absent", "slurm.ctld timeout", "slurm.conf[/etc] reachable"), Absent},
		{"the controller did not answer", "slurm.submit", findings("slurm.munge[/run] reachable", "slurm.ctld timeout", "slurm.conf[/etc] reachable"), Error},
		{"one door of a leg is unknown", "slurm.submit", findings("slurm.munge absent", "slurm.sack error", "slurm.ctld[c] reachable", "slurm.conf[/etc] reachable"), Error},
		{"unreachable proves nothing", "slurm.submit", findings("slurm.munge[/run] reachable", "slurm.ctld[c] unreachable", "slurm.conf[/etc] reachable"), Error},
		{"left out", "slurm.submit", findings("slurm.munge skipped", "slurm.ctld[c] reachable", "slurm.conf[/etc] reachable"), Skipped},
		{"left out, and one failed", "slurm.submit", findings("slurm.munge skipped", "slurm.ctld[c] timeout", "slurm.conf[/etc] reachable"), Error},
		{"left out beside one that failed", "slurm.submit", findings("slurm.munge error", "slurm.sack skipped", "slurm.ctld[c] reachable", "slurm.conf[/etc] reachable"), Error},
		{"nothing known", "slurm.submit", nil, Error},

		{"agent and another node", "ssh.lateral", findings("ipc.unix[/tmp/ssh-x/agent.1] reachable", "net.tcp.cluster[n2:22] reachable"), Reachable},
		{"key and another node", "ssh.lateral", findings("cred.files[~/.ssh/id_rsa] reachable", "net.tcp.cluster[n2:22] reachable"), Reachable},
		{"a public key is none", "ssh.lateral", findings("cred.files[~/.ssh/id_rsa.pub] reachable", "cred.files[~/.ssh/id_*] absent", "net.tcp.cluster[n2:22] reachable"), Absent},
		{"another port is no login", "ssh.lateral", findings("ssh.keysign reachable", "net.tcp.cluster[filer:2049] reachable", "net.tcp.cluster[n2:22] denied"), Denied},
		{"no socket at all", "ssh.lateral", findings("ssh.keysign reachable", "net.tcp.cluster denied"), Denied},
		{"no node is known", "ssh.lateral", findings("ssh.keysign reachable", "net.tcp.cluster skipped"), Skipped},
		{"BUG", "no.such", nil, Error},
	} {
		f := compose(c.id, c.fs)
		if f.Outcome != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, f.Outcome, f.Evidence, c.want)
		}
		if f.Outcome == Reachable && (len(f.DependsOn) == 0 || !strings.HasPrefix(f.Evidence, "open: ")) {
			t.Errorf("%s: rests on %v: %s", c.name, f.DependsOn, f.Evidence)
		}
	}
}

func TestReaches(t *testing.T) {
	r := Report{Checks: findings(
		"slurm.munge[/run/munge/munge.socket.2] reachable", "slurm.ctld[ctl:6817] reachable", "slurm.conf[/etc/slurm/slurm.conf] reachable",
		"fs.shared.write[/proj] reachable", "fs.shared.list[/proj] reachable", "fs.shared.list[/data] reachable",
		"net.tcp.canary[canary:127.0.0.1] reachable", "net.udp.socket reachable", "cred.env[HF_TOKEN] reachable",
		"proc.signal reachable", "ipc.unix[/run/docker.sock] reachable", "ipc.unix[/tmp/x] reachable", "dev.kvm[/dev/kvm] denied",
	)}
	r.Checks = append(r.Checks, func() Finding { f := compose("slurm.submit", r.Checks); f.ID = "slurm.submit"; return f }())
	got := Reaches(r)
	for _, want := range []string{
		"can submit Slurm jobs: an identity (slurm.munge[/run/munge/munge.socket.2]), a controller (slurm.ctld[ctl:6817]), a configuration (slurm.conf[/etc/slurm/slurm.conf])",
		"can write to shared storage: /proj",
		"can read shared storage: /data",
		"can connect by TCP to whatever this node reaches (the canary answered)",
		"can open UDP sockets",
		"has 1 credential in its environment: HF_TOKEN",
		"can signal this user's other processes, the harness among them",
		"can talk to daemons that run commands for it: /run/docker.sock",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("not said: %s\nin %q", want, got)
		}
	}
	if len(got) != 8 {
		t.Errorf("%d sentences: %q", len(got), got)
	}
	if got := Reaches(Report{Checks: findings("slurm.submit absent", "net.udp.socket denied")}); len(got) != 0 {
		t.Errorf("of a closed report: %q", got)
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		n    int
		what string
		want string
	}{{1, "key", "1 key"}, {2, "key", "2 keys"}, {3, "file of keys", "3 files of keys"}} {
		if got := count(c.n, c.what); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if got := few([]string{"a", "b", "a", "c", "d", "e", "f"}); got != "a, b, c, d and 2 more" {
		t.Errorf("%q", got)
	}
}
