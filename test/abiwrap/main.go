// Command abiwrap runs a command on a kernel that claims another Landlock ABI than it has:
//
//	abiwrap --abi N [--lie RIGHT,...] [--errata MASK] [--no-landlock enosys|eopnotsupp] [--uid N] -- COMMAND [ARG...]
//
// The command's three Landlock calls are caught with seccomp user notification and answered as a kernel with that ABI would:
// version, errata, sizes, EINVAL, E2BIG. Up to the ABI of the kernel underneath the real call then goes through, so what is
// promised is enforced. Beyond it only the number and the calls' success are pretended: rulesets and rules are made without the
// rights that this kernel does not have, and those are NOT enforced; a flag to landlock_restrict_self that it does not have
// cannot be pretended and ends the run.
//
// --lie scope.signal with --abi 6 is what RHEL 9.7 does: the number says 6, the right gives EINVAL.
//
// Limits: a process tree has one listener, so a command that wants seccomp user notification itself gets EBUSY. The caller's
// memory is read, so a command that is not dumpable, or any under Yama 2, needs abiwrap to be root, with --uid for the command.
//
// Exit status: the command's own, 128+N after signal N; 2 usage; 120 if a call could not be answered truly (the command is killed).
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	exitUsage = 2
	exitFault = 120
)

func main() {
	runtime.LockOSThread() // the filter and the parent-death signal belong to a thread
	if len(os.Args) > 3 && os.Args[1] == "stub" {
		fmt.Fprintln(os.Stderr, "abiwrap:", stub(os.Args[2], os.Args[3:]))
		os.Exit(exitFault)
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		o.kernel.real, err = realABI()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "abiwrap:", err)
		return exitUsage
	}
	code, err := wrap(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "abiwrap:", err)
		return exitFault
	}
	return code
}

type options struct {
	kernel  kernel
	uid     int
	command []string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("abiwrap", flag.ContinueOnError)
	abi := f.Int("abi", -1, "the Landlock ABI to claim, 0 to 11")
	lie := f.String("lie", "", "rights of that ABI to refuse all the same, such as scope.signal")
	errata := f.String("errata", "real", "the mask to answer with, `real` for this kernel's, none for a kernel without the query")
	none := f.String("no-landlock", "enosys", "with --abi 0: `enosys` (not built) or eopnotsupp (not enabled at boot)")
	f.IntVar(&o.uid, "uid", -1, "run the command as this user and group")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.command = f.Args()
	if *abi < 0 || *abi > newestABI {
		return o, fmt.Errorf("--abi is 0 to %d", newestABI)
	}
	if len(o.command) == 0 {
		return o, errors.New("no command")
	}
	o.kernel.abi = *abi
	var err error
	if o.kernel.lies, err = parseLies(*lie); err != nil {
		return o, err
	}
	switch *errata {
	case "real":
		o.kernel.errata = realErrata
	case "none":
		o.kernel.errata = noErrata
	default:
		mask, err := strconv.ParseUint(*errata, 0, 31)
		if err != nil {
			return o, fmt.Errorf("--errata: %w", err)
		}
		o.kernel.errata = int(mask)
	}
	switch strings.ToLower(*none) {
	case "enosys":
		o.kernel.none = unix.ENOSYS
	case "eopnotsupp":
		o.kernel.none = unix.EOPNOTSUPP
	default:
		return o, fmt.Errorf("--no-landlock is enosys or eopnotsupp, not %q", *none)
	}
	return o, nil
}

func realABI() (int, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, createVersion)
	if errno == unix.ENOSYS || errno == unix.EOPNOTSUPP {
		return 0, nil
	}
	if errno != 0 {
		return 0, fmt.Errorf("asking this kernel's Landlock ABI: %w", errno)
	}
	return int(abi), nil
}

// wrap starts the command through the stub, gets the listener from it and answers until the command ends.
func wrap(o options) (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(pair[0])
	// A high number, inherited by not being close-on-exec: the command's own descriptors from 3 on stay what they were.
	theirs, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD, 200)
	if err != nil {
		return 0, err
	}
	unix.Close(pair[1])

	cmd := exec.Command("/proc/self/exe", append([]string{"stub", strconv.Itoa(theirs)}, o.command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if o.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.uid)}
	}
	err = cmd.Start()
	unix.Close(theirs)
	if err != nil {
		return 0, err
	}
	listener, err := receive(pair[0])
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the stub has said why
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	fault := make(chan error, 1)
	s := &supervisor{kernel: o.kernel, listener: listener}
	go func() {
		caller, err := s.serve()
		fault <- err // before the kills: the command's end is what the other side waits for
		if err == nil {
			return
		}
		if caller > 0 { // closing the listener would give it ENOSYS, one more answer that is not true
			_ = unix.Kill(caller, unix.SIGKILL)
		}
		_ = cmd.Process.Kill()
	}()
	err = cmd.Wait()
	select {
	case f := <-fault:
		if f != nil {
			return 0, f
		}
	default: // something that the command left behind still has the filter
	}
	if cmd.ProcessState == nil {
		return 0, err
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

func receive(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, errors.New("the command was not started")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.New("the command was not started")
	}
	return fds[0], nil
}

// stub runs in the child: it takes the filter on, hands over the listener and becomes the command.
func stub(socket string, command []string) error {
	fd, err := strconv.Atoi(socket)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	unix.CloseOnExec(fd)
	listener, err := installFilter()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(fd, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("handing over the listener: %w", err)
	}
	unix.CloseOnExec(listener) // it is already; the command must not have it
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, command, os.Environ()))
}
