package probe

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sysChecks are group F. Each call is made with arguments that cannot do
// anything: the errno says whether it came to the code behind it.
func sysChecks() []Check {
	// call makes a check of one system call; capable says that the kernel
	// itself asks for a capability before it looks at the arguments.
	call := func(id, severity string, capable bool, what, why string, do func() (string, syscall.Errno), attack ...string) Check {
		return Check{
			ID: id, Group: "sys", Severity: severity, Attack: attack, Worker: classSys, What: what, Why: why,
			try: func(s *site, _ string) Finding {
				name, e := do()
				f := Finding{Errno: errnoName(e), Syscall: name, Evidence: sysErr(what, e)}
				f.Outcome, f.Mechanism = judgeCall(s.facts, e, capable)
				if e == 0 {
					f.Evidence = what + " works"
				}
				return f
			},
		}
	}
	raw := func(name string, nr uintptr, a ...uintptr) func() (string, syscall.Errno) {
		return func() (string, syscall.Errno) {
			var p [6]uintptr
			copy(p[:], a)
			_, _, e := unix.Syscall6(nr, p[0], p[1], p[2], p[3], p[4], p[5])
			return name, e
		}
	}
	const (
		none   = ^uintptr(0)              // -1: no descriptor, no flag that exists
		escape = "a step to another root" // the mount family
	)
	ns := func(id, severity, what, why string, clone, unshare uintptr) Check {
		return Check{
			ID: id, Group: "sys", Severity: severity, Attack: []string{"T1611"}, Worker: classSys, What: what, Why: why,
			try: func(s *site, _ string) Finding { return s.tryNamespace(what, clone, unshare) },
		}
	}
	list := []Check{
		ns("sys.unshare.user", "medium", "unshare(CLONE_NEWUSER) in a child", "all capabilities in a user namespace: most kernel holes begin here", 0, unix.CLONE_NEWUSER),
		ns("sys.unshare.net", "low", "unshare(CLONE_NEWUSER|CLONE_NEWNET) in a child", "the same, and netfilter with it; it also says whether fence can have a network of its own", 0, unix.CLONE_NEWUSER|unix.CLONE_NEWNET),
		ns("sys.clone.user", "medium", "clone(CLONE_NEWUSER)", "the same by another call", unix.CLONE_NEWUSER, 0),
		call("sys.clone3", "low", false, "clone3(NULL, 0)", "its flags are in memory, where no filter sees them", raw("clone3", unix.SYS_CLONE3)),
		call("sys.setns", "medium", false, "setns(-1, 0)", "enters the namespaces of others", raw("setns", unix.SYS_SETNS, none), "T1611"),
		call("sys.mount", "medium", true, "mount(NULL, NULL, NULL)", escape, raw("mount", unix.SYS_MOUNT, 1, 1, 1), "T1611"),
		call("sys.umount", "medium", true, `umount2("", ~0)`, "takes a mask off", func() (string, syscall.Errno) {
			empty := [1]byte{}
			_, _, e := unix.Syscall(unix.SYS_UMOUNT2, uintptr(unsafe.Pointer(&empty)), none, 0)
			return "umount2", e
		}, "T1611"),
		call("sys.fsopen", "medium", true, "fsopen(NULL, ~0)", escape, raw("fsopen", unix.SYS_FSOPEN, 0, none), "T1611"),
		call("sys.open_tree", "medium", true, "open_tree(-1, NULL, OPEN_TREE_CLONE)", escape, raw("open_tree", unix.SYS_OPEN_TREE, none, 0, unix.OPEN_TREE_CLONE), "T1611"),
		call("sys.open_tree_attr", "medium", true, "open_tree_attr(-1, NULL, OPEN_TREE_CLONE)", "new enough that filters do not know it", raw("open_tree_attr", 467, none, 0, unix.OPEN_TREE_CLONE), "T1611"),
		call("sys.move_mount", "medium", true, "move_mount(-1, NULL, -1, NULL, ~0)", "moves a mask away", raw("move_mount", unix.SYS_MOVE_MOUNT, none, 0, none, 0, none), "T1611"),
		call("sys.mount_setattr", "medium", true, "mount_setattr(-1, NULL, ~0)", "makes a read-only mount writable", raw("mount_setattr", unix.SYS_MOUNT_SETATTR, none, 0, none), "T1611"),
		call("sys.pivot_root", "medium", true, "pivot_root(NULL, NULL)", escape, raw("pivot_root", unix.SYS_PIVOT_ROOT), "T1611"),
		call("sys.chroot", "low", true, "chroot(NULL)", escape, raw("chroot", unix.SYS_CHROOT), "T1611"),
		call("sys.ptrace", "medium", false, "ptrace(PTRACE_PEEKDATA) of no process", "reads and writes other processes", raw("ptrace", unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 0x7ffffffe), "T1055.008"),
		call("sys.process_vm_readv", "medium", false, "process_vm_readv(0, flags ~0)", "reads other processes", raw("process_vm_readv", unix.SYS_PROCESS_VM_READV, 0, 0, 0, 0, 0, none), "T1055"),
		call("sys.process_vm_writev", "medium", false, "process_vm_writev(0, flags ~0)", "writes other processes", raw("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, 0, 0, 0, 0, 0, none), "T1055"),
		call("sys.bpf", "medium", false, "bpf(-1, NULL, 0)", "programs in the kernel", raw("bpf", unix.SYS_BPF, none), "T1068"),
		call("sys.bpf.load", "medium", false, "bpf(PROG_LOAD) of an empty program", "the same, with the site's settings asked", func() (string, syscall.Errno) {
			attr := [64]byte{}
			fd, _, e := unix.Syscall(unix.SYS_BPF, 5, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			if e == 0 {
				unix.Close(int(fd))
			}
			return "bpf", e
		}, "T1068"),
		call("sys.perf_event_open", "medium", false, "perf_event_open of a dummy counter of its own", "side channels, and attack surface", perfOpen, "T1068"),
		call("sys.userfaultfd", "low", false, "userfaultfd(~0)", "makes kernel races winnable", raw("userfaultfd", unix.SYS_USERFAULTFD, none), "T1068"),
		call("sys.keyctl", "medium", false, "keyctl(-1)", "keyrings are shared by all jobs of a user", raw("keyctl", unix.SYS_KEYCTL, none), "T1552"),
		call("sys.add_key", "medium", false, "add_key(NULL)", "keyrings are shared by all jobs of a user", raw("add_key", unix.SYS_ADD_KEY), "T1552"),
		call("sys.name_to_handle_at", "low", false, "name_to_handle_at(-1, NULL)", "the half of opening by number that needs no right", raw("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, none), "T1611"),
		call("sys.kexec_load", "high", true, "kexec_load(17 segments, flags ~0)", "another kernel", raw("kexec_load", unix.SYS_KEXEC_LOAD, 0, 17, 0, none), "T1014"),
		call("sys.init_module", "high", true, "init_module(NULL, 0)", "code in the kernel", raw("init_module", unix.SYS_INIT_MODULE), "T1547.006"),
		call("sys.fanotify_init", "low", false, "fanotify_init for reports by file id", "watches files that it cannot open", func() (string, syscall.Errno) {
			fd, _, e := unix.Syscall(unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID|unix.FAN_CLOEXEC, 0, 0)
			if e == 0 {
				unix.Close(int(fd))
			}
			return "fanotify_init", e
		}, "T1083"),
		call("sys.personality", "low", false, "personality(-1), which only asks", "turns address randomisation off", raw("personality", unix.SYS_PERSONALITY, 0xffffffff)),
		call("sys.acct", "low", true, "acct of a file that does not exist", "the node's accounting", pathCall("acct", unix.SYS_ACCT)),
		call("sys.swapon", "low", true, "swapon of a file that does not exist", "the node's memory", pathCall("swapon", unix.SYS_SWAPON)),
		call("sys.quotactl", "low", false, "quotactl(GETFMT) of a device that does not exist", "asks about other people's quotas", func() (string, syscall.Errno) {
			p := nowhere()
			_, _, e := unix.Syscall6(unix.SYS_QUOTACTL, 0x80000400, uintptr(unsafe.Pointer(p)), 0, 0, 0, 0) // QCMD(Q_GETFMT, USRQUOTA)
			return "quotactl", e
		}),
		call("sys.syslog", "low", false, "syslog(SIZE_BUFFER), which reads nothing", "the kernel's log", raw("syslog", unix.SYS_SYSLOG, 10), "T1082"),
		call("sys.seccomp", "info", false, "seccomp(~0)", "a nested fence needs it; it can only tighten", raw("seccomp", unix.SYS_SECCOMP, 0xffffffff)),
		call("sys.memfd_create", "info", false, "memfd_create", "CUDA needs it", func() (string, syscall.Errno) {
			fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
			if err == nil {
				unix.Close(fd)
			}
			return "memfd_create", errnoOf(err)
		}),
		call("sys.modify_ldt", "low", false, "modify_ldt(0, NULL, 0), which reads nothing", "attack surface of 16-bit programs", modifyLDT, "T1068"),
		{
			ID: "sys.memfd.exec", Group: "sys", Severity: "low", Attack: []string{"T1620"}, Worker: classSys, try: tryMemfdExec,
			What: "runs a program that only exists in memory and does nothing", Why: "exec rules for paths do not see it; no fence stops it, and none needs to: it runs behind the same fence",
		},
	}
	return append(list, foreignCalls()...)
}

// nowhere is the path of a file that does not exist.
func nowhere() *byte {
	p, _ := unix.BytePtrFromString("/proc/self/probe-no-such-file")
	return p
}

func pathCall(name string, nr uintptr) func() (string, syscall.Errno) {
	return func() (string, syscall.Errno) {
		_, _, e := unix.Syscall(nr, uintptr(unsafe.Pointer(nowhere())), 0, 0)
		return name, e
	}
}

// perfOpen asks for a counter that counts nothing, of this thread alone.
func perfOpen() (string, syscall.Errno) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Bits: unix.PerfBitDisabled | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return "perf_event_open", errnoOf(err)
}

// tiny is a program in memory that ends at once, "" if there can be none: a
// child that is only there to be started need not be all of probe.
var tiny = sync.OnceValue(func() string {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		return ""
	}
	p := fmt.Sprintf("/proc/self/fd/%d", fd)
	if n, err := unix.Write(fd, tinyProgram); err == nil && n > 0 && startChild(p, 0, 0) == nil {
		return p
	}
	unix.Close(fd)
	return ""
})

// startExit starts a child that ends at once, with the given namespaces.
func startExit(clone, unshare uintptr) error {
	if p := tiny(); p != "" {
		return startChild(p, clone, unshare)
	}
	return startChild(self(), clone, unshare)
}

func startChild(program string, clone, unshare uintptr) error {
	p, err := os.StartProcess(program, []string{"probe", WorkerName, helperExit}, &os.ProcAttr{
		Files: []*os.File{nil, nil, nil},
		Sys:   &syscall.SysProcAttr{Cloneflags: clone, Unshareflags: unshare},
	})
	if err != nil {
		return err
	}
	_, err = p.Wait()
	return err
}

// tryNamespace makes a namespace in a child: the Go runtime has threads, and
// a process with threads cannot.
func (s *site) tryNamespace(what string, clone, unshare uintptr) Finding {
	if err := startExit(0, 0); err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Evidence: "no child could be started: " + err.Error()}
	}
	e := errnoOf(startExit(clone, unshare))
	name := "unshare"
	if clone != 0 {
		name = "clone"
	}
	f := Finding{Errno: errnoName(e), Syscall: name, Evidence: sysErr(what, e)}
	f.Outcome, f.Mechanism = judgeNamespace(s.facts, e)
	if e == 0 {
		f.Evidence = what + " works"
	}
	return f
}

func tryMemfdExec(s *site, _ string) Finding {
	fd, err := unix.MemfdCreate("probe", 0)
	f := Finding{Syscall: "memfd_create"}
	if err != nil {
		e := errnoOf(err)
		f.Errno, f.Evidence = errnoName(e), sysErr("memfd_create", e)
		f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
		return f
	}
	file := os.NewFile(uintptr(fd), "probe")
	defer file.Close()
	if tinyProgram == nil {
		return Finding{Outcome: Skipped, Evidence: "no program for this architecture"}
	}
	if _, err := file.Write(tinyProgram); err != nil {
		return Finding{Outcome: Error, Evidence: err.Error()}
	}
	return s.runFile(fmt.Sprintf("/proc/self/fd/%d", fd), "a program in memory")
}
