// Package supervise is the network of a fenced command on a node that gives it
// no network namespace: only its own servers, on addresses that only it
// connects to.
//
// A filter asks about each connect, bind and listen (seccomp's user
// notification). The supervisor copies the address out of the command's
// memory once, duplicates the socket, decides on its copy (decide.go), and
// makes the call itself, on the duplicate: what another thread of the command
// changes meanwhile changes nothing. Nothing on TCP is handed back for the
// kernel to do. Below it Landlock denies the command TCP, so that a mistake
// here refuses and does not open; without a supervisor the calls fail (ENOSYS).
//
// It connects to sockets only that it made listen: a service of the host that
// listens on 0.0.0.0 answers on every address of 127.0.0.0/8, and anybody on
// the node may listen on the session's.
//
// What it does not do: keep others out. All users of the node share lo, and
// can connect to the command's servers.
package supervise

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxWorkers bounds the threads: each waits for a call, or in a connect to a
// server whose queue is full.
const maxWorkers = 256

// spare is how many of them wait where there is nothing to do.
const spare = 4

// supervisor answers the calls of one command and all that it starts.
type supervisor struct {
	own      Addresses
	listener int // SECCOMP_FILTER_FLAG_NEW_LISTENER
	diag     *diag
	wakeUp   bool

	workers, idle atomic.Int32

	mu     sync.Mutex
	made   map[uint32]bool // inodes of sockets that it made listen
	expect map[uint32]bool // and, if there is a relay, of those it connects to it
	relay  endpoint        // zero: none
}

// The structs of linux/seccomp.h.
type (
	notif struct {
		id   uint64
		pid  uint32 // of the thread
		_    uint32
		nr   int32
		arch uint32
		ip   uint64
		args [6]uint64
	}
	response struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

const (
	ioctlRecv  = unix.SECCOMP_IOCTL_NOTIF_RECV
	ioctlSend  = unix.SECCOMP_IOCTL_NOTIF_SEND
	ioctlValid = unix.SECCOMP_IOCTL_NOTIF_ID_VALID
	ioctlFlags = unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS
)

func (s *supervisor) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), request, uintptr(arg))
	return errno
}

func (s *supervisor) valid(id uint64) bool { return s.ioctl(ioctlValid, unsafe.Pointer(&id)) == 0 }

// serve begins to answer.
func (s *supervisor) serve() {
	// The caller waits for us and we then for it: one processor will do. Linux
	// 6.6; without it all is the same and slower.
	unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), ioctlFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	for range spare {
		s.start()
	}
}

func (s *supervisor) start() {
	if s.workers.Add(1) > maxWorkers {
		s.workers.Add(-1)
		return
	}
	s.idle.Add(1)
	go s.work()
}

func (s *supervisor) work() {
	defer s.workers.Add(-1)
	d, err := s.diag.again()
	if err != nil {
		s.idle.Add(-1)
		return // no descriptors left: others go on
	}
	defer d.close()
	for {
		var n notif
		errno := s.ioctl(ioctlRecv, unsafe.Pointer(&n))
		if s.idle.Add(-1) == 0 && errno == 0 {
			s.start()
		}
		switch errno {
		case 0:
			r := s.answer(&n, d)
			s.ioctl(ioctlSend, unsafe.Pointer(&r)) // ENOENT: the caller was killed meanwhile
		case unix.EINTR:
		case unix.ENOENT: // the caller was killed, or nobody is left
			p := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
			if _, err := unix.Poll(p, 0); err == nil && p[0].Revents&unix.POLLHUP != 0 {
				return
			}
		default:
			return
		}
		if s.idle.Add(1) > 2*spare && s.workers.Load() > 2*spare {
			s.idle.Add(-1)
			return
		}
	}
}

