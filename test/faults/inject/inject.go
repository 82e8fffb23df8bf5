// Package inject starts a program under ptrace(2) and makes one of its system
// calls fail, or succeed without effect, or be the moment a signal arrives.
//
// strace's own injection counts calls per thread, goes on tracing the command
// that the program becomes, and with --seccomp-bpf brings a filter of its own,
// which is what the program under test checks for. Here tracing ends when the
// program becomes the command, and nothing is added to the process.
//
// A call is found again in another launch by the part of the thread that makes
// it, its name, the path or the descriptor's file that it is about, and its
// number among those. None of it depends on which thread was faster, on
// numbers of processes and descriptors, or on what others do on the machine
// in other folders.
package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/seccomp"
)

// Process is what to start. Calls are counted from the exec of Launcher to
// that of anything else, in it or in its child, which ends the tracing; both
// by their base names.
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

// Thread is a thread's part in a launch.
type Thread string

const (
	Main    Thread = ""        // it does what the program is for
	Net     Thread = "net"     // userns.c starts it before there is a runtime, for the network namespace
	Runtime Thread = "runtime" // any other: they are the Go runtime's

	// Where the launcher starts itself again to become the command, and stays above it.
	Child        Thread = "child"
	ChildRuntime Thread = "child's runtime"
	Above        Thread = "above" // threads of the launcher but its main one: they serve the child
)

// Address is how a call is found again in another launch.
type Address struct {
	Thread Thread
	Name   string // with what it does where one call does many things: "prctl(PR_SET_NO_NEW_PRIVS)"
	Path   string // the path it is about, or the file of the descriptor
	Nth    int    // from 1, of those with that Thread, Name and Path
}

func (a Address) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s #%d", a.Thread, a.Name, a.Path, a.Nth)), " ")
}

// Call is one system call of a launch.
type Call struct {
	Address
	Args string // other arguments, for people: the numbers differ from run to run
	Ret  int64  // what it returned, -errno if it failed
	Site Site
}

// Site is where in the program a call is made, and by which functions that was
// reached: a hash of the return addresses. Whole is false where the chain of
// frames ends early, as in what is no Go code.
type Site struct {
	Hash  uint64
	Whole bool
}

func (c Call) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s #%d", c.Thread, c.Name, c.Path, c.Args, c.Nth)), " ")
}

// Fault is what happens to one call. The call itself is not made, unless
// Signal says that it only marks the moment.
type Fault struct {
	Address
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
	t := &tracer{pid: pid, launcher: p.Launcher, fault: f, counts: map[Address]int{}, threads: map[int]*thread{}}
	if err := t.share(); err != nil {
		unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		return Result{}, err
	}
	defer unix.SchedSetaffinity(0, &t.all)
	timer := time.AfterFunc(p.Timeout, func() {
		t.timedOut.Store(true)
		unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		if child := t.child.Load(); child > 0 {
			unix.Kill(int(child), unix.SIGKILL)
		}
	})
	err = t.loop()
	timer.Stop()
	if err != nil {
		unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		if child := t.child.Load(); child > 0 {
			unix.Kill(int(child), unix.SIGKILL)
		}
		var ws unix.WaitStatus
		for { // until nobody is left
			if _, err := wait(&ws); err != nil {
				break
			}
		}
		return Result{}, err
	}
	t.result.TimedOut = t.timedOut.Load()
	return t.result, nil
}

// turns counts the launches, to give each the next processor.
var turns atomic.Int32

// share puts this thread on one processor, where the traced ones come to it: a
// stop is then half as dear as across two. They are told of all processors.
func (t *tracer) share() error {
	if err := unix.SchedGetaffinity(0, &t.all); err != nil {
		return err
	}
	nth := int(turns.Add(1)) % t.all.Count()
	for cpu := 0; ; cpu++ {
		if t.all.IsSet(cpu) {
			if nth == 0 {
				t.one.Set(cpu)
				return unix.SchedSetaffinity(0, &t.one)
			}
			nth--
		}
	}
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
	s, _, _ := strings.Cut(string(read(tid, addr, 512)), "\x00")
	return s
}

// read is up to n bytes of its memory.
func read(tid int, addr uint64, n int) []byte {
	const page = 4096
	buf := make([]byte, n)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	// In two parts: the page after that of the beginning may not be there.
	first := min(len(buf), int(page-addr%page))
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: first}, {Base: uintptr(addr) + uintptr(first), Len: len(buf) - first}}
	got, err := unix.ProcessVMReadv(tid, local, remote, 0)
	if err != nil {
		return nil
	}
	return buf[:got]
}

