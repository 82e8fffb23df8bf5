package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// Descriptors of the process that becomes fence, and then the command.
const (
	fdListener = 3 // a socket for the listener of notedFilter
	fdCommand  = 4 // a commandSpec
	fdStatus   = 5 // fence's status line: it is up
	fdFailed   = 6 // why the command could not be started, behind the fence
)

// commandSpec is what the command is started with, behind the fence.
type commandSpec struct {
	Argv, Env []string
	Cwd       string
	Files     []File // scripts, in fence's own /dev
	Fake      bool   // user 0: calls that need more than one user succeed
}

// run does a RUN step.
func run(s Spec, root string) (r Result, err error) {
	g := &stage{root: root, dir: s.Dir, mounted: map[uint64]bool{}, old: map[inode]tree.Owner{}}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return r, fmt.Errorf("sethostname: %w", err)
	}
	if s.Run.Network == "none" {
		if err := loopbackUp(); err != nil {
			return r, err
		}
	}
	user, err := tree.ResolveUser(root, s.Run.User)
	if err != nil {
		return r, &Failure{"user", err.Error()}
	}
	if err := g.names(); err != nil {
		return r, err
	}
	var opened []string
	// Those inside others after them, whatever order they stand in.
	slices.SortStableFunc(s.Run.Mounts, func(a, b Mount) int {
		return strings.Count(path.Clean(a.Target), "/") - strings.Count(path.Clean(b.Target), "/")
	})
	for i, m := range s.Run.Mounts {
		at, err := g.wanted(m, i)
		if err != nil {
			return r, &Failure{"source", err.Error()}
		}
		if at != "" {
			opened = append(opened, at)
		}
	}
	// After those, whatever they lie over.
	if err := g.system(); err != nil {
		return r, err
	}
	if err := g.tools(s.Run, opened, user.UID == 0); err != nil {
		return r, err
	}
	// A folder that an earlier step has removed is there again, the user's, and stays.
	before := len(g.stubs)
	if _, err := g.on(s.Run.Cwd, true); err != nil {
		return r, &Failure{"source", fmt.Sprintf("the working folder %s: %v", s.Run.Cwd, err)}
	}
	made := slices.Clone(g.stubs[before:])
	g.stubs = slices.DeleteFunc(g.stubs, func(p string) bool { return p == s.Run.Cwd || strings.HasPrefix(s.Run.Cwd, p+"/") })
	upper, err := unix.Open(s.Upper, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	lower := make([]string, len(s.Lower)) // as they can be opened from within
	for i, l := range s.Lower {
		fd, err := unix.Open(l, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return r, err
		}
		lower[i] = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	if err := g.enter(); err != nil {
		return r, err
	}
	for _, p := range made {
		if err := writeNote(p, tree.Owner{UID: user.UID, GID: user.GID}); err != nil {
			return r, err
		}
	}
	top, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return r, err
	}
	n := &notary{root: top, upper: upper, lower: lower, mounted: g.mounted, old: g.old, user: tree.Owner{UID: user.UID, GID: user.GID}, groups: []uint32{uint32(user.GID)}}
	for _, g := range user.Groups {
		n.groups = append(n.groups, uint32(g))
	}
	slices.Sort(n.groups)
	n.groups = slices.Compact(n.groups)
	if err = n.begin(s.Run.Specials); err == nil {
		r.Exit, err = n.command(s.Run, user)
	}
	if err == nil {
		r.Specials, err = n.settle()
		r.Warnings = n.holes
	}
	g.leave()
	return r, err
}

// command runs the command and returns its status when all of its processes
// have ended.
func (n *notary) command(r *Run, user tree.User) (int, error) {
	spec := commandSpec{Argv: r.Argv, Env: r.Env, Cwd: r.Cwd, Files: r.Files, Fake: user.UID == 0}
	if home := func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }; !slices.ContainsFunc(spec.Env, func(kv string) bool { return home(kv) && kv != "HOME=" }) {
		spec.Env = append(slices.DeleteFunc(slices.Clone(spec.Env), home), "HOME="+user.Home)
	}
	for _, m := range r.Mounts {
		if m.Env != "" {
			spec.Env = append(slices.Clone(spec.Env), m.Env+"="+string(m.Data))
		}
	}
	specR, specW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer specW.Close()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer statusR.Close()
	failedR, failedW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer failedR.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "listener")
	cmd := command(argRun, os.Stdout)
	cmd.ExtraFiles = []*os.File{theirs, specR, statusW, failedW}
	// The command is the first process that it sees, as in docker build.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if user.UID != 0 || user.GID != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN} // for /proc; fence drops it
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: user.UID, HostID: 0, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: user.GID, HostID: 0, Size: 1}}
	}
	switch err := cmd.Start(); {
	case err != nil && cmd.SysProcAttr.Cloneflags&syscall.CLONE_NEWUSER != 0:
		return 0, refusedUserns("the command of a USER", err)
	case err != nil:
		return 0, fmt.Errorf("starting the command: %w", err)
	}
	theirs.Close()
	specR.Close()
	statusW.Close()
	failedW.Close()
	go json.NewEncoder(specW).Encode(spec)
	if listener, err := receive(pair[0]); err == nil {
		n.listener = listener
		n.serve()
	}
	unix.Close(pair[0])

	status, err := reap(cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	line, _ := io.ReadAll(statusR)
	if len(line) == 0 {
		return 0, &Failure{"isolation", fmt.Sprintf("fence did not start the command (status %d): what it said is in the log", status)}
	}
	if why, _ := io.ReadAll(failedR); len(why) > 0 {
		return 0, &Failure{"command", string(why)}
	}
	return status, nil
}

