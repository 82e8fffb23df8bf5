package probe

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ctlChecks are group A: what is in force on this process. They are facts,
// not attempts; Controls holds the same in a form for programs.
func ctlChecks() []Check {
	return []Check{
		{
			ID: "ctl.user", Group: "ctl", Severity: "info", Worker: classSelf, try: ctlUser,
			What: "reads uid, gid, groups, capability sets, securebits, umask and limits of the process",
			Why:  "a fence drops capabilities; the cluster's umask 0002 breaks tasks that expect 0022",
		}, {
			ID: "ctl.nnp", Group: "ctl", Severity: "info", Worker: classSelf, try: ctlNNP,
			What: "prctl(PR_GET_NO_NEW_PRIVS)",
			Why:  "without it a setuid program of the node gives new rights",
		}, {
			ID: "ctl.seccomp", Group: "ctl", Severity: "info", Worker: classSelf, try: ctlSeccomp,
			What: "reads Seccomp and Seccomp_filters from /proc/self/status",
			Why:  "a system-call filter closes what Landlock does not cover: UDP, mounts, ptrace",
		}, {
			ID: "ctl.seccomp.listener", Group: "ctl", Severity: "info", Worker: classListener, try: ctlListener,
			What: "in a child, installs a filter that allows everything and asks for a notification descriptor; EBUSY means that a supervisor has one already",
			Why:  "shows that a loopback or logging supervisor is attached",
		}, {
			ID: "ctl.landlock.abi", Group: "ctl", Severity: "info", Worker: classLandlock, try: ctlLandlockABI,
			What: "landlock_create_ruleset(NULL, 0, VERSION) and (ERRATA)",
			Why:  "says which rights this kernel can take away: 4 TCP, 5 device ioctl, 6 scopes, 9 Unix paths, 10 UDP",
		}, {
			ID: "ctl.landlock.layers", Group: "ctl", Severity: "info", Worker: classLandlock, try: ctlLandlockLayers,
			What: "in a child, stacks rulesets until the kernel's limit of 16; what is missing to 16 was in force before",
			Why:  "the only direct proof that this process is landlocked",
		}, {
			ID: "ctl.lsm", Group: "ctl", Severity: "info", Worker: classSelf, try: ctlLSM,
			What: "reads the list of security modules, the process's label and Yama's ptrace scope",
			Why:  "SELinux, AppArmor and Yama refuse things too; a fence must not take the credit",
		}, {
			ID: "ctl.ns", Group: "ctl", Severity: "info", Worker: classSelf, targets: to(namespaces...), try: ctlNS,
			What: "reads the inode of /proc/self/ns/NAME, to compare with the host's",
			Why:  "the host's network, pid and ipc namespaces lead to other people's processes",
		}, {
			ID: "ctl.sysctl", Group: "ctl", Severity: "info", Worker: classSelf, targets: to(sysctls...), try: ctlSysctl,
			What: "reads one kernel setting",
			Why:  "says which forms of fence this node can have, and which doors the site shut",
		}, {
			ID: "ctl.fds", Group: "ctl", Severity: "high", Attack: []string{"T1611"}, Worker: classFDs, try: ctlFDs,
			What: "looks for a descriptor that came through exec: one beyond 0-2, or a directory or network socket among them",
			Why:  "an inherited directory or socket beats every rule about paths and addresses",
		}, {
			ID: "ctl.fd", Group: "ctl", Severity: "info", Worker: classFDs, targets: fdTargets, try: ctlFD,
			none: nothing(Info, "the descriptors could not be listed"),
			What: "the type of one inherited descriptor and, of a socket, its family",
			Why:  "shows what ctl.fds rests on",
		}, {
			ID: "ctl.cgroup", Group: "ctl", Severity: "info", Worker: classSelf, try: ctlCgroup,
			What: "reads /proc/self/cgroup and the memory, process and cpu limits of that group",
			Why:  "the scheduler's limits are the last bound on a runaway command",
		}, {
			ID: "ctl.runtime", Group: "ctl", Severity: "info", Worker: classSelf, try: ctlRuntime,
			What: "names the container runtime, gVisor and the hypervisor by the marks they leave",
			Why:  "says what the other answers are about",
		},
	}
}

func info(format string, args ...any) Finding {
	return Finding{Outcome: Info, Evidence: fmt.Sprintf(format, args...)}
}

