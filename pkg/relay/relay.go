// Package relay carries bytes between a listening TCP socket inside a fence and
// a Unix socket outside. It reads nothing of what it carries.
package relay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// Descriptors that Start hands over, beyond the standard ones.
const (
	listener = 3 + iota // the listening socket
	folder              // O_PATH of the folder that the Unix socket lies in
	owner               // a pidfd of the process with whose end the relay ends
)

// Start begins to carry connections of the listening socket l to the Unix
// socket name in the folder dir (O_PATH: a mask may come to lie over its path,
// and a proxy that starts anew makes a new socket there). It returns when the
// relay runs, which is then nobody's child: a command that waits for all of
// its children would wait for it.
func Start(l, dir int, name string) error {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	return start([]uintptr{uintptr(l), uintptr(dir), uintptr(pidfd)}, "relay", name)
}

// ErrNone says that there is no such socket, or none yet.
var ErrNone = errors.New("there is no such socket")

// Open finds the folder of a Unix socket (O_PATH) and its name there.
func Open(socket string) (dir int, name string, err error) {
	if dir, err = unix.Open(path.Dir(socket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == unix.ENOENT {
		return -1, "", ErrNone
	} else if err != nil {
		return -1, "", err
	}
	name = path.Base(socket)
	fd, err := find(dir, name)
	if err != nil {
		unix.Close(dir)
		return -1, "", err
	}
	unix.Close(fd)
	return dir, name, nil
}

// find opens the socket itself (O_PATH). No link is followed: a command that
// may write in the folder could put one there.
func find(dir int, name string) (int, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
	if err == unix.ELOOP {
		return -1, errors.New("it is a link: name the socket itself")
	}
	if err == unix.ENOENT {
		return -1, ErrNone
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = errors.New("it is not a socket")
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// start becomes a new process with the descriptors, and waits for its answer.
func start(fds []uintptr, args ...string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := []*os.File{null, null, null} // whoever reads our output waits for its end
	for _, fd := range fds {
		dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
		}
		f := os.NewFile(uintptr(dup), "")
		defer f.Close()
		files = append(files, f)
	}
	p, err := os.StartProcess("/proc/self/exe", append([]string{"fence"}, args...), &os.ProcAttr{Dir: "/", Files: files, Env: []string{}})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	return err
}

// Main is the process that Start makes: args are "relay" and the socket's name.
func Main(args []string) error {
	if len(args) != 2 {
		return errors.New("fence starts its relay itself")
	}
	// Nothing of ours is for the command to read or to trace.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", err)
	}
	if args[0] == "relay" {
		return detach(args[1])
	}
	go func() {
		if err := waitFor(owner); err == nil {
			os.Exit(0)
		}
	}()
	return Serve(listener, folder, args[1], func(int) bool { return true })
}

// detach starts the relay proper and ends.
func detach(name string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	files := []*os.File{null, null, null}
	for fd := uintptr(listener); fd <= owner; fd++ {
		files = append(files, os.NewFile(fd, ""))
	}
	_, err = os.StartProcess("/proc/self/exe", []string{"fence", "relay-serve", name},
		&os.ProcAttr{Dir: "/", Files: files, Env: []string{}, Sys: &unix.SysProcAttr{Setsid: true}})
	return err
}

func waitFor(pidfd int) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return err
		}
	}
}

// Serve carries connections of the listening socket l to the Unix socket name
// in dir, those that takes says yes to. It returns only an error.
func Serve(l, dir int, name string, takes func(conn int) bool) error {
	for {
		fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch {
		case err == nil && !takes(fd):
			unix.Close(fd)
		case err == nil:
			go carry(fd, dir, name)
		case err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOBUFS || err == unix.ENOMEM:
			// Those that are there end some time; until then nobody is let in.
			if _, err := unix.Poll(nil, 10); err != nil && err != unix.EINTR {
				return err
			}
		case err != unix.EINTR && err != unix.ECONNABORTED:
			return os.NewSyscallError("accept", err)
		}
	}
}

// carry copies both ways until both have ended. A proxy that is not there
// closes the connection.
func carry(fd, dir int, name string) {
	inside := os.NewFile(uintptr(fd), "inside")
	defer inside.Close()
	up, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	socket, err := find(dir, name)
	if err == nil {
		err = unix.Connect(up, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", socket)})
		unix.Close(socket)
	}
	if err == nil {
		err = unix.SetNonblock(up, true)
	}
	outside := os.NewFile(uintptr(up), "outside")
	defer outside.Close()
	if err != nil {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]*os.File{{inside, outside}, {outside, inside}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			// The other way may go on: a request is sent, its answer is not here yet.
			if raw, err := way[1].SyscallConn(); err == nil {
				_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
			}
		})
	}
	both.Wait()
}
