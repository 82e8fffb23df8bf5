package seccomp

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// This file is the policy. Every system call in numbers.go stands in exactly
// one of allowed, refused, absent and tested (a test sees to it), so that a
// call which a new kernel brings is a decision and never an accident. The
// start was the default profile of moby; testdata/moby.golden lists each
// difference.

// allowed calls pass with any argument. None of them loads an argument in the
// filter, so kernels from 5.11 on answer them from a bitmap and never run it.
const allowed = `
	read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2
	open openat openat2 creat close close_range lseek dup dup2 dup3 fcntl flock
	sendfile splice tee vmsplice copy_file_range readahead fadvise64 fallocate
	truncate ftruncate sync syncfs fsync fdatasync sync_file_range cachestat

	stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2
	readlink readlinkat getdents getdents64 getcwd chdir fchdir
	mkdir mkdirat rmdir mknod mknodat link linkat unlink unlinkat
	symlink symlinkat rename renameat renameat2 umask
	chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
	utime utimes futimesat utimensat
	getxattr lgetxattr fgetxattr getxattrat setxattr lsetxattr fsetxattr setxattrat
	listxattr llistxattr flistxattr listxattrat
	removexattr lremovexattr fremovexattr removexattrat
	inotify_init inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark
	statmount listmount file_getattr

	pipe pipe2 poll ppoll select pselect6 eventfd eventfd2 signalfd signalfd4
	epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
	timerfd_create timerfd_settime timerfd_gettime
	io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents

	accept accept4 shutdown getsockname getpeername getsockopt
	recvfrom recvmsg recvmmsg

	brk mmap munmap mremap mprotect madvise mincore msync remap_file_pages
	mlock mlock2 mlockall munlock munlockall mseal membarrier map_shadow_stack
	memfd_create memfd_secret pkey_alloc pkey_free pkey_mprotect

	fork vfork execve execveat exit exit_group wait4 waitid
	getpid getppid gettid getpgid getpgrp setpgid getsid setsid
	pidfd_open pidfd_send_signal process_mrelease
	set_tid_address set_robust_list get_robust_list rseq rseq_slice_yield
	futex futex_wait futex_wake futex_waitv futex_requeue
	arch_prctl set_thread_area get_thread_area
	sched_yield sched_getaffinity sched_getattr sched_getparam sched_getscheduler
	sched_get_priority_max sched_get_priority_min sched_rr_get_interval
	getcpu getpriority ioprio_get getrlimit setrlimit getrusage times sysinfo uname

	tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo rt_sigaction rt_sigprocmask
	rt_sigpending rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack pause
	restart_syscall

	time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep
	alarm getitimer setitimer adjtimex clock_adjtime
	timer_create timer_settime timer_gettime timer_getoverrun timer_delete

	getuid geteuid getresuid setuid setreuid setresuid setfsuid
	getgid getegid getresgid setgid setregid setresgid setfsgid
	getgroups setgroups capget capset

	shmdt mq_timedsend mq_timedreceive mq_notify mq_getsetattr

	getrandom seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
` +
	// Threads of OpenMP, torch and MPI bind themselves by thread id, so a rule
	// on pid 0 would break them. It reaches other processes of the same user;
	// only a pid namespace changes that.
	` sched_setaffinity ` +
	// Placement of one's own memory, which moby leaves out: numactl, torch,
	// NCCL and postgres use it.
	` mbind set_mempolicy get_mempolicy set_mempolicy_home_node ` +
	// Called by code that the kernel itself put there when somebody traces the
	// program: refused, the program would die.
	` uprobe uretprobe ` +
	// What /proc/self/attr and the list of security modules say as well.
	` lsm_get_self_attr lsm_list_modules `

// sysV is allowed too, unless the IPC namespace is the host's. Not only the
// calls that open something by key: ids are small numbers and can be guessed.
const sysV = `shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl mq_open mq_unlink`

