package probe

import (
	"fmt"
	"slices"
	"strings"
)

// leg is one condition of a composite, over the findings of a report.
type leg struct {
	name string
	ids  func(Finding) bool
}

// is makes a leg of the checks with these ids.
func is(name string, ids ...string) leg {
	return leg{name, func(f Finding) bool { return slices.Contains(ids, f.ID) }}
}

// composites are capabilities that need several doors. All legs must be
// open; a leg is open if any of its doors is.
var composites = map[string][]leg{
	"slurm.submit": {
		is("an identity", "slurm.munge", "slurm.sack", "slurm.jwt"),
		is("a controller", "slurm.ctld", "slurm.restd"),
		is("a configuration", "slurm.conf", "slurm.conf.server"),
	},
	"ssh.lateral": {
		{"a login", func(f Finding) bool {
			return f.ID == "ssh.keysign" ||
				f.ID == "ipc.unix" && (strings.Contains(f.Target, "/agent.") || strings.Contains(f.Target, "S.gpg-agent.ssh") || strings.HasSuffix(f.Target, "ssh-agent.socket")) ||
				f.ID == "cred.env" && f.Target == "SSH_AUTH_SOCK" ||
				f.ID == "cred.files" && strings.Contains(f.Target, "/.ssh/id_") && !strings.HasSuffix(f.Target, ".pub")
		}},
		{"port 22 of another node", func(f Finding) bool {
			return f.ID == "net.tcp.cluster" && (f.Target == "" || strings.HasSuffix(f.Target, ":22"))
		}},
	},
}

// compose computes a composite from the findings that it rests on: reachable
// if every leg is, closed if one leg is proven closed, skipped if what is
// missing was not asked for or cannot be asked here, and otherwise an error: it
// could not tell.
func compose(id string, fs []Finding) Finding {
	legs, ok := composites[id]
	if !ok {
		return Finding{Outcome: Error, Evidence: "BUG: no rule for " + id}
	}
	f := Finding{Outcome: Reachable}
	var open, shut, doubt []string
	refused, failed := false, false
	for _, l := range legs {
		state, via := l.read(fs)
		switch state {
		case Reachable:
			open = append(open, l.name+" ("+via+")")
		case Denied, Absent:
			shut = append(shut, l.name)
			refused = refused || state == Denied
		default:
			doubt = append(doubt, l.name)
			failed = failed || state != Skipped
		}
		for _, g := range fs {
			if l.ids(g) && !slices.Contains(f.DependsOn, g.ID) {
				f.DependsOn = append(f.DependsOn, g.ID)
			}
		}
	}
	var parts []string
	for _, p := range []struct {
		word string
		list []string
	}{{"open", open}, {"closed", shut}, {"not known", doubt}} {
		if len(p.list) > 0 {
			parts = append(parts, p.word+": "+strings.Join(p.list, ", "))
		}
	}
	f.Evidence = strings.Join(parts, "; ")
	switch {
	case len(shut) > 0 && refused:
		f.Outcome = Denied
	case len(shut) > 0:
		f.Outcome = Absent
	case len(doubt) > 0:
		f.Outcome = Skipped
		if failed {
			f.Outcome = Error
		}
		f.Evidence = "could not tell: " + f.Evidence
	}
	return f
}

// read is the state of a leg: open by its first open door, closed when all
// that was tried is closed, skipped when the rest was, else unknown.
func (l leg) read(fs []Finding) (Outcome, string) {
	state := Outcome("")
	for _, f := range fs {
		if !l.ids(f) {
			continue
		}
		switch f.Outcome {
		case Reachable:
			return Reachable, f.Key().String()
		case Info:
		case Denied, Absent:
			if state == "" || state == Absent && f.Outcome == Denied {
				state = f.Outcome
			}
		case Skipped:
			if state != Error {
				state = Skipped
			}
		default:
			state = Error
		}
	}
	return state, ""
}

