package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structs and ioctls of uapi linux/seccomp.h.
type (
	notif struct {
		id        uint64
		pid       uint32
		flags     uint32
		nr        int32
		arch      uint32
		ip        uint64
		arguments [6]uint64
	}
	notifResp struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
	notifAddfd struct {
		id         uint64
		flags      uint32
		srcfd      uint32
		newfd      uint32
		newfdFlags uint32
	}
)

const (
	ioctlRecv    = 0xc0502100
	ioctlSend    = 0xc0182101
	ioctlIDValid = 0x40082102
	ioctlAddfd   = 0x40182103

	respContinue = 1
)

// filterProgram traps the three Landlock calls of this machine's own ABI and lets all else through.
func filterProgram() []unix.SockFilter {
	const landlock, userNotif, allow = unix.SYS_LANDLOCK_CREATE_RULESET, 0x7fc00000, 0x7fff0000
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4}, // arch
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // nr
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: landlock, Jf: 2},
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: landlock + 2, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: userNotif},
		{Code: unix.BPF_RET | unix.BPF_K, K: allow},
	}
}

// installFilter puts the filter on the calling thread and returns its listener.
func installFilter() (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("no_new_privs: %w", err)
	}
	program := filterProgram()
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, fmt.Errorf("seccomp with a listener: %w", errno)
	}
	return int(fd), nil
}

// A supervisor answers the calls of one tree of processes.
type supervisor struct {
	kernel
	listener int

	mu       sync.Mutex
	rulesets []made
}

// made is a ruleset that was made for a caller: what it thinks it handles, and the number that it knows it by.
type made struct {
	tgid, fd int
	claim    rights
}

// serve answers until nobody is left to ask. An error means that a call could not be answered truly: the caller, who still waits
// for it, must not go on.
func (s *supervisor) serve() (caller int, err error) {
	for {
		p := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil {
			if err == unix.EINTR {
				continue
			}
			return 0, err
		}
		if p[0].Revents&unix.POLLIN == 0 {
			return 0, nil // POLLHUP
		}
		var n notif
		if errno := s.ioctl(ioctlRecv, unsafe.Pointer(&n)); errno != 0 {
			if errno == unix.EINTR || errno == unix.ENOENT {
				continue // the caller was killed meanwhile
			}
			return 0, fmt.Errorf("receiving a call: %w", errno)
		}
		a, err := s.decide(&n)
		if err != nil {
			if !s.valid(n.id) {
				continue // it is gone; so is what it asked
			}
			return int(n.pid), err
		}
		r := notifResp{id: n.id, value: a.value, errno: -int32(a.errno)}
		if a.pass {
			r.flags = respContinue
		}
		if errno := s.ioctl(ioctlSend, unsafe.Pointer(&r)); errno != 0 && errno != unix.ENOENT {
			return int(n.pid), fmt.Errorf("answering a call: %w", errno)
		}
	}
}

func (s *supervisor) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), request, uintptr(arg))
	return errno
}

func (s *supervisor) valid(id uint64) bool { return s.ioctl(ioctlIDValid, unsafe.Pointer(&id)) == 0 }

func (s *supervisor) decide(n *notif) (answer, error) {
	arg := n.arguments
	read := func(address uint64, size int) ([]byte, error) {
		b := make([]byte, size)
		local := []unix.Iovec{{Base: &b[0], Len: uint64(size)}}
		remote := []unix.RemoteIovec{{Base: uintptr(address), Len: size}}
		got, err := unix.ProcessVMReadv(int(n.pid), local, remote, 0)
		if err != nil {
			return nil, fmt.Errorf("reading the argument of process %d: %w%s", n.pid, err, readHint(err))
		}
		if !s.valid(n.id) {
			return nil, unix.ESRCH // another process may have the number by now
		}
		if got < size {
			return nil, unix.EFAULT
		}
		return b, nil
	}
	switch n.nr {
	case unix.SYS_LANDLOCK_CREATE_RULESET:
		a, err := s.create(arg[0], arg[1], arg[2], func(size int) ([]byte, error) { return read(arg[0], size) })
		if errors.Is(err, unix.EFAULT) {
			return answer{errno: unix.EFAULT}, nil
		}
		if err != nil || a.make == nil {
			return a, err
		}
		return s.makeFor(n, a)
	case unix.SYS_LANDLOCK_RESTRICT_SELF:
		return s.restrict(arg[1])
	case unix.SYS_LANDLOCK_ADD_RULE:
		if s.abi == 0 || s.abi <= s.real {
			a, _, _ := s.rule(arg[1], 0, arg[3], rights{})
			return a, nil // nothing in the rule can be newer than the kernel
		}
		size := 12 // struct landlock_path_beneath_attr is packed
		if arg[1] == ruleNetPort {
			size = 16
		}
		raw, err := read(arg[2], size)
		if errors.Is(err, unix.EFAULT) {
			return answer{pass: true}, nil // the kernel's own EFAULT
		}
		if err != nil {
			return answer{}, err
		}
		return s.addFor(n, raw)
	}
	return answer{pass: true}, nil
}

