package probe

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// procChecks are the processes of group C.
func procChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Worker = "proc", classProc
		return c
	}
	// outside makes a check that tries one thing on every process outside.
	outside := func(c Check, try func(pid int) syscall.Errno) Check {
		c.try = func(s *site, _ string) Finding { return s.onOutsiders(c.ID, try) }
		return each(c)
	}
	return []Check{
		each(Check{
			ID: "proc.visible", Severity: "low", Attack: []string{"T1057"}, try: procVisible,
			What: "counts the processes in /proc outside the fence, and those of other users",
			Why:  "command lines of other people's jobs hold paths, hosts and sometimes tokens",
		}),
		outside(Check{
			ID: "proc.cmdline", Severity: "medium", Attack: []string{"T1057", "T1552"},
			What: "opens /proc/PID/cmdline of this user's processes outside the fence, and reads nothing",
			Why:  "Landlock does not hide it: a token in the harness's arguments is a token lost",
		}, opens("cmdline", unix.O_RDONLY)),
		outside(Check{
			ID: "proc.environ", Severity: "high", Attack: []string{"T1552.007", "T1003.007"},
			What: "opens /proc/PID/environ of those processes, and reads nothing",
			Why:  "the harness's environment holds its tokens",
		}, opens("environ", unix.O_RDONLY)),
		outside(Check{
			ID: "proc.root", Severity: "high", Attack: []string{"T1611"},
			What: "opens /proc/PID/root of those processes",
			Why:  "leads past every --no-mount into the node's own files",
		}, opens("root", unix.O_PATH|unix.O_DIRECTORY)),
		outside(Check{
			ID: "proc.cwd", Severity: "high", Attack: []string{"T1611"},
			What: "opens /proc/PID/cwd of those processes",
			Why:  "the batch script's working directory is usually on shared storage",
		}, opens("cwd", unix.O_PATH|unix.O_DIRECTORY)),
		outside(Check{
			ID: "proc.fd", Severity: "high", Attack: []string{"T1611"},
			What: "asks what the first descriptors of those processes lead to, in /proc/PID/fd, and opens none",
			Why:  "files that the harness has open, deleted and private ones too",
		}, firstFD),
		outside(Check{
			ID: "proc.mem", Severity: "high", Attack: []string{"T1055.009", "T1003.007"},
			What: "opens /proc/PID/mem of those processes for reading, and reads nothing",
			Why:  "keys and prompts in the harness's memory",
		}, opens("mem", unix.O_RDONLY)),
		outside(Check{
			ID: "proc.signal", Severity: "high", Attack: []string{"T1489"},
			What: "kill(PID, 0): asks whether it may signal those processes, sends nothing",
			Why:  "a command could end the harness, the model server or another rollout",
		}, func(pid int) syscall.Errno { return errnoOf(unix.Kill(pid, 0)) }),
		outside(Check{
			ID: "proc.pidfd", Severity: "low", Attack: []string{"T1057"},
			What: "pidfd_open of those processes", Why: "a handle on a process, the first step to its descriptors",
		}, func(pid int) syscall.Errno { return withPidfd(pid, func(int) syscall.Errno { return 0 }) }),
		outside(Check{
			ID: "proc.pidfd_getfd", Severity: "high", Attack: []string{"T1055"},
			What: "pidfd_getfd of a descriptor number that none of those processes has",
			Why:  "takes over a connection of the harness, token and all",
		}, func(pid int) syscall.Errno {
			return withPidfd(pid, func(fd int) syscall.Errno {
				got, _, e := unix.Syscall(unix.SYS_PIDFD_GETFD, uintptr(fd), 0x7fffffff, 0)
				if e == 0 {
					unix.Close(int(got))
				}
				if e == unix.EBADF { // allowed, only there is no such descriptor
					return 0
				}
				return e
			})
		}),
		outside(Check{
			ID: "proc.kcmp", Severity: "high", Attack: []string{"T1055"},
			What: "kcmp of those processes with itself: the permission to trace, without tracing",
			Why:  "who may trace a process may do all that it may",
		}, func(pid int) syscall.Errno {
			_, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(os.Getpid()), 0, 0, 0, 0) // KCMP_FILE, fd 0 of each
			if e == unix.EBADF {
				return 0
			}
			return e
		}),
		outside(Check{
			ID: "proc.prlimit", Severity: "medium", Attack: []string{"T1499"},
			What: "prlimit of those processes, asking and not setting",
			Why:  "Landlock does not stop it: a limit set to nothing ends a harness as surely as a signal",
		}, func(pid int) syscall.Errno {
			var r unix.Rlimit
			return errnoOf(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &r))
		}),
		outside(Check{
			ID: "proc.priority", Severity: "low", Attack: []string{"T1499"},
			What: "setpriority of those processes to the value they have",
			Why:  "a rollout could slow its neighbours down",
		}, func(pid int) syscall.Errno {
			n, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
			if err != nil {
				return errnoOf(err)
			}
			return errnoOf(unix.Setpriority(unix.PRIO_PROCESS, pid, 20-n)) // the system call answers 20 - nice
		}),
		each(Check{
			ID: "proc.signal.own", Severity: "info", try: procSignalOwn,
			What: "starts a child and asks whether it may signal it: it must work",
			Why:  "shells and test runners end their own children",
		}),
		each(Check{
			ID: "proc.ptrace.own", Severity: "low", Attack: []string{"T1055.008"}, Worker: classProc, try: procPtraceOwn,
			What: "PTRACE_SEIZE of its own child, which it then ends",
			Why:  "wide attack surface in the kernel; debuggers need it",
		}),
	}
}

// maxOutsiders bounds the processes that one check is tried on.
const maxOutsiders = 64

