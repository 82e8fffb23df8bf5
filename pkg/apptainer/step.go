package apptainer

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Step is how a command is started where descriptors do not come along: in a
// step of a Slurm job, on this node.
type Step struct {
	Argv []string // srun and its flags; a command's belong behind it
	Env  []string // its own, of which the command has nothing
	// Dir is a folder of the caller's alone, on a disk that both see, for a socket
	// by which the command gets what it begins with.
	Dir string
}

// argStep is the first argument with which this program is started in a step:
// srun names a program by its path. The second is Step.Dir.
const argStep = "apptainer: step"

const stepSocket = "s"

// begin is what is handed over, with the command's descriptors from 0 on.
type begin struct {
	Args, Env []string
	Dir       string
}

// start starts srun in place of cmd, and hands over to the step what cmd was to
// begin with. pid is the process in the step, the first of its session; 0 if srun
// has ended, or ctx has, before there was one.
func (s *Step) start(ctx context.Context, cmd *exec.Cmd) (srun *exec.Cmd, pid int, err error) {
	dir, err := os.Open(s.Dir) // the path may be too long for an address (unix(7))
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), stepSocket)})
	if err != nil {
		return nil, 0, fmt.Errorf("a socket in %s: %w", s.Dir, err)
	}
	defer l.Close()
	self := fmt.Sprintf("/proc/%d/exe", os.Getpid()) // it may have been replaced
	srun = exec.Command(s.Argv[0], append(s.Argv[1:], self, argStep, s.Dir)...)
	srun.Env, srun.Dir, srun.Stdout, srun.Stderr = s.Env, "/", cmd.Stderr, cmd.Stderr
	srun.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := srun.Start(); err != nil {
		return nil, 0, err
	}
	// The step ends with what it is handed, and srun with that: unless Slurm does not answer.
	context.AfterFunc(ctx, func() {
		time.AfterFunc(2*endTimeout, func() { _ = srun.Process.Kill() })
	})
	waits := context.AfterFunc(ctx, func() { // for room in the job
		l.Close()
		_ = srun.Process.Signal(syscall.SIGTERM)
	})
	defer waits()
	go func() {
		waitExit(srun.Process.Pid)
		l.Close()
	}()
	if c, err := l.AcceptUnix(); err == nil { // else srun says why
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		pid, _ = handOver(c, cmd)
	}
	return srun, pid, nil
}

// handOver gives the one at the other end of c what cmd is to begin with.
func handOver(c *net.UnixConn, cmd *exec.Cmd) (pid int, err error) {
	var fds []int
	for _, f := range append([]*os.File{cmd.Stdin.(*os.File), cmd.Stdout.(*os.File), cmd.Stderr.(*os.File)}, cmd.ExtraFiles...) {
		fds = append(fds, int(f.Fd()))
	}
	text, err := json.Marshal(begin{cmd.Args, cmd.Env, cmd.Dir})
	if err != nil {
		return 0, err
	}
	// The descriptors come with the first byte.
	if _, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
		return 0, err
	}
	if _, err := c.Write(text); err != nil {
		return 0, err
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	_, err = fmt.Fscan(c, &pid)
	return pid, err
}

// stepMain is this program in a step: it starts the command with what it is
// handed, and stays with it, as Slurm counts the step's life by it.
func stepMain(dir string) int {
	refuse := func(err error) int {
		fmt.Fprintf(os.Stderr, "the step of a trial: %v\n", err)
		return 127
	}
	// What slurmstepd may have left open is nothing for a container.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return refuse(os.NewSyscallError("close_range", err))
	}
	if err := os.Chdir(dir); err != nil {
		return refuse(err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: stepSocket})
	if err != nil {
		return refuse(err)
	}
	files, err := receive(c)
	if err != nil {
		return refuse(err)
	}
	var b begin
	if err := json.NewDecoder(c).Decode(&b); err != nil {
		return refuse(err)
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: b.Args, Env: b.Env, Dir: b.Dir}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = files[0], files[1], files[2], files[3:]
	// Slurm has made this process the first of a group, which cannot have a session of its own.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return refuse(err)
	}
	fmt.Fprintln(c, cmd.Process.Pid)
	c.Close()
	for _, f := range files {
		f.Close()
	}
	return exitCode(cmd.Wait())
}

// receive takes the descriptors that come with the first byte.
func receive(c *net.UnixConn) (files []*os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(64*4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob) // they are close-on-exec
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "given"))
		}
	}
	if len(files) < 3 {
		return nil, fmt.Errorf("%d descriptors came from %s", len(files), filepath.Base(os.Args[0]))
	}
	return files, nil
}

// waitExit returns when a child of this process has ended. Not yet reaped, its
// number is nobody else's.
func waitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
