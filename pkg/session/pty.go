package session

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// terminals is the folder of the domain's own terminals (devpts), opened by us
// before any command of the domain has run. So a leader hands us no terminal
// that could be something else. -1: they are not to be had. The leader is the
// launch, or its child where a supervisor stays outside.
func (d *domain) terminals(leader int) int {
	if leader != d.pid && !slices.ContainsFunc(processes(), func(p process) bool { return p.pid == leader && p.parent == d.pid }) {
		return -1
	}
	// In the namespace form the domain has a /dev of its own, in the bare form ours.
	for _, root := range []string{fmt.Sprintf("/proc/%d/root", leader), ""} {
		fd, err := unix.Open(root+"/dev/pts", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) == nil && st.Type == unix.DEVPTS_SUPER_MAGIC {
			return fd
		}
		unix.Close(fd)
	}
	return -1
}

// openTerminal makes a new terminal of the domain's: the side for the client,
// and the one for the command.
func (d *domain) openTerminal(size Size) (master, slave int, failed *Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.devpts < 0 {
		return -1, -1, &Error{CodeNotRun, "the domain " + d.Name + " has no terminals of its own", "a container started with -C has; see fence run --status"}
	}
	master, err := unix.Openat(d.devpts, "ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, errorf(CodeNotRun, "opening a terminal: %v", err)
	}
	if err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err == nil {
		err = setSize(master, size)
	}
	if err == nil {
		// By its other side, not by a path.
		fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if slave = int(fd); errno != 0 {
			err = errno
		}
	}
	if err != nil {
		unix.Close(master)
		return -1, -1, errorf(CodeNotRun, "setting up a terminal: %v", err)
	}
	return master, slave, nil
}

func setSize(fd int, s Size) error {
	return os.NewSyscallError("ioctl(TIOCSWINSZ)", unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols}))
}
