package sandbox

// #include "userns.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const arch = runtime.GOARCH

// ErrNotTried is a namespace that nobody asked for.
var ErrNotTried = errors.New("not asked for")

// Enter locks the calling goroutine to its thread and gives the thread the
// namespaces that the node allows, inside the user namespace that userns.c
// made before the Go runtime started. wantNet says whether a network
// namespace is wanted. An error means a half-made user namespace, in which
// nothing may run; a namespace that the node refuses is in the result.
func Enter(wantNet bool) (Namespaces, error) {
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
	ns.IPC = unix.Unshare(unix.CLONE_NEWIPC)
	ns.PrivateIPC = ns.IPC == nil
	if wantNet {
		ns.Net = unix.Unshare(unix.CLONE_NEWNET)
	}
	return ns, nil
}
