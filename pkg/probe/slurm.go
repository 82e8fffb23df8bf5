package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// slurmChecks are group H. The last of them are computed from the others.
func slurmChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Worker = "slurm", cmpOr(c.Worker, classSlurm)
		return c
	}
	return []Check{
		each(Check{
			ID: "slurm.conf", Severity: "low", Attack: []string{"T1016"}, targets: to(confPaths()...), try: slurmConfFile,
			What: "opens Slurm's configuration where its clients look for it",
			Why:  "names the controller, the nodes and the ports",
		}),
		each(Check{
			ID: "slurm.conf.server", Severity: "low", Attack: []string{"T1016"}, Worker: classNetOut, targets: to("SLURM_CONF_SERVER", "SRV _slurmctld._tcp"), try: slurmConfServer,
			What: "looks for a configuration server in the environment and, where no file is, in DNS",
			Why:  "a client without a file asks there",
		}),
		each(Check{
			ID: "slurm.clients", Severity: "low", Attack: []string{"T1072"}, targets: to("sbatch", "srun", "salloc", "scontrol", "scancel"), try: slurmClient,
			What: "looks for Slurm's commands in PATH, and runs none",
			Why:  "convenient, though not needed, to submit a job",
		}),
		each(Check{
			ID: "slurm.munge", Severity: "high", Attack: []string{"T1550"}, targets: mungeTargets, try: ipcUnix,
			What: "connects to munge's socket and hangs up",
			Why:  "munge believes whoever connects: to connect is to be this user everywhere in the cluster",
		}),
		each(Check{
			ID: "slurm.sack", Severity: "high", Attack: []string{"T1550"}, targets: sackTargets, try: ipcUnix,
			What: "connects to the sockets of auth/slurm and hangs up",
			Why:  "it took munge's place in 23.11",
		}),
		each(Check{
			ID: "slurm.jwt", Severity: "high", Attack: []string{"T1550.001"}, Worker: classSelf, targets: to("SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS"), try: credEnvOne,
			What: "looks for Slurm's tokens in the environment; tells the length",
			Why:  "a token submits jobs from anywhere",
		}),
		each(Check{
			ID: "slurm.stepd", Severity: "high", Attack: []string{"T1489"}, targets: stepdTargets, try: ipcUnix,
			none: nothing(Absent, "no socket of a job step in the spool folder"),
			What: "connects to the sockets of job steps in slurmd's spool folder and hangs up",
			Why:  "controls the step: its signals, its output, its processes",
		}),
		each(Check{
			ID: "slurm.ctld", Severity: "high", Attack: []string{"T1046"}, Worker: classNetOut, targets: ctldTargets, try: tcpOut,
			none: noTarget(unix.SOCK_STREAM, "no slurm.conf names a controller"),
			What: "connects by TCP to the controllers that slurm.conf names, sending nothing",
			Why:  "takes jobs from whoever has an identity",
		}),
		each(Check{
			ID: "slurm.restd", Severity: "high", Attack: []string{"T1046"}, Worker: classNetOut, targets: restdTargets, try: tcpOut,
			none: noTarget(unix.SOCK_STREAM, "no slurm.conf names a controller"),
			What: "connects by TCP to port 6820 of the controllers, sending nothing",
			Why:  "takes jobs from whoever has a token",
		}),
		each(Check{
			ID: "slurm.env", Severity: "info", Worker: classSelf, try: slurmEnv,
			What: "counts the SLURM_ variables", Why: "names of nodes, paths and ports",
		}),
		each(Check{
			ID: "pmix.server", Severity: "medium", Attack: []string{"T1559"}, Worker: classSelf, try: pmixServer,
			What: "looks for PMIX_SERVER_ variables and a PMI descriptor",
			Why:  "the channel of the job's launcher",
		}),
		each(Check{
			ID: "slurm.submit", Severity: "high", Attack: []string{"T1053", "T1072"}, Worker: classNone,
			What: "computed: an identity (munge, sack or token), a controller or REST server that answers, and a configuration",
			Why:  "a command that can submit a job is outside every fence as soon as the job starts",
		}),
		each(Check{
			ID: "ssh.lateral", Severity: "high", Attack: []string{"T1021.004"}, Worker: classNone,
			What: "computed: an ssh agent, a key or host-based login, and port 22 of another node that answers",
			Why:  "on the next node there is no fence",
		}),
		each(Check{
			ID: "ssh.keysign", Severity: "medium", Attack: []string{"T1021.004"}, try: sshKeysign,
			What: "looks for ssh-keysign with its setuid bit, and shosts.equiv", Why: "host-based login: the node vouches for the user",
		}),
	}
}

// confPaths is where Slurm's clients look.
func confPaths() []string {
	list := []string{"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/usr/local/etc/slurm.conf"}
	if p := os.Getenv("SLURM_CONF"); filepath.IsAbs(p) {
		list = append([]string{path.Clean(p)}, list...)
	}
	return dedupe(list)
}

