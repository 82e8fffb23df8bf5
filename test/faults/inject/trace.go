package inject

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// tracer follows all threads of one launch.
type tracer struct {
	pid       int
	launcher  string
	fault     *Fault
	started   bool // the launcher was executed: calls count
	done      bool // nothing more to count: only wait for the command
	counts    map[Address]int
	threads   map[int]*thread
	first     int          // the first thread that the main one starts
	over      bool         // nothing more of it matters: it is the runtime's, or has ended
	meet      bool         // at its next call the main one waits for that
	held      bool         // and does
	ended     bool         // the launcher did
	child     atomic.Int32 // the process that the launcher starts, itself again; -1 when it is traced no more
	result    Result
	timedOut  atomic.Bool
	all, one  unix.CPUSet // the processors, and the one of the traced threads
	elsewhere bool        // the main thread may be on another
}

type thread struct {
	part    Thread
	within  bool  // a call whose beginning was seen
	call    int   // index of the call it is in, -1 if none
	skipped bool  // the call it is in is not made
	ret     int64 // and seems to return this
}

func (t *tracer) loop() error {
	var ws unix.WaitStatus
	for {
		tid, err := wait(&ws)
		if err != nil {
			return fmt.Errorf("%w: %w", errLost, err)
		}
		if ws.Exited() || ws.Signaled() {
			delete(t.threads, tid)
			if tid == t.pid {
				t.result.Status = syscall.WaitStatus(ws)
				t.ended = true
			}
			t.child.CompareAndSwap(int32(tid), -1)
			if t.ended && t.child.Load() <= 0 {
				return nil
			}
			if tid == t.first {
				if err := t.release(); err != nil && err != unix.ESRCH {
					return err
				}
			}
			continue
		}
		if err := t.stopped(tid, ws); err != nil && err != unix.ESRCH { // ESRCH: killed meanwhile
			return err
		}
	}
}

// stopped handles one stop of a thread and lets it go on.
func (t *tracer) stopped(tid int, ws unix.WaitStatus) error {
	th := t.threads[tid]
	if th == nil {
		th = &thread{part: Runtime, call: -1}
		t.threads[tid] = th
		if tid == t.pid { // the first exec
			th.part = Main
			if err := unix.PtraceSetOptions(tid, options); err != nil {
				return err
			}
			return t.begin(tid)
		}
		process, err := processOf(tid)
		switch {
		case err != nil:
			return err
		case process != t.pid && process == tid:
			th.part = Child
			t.child.Store(int32(tid))
		case process != t.pid:
			th.part = ChildRuntime
		case t.first == 0 && t.started:
			t.first = tid
		}
		if ws.StopSignal() == unix.SIGSTOP { // how a new thread begins
			return t.resume(tid, 0)
		}
	}
	switch sig := ws.StopSignal(); {
	case sig == unix.SIGTRAP|0x80:
		return t.call(tid, th)
	case sig == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_EXEC:
		return t.execed(tid)
	case sig == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_CLONE && tid == t.pid && t.started:
		t.meet = true
		return t.resume(tid, 0)
	case sig == unix.SIGTRAP && ws.TrapCause() > 0:
		return t.resume(tid, 0)
	default:
		return t.resume(tid, int(sig))
	}
}

func (t *tracer) resume(tid, sig int) error {
	if t.done || !t.started {
		return unix.PtraceCont(tid, sig)
	}
	return unix.PtraceSyscall(tid, sig)
}

// skip makes the call that begins none, and goes on to its end.
func (t *tracer) skip(tid int, th *thread, ret int64) error {
	if err := setNr(tid, -1); err != nil {
		return err
	}
	th.skipped, th.ret = true, ret
	return unix.PtraceSyscall(tid, 0)
}

// release lets the main thread go on, now and later.
func (t *tracer) release() error {
	t.over = true
	if !t.held {
		return nil
	}
	t.held = false
	return t.resume(t.pid, 0)
}

// processOf is the process that a thread is one of.
func processOf(tid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, unix.ESRCH
	}
	_, rest, _ := strings.Cut(string(data), "\nTgid:\t")
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.Atoi(number)
}

// first calls of any thread, whatever it is for.
var beginnings = []string{"set_robust_list", "rseq", "rt_sigprocmask"}

