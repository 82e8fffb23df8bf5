package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// workChecks are group I, with fs.task.write and dev.pty: what must go on
// working behind a fence.
func workChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Severity, c.Worker = "work", "info", classWork
		return c
	}
	return []Check{
		each(Check{
			ID: "work.exec", targets: taskDirs, try: workExec,
			What: "writes a program that does nothing to a nameless file in the task's folder, and runs it",
			Why:  "compilers and package managers run what they have just written",
		}),
		each(Check{
			ID: "work.fork", try: workFork, limit: 10 * time.Second,
			What: "starts 50 children one after another", Why: "a shell script is little else",
		}),
		each(Check{
			ID: "work.pty", try: workPTY,
			What: "opens a pseudo-terminal and passes a line through it", Why: "the agent's screen is one",
		}),
		each(Check{
			ID: "work.tmux", try: workTmux, limit: 5 * time.Second,
			What: "with --write-test: runs a tmux server in a folder of its own below the temporary folder, and removes it", Why: "agents that work in a terminal need it, where the terminal is inside",
		}),
		each(Check{
			ID: "work.sem", try: workSem,
			What: "maps a nameless file of /dev/shm and wakes a futex in it", Why: "Python's multiprocessing and OpenMPI need shared memory",
		}),
		each(Check{
			ID: "work.loopback", try: netLoopbackOwn,
			What: "the same as net.loopback.own", Why: "tasks that start a web server",
		}),
		each(Check{
			ID: "work.signal.previous", try: workPrevious,
			What: "asks whether it may signal this user's other processes behind the same fence", Why: "`pkill` of a server that an earlier command started",
		}),
		each(Check{
			ID: "work.memfd", try: workMemfd,
			What: "makes a file in memory, seals it and maps it", Why: "CUDA and Wayland need it",
		}),
	}
}

// broken is the finding for a function that does not work.
func (s *site) broken(call string, e syscall.Errno) Finding {
	f := Finding{Errno: errnoName(e), Syscall: call, Evidence: sysErr(call, e)}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	if f.Outcome == Reachable { // the call was let through and failed all the same
		f.Outcome = Error
	}
	return f
}

// runFile runs a program that ends at once.
func (s *site) runFile(p, what string) Finding {
	proc, err := os.StartProcess(p, []string{"probe-tiny"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil}})
	if err != nil {
		e := errnoOf(err)
		f := s.broken("execve", e)
		if e == unix.EACCES && s.Layers > 0 {
			f.Mechanism = "landlock_fs"
		}
		return f
	}
	state, err := proc.Wait()
	if err != nil || !state.Success() {
		return Finding{Outcome: Error, Syscall: "execve", Evidence: fmt.Sprintf("%s ran and ended with %v", what, state)}
	}
	return Finding{Outcome: Reachable, Syscall: "execve", Evidence: what + " ran"}
}

func workExec(s *site, target string) Finding {
	dir := target
	if target == "cwd" {
		dir = "."
	}
	if tinyProgram == nil {
		return Finding{Outcome: Skipped, Evidence: "no program for this architecture"}
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|openFlags, 0o700)
	if err != nil {
		f := s.tryWrite(dir)
		if f.Outcome == Reachable {
			f = Finding{Outcome: Skipped, Errno: errnoName(errnoOf(err)), Evidence: "this filesystem has no nameless files to run"}
		}
		return f
	}
	if _, err := unix.Write(fd, tinyProgram); err != nil {
		unix.Close(fd)
		return s.broken("write", errnoOf(err))
	}
	// A file that is open for writing cannot be run.
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY, 0)
	unix.Close(fd)
	if err != nil {
		return s.broken("open", errnoOf(err))
	}
	defer unix.Close(ro)
	return s.runFile(fmt.Sprintf("/proc/self/fd/%d", ro), "a program written there")
}

func workFork(*site, string) Finding {
	for i := range 50 {
		if err := startExit(0, 0); err != nil {
			return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Syscall: "clone", Evidence: fmt.Sprintf("after %d children: %v", i, err)}
		}
	}
	return Finding{Outcome: Reachable, Syscall: "clone", Evidence: "started 50 children"}
}