// reap waits for a process, then ends all others: it is the first of the
// namespace. 128+N stands for signal N.
func reap(pid int) (int, error) {
	status := -1
	for {
		var ws unix.WaitStatus
		p, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD && status >= 0:
			return status, nil
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case p == pid:
			if status = ws.ExitStatus(); ws.Signaled() {
				status = 128 + int(ws.Signal())
			}
			unix.Kill(-1, unix.SIGKILL)
		}
	}
}

// receive takes a descriptor from a socket.
func receive(sock int) (int, error) {
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, k, _, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:k])
	if err != nil || len(msgs) != 1 {
		return -1, errors.New("no descriptor")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// runMain becomes fence.
func runMain() int {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return complain(fmt.Errorf("mounting /proc: %w", err))
	}
	argv := []string{inFence + "/fence", "--policy", inFence + "/step.toml", "--form", "namespace", "--workdir", "/",
		"--keep-fd", fmt.Sprint(fdListener), "--keep-fd", fmt.Sprint(fdCommand), "--keep-fd", fmt.Sprint(fdFailed), "--status-fd", fmt.Sprint(fdStatus),
		"--why", "what starts the command reads from it", "--", inFence + "/sifbuild", argExec}
	return complain(fmt.Errorf("%s: %w", argv[0], unix.Exec(argv[0], argv, []string{"PATH=/"})))
}

// stepPolicy is the built-in policy "build" for a root folder in which nothing
// is the node's, but for what the Dockerfile mounts.
func stepPolicy(mounts []string, root bool) []byte {
	var b strings.Builder
	b.WriteString("version = 1\nextends = \"build\"\n")
	if root {
		b.WriteString("[capabilities]\nkeep = [\"CAP_DAC_OVERRIDE\", \"CAP_FOWNER\", \"CAP_FSETID\"]\nwhy = \"root of the image changes its files whatever their mode\"\n")
	}
	b.WriteString("[[accept]]\nname = \"sockets\"\nwhy = \"nothing of the node is mounted here: they are the image's own\"\n")
	for _, m := range mounts {
		fmt.Fprintf(&b, "[[open]]\npath = %q\naccess = \"write\"\nwhy = \"--mount of the Dockerfile\"\n", m)
	}
	return []byte(b.String())
}

// execMain becomes the command, behind the fence.
func execMain() int {
	runtime.LockOSThread()
	var s commandSpec
	f := os.NewFile(fdCommand, "command")
	if err := json.NewDecoder(f).Decode(&s); err != nil {
		return complain(fmt.Errorf("reading what to run: %w", err))
	}
	f.Close()
	unix.Umask(0)
	for _, f := range s.Files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return complain(err)
		}
		if err := os.WriteFile(f.Path, f.Data, os.FileMode(f.Mode)); err != nil {
			return complain(err)
		}
	}
	unix.Umask(0o022)
	unix.CloseOnExec(fdFailed)
	failed := func(err error) int {
		fmt.Fprint(os.NewFile(fdFailed, "failed"), err)
		return 125
	}
	if err := os.Chdir(s.Cwd); err != nil {
		return failed(err)
	}
	file, err := lookPath(s.Argv[0], s.Env)
	if err != nil {
		return failed(err)
	}
	// Here, for fence tries in its self-test whether a device can be made.
	if err := emulate(s.Fake); err != nil {
		return complain(err)
	}
	usualSignals()
	return failed(fmt.Errorf("%s: %w", file, unix.Exec(file, s.Argv, s.Env)))
}

// usualSignals gives every signal its usual effect again: what whoever started
// the build ignores or blocks (nohup, a shell's background) is no affair of the
// command's.
func usualSignals() {
	var usual [4]uint64 // the kernel's struct sigaction: SIG_DFL, no flags, nothing blocked
	for sig := uintptr(1); sig <= 64; sig++ {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&usual)), 0, unsafe.Sizeof(usual[3]), 0, 0)
	}
	unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
}

// emulate applies the filters to this thread and hands the listener over.
func emulate(root bool) error {
	listener, err := install(notedFilter(root), unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(fdListener, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	unix.Close(listener)
	unix.Close(fdListener)
	if root {
		_, err = install(fakedFilter(), 0)
	}
	return err
}

// lookPath finds a command as execvp(3) would with that environment.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	dirs := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = v
		}
	}
	for _, dir := range filepath.SplitList(dirs) {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: there is no such command in %s", name, dirs)
}

func complain(err error) int {
	fmt.Fprintf(os.Stderr, "sifbuild: %v\n", err)
	return 125
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return os.NewSyscallError("ioctl(SIOCSIFFLAGS, lo)", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}