func ctlUser(*site, string) Finding {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: err.Error()}
	}
	text := string(data)
	// The umask comes from the same file: umask(2) cannot ask without setting.
	parts := []string{fmt.Sprintf("uid %d gid %d groups %s umask %s", os.Getuid(), os.Getgid(), statusField(text, "Groups"), statusField(text, "Umask"))}
	for _, c := range []string{"Inh", "Prm", "Eff", "Bnd", "Amb"} {
		parts = append(parts, "Cap"+c+" "+cmpOr(strings.TrimLeft(statusField(text, "Cap"+c), "0"), "0"))
	}
	if bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0); err == nil {
		parts = append(parts, fmt.Sprintf("securebits %#x", bits))
	}
	for _, l := range []struct {
		name string
		n    int
	}{{"nofile", unix.RLIMIT_NOFILE}, {"nproc", unix.RLIMIT_NPROC}, {"memlock", unix.RLIMIT_MEMLOCK}, {"fsize", unix.RLIMIT_FSIZE}, {"as", unix.RLIMIT_AS}} {
		var r unix.Rlimit
		if unix.Getrlimit(l.n, &r) == nil {
			v := fmt.Sprint(r.Cur)
			if r.Cur == unix.RLIM_INFINITY {
				v = "unlimited"
			}
			parts = append(parts, l.name+" "+v)
		}
	}
	return info("%s", strings.Join(parts, ", "))
}

func ctlNNP(*site, string) Finding {
	n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return Finding{Outcome: Error, Syscall: "prctl", Errno: errnoName(errnoOf(err)), Evidence: sysErr("prctl(PR_GET_NO_NEW_PRIVS)", errnoOf(err))}
	}
	return info("no_new_privs %d", n)
}

func ctlSeccomp(s *site, _ string) Finding {
	c := s.Controls.Seccomp
	word := map[int]string{0: "none", 1: "strict", 2: "filter"}[c.Mode]
	return info("mode %d (%s), %d filters", c.Mode, word, c.Filters)
}

func ctlLSM(*site, string) Finding {
	var parts []string
	if data, err := os.ReadFile("/sys/kernel/security/lsm"); err == nil {
		parts = append(parts, "modules "+strings.TrimSpace(string(data)))
	} else if ids, e := lsmModules(); e == 0 {
		parts = append(parts, "modules "+strings.Join(ids, ","))
	} else {
		parts = append(parts, "modules not told ("+errnoName(e)+")")
	}
	if data, err := os.ReadFile("/proc/self/attr/current"); err == nil {
		parts = append(parts, "label "+strings.Trim(string(data), "\x00\n "))
	}
	if data, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil {
		parts = append(parts, "yama.ptrace_scope "+strings.TrimSpace(string(data)))
	} else {
		parts = append(parts, "no yama")
	}
	return info("%s", strings.Join(parts, "; "))
}

// initialNS are the inodes of the namespaces that a node boots with.
var initialNS = map[string]uint64{"user": 4026531837, "pid": 4026531836, "uts": 4026531838, "ipc": 4026531839, "time": 4026531834, "cgroup": 4026531835}

func ctlNS(s *site, name string) Finding {
	n, ok := s.Controls.Namespaces[name]
	if !ok {
		return Finding{Outcome: Absent, Evidence: "/proc/self/ns/" + name + " cannot be read"}
	}
	first, known := initialNS[name]
	switch {
	case known && first == n:
		return info("inode %d, the node's own", n)
	case known:
		return info("inode %d, not the node's own", n)
	}
	return info("inode %d", n)
}

// sysctls are read by name; a site may lack any of them.
var sysctls = []string{
	"user.max_user_namespaces", "user.max_net_namespaces", "user.max_mnt_namespaces", "user.max_pid_namespaces",
	"kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns", "kernel.io_uring_disabled",
	"kernel.unprivileged_bpf_disabled", "kernel.perf_event_paranoid", "vm.unprivileged_userfaultfd", "dev.tty.legacy_tiocsti",
	"net.ipv4.tcp_fastopen", "net.mptcp.enabled", "net.ipv4.ping_group_range", "kernel.dmesg_restrict", "kernel.keys.maxkeys",
}

func ctlSysctl(_ *site, name string) Finding {
	data, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return info("not set here (%s)", errnoName(errnoOf(err)))
	}
	return info("%s", strings.Join(strings.Fields(string(data)), " "))
}

func ctlCgroup(s *site, _ string) Finding {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return info("/proc/self/cgroup cannot be read (%s)", errnoName(errnoOf(err)))
	}
	parts := []string{strings.Join(strings.Fields(string(data)), " ")}
	for _, dir := range s.cgroupDirs() {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes", "pids.max", "cpuset.cpus.effective", "cpuset.cpus"} {
			if data, err := os.ReadFile(path.Join(dir, name)); err == nil {
				parts = append(parts, name+"="+strings.TrimSpace(string(data)))
			}
		}
	}
	return info("%s", strings.Join(parts, "; "))
}