func (s *supervisor) answer(n *notif, d *diag) response {
	errno, goesOn := s.handle(n, d)
	r := response{id: n.id, errno: -int32(errno)}
	if goesOn {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	return r
}

var ops = map[int32]op{unix.SYS_CONNECT: opConnect, unix.SYS_BIND: opBind, unix.SYS_LISTEN: opListen}

// handle makes one call in the caller's place, or says that the kernel is to.
func (s *supervisor) handle(n *notif, d *diag) (errno unix.Errno, goesOn bool) {
	fd, err := s.duplicate(n)
	if err != nil {
		return errnoOf(err), false
	}
	defer unix.Close(fd)
	r := request{op: ops[n.nr]}
	if r.domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return errnoOf(err), false
	}
	if r.protocol, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil {
		return errnoOf(err), false
	}
	if r.op != opListen && (r.domain == unix.AF_INET || r.domain == unix.AF_INET6) {
		if r.addr, err = s.copyAddress(n); err != nil {
			return errnoOf(err), false
		}
	}
	a := s.own.decide(r)
	switch a.do {
	case goOn:
		return 0, true
	case connect:
		return errnoOf(s.connect(fd, r.domain, a, d)), false
	case disconnect:
		return errnoOf(disconnectSocket(fd)), false
	case bind:
		onlyV4(fd, r.domain)
		return errnoOf(unix.Bind(fd, sockaddr(r.domain, a.at[0], a.port))), false
	case listen:
		return errnoOf(s.listen(fd, r.domain, int(int32(n.args[1])), a)), false
	case refuse:
		return max(a.errno, 0), false
	}
	return unix.ENOSYS, false
}

// duplicate is the caller's socket as a descriptor of our own. Whatever the
// caller puts in its place afterwards, this one stays what it is.
func (s *supervisor) duplicate(n *notif) (int, error) {
	pidfd, err := openThread(n.pid)
	if err != nil {
		return -1, denied(err)
	}
	defer unix.Close(pidfd)
	if !s.valid(n.id) {
		return -1, unix.ESRCH // the number may be another's by now; nobody hears this
	}
	fd, err := unix.PidfdGetfd(pidfd, int(int32(n.args[0])), 0)
	return fd, denied(err)
}

// openThread is a pidfd of the thread or, before Linux 6.9, of its process,
// which has the same descriptors unless somebody made it otherwise.
func openThread(tid uint32) (int, error) {
	const pidfdThread = unix.O_EXCL
	fd, err := unix.PidfdOpen(int(tid), pidfdThread)
	if err != unix.EINVAL {
		return fd, err
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(int(tid)) + "/status")
	if err != nil {
		return -1, unix.ESRCH
	}
	_, rest, _ := strings.Cut(string(status), "\nTgid:\t")
	line, _, _ := strings.Cut(rest, "\n")
	tgid, err := strconv.Atoi(line)
	if err != nil {
		return -1, unix.ESRCH
	}
	return unix.PidfdOpen(tgid, 0)
}

// copyAddress copies the address out of the caller's memory, once.
func (s *supervisor) copyAddress(n *notif) ([]byte, error) {
	size := int(int32(n.args[2]))
	if size < 0 || size > unix.SizeofSockaddrAny+16 { // struct sockaddr_storage
		return nil, unix.EINVAL
	}
	if size == 0 {
		return nil, nil
	}
	buf := make([]byte, size)
	got, err := unix.ProcessVMReadv(int(n.pid), []unix.Iovec{{Base: &buf[0], Len: uint64(size)}},
		[]unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: size}}, 0)
	if err != nil {
		return nil, denied(err)
	}
	if !s.valid(n.id) {
		return nil, unix.ESRCH
	}
	if got < size {
		return nil, unix.EFAULT
	}
	return buf, nil
}

// connect connects to a listener that we made, at one of the addresses.
func (s *supervisor) connect(fd, domain int, a action, d *diag) error {
	onlyV4(fd, domain)
	for _, ip := range a.at {
		to := endpoint{ip, a.port}
		inode, err := d.find(to, endpoint{})
		if err != nil {
			return unix.EACCES
		}
		if inode == 0 || !s.ours(inode) {
			continue
		}
		if to == s.relay {
			return s.toRelay(fd, domain, to)
		}
		return connectTo(fd, domain, to)
	}
	// Nobody listens there. Of a socket that is connected already, or that a
	// connect failed on before, the kernel says that first.
	if _, err := unix.Getpeername(fd); err == nil {
		return unix.EISCONN
	}
	return unix.ECONNREFUSED
}

