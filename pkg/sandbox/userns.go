package sandbox

// #include "userns.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const arch = runtime.GOARCH

// ErrNotTried is a namespace that nobody asked for.
var ErrNotTried = errors.New("not asked for")

// changes makes sure that the thread is in another namespace after f than it
// was before: what is only said to have worked must not be claimed.
func changes(ns string, f func() error) error {
	link := "/proc/thread-self/ns/" + ns
	before, err := os.Readlink(link)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := os.Readlink(link)
	if err == nil && after == before {
		err = errors.New("the kernel said yes and gave no " + ns + " namespace")
	}
	return err
}

// Enter locks the calling goroutine to its thread and gives the thread the
// namespaces that the node allows, inside the user namespace that userns.c
// made before the Go runtime started; ownNet is false where the host's network
// is wanted. An error means a half-made user namespace, in which nothing may
// run; a namespace that the node refuses is in the result.
func Enter(ownNet bool) (Namespaces, error) {
	runtime.LockOSThread()
	u := C.fence_userns
	ns := Namespaces{User: ErrNotTried, Mount: ErrNotTried, IPC: ErrNotTried, Net: ErrNotTried}
	if u.tried == 0 {
		return ns, nil
	}
	if u.err != 0 {
		ns.User = syscall.Errno(u.err)
		return ns, nil
	}
	if u.map_err != 0 {
		return ns, fmt.Errorf("mapping this user into a user namespace: %w", syscall.Errno(u.map_err))
	}
	if u.pid_err != 0 {
		return ns, fmt.Errorf("making a PID namespace: %w", syscall.Errno(u.pid_err))
	}
	ns.User, ns.OwnPID = nil, u.own_pid != 0
	// The mount namespace first: without it there is nothing to do here.
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		ns.Mount = err
		return ns, nil
	}
	// Changes must not travel back. This is also the first mount call, which
	// an LSM may refuse where it allowed the namespace (AppArmor on Ubuntu).
	if ns.Mount = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); ns.Mount != nil {
		return ns, nil
	}
	ns.IPC = changes("ipc", func() error { return unix.Unshare(unix.CLONE_NEWIPC) })
	ns.PrivateIPC = ns.IPC == nil
	if ownNet {
		ns.Net = changes("net", joinNet)
	}
	return ns, nil
}

// caller is the user who started fence, whoever the command is.
func caller() int {
	if C.fence_userns.tried == 0 {
		return os.Geteuid()
	}
	return int(C.fence_userns.uid)
}

// giveSignalsBack has this thread, and what it execs, ignore and block what the
// caller did.
func giveSignalsBack() error {
	for i := range 31 {
		if C.fence_userns.ignored>>i&1 != 0 {
			signal.Ignore(syscall.Signal(i + 1))
		}
	}
	return os.NewSyscallError("sigprocmask", unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{Val: [16]uint64{uint64(C.fence_userns.blocked)}}, nil))
}

// OwnNet says why this process cannot have a network namespace of its own, nil
// if it can. It is asked before Enter, and moves nothing. inUserNS says that it
// is in a user namespace of its own.
func OwnNet() (inUserNS bool, err error) {
	u := &C.fence_userns
	switch {
	case u.tried == 0:
		return false, ErrNotTried
	case u.err != 0:
		return false, syscall.Errno(u.err)
	case u.map_err != 0:
		return false, nil // Enter has the error
	}
	C.fence_net()
	if u.net_err != 0 {
		return true, syscall.Errno(u.net_err)
	}
	return true, nil
}

// joinNet moves the calling thread into the network namespace that userns.c
// makes.
func joinNet() error {
	C.fence_net()
	if errno := C.fence_userns.net_err; errno != 0 {
		return syscall.Errno(errno)
	}
	fd := int(C.fence_userns.net_fd)
	if fd < 0 {
		return errors.New("BUG: no network namespace and no reason")
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}
