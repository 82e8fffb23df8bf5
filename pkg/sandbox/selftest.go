package sandbox

import (
	"errors"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/seccomp"
)

// selfTest tries, on the thread that will become the command, what must not
// work any more. A protection that a kernel (or somebody between it and us)
// only claimed to apply is found here.
func selfTest(rs Ruleset, keep uint64) error {
	fail := func(format string, a ...any) error {
		return fmt.Errorf("self-test: "+format+"; the command was not started", a...)
	}

	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || on != 1 {
		return fail("no_new_privs is not set (%d, %v)", on, err)
	}
	if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil || mode != 2 {
		return fail("no system call filter is in force (mode %d, %v)", mode, err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fail("reading capabilities: %v", err)
	}
	for i, c := range caps {
		if want := uint32(keep >> (32 * i)); c.Effective != want || c.Permitted != want || c.Inheritable != want {
			return fail("capabilities are %#x/%#x/%#x, asked for %#x", c.Effective, c.Permitted, c.Inheritable, want)
		}
	}

	// The filter: a socket of a family that no policy opens, and Internet
	// ones where there is no network.
	families := []int{unix.AF_PACKET, unix.AF_ALG, unix.AF_VSOCK}
	if rs.Filter.Net == seccomp.NetNone {
		families = append(families, unix.AF_INET, unix.AF_INET6)
	}
	for _, family := range families {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		if err != unix.EAFNOSUPPORT {
			return fail("socket(family %d) gave %v, not EAFNOSUPPORT", family, err)
		}
	}

	// Landlock is asked before the permission to make a device: EACCES with
	// it, EPERM without.
	if rs.Handled.FS&ll.AccessFSMakeChar != 0 {
		for _, dir := range []string{"/dev/shm", "/tmp", "/var/tmp", rs.Workdir} {
			err := unix.Mknod(fmt.Sprintf("%s/.fence-self-test-%d", dir, os.Getpid()), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
			if err == unix.EROFS || err == unix.ENOENT {
				continue // says nothing either way
			}
			if err != unix.EACCES {
				return fail("making a device node in %s gave %v, not EACCES: Landlock is not in force", dir, err)
			}
			break
		}
	}
	for _, h := range rs.Hidden {
		if err := unreachable(h); err != nil {
			return fail("%s is hidden by the policy, and %v", h.Path, err)
		}
	}
	for _, op := range rs.Mounts {
		if op.Kind != MountPin && op.Kind != MountReadOnly {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(op.Path, &st); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			return fail("%s: %v", op.Path, err)
		} else if err == nil && op.Kind == MountReadOnly && st.Flags&unix.ST_RDONLY == 0 {
			return fail("%s is not read-only", op.Path)
		}
	}
	return nil
}

// unreachable says how a hidden path can still be reached, nil if it cannot.
func unreachable(h Hidden) error {
	fd, err := unix.Open(h.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		// Refused, gone, or a socket, which cannot be opened.
		if err == unix.EACCES || err == unix.ENOENT || err == unix.ENXIO {
			return nil
		}
		return fmt.Errorf("opening it gave %v", err)
	}
	defer unix.Close(fd)
	if h.How == "landlock" {
		return errors.New("it can be opened")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if h.Dir && (fs.Type != unix.TMPFS_MAGIC || fs.Flags&unix.ST_RDONLY == 0) {
		return errors.New("no mask lies over it")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !h.Dir && (st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3)) {
		return errors.New("no mask lies over it")
	}
	return nil
}
