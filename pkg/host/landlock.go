package host

import (
	"cmp"
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock is what this kernel's Landlock enforces. The zero value is no
// Landlock at all.
type Landlock struct {
	ABI    int    `json:"abi"`           // what the kernel claims; 0: none
	Errata int    `json:"errata"`        // faults that are mended, a bit each, see landlock_create_ruleset(2)
	FS     uint64 `json:"fs"`            // rights that a ruleset was accepted with, LANDLOCK_ACCESS_FS_*
	Net    uint64 `json:"net"`           // LANDLOCK_ACCESS_NET_*
	Scoped uint64 `json:"scoped"`        // LANDLOCK_SCOPE_*
	Err    string `json:"err,omitempty"` // why there is none: "ENOSYS" not built in, "EOPNOTSUPP" not in lsm=, "EPERM" filtered, ...
}

// Rights are those of the filesystem, of the network, and scopes: the layout
// of struct landlock_ruleset_attr.
type Rights [3]uint64

// Brought holds the rights that each ABI brought, up to 11.
var Brought = [...]Rights{
	1:  {1<<13 - 1}, // LANDLOCK_ACCESS_FS_EXECUTE to _MAKE_SYM
	2:  {unix.LANDLOCK_ACCESS_FS_REFER},
	3:  {unix.LANDLOCK_ACCESS_FS_TRUNCATE},
	4:  {0, unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP},
	5:  {unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
	6:  {0, 0, unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL},
	9:  {unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
	10: {0, unix.LANDLOCK_ACCESS_NET_BIND_UDP | unix.LANDLOCK_ACCESS_NET_CONNECT_SEND_UDP},
}

// DetectLandlock asks the kernel, and believes only what it does: each right
// is in the answer because a ruleset with it was created. It is cheap enough
// to come before every exec.
func DetectLandlock() Landlock { return detectLandlock(createRuleset, askLandlock) }

// detectLandlock is DetectLandlock for any kernel: create makes a ruleset,
// ask is landlock_create_ruleset(2) with a flag only.
func detectLandlock(create func(Rights) error, ask func(flag uintptr) (int, error)) Landlock {
	abi, err := ask(unix.LANDLOCK_CREATE_RULESET_VERSION)
	if err != nil || abi < 1 {
		return Landlock{Err: ErrnoName(err)}
	}
	l := Landlock{ABI: abi}
	if n, err := ask(unix.LANDLOCK_CREATE_RULESET_ERRATA); err == nil && n > 0 {
		l.Errata = n
	}
	var all Rights
	for _, brought := range Brought[:min(abi+1, len(Brought))] { // a newer bit could mean something else one day
		for kind := range all {
			all[kind] |= brought[kind]
		}
	}
	got := all
	if err := create(all); err != nil {
		// RHEL 9 claims ABI 6 and refuses the scopes: see what is there.
		for kind := range all {
			for bit := uint64(1); bit <= all[kind]; bit <<= 1 {
				var one Rights
				if one[kind] = all[kind] & bit; one[kind] != 0 && create(one) != nil {
					got[kind] &^= bit
				}
			}
		}
		if create(got) != nil { // nothing, or what holds alone does not hold together
			l.Err = ErrnoName(err)
			return l
		}
	}
	l.FS, l.Net, l.Scoped = got[0], got[1], got[2]
	return l
}

// createRuleset makes a ruleset and drops it again; nothing is restricted.
func createRuleset(r Rights) error {
	fd, _, errno := syscall.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&r)), unsafe.Sizeof(r), 0)
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

// ErrnoName is "EPERM" for what a system call returned, "" for success.
func ErrnoName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &errno):
		return err.Error()
	case errno == unix.EOPNOTSUPP: // the same number as ENOTSUP
		return "EOPNOTSUPP"
	}
	return cmp.Or(unix.ErrnoName(errno), errno.Error())
}
