package sandbox

// #include "userns.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const arch = runtime.GOARCH

// ErrNotTried is a namespace that nobody asked for.
var ErrNotTried = errors.New("not asked for")

// Net is a network namespace that another thread makes while this one reads
// the policy: it is the dearest step (half a millisecond in the kernel).
type Net struct{ made chan netResult }

type netResult struct {
	fd  int
	err error
}

// PrepareNet begins to make a network namespace, if userns.c made the user
// namespace that it needs.
func PrepareNet() *Net {
	n := &Net{make(chan netResult, 1)}
	if u := C.fence_userns; u.entered == 0 || u.map_err != 0 {
		n.made <- netResult{-1, ErrNotTried}
		return n
	}
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with us
		r := netResult{-1, unix.Unshare(unix.CLONE_NEWNET)}
		if r.err == nil {
			r.fd, r.err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		n.made <- r
	}()
	return n
}

// join moves the calling thread into the namespace.
func (n *Net) join() error {
	r := <-n.made
	if r.err != nil {
		return r.err
	}
	defer unix.Close(r.fd)
	return changes("net", func() error { return unix.Setns(r.fd, unix.CLONE_NEWNET) })
}

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
// made before the Go runtime started. net is nil where the host's network is
// wanted. An error means a half-made user namespace, in which nothing may
// run; a namespace that the node refuses is in the result.
func Enter(net *Net) (Namespaces, error) {
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
	ns.User = nil
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
	if net != nil {
		ns.Net = net.join()
	}
	return ns, nil
}
