// Command guest is /init of the kernels that the tests boot: it makes the initramfs look like a node with two users, says
// what the kernel has, runs the Plan's commands, and powers off.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/kernels/internal/wire"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "try" {
		os.Exit(tryNamespaces(os.Args[2]))
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is /init of the kernel tests, to be started by a kernel")
		os.Exit(2)
	}
	g := &guest{}
	if err := g.run(); err != nil {
		g.send(wire.Event{Fault: err.Error()})
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

type guest struct {
	out   *os.File // the second serial port
	facts wire.Facts
}

func (g *guest) run() error {
	var plan wire.Plan
	raw, err := os.ReadFile("/plan.json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &plan); err != nil {
		return fmt.Errorf("reading the plan: %w", err)
	}
	if err := switchRoot(); err != nil {
		return err
	}
	g.layOut()
	if g.out, err = openReports(plan.Port); err != nil {
		return err
	}
	for _, m := range plan.Modules {
		if err := loadModule(m); err != nil {
			g.facts.ModuleErrors = append(g.facts.ModuleErrors, err.Error())
		}
	}
	if plan.Disk {
		if err := mountDisk(); err != nil {
			return err
		}
	}
	if err := sysctls(plan.Set); err != nil {
		return err
	}
	g.detect()
	g.send(wire.Event{Facts: &g.facts})

	background := map[int]func() *wire.Outcome{}
	for i, c := range plan.Commands {
		if err := sysctls(c.Set); err != nil {
			return fmt.Errorf("before command %d: %w", i, err)
		}
		wait := start(c)
		if c.Background {
			background[i] = wait
			continue
		}
		g.send(wire.Event{Index: i, Outcome: wait()})
	}
	for i := range plan.Commands {
		if wait := background[i]; wait != nil {
			g.send(wire.Event{Index: i, Outcome: wait()})
		}
	}
	g.send(wire.Event{End: true})
	return nil
}

// send writes one line and waits until the port has taken it: power off discards what is still queued.
func (g *guest) send(e wire.Event) {
	if g.out == nil {
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		line, _ = json.Marshal(wire.Event{Fault: err.Error()})
	}
	_, _ = g.out.Write(append(line, '\n'))
	_ = unix.IoctlSetInt(int(g.out.Fd()), unix.TCSBRK, 1) // tcdrain
}

// switchRoot moves from the initramfs, which cannot be pivoted from, to a tmpfs that holds the same files.
func switchRoot() error {
	if err := os.Mkdir("/new", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("root", "/new", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == "/new" {
			return fs.SkipDir
		}
		if path == "/" {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		to := "/new" + path
		switch {
		case d.IsDir():
			err = os.Mkdir(to, 0o700)
		case info.Mode()&fs.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(path); err == nil {
				err = os.Symlink(target, to)
			}
		case info.Mode().IsRegular():
			err = copyFile(path, to)
		default:
			err = unix.Mknod(to, st.Mode, int(st.Rdev))
		}
		if err != nil {
			return err
		}
		if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		return unix.Chmod(to, st.Mode&0o7777)
	})
	if err != nil {
		return err
	}
	if err := os.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Remove(from) // the memory is needed
}

// layOut makes the rest of a node: what the kernel serves, the loopback interface, the two users' places.
func (g *guest) layOut() {
	try := func(what string, err error) {
		if err != nil {
			g.facts.SetupProblems = append(g.facts.SetupProblems, what+": "+err.Error())
		}
	}
	unix.Umask(0o022)
	for _, m := range []struct {
		source, on, kind string
		flags            uintptr
		data             string
	}{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"securityfs", "/sys/kernel/security", "securityfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"dev", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
		{"shm", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"run", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmp", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		if !strings.HasPrefix(m.on, "/sys/") {
			try("mkdir "+m.on, os.MkdirAll(m.on, 0o755))
		}
		try("mount "+m.on, unix.Mount(m.source, m.on, m.kind, m.flags, m.data))
	}
	try("rshared /", unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")) // as systemd leaves it
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, "/dev/"+name); !errors.Is(err, fs.ErrExist) {
			try("/dev/"+name, err)
		}
	}
	try("hostname", unix.Sethostname([]byte("node")))
	try("lo", loopbackUp())
	for path, text := range map[string]string{
		"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
		"/etc/group":         "root:x:0:\ntty:x:5:\nalice:x:1000:\nbob:x:1001:\nnogroup:x:65534:\n",
		"/etc/hosts":         "127.0.0.1 localhost node\n::1 localhost\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		"/etc/resolv.conf":   "",
	} {
		try("/etc", os.MkdirAll("/etc", 0o755))
		if _, err := os.Lstat(path); err == nil {
			continue // the test brought its own
		}
		try(path, os.WriteFile(path, []byte(text), 0o644))
	}
	for _, u := range []account{accounts[wire.Alice], accounts[wire.Bob], accounts[wire.Root]} {
		try(u.home, os.MkdirAll(u.home, 0o755))
		try(u.home, os.Chown(u.home, u.id, u.id))
		try(u.home, os.Chmod(u.home, 0o700))
	}
	if _, err := os.Stat("/bin/busybox"); err == nil {
		try("busybox", exec.Command("/bin/busybox", "--install", "-s", "/bin").Run())
	}
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}

// openReports opens the port that the test reads, with nothing between it and the test: no echo, no added carriage returns.
func openReports(port string) (*os.File, error) {
	f, err := os.OpenFile(port, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("the report port: %w", err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("the report port: %w", err)
	}
	return f, os.Chmod(port, 0o600)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// mountDisk mounts the disk where everybody may write. Its driver finds it when the kernel is already running.
func mountDisk() error {
	const device, at = "/dev/nvme0n1", "/disk"
	for range 200 {
		if _, err := os.Stat(device); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, at, "ext4", unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mounting the disk: %w", err)
	}
	return os.Chmod(at, 0o777|fs.ModeSticky)
}

func sysctls(set map[string]string) error {
	for name, value := range set {
		path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("sysctl %s=%s: %w", name, value, err)
		}
	}
	return nil
}

func (g *guest) detect() {
	f := &g.facts
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.Release, f.Machine = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])
	}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	if errno == 0 {
		f.LandlockABI = int(abi)
	} else if f.LandlockErr = unix.ErrnoName(errno); errno == unix.EOPNOTSUPP {
		f.LandlockErr = "EOPNOTSUPP" // the same number as ENOTSUP
	}
	f.Errata = -1
	if errata, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 2); errno == 0 {
		f.Errata = int(errata)
	}
	read := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	f.LSM = read("/sys/kernel/security/lsm")
	f.Seccomp = read("/proc/sys/kernel/seccomp/actions_avail")
	f.Yama = -1
	if n, err := strconv.Atoi(read("/proc/sys/kernel/yama/ptrace_scope")); err == nil {
		f.Yama = n
	}
	f.TmpfsXattr = unix.Setxattr("/tmp", "user.try", nil, 0) == nil && unix.Removexattr("/tmp", "user.try") == nil
	f.Overlay = slices.Contains(strings.Fields(read("/proc/filesystems")), "overlay")
	try := func(kind string) bool {
		c := exec.Command("/proc/self/exe", "try", kind)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		return c.Run() == nil
	}
	f.UserNS, f.MountNS, f.NetNS, f.PidNS = try("user"), try("mount"), try("net"), try("pid")
}