// listen makes a socket listen, on an address of ours and no other: without
// one the kernel would choose the wildcard address. What bind(2) gave stays,
// whatever the caller does to the socket meanwhile.
func (s *supervisor) listen(fd, domain, backlog int, a action) error {
	if len(a.at) == 0 {
		return unix.Listen(fd, backlog) // AF_UNIX
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if ip, _ := ipOf(at); !s.own.has(ip) {
		onlyV4(fd, domain)
		if err := unix.Bind(fd, sockaddr(domain, a.at[0], 0)); err != nil {
			return err
		}
	}
	inode, err := inodeOf(fd)
	if err != nil {
		return err
	}
	s.remember(inode)
	if err := unix.Listen(fd, backlog); err != nil {
		return err
	}
	at, err = unix.Getsockname(fd)
	if ip, _ := ipOf(at); err != nil || !s.own.has(ip) {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // cannot be
		return unix.EACCES
	}
	return nil
}

func connectTo(fd, domain int, to endpoint) error {
	for {
		if err := unix.Connect(fd, sockaddr(domain, to.ip, to.port)); err != unix.EINTR {
			return err
		}
	}
}

func (s *supervisor) ours(inode uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[inode]
}

func (s *supervisor) remember(inode uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note(s.made, inode)
}

// note adds a socket. Those that are gone are forgotten now and then.
func note(set map[uint32]bool, inode uint32) {
	if len(set) >= 4096 {
		if all, err := sockets(); err == nil {
			there := map[uint32]bool{}
			for _, k := range all {
				there[k.inode] = true
			}
			maps.DeleteFunc(set, func(i uint32, _ bool) bool { return !there[i] })
		}
	}
	set[inode] = true
}

// toRelay connects to the way to the proxy, which takes only sockets that it
// was told of.
func (s *supervisor) toRelay(fd, domain int, to endpoint) error {
	inode, err := inodeOf(fd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	note(s.expect, inode)
	s.mu.Unlock()
	err = connectTo(fd, domain, to)
	if err != nil && err != unix.EINPROGRESS && err != unix.EALREADY {
		s.mu.Lock()
		delete(s.expect, inode)
		s.mu.Unlock()
	}
	return err
}

// takes reports whether the relay may take a connection: one that we made.
// Whoever else connects is nobody of the session's.
func (s *supervisor) takes(conn int) bool {
	peer, err := unix.Getpeername(conn)
	if err != nil {
		return false
	}
	d, err := s.diag.again()
	if err != nil {
		return false
	}
	defer d.close()
	ip, port := ipOf(peer)
	inode, err := d.find(endpoint{ip, port}, s.relay)
	if err != nil || inode == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.expect[inode]
	delete(s.expect, inode)
	return ok
}

// onlyV4 makes an IPv6 socket take our addresses, which are mapped ones.
func onlyV4(fd, domain int) {
	if domain == unix.AF_INET6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0) // fails once it is bound: then it was done
	}
}

func disconnectSocket(fd int) error {
	addr := unix.RawSockaddrAny{} // AF_UNSPEC
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr)), unix.SizeofSockaddrInet6)
	if errno != 0 {
		return errno
	}
	return nil
}

func inodeOf(fd int) (uint32, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return uint32(st.Ino), err
}

// denied makes the kernel's refusal to look into the caller (it is not
// dumpable) one that programs know from sockets.
func denied(err error) error {
	if err == unix.EPERM {
		return unix.EACCES
	}
	return err
}

func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EACCES
}

// choose are addresses for a session that no socket of the node has, nor has
// had a minute ago: a random pair out of seven million.
func choose() (Addresses, error) {
	all, err := sockets()
	if err != nil {
		return Addresses{}, err
	}
	used := map[[4]byte]bool{}
	for _, s := range all {
		used[s.local.ip], used[s.remote.ip] = true, true
	}
	for range 100 {
		var r [3]byte
		if n, err := unix.Getrandom(r[:], 0); err != nil || n < len(r) {
			return Addresses{}, os.NewSyscallError("getrandom", err)
		}
		// Not 127.0.x.y, where systems have addresses of their own, nor an
		// address that ends in 0 or 255.
		a := [4]byte{127, 16 + r[0]%224, r[1], 2 + 2*(r[2]%126)}
		b := [4]byte{127, a[1], a[2], a[3] + 1}
		if !used[a] && !used[b] {
			return Addresses{a, b}, nil
		}
	}
	return Addresses{}, fmt.Errorf("no address of 127.0.0.0/8 is free")
}