func workPTY(s *site, _ string) Finding {
	m, t, st := openPTY()
	if st.e != 0 {
		return s.broken(st.call, st.e)
	}
	defer unix.Close(m)
	defer unix.Close(t)
	if _, err := unix.Write(m, []byte("probe\n")); err != nil {
		return s.broken("write", errnoOf(err))
	}
	if !pollFor(t, unix.POLLIN, time.Second) {
		return Finding{Outcome: Error, Evidence: "what was typed did not arrive"}
	}
	var b [16]byte
	n, err := unix.Read(t, b[:])
	if err != nil {
		return s.broken("read", errnoOf(err))
	}
	if string(b[:n]) != "probe\n" {
		return Finding{Outcome: Error, Evidence: fmt.Sprintf("%q arrived", b[:n])}
	}
	return Finding{Outcome: Reachable, Evidence: "a line went through a pseudo-terminal"}
}

// workTmux needs a named socket, so it is made only where named files may be.
func workTmux(s *site, _ string) Finding {
	bin, err := exec.LookPath("tmux")
	if err != nil {
		return Finding{Outcome: Absent, Evidence: "no tmux in PATH"}
	}
	if !s.WriteTest {
		return Finding{Outcome: Skipped, Evidence: "tmux needs a named socket: --write-test makes one and removes it"}
	}
	dir, err := os.MkdirTemp("", ".probe-")
	if err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: err.Error()}
	}
	defer os.RemoveAll(dir)
	sock := filepath.Join(dir, "s")
	tmux := func(args ...string) (string, error) {
		cmd := exec.Command(bin, append([]string{"-S", sock, "-f", "/dev/null"}, args...)...)
		cmd.Env = append(os.Environ(), "TMUX=", "TERM=screen", "SHELL=/bin/sh") // an account may have no shell
		out, err := cmd.CombinedOutput()
		return oneLine(string(out)), err
	}
	// The server ends with its only window, whatever becomes of this process.
	if out, err := tmux("new-session", "-d", "exec sleep 5"); err != nil {
		return Finding{Outcome: Error, Evidence: "tmux new-session: " + out + " " + err.Error()}
	}
	out, err := tmux("list-sessions")
	tmux("kill-server")
	if err != nil {
		return Finding{Outcome: Error, Evidence: "tmux list-sessions: " + out + " " + err.Error()}
	}
	return Finding{Outcome: Reachable, Evidence: "a server and a client of tmux talked"}
}

func workSem(s *site, _ string) Finding {
	fd, err := tmpfile("/dev/shm")
	if err != nil {
		return s.pathFinding("/dev/shm", unix.W_OK, "open", errnoOf(err))
	}
	defer unix.Close(fd)
	return s.wakeIn(fd)
}

// wakeIn maps a page of a file and wakes a futex in it that nobody waits on.
func (s *site) wakeIn(fd int) Finding {
	if err := unix.Ftruncate(fd, 4096); err != nil {
		return s.broken("ftruncate", errnoOf(err))
	}
	page, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return s.broken("mmap", errnoOf(err))
	}
	defer unix.Munmap(page)
	page[0] = 1
	const futexWake = 1
	if _, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&page[0])), futexWake, 1, 0, 0, 0); e != 0 {
		return s.broken("futex", e)
	}
	return Finding{Outcome: Reachable, Evidence: "shared memory was mapped, written and waited on"}
}

func workPrevious(s *site, _ string) Finding {
	outside, beside, err := s.split()
	if err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: "no process table: " + err.Error()}
	}
	list := beside
	if s.Controls.Seccomp.Filters == 0 {
		list = outside // nothing tells a session's own from the others
	}
	if len(list) == 0 {
		return Finding{Outcome: Skipped, Evidence: "no earlier command is running: start one, such as sleep, before probe"}
	}
	var last syscall.Errno
	reached, refused := 0, 0
	for _, p := range list[:min(len(list), maxOutsiders)] {
		switch e := errnoOf(unix.Kill(p.pid, 0)); e {
		case 0:
			reached++
		case unix.ESRCH:
		default:
			refused, last = refused+1, e
		}
	}
	f := Finding{Outcome: Reachable, Syscall: "kill", Evidence: fmt.Sprintf("%d of %d processes may be signalled", reached, len(list))}
	switch {
	case reached > 0:
	case refused > 0:
		f.Errno = errnoName(last)
		f.Outcome, f.Mechanism = judgeProcess(s.facts, last, true)
		f.Evidence += ", " + sysErr("kill", last)
	default:
		f.Outcome = Skipped
	}
	return f
}

func workMemfd(s *site, _ string) Finding {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return s.broken("memfd_create", errnoOf(err))
	}
	defer unix.Close(fd)
	f := s.wakeIn(fd)
	if f.Outcome != Reachable {
		return f
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return s.broken("fcntl(F_ADD_SEALS)", errnoOf(err))
	}
	f.Evidence = "a file in memory was made, mapped and sealed"
	return f
}
