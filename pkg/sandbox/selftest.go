package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/seccomp"
)

// settled is the part of the self-test that reads /proc, before Landlock: the
// policy may not open it for the command. What it looks at cannot change any
// more. cut says that the bounding set was cut.
func settled(rs Ruleset, keep uint64, cut bool) error {
	err := bounded(keep, cut)
	if err == nil && rs.Form == Namespace && !cut {
		err = errors.New("a user namespace without CAP_SETPCAP")
	}
	if err == nil {
		err = inherited(rs)
	}
	switch {
	case err != nil || rs.Form != Namespace:
	case rs.joined != nil:
		err = rs.joined.entered() // its maker has looked at the mounts
	default:
		err = mounted(rs.Mounts)
	}
	if err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	return nil
}

// selfTest tries, on the thread that will become the command, what must not
// work any more. A protection that a kernel (or somebody between it and us)
// only claimed to apply is found here.
func selfTest(rs Ruleset, keep uint64, session Session) error {
	fail := func(format string, a ...any) error {
		return fmt.Errorf("self-test: "+format, a...)
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
	if rs.Filter.DenyUnix {
		families = append(families, unix.AF_UNIX)
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

	if rs.ownLoopback() {
		if err := loopbackOnly(); err != nil {
			return fail("the network namespace is not as it should be: %v", err)
		}
	}

	if rs.Supervised() {
		if err := supervised(session); err != nil {
			return fail("the supervisor of connections is not as it should be: %v", err)
		}
	}

	// Landlock is asked before the permission to make a device: EACCES with
	// it, EPERM without. access(2) does not ask it: only a folder that the
	// permissions let us change tells the two apart.
	proved := false
	for _, dir := range []string{"/dev/shm", "/tmp", "/var/tmp", rs.Workdir} {
		if unix.Access(dir, unix.W_OK) != nil {
			continue
		}
		// A name that nobody can have made before.
		err := unix.Mknod(fmt.Sprintf("%s/.fence-self-test-%d", dir, time.Now().UnixNano()), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		if err != unix.EACCES {
			return fail("making a device node in %s gave %v, not EACCES: Landlock is not in force", dir, err)
		}
		proved = true
		break
	}
	if !proved && !deniesDeviceCalls() {
		return fail("no folder can be written, so that nothing shows that Landlock is in force (/dev/shm or /tmp would do)")
	}
	for _, h := range rs.Hidden {
		if err := unreachable(h); err != nil {
			return fail("%s is hidden by the policy, and %v", h.Path, err)
		}
	}
	return nil
}

// bounded checks what exec could draw capabilities from.
func bounded(keep uint64, cut bool) error {
	data, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return err
	}
	sets := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":\t"); ok && strings.HasPrefix(key, "Cap") {
			if sets[key], err = strconv.ParseUint(value, 16, 64); err != nil {
				return err
			}
		}
	}
	bounding, ok := sets["CapBnd"]
	if !ok || sets["CapAmb"] != keep || cut && bounding&^keep != 0 {
		return fmt.Errorf("the ambient and bounding capabilities are %#x and %#x, asked for %#x", sets["CapAmb"], bounding, keep)
	}
	if !cut {
		return nil
	}
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return os.NewSyscallError("prctl(PR_GET_SECUREBITS)", err)
	}
	if bits != secureBits {
		return fmt.Errorf("the secure bits are %#x, not %#x", bits, secureBits)
	}
	return nil
}