// cgroupDirs are the folders of this process's own control groups.
func (s *site) cgroupDirs() []string {
	data, err := os.ReadFile("/proc/self/cgroup")
	ms, err2 := s.mounts()
	if err != nil || err2 != nil {
		return nil
	}
	return cgroupDirs(string(data), ms)
}

func cgroupDirs(own string, ms []mount) []string {
	var dirs []string
	for _, l := range strings.Split(own, "\n") {
		parts := strings.SplitN(l, ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, m := range ms {
			v2 := parts[1] == "" && m.FS == "cgroup2"
			v1 := parts[1] != "" && m.FS == "cgroup" && slices.Contains(strings.Split(m.Super, ","), strings.TrimPrefix(strings.Split(parts[1], ",")[0], "name="))
			if !v1 && !v2 {
				continue
			}
			rel, ok := strings.CutPrefix(parts[2], strings.TrimSuffix(m.Root, "/"))
			if !ok {
				rel = ""
			}
			dirs = append(dirs, path.Join(m.Point, rel))
		}
	}
	return dedupe(dirs)
}

func ctlRuntime(s *site, _ string) Finding {
	parts := []string{"container " + orNone(s.container())}
	if data, err := os.ReadFile("/proc/version"); err == nil && strings.Contains(string(data), "gVisor") {
		parts = append(parts, "gVisor")
	}
	for _, f := range []string{"sys_vendor", "product_name"} {
		if data, err := os.ReadFile("/sys/class/dmi/id/" + f); err == nil {
			parts = append(parts, f+" "+strings.TrimSpace(string(data)))
		}
	}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil && strings.Contains(string(data), " hypervisor") {
		parts = append(parts, "the cpu says hypervisor")
	}
	return info("%s", strings.Join(parts, "; "))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// openFD says whether an inherited descriptor is a way past the rules.
func openFD(i inherited, st *unix.Stat_t, family int) bool {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return true
	case i.FD > 2:
		return true
	}
	return family >= 0 && family != unix.AF_UNIX
}

// lookFD is the type of a descriptor and, of a socket, its family (-1 for
// none) and what it leads to.
func lookFD(i inherited) (st unix.Stat_t, family int, text string, err error) {
	fd := i.FD
	if i.Copy != 0 {
		fd = i.Copy
	} else if fd < 3 {
		return st, -1, "", unix.EBADF
	}
	if err = unix.Fstat(fd, &st); err != nil {
		return st, -1, "", err
	}
	family = -1
	kind := map[uint32]string{
		unix.S_IFREG: "file", unix.S_IFDIR: "directory", unix.S_IFCHR: "character device", unix.S_IFBLK: "block device",
		unix.S_IFIFO: "pipe", unix.S_IFSOCK: "socket",
	}[st.Mode&unix.S_IFMT]
	if kind == "" {
		kind = "anonymous inode"
	}
	text = kind
	if kind == "socket" {
		if family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
			family = unix.AF_UNSPEC
		}
		text += fmt.Sprintf(" family %d", family)
		if sa, err := unix.Getsockname(fd); err == nil {
			text += " at " + sockaddrText(sa)
		}
		if sa, err := unix.Getpeername(fd); err == nil {
			text += " to " + sockaddrText(sa)
		}
	}
	return st, family, text, nil
}

func ctlFDs(s *site, _ string) Finding {
	if len(s.Inherited) == 0 {
		return Finding{Outcome: Error, Evidence: "/proc/self/fd could not be read"}
	}
	var ways, all []string
	for _, i := range s.Inherited {
		st, family, text, err := lookFD(i)
		all = append(all, fmt.Sprint(i.FD))
		switch {
		case err != nil && i.FD > 2:
			ways = append(ways, fmt.Sprintf("%d (%s)", i.FD, errnoName(errnoOf(err))))
		case err == nil && openFD(i, &st, family):
			ways = append(ways, fmt.Sprintf("%d is a %s", i.FD, text))
		}
	}
	if len(ways) > 0 {
		return Finding{Outcome: Reachable, Evidence: strings.Join(ways, "; ")}
	}
	return Finding{Outcome: Absent, Evidence: "inherited only " + strings.Join(all, " ") + ", none a directory or network socket"}
}

func fdTargets(s *site) []string {
	var out []string
	for _, i := range s.Inherited {
		out = append(out, fmt.Sprint(i.FD))
	}
	return out
}

func ctlFD(s *site, target string) Finding {
	for _, i := range s.Inherited {
		if fmt.Sprint(i.FD) != target {
			continue
		}
		_, _, text, err := lookFD(i)
		if err != nil {
			return info("%s (%s)", i.Link, errnoName(errnoOf(err)))
		}
		return info("%s, %s", text, i.Link)
	}
	return Finding{Outcome: Error, Evidence: "BUG: no such descriptor"}
}
