package nodecheck

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
)

func TestWhy(t *testing.T) {
	bare := func(sysctl, value string) *Node {
		return &Node{Sysctls: map[string]string{"user.max_user_namespaces": "100", "user.max_net_namespaces": "100", sysctl: value}}
	}
	docker := bare("", "")
	docker.Container = "docker"
	selinux := bare("", "")
	selinux.LSMs = []string{"capability", "selinux"}
	tests := []struct {
		host  *Node
		ns    namespace
		errno string
		want  string
	}{
		{bare("", ""), userNS, "", ""},
		{bare("user.max_user_namespaces", "0"), userNS, "ENOSPC", "user namespaces are switched off by user.max_user_namespaces=0; ask the operators to allow it"},
		{bare("user.max_user_namespaces", "0"), netNS, "ENOSPC", "user namespaces are switched off by user.max_user_namespaces=0; ask the operators to allow it"},
		{bare("user.max_net_namespaces", "0"), netNS, "ENOSPC", "network namespaces are switched off by user.max_net_namespaces=0; ask the operators to allow it"},
		{bare("", ""), netNS, "ENOSPC", "no more network namespaces for this user: user.max_net_namespaces is 100, or one of the other user.max_* is used up"},
		{bare("", ""), pidNS, "ENOSPC", "no more PID namespaces for this user: user.max_pid_namespaces is not known, or one of the other user.max_* is used up"},
		{bare("kernel.unprivileged_userns_clone", "0"), userNS, "EPERM", "user namespaces are for root only: kernel.unprivileged_userns_clone=0; ask the operators to allow it"},
		{bare("kernel.apparmor_restrict_unprivileged_userns", "1"), mountNS, "EACCES", "AppArmor gives rights in a user namespace only to programs with a profile: kernel.apparmor_restrict_unprivileged_userns=1; ask the operators for a profile for fence"},
		{bare("", ""), ipcNS, "EINVAL", "this kernel was built without IPC namespaces"},
		{bare("", ""), userNS, "ENOSYS", "a seccomp filter around this process, or a kernel without them"},
		{bare("", ""), userNS, "EUSERS", "user namespaces are nested too deeply here"},
		{bare("", ""), netNS, "ETIMEDOUT", "no answer within 5s"},
		{selinux, userNS, "EACCES", "a security module (capability, selinux) refuses it; ask the operators to allow it"},
		{docker, userNS, "EPERM", "the container's runtime (docker) forbids it, by a seccomp filter or by its root folder being a chroot"},
		{bare("", ""), userNS, "EPERM", "a seccomp filter around this process, a security module (not known), or a chroot"},
		{bare("", ""), userNS, "EIO", ""},
	}
	for _, tt := range tests {
		if got := tt.host.why(tt.ns, tt.errno); got != tt.want {
			t.Errorf("%s %s: %s\nwant %s", tt.ns.name, tt.errno, got, tt.want)
		}
	}
}

