package step

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// request and reply are struct seccomp_notif and seccomp_notif_resp.
type request struct {
	id     uint64
	pid, _ uint32
	nr     int32
	_      uint32
	_      uint64
	args   [6]uint64
}

type reply struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// notary answers the calls that notedFilter leaves to it. It runs in the first
// process of the step's own PID namespace, with the step's root folder.
type notary struct {
	listener int
	root     int      // the root folder, as a descriptor
	dev      uint64   // st_dev of what is of the layers
	upper    int      // the folder for what changes, as a descriptor
	lower    []string // layers, highest first
	user     tree.Owner
	groups   []uint32        // of the user, sorted
	mounted  map[uint64]bool // st_dev of what the Dockerfile mounts; it is read-only, and root's where there is no note
	since    int64           // the second before the step began

	mu      sync.Mutex
	below   map[string]tree.Special // what the layers below note, by path
	devices map[string]tree.Special // of those, what has a file to stand for it
	old     map[inode]tree.Owner    // of those that are no devices, and of what is mounted
	notes   map[identity]tree.Owner // of links, FIFOs and sockets that were given away
	holes   []string                // what is to be said of files that are little else
}

func (n *notary) serve() {
	// The caller waits for us and we then for it: one processor will do. Linux 6.6.
	unix.Syscall(unix.SYS_IOCTL, uintptr(n.listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	for range min(4, runtime.NumCPU()) {
		go n.work()
	}
}

func (n *notary) work() {
	for {
		var q request
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(n.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&q))); errno == unix.EINTR || errno == unix.ENOENT {
			continue // ENOENT: killed before it could be read
		} else if errno != 0 {
			return
		}
		a := reply{id: q.id}
		var err error
		answered := true
		if _, ok := statCalls[uint32(q.nr)]; ok {
			answered, err = n.stat(&q)
		} else if q.nr == unix.SYS_GETGROUPS {
			a.val, err = n.getgroups(&q)
		} else if i := slices.IndexFunc(chmodCalls, func(c modeCall) bool { return c.nr == uint32(q.nr) }); i >= 0 {
			n.chmod(&q, chmodCalls[i])
			answered = false
		} else {
			err = n.answer(&q)
		}
		switch errno, ok := err.(unix.Errno); {
		case ok:
			a.errno = -int32(errno)
		case err != nil:
			a.errno = -int32(unix.EPERM)
		case !answered:
			a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		unix.Syscall(unix.SYS_IOCTL, uintptr(n.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

// answer does what the call would. Its error is the call's.
func (n *notary) answer(q *request) error {
	const cwd = unix.AT_FDCWD
	arg := q.args
	nr := uint32(q.nr)
	for _, c := range mknodCalls {
		if c.nr == nr {
			dir, at := int32(cwd), arg[0]
			if c.mode == 2 {
				dir, at = int32(arg[0]), arg[1]
			}
			return n.mknod(q, dir, at, uint32(arg[c.mode]), arg[c.mode+1])
		}
	}
	switch {
	case nr == unix.SYS_FCHOWN:
		return n.chown(q, int32(arg[0]), 0, unix.AT_EMPTY_PATH, arg[1], arg[2])
	case nr == unix.SYS_FCHOWNAT:
		return n.chown(q, int32(arg[0]), arg[1], int(int32(arg[4])), arg[2], arg[3])
	case len(oldChowns) > 1 && nr == oldChowns[0]:
		return n.chown(q, cwd, arg[0], 0, arg[1], arg[2])
	}
	return n.chown(q, cwd, arg[0], unix.AT_SYMLINK_NOFOLLOW, arg[1], arg[2])
}

// chown notes an owner. As the kernel does, it takes setuid and setgid from a
// program whose owner changes (chown(2)).
func (n *notary) chown(q *request, dir int32, at uint64, flags int, uid, gid uint64) error {
	name := ""
	if at != 0 {
		var err error
		if name, err = n.text(q, at); err != nil {
			return err
		}
	}
	fd, err := n.open(q, dir, name, flags, true)
	if foreign(err) || err == unix.ENOENT && name == "" {
		return nil // the latter has no name any more
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !n.valid(q) {
		return unix.EINTR
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	readOnly, mounted := n.mounted[st.Dev]
	if readOnly {
		return unix.EROFS
	}
	if st.Dev != n.dev && (!mounted || !carries(st.Mode)) {
		return nil
	}
	old, _ := n.owner(fd, &st)
	if u, g := int32(uid), int32(gid); n.user.UID != 0 && (old.UID != n.user.UID || u != -1 && int(u) != n.user.UID || g != -1 && int(g) != old.GID && !slices.Contains(n.groups, uint32(g))) {
		return unix.EPERM // own files, to own groups
	}
	now := old
	if int32(uid) != -1 {
		now.UID = int(uint32(uid))
	}
	if int32(gid) != -1 {
		now.GID = int(uint32(gid))
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR:
		return n.give(fd, &st, old, now)
	}
	return n.remember(fd, now)
}

// sgidOfLock keeps setgid where it does not mean a group to run as (mandatory locking).
func sgidOfLock(mode uint32) uint32 {
	if mode&0o2010 == 0o2000 {
		return 0o2000
	}
	return 0
}

// getgroups is getgroups(2).
func (n *notary) getgroups(q *request) (int64, error) {
	size, at := int32(q.args[0]), q.args[1]
	switch {
	case size == 0:
		return int64(len(n.groups)), nil
	case size < 0 || int(size) < len(n.groups):
		return 0, unix.EINVAL
	}
	var data []byte
	for _, g := range n.groups {
		data = binary.NativeEndian.AppendUint32(data, g)
	}
	if !n.valid(q) {
		return 0, unix.EINTR
	}
	return int64(len(n.groups)), n.write(q, at, data)
}

// valid: the caller still waits, so that its number is still its own.
func (n *notary) valid(q *request) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(n.listener), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&q.id)))
	return errno == 0
}

// text is the path at an address of the caller's.
func (n *notary) text(q *request, at uint64) (string, error) {
	var buf [unix.PathMax]byte
	out := buf[:0]
	for len(out) < unix.PathMax {
		// To the end of a page at most: the next may not be there.
		from := at + uint64(len(out))
		chunk := buf[len(out):min(unix.PathMax, len(out)+int(4096-from%4096))]
		local := []unix.Iovec{{Base: &chunk[0]}}
		local[0].SetLen(len(chunk))
		k, err := unix.ProcessVMReadv(int(q.pid), local, []unix.RemoteIovec{{Base: uintptr(from), Len: len(chunk)}}, 0)
		if err != nil || k <= 0 {
			return "", unix.EFAULT
		}
		if end := bytes.IndexByte(chunk[:k], 0); end >= 0 {
			return string(buf[:len(out)+end]), nil
		}
		out = buf[:len(out)+k]
	}
	return "", unix.ENAMETOOLONG
}

// place is where a path of the caller's lies, from the root folder. The caller
// cannot have another root folder: fence refuses chroot(2).
func (n *notary) place(q *request, dir int32, name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return name, nil
	}
	link := fmt.Sprintf("/proc/%d/cwd", q.pid)
	if dir != unix.AT_FDCWD {
		link = fmt.Sprintf("/proc/%d/fd/%d", q.pid, dir)
	}
	base, err := os.Readlink(link)
	if err != nil {
		return "", unix.EBADF
	}
	if !strings.HasPrefix(base, "/") {
		return "", unix.EXDEV // a pipe, a socket
	}
	if name == "" {
		return base, nil
	}
	return base + "/" + name, nil
}

// open gives the file that the caller means, as an O_PATH descriptor. What it
// is asked for comes from a stranger, and this process has rights that the
// stranger has not: nothing outside the root folder is looked at, whatever links
// there are, and nothing of /proc is followed. xdev is whether what is mounted
// in the root folder counts.
func (n *notary) open(q *request, dir int32, name string, flags int, xdev bool) (int, error) {
	if name == "" && flags&unix.AT_EMPTY_PATH == 0 {
		return -1, unix.ENOENT
	}
	p, err := n.place(q, dir, name)
	if err != nil {
		return -1, err
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if !xdev {
		how.Resolve |= unix.RESOLVE_NO_XDEV
	}
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		how.Flags |= unix.O_NOFOLLOW
	}
	return unix.Openat2(n.root, "./"+p, &how)
}

// foreign: the call was about what has no place here (a pipe, a
// terminal behind /dev/stdout), whose owner is nobody's business.
func foreign(err error) bool { return err == unix.EXDEV || err == unix.ELOOP }
