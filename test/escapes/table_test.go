package escapes

// rows is the table. Numbers are those of the 65 escapes that fence was designed against; the rows
// with a word for a name are what that list lacks. parse says how to read it.
var rows = []row{
	{name: "1", what: "connect by TCP", text: `
		socket   OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		connect  OK | EACCES | - | -
		changes  tcp | - | - | -`},
	{name: "2", what: "send by UDP (DNS)", text: `
		socket  OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		sendto  OK | OK@10:EACCES | - | -
		changes udp | udp | - | -`},
	{name: "3", what: "connect by TCP over IPv6", text: `
		socket   OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		connect  OK | EACCES | - | -
		changes  tcp6 | - | - | -`},
	{name: "4", what: "connect by MPTCP (protocol 262)", text: `
		socket   OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		connect  OK | OK | - | -
		changes  tcp | tcp | - | -`},
	{name: "5", what: "connect by TCP Fast Open, without connect(2)", text: `
		socket         OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		sendto         OK | OK/EACCES | - | -
		sendmsg        OK | OK/EACCES | - | -
		connect-later  OK | EACCES | - | -
		changes        tcp | tcp | - | -`},
	{name: "6", what: "listen on an Internet socket without bind(2)", text: `
		socket  OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		listen  OK | OK | - | -`},
	{name: "7", what: "vsock and netlink sockets", text: `
		vsock            EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		sock_diag        OK | OK | EPROTONOSUPPORT | EPROTONOSUPPORT
		xfrm             EINVAL | EINVAL | EPROTONOSUPPORT | EPROTONOSUPPORT
		netlink-1-to-31  EINVAL | EINVAL | EPROTONOSUPPORT | EPROTONOSUPPORT
		+route           OK | OK | OK | OK`,
		why: "EINVAL is the kernel's answer to a flag that it does not know, whether or not it has the family: it was asked"},
	{name: "8", what: "packet, raw and ping sockets", text: `
		packet  EPERM | EPERM | EAFNOSUPPORT | EAFNOSUPPORT
		raw     EPERM | EPERM | EAFNOSUPPORT | EAFNOSUPPORT
		ping    EACCES/OK | EACCES/OK | EAFNOSUPPORT | EAFNOSUPPORT`},
	{name: "9", what: "sockets of the other families", text: `
		alg    EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		ib     EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		rds    EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		smc    EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		tipc   EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		xdp    EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		rxrpc  EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		kcm    EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT
		2-to-44-but-netlink  EINVAL | EINVAL | EAFNOSUPPORT | EAFNOSUPPORT`,
		why: "EINVAL as in row 7"},
	{name: "10", what: "an Internet socket whose family or type has bits above the 32nd set", text: `
		socket   OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		connect  OK | EACCES | - | -
		type     OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		changes  tcp | - | - | -`},
	{name: "11", what: "socket by its x32 number", text: `
		socket  ENOSYS/OK | ENOSYS/OK | ENOSYS | ENOSYS ; ENOSYS is also what a kernel without x32 says, as this one: pkg/seccomp runs the filter on x32 numbers`,
		why: "a kernel without x32 cannot show it"},
	{name: "12", what: "i386 system calls by int 0x80", text: `
		getpid      OK/SIGSEGV | OK/SIGSEGV | ENOSYS/SIGSEGV | ENOSYS/SIGSEGV
		socketcall  OK/SIGSEGV | OK/SIGSEGV | ENOSYS/SIGSEGV | ENOSYS/SIGSEGV`,
		why: "SIGSEGV is a machine that has no such entry"},
	{name: "13", what: "socketpair of the Internet family", text: `
		socketpair  EOPNOTSUPP | EOPNOTSUPP | EAFNOSUPPORT | EAFNOSUPPORT
		+unix       OK | OK | OK | OK`},
	{name: "14", what: "connect to an abstract Unix socket outside", text: `
		connect  OK | EPERM | ECONNREFUSED | EPERM
		sendto   OK | EPERM | ECONNREFUSED | EPERM
		sendmsg  OK | EPERM | ECONNREFUSED | EPERM
		changes  abstract, abstract-datagram | - | - | -`,
		why: "in a network namespace of its own there is nobody of that name"},
	{name: "15", what: "connect to a pathname socket outside (a fake munge)", text: `
		hidden          OK | OK@9:EACCES | ENOENT | OK@9:EACCES ; the bare form cannot close it before Landlock ABI 9: --accept sockets was given for it
		hidden-by-link  OK | OK@9:EACCES | ENOENT | OK@9:EACCES ; the same
		!plain          OK | OK@9:EACCES | OK@9:EACCES | OK@9:EACCES
		changes         hidden-socket, plain-socket | hidden-socket, plain-socket | plain-socket | hidden-socket, plain-socket`,
		why: "a socket in a folder that is not hidden can be reached before Landlock ABI 9: in a container mount nothing of the site"},
	{name: "16", what: "signal a process outside", text: `
		kill               OK | EPERM | EPERM | EPERM
		kill-0             OK | EPERM | EPERM | EPERM
		tkill              OK | EPERM | EPERM | EPERM
		tgkill             OK | EPERM | EPERM | EPERM
		rt_sigqueueinfo    OK | EPERM | EPERM | EPERM
		rt_tgsigqueueinfo  OK | EPERM | EPERM | EPERM
		!pidfd_open        OK | OK | OK | OK
		pidfd_send_signal  OK | EPERM | EPERM | EPERM
		group              OK | EPERM | EPERM | EPERM
		changes            signals | - | - | -`},
	{name: "17", what: "have the kernel send a signal outside: SIGIO by F_SETOWN and F_SETSIG", text: `
		+F_SETSIG     OK | OK | OK | OK
		+F_SETOWN     OK | OK | OK | OK
		+F_SETOWN_EX  OK | OK | OK | OK
		+write        OK | OK | OK | OK
		changes       signals | - | - | -`},
	{name: "18", what: "kill(-1): all of the user's processes", text: `
		+kill       OK | OK | OK | OK
		+own-child  OK signalled | OK signalled | OK signalled | OK signalled
		changes     signals | - | - | -`},
	{name: "19", what: "trace a process outside; be traced", text: `
		attach   OK | EPERM | EPERM | EPERM
		seize    OK | EPERM | EPERM | EPERM
		traceme  OK | OK | EPERM | EPERM`},
	{name: "20", what: "read and write memory of a process outside", text: `
		process_vm_readv   OK canary | EPERM | EPERM | EPERM
		process_vm_writev  OK | EPERM | EPERM | EPERM
		changes            memory | - | - | -`},
	{name: "21", what: "take a descriptor of a process outside", text: `
		!pidfd_open  OK | OK | OK | OK
		pidfd_getfd  OK canary | EPERM | EPERM | EPERM`},
	{name: "22", what: "kcmp, move_pages, migrate_pages, process_madvise, get_robust_list", text: `
		kcmp             OK | EPERM | EPERM | EPERM
		move_pages       OK | EPERM | EPERM | EPERM
		migrate_pages    OK | EPERM | EPERM | EPERM
		process_madvise  OK | OK | EPERM | EPERM
		get_robust_list  OK | EPERM | EPERM | EPERM`,
		why: "process_madvise is tried on oneself: on others the kernel wants a capability"},
	{name: "23", what: "/proc of a process outside, what asks for more than the same user", text: `
		environ          OK canary | EACCES | EACCES | EACCES
		mem              OK canary | EACCES | EACCES | EACCES
		mem-write        OK | EACCES | EROFS | EACCES
		maps             OK nothing | EACCES | EACCES | EACCES
		root             OK canary | EACCES | EACCES | EACCES
		cwd              OK canary | EACCES | EACCES | EACCES
		fd               OK canary | EACCES | EACCES | EACCES
		fd-dir           OK canary | EACCES | EACCES | EACCES
		task-environ     OK canary | EACCES | EACCES | EACCES
		exe              OK | EACCES | EACCES | EACCES
		ns/mnt           OK | EACCES | EACCES | EACCES
		auxv             OK nothing | EACCES | EACCES | EACCES
		io               OK nothing | EACCES | EACCES | EACCES
		syscall          OK nothing | EPERM | EPERM | EPERM
		stack            EACCES | EACCES | EACCES | EACCES ; the kernel's own answer to an ordinary user
		pagemap          EINVAL | EACCES | EACCES | EACCES
		fdinfo           OK nothing | EACCES | EACCES | EACCES
		clear_refs       OK | EACCES | EROFS | EACCES
		coredump_filter  OK | EACCES | EROFS | EACCES
		comm             EINVAL | EACCES | EROFS | EACCES`},
	{name: "24", what: "/proc of a process outside, what asks for the same user at most", text: `
		!cmdline    OK nothing | OK nothing | OK nothing | OK nothing
		!comm       OK nothing | OK nothing | OK nothing | OK nothing
		!status     OK nothing | OK nothing | OK nothing | OK nothing
		!stat       OK nothing | OK nothing | OK nothing | OK nothing
		!limits     OK nothing | OK nothing | OK nothing | OK nothing
		!mountinfo  OK nothing | OK nothing | OK nothing | OK nothing
		!cgroup     OK nothing | OK nothing | OK nothing | OK nothing`,
		why: "only a PID namespace closes it, as in a container that fence env starts (TestOutsideOfContainer): keep tokens out of command lines"},
	{name: "25", what: "write oom_score_adj of a process outside", text: `
		write    OK | EACCES | EROFS | EACCES
		changes  oom | - | - | -`},
	{name: "26", what: "prlimit on a process outside", text: `
		get      OK | OK | EPERM | EPERM
		set      OK | OK | EPERM | EPERM
		+own     OK | OK | OK | OK
		changes  nofile | nofile | - | -`},
	{name: "27", what: "priorities of a process outside", text: `
		setpriority         OK | OK | EPERM | EPERM
		setpriority-group   OK | OK | EPERM | EPERM
		setpriority-user    ESRCH | ESRCH | EPERM | EPERM
		ioprio_set          OK | OK | EPERM | EPERM
		ioprio_set-group    OK | OK | EPERM | EPERM
		ioprio_set-user     ESRCH | ESRCH | EPERM | EPERM
		sched_setscheduler  OK | OK | EPERM | EPERM
		sched_setparam      OK | OK | EPERM | EPERM
		sched_setattr       OK | OK | EPERM | EPERM
		+own                OK | OK | OK | OK
		changes             ioprio, nice, policy | ioprio, nice, policy | - | -`},
	{name: "28", what: "sched_setaffinity on a process outside", text: `
		!sched_setaffinity  OK | OK | OK | OK
		changes             cpus | cpus | cpus | cpus`,
		why: "threads of OpenMP, torch and MPI bind themselves by number, so the filter cannot refuse it; only a PID namespace closes it (TestOutsideOfContainer)"},
	{name: "29", what: "a user namespace, and then mount, chroot, fsopen", text: `
		unshare          OK | OK | EPERM | EPERM
		mount            OK | EPERM | EPERM | EPERM
		chroot           OK | OK | EPERM | EPERM
		fsopen           OK | OK | EPERM | EPERM
		clone-user       OK | OK | EPERM | EPERM
		clone-mount      OK | OK | EPERM | EPERM
		clone-pid        OK | OK | EPERM | EPERM
		clone-net        OK | OK | EPERM | EPERM
		clone-ipc        OK | OK | EPERM | EPERM
		clone-uts        OK | OK | EPERM | EPERM
		clone-cgroup     OK | OK | EPERM | EPERM
		clone-high-bits  OK | OK | EPERM | EPERM
		+clone-plain     OK | OK | OK | OK`},
	{name: "30", what: "a user namespace by clone3", text: `
		clone3  OK | OK | ENOSYS | ENOSYS`},
	{name: "31", what: "enter the namespaces of a process outside", with: []string{"namespace"}, text: `
		setns-pidfd  OK | EPERM | EPERM | EPERM
		open-ns      OK | EACCES | EACCES | EACCES
		setns        OK | - | - | -
		setns-bad    EBADF | EBADF | EPERM | EPERM`},
	{name: "32", what: "the mount calls, in a user namespace where one can be had", text: `
		mount           OK | EPERM | EPERM | EPERM
		bind            OK | EPERM | EPERM | EPERM | EINVAL | EPERM | EPERM
		remount         OK | EPERM | EPERM | EPERM | EPERM | EPERM | EPERM ; in a container of Apptainer the kernel itself says so: its mounts are locked
		umount2         OK | EINVAL | EPERM | EPERM
		unmask          EINVAL | EINVAL | EPERM | EPERM
		pivot_root      EFAULT | EFAULT | EPERM | EPERM
		fsopen          OK | OK | EPERM | EPERM
		fsconfig        OK | OK | EPERM | EPERM
		fsmount         OK | OK | EPERM | EPERM
		move_mount      OK | EPERM | EPERM | EPERM
		fspick          EFAULT | EFAULT | EPERM | EPERM
		open_tree       OK | OK | EPERM | EPERM | EINVAL | EPERM | EPERM
		mount_setattr   EFAULT | EFAULT | EPERM | EPERM
		open_tree_attr  EFAULT/ENOSYS | EFAULT/ENOSYS | EPERM | EPERM`,
		why: "EFAULT is the kernel's answer to a bad pointer: it was asked"},
	{name: "33", what: "open files by handle", text: `
		name_to_handle_at  OK | OK | EPERM | EPERM
		open_by_handle_at  EFAULT | EFAULT | EPERM | EPERM`},
	{name: "34", what: "bpf, perf_event_open", text: `
		bpf              E2BIG | E2BIG | EPERM | EPERM
		perf_event_open  OK/EACCES | OK/EACCES | EACCES | EACCES ; EACCES is also what a kernel with perf_event_paranoid above 2 says`},
	{name: "35", what: "userfaultfd, io_uring, modify_ldt, fanotify", text: `
		userfaultfd        OK | OK | EPERM | EPERM
		io_uring_setup     OK/EPERM | OK/EPERM | EPERM | EPERM ; EPERM is also what a kernel with io_uring switched off says
		io_uring_enter     EBADF/EPERM | EBADF/EPERM | EPERM | EPERM ; the same
		io_uring_register  EINVAL/EBADF/EPERM | EINVAL/EBADF/EPERM | EPERM | EPERM ; the same
		modify_ldt         OK | OK | EPERM | EPERM
		fanotify_init      OK | OK | EPERM | EPERM`},
	{name: "36", what: "kernel keyrings (Kerberos and AFS keep tickets there)", text: `
		keyctl       OK | OK | EPERM | EPERM
		add_key      OK | OK | EPERM | EPERM
		request_key  ENOKEY | ENOKEY | EPERM | EPERM`},
	{name: "37", what: "type into a terminal that was handed in as standard input", with: []string{"terminal"}, text: `
		TIOCSTI            OK/EIO | OK/EIO | EPERM | EPERM
		TIOCSTI-high-bits  OK/EIO | OK/EIO | EPERM | EPERM
		TIOCLINUX          ENOTTY | ENOTTY | EPERM | EPERM
		TIOCCONS           EPERM | EPERM | EPERM | EPERM ; the kernel's own answer to an ordinary user
		+write             OK | OK | OK | OK
		+FIONREAD          OK | OK | OK | OK
		changes            typed | typed | - | -`},
	{name: "38", what: "take back no_new_privs, the filter, Landlock", text: `
		+no_new_privs     OK | OK | OK | OK
		no_new_privs-off  EINVAL | EINVAL | EINVAL | EINVAL ; the kernel has no such call
		+seccomp-allow    OK | OK | OK | OK
		seccomp-off       EINVAL | EINVAL | EINVAL | EINVAL ; the kernel has no such call
		socket            OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		+landlock         OK | OK | OK | OK
		+landlock-grants  OK | OK | OK | OK
		+landlock-on      OK | OK | OK | OK
		hidden            OK canary | EACCES | ENOENT | EACCES`},
	{name: "39", what: "run a set-user-ID program, and one with capabilities", text: `
		run-setuid    OK gained | OK nothing gained | OK nothing gained | OK nothing gained ; it runs, and gains nothing; not in a container, whose mounts let nothing be gained
		run-filecaps  OK gained | OK nothing gained | OK nothing gained | OK nothing gained ; the same`},
	{name: "40", what: "become root or another user, raise capabilities", text: `
		setuid      EPERM | EPERM | EINVAL | EPERM | EINVAL | EINVAL | EINVAL ; the kernel's own answer to an ordinary user, EINVAL where the namespace knows no such user
		setgid      EPERM | EPERM | EINVAL | EPERM | EINVAL | EINVAL | EINVAL ; the same
		setresuid   EPERM | EPERM | EINVAL | EPERM | EINVAL | EINVAL | EINVAL ; the same
		setgroups   EPERM | EPERM | EPERM | EPERM ; the same
		capset      EPERM | EPERM | EPERM | EPERM ; the same
		ambient     EPERM | EPERM | EPERM | EPERM ; the same
		securebits  EPERM | EPERM | EPERM | EPERM ; the same
		+dumpable   OK | OK | OK | OK
		ptracer     EINVAL/OK | EINVAL/OK | EPERM | EPERM
		mm          EPERM | EPERM | EPERM | EPERM ; the kernel's own answer to an ordinary user`},
	{name: "41", what: "read and change what is hidden, by every name it has", text: `
		open         OK canary | EACCES | ENOENT | EACCES
		self-root    OK canary | EACCES | ENOENT | EACCES
		thread-root  OK canary | EACCES | ENOENT | EACCES
		victim-root  OK canary | EACCES | EACCES | EACCES
		dot-dot      OK canary | EACCES | ENOENT | EACCES
		list         OK | EACCES | OK | EACCES ; an empty folder lies over it
		create       OK | EACCES | EROFS | EACCES
		mkdir        OK | EACCES | EROFS | EACCES
		unlink       OK | EACCES | EROFS | EACCES
		+plain       OK canary | OK canary | OK canary | OK canary
		changes      hidden-files | - | - | -`},
	{name: "42", what: "a symbolic link in a writable folder to what is hidden", text: `
		+symlink      OK | OK | OK | OK
		open          OK canary | EACCES | ENOENT | EACCES
		+symlink-dir  OK | OK | OK | OK
		open-dir      OK canary | EACCES | ENOENT | EACCES
		made-outside  OK canary | EACCES | ENOENT | EACCES
		create        OK | EACCES | EROFS | EACCES
		changes       hidden-files | - | - | -`},
	{name: "43", what: "hard links", text: `
		link           OK | EXDEV | ENOENT | EXDEV
		link-fd        OK | EXDEV | ENOENT | EXDEV
		link-in        OK | EACCES | EROFS | EACCES
		!made-outside  OK canary | OK canary | OK canary | OK canary
		changes        hidden-files, plain-files | - | - | -`,
		why: "a second name that a hidden file already has in a folder that is not hidden is another way to it: hiding is by path"},
	{name: "44", what: "rename in and out of what is hidden", text: `
		out              OK | EACCES | EXDEV | EACCES
		in               OK | EACCES | EXDEV | EACCES
		exchange         OK | EACCES | EXDEV | EACCES
		+within          OK | OK | OK | OK
		folder-remove    OK | EACCES | EROFS | EACCES
		folder-exchange  OK | EACCES | EBUSY | EACCES
		folder           OK | EACCES | EBUSY | EACCES
		changes          hidden-files | - | - | -`},
	{name: "45", what: "truncate what is hidden", text: `
		truncate  OK | EACCES | ENOENT | EACCES
		O_TRUNC   OK | EACCES | ENOENT | EACCES
		changes   hidden-files | - | - | -`},
	{name: "46", what: "what Landlock does not govern, on what is hidden", text: `
		chmod         OK | OK | ENOENT | OK ; open in the bare form: Landlock knows no such right, and --accept landlock-hide was given for it
		chown         OK | OK | ENOENT | OK ; the same
		utime         OK | OK | ENOENT | OK ; the same
		setxattr      OK | OK | ENOENT | OK ; the same
		chmod-folder  OK | OK | EROFS | OK ; the same
		stat          OK | OK | ENOENT | OK ; the same
		access        OK | OK | ENOENT | OK ; the same
		getxattr      OK | OK | ENOENT | OK ; the same
		readlink      OK | OK | ENOENT | OK ; the same
		statfs        OK | OK | ENOENT | OK ; the same
		+chdir        OK | OK | OK | OK
		changes       hidden-files | hidden-files | - | hidden-files`},
	{name: "47", what: "use descriptors that the harness left open: a hidden folder, a socket, a hidden file", with: []string{"descriptors"}, text: `
		reopen         OK canary | EACCES | ENOENT | ENOENT
		openat         OK | EACCES | EBADF | EBADF
		send           OK | OK | EBADF | EBADF
		read           OK canary | OK canary | EBADF | EBADF
		ftruncate      OK | OK | EBADF | EBADF
		fchdir         OK | OK | EBADF | EBADF
		then-relative  OK canary | EACCES | ENOENT | ENOENT
		highest        EBADF | EBADF | EBADF | EBADF ; nothing was open there
		changes        hidden-files | hidden-files | - | -`},
	{name: "48", what: "start in a hidden folder", with: []string{"in-hidden"}, text: `
		relative       OK canary | EACCES | ENOENT | ENOENT
		up-and-down    OK canary | EACCES | ENOENT | ENOENT
		proc-cwd       OK canary | EACCES | ENOENT | ENOENT
		proc-cwd-up    OK canary | EACCES | ENOENT | ENOENT
		openat-dot     OK | EACCES | ENOENT | ENOENT
		getcwd         OK hidden | OK hidden | OK elsewhere | OK elsewhere ; fence starts the command in /
		+chdir         OK | OK | OK | OK
		then-relative  OK canary | EACCES | ENOENT | EACCES`},
	{name: "49", what: "make device nodes", text: `
		char   EPERM | EPERM | EACCES | EACCES
		block  EPERM | EPERM | EACCES | EACCES
		+fifo  OK | OK | OK | OK`},
	{name: "50", what: "shared memory, semaphores and queues of System V, and /dev/shm", text: `
		shmget         OK | OK | ENOENT | EPERM | OK | ENOENT | OK ; in a container's own IPC namespace the bare form leaves it open: its commands share it
		shmat          OK canary | OK canary | EINVAL | EPERM | OK canary | EINVAL | OK canary ; the same
		shmctl         OK | OK | EINVAL | EPERM | OK | EINVAL | OK ; the same
		semget         OK | OK | ENOENT | EPERM | OK | ENOENT | OK ; the same
		semop          OK | OK | EINVAL | EPERM | OK | EINVAL | OK ; the same
		msgget         OK | OK | ENOENT | EPERM | OK | ENOENT | OK ; the same
		msgsnd         OK | OK | EINVAL | EPERM | OK | EINVAL | OK ; the same
		dev-shm        OK canary | OK canary | ENOENT | OK canary ; in the bare form /dev/shm is the node's (--accept host-tmp was given for it) or the container's
		dev-shm-write  OK | EACCES | ENOENT | OK ; the same
		+own-dev-shm   OK | EACCES | OK | OK
		changes        messages, posix-memory, semaphore, sysv-memory | messages, semaphore, sysv-memory | - | posix-memory | messages, posix-memory, semaphore, sysv-memory | - | messages, posix-memory, semaphore, sysv-memory`},
	{name: "51", what: "POSIX message queues", text: `
		mq_open       OK | EACCES | ENOENT | EPERM | OK | ENOENT | EACCES
		mq_timedsend  OK | - | - | -
		mq_unlink     ENOENT | ENOENT | ENOENT | EPERM | ENOENT | ENOENT | ENOENT ; there is no queue of that name: EPERM is the filter
		changes       posix-messages | - | - | -`},
	{name: "52", what: "run a program from memory", text: `
		+memfd_create  OK | OK | OK | OK
		socket         OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		hidden         OK canary | EACCES | ENOENT | EACCES`,
		why: "running it is allowed, and gains nothing: the fence is the process's, not the program's"},
	{name: "53", what: "personality", text: `
		READ_IMPLIES_EXEC  OK | OK | EPERM | EPERM
		+query             OK | OK | OK | OK`},
	{name: "54", what: "write knobs of the kernel and of control groups", text: `
		cgroup.procs         OK | EACCES | EROFS | EACCES ; a group handed to the user, not there in a container
		own-oom_score_adj    OK | EACCES | EROFS | EACCES
		own-coredump_filter  OK | EACCES | EROFS | EACCES
		ns_last_pid          EPERM | EACCES | EROFS | EACCES
		core_pattern         EACCES | EACCES | EACCES | EACCES ; the kernel's own answer to an ordinary user
		modprobe             EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT ; the same
		ip_forward           EACCES | EACCES | EACCES | EACCES ; the same
		sysrq-trigger        EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT ; the same
		uevent_helper        EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT ; the same
		drop_caches          EACCES | EACCES | EACCES | EACCES ; the same
		power                EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT | EACCES/ENOENT ; the same`},
	{name: "55", what: "calls of the administrator", text: `
		swapoff        EPERM | EPERM | EPERM | EPERM ; the kernel's own answer to an ordinary user
		swapon         EPERM | EPERM | EPERM | EPERM ; the same
		reboot         EPERM | EPERM | EPERM | EPERM ; the same
		init_module    EPERM/ENOSYS | EPERM/ENOSYS | EPERM | EPERM ; the same, ENOSYS where it has no modules
		finit_module   EPERM/ENOSYS | EPERM/ENOSYS | EPERM | EPERM ; the same
		delete_module  EPERM/ENOSYS | EPERM/ENOSYS | EPERM | EPERM ; the same
		kexec_load     EPERM/ENOSYS | EPERM/ENOSYS | EPERM | EPERM ; the same
		iopl           OK/ENOSYS | OK/ENOSYS | EPERM | EPERM
		ioperm         EPERM/ENOSYS | EPERM/ENOSYS | EPERM | EPERM
		settimeofday   EFAULT | EFAULT | EPERM | EPERM
		clock_settime  EINVAL | EINVAL | EPERM | EPERM
		clock_adjtime  EPERM | EPERM | EPERM | EPERM ; the kernel's own answer to an ordinary user
		acct           EPERM/ENOSYS | EPERM/ENOSYS | EPERM | EPERM ; the same
		syslog         EPERM/EINVAL | EPERM/EINVAL | EPERM | EPERM ; the same where dmesg_restrict is set
		quotactl       ENODEV/EINVAL/ENOSYS | ENODEV/EINVAL/ENOSYS | EPERM | EPERM
		quotactl_fd    EBADF/ENOSYS | EBADF/ENOSYS | EPERM | EPERM
		sethostname    EPERM | EPERM | EPERM | EPERM ; the kernel's own answer to an ordinary user
		setdomainname  EPERM | EPERM | EPERM | EPERM ; the same
		vhangup        EPERM | EPERM | EPERM | EPERM ; the same
		+uname         OK | OK | OK | OK`},
	{name: "61", what: "exhaust: descriptors, core files, processes, files, /tmp, /dev/shm", with: []string{"in-tmp"}, text: `
		core         OK any | OK any | OK none | OK none ; a limit, lowered
		descriptors  OK above 4096 | OK above 4096 | EMFILE below 4096 | EMFILE below 4096
		!processes   OK 256 | OK 256 | OK 256 | OK 256 ; so many are tried, and the machine stays up
		!files       OK 4096 | EACCES below 4096 | OK 4096 | OK 4096 ; the same
		!tmp         OK 32 MiB | EACCES | OK 32 MiB | OK 32 MiB ; the same
		!shm         OK 32 MiB | EACCES | OK 32 MiB | OK 32 MiB ; the same`,
		why: "Slurm's control group bounds them, and a /tmp of the command's own is memory that counts there; --limit nproc and fsize bound them too (TestLimitsBound); in the bare form nproc counts all of the user's processes on the node, in the namespace form the command's (TestLimitCountsTheCommand)"},
	{name: "62", what: "leave a daemon behind (setsid, twice forked), and try from there", text: `
		!stays  OK | OK | OK | OK
		socket  OK | OK | EAFNOSUPPORT | EAFNOSUPPORT
		hidden  OK canary | EACCES | ENOENT | EACCES`,
		why: "it stays fenced; only a PID namespace ends it, as at the end of a container (TestContainerEndsWhatIsLeft)"},
	{name: "64", what: "open devices", text: `
		fuse       OK | EACCES | ENOENT | EACCES | ENOENT | ENOENT | ENOENT ; in a container with its own /dev there is none
		terminals  OK | OK | OK | EACCES | OK | OK | OK ; a private one: of the command or of the container
		+ptmx      OK | EACCES | OK | EACCES | OK | OK | OK
		+null      OK | EACCES | OK | OK
		+urandom   OK | OK | OK | OK`,
		why: "no InfiniBand, GPU or KVM devices on this machine: they are reached as /dev/fuse is"},

	{name: "parent", what: "the process that started the fence", text: `
		kill       OK | EPERM | EPERM | EPERM
		attach     OK | EPERM | EPERM | EPERM
		environ    OK nothing | EACCES | EACCES | EACCES
		!list-fds  OK | OK | OK | OK
		read-fd    OK | EACCES | EACCES | EACCES`},
	{name: "sibling", what: "another command under a fence of its own", with: []string{"sibling"}, text: `
		kill               OK | EPERM | EPERM | EPERM
		kill-0             OK | EPERM | EPERM | EPERM
		tkill              OK | EPERM | EPERM | EPERM
		tgkill             OK | EPERM | EPERM | EPERM
		rt_sigqueueinfo    OK | EPERM | EPERM | EPERM
		rt_tgsigqueueinfo  OK | EPERM | EPERM | EPERM
		!pidfd_open        OK | OK | OK | OK
		pidfd_send_signal  OK | EPERM | EPERM | EPERM
		group              OK | EPERM | EPERM | EPERM
		attach             OK | EPERM | EPERM | EPERM
		seize              OK | EPERM | EPERM | EPERM
		traceme            OK | OK | EPERM | EPERM
		process_vm_readv   OK canary | EPERM | EPERM | EPERM
		process_vm_writev  OK | EPERM | EPERM | EPERM
		environ            OK canary | EACCES | EACCES | EACCES
		changes            memory, signals | - | - | -`},
	{name: "child", what: "a command's own child", text: `
		environ  OK canary | OK canary | OK nothing | OK nothing ; the token of the harness did not come in
		+kill    OK | OK | OK | OK
		+ended   OK by SIGTERM | OK by SIGTERM | OK by SIGTERM | OK by SIGTERM`},
	{name: "adopted", what: "make a child of the process that started the fence (CLONE_PARENT)", text: `
		clone  OK | OK | EPERM | EPERM ; a harness that waits for any child would meet one that it does not know`},
	{name: "own-namespaces", what: "back through the handles of the namespaces one is in", text: `
		+open           OK | OK | OK | OK
		+NS_GET_USERNS  OK | OK | OK | EPERM | OK | OK | OK
		NS_GET_PARENT   EPERM | EPERM | EPERM | EBADF | EPERM | EPERM | EPERM ; the kernel's own answer: the parent is out of reach
		setns-user      EINVAL | EINVAL | EPERM | EPERM
		setns-mount     EPERM | EPERM | EPERM | EPERM ; the kernel's own answer to an ordinary user
		pid1-environ    EACCES | EACCES | EACCES | EACCES | OK nothing | EACCES | EACCES ; on the node it is root's
		pid1-root       EACCES | EACCES | EACCES | EACCES | OK nothing | EACCES | EACCES ; the same`},
	{name: "own-memory", what: "/proc/self/mem, past the protection of pages", text: `
		open        OK | EACCES | EROFS | EACCES
		write-text  OK | - | - | -
		+open-read  OK | OK | OK | OK`},
	{name: "parents", what: "rename a folder that holds a hidden one, so that the next fence does not find it", text: `
		!rename  OK | EACCES | EBUSY | EACCES
		secret   OK canary | ENOENT | ENOENT | ENOENT
		changes  hidden-files, plain-files | - | - | -`},
	{name: "pinned", what: "descriptors that stand for a path (O_PATH); run what is hidden", with: []string{"program"}, text: `
		+O_PATH   OK | OK | OK | OK
		openat    OK canary | EACCES | ENOENT | EACCES
		reopen    OK canary | EACCES | ENOENT | EACCES
		execve    OK | EACCES | ENOENT | EACCES
		execveat  OK | EACCES | EBADF | EACCES`},
	{name: "watched", what: "inotify on a hidden folder", text: `
		+inotify_add_watch  OK | OK | OK | OK
		+ask                OK | OK | OK | OK
		event               OK new-name | OK new-name | EAGAIN | OK new-name ; open in the bare form: names can be seen, and --accept landlock-hide was given for it`},
	{name: "other-terminal", what: "another terminal of the user, by its name", with: []string{"other-terminal"}, text: `
		open     OK | EACCES | ENOENT | EACCES | OK | ENOENT | OK ; in the bare form a container's terminals are all its commands'
		write    OK | - | - | - | OK | - | OK ; the same
		TIOCSTI  EPERM | - | - | - | EPERM | - | EPERM ; the kernel's own answer: it is not the command's own terminal
		changes  shown | - | - | - | shown | - | shown`},
	{name: "controlling", what: "the terminal that the harness was started from, with no standard descriptor on it", with: []string{"controlling"}, text: `
		!open     OK | EACCES | ENXIO | ENXIO
		!write    OK | - | - | -
		+ask-key  OK | - | - | -
		!read     OK the key | - | - | -
		TIOCSTI   OK/EIO | - | - | -
		changes   shown, typed | - | - | -`},
	{name: "log-file", what: "standard error is a file in a hidden folder, as a batch job's log is", with: []string{"log"}, text: `
		!reopen-read   OK nothing | EACCES | OK nothing | EACCES
		+reopen-write  OK | EACCES | OK | OK
		dot-dot        ENOTDIR | ENOTDIR | ENOTDIR | ENOTDIR ; a file has no folder above it
		+write         OK | OK | OK | OK
		+chmod         OK | OK | OK | OK`,
		why: "the namespace form hides by a mount that the descriptor is not under: what the log has in it can be read back"},
}

