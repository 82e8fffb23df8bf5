package seccomp

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// never are calls that no filter of a policy without openings lets through,
// whatever their arguments: by hand, with their numbers on amd64 and arm64, and
// from nothing that the filter is made of. They are what moby refuses without
// capabilities, with what it lets by: other processes (ptrace and its like) and
// the newer ways to mount. A call moves into the filter's allowed list only
// after somebody took it out here.
//
// mknod is not here: tools make pipes by it, and Landlock refuses devices.
const never = `
	mount 165 40, umount2 166 39, mount_setattr 442 442, move_mount 429 429, open_tree 428 428, open_tree_attr 467 467
	fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, pivot_root 155 41, chroot 161 51
	unshare 272 97, setns 308 268, clone3 435 435

	ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440, pidfd_getfd 438 438
	kcmp 312 272, migrate_pages 256 238, move_pages 279 239

	bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, fanotify_init 300 262, lsm_set_self_attr 460 460
	io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427
	add_key 248 217, request_key 249 218, keyctl 250 219
	name_to_handle_at 303 264, open_by_handle_at 304 265, file_setattr 469 469, lookup_dcookie 212 18

	init_module 175 105, finit_module 313 273, delete_module 176 106, create_module 174 -, query_module 178 -, get_kernel_syms 177 -
	kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, acct 163 89, syslog 103 116
	swapon 167 224, swapoff 168 225, quotactl 179 60, quotactl_fd 443 443
	settimeofday 164 170, clock_settime 227 112, sethostname 170 161, setdomainname 171 162, vhangup 153 58
	iopl 172 -, ioperm 173 -, modify_ldt 154 -, _sysctl 156 -, sysfs 139 -, uselib 134 -, ustat 136 -, nfsservctl 180 42`

// neverWith are arguments of calls that are let through with others: from the
// first argument on, "*" for any.
const neverWith = `
	clone 56 220 0x10000000, clone 56 220 0x20000, clone 56 220 0x40000000, clone 56 220 0x20000000
	clone 56 220 0x8000000, clone 56 220 0x4000000, clone 56 220 0x2000000, clone 56 220 0x80
	ioctl 16 29 * 0x5412, ioctl 16 29 * 0x541c, ioctl 16 29 * 0x541d
	prctl 157 167 0x59616d61, prctl 157 167 35, prctl 157 167 28
	personality 135 92 0x400000
	prlimit64 302 261 1, sched_setscheduler 144 119 1, sched_setparam 142 118 1, sched_setattr 314 274 1
	setpriority 141 140 0 1, setpriority 141 140 1 0, setpriority 141 140 2 0, ioprio_set 251 30 2 0, ioprio_set 251 30 3 0
	socket 41 198 16 * 9, socket 41 198 16 * 6, socket 41 198 17, socket 41 198 38, socket 41 198 40, socket 41 198 44
	socket 41 198 2 3, socket 41 198 2 1 262, socket 41 198 10 1 262, socket 41 198 2 2 132`

func TestProgram_NeverAllows(t *testing.T) {
	everySpec(t, func(t *testing.T, s Spec, m machine) {
		tries := []uint64{0, 1, 2, 0x10000000, minus, neg1, high | 1}
		ask := func(what, nr string, fixed ...string) {
			n, err := strconv.ParseUint(nr, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			for _, fill := range tries {
				args := [6]uint64{fill, fill, fill, fill, fill, fill}
				for i, f := range fixed {
					if f == "*" {
						continue
					}
					v, err := strconv.ParseUint(f, 0, 64)
					if err != nil {
						t.Fatal(err)
					}
					args[i] = v
				}
				if got := m.ask(m.arch, uint32(n), args[:]...); got&^unix.SECCOMP_RET_DATA != unix.SECCOMP_RET_ERRNO || got&unix.SECCOMP_RET_DATA == 0 {
					t.Errorf("%s%#x is %v", what, args, got)
				}
			}
		}
		for _, list := range []string{never, neverWith} {
			for _, entry := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '\n' }) {
				f := strings.Fields(entry)
				if len(f) == 0 {
					continue
				}
				nr := f[map[string]int{"amd64": 1, "arm64": 2}[s.Arch]]
				if nr != "-" {
					ask(f[0], nr, f[3:]...)
				}
			}
		}
	})
}
