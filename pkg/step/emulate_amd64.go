package step

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// The forms from before the *at calls.
var (
	oldChowns = []uint32{unix.SYS_CHOWN, unix.SYS_LCHOWN}
	oldMknods = []mknodCall{{unix.SYS_MKNOD, 1}}
)
