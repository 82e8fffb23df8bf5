// Package inject starts a program under ptrace(2) and makes one of its system
// calls fail, or succeed without effect, or be the moment a signal arrives.
//
// strace's own injection counts calls per thread, goes on tracing the command
// that the program becomes, and with --seccomp-bpf brings a filter of its own,
// which is what the program under test checks for. Here calls are counted by
// name over all threads, tracing ends when the program becomes the command,
// and nothing is added to the process.
package inject

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/seccomp"
)

// Process is what to start. Calls are counted from the exec of Launcher to
// that of anything else, which ends the tracing; both by their base names.
type Process struct {
	Path     string
	Argv     []string
	Env      []string
	Dir      string
	Files    []uintptr // as in syscall.ProcAttr; None is a closed descriptor
	Sys      syscall.SysProcAttr
	Launcher string
	Timeout  time.Duration
}

// None is a closed descriptor in Process.Files.
const None = ^uintptr(0)

// Call is one system call of a launch.
type Call struct {
	Name string // with what it does where one call does many things: "prctl(PR_SET_NO_NEW_PRIVS)"
	Path string // the path it is about, if it is about one
	Nth  int    // from 1, of those with that Name and Path, on all threads
	Args string // other arguments, for people: the numbers differ from run to run
	Ret  int64  // what it returned, -errno if it failed
}

func (c Call) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s #%d", c.Name, c.Path, c.Args, c.Nth)), " ")
}

// Fault is what happens to one call. The call itself is not made, unless
// Signal says that it only marks the moment.
type Fault struct {
	Name   string
	Path   string
	Nth    int
	Ret    int64 // what it seems to return: -errno, or a value as if it had worked
	Signal syscall.Signal
}

// Result is how it ended.
type Result struct {
	Calls    []Call // of a run without a fault
	Hit      bool   // the fault's call came
	Ran      bool   // the launcher became something else: the command
	Filters  [][]byte
	Status   syscall.WaitStatus
	TimedOut bool // it was killed
}

// Run starts p and waits for its end. Without a fault it lists all calls.
func Run(p Process, f *Fault) (Result, error) {
	runtime.LockOSThread() // ptrace(2) takes orders from one thread only
	defer runtime.UnlockOSThread()

	sys := p.Sys
	pidfd := -1
	sys.Ptrace, sys.PidFD = true, &pidfd
	pid, err := syscall.ForkExec(p.Path, p.Argv, &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Files: p.Files, Sys: &sys})
	if err != nil {
		return Result{}, fmt.Errorf("starting %s: %w", p.Path, err)
	}
	defer unix.Close(pidfd)
	t := &tracer{pid: pid, launcher: p.Launcher, fault: f, counts: map[[2]string]int{}, threads: map[int]*thread{}}
	timer := time.AfterFunc(p.Timeout, func() {
		t.timedOut.Store(true)
		unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	})
	err = t.loop()
	timer.Stop()
	if err != nil {
		unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		var ws unix.WaitStatus
		for {
			tid, werr := wait(&ws)
			if werr != nil || tid == pid && (ws.Exited() || ws.Signaled()) {
				break
			}
		}
		return Result{}, err
	}
	t.result.TimedOut = t.timedOut.Load()
	return t.result, nil
}

// wait hears of the threads that this thread traces, and of no other children
// of the test process.
func wait(ws *unix.WaitStatus) (int, error) {
	for {
		tid, err := unix.Wait4(-1, ws, unix.WALL|unix.WNOTHREAD, nil)
		if err != unix.EINTR {
			return tid, err
		}
	}
}

// base is the name of the program that a process is.
func base(pid int) string {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(exe), " (deleted)")
}

var errLost = errors.New("BUG: the traced process was lost")

// syscallInfo is struct ptrace_syscall_info.
type syscallInfo struct {
	op   uint8
	_    [3]byte
	arch uint32
	ip   uint64
	sp   uint64
	nr   uint64 // at the exit: the returned value
	args [6]uint64
	_    [2]uint64
}

const (
	opEntry = 1
	opExit  = 2
)

func (i *syscallInfo) get(tid int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(*i), uintptr(unsafe.Pointer(i)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// filters are the seccomp programs in force, the oldest first. Only root may
// ask; for others there are none.
func filters(tid int) [][]byte {
	var out [][]byte
	for {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), uintptr(len(out)), 0, 0, 0)
		if errno != 0 || n == 0 {
			return out
		}
		prog := make([]byte, n*8)
		if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(tid), uintptr(len(out)), uintptr(unsafe.Pointer(&prog[0])), 0, 0); errno != 0 {
			return out
		}
		out = append(out, prog)
	}
}