// asRootOfContainer is what differs when the user is user 0 in the container. The
// node's columns are not read.
var asRootOfContainer = map[string]string{
	"28": `
		sched_setaffinity  OK | OK | OK | OK | OK | EPERM | EPERM ; the victim has more capabilities
		changes            - | - | - | - | cpus | - | -`,
	"40": `
		setuid      - | - | - | - | OK | OK | OK ; it is user 0 already
		setgid      - | - | - | - | OK | OK | OK ; the same
		capset      - | - | - | - | OK | EPERM | EPERM
		ambient     - | - | - | - | OK | EPERM | EPERM
		securebits  - | - | - | - | OK | EPERM | EPERM`,
	"54": `
		ns_last_pid  - | - | - | - | OK | EROFS | EACCES`,
	"55": `
		reboot  - | - | - | - | EINVAL | EPERM | EPERM`,
	"own-namespaces": `
		setns-mount  - | - | - | - | OK | EPERM | EPERM`,
}

// otherwise are the rows of the list that are not in the table above: where they are and what came
// of it, or why they cannot be run here.
var otherwise = []struct{ name, what, where, result string }{
	{"56", "run fence in the fence with other flags", "TestFenceInFence",
		"only tighter: EAFNOSUPPORT, EPERM and ENOENT as before; in the bare form the second one finds nothing to grant and does not run"},
	{"57", "LD_PRELOAD, BASH_ENV or FENCE_POLICY set by the task's image", "TestImageCannotChoosePolicy, TestPreloadDoesNotEnterFence",
		"the launcher is static, the variables do not reach the command, and a container's FENCE_POLICY is not read"},
	{"58", "replace the fence binary or what runs before it, for the next command",
		"TestPlantedInRoot, TestProtectedCannotBeReplaced, TestLauncherCannotBeReplaced, TestPlantedInPath",
		"without a fence each runs next; namespace form EROFS and EBUSY, bare form EACCES"},
	{"59", "kill or flood the supervisor of loopback mode, or a session's init", "test/supervise: TestSupervisorIsOutside, TestFlood, TestSupervisorKilled; test/session: TestLeaderKilled",
		"the supervisor takes no signal from inside (EPERM) and answers 10000 connects at once; killed from outside, connect, bind and listen fail with ENOSYS, on Unix sockets too; a session's leader can be killed by its own commands, and its domain is then lost, no other"},
	{"60", "change a socket address after it was checked", "test/supervise: TestRace, TestPortOfAnother",
		"only the supervisor's own copy is used: of 50000 connects (a million in make test-all) beside a thread that rewrites the address none got elsewhere, nor did connect, bind and listen beside one that swaps the descriptor; no port is shared with others (SO_REUSEPORT), who would get what comes when the own listener closes; without a fence the host's server answers"},
	{"63", "ssh to another node; srun, sbatch, scontrol from inside", "TestSlurmFromInside; rows 1, 14, 15",
		"they work without a fence; with one no Slurm daemon is reached"},
	{"65", "ask a tmux server outside to run a command", "TestTmuxOutside",
		"without a fence it runs it; namespace form: no such socket; bare form before Landlock ABI 9: it runs it, --accept sockets was given for that"},
}

// alsoRemains is what the other tests find open.
var alsoRemains = []struct{ what, where string }{
	{"in the bare form a filesystem that is mounted while the command runs, in a folder that it may read, can be read", "TestMountedLater"},
	{"on a bare node a launcher that lies where the command may write can be replaced; in a container /.fence cannot", "TestLauncherOnTheNode"},
	{"a program that an image's own environment script calls runs before the next command's fence, and a command can replace it in a writable root: several commands on one root are a session", "TestImageScriptRunsPrograms"},
}
