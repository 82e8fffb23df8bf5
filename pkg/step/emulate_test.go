package step

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs a filter on one call in a BPF interpreter, which reads packets
// in big-endian words.
func verdict(t *testing.T, program []bpf.Instruction, arch, nr uint32, args ...uint64) int {
	t.Helper()
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[dataNr:], nr)
	binary.BigEndian.PutUint32(data[dataArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[dataArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[dataArgs+8*i+4:], uint32(a>>32))
	}
	v, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNotedFilter(t *testing.T) {
	const high = 7 << 32 // what is not in the low half of an argument does not count
	for _, c := range []struct {
		name       string
		nr         uint32
		args       []uint64
		root, user int
	}{
		{"chown", unix.SYS_FCHOWNAT, nil, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF},
		{"stat", unix.SYS_STATX, nil, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF},
		{"fchown", unix.SYS_FCHOWN, nil, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF},
		{"groups", unix.SYS_GETGROUPS, nil, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF},
		{"a character device", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFCHR | 0o666}, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_ALLOW},
		{"a block device", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFBLK | 0o600 | high}, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_ALLOW},
		{"a FIFO", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFIFO | 0o666}, unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ALLOW},
		{"a file", unix.SYS_MKNODAT, []uint64{0, 0, 0o666 | unix.S_IFCHR<<16}, unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ALLOW},
		{"chmod", unix.SYS_FCHMODAT, []uint64{0, 0, 0o1777}, unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ALLOW},
		{"chmod that sets setgid", unix.SYS_FCHMODAT, []uint64{0, 0, 0o2755}, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF},
		{"fchmod that sets setgid", unix.SYS_FCHMOD, []uint64{0, 0o6755 | high}, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_USER_NOTIF},
		{"fchmod that does not", unix.SYS_FCHMOD, []uint64{0, 0o4755, unix.S_ISGID}, unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ALLOW},
		{"setuid", unix.SYS_SETUID, nil, unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ALLOW},
	} {
		if got := verdict(t, notedFilter(true), auditArch, c.nr, c.args...); got != c.root {
			t.Errorf("%s of root: %#x, want %#x", c.name, got, c.root)
		}
		if got := verdict(t, notedFilter(false), auditArch, c.nr, c.args...); got != c.user {
			t.Errorf("%s of another user: %#x, want %#x", c.name, got, c.user)
		}
		if got := verdict(t, notedFilter(true), unix.AUDIT_ARCH_I386, c.nr, c.args...); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("%s of another architecture: %#x", c.name, got)
		}
	}
	for _, nr := range oldChowns {
		if got := verdict(t, notedFilter(true), auditArch, nr); got != unix.SECCOMP_RET_USER_NOTIF {
			t.Errorf("call %d: %#x", nr, got)
		}
	}
	for _, c := range oldMknods {
		if got := verdict(t, notedFilter(true), auditArch, c.nr, 0, unix.S_IFBLK); got != unix.SECCOMP_RET_USER_NOTIF {
			t.Errorf("mknod of a device: %#x", got)
		}
	}
}

func TestFakedFilter(t *testing.T) {
	for _, nr := range fakedCalls {
		if got := verdict(t, fakedFilter(), auditArch, nr); got != unix.SECCOMP_RET_ERRNO {
			t.Errorf("call %d: %#x, want success without effect", nr, got)
		}
	}
	for _, nr := range []uint32{unix.SYS_GETUID, unix.SYS_PRCTL, unix.SYS_KEXEC_LOAD, unix.SYS_EXECVE, unix.SYS_UNSHARE} {
		if got := verdict(t, fakedFilter(), auditArch, nr); got != unix.SECCOMP_RET_ALLOW {
			t.Errorf("call %d: %#x, and it is not this filter's business", nr, got)
		}
	}
}
