package step

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// stat shows a program the owner that was noted. It reports whether it
// answered: what has no note the kernel answers itself.
func (n *notary) stat(q *request) (answered bool, err error) {
	c := statCalls[uint32(q.nr)]
	arg := q.args
	dir, flags := int32(unix.AT_FDCWD), c.flags
	if c.dir >= 0 {
		dir = int32(arg[c.dir])
	}
	if c.flag >= 0 {
		flags |= int(int32(arg[c.flag]))
	}
	name := ""
	if c.path >= 0 {
		if name, err = n.text(q, arg[c.path]); err != nil {
			return false, nil // the kernel says what is wrong
		}
	}
	if name == "" && flags&unix.AT_EMPTY_PATH == 0 {
		return false, nil
	}
	// One look-up through /proc is all that a file without a note costs. In a
	// root folder of a process's own, links that are absolute lead elsewhere.
	where := ""
	switch {
	case strings.HasPrefix(name, "/"):
		where = fmt.Sprintf("/proc/%d/root%s", q.pid, name)
	case dir == unix.AT_FDCWD:
		where = fmt.Sprintf("/proc/%d/cwd/%s", q.pid, name)
	case name == "":
		where = fmt.Sprintf("/proc/%d/fd/%d", q.pid, dir)
	default:
		where = fmt.Sprintf("/proc/%d/fd/%d/%s", q.pid, dir, name)
	}
	follow := flags&unix.AT_SYMLINK_NOFOLLOW == 0 || name == ""
	owner, noted := n.noted(where, follow)
	if !noted {
		return false, nil
	}
	at := 0
	if !follow {
		at = unix.AT_SYMLINK_NOFOLLOW
	}
	var out []byte
	if c.mask < 0 {
		var st unix.Stat_t
		if unix.Fstatat(unix.AT_FDCWD, where, &st, at) != nil {
			return false, nil
		}
		st.Uid, st.Gid = uint32(owner.UID), uint32(owner.GID)
		out = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	} else {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, where, at|flags&(unix.AT_STATX_FORCE_SYNC|unix.AT_STATX_DONT_SYNC), int(uint32(arg[c.mask])), &st) != nil {
			return false, nil
		}
		st.Uid, st.Gid = uint32(owner.UID), uint32(owner.GID)
		out = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	}
	if !n.valid(q) {
		return true, unix.EINTR
	}
	return true, n.write(q, arg[c.buf], out)
}

// noted is what is noted about the file that a path leads to.
func (n *notary) noted(where string, follow bool) (o tree.Owner, ok bool) {
	var buf [64]byte
	get := unix.Lgetxattr
	if follow {
		get = unix.Getxattr
	}
	k, err := get(where, tree.OwnerAttr, buf[:])
	if err == nil {
		_, err = fmt.Sscanf(string(buf[:k]), "%d:%d", &o.UID, &o.GID)
		return o, err == nil
	}
	if err == unix.ENODATA && follow || n.few() {
		return o, false
	}
	// It may be one that can carry no note.
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(where, flags, 0)
	if err != nil {
		return o, false
	}
	defer unix.Close(fd)
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return o, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.specials[strings.TrimPrefix(real, "/")]
	if !ok {
		s, ok = n.below[strings.TrimPrefix(real, "/")]
	}
	return s.Owner, ok && s.Device == "" && s.Owner != (tree.Owner{})
}

// few: there is no list to look into.
func (n *notary) few() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.specials) == 0 && len(n.below) == 0
}

// statCall says where the arguments of a call of stat's kind are; -1 for none.
type statCall struct {
	dir, path, buf, flag, mask int
	flags                      int // that the call implies
}

// write puts bytes into the caller's memory.
func (n *notary) write(q *request, at uint64, data []byte) error {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	k, err := unix.ProcessVMWritev(int(q.pid), local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(data)}}, 0)
	if err != nil || k != len(data) {
		return unix.EFAULT
	}
	return nil
}
