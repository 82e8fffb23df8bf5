// Command checker is the command of the fault tests: it says from inside a
// fence what it can reach. It judges nothing; the test does.
//
//	checker CONFIG...       prints facts.Facts as JSON
//	checker exec0 PROGRAM   becomes PROGRAM with no arguments at all, not even its name
//
// Without the next two lines the runtime keeps descriptors on the cgroup's files.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/test/faults/facts"
)

func main() {
	runtime.LockOSThread() // layers of Landlock are a thread's
	if len(os.Args) == 3 && os.Args[1] == "exec0" {
		name, _ := unix.BytePtrFromString(os.Args[2])
		env, _ := unix.BytePtrFromString("PATH=/usr/bin:/bin")
		argv, envp := []*byte{nil}, []*byte{env, nil}
		_, _, errno := unix.Syscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envp[0])))
		fmt.Fprintln(os.Stderr, "checker:", errno)
		os.Exit(1)
	}
	var c facts.Config
	if len(os.Args) < 2 || json.Unmarshal([]byte(os.Args[1]), &c) != nil {
		fmt.Fprintln(os.Stderr, "checker: the argument is not a facts.Config")
		os.Exit(99)
	}
	out := os.Stdout
	f := look(c)
	if c.Out != "" {
		var err error
		if out, err = os.OpenFile(c.Out, os.O_WRONLY|os.O_TRUNC, 0); err != nil {
			fmt.Fprintln(os.Stderr, "checker:", err)
			os.Exit(98)
		}
	}
	if err := json.NewEncoder(out).Encode(f); err != nil {
		fmt.Fprintln(os.Stderr, "checker:", err)
		os.Exit(98)
	}
}

type looker struct {
	facts.Config
	facts.Facts
}

func look(c facts.Config) facts.Facts {
	l := &looker{Config: c}
	l.Tried = map[string]string{}
	l.descriptors() // before anything here opens one
	l.status()
	l.limits()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		l.Env = append(l.Env, name)
	}
	l.NS = map[string]string{}
	for _, ns := range []string{"user", "mnt", "ipc", "net", "pid"} {
		l.NS[ns], _ = os.Readlink("/proc/self/ns/" + ns)
	}
	l.Cwd, _ = os.Getwd()
	if buf := make([]byte, unix.PathMax); true { // not what $PWD says
		if n, err := unix.Getcwd(buf); err == nil {
			l.Cwd = strings.TrimRight(string(buf[:n]), "\x00")
		}
	}
	l.calls()
	l.files()
	l.processes()
	l.places()
	l.Layers = layers() // last: it adds layers of its own
	return l.Facts
}

func name(err error) string {
	if err == nil {
		return "ok"
	}
	for e := err; e != nil; {
		if errno, ok := e.(unix.Errno); ok {
			if n := unix.ErrnoName(errno); n != "" {
				return n
			}
			return errno.Error()
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			break
		}
		e = u.Unwrap()
	}
	return err.Error()
}

func (l *looker) try(what string, err error) { l.Tried[what] = name(err) }

// call makes a system call; most are given bad pointers, so that EFAULT says
// that the kernel's own code was reached and anything else who stopped it.
func (l *looker) call(what string, nr uintptr, args ...uintptr) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		l.try(what, errno)
		return
	}
	l.try(what, nil)
	if strings.HasPrefix(what, "socket.") || what == "io_uring_setup" || what == "userfaultfd" || what == "pidfd_open" {
		unix.Close(int(r))
	}
}

