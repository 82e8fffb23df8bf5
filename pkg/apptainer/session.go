package apptainer

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipesEnd is how long output is waited for when nobody of the session is left
// to write any.
const pipesEnd = 5 * time.Second

// argSession is the name under which this program is started again, to start
// Apptainer and to outlive whoever asked for that.
const argSession = "sifbuild: start"

// fdLife is the descriptor that argSession is given besides those of the
// command it starts, 0 to 3: at its end nobody waits any more.
const fdLife = 4

// Main takes over where the process was started to start Apptainer, and does
// not return then. A program that calls Run calls it first. Death signals do
// not reach through Apptainer, so that a killed caller would leave a container
// running.
func Main() {
	if os.Args[0] == argSession && len(os.Args) > 1 {
		os.Exit(sessionMain())
	}
}

func sessionMain() int {
	life := os.NewFile(fdLife, "life")
	status := os.NewFile(3, "status")
	syscall.CloseOnExec(fdLife)
	// What loses its parent in there is this process's child then.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return 127
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{status}
	if err := cmd.Start(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return 127
	}
	status.Close()
	alone, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		io.Copy(io.Discard, life)
		close(alone)
	}()
	go func() { ended <- cmd.Wait() }()
	code := 1
	select {
	case err := <-ended:
		code = exitCode(err)
	case <-alone:
	}
	time.AfterFunc(endTimeout, func() { os.Exit(code) })
	endBelow()
	return code
}

// exitCode is how a command ended, as a shell says it.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return 1
	}
	if st := exit.Sys().(syscall.WaitStatus); st.Signaled() {
		return 128 + int(st.Signal())
	}
	return exit.ExitCode()
}

// endTimeout is how long processes that were killed are waited for: one that
// waits for a dead file server ends when that is back.
const endTimeout = 10 * time.Second

// endBelow kills every process below this one, which is a subreaper, until
// there is none. What was made meanwhile becomes a child when its parent is gone.
func endBelow() {
	for {
		for _, pid := range below(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}

// below are the processes that a process has started, and those that they have.
func below(pid int) []int {
	children := map[int][]int{}
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p.pid)
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// Run runs cmd in a session of its own, and ends all that it has started when
// cmd has ended or ctx has: Apptainer's helpers (squashfuse, fuse-overlayfs)
// outlive a killed container. cmd has one of ExtraFiles, and is started by this
// program again, see Main. in is its standard input. given are descriptors that
// are closed here as soon as it has them. end is how cmd ended, err why it did
// not begin.
func Run(ctx context.Context, cmd *exec.Cmd, in string, out, said io.Writer, given ...io.Closer) (end, err error) {
	lifeR, lifeW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer lifeW.Close()
	given = append(given, lifeR)
	cmd.ExtraFiles = append(cmd.ExtraFiles, lifeR)
	cmd.Args = append([]string{argSession}, cmd.Args...)
	cmd.Path, cmd.Err = "/proc/self/exe", nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var copies []func()
	var readers []*os.File
	pipe := func(to io.Writer) (*os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		given, readers = append(given, w), append(readers, r)
		copies = append(copies, func() { io.Copy(to, r) })
		return w, nil
	}
	defer func() {
		for _, r := range readers {
			r.Close()
		}
	}()
	stdin, feed, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	given = append(given, stdin)
	stdout, err1 := pipe(out)
	stderr, err2 := pipe(said)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	err = cmd.Start()
	for _, c := range given {
		c.Close()
	}
	if err != nil {
		feed.Close()
		return nil, err
	}
	go func() {
		io.WriteString(feed, in) // nobody reads on: EPIPE
		feed.Close()
	}()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		for _, c := range copies {
			c()
		}
	}()
	sid := cmd.Process.Pid
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			lifeW.Close()
		case <-done:
		}
	}()
	// Not yet reaped, its number is nobody else's.
	for unix.Waitid(unix.P_PID, sid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	close(done)
	<-stopped
	endSession(sid) // it may have been killed itself
	end = cmd.Wait()
	for _, r := range readers {
		r.SetReadDeadline(time.Now().Add(pipesEnd)) // somebody may have left the session
	}
	<-copied
	return end, nil
}

// endSession kills every process of a session, until there is none.
func endSession(sid int) {
	for range 100 { // each round can only meet what was forked during the last
		some := false
		for _, p := range processes() {
			if p.session == sid {
				some = true
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
		if !some {
			return
		}
	}
}

type process struct{ pid, parent, session int }

// processes are all that this process can see: fields of /proc/PID/stat, see
// proc_pid_stat(5). What has ended and waits for its parent does not count.
func processes() (all []process) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), ") ")
		f := strings.Fields(rest)
		if len(f) <= 3 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		parent, err1 := strconv.Atoi(f[1])
		sid, err2 := strconv.Atoi(f[3])
		if err1 == nil && err2 == nil {
			all = append(all, process{pid, parent, sid})
		}
	}
	return all
}