// refused calls fail with the errno before the colon.
var refused = map[unix.Errno]string{
	unix.EPERM: `
		unshare setns chroot pivot_root mount umount2 mount_setattr move_mount
		open_tree open_tree_attr fsopen fsconfig fsmount fspick

		ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp
		migrate_pages move_pages

		bpf userfaultfd fanotify_init name_to_handle_at open_by_handle_at lsm_set_self_attr
		add_key request_key keyctl
		io_uring_setup io_uring_enter io_uring_register

		modify_ldt iopl ioperm init_module finit_module delete_module
		kexec_load kexec_file_load reboot acct swapon swapoff quotactl quotactl_fd
		syslog settimeofday clock_settime sethostname setdomainname vhangup`,
	unix.EACCES: `perf_event_open`, // what perf_event_paranoid answers; perf explains it
}

// absent calls fail with ENOSYS although we know them.
const absent = `` +
	// glibc and musl then use clone, whose flags the filter can see. With any
	// other errno thread creation fails (moby#42680).
	` clone3 ` +
	// Sets by path what the ioctl sets on an open file, which Landlock had to
	// allow; tools fall back to that.
	` file_setattr ` +
	// New and used by nothing that runs in a fence.
	` listns ` +
	// Dead: no kernel of these years has them, or their libraries.
	` _sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old
	get_kernel_syms getpmsg lookup_dcookie nfsservctl putpmsg query_module
	security sysfs tuxcall uselib ustat vserver `

// governedByNet are the calls that Spec.Net decides about; Spec.Allow cannot.
var governedByNet = []string{"socket", "socketpair", "sendto", "sendmsg", "sendmmsg", "connect", "bind", "listen", "setsockopt"}

// Warning says what a call opened by Spec.Allow gives away beyond what its name
// tells, "" if nothing. It is for those who print a policy.
func Warning(name string) string {
	switch name {
	case "io_uring_setup", "io_uring_enter", "io_uring_register":
		return "operations handed to io_uring pass no filter: sockets of any family, for one"
	case "clone", "clone3", "unshare", "setns":
		return "in a user namespace of its own, a process reaches kernel code that only root reaches otherwise"
	case "ioctl":
		return "characters can be typed into the caller's terminal (TIOCSTI), to run outside as commands"
	case "prlimit64", "setpriority", "ioprio_set", "sched_setscheduler", "sched_setparam", "sched_setattr":
		return "limits or priorities of all processes of this user can be changed, those outside too"
	case "kill":
		return "kill(-1) can reach all processes of this user, those outside too"
	case "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp":
		return "only Landlock keeps it from processes outside"
	case "add_key", "request_key", "keyctl":
		return "the user's kernel keyrings can be read and used: Kerberos, AFS, disk keys"
	}
	if slices.Contains(strings.Fields(sysV), name) {
		return "where the IPC namespace is the host's, shared memory and queues of processes outside can be reached"
	}
	return ""
}

// all is the mask of a test on a whole 32-bit argument.
const all = ^uint32(0)

// only allows the values and answers els to all others.
func only(arg int, mask uint32, els Verdict, values ...uint32) Tree {
	return match(arg, mask, Allow, els, values)
}

// except answers v to the values and allows all others.
func except(arg int, mask uint32, v Verdict, values ...uint32) Tree {
	return match(arg, mask, v, Allow, values)
}

func match(arg int, mask uint32, is, els Verdict, values []uint32) Tree {
	t := Tree{Verdict: els, Arg: arg, Mask: mask}
	for _, value := range values {
		t.Branches = append(t.Branches, Branch{value, Tree{Verdict: is}})
	}
	return t
}