// tryNamespaces is the ordinary user's attempt; it runs in a child of its own.
func tryNamespaces(kind string) int {
	flags := map[string]uintptr{"user": 0, "mount": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID}
	if strings.HasPrefix(kind, "in-") { // in the namespaces: are they of any use?
		if kind == "in-mount" && unix.Mount("try", "/tmp", "tmpfs", 0, "") != nil {
			return 1
		}
		return 0
	}
	c := exec.Command("/proc/self/exe", "try", "in-"+kind)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | flags[kind],
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if c.Run() != nil {
		return 1
	}
	return 0
}

type account struct {
	name, home string
	id         int
}

var accounts = map[wire.User]account{
	wire.Alice: {"alice", "/home/alice", 1000},
	wire.Bob:   {"bob", "/home/bob", 1001},
	wire.Root:  {"root", "/root", 0},
}

// start starts the command and returns how to wait for it. A Background command has printed its first line, or ended.
func start(c wire.Command) (wait func() *wire.Outcome) {
	who, known := accounts[c.User]
	if !known || len(c.Argv) == 0 {
		return func() *wire.Outcome {
			return &wire.Outcome{Err: fmt.Sprintf("no such user or no argv: %q %q", c.User, c.Argv)}
		}
	}
	limit := 60 * time.Second
	if c.Seconds > 0 {
		limit = time.Duration(c.Seconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	if c.Background {
		ctx, cancel = context.WithCancel(context.Background())
	}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	if cmd.Dir == "" {
		cmd.Dir = who.home
	}
	cmd.Env = append([]string{"HOME=" + who.home, "USER=" + who.name, "PATH=/bin:/usr/bin", "TMPDIR=/tmp"}, c.Env...)
	if !strings.Contains(c.Argv[0], "/") {
		cmd.Path, cmd.Err = "/bin/"+c.Argv[0], nil
	}
	cmd.Stdin = strings.NewReader(c.In)
	stdout, stderr := &firstLine{seen: make(chan struct{})}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(who.id), Gid: uint32(who.id)}}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // something it left behind may hold the pipes

	began := time.Now()
	if err := cmd.Start(); err != nil {
		cancel()
		return func() *wire.Outcome { return &wire.Outcome{Err: err.Error()} }
	}
	done := make(chan *wire.Outcome, 1)
	go func() {
		err := cmd.Wait()
		o := &wire.Outcome{Stdout: stdout.buf.Bytes(), Stderr: stderr.Bytes(), Millis: time.Since(began).Milliseconds()}
		if err != nil && cmd.ProcessState == nil {
			o.Err = err.Error()
		} else if ctx.Err() != nil {
			o.Killed = true
		} else if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
			o.Signal = int(ws.Signal())
		} else {
			o.Exit = ws.ExitStatus()
		}
		stdout.end()
		done <- o
	}()
	if !c.Background {
		return func() *wire.Outcome { defer cancel(); return <-done }
	}
	select {
	case <-stdout.seen:
	case <-time.After(limit): // it may mean to be silent; whoever needs it will notice
	}
	return func() *wire.Outcome { cancel(); return <-done }
}

// firstLine is a buffer that tells when a whole line is in it. (The Buffer is not embedded: io.Copy would find its ReadFrom.)
type firstLine struct {
	buf    bytes.Buffer
	seen   chan struct{}
	closed bool
}

func (b *firstLine) Write(p []byte) (int, error) {
	n, err := b.buf.Write(p)
	if bytes.IndexByte(p, '\n') >= 0 {
		b.end()
	}
	return n, err
}

func (b *firstLine) end() {
	if !b.closed {
		b.closed = true
		close(b.seen)
	}
}
