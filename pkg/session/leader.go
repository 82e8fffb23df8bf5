package session

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rlimits are those that a command can be given.
var rlimits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "memlock": unix.RLIMIT_MEMLOCK, "nofile": unix.RLIMIT_NOFILE,
	"nproc": unix.RLIMIT_NPROC, "stack": unix.RLIMIT_STACK,
}

type leader struct {
	c      *conn
	r      *reaper
	pids   map[uint64]int // of commands, also of those that have ended a moment ago
	scoped bool           // signals reach this domain only
}

// Lead is the leader: fence, started anew inside the fence, so that every
// thread of it lies inside. It returns when it cannot begin.
func Lead() error {
	// The commands run under the same user: they must not trace us, nor open
	// what is below our /proc/PID.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", err)
	}
	name := []byte("fence-leader\x00")
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_NAME)", err)
	}
	unix.CloseOnExec(leaderFD)
	c, err := newConn(leaderFD, maxRequest)
	if err != nil {
		return err
	}
	r, err := newReaper()
	if err != nil {
		return err
	}
	l := &leader{c: c, r: r, pids: map[uint64]int{}}
	if unix.Getppid() == 0 { // the broker is outside of our PID namespace
		l.scoped = true
		// As its first process we take no signal of a command's that we have no
		// handler for; the runtime has some, and would end.
		signal.Notify(make(chan os.Signal, 1))
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl(PR_SET_PDEATHSIG)", err)
		}
	} else {
		// Our parent is the broker, of this user and outside: if we could signal
		// it, kill(-1) would reach all that is this user's.
		l.scoped = errors.Is(unix.Kill(unix.Getppid(), 0), unix.EPERM)
	}
	tty, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(tty)
	}
	if err := c.send(news{Ready: true, TTY: err == nil, PID: os.Getpid()}); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { // not on the main thread: changing threads is dear
		defer close(done)
		for {
			var o order
			fds, err := c.recv(&o)
			if err != nil || o.End {
				l.end()
			}
			l.obey(o, fds)
			closeAll(fds)
		}
	}()
	<-done
	return nil
}

// end takes the domain along, in one step that no fork escapes.
func (l *leader) end() {
	if l.scoped {
		_ = unix.Kill(-1, unix.SIGKILL)
	}
	os.Exit(0) // the broker kills what is left
}

func (l *leader) obey(o order, fds []int) {
	if o.Start != nil {
		if failed := l.start(o.ID, o.Start, fds); failed != nil {
			l.tell(news{ID: o.ID, Failed: failed})
		}
		return
	}
	l.r.mu.Lock()
	pid := l.pids[o.ID]
	l.r.mu.Unlock()
	l.r.with(pid, func(p *proc) {
		if o.Last {
			p.last = true
		}
		if o.Signal > 0 {
			_ = unix.Kill(-pid, unix.Signal(o.Signal))
		}
		if o.Kill {
			killSession(pid)
		}
	})
}

func (l *leader) tell(n news) {
	if l.c.send(n) != nil {
		l.end() // the broker is gone
	}
}

// start runs one command, the leader of a session and process group of its own.
func (l *leader) start(id uint64, c *Command, fds []int) *Error {
	files := []uintptr{}
	for _, fd := range fds {
		files = append(files, uintptr(fd))
	}
	sys := &syscall.SysProcAttr{Setsid: true}
	if c.TTY != nil {
		files = []uintptr{files[0], files[0], files[0]}
		sys.Setctty = true // of descriptor 0
	}
	attr := &syscall.ProcAttr{Dir: c.Dir, Env: environ(c.Env), Files: files, Sys: sys}
	if c.Dir != "" {
		if err := unix.Access(c.Dir+"/.", unix.X_OK); err != nil {
			return errorf(CodeNotRun, "the folder %s: %v", c.Dir, err)
		}
	}
	file, argv := "/proc/self/exe", append([]string{"fence", "inside", c.Tool}, c.Argv...)
	if c.Tool == "" {
		var failed *Error
		if file, failed = look(c.Argv[0], c.Dir, attr.Env); failed != nil {
			return failed
		}
		argv = c.Argv
	}
	if len(c.Limits) > 0 {
		// No other process may set them: prlimit(2) is refused here.
		argv = slices.Concat([]string{"fence", "inside", "limit", formatLimits(c.Limits), file}, argv)
		file = "/proc/self/exe"
	}
	started := make(chan struct{})
	if c.Umask != nil { // of the whole process, which makes nothing else meanwhile
		defer unix.Umask(unix.Umask(*c.Umask))
	}
	pid, err := l.r.start(file, argv, attr, func(ws unix.WaitStatus, ru *unix.Rusage) {
		<-started
		l.r.mu.Lock()
		delete(l.pids, id)
		l.r.mu.Unlock()
		l.tell(news{ID: id, Exit: exitOf(ws, ru)})
	})
	if err != nil {
		return cannot(c.Argv, err)
	}
	l.r.mu.Lock()
	l.pids[id] = pid
	l.r.mu.Unlock()
	l.tell(news{ID: id, Started: true})
	close(started)
	return nil
}

