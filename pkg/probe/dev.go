package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// devChecks are group E.
func devChecks() []Check {
	each := func(c Check, patterns ...string) Check {
		c.Group, c.Worker = "dev", classDev
		if c.try == nil {
			c.try = tryDevice
		}
		if patterns != nil {
			c.targets = devices(patterns...)
		}
		if c.What == "" {
			c.What = "opens and closes " + strings.Join(patterns, " ") + ", and asks nothing of it"
		}
		return c
	}
	return []Check{
		each(Check{ID: "dev.gpu", Severity: "medium", Attack: []string{"T1496"},
			Why: "a large driver in the kernel, and other people's memory where the site shares cards"},
			"/dev/nvidiactl", "/dev/nvidia[0-9]*", "/dev/nvidia-uvm", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/renderD*"),
		each(Check{ID: "dev.gpu.count", Severity: "info", try: gpuCount,
			What: "counts the GPUs and compares with what Slurm gave the job", Why: "without device control a job sees its neighbours' cards"}),
		each(Check{ID: "dev.mps", Severity: "medium", targets: mpsTargets,
			What: "opens the control pipe of the GPU sharing daemon, and writes nothing", Why: "its clients share one GPU context across sessions"}),
		each(Check{ID: "dev.gds", Severity: "high", Attack: []string{"T1006"}, Why: "reads storage past the filesystem"}, "/dev/nvidia-fs*"),
		each(Check{ID: "dev.shmem", Severity: "high", Attack: []string{"T1055"}, Why: "maps the memory of other processes"}, "/dev/xpmem", "/dev/knem"),
		each(Check{ID: "dev.fuse", Severity: "low", Why: "a filesystem of one's own making: attack surface"}, "/dev/fuse"),
		each(Check{ID: "dev.kvm", Severity: "medium", Attack: []string{"T1564.006"}, Why: "a machine of one's own, with a kernel that no fence sees"}, "/dev/kvm"),
		each(Check{ID: "dev.tun", Severity: "medium", Attack: []string{"T1572"}, Why: "a network interface of one's own"}, "/dev/net/tun"),
		each(Check{ID: "dev.loop", Severity: "medium", Attack: []string{"T1611"}, Why: "mounts what it likes, given the rights"}, "/dev/loop-control", "/dev/loop0"),
		each(Check{ID: "dev.vhost", Severity: "medium", Attack: []string{"T1611"}, Why: "attack surface in the kernel"}, "/dev/vhost-net", "/dev/vhost-vsock"),
		each(Check{ID: "dev.mem", Severity: "high", Attack: []string{"T1003"}, Why: "the machine's memory"}, "/dev/mem", "/dev/port"),
		each(Check{ID: "dev.kmsg", Severity: "low", Attack: []string{"T1082"}, Why: "the kernel's log: addresses, and what other jobs broke"}, "/dev/kmsg"),
		each(Check{ID: "dev.block", Severity: "high", Attack: []string{"T1006"}, Why: "the disks themselves, past every permission"},
			"/dev/sd[a-z]", "/dev/vd[a-z]", "/dev/xvd[a-z]", "/dev/nvme*n[0-9]", "/dev/dm-[0-9]", "/dev/md[0-9]"),
		each(Check{ID: "dev.userfaultfd", Severity: "low", Attack: []string{"T1068"}, Why: "makes kernel races winnable"}, "/dev/userfaultfd"),
		each(Check{ID: "dev.unopened", Severity: "low", targets: unopenedTargets, try: modeOnly,
			none: nothing(Absent, "none of the devices that only to open does something is here"),
			What: "reads the mode of devices that to open would do something: watchdogs, tapes, serial lines, generic SCSI, screens, the memory image",
			Why:  "they are told by their permissions alone, and never opened"}),
		each(Check{ID: "dev.pty", Severity: "info", try: devPTY,
			What: "opens /dev/ptmx and its terminal: it must work", Why: "tmux, script and ssh need it"}),
		each(Check{ID: "dev.tty", Severity: "high", Attack: []string{"T1056", "T1611"}, try: devTTY,
			What: "ioctl(TIOCSTI, NULL) on the controlling terminal: EFAULT means that keys could be typed into it",
			Why:  "types commands into the shell of whoever started the job"}),
	}
}

// neverOpen are files that do something when opened.
func neverOpen(p string) bool {
	p = filepath.Clean(p)
	for _, prefix := range []string{
		"/dev/watchdog", "/dev/st", "/dev/nst", "/dev/ttyS", "/dev/ttyUSB", "/dev/sg", "/dev/snapshot", "/dev/lp", "/dev/rtc",
		"/dev/infiniband/issm", "/dev/dri/card", "/proc/kcore", "/sys/kernel/debug/", "/sys/kernel/tracing/",
	} {
		if strings.HasPrefix(p, prefix) && p != "/dev/stdin" && p != "/dev/stdout" && p != "/dev/stderr" {
			return true
		}
	}
	return p == "/sys/kernel/debug"
}

func unopenedTargets(s *site) []string {
	var out []string
	for _, p := range []string{"/dev/watchdog*", "/dev/st[0-9]*", "/dev/nst*", "/dev/ttyS*", "/dev/ttyUSB*", "/dev/sg*", "/dev/snapshot", "/dev/lp*", "/dev/rtc*", "/dev/dri/card*", "/proc/kcore", "/sys/kernel/debug"} {
		found := s.matches(p)
		out = append(out, found[:min(len(found), 4)]...)
	}
	return out
}

func modeOnly(s *site, p string) Finding {
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
	}
	f := info("mode %o uid %d gid %d; not opened", st.Mode&0o7777, st.Uid, st.Gid)
	if dacAllows(p, unix.R_OK) || dacAllows(p, unix.W_OK) {
		f.Evidence += "; the permissions would allow it"
	}
	return f
}

