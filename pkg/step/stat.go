package step

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// stat shows a program whose a file is, and a device where a file stands for
// one. It reports whether it answered: where the kernel says the same, it may.
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
	fd, err := n.open(q, dir, name, flags, true)
	if err != nil {
		return false, nil // the kernel says what is wrong, or it is not of the layers
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false, nil
	}
	owner, same := n.owner(fd, &st)
	device, isDevice := n.device(fd, &st)
	if same && !isDevice {
		return false, nil
	}
	var out []byte
	if c.mask < 0 {
		st.Uid, st.Gid = uint32(owner.UID), uint32(owner.GID)
		if isDevice {
			st.Mode, st.Rdev = st.Mode&^unix.S_IFMT|device.format(), unix.Mkdev(device.Major, device.Minor)
		}
		out = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	} else {
		var st unix.Statx_t
		const sync = unix.AT_STATX_FORCE_SYNC | unix.AT_STATX_DONT_SYNC
		if unix.Statx(fd, "", unix.AT_EMPTY_PATH|flags&sync, int(uint32(arg[c.mask])), &st) != nil {
			return false, nil
		}
		st.Uid, st.Gid = uint32(owner.UID), uint32(owner.GID)
		if isDevice {
			st.Mode, st.Rdev_major, st.Rdev_minor = st.Mode&^unix.S_IFMT|uint16(device.format()), device.Major, device.Minor
		}
		out = unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st))
	}
	if !n.valid(q) {
		return true, unix.EINTR
	}
	return true, n.write(q, arg[c.buf], out)
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