// text is a string of the traced process.
func text(tid int, addr uint64) string {
	const page = 4096
	buf := make([]byte, 512)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	// In two parts: the page after the string's may not be there.
	first := min(len(buf), int(page-addr%page))
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: first}, {Base: uintptr(addr) + uintptr(first), Len: len(buf) - first}}
	n, err := unix.ProcessVMReadv(tid, local, remote, 0)
	if err != nil {
		return ""
	}
	s, _, _ := strings.Cut(string(buf[:n]), "\x00")
	return s
}

var names = func() map[uint64]string {
	m := map[uint64]string{}
	// Every call that the filter's table knows, which is nearly every call.
	rules, err := seccomp.Rules(seccomp.Spec{Arch: runtime.GOARCH, Net: seccomp.NetHost})
	if err != nil {
		panic(err)
	}
	for _, r := range rules {
		m[uint64(r.Nr)] = r.Name
	}
	return m
}()

var prctls = map[uint64]string{
	unix.PR_SET_NO_NEW_PRIVS: "PR_SET_NO_NEW_PRIVS", unix.PR_GET_NO_NEW_PRIVS: "PR_GET_NO_NEW_PRIVS",
	unix.PR_CAPBSET_READ: "PR_CAPBSET_READ", unix.PR_CAPBSET_DROP: "PR_CAPBSET_DROP", unix.PR_CAP_AMBIENT: "PR_CAP_AMBIENT",
	unix.PR_SET_SECUREBITS: "PR_SET_SECUREBITS", unix.PR_GET_SECUREBITS: "PR_GET_SECUREBITS", unix.PR_GET_SECCOMP: "PR_GET_SECCOMP",
	unix.PR_SET_VMA: "PR_SET_VMA", unix.PR_SET_DUMPABLE: "PR_SET_DUMPABLE",
}

var fcntls = map[uint64]string{
	unix.F_GETFD: "F_GETFD", unix.F_SETFD: "F_SETFD", unix.F_GETFL: "F_GETFL", unix.F_SETFL: "F_SETFL", unix.F_DUPFD_CLOEXEC: "F_DUPFD_CLOEXEC",
}

// name tells apart what one call does for many purposes.
func (i *syscallInfo) name() string {
	name, ok := names[i.nr]
	if !ok {
		name = fmt.Sprintf("call %d", i.nr)
	}
	which := map[string]map[uint64]string{"prctl": prctls, "seccomp": {unix.SECCOMP_SET_MODE_FILTER: "SET_MODE_FILTER", unix.SECCOMP_GET_ACTION_AVAIL: "GET_ACTION_AVAIL"}}[name]
	arg := i.args[0]
	if name == "fcntl" {
		which, arg = fcntls, i.args[1]
	}
	switch {
	case name == "prlimit64" && i.args[2] != 0:
		return name + "(set)"
	case name == "unshare":
		return fmt.Sprintf("%s(%#x)", name, arg)
	}
	if which != nil {
		if op, ok := which[arg]; ok {
			return name + "(" + op + ")"
		}
		return fmt.Sprintf("%s(%d)", name, arg)
	}
	return name
}

// pathArgs are the arguments that are paths, by name.
var pathArgs = map[string]int{
	"openat": 1, "statx": 1, "newfstatat": 1, "readlinkat": 1, "mkdirat": 1, "mknodat": 1, "fchmodat": 1, "open_tree": 1, "mount_setattr": 1,
	"move_mount": 3, "mount": 1, "chdir": 0, "statfs": 0, "readlink": 0, "access": 0, "faccessat": 1, "faccessat2": 1, "execve": 0, "symlinkat": 2, "umount2": 0,
}

// path is the path that a call is about, without the process's own number.
func (i *syscallInfo) path(pid, tid int) string {
	arg, ok := pathArgs[names[i.nr]]
	if !ok {
		return ""
	}
	return strings.ReplaceAll(text(tid, i.args[arg]), strconv.Itoa(pid), "PID")
}

func (i *syscallInfo) others() string {
	switch names[i.nr] {
	case "unshare", "socket", "prctl", "landlock_create_ruleset", "write", "read", "close", "fstat", "fcntl", "prlimit64", "setrlimit", "getrlimit", "setns":
		return fmt.Sprintf("(%#x, %#x, %#x)", i.args[0], i.args[1], i.args[2])
	}
	return ""
}