func (l *looker) calls() {
	const bad = 1 // no pointer
	l.call("socket.inet", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
	l.call("socket.inet.udp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0)
	l.call("socket.inet6", unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0)
	l.call("socket.mptcp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	l.call("socket.vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	l.call("socket.packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	l.call("socket.alg", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	l.call("socket.unix", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
	l.call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	l.call("clone3", unix.SYS_CLONE3, bad, 64)
	l.call("mount", unix.SYS_MOUNT, bad, bad, bad, 0, 0)
	l.call("fsopen", unix.SYS_FSOPEN, bad, 0)
	l.call("setns", unix.SYS_SETNS, ^uintptr(0), unix.CLONE_NEWNS)
	l.call("ptrace", unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(l.Victim), 0, 0)
	l.call("bpf", unix.SYS_BPF, 0, bad, 64)
	l.call("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, 0xfffffffd, 0) // the session's keyring
	l.call("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, bad)
	l.call("userfaultfd", unix.SYS_USERFAULTFD, 1) // USER_MODE_ONLY
	l.call("process_vm_readv", unix.SYS_PROCESS_VM_READV, uintptr(l.Victim), 0, 0, 0, 0, 0)
	l.call("prctl.securebits", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 0)
	id, _, errno := unix.Syscall(unix.SYS_SHMGET, 0, 4096, 0o1600) // IPC_PRIVATE, IPC_CREAT
	if errno == 0 {
		unix.SysvShmCtl(int(id), unix.IPC_RMID, nil)
		l.try("shmget", nil)
	} else {
		l.try("shmget", errno)
	}
}

// file is one way to a file's contents.
func (l *looker) read(what, path string) {
	data, err := os.ReadFile(path)
	if err == nil && len(data) == 0 {
		l.Tried[what] = "empty"
		return
	}
	l.try(what, err)
}

func (l *looker) write(what, path string) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	l.try(what, err)
}

func (l *looker) stat(what, path string) {
	var st unix.Stat_t
	l.try(what, unix.Lstat(path, &st))
}

func (l *looker) files() {
	for what, dir := range map[string]string{"decoy": l.Decoy, "fake": l.Fake} {
		l.read(what+".read", dir+"/secret")
		l.stat(what+".stat", dir+"/secret")
		l.write(what+".write", dir+"/secret")
		l.read(what+".by-root", "/proc/self/root"+dir+"/secret")
		l.read(what+".by-dots", dir+"/../"+filepath.Base(dir)+"/secret")
		f, err := os.Create(dir + "/new-" + strconv.Itoa(os.Getpid()))
		if err == nil {
			f.Close()
			os.Remove(f.Name())
		}
		l.try(what+".create", err)
	}
	// The test starts the launcher in the decoy: a folder that stays the
	// current one stays open, whatever lies over it.
	l.read("cwd.secret", "secret")
	l.read("cwd.up", "../"+filepath.Base(l.Fake)+"/secret")
	l.read("home.netrc", l.Home+"/.netrc")
	l.stat("home.stat", l.Home+"/.netrc")
	for i, p := range l.Planted {
		l.stat("planted."+strconv.Itoa(i), p)
	}
	l.read("shown.read", l.Shown+"/data")
	l.write("shown.write", l.Shown+"/data")
	l.try("shown.chmod", unix.Chmod(l.Shown+"/data", 0o644))
	// What a descriptor of the caller's would lead to.
	fd, err := unix.Openat(7, "secret", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	l.try("fd7.secret", err)

	// Landlock asks before the permission to make a device.
	for _, dir := range []string{"/dev/shm", "/tmp", "/var/tmp", filepath.Dir(l.Decoy)} {
		l.try("mknod."+dir, unix.Mknod(dir+"/fence-faults-"+strconv.Itoa(os.Getpid()), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	}
	fd, err = unix.Open(l.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	l.try("device", err)
	// Without the right to device ioctls EACCES comes before ENOTTY.
	if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		_, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		l.try("ioctl", err)
		unix.Close(fd)
	} else {
		l.Tried["ioctl"] = "no /dev/null: " + name(err)
	}
	l.write("proc.write", "/proc/self/oom_score_adj")
	if l.Config.Places {
		l.protected()
	}
}

// protected tries to change what is run before the fence the next time. What
// it changes it changes back.
func (l *looker) protected() {
	l.write("protected.script", "/.singularity.d/env/90-environment.sh")
	l.write("protected.tool", "/.fence/tool")
	for _, dir := range []string{"/.singularity.d", "/.fence"} {
		f, err := os.Create(dir + "/new")
		if err == nil {
			f.Close()
			os.Remove(f.Name())
		}
		l.try("protected.create "+dir, err)
	}
	for _, p := range []string{"/.singularity.d", "/.fence", "/environment", "/.run"} {
		err := unix.Rename(p, p+".moved")
		if err == nil {
			unix.Rename(p+".moved", p)
		}
		l.try("protected.rename "+p, err)
	}
	err := unix.Unlink("/.run")
	if err == nil {
		unix.Symlink(".singularity.d/actions/run", "/.run")
	}
	l.try("protected.unlink /.run", err)
}

func (l *looker) processes() {
	l.try("kill", unix.Kill(l.Victim, 0))
	_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", l.Victim))
	l.try("victim.environ", err)
	connect := func(what string, family int, addr unix.Sockaddr) {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, addr)
			unix.Close(fd)
		}
		l.try(what, err)
	}
	connect("abstract", unix.AF_UNIX, &unix.SockaddrUnix{Name: "@" + l.Abstract})
	connect("agent", unix.AF_UNIX, &unix.SockaddrUnix{Name: l.Agent})
	connect("tcp", unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: l.Port})
	connect("tcp.mapped", unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}, Port: l.Port})
}

func (l *looker) places() {
	l.Facts.Places = map[string]facts.Place{}
	for _, p := range append([]string{"/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/tmp", "/var/tmp", l.Shown}, l.Hidden...) {
		l.Facts.Places[p] = place(p)
	}
	l.Dev = l.Facts.Places["/dev"].Names
	l.Pts = l.Facts.Places["/dev/pts"].Names
	data, _ := os.ReadFile("/proc/self/mountinfo")
	l.Mounts = string(data)
}

func place(path string) (p facts.Place) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	p.Open = name(err)
	if err != nil {
		return p
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Fstat(fd, &st) != nil || unix.Fstatfs(fd, &fs) != nil {
		p.Type = "unknown"
		return p
	}
	p.Tmpfs, p.ReadOnly = fs.Type == unix.TMPFS_MAGIC, fs.Flags&unix.ST_RDONLY != 0
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		p.Type = "dir"
		if p.Names, err = f.Readdirnames(20); err == nil && path == "/dev" {
			more, _ := f.Readdirnames(-1)
			p.Names = append(p.Names, more...)
		}
	case unix.S_IFREG:
		p.Type = "file"
	case unix.S_IFCHR:
		p.Type = fmt.Sprintf("char %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	default:
		p.Type = fmt.Sprintf("%#o", st.Mode&unix.S_IFMT)
	}
	return p
}

func (l *looker) descriptors() {
	l.FDs = map[string]string{}
	for fd := range 256 {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			target, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			l.FDs[strconv.Itoa(fd)] = target
		}
	}
}

func (l *looker) status() {
	l.Caps = map[string]string{}
	data, err := os.ReadFile("/proc/self/status")
	if err != nil { // a fence with less than was asked for open: ask the kernel
		l.asked()
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch {
		case key == "NoNewPrivs":
			l.NoNewPrivs = value
		case key == "Seccomp":
			l.Facts.Seccomp = value
		case key == "Seccomp_filters":
			l.Filters = value
		case strings.HasPrefix(key, "Cap"):
			l.Caps[key] = strings.TrimLeft(value, "0")
		}
	}
	l.SecureBits = -1
	if bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0); err == nil {
		l.SecureBits = bits
	}
}

// asked is what status reads, by calls. The number of filters is not to be had.
func (l *looker) asked() {
	l.Filters = "?"
	if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil {
		l.NoNewPrivs = strconv.Itoa(n)
	}
	if n, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
		l.Facts.Seccomp = strconv.Itoa(n)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		l.Caps["CapPrm"] = name(err)
		return
	}
	set := func(name string, low, high uint32) {
		if n := uint64(high)<<32 | uint64(low); n != 0 {
			l.Caps[name] = strconv.FormatUint(n, 16)
		}
	}
	set("CapInh", caps[0].Inheritable, caps[1].Inheritable) // and so no ambient ones
	set("CapPrm", caps[0].Permitted, caps[1].Permitted)
	set("CapEff", caps[0].Effective, caps[1].Effective)
	var bounding uint64
	for c := range 64 {
		if on, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err == nil && on == 1 {
			bounding |= 1 << c
		}
	}
	set("CapBnd", uint32(bounding), uint32(bounding>>32))
}

func (l *looker) limits() {
	l.Limits = map[string][2]uint64{}
	for name, which := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "fsize": unix.RLIMIT_FSIZE} {
		var r unix.Rlimit
		if unix.Getrlimit(which, &r) == nil {
			l.Limits[name] = [2]uint64{r.Cur, r.Max}
		}
	}
}

// layers counts the layers in force by adding more until the kernel, which
// takes 16, says E2BIG.
func layers() int {
	const most = 16
	attr := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_CHAR) // of struct landlock_ruleset_attr, the first field
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	if errno != 0 {
		return -1
	}
	unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for n := range most + 1 {
		if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno == unix.E2BIG {
			return most - n
		} else if errno != 0 {
			return -1
		}
	}
	return -1
}
