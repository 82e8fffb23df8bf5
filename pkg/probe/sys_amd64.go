package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// int80 makes a system call with no arguments through the 32-bit entry.
// Where there is none, it raises SIGSEGV.
func int80(nr uint32) int32

// foreignCalls are the other ways into this kernel that a filter for one
// architecture alone overlooks.
func foreignCalls() []Check {
	return []Check{
		{
			ID: "sys.x32", Group: "sys", Severity: "high", Attack: []string{"T1068"}, Worker: classSys, try: tryX32,
			What: "getpid by its x32 number", Why: "a filter that compares numbers lets the same calls through under others",
		}, {
			ID: "sys.i386", Group: "sys", Severity: "high", Attack: []string{"T1068"}, Worker: classI386, try: tryI386, died: i386Died,
			What: "getpid by int 0x80, beside one in the ordinary way", Why: "32-bit calls have numbers of their own",
		},
	}
}

// x32Bit marks the numbers of the x32 ABI.
const x32Bit = 0x40000000

func tryX32(s *site, _ string) Finding {
	n, _, e := unix.RawSyscall(unix.SYS_GETPID|x32Bit, 0, 0, 0)
	f := Finding{Errno: errnoName(e), Syscall: "getpid", Evidence: sysErr("getpid, x32", e)}
	if e == 0 {
		f.Outcome = Reachable
		f.Evidence = "getpid by its x32 number answered"
		if int(n) != syscall.Getpid() {
			f.Outcome, f.Evidence = Error, "getpid by its x32 number answered with another number"
		}
		return f
	}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	return f
}

// i386Getpid is the number of getpid for 32-bit programs.
const i386Getpid = 20

func tryI386(s *site, _ string) Finding {
	defaultAction(unix.SIGSEGV) // the parent is to see the signal, not Go's crash
	n := int80(i386Getpid)
	if n >= 0 {
		if int(n) == syscall.Getpid() {
			return Finding{Outcome: Reachable, Syscall: "getpid", Evidence: "getpid by int 0x80 answered"}
		}
		return Finding{Outcome: Error, Syscall: "getpid", Evidence: "getpid by int 0x80 answered with another number"}
	}
	e := syscall.Errno(-n)
	f := Finding{Errno: errnoName(e), Syscall: "getpid", Evidence: sysErr("getpid, int 0x80", e)}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	return f
}

// i386Died: without the entry the processor refuses the instruction.
func i386Died(signal string) (Finding, bool) {
	if signal != "SIGSEGV" {
		return Finding{}, false
	}
	return Finding{Outcome: Absent, Evidence: "int 0x80 raised SIGSEGV: this kernel has no 32-bit entry; getpid in the ordinary way works"}, true
}

// modifyLDT asks for an entry of no length: nothing is read.
func modifyLDT() (string, syscall.Errno) {
	_, _, e := unix.Syscall(unix.SYS_MODIFY_LDT, 0, 0, 0)
	return "modify_ldt", e
}
