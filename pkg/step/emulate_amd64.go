package step

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// The forms from before the *at calls.
var (
	oldChowns = []uint32{unix.SYS_CHOWN, unix.SYS_LCHOWN}
	oldMknods = []modeCall{{unix.SYS_MKNOD, 1}}
	oldChmods = []modeCall{{unix.SYS_CHMOD, 1}}
)

var statCalls = map[uint32]statCall{
	unix.SYS_STAT:       {-1, 0, 1, -1, -1, 0},
	unix.SYS_LSTAT:      {-1, 0, 1, -1, -1, unix.AT_SYMLINK_NOFOLLOW},
	unix.SYS_FSTAT:      {0, -1, 1, -1, -1, unix.AT_EMPTY_PATH},
	unix.SYS_NEWFSTATAT: {0, 1, 2, 3, -1, 0},
	unix.SYS_STATX:      {0, 1, 4, 2, 3, 0},
}