// Reaches says in one sentence each what the account of this report can
// reach: on a bare node, what would be lost if a fence failed.
func Reaches(r Report) []string {
	open := map[string][]string{} // id: the targets that are open
	for _, f := range r.Checks {
		if f.Outcome == Reachable {
			open[f.ID] = append(open[f.ID], f.Target)
		}
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	any := func(ids ...string) bool {
		return slices.ContainsFunc(ids, func(id string) bool { return len(open[id]) > 0 })
	}
	for _, f := range r.Checks {
		if f.Outcome == Reachable && f.ID == "slurm.submit" {
			say("can submit Slurm jobs: %s", strings.TrimPrefix(f.Evidence, "open: "))
		}
		if f.Outcome == Reachable && f.ID == "ssh.lateral" {
			say("can log in to other nodes: %s", strings.TrimPrefix(f.Evidence, "open: "))
		}
	}
	if any("slurm.munge", "slurm.sack") && !any("slurm.submit") {
		say("can prove to the cluster who it is (%s)", few(slices.Concat(open["slurm.munge"], open["slurm.sack"])))
	}
	if any("slurm.stepd") {
		say("can talk to the daemons of %s", count(len(open["slurm.stepd"]), "running job step"))
	}
	if w := open["fs.shared.write"]; len(w) > 0 {
		say("can write to shared storage: %s", few(w))
	}
	if l := without(open["fs.shared.list"], open["fs.shared.write"]); len(l) > 0 {
		say("can read shared storage: %s", few(l))
	}
	if p := open["net.tcp.out"]; len(p) > 0 {
		say("can connect to outside hosts by TCP: %s", few(p))
	} else if any("net.tcp.canary", "net.tcp.fastopen", "net.mptcp") {
		say("can connect by TCP to whatever this node reaches (the canary answered)")
	}
	if p := open["net.tcp.cluster"]; len(p) > 0 {
		say("can connect to other machines of the cluster: %s", few(p))
	}
	switch {
	case any("net.udp.out", "net.udp.canary", "net.dns.udp"):
		say("can send UDP, DNS queries among it (%s)", few(slices.Concat(open["net.udp.out"], open["net.udp.canary"], open["net.dns.udp"])))
	case any("net.udp.socket"):
		say("can open UDP sockets")
	}
	if any("net.metadata") {
		say("can reach the cloud's metadata service, which hands out credentials: %s", few(open["net.metadata"]))
	}
	if any("net.rdma") {
		say("can use the RDMA network past the kernel: %s", few(open["net.rdma"]))
	}
	if c := open["cred.files"]; len(c) > 0 {
		say("can read %s: %s", count(len(c), "file of keys or tokens"), few(c))
	}
	if c := open["cred.env"]; len(c) > 0 {
		say("has %s in its environment: %s", count(len(c), "credential"), few(c))
	}
	if c := open["cred.files.write"]; len(c) > 0 {
		say("can plant code or keys for the next login: %s", few(c))
	}
	if any("proc.signal") {
		say("can signal this user's other processes, the harness among them")
	}
	if any("proc.environ", "proc.mem", "proc.root", "proc.kcmp") {
		say("can read the memory, environment and files of this user's other processes")
	}
	if d := daemons(open["ipc.unix"]); len(d) > 0 {
		say("can talk to daemons that run commands for it: %s", few(d))
	}
	if any("dev.tty") {
		say("can type into the terminal that it was started from")
	}
	if any("sys.unshare.user", "sys.clone.user") {
		say("can make user namespaces, where most kernel holes begin")
	}
	if d := slices.Concat(open["dev.kvm"], open["dev.block"], open["dev.mem"], open["dev.shmem"]); len(d) > 0 {
		say("can open devices that lead past the kernel's rules: %s", few(d))
	}
	return out
}

// daemons are those of the sockets whose owners run what they are asked to.
func daemons(paths []string) []string {
	var out []string
	for _, p := range paths {
		for _, w := range []string{"docker", "podman", "containerd", "crio", "buildkit", "systemd/private", "/bus", "dbus", "tmux", "screen", "vscode"} {
			if strings.Contains(p, w) {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

func without(list, drop []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(drop, s) })
}

// few lists up to four.
func few(list []string) string {
	list = dedupe(list)
	if len(list) > 4 {
		return strings.Join(list[:4], ", ") + fmt.Sprintf(" and %d more", len(list)-4)
	}
	return strings.Join(list, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if head, tail, ok := strings.Cut(what, " of "); ok {
		return fmt.Sprintf("%d %ss of %s", n, head, tail)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
