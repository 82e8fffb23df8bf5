package step

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// deviceAttr marks the empty file that stands for a device while a step runs,
// for this user can make none: "c MAJOR MINOR" or "b MAJOR MINOR". So it can be
// renamed, linked, removed, changed and looked at as a device can.
const deviceAttr = "user.sifbuild.device"

// device is a device node's kind and number.
type device struct {
	kind         string // "c" or "b"
	Major, Minor uint32
}

func (d device) format() uint32 {
	if d.kind == "b" {
		return unix.S_IFBLK
	}
	return unix.S_IFCHR
}

// mark notes that the empty file at a path stands for a device.
func (d device) mark(p string) error {
	if err := unix.Setxattr(p, deviceAttr, fmt.Appendf(nil, "%s %d %d", d.kind, d.Major, d.Minor), 0); err != nil {
		return &os.PathError{Op: "setxattr", Path: p, Err: err}
	}
	return nil
}

// deviceAt is the device that the file at a path stands for.
func deviceAt(p string) (d device, ok bool) {
	var buf [64]byte
	k, err := unix.Getxattr(p, deviceAttr, buf[:])
	if err != nil {
		return d, false
	}
	n, err := fmt.Sscanf(string(buf[:k]), "%1s %d %d", &d.kind, &d.Major, &d.Minor)
	return d, err == nil && n == 3 && (d.kind == "c" || d.kind == "b")
}

// device is the device that an open file of the layers stands for.
func (n *notary) device(fd int, st *unix.Stat_t) (device, bool) {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return device{}, false
	}
	return deviceAt(proc(fd))
}

// mknod makes the file that stands for a device.
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
	file, err := unix.Openat(fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode&0o7777&^n.umask(q))
	if err != nil {
		return err
	}
	defer unix.Close(file)
	d := device{"c", unix.Major(dev), unix.Minor(dev)}
	if mode&unix.S_IFMT == unix.S_IFBLK {
		d.kind = "b"
	}
	if err := d.mark(proc(file)); err != nil {
		return unix.EPERM
	}
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

// standIn makes a file for a device of the layers that are shown at root. It
// reports whether it did: what lies under a mount, or in a folder that is gone, has none.
func standIn(root int, s tree.Special) (bool, error) {
	dir, err := unix.Openat2(root, "./"+path.Dir(s.Path), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
	if err != nil {
		return false, nil
	}
	defer unix.Close(dir)
	return true, keepTime(dir, func() error {
		fd, err := unix.Openat(dir, path.Base(s.Path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.EEXIST) {
			return nil // replaced, and the list does not know
		}
		if err != nil {
			return &os.PathError{Op: "create", Path: "/" + s.Path, Err: err}
		}
		defer unix.Close(fd)
		return errors.Join(device{s.Device, s.Major, s.Minor}.mark(proc(fd)), writeNote(proc(fd), s.Owner), unix.Fchmod(fd, s.Mode&0o7777))
	})
}

// keepTime does something in a folder and gives that the time back that it had.
func keepTime(dir int, change func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, proc(dir), []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// standDown removes the file that stands for a device.
func (n *notary) standDown(rel string) error {
	dir, err := unix.Openat2(n.root, "./"+path.Dir(rel), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return &os.PathError{Op: "open", Path: "/" + path.Dir(rel), Err: err}
	}
	defer unix.Close(dir)
	return keepTime(dir, func() error { return unix.Unlinkat(dir, path.Base(rel), 0) })
}