func slurmConfFile(s *site, p string) Finding {
	if !isRegular(p) {
		var st unix.Stat_t
		if err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_NO_AUTOMOUNT); err != nil {
			return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
		}
		if s.isNull(p) {
			return Finding{Outcome: Absent, Mechanism: "masked", Evidence: "/dev/null lies over it"}
		}
		return Finding{Outcome: Absent, Evidence: "not a file"}
	}
	f := s.openRead(p)
	f.Evidence = strings.Replace(f.Evidence, ", nothing read", "", 1) // it is read for the names of the daemons
	return f
}

// slurmConf is what of slurm.conf leads to other machines.
type slurmConf struct {
	controllers []string // hosts
	ctldPort    string
	slurmdPort  string
	storage     string // host of slurmdbd
	storagePort string
	spool       string
	munge       string // a socket of another name
}

// conf reads the first slurm.conf there is. It is world-readable by design
// and holds no secret.
func (s *site) conf() slurmConf {
	s.confOnce.Do(func() {
		for _, p := range confPaths() {
			if !isRegular(p) {
				continue
			}
			if data, err := os.ReadFile(p); err == nil {
				s.confVal = parseSlurmConf(string(data))
				return
			}
		}
		s.confVal = parseSlurmConf("")
	})
	return s.confVal
}

func parseSlurmConf(text string) slurmConf {
	c := slurmConf{ctldPort: "6817", slurmdPort: "6818", storagePort: "6819", spool: "/var/spool/slurmd"}
	for _, l := range strings.Split(text, "\n") {
		l, _, _ = strings.Cut(l, "#")
		k, v, ok := strings.Cut(strings.TrimSpace(l), "=")
		if !ok || strings.ContainsAny(k, " \t") {
			continue
		}
		v = strings.Trim(strings.TrimSpace(v), `"`)
		switch strings.ToLower(strings.TrimSpace(k)) {
		case "slurmctldhost", "controlmachine", "backupcontroller":
			host, addr, has := strings.Cut(v, "(") // name(address)
			if has {
				host = strings.TrimSuffix(addr, ")")
			}
			if host = strings.TrimSpace(host); host != "" && !strings.ContainsAny(host, " /") {
				c.controllers = append(c.controllers, host)
			}
		case "slurmctldport":
			c.ctldPort, _, _ = strings.Cut(v, "-") // a range: the first
		case "slurmdport":
			c.slurmdPort = v
		case "accountingstoragehost":
			c.storage = v
		case "accountingstorageport":
			c.storagePort = v
		case "authinfo":
			for _, o := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ';' }) {
				if p, ok := strings.CutPrefix(strings.TrimSpace(o), "socket="); ok && filepath.IsAbs(p) {
					c.munge = path.Clean(p)
				}
			}
		case "slurmdspooldir":
			if filepath.IsAbs(v) && !strings.Contains(v, "%") {
				c.spool = v
			}
		}
	}
	return c
}

// hostPorts joins hosts with a port, leaving out what makes no address.
func hostPorts(hosts []string, port string) []string {
	var out []string
	for _, h := range hosts {
		if hp := net.JoinHostPort(h, port); checkHostPort(hp) == nil {
			out = append(out, hp)
		}
	}
	return out
}

func ctldTargets(s *site) []string  { return hostPorts(s.conf().controllers, s.conf().ctldPort) }
func restdTargets(s *site) []string { return hostPorts(s.conf().controllers, "6820") }

// clusterTargets are other machines of the cluster, by what names them to
// anybody: slurm.conf, the job's variables, and mounts.
func clusterTargets(s *site) []string {
	ms, _ := s.mounts()
	own, _ := os.Hostname()
	return clusterList(s.conf(), os.Getenv, ms, own)
}

// maxCluster bounds the machines that are tried.
const maxCluster = 24

func clusterList(c slurmConf, getenv func(string) string, ms []mount, own string) []string {
	var out []string
	ssh := func(host string) {
		if host != "" && host != own && host != "localhost" {
			out = append(out, hostPorts([]string{host}, "22")...)
		}
	}
	ssh(getenv("SLURM_SUBMIT_HOST"))
	for _, h := range expandHosts(getenv("SLURM_JOB_NODELIST")) {
		ssh(h)
	}
	for _, h := range c.controllers {
		ssh(h)
	}
	if c.storage != "" {
		out = append(out, hostPorts([]string{c.storage}, c.storagePort)...)
	}
	if own != "" && len(c.controllers) > 0 {
		out = append(out, hostPorts([]string{own}, c.slurmdPort)...)
	}
	for _, m := range ms {
		if m.FS != "nfs" && m.FS != "nfs4" {
			continue
		}
		if host, _, ok := strings.Cut(m.Source, ":/"); ok {
			out = append(out, hostPorts([]string{strings.Trim(host, "[]")}, "2049")...)
		}
	}
	out = dedupe(out)
	return out[:min(len(out), maxCluster)]
}

