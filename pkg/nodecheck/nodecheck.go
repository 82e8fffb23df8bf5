// Package nodecheck says what a node can enforce, and why not the rest: for
// people, before anything runs. What the fence applies it finds out by itself.
//
// A protection counts as there because it was tried, never because a version
// number promises it. Trying changes nothing and leaves nothing behind.
package nodecheck

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
)

// Node is what was found. The zero Node can enforce nothing.
type Node struct {
	Kernel     string            `json:"kernel"` // uname -r
	Arch       string            `json:"arch"`   // uname -m
	UID        int               `json:"uid"`
	GID        int               `json:"gid"`
	UIDMap     string            `json:"uid_map"`   // /proc/self/uid_map, lines joined by ", "
	Container  string            `json:"container"` // as host.Container says
	Landlock   host.Landlock     `json:"landlock"`
	Rights     map[string]bool   `json:"landlock_rights"` // every right there is by ABI 11: taken or not
	Seccomp    Seccomp           `json:"seccomp"`
	UserNS     Tried             `json:"user_ns"`
	MountNS    Tried             `json:"mount_ns"` // with a mount changed in it
	NetNS      Tried             `json:"net_ns"`
	IPCNS      Tried             `json:"ipc_ns"`
	PIDNS      Tried             `json:"pid_ns"`
	Yama       int               `json:"yama"`           // kernel.yama.ptrace_scope, -1 without Yama
	LSMs       []string          `json:"lsms,omitempty"` // active security modules, none where it cannot be told
	Sysctls    map[string]string `json:"sysctls"`        // those that matter here and exist
	CapEff     uint64            `json:"cap_eff"`
	CapBnd     uint64            `json:"cap_bnd"`
	NoNewPrivs bool              `json:"no_new_privs"`
	Runsc      string            `json:"runsc,omitempty"` // gVisor's program, if in PATH
	KVM        bool              `json:"kvm"`             // /dev/kvm opens
}

// Seccomp is what seccomp(2) offers.
type Seccomp struct {
	Filter    bool     `json:"filter"`     // filters that return an errno
	UserNotif bool     `json:"user_notif"` // filters that ask a supervisor
	Actions   []string `json:"actions"`
}

// rightNames are Landlock's rights by kind and bit, see host.Rights.
var rightNames = [...][]string{
	{"execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char", "make_dir", "make_reg", "make_sock",
		"make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev", "resolve_unix"},
	{"bind_tcp", "connect_tcp", "bind_udp", "connect_udp"},
	{"scope_abstract_unix", "scope_signal"},
}

// right is one of them, and the ABI that brought it.
type right struct {
	name      string
	abi, kind int
	bit       uint64
}

// rights goes through all that there are, by ABI.
func rights(yield func(right) bool) {
	for abi, brought := range host.Brought {
		for kind, bits := range brought {
			for i, name := range rightNames[kind] {
				if bit := uint64(1) << i; bits&bit != 0 && !yield(right{name, abi, kind, bit}) {
					return
				}
			}
		}
	}
}

// sysctls that decide what a fence can do, or explain what it cannot.
var sysctls = []string{
	"user.max_user_namespaces", "user.max_mnt_namespaces", "user.max_net_namespaces", "user.max_ipc_namespaces", "user.max_pid_namespaces",
	"kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns", "kernel.yama.ptrace_scope",
	"kernel.io_uring_disabled", "kernel.unprivileged_bpf_disabled", "kernel.perf_event_paranoid", "dev.tty.legacy_tiocsti",
}

// Detect looks at everything. It takes some milliseconds, for the namespaces.
func Detect() Node {
	container, _ := host.Container()
	h := Node{UID: os.Getuid(), GID: os.Getgid(), Container: container, Landlock: host.DetectLandlock(), Rights: map[string]bool{},
		Seccomp: detectSeccomp(), Sysctls: map[string]string{}, Yama: -1, LSMs: modules()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel, h.Arch = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])
	}
	h.UIDMap = strings.Join(lines("/proc/self/uid_map"), ", ")
	have := host.Rights{h.Landlock.FS, h.Landlock.Net, h.Landlock.Scoped}
	for r := range rights {
		h.Rights[r.name] = have[r.kind]&r.bit != 0
	}
	for _, name := range sysctls {
		if v := lines("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); len(v) == 1 {
			h.Sysctls[name] = v[0]
		}
	}
	if n, err := strconv.Atoi(h.Sysctls["kernel.yama.ptrace_scope"]); err == nil {
		h.Yama = n
	}
	for _, line := range lines("/proc/self/status") {
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "CapEff":
			h.CapEff, _ = strconv.ParseUint(value, 16, 64)
		case "CapBnd":
			h.CapBnd, _ = strconv.ParseUint(value, 16, 64)
		case "NoNewPrivs":
			h.NoNewPrivs = value == "1"
		}
	}
	h.UserNS, h.MountNS, h.NetNS, h.IPCNS, h.PIDNS = h.tried(userNS), h.tried(mountNS), h.tried(netNS), h.tried(ipcNS), h.tried(pidNS)
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		p := filepath.Join(dir, "runsc")
		if filepath.IsAbs(p) && unix.Access(p, unix.X_OK) == nil {
			h.Runsc = p
			break
		}
	}
	if fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		h.KVM = true
		_ = unix.Close(fd)
	}
	return h
}