// devices makes the targets of patterns: what matches, or the pattern itself
// where nothing does.
func devices(patterns ...string) func(*site) []string {
	return func(s *site) []string {
		var out []string
		for _, p := range patterns {
			out = append(out, s.expand(p)...)
		}
		return out
	}
}

func rdmaTargets(s *site) []string {
	return devices("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm", "/dev/infiniband/umad*", "/dev/cxi*", "/dev/hfi1_*", "/sys/class/infiniband")(s)
}

// readOnlyDevices are opened for reading alone.
var readOnlyDevices = []string{"/dev/mem", "/dev/port", "/dev/kmsg"}

// tryDevice opens and closes whatever is at a path.
func tryDevice(s *site, p string) Finding {
	if unmatched(p) {
		return s.noMatch(p)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return s.unixFinding(p, false)
	case unix.S_IFCHR:
		if slices.Contains(readOnlyDevices, p) {
			return s.openNothing(p, unix.O_RDONLY, st.Mode)
		}
		return s.openNothing(p, unix.O_RDWR, st.Mode)
	case unix.S_IFIFO:
		return s.openNothing(p, unix.O_WRONLY, st.Mode)
	}
	return s.openNothing(p, unix.O_RDONLY, st.Mode)
}

func gpuCount(s *site, _ string) Finding {
	cards, render := s.matches("/dev/nvidia[0-9]*"), s.matches("/dev/dri/renderD*")
	given := "no SLURM_JOB_GPUS"
	if v, ok := os.LookupEnv("SLURM_JOB_GPUS"); ok {
		given = fmt.Sprintf("Slurm gave %d", len(strings.FieldsFunc(v, func(r rune) bool { return r == ',' })))
	}
	return info("%d NVIDIA cards, %d render nodes, %s", len(cards), len(render), given)
}

func mpsTargets(*site) []string {
	list := []string{"/tmp/nvidia-mps/control"}
	if d := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); filepath.IsAbs(d) {
		list = append(list, filepath.Join(d, "control"))
	}
	return list
}

// openPTY opens a new pseudo-terminal and its other end.
func openPTY() (master, slave int, st step) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, step{"open /dev/ptmx", errnoOf(err)}
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		unix.Close(master)
		return -1, -1, step{"ioctl(TIOCSPTLCK)", errnoOf(err)}
	}
	n, err := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	if err != nil {
		unix.Close(master)
		return -1, -1, step{"ioctl(TIOCGPTN)", errnoOf(err)}
	}
	slave, err = unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(master)
		return -1, -1, step{"open its terminal", errnoOf(err)}
	}
	return master, slave, step{}
}

func devPTY(s *site, _ string) Finding {
	m, t, st := openPTY()
	if st.e != 0 {
		f := s.pathFinding("/dev/ptmx", unix.R_OK|unix.W_OK, st.call, st.e)
		return f
	}
	defer unix.Close(m)
	defer unix.Close(t)
	if _, err := unix.IoctlGetTermios(t, unix.TCGETS); err != nil {
		return s.pathFinding("/dev/ptmx", unix.R_OK, "ioctl(TCGETS)", errnoOf(err))
	}
	return Finding{Outcome: Reachable, Syscall: "open", Evidence: "a terminal was opened, and answers TCGETS"}
}

func devTTY(s *site, _ string) Finding {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|openFlags, 0)
	if err != nil {
		f := s.pathFinding("/dev/tty", unix.R_OK|unix.W_OK, "open", errnoOf(err))
		if err == unix.ENXIO {
			f.Evidence = "this process has no controlling terminal"
		}
		return f
	}
	defer unix.Close(fd)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, 0)
	return ttyFinding(s.facts, e)
}

// ttyFinding reads the errno of TIOCSTI with a null pointer.
func ttyFinding(f facts, e syscall.Errno) Finding {
	r := Finding{Errno: errnoName(e), Syscall: "ioctl", Evidence: sysErr("ioctl(tty, TIOCSTI, NULL)", e)}
	switch e {
	case unix.EFAULT, 0:
		r.Outcome = Reachable
	case unix.EIO:
		r.Outcome, r.Mechanism = Denied, "sysctl"
	default:
		r.Outcome, r.Mechanism = judgeCall(f, e, false)
		if r.Outcome == Reachable { // ENOTTY and the like: no terminal to type into
			r.Outcome = Absent
		}
	}
	return r
}
