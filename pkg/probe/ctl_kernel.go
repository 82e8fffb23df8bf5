package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxLandlockLayers is the kernel's LANDLOCK_MAX_NUM_LAYERS.
const maxLandlockLayers = 16

const (
	landlockVersion = 1 << 0
	landlockErrata  = 1 << 1
)

func landlockQuery(flag uintptr) (int, syscall.Errno) {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, flag)
	return int(n), e
}

func ctlLandlockABI(s *site, _ string) Finding {
	abi, e := landlockQuery(landlockVersion)
	if e != 0 {
		f := info("landlock_create_ruleset = -1 %s: not available here", errnoName(e))
		f.Errno, f.Syscall = errnoName(e), "landlock_create_ruleset"
		return f
	}
	values := map[string]int{"landlock.abi": abi}
	errata, e := landlockQuery(landlockErrata)
	if e == 0 {
		values["landlock.errata"] = errata
	}
	s.say(line{Values: values})
	return info("ABI %d, errata %#x", abi, values["landlock.errata"])
}

// ctlLandlockLayers restricts its thread, which ends with the attempt.
func ctlLandlockLayers(s *site, _ string) Finding {
	f := Finding{Outcome: Error, Syscall: "landlock_restrict_self"}
	if _, e := landlockQuery(landlockVersion); e != 0 {
		if (e == unix.ENOSYS || e == unix.EOPNOTSUPP) && s.Controls.Seccomp.Mode == 0 {
			s.say(line{Values: map[string]int{"landlock.layers": 0}})
			return info("0 layers: this kernel has no Landlock (%s)", errnoName(e))
		}
		f.Syscall, f.Errno, f.Evidence = "landlock_create_ruleset", errnoName(e), "could not tell: "+sysErr("landlock_create_ruleset", e)
		return f
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		f.Syscall, f.Errno, f.Evidence = "prctl", errnoName(errnoOf(err)), "could not tell: "+sysErr("prctl(PR_SET_NO_NEW_PRIVS)", errnoOf(err))
		return f
	}
	attr := struct{ handledFS uint64 }{unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK}
	for n := 0; n <= maxLandlockLayers; n++ {
		fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
		if e != 0 {
			f.Syscall, f.Errno, f.Evidence = "landlock_create_ruleset", errnoName(e), "could not tell: "+sysErr("landlock_create_ruleset", e)
			return f
		}
		_, _, e = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
		unix.Close(int(fd))
		if e == unix.E2BIG {
			layers := maxLandlockLayers - n
			s.say(line{Values: map[string]int{"landlock.layers": layers}})
			return info("%d layers in force: %d more could be added before E2BIG", layers, n)
		}
		if e != 0 {
			f.Errno, f.Evidence = errnoName(e), "could not tell: "+sysErr("landlock_restrict_self", e)
			return f
		}
	}
	f.Evidence = fmt.Sprintf("could not tell: more than %d layers were taken", maxLandlockLayers)
	return f
}

// ctlListener installs a filter on its thread, which ends with the attempt.
func ctlListener(s *site, _ string) Finding {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return Finding{Outcome: Error, Syscall: "prctl", Errno: errnoName(errnoOf(err)), Evidence: "could not tell: " + sysErr("prctl", errnoOf(err))}
	}
	allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	prog := unix.SockFprog{Len: uint16(len(allow)), Filter: &allow[0]}
	fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	f := Finding{Outcome: Info, Syscall: "seccomp", Errno: errnoName(e)}
	switch e {
	case 0:
		unix.Close(int(fd))
		f.Evidence = "no supervisor: a new listener could be attached"
	case unix.EBUSY:
		s.say(line{Values: map[string]int{"seccomp.listener": 1}})
		f.Evidence = "a supervisor is attached: seccomp(NEW_LISTENER) = -1 EBUSY"
	default:
		f.Evidence = "could not tell: " + sysErr("seccomp(NEW_LISTENER)", e)
	}
	return f
}

// lsmModules asks the kernel (6.8) for the active security modules.
func lsmModules() ([]string, syscall.Errno) {
	names := map[uint64]string{
		100: "capability", 101: "selinux", 102: "smack", 103: "tomoyo", 104: "apparmor", 105: "yama", 106: "loadpin",
		107: "safesetid", 108: "lockdown", 109: "bpf", 110: "landlock", 111: "ima", 112: "evm", 113: "ipe",
	}
	ids := make([]uint64, 32)
	size := uint32(len(ids) * 8)
	n, _, e := unix.Syscall(unix.SYS_LSM_LIST_MODULES, uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return nil, e
	}
	var out []string
	for _, id := range ids[:min(int(n), len(ids))] {
		name := names[id]
		if name == "" {
			name = fmt.Sprint(id)
		}
		out = append(out, name)
	}
	return out, 0
}

// sockaddrText is an address in words.
func sockaddrText(sa unix.Sockaddr) string {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrUnix:
		if a.Name == "" {
			return "an unnamed peer"
		}
		return a.Name
	case *unix.SockaddrNetlink:
		return fmt.Sprintf("netlink pid %d", a.Pid)
	}
	return "an address of another family"
}

// dieQuietly makes SIGSYS end the process as the kernel does, not as Go's
// runtime does: then the parent sees which signal it was.
func dieQuietly() { defaultAction(unix.SIGSYS) }

func defaultAction(sig syscall.Signal) {
	var action [64]byte // all zero is SIG_DFL, no flags, no mask
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// hostOrder is for kernel structures that are laid out by hand.
var hostOrder = binary.NativeEndian
