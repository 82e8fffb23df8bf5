package host

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock is what this kernel's Landlock enforces. The zero value is no
// Landlock at all.
type Landlock struct {
	ABI    int    `json:"abi"`    // what the kernel claims; 0: none
	Errata int    `json:"errata"` // faults that are mended, a bit each, see landlock_create_ruleset(2)
	FS     uint64 `json:"fs"`     // rights that a ruleset was accepted with, LANDLOCK_ACCESS_FS_*
	Net    uint64 `json:"net"`    // LANDLOCK_ACCESS_NET_*
	Scoped uint64 `json:"scoped"` // LANDLOCK_SCOPE_*
	// Err is why there is none: "ENOSYS" not built into the kernel,
	// "EOPNOTSUPP" not in the lsm= list of its boot line, else what the
	// call returned ("EPERM": a seccomp filter around us).
	Err string `json:"err,omitempty"`
}

// rights is one ruleset's worth of Landlock.
type rights struct{ fs, net, scoped uint64 }

// right is one bit of it, the ABI that brought it and the name it is called by.
type right struct {
	name string
	abi  int
	rights
}

// known lists every right up to ABI 11, in the kernel's order.
var known = [...]right{
	{"execute", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_EXECUTE}},
	{"write_file", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_WRITE_FILE}},
	{"read_file", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_READ_FILE}},
	{"read_dir", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_READ_DIR}},
	{"remove_dir", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_REMOVE_DIR}},
	{"remove_file", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_REMOVE_FILE}},
	{"make_char", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_CHAR}},
	{"make_dir", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_DIR}},
	{"make_reg", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_REG}},
	{"make_sock", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_SOCK}},
	{"make_fifo", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_FIFO}},
	{"make_block", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK}},
	{"make_sym", 1, rights{fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM}},
	{"refer", 2, rights{fs: unix.LANDLOCK_ACCESS_FS_REFER}},
	{"truncate", 3, rights{fs: unix.LANDLOCK_ACCESS_FS_TRUNCATE}},
	{"bind_tcp", 4, rights{net: unix.LANDLOCK_ACCESS_NET_BIND_TCP}},
	{"connect_tcp", 4, rights{net: unix.LANDLOCK_ACCESS_NET_CONNECT_TCP}},
	{"ioctl_dev", 5, rights{fs: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}},
	{"scope_abstract_unix", 6, rights{scoped: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}},
	{"scope_signal", 6, rights{scoped: unix.LANDLOCK_SCOPE_SIGNAL}},
	{"resolve_unix", 9, rights{fs: unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX}},
	{"bind_udp", 10, rights{net: unix.LANDLOCK_ACCESS_NET_BIND_UDP}},
	{"connect_udp", 10, rights{net: unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP}},
}

func (r *rights) add(s rights) {
	r.fs |= s.fs
	r.net |= s.net
	r.scoped |= s.scoped
}

// Has reports whether the kernel took the right of that name ("truncate").
func (l Landlock) Has(name string) bool {
	for _, k := range known {
		if k.name == name {
			return l.FS&k.fs|l.Net&k.net|l.Scoped&k.scoped != 0
		}
	}
	return false
}

// DetectLandlock asks the kernel, and believes only what it does: each right
// is in the answer because a ruleset with it was created. It is cheap enough
// to come before every exec.
func DetectLandlock() Landlock { return detectLandlock(createRuleset, askLandlock) }

// detectLandlock is DetectLandlock for any kernel: create makes a ruleset,
// ask is landlock_create_ruleset(2) with a flag only.
func detectLandlock(create func(rights) error, ask func(flag uintptr) (int, error)) Landlock {
	abi, err := ask(unix.LANDLOCK_CREATE_RULESET_VERSION)
	if err != nil || abi < 1 {
		return Landlock{Err: errnoName(err)}
	}
	l := Landlock{ABI: abi}
	if n, err := ask(unix.LANDLOCK_CREATE_RULESET_ERRATA); err == nil && n > 0 {
		l.Errata = n
	}
	var all, got rights
	for _, k := range known {
		if k.abi <= abi { // a newer bit could mean something else one day
			all.add(k.rights)
		}
	}
	if err = create(all); err == nil {
		got = all
	} else {
		// RHEL 9 claims ABI 6 and refuses the scopes: see what is there.
		for _, k := range known {
			if k.abi <= abi && create(k.rights) == nil {
				got.add(k.rights)
			}
		}
		if got == (rights{}) {
			l.Err = errnoName(err)
			return l
		}
		if err = create(got); err != nil { // what holds alone must hold together
			l.Err = errnoName(err)
			return l
		}
	}
	l.FS, l.Net, l.Scoped = got.fs, got.net, got.scoped
	return l
}

// createRuleset makes a ruleset and drops it again; nothing is restricted.
func createRuleset(r rights) error {
	attr := struct{ fs, net, scoped uint64 }{r.fs, r.net, r.scoped}
	fd, _, errno := syscall.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

func askLandlock(flag uintptr) (int, error) {
	n, _, errno := syscall.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, flag)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// errnoName is "EPERM" for what a system call returned, "" for success.
func errnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &errno):
		return err.Error()
	case errno == unix.EOPNOTSUPP: // the same number as ENOTSUP
		return "EOPNOTSUPP"
	case unix.ErrnoName(errno) == "":
		return errno.Error()
	}
	return unix.ErrnoName(errno)
}