func exitOf(ws unix.WaitStatus, ru *unix.Rusage) *Exit {
	e := &Exit{Code: ws.ExitStatus(), UserUS: ru.Utime.Nano() / 1000, SystemUS: ru.Stime.Nano() / 1000, MaxRSSKB: ru.Maxrss}
	if ws.Signaled() {
		e.Signal, e.Code = int(ws.Signal()), 128+int(ws.Signal())
	}
	return e
}

func cannot(argv []string, err error) *Error {
	name := "fence"
	if len(argv) > 0 {
		name = argv[0]
	}
	switch err {
	case unix.ENOENT, unix.ENOTDIR:
		return &Error{CodeNotFound, name + ": no such command inside the fence", "or what its #! line names is not there"}
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return errorf(CodeNotRun, "%s was not run: %v", name, err)
	}
	return errorf(CodeCannot, "executing %s: %v", name, err)
}

// environ is ours with the variables over it. Of two equal names the last
// counts: which one a program takes is its own affair.
func environ(over []string) []string {
	var env []string
	seen := map[string]bool{}
	for _, kv := range slices.Backward(slices.Concat(os.Environ(), over)) {
		if name, _, _ := strings.Cut(kv, "="); !seen[name] {
			seen[name] = true
			env = append(env, kv)
		}
	}
	slices.Reverse(env)
	return env
}

// look finds a command as a shell does, in the PATH that it will have and
// seen from the folder that it starts in.
func look(name, dir string, env []string) (string, *Error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	search, denied := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", false
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok && v != "" {
			search = v
		}
	}
	for _, d := range strings.Split(search, ":") {
		file := path.Join(d, name)
		at := file
		if !path.IsAbs(file) {
			file = "./" + file
			at = path.Join(dir, file)
		}
		var st unix.Stat_t
		if name == "" || unix.Stat(at, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if unix.Access(at, unix.X_OK) == nil {
			return file, nil
		}
		denied = true
	}
	if denied {
		return "", cannot([]string{name}, unix.EACCES)
	}
	return "", &Error{CodeNotFound, name + ": no such command inside the fence", "PATH inside is " + search}
}

func formatLimits(limits map[string]uint64) string {
	var list []string
	for name, v := range limits {
		list = append(list, name+"="+strconv.FormatUint(v, 10))
	}
	return strings.Join(list, ",")
}

// Inside is fence as a command of a domain: "put DIR", "get DIR PATH...", and
// "limit LIST FILE ARGV..." which becomes another command.
func Inside(args []string) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", err)
	}
	switch {
	case len(args) == 2 && args[0] == "put":
		return unpack(args[1], os.Stdin)
	case len(args) > 2 && args[0] == "get":
		return pack(args[1], args[2:], os.Stdout)
	case len(args) > 3 && args[0] == "limit":
		for item := range strings.SplitSeq(args[1], ",") {
			name, value, _ := strings.Cut(item, "=")
			which, ok := rlimits[name]
			v, err := strconv.ParseUint(value, 10, 64)
			if err != nil || !ok {
				return errorf(CodeNotRun, "the limit %q is not known", item)
			}
			if err := unix.Setrlimit(which, &unix.Rlimit{Cur: v, Max: v}); err != nil {
				return errorf(CodeNotRun, "setting the limit %s: %v", item, err)
			}
		}
		err := unix.Exec(args[2], args[3:], os.Environ())
		return cannot(args[3:], err)
	}
	return fmt.Errorf("a session starts this itself")
}