// namespaces are the flags of clone that make a namespace, CLONE_NEWTIME
// among them although it only means something to clone3 and unshare.
const namespaces = unix.CLONE_NEWTIME | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// tested are the calls whose arguments matter.
func tested(s Spec) map[string]Tree {
	const pgidOrAll = ^uint32(0) // -1, as the kernel reads a pid_t
	eperm := Fail(unix.EPERM)
	t := map[string]Tree{
		// CLONE_PARENT hands the caller, who waits for one child, another.
		"clone": only(0, namespaces|unix.CLONE_PARENT, eperm, 0),

		// Typing into the terminal (TIOCSTI), into the console's selection
		// (TIOCLINUX), or stealing the console's output (TIOCCONS).
		"ioctl": except(1, all, eperm, unix.TIOCSTI, 0x541c, unix.TIOCCONS),

		// Letting others trace us past Yama; memory layout and secure bits are
		// for programs with capabilities.
		"prctl": except(0, all, eperm, unix.PR_SET_PTRACER, unix.PR_SET_MM, unix.PR_SET_SECUREBITS),

		// PER_LINUX, PER_LINUX32, both with UNAME26, the query, and
		// ADDR_NO_RANDOMIZE for debuggers and sanitizers. Not READ_IMPLIES_EXEC
		// and the like.
		"personality": only(0, all, eperm, 0, 8, 0x20000, 0x20008, 0xffffffff, 0x40000),

		// Only on the caller: Landlock does not keep these from other processes
		// of the same user. libc passes 0 for itself; a thread that names another
		// by its id (pthread_setschedparam) is refused with the rest.
		"prlimit64":          only(0, all, eperm, 0),
		"sched_setscheduler": only(0, all, eperm, 0),
		"sched_setparam":     only(0, all, eperm, 0),
		"sched_setattr":      only(0, all, eperm, 0),
		// which = process, who = self; not a group's, not all of the user's.
		"setpriority": {Verdict: eperm, Arg: 0, Mask: all, Branches: []Branch{{unix.PRIO_PROCESS, only(1, all, eperm, 0)}}},
		"ioprio_set":  {Verdict: eperm, Arg: 0, Mask: all, Branches: []Branch{{1, only(1, all, eperm, 0)}}},

		"kill":       {Verdict: Allow},
		"socketpair": only(0, all, Fail(unix.EAFNOSUPPORT), unix.AF_UNIX),
		"sendto":     {Verdict: Allow},
		"sendmsg":    {Verdict: Allow},
		"sendmmsg":   {Verdict: Allow},
		"connect":    {Verdict: Allow},
		"bind":       {Verdict: Allow},
		"listen":     {Verdict: Allow},
		"setsockopt": {Verdict: Allow},
	}
	if s.DenyKillAll {
		t["kill"] = except(0, all, eperm, pgidOrAll)
	}

	noProtocol := Fail(unix.EPROTONOSUPPORT)
	socket := Tree{Verdict: Fail(unix.EAFNOSUPPORT), Arg: 0, Mask: all, Branches: []Branch{
		{unix.AF_UNIX, Tree{Verdict: Allow}},
		// Without route, node's networkInterfaces() throws whatever the errno.
		{unix.AF_NETLINK, only(2, all, noProtocol, unix.NETLINK_ROUTE)},
	}}
	if s.Net != NetNone {
		// Not MPTCP, which Landlock's TCP rules do not see (Go then uses TCP),
		// nor SCTP, ICMP or raw sockets. The low four bits of a type are the
		// type, others are flags.
		inet := Tree{Verdict: Fail(unix.ESOCKTNOSUPPORT), Arg: 1, Mask: 0xf, Branches: []Branch{
			{unix.SOCK_STREAM, only(2, all, noProtocol, 0, unix.IPPROTO_TCP)},
		}}
		if s.Net == NetHost {
			inet.Branches = append(inet.Branches, Branch{unix.SOCK_DGRAM, only(2, all, noProtocol, 0, unix.IPPROTO_UDP)})
		}
		socket.Branches = append(socket.Branches, Branch{unix.AF_INET, inet}, Branch{unix.AF_INET6, inet})
		// TCP Fast Open connects without connect, past Landlock. Without INET
		// sockets it does nothing, and these calls are hot: no test then.
		noFastOpen := Fail(unix.EOPNOTSUPP)
		t["sendto"] = except(3, unix.MSG_FASTOPEN, noFastOpen, unix.MSG_FASTOPEN)
		t["sendmsg"] = except(2, unix.MSG_FASTOPEN, noFastOpen, unix.MSG_FASTOPEN)
		t["sendmmsg"] = except(3, unix.MSG_FASTOPEN, noFastOpen, unix.MSG_FASTOPEN)
	}
	if s.Net == NetLoopback {
		for _, name := range []string{"connect", "bind", "listen"} {
			t[name] = Tree{Verdict: Ask}
		}
		t["setsockopt"] = socketOptions
	}
	if s.DenyUnix {
		socket.Branches = slices.DeleteFunc(socket.Branches, func(b Branch) bool { return b.Value == unix.AF_UNIX })
		// Of a pair of datagram sockets each could still send to any name.
		pair := only(1, 0xf, Fail(unix.ESOCKTNOSUPPORT), unix.SOCK_STREAM, unix.SOCK_SEQPACKET)
		t["socketpair"] = Tree{Verdict: Fail(unix.EAFNOSUPPORT), Arg: 0, Mask: all, Branches: []Branch{{unix.AF_UNIX, pair}}}
	}
	t["socket"] = socket
	return t
}

