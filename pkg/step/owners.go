package step

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
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
	root     int // the root folder, as a descriptor
	user     tree.Owner
	groups   []uint32                // of the user, sorted
	below    map[string]tree.Special // by path, of the layers below
	mu       sync.Mutex
	specials map[string]tree.Special // by path
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
	fd, err := n.open(q, dir, name, flags, false)
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
	if n.user.UID != 0 {
		// Own files, to own groups (chown(2)); whose an unnoted file is, is not known.
		o := ownerOf(fmt.Sprintf("/proc/self/fd/%d", fd))
		own := o == (tree.Owner{}) || o.UID == n.user.UID
		if u, g := int32(uid), int32(gid); !own || u != -1 && int(u) != n.user.UID || g != -1 && !slices.Contains(n.groups, uint32(g)) {
			return unix.EPERM
		}
		if o == (tree.Owner{}) && uid == gid && int32(uid) == -1 {
			return nil
		}
		if int32(uid) == -1 {
			uid = uint64(n.user.UID)
		}
		if int32(gid) == -1 {
			gid = uint64(n.user.GID)
		}
	}
	set := func(o tree.Owner) tree.Owner {
		if int32(uid) != -1 {
			o.UID = int(uint32(uid))
		}
		if int32(gid) != -1 {
			o.GID = int(uint32(gid))
		}
		return o
	}
	proc := fmt.Sprintf("/proc/self/fd/%d", fd)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR:
		old := ownerOf(proc)
		if now := set(old); now != old {
			if err := setOwner(proc, now); err != nil {
				return unix.EPERM
			}
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 && st.Mode&0o6000 != 0 {
			return unix.Chmod(proc, st.Mode&0o1777|sgidOfLock(st.Mode))
		}
		return nil
	}
	where, err := os.Readlink(proc)
	if err != nil {
		return unix.EPERM
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := strings.TrimPrefix(where, "/")
	s := n.specials[p]
	s.Path, s.Owner = p, set(s.Owner)
	n.specials[p] = s
	return nil
}

// sgidOfLock keeps setgid where it does not mean a group to run as (mandatory locking).
func sgidOfLock(mode uint32) uint32 {
	if mode&0o2010 == 0o2000 {
		return 0o2000
	}
	return 0
}

// mknod notes a device, which this user cannot make.
func (n *notary) mknod(q *request, dir int32, at uint64, mode uint32, dev uint64) error {
	name, err := n.text(q, at)
	if err != nil {
		return err
	}
	// Not cleaned: a link before ".." counts.
	folder, base := name[:strings.LastIndex(name, "/")+1], name[strings.LastIndex(name, "/")+1:]
	if folder == "" {
		folder = "."
	}
	if base == "" || base == "." || base == ".." {
		return unix.EEXIST
	}
	fd, err := n.open(q, dir, folder, 0, false)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if folder, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		return unix.EPERM
	}
	// An empty file stands for it, whose mode and owner can be changed.
	file, err := unix.Openat(fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode&0o7777&^n.umask(q))
	if err != nil {
		return err
	}
	unix.Close(file)
	s := tree.Special{Path: strings.TrimPrefix(path.Join(folder, base), "/"), Device: "c", Major: unix.Major(dev), Minor: unix.Minor(dev)}
	if mode&unix.S_IFMT == unix.S_IFBLK {
		s.Device = "b"
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.specials[s.Path] = s
	return nil
}

func (n *notary) umask(q *request) uint32 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", q.pid))
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			mask, _ := strconv.ParseUint(strings.TrimSpace(v), 8, 32)
			return uint32(mask)
		}
	}
	return 0o022
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

// foreign: the call was about what is not of the layers (a mount, a pipe, a
// terminal behind /dev/stdout), whose owner is nobody's business.
func foreign(err error) bool { return err == unix.EXDEV || err == unix.ELOOP }

// ownerOf and setOwner are of the file that a path leads to, links of /proc included.
func ownerOf(p string) (o tree.Owner) {
	var buf [64]byte
	if n, err := unix.Getxattr(p, tree.OwnerAttr, buf[:]); err == nil {
		o, _ = tree.ParseOwner(string(buf[:n])) // a command can write there, too
	}
	return o
}

func setOwner(p string, o tree.Owner) error {
	if o == (tree.Owner{}) {
		if err := unix.Removexattr(p, tree.OwnerAttr); err != nil && err != unix.ENODATA {
			return &os.PathError{Op: "removexattr", Path: p, Err: err}
		}
		return nil
	}
	if err := unix.Setxattr(p, tree.OwnerAttr, fmt.Appendf(nil, "%d:%d", o.UID, o.GID), 0); err != nil {
		return &os.PathError{Op: "setxattr", Path: p, Err: err}
	}
	return nil
}