func TestDetect_Here(t *testing.T) {
	start := time.Now()
	h := Detect()
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
	if h.Kernel == "" || h.Arch == "" || h.UID != os.Getuid() || h.UIDMap == "" || len(h.Rights) != 23 || h.Landlock != host.DetectLandlock() {
		t.Errorf("got %+v", h)
	}
	if !h.Seccomp.Filter || !slices.Contains(h.Seccomp.Actions, "allow") {
		t.Errorf("seccomp: %+v", h.Seccomp)
	}
	if h.UID != 0 && h.CapEff != 0 || h.CapBnd == 0 && h.UID == 0 {
		t.Errorf("capabilities: %#x %#x", h.CapEff, h.CapBnd)
	}
	if h.UserNS.OK && h.Sysctls["user.max_user_namespaces"] == "" {
		t.Errorf("sysctls: %v", h.Sysctls)
	}
	for _, n := range []Tried{h.UserNS, h.MountNS, h.NetNS, h.IPCNS, h.PIDNS} {
		if n.OK != (n.Errno == "") || n.OK && n.Why != "" {
			t.Errorf("got %+v", n)
		}
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	var back Node
	if err := d.Decode(&back); err != nil || back.String() != h.String() {
		t.Errorf("%v\n%s\n%s", err, back.String(), h.String())
	}
}

// The text for a person, whatever the node: golden.
func TestNode_String(t *testing.T) {
	h := Node{Kernel: "5.14.0-611.el9", Arch: "x86_64", UID: 1000, Landlock: host.Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3}, Rights: map[string]bool{},
		Seccomp: Seccomp{Filter: true}, UserNS: Tried{OK: true}, NetNS: Tried{Errno: "ENOSPC", Why: "switched off"}, Yama: 1, LSMs: []string{"capability", "landlock"}}
	have := host.Rights{h.Landlock.FS, h.Landlock.Net, h.Landlock.Scoped}
	for r := range rights {
		h.Rights[r.name] = have[r.kind]&r.bit != 0
	}
	want := `kernel          5.14.0-611.el9 x86_64, uid 1000
container       none
landlock        yes, ABI 6, errata 0x0
                without scope_abstract_unix, although ABI 6 has it
                without scope_signal, although ABI 6 has it
                without resolve_unix (ABI 9)
                without bind_udp (ABI 10)
                without connect_udp (ABI 10)
seccomp         yes, supervisor: no
user ns         yes
mount ns        no: not known
network ns      no: ENOSPC, switched off
IPC ns          no, as mount ns
PID ns          no, as mount ns
yama            ptrace_scope 1
modules         capability, landlock
capabilities    effective 0x0, bounding 0x0, no_new_privs no
runsc, kvm      none, no
`
	if got := h.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for errno, part := range map[string]string{"ENOSYS": "5.13", "EOPNOTSUPP": "lsm=", "EPERM": "seccomp", "EIO": "EIO", "": "not known"} {
		if got := (Node{Landlock: host.Landlock{Err: errno}}).String(); !strings.Contains(got, "landlock        no: "+errno) || !strings.Contains(got, part) {
			t.Errorf("%s: %s", errno, got)
		}
	}
}

// The names are those of the kernel's constants, each once.
func TestRights(t *testing.T) {
	want := []right{
		{"execute", 1, 0, unix.LANDLOCK_ACCESS_FS_EXECUTE}, {"write_file", 1, 0, unix.LANDLOCK_ACCESS_FS_WRITE_FILE},
		{"read_file", 1, 0, unix.LANDLOCK_ACCESS_FS_READ_FILE}, {"read_dir", 1, 0, unix.LANDLOCK_ACCESS_FS_READ_DIR},
		{"remove_dir", 1, 0, unix.LANDLOCK_ACCESS_FS_REMOVE_DIR}, {"remove_file", 1, 0, unix.LANDLOCK_ACCESS_FS_REMOVE_FILE},
		{"make_char", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_CHAR}, {"make_dir", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_DIR},
		{"make_reg", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_REG}, {"make_sock", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_SOCK},
		{"make_fifo", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_FIFO}, {"make_block", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK},
		{"make_sym", 1, 0, unix.LANDLOCK_ACCESS_FS_MAKE_SYM}, {"refer", 2, 0, unix.LANDLOCK_ACCESS_FS_REFER},
		{"truncate", 3, 0, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {"bind_tcp", 4, 1, unix.LANDLOCK_ACCESS_NET_BIND_TCP},
		{"connect_tcp", 4, 1, unix.LANDLOCK_ACCESS_NET_CONNECT_TCP}, {"ioctl_dev", 5, 0, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{"scope_abstract_unix", 6, 2, unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}, {"scope_signal", 6, 2, unix.LANDLOCK_SCOPE_SIGNAL},
		{"resolve_unix", 9, 0, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX}, {"bind_udp", 10, 1, unix.LANDLOCK_ACCESS_NET_BIND_UDP},
		{"connect_udp", 10, 1, unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP},
	}
	if got := slices.Collect(rights); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for range rights { // one may stop early
		break
	}
}