// socketOptions are those that leave a connection where the supervisor made it
// lead. Closed: devices to bind to; a source route and headers of IPv6, which
// send packets elsewhere; groups to join, which the host's network hears of; a
// connect that is only made when something is sent (TCP_FASTOPEN_CONNECT),
// when another may listen there; and a port shared with others
// (SO_REUSEPORT), who get what comes when the own listener closes.
var socketOptions = Tree{Verdict: Fail(unix.ENOPROTOOPT), Arg: 1, Mask: all, Branches: []Branch{
	{unix.SOL_SOCKET, Tree{Verdict: Allow, Arg: 2, Mask: all, Branches: []Branch{
		{unix.SO_BINDTODEVICE, Tree{Verdict: Fail(unix.EPERM)}},
		{unix.SO_BINDTOIFINDEX, Tree{Verdict: Fail(unix.EPERM)}},
		{unix.SO_REUSEPORT, Tree{Verdict: Fail(unix.ENOPROTOOPT)}},
	}}},
	{unix.IPPROTO_TCP, except(2, all, Fail(unix.EOPNOTSUPP), unix.TCP_FASTOPEN_CONNECT, unix.TCP_REPAIR)},
	{unix.IPPROTO_IP, only(2, all, Fail(unix.ENOPROTOOPT), unix.IP_TOS, unix.IP_TTL, unix.IP_RECVTTL, unix.IP_RECVTOS,
		unix.IP_PKTINFO, unix.IP_MTU_DISCOVER, unix.IP_RECVERR, unix.IP_MINTTL, unix.IP_FREEBIND,
		unix.IP_BIND_ADDRESS_NO_PORT, unix.IP_LOCAL_PORT_RANGE)},
	{unix.IPPROTO_IPV6, only(2, all, Fail(unix.ENOPROTOOPT), unix.IPV6_V6ONLY, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS,
		unix.IPV6_RECVTCLASS, unix.IPV6_RECVPKTINFO, unix.IPV6_RECVHOPLIMIT, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR,
		unix.IPV6_DONTFRAG, unix.IPV6_AUTOFLOWLABEL, unix.IPV6_MINHOPCOUNT)},
	{unix.SOL_NETLINK, Tree{Verdict: Allow}},
	{unix.SOL_TLS, Tree{Verdict: Allow}},
}}

// table is the whole policy for a spec, by name, before Spec.Allow.
func table(s Spec) map[string]Tree {
	t := tested(s)
	add := func(v Verdict, names string) {
		for name := range strings.FieldsSeq(names) {
			t[name] = Tree{Verdict: v}
		}
	}
	add(Allow, allowed)
	add(Allow, sysV)
	if s.DenySysV {
		add(Fail(unix.EPERM), sysV)
	}
	for errno, names := range refused {
		add(Fail(errno), names)
	}
	add(unlisted, absent)
	return t
}
