package session

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// at calls f with the address of path. One too long for an address (107
// bytes) is reached through a descriptor of its folder.
func at(path string, f func(unix.Sockaddr) error) error {
	if strings.HasPrefix(path, "@") {
		path = "./" + path // a file, not a name without one (unix(7), abstract)
	}
	if len(path) <= 107 {
		return f(&unix.SockaddrUnix{Name: path})
	}
	if len(filepath.Base(path)) > 80 {
		return errors.New("the name of a socket has at most 80 bytes")
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return f(&unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path))})
}

// peer is whose the other side of a socket is, and whether that is this user
// or root: others get nothing from us, nor we from them.
func peer(fd int) (uid uint32, known bool) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, false
	}
	return c.Uid, c.Uid == 0 || int(c.Uid) == os.Geteuid()
}

type strangerError struct{ uid uint32 }

func (e strangerError) Error() string {
	return fmt.Sprintf("it is a socket of another user's (uid %d)", e.uid)
}

// Listen makes the socket at path, for this user only, in place of one that
// nobody listens on any more. remove takes it away again, if it is still it.
func Listen(path string) (fd int, remove func(), err error) {
	wrong := func(hint, format string, a ...any) (int, func(), error) {
		return -1, nil, &Error{CodeUsage, "--socket: " + path + ": " + fmt.Sprintf(format, a...), hint}
	}
	// Two at once must not each take the other's for a dead one's.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return wrong("", "%v", errors.Unwrap(err))
	}
	defer dir.Close()
	for until := time.Now().Add(2 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == unix.EWOULDBLOCK && time.Now().After(until) {
			return wrong(`use a folder of your own: --socket "$(mktemp -d)/s"; lslocks says who it is`, "somebody keeps its folder locked")
		} else if err == nil || err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.ENOLCK {
			break
		} else if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return wrong("", "locking its folder: %v", err)
		}
	}
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case err == unix.ENOENT:
	case err != nil:
		return wrong("", "%v", err)
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return wrong("", "there is something else, which is not a socket")
	default:
		c, err := connect(path)
		if err == nil {
			c.close()
			return wrong("fence run --socket "+path+" --status says what it is", "another session is there")
		}
		if errors.As(err, &strangerError{}) {
			return wrong("", "%v", err)
		}
		if err := unix.Unlink(path); err != nil {
			return wrong("", "removing what a session left: %v", err)
		}
	}
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, nil, os.NewSyscallError("socket", err)
	}
	mask := unix.Umask(0o177)
	err = at(path, func(sa unix.Sockaddr) error { return unix.Bind(fd, sa) })
	unix.Umask(mask)
	if err == nil {
		err = unix.Listen(fd, 128)
	}
	if err == nil {
		err = unix.Lstat(path, &st)
	}
	if err != nil {
		unix.Close(fd)
		switch err {
		case unix.EPERM, unix.EOPNOTSUPP, unix.EINVAL, unix.ENOSYS, unix.EIO, unix.ENXIO:
			return wrong(`use a folder on the node's own disk: --socket "$(mktemp -d)/s"`, "this filesystem holds no sockets (%v)", err)
		}
		return wrong("", "%v", err)
	}
	return fd, func() {
		var now unix.Stat_t
		if unix.Lstat(path, &now) == nil && now.Ino == st.Ino && now.Dev == st.Dev {
			_ = unix.Unlink(path)
		}
	}, nil
}

// Host starts argv, which becomes the container with the broker in it, and
// passes on to it what connects to the socket at path, so that there is no
// way to the socket inside. It returns the exit code of argv, and leaves
// nothing of it behind; it ends with the process that started it.
func Host(path string, argv []string) (int, error) {
	file, failed := look(argv[0], "", os.Environ())
	if failed != nil {
		failed.Text = strings.TrimSuffix(failed.Text, " inside the fence")
		failed.Hint = ""
		return 0, failed
	}
	parent, ppid := -1, os.Getppid()
	if ppid != 0 { // 0 is one outside of our PID namespace, as of a container's first process
		var err error
		if parent, err = unix.PidfdOpen(ppid, 0); err != nil {
			return 0, os.NewSyscallError("pidfd_open", err)
		}
	}
	l, remove, err := Listen(path)
	if err != nil {
		return 0, err
	}
	defer remove()
	c, theirs, err := pair(maxNews)
	if err != nil {
		return 0, err
	}
	r, err := newReaper()
	if err != nil {
		return 0, err
	}
	code := make(chan int, 1)
	// A session of its own, by which the runtime's helpers can be found. 3 is
	// close-on-exec already, and so is what we have.
	pid, err := r.start(file, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{uintptr(theirs), 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}},
		func(ws unix.WaitStatus, ru *unix.Rusage) { code <- exitOf(ws, ru).Code })
	unix.Close(theirs)
	if err != nil {
		return 0, cannot(argv, err)
	}
	r.with(pid, func(p *proc) { p.last = true })
	go func() {
		for {
			fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
			if err == nil {
				if _, known := peer(fd); !known {
					unix.Close(fd)
					continue
				}
				if err := c.send(request{Connect: true}, fd); err != nil && !errors.Is(err, os.ErrClosed) {
					fmt.Fprintf(os.Stderr, "fence: a client could not be passed on to the session: %v\n", err)
				}
				unix.Close(fd)
			} else if err != unix.EINTR && err != unix.ECONNABORTED {
				return
			}
		}
	}()
	told := make(chan os.Signal, 4)
	signal.Notify(told, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	gone := make(chan struct{})
	if parent >= 0 {
		go func() { _ = watch(parent); close(gone) }()
	}
	for {
		select {
		case n := <-code:
			r.sweep() // helpers of a runtime that was killed
			return n, nil
		case <-told:
		case <-gone:
			gone = nil
		}
		// The broker sees the end of its channel; the runtime ends with it.
		c.close()
		told = nil
		go func() {
			// Unless it never came so far.
			time.Sleep(patience)
			r.with(pid, func(*proc) { _ = unix.Kill(pid, unix.SIGTERM) })
		}()
	}
}

// tail keeps the end of what is written to it.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 4096 {
		t.buf = t.buf[len(t.buf)-4096:]
	}
	return len(p), nil
}

// text is the last line, without the prefix.
func (t *tail) text(otherwise string) string {
	lines := strings.Split(strings.TrimSpace(string(t.buf)), "\n")
	if s := strings.TrimPrefix(lines[len(lines)-1], "fence: "); s != "" {
		return s
	}
	return otherwise
}
