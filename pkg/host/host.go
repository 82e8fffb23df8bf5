// Package host says what this node's kernel can enforce. It is asked once, and
// what it found is plain data that is passed on; nothing below looks again.
//
// A protection counts as there because it was tried, never because a version
// number promises it. Trying changes nothing and leaves nothing behind.
package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Host is all of it. The zero Host can enforce nothing.
type Host struct {
	Kernel     string            `json:"kernel"` // uname -r
	Arch       string            `json:"arch"`   // uname -m
	UID        int               `json:"uid"`
	GID        int               `json:"gid"`
	UIDMap     string            `json:"uid_map"`   // /proc/self/uid_map, lines joined by ", "
	Container  string            `json:"container"` // as Container says
	Landlock   Landlock          `json:"landlock"`
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

// sysctls that decide what a fence can do, or explain what it cannot.
var sysctls = []string{
	"user.max_user_namespaces", "user.max_mnt_namespaces", "user.max_net_namespaces", "user.max_ipc_namespaces", "user.max_pid_namespaces",
	"kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns", "kernel.yama.ptrace_scope",
	"kernel.io_uring_disabled", "kernel.unprivileged_bpf_disabled", "kernel.perf_event_paranoid", "dev.tty.legacy_tiocsti",
}

// Detect looks at everything. It takes some milliseconds, for the namespaces.
func Detect() Host {
	container, _ := Container()
	h := Host{UID: os.Getuid(), GID: os.Getgid(), Container: container, Landlock: DetectLandlock(), Rights: map[string]bool{},
		Seccomp: detectSeccomp(), Sysctls: map[string]string{}, Yama: -1, LSMs: modules()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel, h.Arch = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])
	}
	h.UIDMap = strings.Join(lines("/proc/self/uid_map"), ", ")
	for _, k := range known {
		h.Rights[k.name] = h.Landlock.Has(k.name)
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

func (h *Host) modules() string { return orUnknown(strings.Join(h.LSMs, ", ")) }

// Container names the runtime whose container this is: "apptainer", "docker",
// "podman", "charliecloud", "kubernetes", or what another calls itself; "" on a
// bare node, and on a virtual machine made from an image.
//
// One sign is enough: a script of the image can unset a variable, and an image
// can lack a file. The signs of Apptainer come first and cost next to nothing.
//
// An error means that it cannot be told: what is taken for a container where
// it is a node hides less, and the other way round too.
var Container = sync.OnceValues(func() (string, error) {
	var failed error
	note := func(p string, err error) bool {
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES) {
			failed = fmt.Errorf("telling whether this is a container: %s: %w", p, err)
		}
		return err == nil
	}
	exists := func(p string) bool { return note(p, unix.Access(p, unix.F_OK)) }
	root := func() Mount {
		m, err := rootMount()
		note("mounts", err)
		return m
	}
	const says = "/run/systemd/container"
	declared, err := os.ReadFile(says)
	note(says, err)
	name := container(os.Getenv, exists, root, strings.TrimSpace(string(declared)))
	if failed != nil {
		return "", failed
	}
	return name, nil
})

// rootMount is the mount seen at /, found without parsing the others.
func rootMount() (root Mount, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, " / ") {
			if m, ok := parseMount(strings.TrimSuffix(line, "\n")); ok && m.Path == "/" {
				root = m
			}
		}
	}
	return root, err
}

// container is Container for any node.
func container(getenv func(string) string, exists func(string) bool, rootMount func() Mount, declared string) string {
	for _, v := range []string{"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "APPTAINER_NAME", "SINGULARITY_NAME"} {
		if getenv(v) != "" {
			return "apptainer"
		}
	}
	if exists("/.singularity.d") {
		return "apptainer"
	}
	if getenv("CH_RUNNING") != "" || exists("/ch/metadata.json") {
		return "charliecloud"
	}
	root := rootMount()
	layers := root.FSType + " " + root.Super // not Source: a node may boot from a server's folder of any name
	for _, r := range []struct{ name, sign string }{{"apptainer", "apptainer"}, {"apptainer", "singularity"}, {"apptainer", "squashfuse"},
		{"docker", "docker"}, {"podman", "/containers/storage"}, {"docker", "containerd"}} {
		if strings.Contains(layers, r.sign) {
			return r.name
		}
	}
	// A whole disk at / is a machine of its own, whatever its files once were.
	if root.Root == "/" && strings.HasPrefix(root.Source, "/dev/") && !strings.HasPrefix(root.Source, "/dev/loop") && !strings.Contains(root.Source, "docker") {
		return ""
	}
	switch {
	case exists("/.dockerenv"):
		return "docker"
	case exists("/run/.containerenv"):
		return "podman"
	case getenv("KUBERNETES_SERVICE_HOST") != "" || exists("/run/secrets/kubernetes.io"):
		return "kubernetes"
	}
	for _, name := range []string{declared, getenv("container")} { // systemd's convention
		if name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" {
			return name
		}
	}
	return ""
}

// String is the answer for a person, a line for each thing.
func (h Host) String() string {
	var b strings.Builder
	row := func(name, format string, a ...any) { fmt.Fprintf(&b, "%-15s %s\n", name, fmt.Sprintf(format, a...)) }
	row("kernel", "%s %s, uid %d", h.Kernel, h.Arch, h.UID)
	row("container", "%s", orNone(h.Container))
	if l := h.Landlock; l.FS == 0 {
		row("landlock", "no: %s", l.why())
	} else {
		row("landlock", "yes, ABI %d, errata %#x", l.ABI, l.Errata)
		for _, k := range known {
			switch {
			case h.Rights[k.name]:
			case k.abi <= l.ABI:
				row("", "without %s, although ABI %d has it", k.name, l.ABI)
			default:
				row("", "without %s (ABI %d)", k.name, k.abi)
			}
		}
	}
	row("seccomp", "%s, supervisor: %s", yesNo(h.Seccomp.Filter), yesNo(h.Seccomp.UserNotif))
	for _, n := range []struct {
		namespace
		Tried
	}{{userNS, h.UserNS}, {mountNS, h.MountNS}, {netNS, h.NetNS}, {ipcNS, h.IPCNS}, {pidNS, h.PIDNS}} {
		if n.OK {
			row(n.name+" ns", "yes")
		} else {
			row(n.name+" ns", "no: %s", strings.TrimSpace(n.Errno+" "+n.Why))
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

// why says what to ask for where there is no Landlock.
func (l Landlock) why() string {
	switch l.Err {
	case "ENOSYS":
		return "ENOSYS, this kernel was built without Landlock (it needs 5.13)"
	case "EOPNOTSUPP":
		return "EOPNOTSUPP, built in but not switched on; ask the operators to add landlock to lsm= on the boot line"
	case "EPERM":
		return "EPERM, a seccomp filter around this process refuses it"
	}
	return orUnknown(l.Err)
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