// partOf finds out what the first thread is from its first call that says so.
// The Net thread and the main one run side by side, and which descriptors and
// files the main one sees depends on how far the other is: so that each launch
// makes the same calls, the main one waits for the other's end. Not in the call
// that starts it, since libc holds a lock there that the other needs to end.
func (t *tracer) partOf(th *thread, name string) error {
	if name == fmt.Sprintf("unshare(%#x)", unix.CLONE_NEWNET) {
		th.part = Net
		return nil
	}
	if slices.Contains(beginnings, name) {
		return nil
	}
	return t.release()
}

const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

// begin sees whether what was executed is the launcher.
func (t *tracer) begin(tid int) error {
	if base(tid) == t.launcher {
		t.started, t.elsewhere = true, true
		if err := unix.PtraceSetOptions(tid, options|unix.PTRACE_O_TRACEFORK|unix.PTRACE_O_TRACEVFORK); err != nil {
			return err
		}
	}
	return t.resume(tid, 0)
}

func (t *tracer) execed(tid int) error {
	switch {
	case !t.started:
		return t.begin(tid)
	case tid != t.pid && base(tid) == t.launcher:
		return t.resume(tid, 0)
	default:
		unix.SchedSetaffinity(tid, &t.all)
		t.done = true // of a launcher that stays above the command, too
		t.child.CompareAndSwap(int32(tid), -1)
		t.result.Ran = true // and the other threads are gone
		t.result.Filters = filters(tid)
		return unix.PtraceDetach(tid)
	}
}

func (t *tracer) call(tid int, th *thread) error {
	if t.done && !th.skipped {
		th.call = -1
		return t.resume(tid, 0)
	}
	info := syscallInfo{op: opExit}
	if !th.within || th.call >= 0 {
		if err := info.get(tid); err != nil {
			return err
		}
	}
	th.within = info.op == opEntry
	meets := false
	switch info.op {
	case opEntry:
		name := info.name()
		if tid == t.pid && (t.elsewhere || name == "sched_getaffinity") {
			t.elsewhere = !t.elsewhere
			if err := unix.SchedSetaffinity(tid, map[bool]*unix.CPUSet{false: &t.one, true: &t.all}[t.elsewhere]); err != nil {
				return err
			}
		}
		meets = tid == t.pid && t.meet && name != "futex" // by which libc wakes the other
		if tid == t.first && !t.over && th.part != Net {
			if err := t.partOf(th, name); err != nil {
				return err
			}
		}
		th.call = -1
		if name == "tgkill" && info.args[2] == uint64(unix.SIGURG) {
			// By it the runtime asks a thread that computes for long, and can do
			// without. A call that it interrupts is made once more.
			return t.skip(tid, th, 0)
		}
		part, process := th.part, t.pid
		switch {
		case part == Child || part == ChildRuntime:
			process = int(t.child.Load())
		case part == Runtime && t.child.Load() != 0:
			part = Above
		}
		if t.fault != nil && (part != t.fault.Thread || name != t.fault.Name) {
			break // before anything is looked up
		}
		a := Address{Thread: part, Name: name, Path: info.path(process, tid)}
		t.counts[a]++
		if t.fault == nil {
			th.call = len(t.result.Calls)
			a.Nth = t.counts[a]
			t.result.Calls = append(t.result.Calls, Call{Address: a, Args: info.others(), Site: site(tid)})
			break
		}
		if a.Path != t.fault.Path || t.counts[a] != t.fault.Nth {
			break
		}
		t.result.Hit, t.done = true, true
		if part == Runtime {
			if err := t.release(); err != nil { // nobody will say what the first thread is
				return err
			}
		}
		if t.fault.Signal != 0 {
			if err := unix.Kill(t.pid, t.fault.Signal); err != nil {
				return err
			}
			break
		}
		return t.skip(tid, th, t.fault.Ret)
	case opExit:
		if th.skipped {
			th.skipped = false
			if err := setRet(tid, th.ret); err != nil {
				return err
			}
		} else if th.call >= 0 {
			t.result.Calls[th.call].Ret = int64(info.nr)
			th.call = -1
		}
	}
	if meets && !t.over && !t.done {
		t.held = true
		return nil
	}
	return t.resume(tid, 0)
}