// lines are the lines of a small file, blanks made one; none if it cannot be
// read.
func lines(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 0 {
			out = append(out, strings.Join(f, " "))
		}
	}
	return out
}

// detectSeccomp asks for each action; nothing is filtered.
func detectSeccomp() Seccomp {
	var s Seccomp
	for _, a := range []struct {
		name string
		code uint32
	}{
		{"kill_process", unix.SECCOMP_RET_KILL_PROCESS}, {"kill_thread", unix.SECCOMP_RET_KILL_THREAD}, {"trap", unix.SECCOMP_RET_TRAP},
		{"errno", unix.SECCOMP_RET_ERRNO}, {"user_notif", unix.SECCOMP_RET_USER_NOTIF}, {"trace", unix.SECCOMP_RET_TRACE},
		{"log", unix.SECCOMP_RET_LOG}, {"allow", unix.SECCOMP_RET_ALLOW},
	} {
		_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&a.code)))
		if errno == 0 {
			s.Actions = append(s.Actions, a.name)
			s.Filter = s.Filter || a.name == "errno"
			s.UserNotif = s.UserNotif || a.name == "user_notif"
		}
	}
	return s
}

// moduleIDs are the kernel's numbers of security modules, from 100 on.
var moduleIDs = [...]string{"capability", "selinux", "smack", "tomoyo", "apparmor", "yama", "loadpin", "safesetid", "lockdown", "bpf",
	"landlock", "ima", "evm", "ipe"}

// modules lists the active security modules: from securityfs, which is often
// not mounted in a container, else from the kernel (Linux 6.8).
func modules() []string {
	if data, err := os.ReadFile("/sys/kernel/security/lsm"); err == nil && len(data) > 0 {
		return strings.Split(strings.TrimSpace(string(data)), ",")
	}
	var ids [32]uint64
	size := uint32(unsafe.Sizeof(ids))
	n, _, errno := unix.RawSyscall(unix.SYS_LSM_LIST_MODULES, uintptr(unsafe.Pointer(&ids)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil
	}
	var names []string
	for _, id := range ids[:min(int(n), len(ids))] {
		if i := id - 100; i < uint64(len(moduleIDs)) {
			names = append(names, moduleIDs[i])
		} else {
			names = append(names, "lsm"+strconv.FormatUint(id, 10))
		}
	}
	return names
}

func (h *Node) modules() string { return orUnknown(strings.Join(h.LSMs, ", ")) }

// String is the answer for a person, a line for each thing.
func (h Node) String() string {
	var b strings.Builder
	row := func(name, format string, a ...any) { fmt.Fprintf(&b, "%-15s %s\n", name, fmt.Sprintf(format, a...)) }
	row("kernel", "%s %s, uid %d", h.Kernel, h.Arch, h.UID)
	row("container", "%s", orNone(h.Container))
	if l := h.Landlock; l.FS == 0 {
		row("landlock", "no: %s", whyNoLandlock(l.Err))
	} else {
		row("landlock", "yes, ABI %d, errata %#x", l.ABI, l.Errata)
		for r := range rights {
			switch {
			case h.Rights[r.name]:
			case r.abi <= l.ABI:
				row("", "without %s, although ABI %d has it", r.name, l.ABI)
			default:
				row("", "without %s (ABI %d)", r.name, r.abi)
			}
		}
	}
	row("seccomp", "%s, supervisor: %s", yesNo(h.Seccomp.Filter), yesNo(h.Seccomp.UserNotif))
	said := map[Tried]string{} // by which namespace: mostly one reason is that of all
	for _, n := range []struct {
		namespace
		Tried
	}{{userNS, h.UserNS}, {mountNS, h.MountNS}, {netNS, h.NetNS}, {ipcNS, h.IPCNS}, {pidNS, h.PIDNS}} {
		switch as := said[n.Tried]; {
		case n.OK:
			row(n.name+" ns", "yes")
		case as != "":
			row(n.name+" ns", "no, as %s ns", as)
		default:
			row(n.name+" ns", "no: %s", n.Tried)
			said[n.Tried] = n.name
		}
	}
	if h.Yama < 0 {
		row("yama", "none")
	} else {
		row("yama", "ptrace_scope %d", h.Yama)
	}
	row("modules", "%s", h.modules())
	row("capabilities", "effective %#x, bounding %#x, no_new_privs %s", h.CapEff, h.CapBnd, yesNo(h.NoNewPrivs))
	row("runsc, kvm", "%s, %s", orNone(h.Runsc), yesNo(h.KVM))
	return b.String()
}

// whyNoLandlock says what to ask for where there is no Landlock.
func whyNoLandlock(errno string) string {
	switch errno {
	case "ENOSYS":
		return "ENOSYS, this kernel was built without Landlock (it needs 5.13)"
	case "EOPNOTSUPP":
		return "EOPNOTSUPP, built in but not switched on; ask the operators to add landlock to lsm= on the boot line"
	case "EPERM":
		return "EPERM, a seccomp filter around this process refuses it"
	}
	return orUnknown(errno)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