func readHint(err error) string {
	if errors.Is(err, unix.EPERM) {
		return " (it is not dumpable, or Yama's ptrace_scope is 2 or more: run abiwrap as root with --uid)"
	}
	return ""
}

// makeFor makes the ruleset that this kernel can make and gives it to the caller.
func (s *supervisor) makeFor(n *notif, a answer) (answer, error) {
	attr := a.make.encode(s.real)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
	if errno != 0 {
		return answer{}, fmt.Errorf("making a ruleset for the caller: %w", errno)
	}
	defer unix.Close(int(fd))
	add := notifAddfd{id: n.id, srcfd: uint32(fd), newfdFlags: unix.O_CLOEXEC}
	theirs, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.listener), ioctlAddfd, uintptr(unsafe.Pointer(&add)))
	if errno == unix.EMFILE {
		return answer{errno: errno}, nil
	}
	if errno != 0 {
		return answer{}, fmt.Errorf("giving the caller its ruleset: %w", errno)
	}
	tgid, err := tgidOf(n.pid)
	if err != nil {
		return answer{}, err
	}
	s.mu.Lock()
	s.rulesets = append(s.rulesets, made{tgid, int(theirs), a.claim})
	s.mu.Unlock()
	return answer{value: int64(theirs)}, nil
}

// addFor adds the rule to the caller's ruleset, with the rights that this kernel has.
func (s *supervisor) addFor(n *notif, raw []byte) (answer, error) {
	kind := n.arguments[1]
	tgid, err := tgidOf(n.pid)
	if err != nil {
		return answer{}, err
	}
	a, mask, redo := s.rule(kind, binary.NativeEndian.Uint64(raw), n.arguments[3], s.claimOf(tgid, int(int32(n.arguments[0]))))
	if !redo || mask == 0 {
		return a, nil
	}
	pidfd, err := unix.PidfdOpen(tgid, 0)
	if err != nil {
		return answer{}, err
	}
	defer unix.Close(pidfd)
	if !s.valid(n.id) {
		return answer{}, unix.ESRCH
	}
	ruleset, err := unix.PidfdGetfd(pidfd, int(int32(n.arguments[0])), 0)
	if err == unix.EBADF {
		return answer{errno: unix.EBADF}, nil
	}
	if err != nil {
		return answer{}, fmt.Errorf("getting the caller's ruleset: %w%s", err, readHint(err))
	}
	defer unix.Close(ruleset)
	attr := append([]byte(nil), raw...)
	binary.NativeEndian.PutUint64(attr, mask)
	if kind == rulePathBeneath {
		parent, err := unix.PidfdGetfd(pidfd, int(int32(binary.NativeEndian.Uint32(raw[8:]))), 0)
		if err != nil {
			return answer{errno: unix.EBADF}, nil
		}
		defer unix.Close(parent)
		binary.NativeEndian.PutUint32(attr[8:], uint32(parent))
	}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), uintptr(kind), uintptr(unsafe.Pointer(&attr[0])), 0, 0, 0)
	return answer{errno: errno}, nil
}

// claimOf says what the caller thinks that its ruleset handles. A ruleset that came by fork has its number still.
func (s *supervisor) claimOf(tgid, fd int) rights {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim := rightsOf(s.abi)
	for _, m := range s.rulesets { // the latest one counts: numbers are used again
		if m.fd == fd && m.tgid == tgid {
			claim = m.claim
		}
	}
	return claim
}

func tgidOf(tid uint32) (int, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(int(tid)) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no Tgid", tid)
}
