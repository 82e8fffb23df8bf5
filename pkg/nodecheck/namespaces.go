package nodecheck

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
)

// Tried is the outcome of one attempt.
type Tried struct {
	OK    bool   `json:"ok"`
	Errno string `json:"errno,omitempty"` // "EPERM"; "ETIMEDOUT" if there was no answer
	Why   string `json:"why,omitempty"`   // what switches it off, and whom to ask for what
}

// String is why it failed.
func (t Tried) String() string {
	return orUnknown(strings.Trim(t.Errno+", "+t.Why, ", "))
}

// namespace is one kind, the flag that makes it and the sysctl that counts it.
type namespace struct {
	name   string
	flag   uintptr
	sysctl string
}

var (
	userNS  = namespace{"user", unix.CLONE_NEWUSER, "user.max_user_namespaces"}
	mountNS = namespace{"mount", unix.CLONE_NEWNS, "user.max_mnt_namespaces"}
	netNS   = namespace{"network", unix.CLONE_NEWNET, "user.max_net_namespaces"}
	ipcNS   = namespace{"IPC", unix.CLONE_NEWIPC, "user.max_ipc_namespaces"}
	pidNS   = namespace{"PID", unix.CLONE_NEWPID, "user.max_pid_namespaces"}
)

// nothing is a program that cannot exist: a child that gets as far as to look
// for it has made its namespaces, and ends there.
const nothing = "/proc/self/fence-tries-only"

// tryTime is how long one attempt may take. A node that is slower than this
// at making a namespace has other troubles.
const tryTime = 5 * time.Second

// try makes a namespace in a child, inside a user namespace with our own uid
// mapped, as the fence would. For a mount namespace the child also changes a
// mount: Ubuntu lets anyone have a user namespace, but no rights in it.
func try(ns namespace) error {
	attr := &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	if ns != userNS {
		attr.Unshareflags = ns.flag
	}
	done := make(chan error, 1)
	go func() {
		pid, err := syscall.ForkExec(nothing, []string{nothing}, &syscall.ProcAttr{Sys: attr})
		if err == nil { // cannot be; but a child that runs must not stay
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
			err = errors.New("a program ran that does not exist")
		}
		done <- err
	}()
	select {
	case err := <-done:
		if errors.Is(err, syscall.ENOENT) {
			return nil
		}
		return err
	case <-time.After(tryTime):
		return syscall.ETIMEDOUT
	}
}

// tried is try with an explanation.
func (h *Node) tried(ns namespace) Tried {
	err := try(ns)
	return Tried{OK: err == nil, Errno: host.ErrnoName(err), Why: h.why(ns, host.ErrnoName(err))}
}

// why says what stands behind the errno of an attempt to make a namespace.
func (h *Node) why(ns namespace, errno string) string {
	const ask = "; ask the operators to allow it"
	switch {
	case errno == "":
		return ""
	case h.Sysctls[userNS.sysctl] == "0":
		return "user namespaces are switched off by " + userNS.sysctl + "=0" + ask
	case h.Sysctls[ns.sysctl] == "0":
		return ns.name + " namespaces are switched off by " + ns.sysctl + "=0" + ask
	case errno == "ENOSPC":
		return "no more " + ns.name + " namespaces for this user: " + ns.sysctl + " is " + orUnknown(h.Sysctls[ns.sysctl]) +
			", or one of the other user.max_* is used up"
	case h.Sysctls["kernel.unprivileged_userns_clone"] == "0":
		return "user namespaces are for root only: kernel.unprivileged_userns_clone=0" + ask
	case h.Sysctls["kernel.apparmor_restrict_unprivileged_userns"] == "1":
		return "AppArmor gives rights in a user namespace only to programs with a profile: " +
			"kernel.apparmor_restrict_unprivileged_userns=1; ask the operators for a profile for fence"
	case errno == "EINVAL":
		return "this kernel was built without " + ns.name + " namespaces"
	case errno == "ENOSYS":
		return "a seccomp filter around this process, or a kernel without them"
	case errno == "EUSERS":
		return "user namespaces are nested too deeply here"
	case errno == "ETIMEDOUT":
		return "no answer within " + tryTime.String()
	case errno == "EACCES":
		return "a security module (" + h.modules() + ") refuses it" + ask
	case errno == "EPERM" && h.Container != "":
		return "the container's runtime (" + h.Container + ") forbids it, by a seccomp filter or by its root folder being a chroot"
	case errno == "EPERM":
		return "a seccomp filter around this process, a security module (" + h.modules() + "), or a chroot"
	}
	return ""
}

func orUnknown(s string) string {
	if s == "" {
		return "not known"
	}
	return s
}