// expandHosts lists the first names of a host list such as "n[01-03,7],gpu2".
func expandHosts(list string) []string {
	var out []string
	depth, start := 0, 0
	for i := 0; i <= len(list); i++ {
		switch {
		case i < len(list) && list[i] == '[':
			depth++
		case i < len(list) && list[i] == ']':
			depth--
		case i == len(list) || list[i] == ',' && depth == 0:
			name := list[start:i]
			start = i + 1
			head, rest, ok := strings.Cut(name, "[")
			if ok {
				first, tail, _ := strings.Cut(rest, "]")
				for _, r := range strings.Split(first, ",") {
					lo, _, _ := strings.Cut(r, "-")
					out = append(out, head+lo+tail)
				}
				continue
			}
			if name != "" {
				out = append(out, name)
			}
		}
	}
	return out[:min(len(out), 4)]
}

func slurmConfServer(s *site, target string) Finding {
	if target == "SLURM_CONF_SERVER" {
		if os.Getenv(target) == "" {
			return Finding{Outcome: Absent, Evidence: "not set"}
		}
		return Finding{Outcome: Reachable, Evidence: "set"}
	}
	if f, ok := s.refused(unix.SOCK_DGRAM); ok {
		return f
	}
	if len(nameservers(s)) == 0 {
		return Finding{Outcome: Absent, Evidence: "resolv.conf names no server to ask"}
	}
	if len(s.conf().controllers) > 0 {
		return Finding{Outcome: Skipped, Evidence: "a file names the controller, so no client would ask"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectWait)
	defer cancel()
	_, srv, err := (&net.Resolver{PreferGo: true}).LookupSRV(ctx, "slurmctld", "tcp", "")
	var dns *net.DNSError
	switch {
	case err == nil && len(srv) > 0:
		return Finding{Outcome: Reachable, Evidence: fmt.Sprintf("DNS names %d configuration servers", len(srv))}
	case err == nil, errors.As(err, &dns) && dns.IsNotFound:
		return Finding{Outcome: Absent, Evidence: "DNS knows none"}
	}
	return Finding{Outcome: Unreachable, Mechanism: loMechanism(s.network(), ""), Evidence: "DNS: " + err.Error()}
}

func slurmClient(_ *site, name string) Finding {
	p, err := exec.LookPath(name)
	if err != nil {
		return Finding{Outcome: Absent, Evidence: "not in PATH"}
	}
	return Finding{Outcome: Reachable, Evidence: p}
}

func mungeTargets(s *site) []string {
	return []string{"/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2", s.conf().munge} // "" is dropped
}

func sackTargets(s *site) []string {
	var out []string
	if p := os.Getenv("SLURM_SACK_SOCKET"); filepath.IsAbs(p) {
		out = append(out, path.Clean(p))
	}
	for _, p := range []string{"/run/slurm/sack.socket", "/run/slurm-*/sack.socket", "/run/slurmctld/sack.socket", "/run/slurmdbd/sack.socket"} {
		out = append(out, s.expand(p)...)
	}
	return out
}

func stepdTargets(s *site) []string {
	var out []string
	for _, dir := range dedupe([]string{s.conf().spool, "/var/spool/slurmd", "/var/spool/slurm/d", "/var/spool/slurm"}) {
		fd, err := openDir(dir)
		if err != nil {
			continue
		}
		names, _ := someNames(fd)
		unix.Close(fd)
		for _, e := range names {
			if e.kind == unix.DT_SOCK {
				out = append(out, path.Join(dir, e.name))
			}
		}
	}
	slices.Sort(out)
	return out[:min(len(out), 32)]
}

func slurmEnv(*site, string) Finding {
	n := 0
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "SLURM_") {
			n++
		}
	}
	return info("%d SLURM_ variables", n)
}

func pmixServer(*site, string) Finding {
	var names []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PMIX_SERVER_") || name == "PMI_FD" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return Finding{Outcome: Absent, Evidence: "no PMIX_SERVER_ variable and no PMI_FD"}
	}
	return Finding{Outcome: Reachable, Evidence: "set: " + strings.Join(names, " ")}
}

func sshKeysign(*site, string) Finding {
	for _, p := range []string{"/usr/libexec/openssh/ssh-keysign", "/usr/lib/openssh/ssh-keysign", "/usr/lib/ssh/ssh-keysign"} {
		if m := modeOf(p); m&unix.S_ISUID != 0 {
			hosts := modeOf("/etc/ssh/shosts.equiv") != 0
			if !hosts {
				return Finding{Outcome: Absent, Evidence: p + " is setuid, but there is no shosts.equiv"}
			}
			return Finding{Outcome: Reachable, Evidence: p + " is setuid and there is a shosts.equiv"}
		}
	}
	return Finding{Outcome: Absent, Evidence: "no setuid ssh-keysign"}
}
