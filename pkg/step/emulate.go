package step

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Where the arguments of a call lie in struct seccomp_data (seccomp(2)).
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

// A user namespace of one user cannot hold a second: chown(2) to another user
// fails there, and so does setuid(2) and making a device. Package managers do
// all three as root. So, for user 0:
//
//   - changes of owner and new devices are noted (see owners.go) and succeed;
//   - changes of the process's own users, groups and capabilities succeed and
//     change nothing (the list is Charliecloud's, less kexec_load, which fence
//     refuses).
//
// What asks for the result (getuid after setuid) sees that nothing changed.
//
// For every user stat shows the owner that was noted, getgroups gives the
// groups that the image's files say, for none but one can be set, and a user
// other than root can hand own files to own groups.

// notedFilter leaves the calls of stat's and chown's kind and getgroups to a
// listener, chmod that sets setgid, and for root mknod of devices.
func notedFilter(root bool) []bpf.Instruction {
	f := newFilter()
	for _, nr := range slices.Concat(slices.Sorted(maps.Keys(statCalls)), []uint32{unix.SYS_GETGROUPS}, chownCalls) {
		f = append(f, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	}
	for _, c := range chmodCalls {
		f = append(f,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.nr, SkipTrue: 4},
			bpf.LoadAbsolute{Off: dataArgs + 8*c.mode, Size: 4}, // little endian: the low half
			bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.S_ISGID, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	}
	for _, c := range mknodCalls {
		if !root {
			break
		}
		f = append(f,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.nr, SkipTrue: 6},
			bpf.LoadAbsolute{Off: dataArgs + 8*c.mode, Size: 4}, // little endian: the low half
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: unix.S_IFMT},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.S_IFCHR, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.S_IFBLK, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
			bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	}
	return append(f, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// fakedFilter lets calls succeed that cannot, and need not.
func fakedFilter() []bpf.Instruction {
	f := newFilter()
	for _, nr := range fakedCalls {
		f = append(f, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1}, bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO})
	}
	return append(f, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
}

// newFilter lets another architecture's calls pass (fence does not), and loads the number.
func newFilter() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		bpf.LoadAbsolute{Off: dataNr, Size: 4},
	}
}

type modeCall struct{ nr, mode uint32 } // mode: which argument it is

var (
	chownCalls = append([]uint32{unix.SYS_FCHOWN, unix.SYS_FCHOWNAT}, oldChowns...)
	mknodCalls = append([]modeCall{{unix.SYS_MKNODAT, 2}}, oldMknods...)
	chmodCalls = append([]modeCall{{unix.SYS_FCHMOD, 1}, {unix.SYS_FCHMODAT, 2}, {unix.SYS_FCHMODAT2, 2}}, oldChmods...)
	fakedCalls = []uint32{
		unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
		unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
	}
)

// install applies a filter to the calling thread, which must be locked, and
// returns the listener where flags ask for one.
func install(program []bpf.Instruction, flags uintptr) (fd int, err error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return -1, fmt.Errorf("BUG: assembling the filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
	}
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp(SECCOMP_SET_MODE_FILTER)", errno)
	}
	return int(n), nil
}
