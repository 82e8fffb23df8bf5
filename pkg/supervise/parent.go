package supervise

// #include "parent.h"
import "C"

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/relay"
)

// Launch is a command that a supervisor stays above: its parent, so that Yama
// lets it look at the command and at whatever that starts.
type Launch struct {
	Args []string // of this program, again: it fences and becomes the command in the child
	// InUserNS says that this process is in a user namespace of its own, which
	// the child shall take over instead of making another.
	InUserNS bool
	Refused  error  // why there is no network namespace, for the child to say
	Hello    []byte // for the child
	Proxy    string // Unix socket that ProxyPort leads to, "" for none
}

// ProxyPort is where the proxy is found inside, on 127.0.0.1.
const ProxyPort = 3128

// hello is what the child is told first, reply what it gets for the listener.
type (
	hello struct{ Data []byte }
	reply struct {
		Err string
		Session
	}
)

// Session is what a child can test its supervisor with.
type Session struct {
	Own   Addresses
	Decoy uint16 // a port on 127.0.0.1 on which another listens
}

// Run starts the child, answers for it and ends as it does: it returns an exit
// code, and does not return when a signal ended the child. The caller's
// goroutine is on the main thread. An error means that nothing has run.
func (l Launch) Run() (code int, err error) {
	fail := func(what string, err error) (int, error) {
		return 0, fmt.Errorf("starting the supervisor of its connections: %s: %w", what, err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail("socketpair", err)
	}
	if _, err := unix.FcntlInt(uintptr(pair[1]), unix.F_SETFD, 0); err != nil {
		return fail("fcntl", err)
	}
	// What loses its parent becomes ours: under Yama a stranger's memory and
	// descriptors are closed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fail("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	sys := &unix.SysProcAttr{Pdeathsig: unix.SIGKILL} // as if we had been it
	if l.InUserNS {
		if sys.AmbientCaps, err = permitted(); err != nil {
			return fail("capget", err)
		}
	}
	C.fence_forward()
	argv := append([]string{name(l.InUserNS, pair[1], l.Refused)}, l.Args[1:]...)
	pid, err := syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: sys})
	if err != nil {
		return fail("fork", err)
	}
	C.fence_forward_to(C.int(pid))
	unix.Close(pair[1])
	go l.handshake(pair[0])
	// From here on everything is the child's: its errors, its exit code.
	letGo(pair[0])
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fail("wait", err)
		case got != pid: // somebody's who ended before
		case ws.Stopped():
			C.fence_stop_as(C.int(ws.StopSignal()))
		case ws.Signaled():
			C.fence_die_of(C.int(ws.Signal()))
			return 128 + int(ws.Signal()), nil
		default:
			return ws.ExitStatus(), nil
		}
	}
}

// letGo gives up what the child has from us: whoever reads its output waits
// for its end, and its folder may be taken away. What cannot be given up is no
// reason to end it.
func letGo(keep int) {
	_ = os.Chdir("/")
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	if null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		for fd := range 3 {
			_ = unix.Dup3(null, fd, 0)
		}
		unix.Close(null)
	}
	f, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < 3 || fd == keep {
			continue
		}
		// Ours are closed at exec; the caller's were not.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}

// permitted are the capabilities that this process has.
func permitted() ([]uintptr, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return nil, err
	}
	var out []uintptr
	for c := range 64 {
		if have[c/32].Permitted&(1<<(c%32)) != 0 {
			out = append(out, uintptr(c))
		}
	}
	return out, nil
}

// handshake gives the child its hello, takes its listener and begins to serve.
// Whatever goes wrong is told to the child, who must not run the command then.
func (l Launch) handshake(conn int) {
	defer unix.Close(conn)
	if err := send(conn, hello{l.Hello}); err != nil {
		return
	}
	listener, err := receive(conn)
	if err != nil {
		return // it ended, and has said why
	}
	s, decoy, err := l.begin(listener)
	r := reply{Session: Session{Own: s.own, Decoy: decoy.port}}
	if err != nil {
		r = reply{Err: err.Error()}
	}
	if err := send(conn, r); err != nil {
		return
	}
	_, _ = unix.Read(conn, make([]byte, 1)) // its self-test is over: it becomes the command
	unix.Close(decoy.fd)
}

type decoy struct {
	fd   int
	port uint16
}

func (l Launch) begin(listener int) (*supervisor, decoy, error) {
	s := &supervisor{listener: listener, made: map[uint32]bool{}, expect: map[uint32]bool{}}
	none := decoy{fd: -1}
	var err error
	if s.own, err = choose(); err != nil {
		return s, none, err
	}
	fd, at, inode, err := listenAt(endpoint{ip: [4]byte{127, 0, 0, 1}}, 1)
	if err != nil {
		return s, none, fmt.Errorf("listening on 127.0.0.1, to see that it is refused: %w", err)
	}
	d := decoy{fd, at.port}
	if s.diag, err = newDiag(at, inode); err != nil {
		return s, d, err
	}
	if l.Proxy != "" {
		if err := s.leadTo(l.Proxy); err != nil {
			return s, d, err
		}
	}
	s.serve()
	return s, d, nil
}

// listenAt makes a listener of our own.
func listenAt(at endpoint, backlog int) (fd int, got endpoint, inode uint32, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, got, 0, err
	}
	if err = unix.Bind(fd, sockaddr(unix.AF_INET, at.ip, at.port)); err == nil {
		err = unix.Listen(fd, backlog)
	}
	var sa unix.Sockaddr
	if err == nil {
		sa, err = unix.Getsockname(fd)
	}
	if err == nil {
		got.ip, got.port = ipOf(sa)
		inode, err = inodeOf(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, got, 0, err
	}
	return fd, got, inode, nil
}

