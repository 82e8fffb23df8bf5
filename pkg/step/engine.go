package step

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Engine is where the first process of a step begins: as root of a user
// namespace, in a mount, PID, IPC and UTS namespace of its own that show the
// node's files. Engines differ in nothing else.
type Engine interface {
	start(first) (running, error)
}

// first is how the first process of a step begins.
type first struct {
	net   bool       // a network of its own, too
	out   *os.File   // what it says
	files []*os.File // its descriptors from 3 on
}

// running is a first process.
type running struct {
	kill func()
	wait func() error    // until it has ended
	gone <-chan struct{} // closed when the engine has ended; nil if it does not
}

// command is this binary, started as the first process of a step.
func (f first) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{argInit}, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // mksquashfs
	cmd.Stdout, cmd.Stderr = f.out, f.out
	cmd.ExtraFiles = f.files
	flags := uintptr(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS)
	if f.net {
		flags |= syscall.CLONE_NEWNET
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  flags,
		Setsid:      true, // no terminal, and signals of the caller's group are the caller's
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	return cmd
}

// Native is the engine of a node that allows user namespaces.
type Native struct{}

func (Native) start(f first) (running, error) {
	cmd := f.command()
	if err := cmd.Start(); err != nil {
		return running{}, refusedUserns("a step", err)
	}
	// The first process of a PID namespace: the rest follows.
	return running{kill: func() { cmd.Process.Kill() }, wait: cmd.Wait}, nil
}

// refusedUserns is the error of a node that gives no user namespace for what is
// to be started.
func refusedUserns(what string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EUSERS): // clone(2), user_namespaces(7)
		err = errors.New("no more namespaces are allowed here (sysctl user.max_user_namespaces and the others of its kind)")
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EINVAL):
		err = fmt.Errorf("%w (user namespaces may be switched off: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)", err)
	}
	return &Failure{"setup", fmt.Sprintf("starting %s in a user namespace: %v", what, err)}
}
