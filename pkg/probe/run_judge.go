package probe

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// facts are what is known of this process when an errno is read: an errno
// alone does not say who refused.
type facts struct {
	Filter bool // a seccomp filter is in force
	Layers int  // Landlock rulesets in force; -1: could not tell
	Caps   bool // it has capabilities
	LoOnly bool // no interface but lo is up
}

func factsOf(c Controls) facts {
	return facts{
		Filter: c.Seccomp.Mode == 2,
		Layers: c.Landlock.Layers,
		Caps:   strings.Trim(c.CapEff, "0") != "",
	}
}

func errnoName(e syscall.Errno) string {
	if e == 0 {
		return ""
	}
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("errno %d", int(e))
}

// errnoOf is the errno in err, 0 for no error, EIO for one that holds none.
func errnoOf(err error) syscall.Errno {
	for err != nil {
		if e, ok := err.(syscall.Errno); ok {
			return e
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return unix.EIO
		}
		err = u.Unwrap()
	}
	return 0
}

// judgePath reads the errno of opening or changing a path. dac says whether
// access(2) calls it allowed: Landlock does not hook that call, so it tells
// the ordinary permissions from a ruleset.
func judgePath(f facts, e syscall.Errno, dac bool) (Outcome, string) {
	switch e {
	case 0:
		return Reachable, ""
	case unix.ENOENT, unix.ENOTDIR, unix.ENXIO, unix.ENODEV:
		return Absent, ""
	case unix.EROFS:
		return Denied, "readonly_mount"
	case unix.EACCES:
		switch {
		case !dac:
			return Denied, "dac"
		case f.Layers > 0:
			return Denied, "landlock_fs"
		}
		return Denied, "lsm"
	case unix.EPERM:
		if f.Filter {
			return Denied, "unknown" // a filter, a capability or a flag of the inode
		}
		return Denied, "nnp_caps"
	case unix.ENOSYS:
		return noSyscall(f)
	}
	return Error, ""
}

// judgeSocket reads the errno of socket(2). known says that the kernel has
// the family and protocol, so that a refusal is somebody's.
func judgeSocket(f facts, e syscall.Errno, known bool) (Outcome, string) {
	switch e {
	case 0:
		return Reachable, ""
	case unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EPROTOTYPE:
		if known && f.Filter {
			return Denied, "seccomp_errno"
		}
		return Absent, ""
	case unix.EPERM, unix.EACCES:
		switch {
		case !known: // raw and packet sockets, ping sockets: asked with no privilege
			if f.Filter {
				return Denied, "unknown"
			}
			return Denied, "nnp_caps"
		case f.Filter:
			return Denied, "seccomp_errno"
		}
		return Denied, "lsm"
	case unix.ENOSYS:
		return noSyscall(f)
	case unix.EINVAL: // what a family says to a type that it does not have
		return Absent, ""
	}
	return Error, ""
}

// judgeConnect reads the errno of connecting, or binding, a TCP-like socket.
// local says that the address is this node's, where "refused" means that
// nothing listens; from elsewhere it is an answer.
func judgeConnect(f facts, e syscall.Errno, local bool) (Outcome, string) {
	switch e {
	case 0, unix.ECONNRESET:
		return Reachable, ""
	case unix.ECONNREFUSED:
		if local {
			return Absent, loMechanism(f, "")
		}
		return Reachable, ""
	case unix.EACCES:
		switch {
		case f.Layers > 0:
			return Denied, "landlock_net"
		case f.Filter:
			return Denied, "seccomp_errno"
		}
		return Denied, "lsm"
	case unix.EPERM:
		if f.Filter {
			return Denied, "seccomp_errno"
		}
		return Denied, "lsm" // a packet filter on the way out says so too
	case unix.EADDRNOTAVAIL:
		return Absent, loMechanism(f, "")
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ETIMEDOUT, unix.ENETDOWN, unix.EHOSTDOWN:
		return Unreachable, loMechanism(f, "")
	case unix.ENOSYS:
		return noSyscall(f)
	case unix.EOPNOTSUPP, unix.EPROTONOSUPPORT:
		if f.Filter {
			return Denied, "seccomp_errno"
		}
		return Denied, "sysctl"
	}
	return Error, ""
}

func loMechanism(f facts, otherwise string) string {
	if f.LoOnly {
		return "no_interface"
	}
	return otherwise
}

// judgeUnix reads the errno of connecting to a Unix socket.
func judgeUnix(f facts, e syscall.Errno, abstract, dac bool) (Outcome, string) {
	switch e {
	case 0, unix.EAGAIN, unix.EINPROGRESS, unix.EISCONN:
		return Reachable, "" // EAGAIN: the backlog is full, the door is open
	case unix.ECONNREFUSED:
		return Absent, "" // a stale path, or nobody of that name here
	case unix.EPROTOTYPE:
		return Reachable, "" // it is there and reachable, of a type we did not try
	case unix.EPERM:
		switch {
		case abstract && f.Layers > 0:
			return Denied, "landlock_scope"
		case f.Filter:
			return Denied, "seccomp_errno"
		}
		return Denied, "lsm"
	}
	return judgePath(f, e, dac)
}

// judgeProcess reads the errno of an attempt on another process. hooked says
// that Landlock has a say in it.
func judgeProcess(f facts, e syscall.Errno, hooked bool) (Outcome, string) {
	switch e {
	case 0:
		return Reachable, ""
	case unix.ESRCH, unix.ENOENT:
		return Absent, "pidns"
	case unix.EPERM, unix.EACCES:
		switch {
		case hooked && f.Layers > 0:
			return Denied, "landlock_scope"
		case f.Filter && !hooked:
			return Denied, "seccomp_errno"
		case f.Filter:
			return Denied, "unknown"
		}
		return Denied, "lsm"
	case unix.ENOSYS:
		return noSyscall(f)
	}
	return Error, ""
}

// judgeCall reads the errno of a system call made with arguments that cannot
// succeed: any answer but a refusal came from the code behind the door.
// capable says that the kernel itself asks for a capability first.
func judgeCall(f facts, e syscall.Errno, capable bool) (Outcome, string) {
	switch e {
	case unix.EPERM, unix.EACCES:
		switch {
		case capable && f.Filter:
			return Denied, "unknown"
		case f.Filter:
			return Denied, "seccomp_errno"
		case capable && !f.Caps:
			return Denied, "nnp_caps"
		case f.Layers > 0 && e == unix.EACCES:
			return Denied, "landlock_scope"
		}
		return Denied, "lsm"
	case unix.ENOSYS:
		return noSyscall(f)
	}
	return Reachable, ""
}

// judgeNamespace reads the errno of making a namespace.
func judgeNamespace(f facts, e syscall.Errno) (Outcome, string) {
	switch e {
	case 0:
		return Reachable, ""
	case unix.ENOSPC, unix.EUSERS:
		return Denied, "userns_limit"
	case unix.EPERM, unix.EACCES:
		if f.Filter {
			return Denied, "seccomp_errno"
		}
		return Denied, "sysctl"
	case unix.ENOSYS, unix.EINVAL:
		return noSyscall(f)
	}
	return Error, ""
}

// noSyscall: only behind a filter is a missing call a refusal.
func noSyscall(f facts) (Outcome, string) {
	if f.Filter {
		return Denied, "seccomp_errno"
	}
	return Absent, ""
}

// killedBySeccomp is the finding of an attempt that a filter killed for.
func killedBySeccomp() Finding {
	return Finding{Outcome: Denied, Mechanism: "seccomp_kill", Evidence: "the kernel killed the worker with SIGSYS"}
}
