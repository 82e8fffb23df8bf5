package nodecheck

import (
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
)

// The test program starts itself as a child with a worse kernel: a node where
// the operators, or a filter, have switched things off.
func TestMain(m *testing.M) {
	if how, ok := os.LookupEnv("NODECHECK_TEST_CHILD"); ok {
		os.Exit(child(how))
	}
	os.Exit(m.Run())
}

func child(how string) int {
	for _, step := range strings.Fields(how) {
		var err error
		if name, isFilter := strings.CutPrefix(step, "filter:"); isFilter {
			err = filter(name)
		} else {
			name, value, _ := strings.Cut(step, "=")
			err = os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
		}
		if err != nil {
			os.Stderr.WriteString(step + ": " + err.Error() + "\n")
			return 1
		}
	}
	if json.NewEncoder(os.Stdout).Encode(Detect()) != nil {
		return 1
	}
	return 0
}

// filter makes one system call fail with an errno, on all threads.
func filter(what string) error {
	call, errno, _ := strings.Cut(what, "=")
	nr := map[string]uint32{"unshare": unix.SYS_UNSHARE, "landlock": unix.SYS_LANDLOCK_CREATE_RULESET, "clone": unix.SYS_CLONE, "seccomp": unix.SYS_SECCOMP}[call]
	no := map[string]uint32{"EPERM": 1, "EACCES": 13, "EINVAL": 22, "ENOSYS": 38, "EOPNOTSUPP": 95}[errno]
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: nr},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | no},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if call == "clone" { // only for namespaces: the runtime's threads go on
		prog = append(prog[:1:1], []unix.SockFilter{
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 3, K: nr},
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // flags, on little-endian
			{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jt: 0, Jf: 1, K: unix.CLONE_NEWUSER},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | no},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}...)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	runtime.LockOSThread() // TSYNC carries no_new_privs to the other threads too
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog))); e != 0 {
		return e
	}
	return nil
}

// need skips, or fails where skipping is not allowed.
func need(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("TEST_REQUIRED") == "1" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// detectIn is Detect in a user namespace of its own, made worse by how.
func detectIn(t *testing.T, how string) Node {
	t.Helper()
	if err := try(userNS); err != nil {
		need(t, "no user namespaces here: "+err.Error())
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "NODECHECK_TEST_CHILD="+how)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", how, err)
	}
	var h Node
	if err := json.Unmarshal(out, &h); err != nil {
		t.Fatalf("%s: %v\n%s", how, err, out)
	}
	return h
}

func TestDetect_SwitchedOff(t *testing.T) {
	// The control: the same child with nothing switched off.
	if h := detectIn(t, ""); !h.UserNS.OK || !h.MountNS.OK || !h.NetNS.OK || !h.IPCNS.OK || !h.PIDNS.OK || h.UID != 0 {
		t.Fatalf("got\n%s", h)
	}
	tests := []struct {
		how    string
		errno  string
		denied string // the namespaces, by their first letters
		why    string
	}{
		{"user.max_net_namespaces=0", "ENOSPC", "n", "user.max_net_namespaces=0"},
		{"user.max_mnt_namespaces=0", "ENOSPC", "m", "user.max_mnt_namespaces=0"},
		{"user.max_pid_namespaces=0 user.max_ipc_namespaces=0", "ENOSPC", "ip", "_namespaces=0"},
		{"user.max_user_namespaces=0", "ENOSPC", "umnip", "user.max_user_namespaces=0"},
		{"filter:unshare=EPERM", "EPERM", "mnip", "seccomp filter"},
		{"filter:clone=EPERM", "EPERM", "umnip", "seccomp filter"},
		{"filter:clone=EACCES", "EACCES", "umnip", "security module"},
		{"filter:clone=EINVAL", "EINVAL", "umnip", "built without"},
		{"filter:clone=ENOSYS", "ENOSYS", "umnip", "seccomp filter"},
	}
	for _, tt := range tests {
		h := detectIn(t, tt.how)
		for letter, n := range map[string]Tried{"u": h.UserNS, "m": h.MountNS, "n": h.NetNS, "i": h.IPCNS, "p": h.PIDNS} {
			if !strings.Contains(tt.denied, letter) {
				if !n.OK {
					t.Errorf("%s: %s: %+v", tt.how, letter, n)
				}
			} else if n.OK || n.Errno != tt.errno || !strings.Contains(n.Why, tt.why) {
				t.Errorf("%s: %s: %+v", tt.how, letter, n)
			}
		}
	}
}

func TestDetect_Filtered(t *testing.T) {
	for errno, want := range map[string]string{"ENOSYS": "ENOSYS", "EOPNOTSUPP": "EOPNOTSUPP", "EPERM": "EPERM"} {
		h := detectIn(t, "filter:landlock="+errno)
		if h.Landlock != (host.Landlock{Err: want}) || !h.NoNewPrivs || h.Rights["execute"] {
			t.Errorf("%s: %+v", errno, h.Landlock)
		}
	}
	if h := detectIn(t, "filter:seccomp=EPERM"); h.Seccomp.Filter || h.Seccomp.UserNotif || len(h.Seccomp.Actions) > 0 {
		t.Errorf("got %+v", h.Seccomp)
	}
}

// An attempt leaves no child and no namespace behind.
func TestTry_LeavesNothing(t *testing.T) {
	before := countChildren(t)
	for range 5 {
		_ = try(userNS)
		_ = try(netNS)
	}
	if after := countChildren(t); after > before {
		t.Errorf("%d children, %d before", after, before)
	}
}

func countChildren(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, task := range tasks {
		data, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err == nil {
			n += len(strings.Fields(string(data)))
		}
	}
	return n
}