// onOutsiders tries one thing on the processes outside and sums up: one that
// can be reached is an open door.
func (s *site) onOutsiders(id string, try func(pid int) syscall.Errno) Finding {
	call := map[string]string{
		"proc.signal": "kill", "proc.pidfd": "pidfd_open", "proc.pidfd_getfd": "pidfd_getfd", "proc.kcmp": "kcmp",
		"proc.prlimit": "prlimit64", "proc.priority": "setpriority",
	}[id]
	if id == "proc.fd" {
		call = "readlink"
	}
	if call == "" {
		call = "open"
	}
	outside, beside, err := s.split()
	if err != nil {
		// Without /proc there is still the process that started this one.
		if pid := unix.Getppid(); pid != s.Parent && pid > 0 {
			outside = []process{{pid: pid, name: "the parent"}}
		} else {
			return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: "no process table: " + err.Error()}
		}
	}
	f := Finding{Outcome: Absent, Mechanism: s.pidns(), Syscall: call}
	var refusedBy process
	tried, reached, gone := 0, 0, 0
	if slices.Contains([]string{"proc.signal", "proc.prlimit", "proc.priority"}, id) && s.pidns() != "" {
		// The first process of a namespace of its own ends with it, and takes
		// no signal from inside that it does not ask for.
		outside = slices.DeleteFunc(outside, func(p process) bool { return p.pid == 1 })
	}
	for _, p := range outside[:min(len(outside), maxOutsiders)] {
		tried++
		e := try(p.pid)
		o, mech := judgeProcess(s.facts, e, !slices.Contains([]string{"proc.prlimit", "proc.priority", "proc.pidfd"}, id))
		switch o {
		case Reachable:
			reached++
			if reached == 1 {
				f = Finding{Outcome: Reachable, Syscall: call, Evidence: fmt.Sprintf("process %d (%s)", p.pid, p.name)}
			}
		case Absent:
			gone++
		default:
			if f.Outcome == Absent || f.Outcome == Error && o == Denied {
				f = Finding{Outcome: o, Mechanism: mech, Errno: errnoName(e), Syscall: call}
				refusedBy = p
			}
		}
	}
	switch {
	case reached > 0:
		f.Evidence = fmt.Sprintf("%d of %d processes outside, %s among them", reached, tried, f.Evidence)
	case f.Outcome == Denied || f.Outcome == Error:
		f.Evidence = fmt.Sprintf("%d of %d processes outside: %s for process %d (%s)", 0, tried, sysErr(call, errnoByName(f.Errno)), refusedBy.pid, refusedBy.name)
	default:
		f.Evidence = "no process of this user outside the fence is visible"
		if gone > 0 {
			f.Evidence = fmt.Sprintf("%d processes outside were gone when tried", gone)
		}
	}
	if len(beside) > 0 {
		f.Evidence += fmt.Sprintf("; %d behind the same number of filters were not tried", len(beside))
	}
	return f
}

func errnoByName(name string) syscall.Errno {
	for e := syscall.Errno(1); e < 134; e++ {
		if unix.ErrnoName(e) == name {
			return e
		}
	}
	return unix.EIO
}

// opens makes a try that opens a file of another process's, and closes it.
func opens(file string, flags int) func(int) syscall.Errno {
	return func(pid int) syscall.Errno {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", pid, file), flags|openFlags, 0)
		if err != nil {
			return errnoOf(err)
		}
		unix.Close(fd)
		return 0
	}
}

// firstFD asks for the link of the first descriptor there is: the folder
// itself lets anybody of the same user in.
func firstFD(pid int) syscall.Errno {
	e := syscall.Errno(unix.ENOENT)
	for fd := 0; fd < 3 && e == unix.ENOENT; fd++ {
		_, err := unix.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), make([]byte, 16))
		e = errnoOf(err)
	}
	return e
}

func withPidfd(pid int, f func(fd int) syscall.Errno) syscall.Errno {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer unix.Close(fd)
	return f(fd)
}

func procVisible(s *site, _ string) Finding {
	outside, beside, err := s.split()
	if err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: "no process table: " + err.Error()}
	}
	ps, _ := s.procs()
	others := 0
	for _, p := range ps {
		if p.uid != os.Geteuid() && !p.kernelThread() {
			others++
		}
	}
	f := Finding{Outcome: Absent, Mechanism: s.pidns()}
	if len(outside)+others > 0 {
		f = Finding{Outcome: Reachable}
	}
	f.Evidence = fmt.Sprintf("%d of this user's outside, %d behind the same number of filters, %d of other users", len(outside), len(beside), others)
	return f
}

// holdChild starts a child that lives until the returned function ends it.
func holdChild() (pid int, end func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	p, err := os.StartProcess(self(), []string{"probe", WorkerName, helperHold}, &os.ProcAttr{Files: []*os.File{r, nil, nil}})
	if err != nil {
		w.Close()
		return 0, nil, err
	}
	return p.Pid, func() { w.Close(); p.Kill(); p.Wait() }, nil
}

func procSignalOwn(s *site, _ string) Finding {
	pid, end, err := holdChild()
	if err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: "starting a child: " + err.Error()}
	}
	defer end()
	e := errnoOf(unix.Kill(pid, 0))
	f := Finding{Errno: errnoName(e), Syscall: "kill", Evidence: sysErr("kill(own child, 0)", e)}
	f.Outcome, f.Mechanism = judgeProcess(s.facts, e, true)
	return f
}

func procPtraceOwn(s *site, _ string) Finding {
	pid, end, err := holdChild()
	if err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: "starting a child: " + err.Error()}
	}
	defer end() // a killed child is let go
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
	f := Finding{Errno: errnoName(e), Syscall: "ptrace", Evidence: sysErr("ptrace(PTRACE_SEIZE, own child)", e)}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	return f
}
