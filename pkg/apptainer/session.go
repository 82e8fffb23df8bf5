package apptainer

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipesEnd is how long output is waited for when nobody of the session is left
// to write any.
const pipesEnd = 5 * time.Second

// argStart is the name under which this program is started again, to start
// Apptainer and to outlive whoever asked for that. Its arguments are how many
// descriptors the command has besides 0 to 2, its oom_score_adj, and the command.
const argStart = "apptainer: start"

// fdLife is the descriptor that argStart is given before those of the command:
// at its end nobody waits any more.
const fdLife = 3

// Main takes over where the process was started to start Apptainer, and does
// not return then. A program that calls Run calls it first. Death signals do
// not reach through Apptainer, so that a killed caller would leave a container
// running.
func Main() {
	if os.Args[0] == argStart && len(os.Args) > 3 {
		os.Exit(startMain(os.Args[1], os.Args[2], os.Args[3:]))
	}
	if len(os.Args) == 3 && os.Args[1] == argStep {
		os.Exit(stepMain(os.Args[2]))
	}
}

func startMain(files, oom string, argv []string) int {
	life := os.NewFile(fdLife, "life")
	syscall.CloseOnExec(fdLife)
	refuse := func(err error) int {
		os.Stderr.WriteString(err.Error() + "\n")
		return 127
	}
	// What loses its parent in there is this process's child then.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return refuse(os.NewSyscallError("prctl", err))
	}
	if oom != "0" { // what is started inherits it; this process is small
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oom), 0); err != nil {
			return refuse(err)
		}
	}
	n, err := strconv.Atoi(files)
	if err != nil {
		return refuse(err)
	}
	var given []*os.File
	for i := range n {
		given = append(given, os.NewFile(uintptr(fdLife+1+i), "given"))
	}
	start := func(attr *syscall.SysProcAttr) (*exec.Cmd, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, given, attr
		return cmd, cmd.Start()
	}
	cmd, err := start(userNamespace(argv))
	if err != nil { // there may be none to be had
		cmd, err = start(nil)
	}
	if err != nil {
		return refuse(err)
	}
	// Whoever has the other end is to see when the command's is gone.
	os.Stdin.Close()
	for _, f := range given {
		f.Close()
	}
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

// userNamespace is the one that Apptainer makes when it is to have one user
// (Exec). In a namespace that is made already it does without a process that makes it
// and then waits for the container, 13 MB, and its start takes less. nil: this is no
// affair of ours, or AppArmor lets Apptainer make one (by its profile) and not us.
func userNamespace(argv []string) *syscall.SysProcAttr {
	restricted, _ := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	if os.Geteuid() == 0 || !slices.Contains(argv, oneUser) || strings.TrimSpace(string(restricted)) == "1" {
		return nil
	}
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
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
		for _, pid := range Below(os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}

// Below are the processes that a process has started, and those that they have:
// of all that this one can see.
func Below(pid int) []int {
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

// Start is how a container is started, besides its command. Its zero value
// has no input, and its output goes nowhere.
type Start struct {
	Stdin     *os.File  // standard input; else it is Text
	Text      string    //
	Out, Said io.Writer // standard output and error
	// OOM is its oom_score_adj, see proc_pid_oom_score_adj(5): where a node
	// runs out of memory, 1000 is killed first. 0: the caller's.
	OOM     int
	Given   []io.Closer   // descriptors that are closed here as soon as it has them
	Started func(pid int) // told the process that all of the container is below
	Step    *Step         // where; nil: here
}

// Run runs cmd in a session of its own, and ends all that it has started when
// cmd has ended or ctx has: Apptainer's helpers (squashfuse, fuse-overlayfs)
// outlive a killed container. cmd is started by this program again, see Main.
// In a step its times are srun's: cmd.ProcessState is not set.
// end is how cmd ended, err why it did not begin.
func Run(ctx context.Context, cmd *exec.Cmd, s Start) (end, err error) {
	lifeR, lifeW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer lifeW.Close()
	given := append(s.Given, lifeR)
	cmd.Args = append([]string{argStart, strconv.Itoa(len(cmd.ExtraFiles)), strconv.Itoa(s.OOM), cmd.Path}, cmd.Args[1:]...)
	cmd.ExtraFiles = append([]*os.File{lifeR}, cmd.ExtraFiles...)
	cmd.Path, cmd.Err = "/proc/self/exe", nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var copies []func()
	var readers []*os.File
	pipe := func(to io.Writer) (*os.File, error) {
		if to == nil {
			to = io.Discard
		}
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
	var feed *os.File
	if s.Stdin == nil {
		if s.Stdin, feed, err = os.Pipe(); err != nil {
			return nil, err
		}
		given = append(given, s.Stdin)
	}
	stdout, err1 := pipe(s.Out)
	stderr, err2 := pipe(s.Said)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, stdout, stderr
	sid := 0
	if s.Step == nil {
		if err = cmd.Start(); err == nil {
			sid = cmd.Process.Pid
		}
	} else {
		cmd, sid, err = s.Step.start(ctx, cmd)
	}
	for _, c := range given {
		c.Close()
	}
	if feed != nil {
		go func() {
			io.WriteString(feed, s.Text) // nobody reads on: EPIPE
			feed.Close()
		}()
	}
	if err != nil {
		return nil, err
	}
	if s.Started != nil && sid != 0 {
		s.Started(sid)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		for _, c := range copies {
			c()
		}
	}()
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			lifeW.Close()
		case <-done:
		}
	}()
	waitExit(cmd.Process.Pid)
	close(done)
	<-stopped
	endSession(sid) // it may have been killed itself
	if s.Step != nil {
		endSession(cmd.Process.Pid)
	}
	end = cmd.Wait()
	for _, r := range readers {
		r.SetReadDeadline(time.Now().Add(pipesEnd)) // somebody may have left the session
	}
	<-copied
	return end, nil
}

// endSession kills every process of a session, until there is none. 0, which is no
// session of ours, is that of the kernel's threads, and of all that came from
// outside of this PID namespace.
func endSession(sid int) {
	if sid <= 0 {
		return
	}
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