// site follows the frame pointers of a thread.
func site(tid int) Site {
	pc, fp, err := frame(tid)
	if err != nil {
		return Site{}
	}
	h := fnv.New64a()
	binary.Write(h, binary.NativeEndian, pc)
	for range 100 {
		if fp == 0 {
			return Site{h.Sum64(), true}
		}
		f := read(tid, fp, 16) // the caller's frame, the address to return to
		if len(f) < 16 {
			break
		}
		h.Write(f[8:])
		above := binary.NativeEndian.Uint64(f)
		if above != 0 && above <= fp {
			break
		}
		fp = above
	}
	return Site{h.Sum64(), false}
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

// pathArgs are the arguments that are paths, by name, and which is the folder
// that a relative one begins at, -1 if that is the working folder.
var pathArgs = map[string]struct{ path, dir int }{
	"openat": {1, 0}, "openat2": {1, 0}, "statx": {1, 0}, "newfstatat": {1, 0}, "readlinkat": {1, 0}, "mkdirat": {1, 0}, "mknodat": {1, 0},
	"fchmodat": {1, 0}, "open_tree": {1, 0}, "mount_setattr": {1, 0}, "faccessat": {1, 0}, "faccessat2": {1, 0}, "move_mount": {3, 2}, "symlinkat": {2, 1},
	"mount": {1, -1}, "chdir": {0, -1}, "statfs": {0, -1}, "readlink": {0, -1}, "access": {0, -1}, "execve": {0, -1}, "umount2": {0, -1},
}

// fdCalls have a descriptor as their first argument.
var fdCalls = strings.Fields("read write pread64 pwrite64 lseek close fstat getdents64 fcntl ioctl fchmod fchdir fstatfs setns epoll_ctl landlock_restrict_self")

// path is the path that a call is about, without numbers that differ from run
// to run.
func (i *syscallInfo) path(pid, tid int) string {
	name := names[i.nr]
	if arg, ok := pathArgs[name]; ok {
		p := text(tid, i.args[arg.path])
		if !strings.HasPrefix(p, "/") && arg.dir >= 0 && int32(i.args[arg.dir]) != unix.AT_FDCWD {
			p = strings.TrimSuffix(file(tid, int32(i.args[arg.dir]))+"/"+p, "/")
		}
		return numberless(p, pid)
	}
	if slices.Contains(fdCalls, name) {
		return numberless(file(tid, int32(i.args[0])), pid)
	}
	if name == "landlock_add_rule" && i.args[1] == unix.LANDLOCK_RULE_PATH_BENEATH {
		attr := read(tid, i.args[2], 12) // struct landlock_path_beneath_attr, packed: the rights, the descriptor
		if len(attr) == 12 {
			return numberless(file(tid, int32(binary.NativeEndian.Uint32(attr[8:]))), pid)
		}
	}
	return ""
}

// file is what a descriptor of the traced process is open on, "closed" if on
// nothing: "/etc/passwd", "pipe:[1234]".
func file(tid int, fd int32) string {
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, fd))
	if err != nil {
		return "closed"
	}
	return target
}

var (
	inode = regexp.MustCompile(`^(\w+):\[\d+\]$`)
	once  = regexp.MustCompile(`^(\.fence-.*-)\d+$`)
)

// numberless is a path without the numbers of the process and of its threads,
// which are folders of /proc, without the one that ends the name of a file of the launcher's own,
// and without those of pipes, sockets and namespaces. Any other digits stay,
// also where they look like the process's number: what they are a part of has
// the same name in every launch.
func numberless(p string, pid int) string {
	if m := inode.FindStringSubmatch(p); m != nil {
		return m[1]
	}
	parts := strings.Split(p, "/")
	for i, part := range parts {
		switch {
		case i == 0:
		case parts[i-1] == "proc" && part == strconv.Itoa(pid):
			parts[i] = "PID"
		case parts[i-1] == "task" && parts[1] == "proc":
			parts[i] = "TID"
		}
		parts[i] = once.ReplaceAllString(parts[i], "${1}N")
	}
	return strings.Join(parts, "/")
}

func (i *syscallInfo) others() string {
	switch names[i.nr] {
	case "unshare", "socket", "prctl", "landlock_create_ruleset", "write", "read", "close", "fstat", "fcntl", "prlimit64", "setrlimit", "getrlimit", "setns":
		return fmt.Sprintf("(%#x, %#x, %#x)", i.args[0], i.args[1], i.args[2])
	}
	return ""
}
