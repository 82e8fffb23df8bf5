package inject

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// tracer follows all threads of one launch.
type tracer struct {
	pid      int
	launcher string
	fault    *Fault
	started  bool // the launcher was executed: calls count
	done     bool // nothing more to count: only wait for the command
	counts   map[[2]string]int
	threads  map[int]*thread
	result   Result
	timedOut atomic.Bool
}

type thread struct {
	call    int  // index of the call it is in, -1 if none
	skipped bool // and that call is ours
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
				return nil
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
		th = &thread{call: -1}
		t.threads[tid] = th
		if tid == t.pid { // the first exec
			const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
			if err := unix.PtraceSetOptions(tid, options); err != nil {
				return err
			}
			t.started = base(tid) == t.launcher
			return t.resume(tid, 0)
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

func (t *tracer) execed(tid int) error {
	switch name := base(tid); {
	case !t.started:
		t.started = name == t.launcher
		return t.resume(tid, 0)
	default:
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
	var info syscallInfo
	if err := info.get(tid); err != nil {
		return err
	}
	switch info.op {
	case opEntry:
		name := info.name()
		th.call = -1
		if t.fault == nil {
			key := [2]string{name, info.path(t.pid, tid)}
			t.counts[key]++
			th.call = len(t.result.Calls)
			t.result.Calls = append(t.result.Calls, Call{Name: name, Path: key[1], Nth: t.counts[key], Args: info.others()})
			break
		}
		if name != t.fault.Name || info.path(t.pid, tid) != t.fault.Path {
			break
		}
		if t.counts[[2]string{}]++; t.counts[[2]string{}] != t.fault.Nth {
			break
		}
		t.result.Hit, t.done = true, true
		if t.fault.Signal != 0 {
			if err := unix.Kill(t.pid, t.fault.Signal); err != nil {
				return err
			}
			break
		}
		if err := setNr(tid, -1); err != nil {
			return err
		}
		th.skipped = true
		return unix.PtraceSyscall(tid, 0) // to its exit
	case opExit:
		if th.skipped {
			th.skipped = false
			if err := setRet(tid, t.fault.Ret); err != nil {
				return err
			}
		} else if th.call >= 0 {
			t.result.Calls[th.call].Ret = int64(info.nr)
			th.call = -1
		}
	}
	return t.resume(tid, 0)
}