// leadTo opens the way to the proxy. Others on the node can connect to it as
// to any server of the session: it takes only connections of the session.
func (s *supervisor) leadTo(socket string) error {
	fail := func(err error) error {
		return fmt.Errorf("leading 127.0.0.1:%d to the proxy at %s: %w", ProxyPort, socket, err)
	}
	dir, name, err := relay.Open(socket)
	if err != nil {
		return fail(err)
	}
	fd, at, inode, err := listenAt(endpoint{s.own.V4, ProxyPort}, 128)
	if err != nil {
		unix.Close(dir)
		return fail(err)
	}
	s.relay = at
	s.remember(inode)
	go relay.Serve(fd, dir, name, s.takes)
	return nil
}

// Child is the process that becomes the command.
type Child struct {
	InUserNS bool
	Refused  error // why there is no network namespace
	Hello    []byte
	conn     int
}

// name is the first argument that makes a child of this program one. The
// constructor of pkg/sandbox reads it too.
func name(inUserNS bool, conn int, refused error) string {
	var errno unix.Errno
	errors.As(refused, &errno)
	in := 0
	if inUserNS {
		in = 1
	}
	return fmt.Sprintf("fence:%d:%d:%d", in, conn, int(errno))
}

// Inside is the child if this process is one, nil if it is not. Whoever calls
// fence by such a name himself gets an error.
func Inside(arg0 string) (*Child, error) {
	rest, ok := strings.CutPrefix(arg0, "fence:")
	if !ok {
		return nil, nil
	}
	var in, conn, errno int
	if n, err := fmt.Sscanf(rest, "%d:%d:%d", &in, &conn, &errno); n != 3 || err != nil {
		return nil, fmt.Errorf("%q is no name that fence starts itself by", arg0)
	}
	unix.CloseOnExec(conn)
	c := &Child{InUserNS: in == 1, Refused: errors.New("not asked for"), conn: conn}
	if errno != 0 {
		c.Refused = unix.Errno(errno)
	}
	var h hello
	if err := receiveJSON(conn, &h); err != nil {
		return nil, fmt.Errorf("hearing from the supervisor: %w", err)
	}
	c.Hello = h.Data
	return c, nil
}

// HandOver gives the supervisor the listener of the filter that was just
// loaded, and waits until it serves.
func (c *Child) HandOver(listener int) (Session, error) {
	if err := unix.Sendmsg(c.conn, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return Session{}, os.NewSyscallError("sendmsg", err)
	}
	var r reply
	if err := receiveJSON(c.conn, &r); err != nil {
		return Session{}, fmt.Errorf("hearing from the supervisor: %w", err)
	}
	if r.Err != "" {
		if said, ok := strings.CutSuffix(r.Err, relay.ErrNone.Error()); ok { // which is text by now
			return Session{}, fmt.Errorf("%s%w", said, relay.ErrNone)
		}
		return Session{}, errors.New(r.Err)
	}
	return r.Session, nil
}

func receive(conn int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(conn, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return -1, io.ErrUnexpectedEOF
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(messages) != 1 {
			return -1, io.ErrUnexpectedEOF
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return -1, io.ErrUnexpectedEOF
		}
		return fds[0], nil
	}
}

// send writes a value with its length before it, by write(2): the child's
// filter has no say in that.
func send(conn int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	data = append(binary.NativeEndian.AppendUint32(nil, uint32(len(data))), data...)
	for len(data) > 0 {
		n, err := unix.SendmsgN(conn, data, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func receiveJSON(conn int, v any) error {
	head, err := readFull(conn, 4)
	if err != nil {
		return err
	}
	size := binary.NativeEndian.Uint32(head)
	if size > 64<<20 {
		return fmt.Errorf("a message of %d bytes", size)
	}
	data, err := readFull(conn, int(size))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

func readFull(conn, size int) ([]byte, error) {
	buf := make([]byte, size)
	for got := 0; got < size; {
		n, err := unix.Read(conn, buf[got:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		got += n
	}
	return buf, nil
}

// Possible says why a node cannot have a supervisor, nil if it can. own says
// that the command will be in a user namespace of its own, over which the
// supervisor has all capabilities.
func Possible(own bool) error {
	var sizes [3]uint16 // struct seccomp_notif_sizes
	ask := uint32(unix.SECCOMP_RET_USER_NOTIF)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&ask)))
	if errno == 0 {
		_, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	}
	switch {
	case errno != 0:
		return fmt.Errorf("this kernel's seccomp cannot ask a supervisor (%w; it needs Linux 5.6)", errno)
	case sizes[0] > uint16(unsafe.Sizeof(notif{})) || sizes[1] > uint16(unsafe.Sizeof(response{})):
		return errors.New("this kernel's seccomp speaks to a supervisor in a form that is not known here")
	}
	if _, err := unix.PidfdGetfd(-1, 0, 0); err != unix.EBADF {
		return fmt.Errorf("pidfd_getfd: %w (Linux 5.6 has it; a filter around this process may refuse it, as another fence does)", err)
	}
	if _, err := unix.ProcessVMReadv(os.Getpid(), nil, nil, 0); err != nil {
		return fmt.Errorf("process_vm_readv: %w", err)
	}
	data, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if scope, _ := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && (scope > 2 || scope == 2 && !own) {
		return fmt.Errorf("kernel.yama.ptrace_scope is %d, so that no process may look into another", scope)
	}
	return nil
}