// inherited checks what exec passes on: descriptors, the folder.
func inherited(rs Ruleset) error {
	fds, err := readDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, name := range fds {
		fd, err := strconv.Atoi(name)
		if err != nil {
			return err
		}
		if fd <= 2 || slices.ContainsFunc(rs.Node.Stdio, func(d Descriptor) bool { return d.FD == fd }) {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == unix.EBADF {
			continue // the listing's own
		}
		if err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
		if flags&unix.FD_CLOEXEC == 0 {
			return fmt.Errorf("descriptor %d would stay open", fd)
		}
	}
	var here, want unix.Stat_t
	if err := errors.Join(unix.Stat(".", &here), unix.Stat(rs.Workdir, &want)); err != nil {
		return fmt.Errorf("the working folder: %w", err)
	}
	if here.Dev != want.Dev || here.Ino != want.Ino {
		return fmt.Errorf("the working folder is not %s", rs.Workdir)
	}
	return nil
}

// deniesDeviceCalls tells by the right to ioctls of devices, which comes
// before ENOTTY, that Landlock is in force.
func deniesDeviceCalls() bool {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == unix.EACCES
}

// mounted holds the steps against the mount table, each found by the number
// of the mount that its path leads to.
func mounted(ops []MountOp) error {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	list, err := host.ParseMounts(bytes.NewReader(data))
	if err != nil {
		return err
	}
	byID := map[int]host.Mount{}
	for _, m := range list {
		byID[m.ID] = m
	}
	for line := range bytes.Lines(data) {
		tags, _, _ := bytes.Cut(line, []byte(" - "))
		if bytes.Contains(tags, []byte(" shared:")) || bytes.Contains(tags, []byte(" master:")) {
			return fmt.Errorf("mounts are shared with the node: %s", tags)
		}
	}
	for _, op := range ops {
		flags := unix.AT_STATX_DONT_SYNC
		if op.Kind == MountPin || op.Kind == MountHold {
			flags |= unix.AT_SYMLINK_NOFOLLOW
		}
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, op.Path, flags, unix.STATX_MNT_ID, &st)
		if op.Kind == MountPin && op.Absent && err == unix.ENOENT {
			continue // absent, and the command cannot make it either
		}
		if err != nil {
			return &os.PathError{Op: "looking at the mount", Path: op.Path, Err: err}
		}
		m, ok := byID[int(st.Mnt_id)]
		ok = ok && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
		switch op.Kind {
		case MountDev:
			ok = ok && m.Source == "fence-dev"
			for _, name := range devNodes { // not the file that the node was to be mounted on
				var st unix.Stat_t
				if err := unix.Stat("/dev/"+name, &st); err != nil && err != unix.ENOENT {
					return &os.PathError{Op: "stat", Path: "/dev/" + name, Err: err}
				} else if err == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR {
					return fmt.Errorf("/dev/%s is not the device", name)
				}
			}
		case MountTmp:
			ok = ok && m.Source == "fence-tmp"
		case MountMaskDir:
			ok = ok && m.Source == maskName && m.ReadOnly
		case MountProc:
			own, err := os.Readlink(op.Path + "/self")
			ok = ok && m.FSType == "proc" && err == nil && own == strconv.Itoa(os.Getpid())
		case MountShow:
			ok = ok && (m.ReadOnly || !op.ReadOnly)
		case MountReadOnly:
			// What lies on it counts; what it covers cannot be reached.
			ok = m.ReadOnly && !slices.ContainsFunc(list, func(on host.Mount) bool { return !on.ReadOnly && above(byID, on, m.ID) })
		case MountPin:
			ok = ok && m.ReadOnly
		}
		if !ok {
			return fmt.Errorf("%s is not %s", op.Path, op.Kind)
		}
	}
	return nil
}

// above reports whether m lies on the mount base, or on one that does.
func above(byID map[int]host.Mount, m host.Mount, base int) bool {
	for range len(byID) { // a table that changed while it was read may have a loop
		if m.Parent == base {
			return true
		}
		next, ok := byID[m.Parent]
		if !ok {
			return false
		}
		m = next
	}
	return false
}

// unreachable says how a hidden path can still be reached, nil if it cannot.
func unreachable(h Hidden) error {
	fd, err := unix.Open(h.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		// Refused, gone, a socket, which cannot be opened, or a FUSE filesystem
		// whose server has died, which none can bring back.
		if err == unix.EACCES || err == unix.ENOENT || err == unix.ENXIO || err == unix.ENOTCONN {
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
