//go:build !amd64

package probe

import "syscall"

// foreignCalls: only amd64 has entries of other ABIs that are probed here.
func foreignCalls() []Check {
	skip := func(*site, string) Finding {
		return Finding{Outcome: Absent, Evidence: "only x86-64 kernels have this entry"}
	}
	return []Check{
		{ID: "sys.x32", Group: "sys", Severity: "high", Worker: classSelf, try: skip, What: "nothing on this architecture", Why: "x32 numbers are x86-64's"},
		{ID: "sys.i386", Group: "sys", Severity: "high", Worker: classSelf, try: skip, What: "nothing on this architecture", Why: "int 0x80 is x86-64's"},
	}
}

func modifyLDT() (string, syscall.Errno) { return "modify_ldt", syscall.ENOSYS }
