package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// MountKind is one thing that the namespace form does to the mount tree.
type MountKind int

const (
	MountDev      MountKind = iota + 1 // a small /dev with a private devpts and /dev/shm
	MountTmp                           // an empty writable folder over the host's
	MountMaskDir                       // an empty read-only folder over a hidden one
	MountMaskFile                      // /dev/null over a hidden file or socket
	MountShow                          // an opened path again, inside one covered before
	MountReadOnly                      // a tree made read-only where it is
	MountPin                           // a path bound on itself, read-only: cannot be renamed either
	MountProc                          // a /proc of the own PID namespace
	MountHold                          // a folder bound on itself: cannot be renamed, with what is hidden in it
)

// MountOp is one step of the namespace form, in the order it is done.
type MountOp struct {
	Kind     MountKind `json:"kind"`
	Path     string    `json:"path"`
	From     string    `json:"from,omitempty"`      // MountShow: what Path leads to, without links
	ReadOnly bool      `json:"read_only,omitempty"` // MountShow
	Holds    int       `json:"holds,omitempty"`     // MountMaskDir: at most so many folders and files are shown inside it
	Devices  []string  `json:"devices,omitempty"`   // MountDev: opened device nodes
	Dir      bool      `json:"dir,omitempty"`       // MountShow, MountPin: a folder
	Absent   bool      `json:"absent,omitempty"`    // MountPin: make it first
}

func (k MountKind) String() string {
	return [...]string{"", "devices", "private", "masked", "masked", "shown", "read-only", "pinned", "processes", "held"}[k]
}

// MarshalText names the kind in JSON records.
func (k MountKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// maskName is the source that an empty mask shows in mountinfo(5).
const maskName = "fence-mask"

// devNodes are the harmless devices every command gets.
var devNodes = []string{"null", "zero", "full", "random", "urandom", "tty"}

// applyMounts does the steps. Clones of what must stay visible are taken
// first: afterwards a mask or a private folder lies over them.
func applyMounts(ops []MountOp) (err error) {
	defer func() {
		if errors.Is(err, unix.ENOSPC) { // of a limit, not of a disk
			err = fmt.Errorf("%w: no more are allowed here: user.max_mnt_namespaces or fs.mount-max", err)
		}
	}()
	// exec(2) refuses a file whose capabilities are outside the bounding set
	// with EPERM, unless it does not look at them.
	if err := setAttr("/", unix.AT_RECURSIVE, unix.MOUNT_ATTR_NOSUID); err != nil {
		return err
	}
	clones := map[string]int{}
	defer func() {
		for _, fd := range clones {
			unix.Close(fd)
		}
	}()
	for _, op := range ops {
		if op.Kind != MountShow {
			continue
		}
		at, err := openSame(op.From)
		if err != nil {
			return &os.PathError{Op: "taking along the opened path", Path: op.From, Err: err}
		}
		fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
		unix.Close(at)
		if err != nil {
			return &os.PathError{Op: "taking along the opened path", Path: op.From, Err: err}
		}
		clones[op.Path] = fd
	}
	for _, op := range ops {
		if err := op.apply(clones[op.Path]); err != nil {
			return err
		}
	}
	// A mask that holds something had to be writable until now.
	for _, op := range ops {
		if op.Kind == MountMaskDir && op.Holds > 0 {
			if err := setReadOnly(op.Path, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (op MountOp) apply(clone int) error {
	const still = unix.MS_NOSUID | unix.MS_NODEV
	var err error
	switch op.Kind {
	case MountDev:
		return mountDev(op.Devices)
	case MountTmp:
		err = unix.Mount("fence-tmp", op.Path, "tmpfs", still, "mode=1777")
	case MountMaskDir:
		flags := uintptr(still | unix.MS_NOEXEC | unix.MS_RDONLY)
		if op.Holds > 0 {
			flags &^= unix.MS_RDONLY
		}
		err = unix.Mount(maskName, op.Path, "tmpfs", flags, fmt.Sprintf("size=4k,mode=0555,nr_inodes=%d", 2+op.Holds))
	case MountMaskFile:
		if err = unix.Mount("/dev/null", op.Path, "", unix.MS_BIND, ""); err == nil {
			return setReadOnly(op.Path, 0)
		}
	case MountProc:
		const how = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		// Behind a fence that made its own read-only, the kernel gives no other.
		if err = unix.Mount("fence-proc", op.Path, "proc", how, ""); err == unix.EPERM {
			err = unix.Mount("fence-proc", op.Path, "proc", how|unix.MS_RDONLY, "")
		}
	case MountShow:
		if err = attach(clone, op.Path, op.Dir); err == nil && op.ReadOnly {
			return setReadOnly(op.Path, unix.AT_RECURSIVE)
		}
	case MountReadOnly:
		return setReadOnly(op.Path, unix.AT_RECURSIVE)
	case MountPin:
		if op.Absent {
			// Whoever can make it decides what the runtime runs next.
			if err := makeEmpty(op.Path, op.Dir); errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
				return nil // nor can the command make it
			} else if err != nil {
				return err
			}
		}
		return pin(op.Path, unix.MOUNT_ATTR_RDONLY)
	case MountHold:
		return pin(op.Path, 0)
	default:
		return fmt.Errorf("BUG: mount step %d", op.Kind)
	}
	if err != nil {
		return &os.PathError{Op: "mounting over", Path: op.Path, Err: err}
	}
	return nil
}

func makeEmpty(p string, dir bool) error {
	if dir {
		return os.Mkdir(p, 0o755)
	}
	return unix.Mknod(p, unix.S_IFREG|0o644, 0)
}

// setAttr keeps every other flag as it is, which mount(2) cannot.
func setAttr(p string, flags uint, set uint64) error {
	attr := unix.MountAttr{Attr_set: set}
	if err := unix.MountSetattr(unix.AT_FDCWD, p, flags|unix.AT_SYMLINK_NOFOLLOW, &attr); err != nil {
		return &os.PathError{Op: "restricting the mount", Path: p, Err: err}
	}
	return nil
}

func setReadOnly(p string, flags uint) error { return setAttr(p, flags, unix.MOUNT_ATTR_RDONLY) }

// pin binds a path on itself with the attributes. The path may be a symbolic link: it
// is the link that must stay. A mount point can be neither renamed nor
// removed (rename(2), EBUSY).
func pin(p string, attrs uint64) error {
	const how = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW
	fd, err := unix.OpenTree(unix.AT_FDCWD, p, how|unix.AT_RECURSIVE)
	if err != nil {
		return &os.PathError{Op: "pinning", Path: p, Err: err}
	}
	defer unix.Close(fd)
	if attrs != 0 {
		attr := unix.MountAttr{Attr_set: attrs}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return &os.PathError{Op: "pinning read-only", Path: p, Err: err}
		}
	}
	return moveMount(fd, p)
}

func moveMount(fd int, p string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mounting", Path: p, Err: err}
	}
	return nil
}

// attach makes p, and the folders to it, in a cover of ours and mounts there.
func attach(fd int, p string, dir bool) error {
	if err := os.MkdirAll(path.Dir(p), 0o755); err != nil {
		return err
	}
	if err := makeEmpty(p, dir); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "making a place for", Path: p, Err: err}
	}
	return moveMount(fd, p)
}

// mountDev covers /dev by an own one: the host's has other users' terminals
// in its devpts, and devices that no policy opened.
func mountDev(opened []string) error {
	nodes := map[string]int{}
	defer func() {
		for _, fd := range nodes {
			unix.Close(fd)
		}
	}()
	take := func(p string, must bool) error {
		fd, err := unix.OpenTree(unix.AT_FDCWD, p, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err == unix.ENOENT && !must {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "taking along the device", Path: p, Err: err}
		}
		nodes[p] = fd
		return nil
	}
	for _, name := range devNodes {
		if err := take("/dev/"+name, name == "null"); err != nil {
			return err
		}
	}
	for _, p := range opened {
		if err := take(p, true); err != nil {
			return err
		}
	}
	if err := unix.Mount("fence-dev", "/dev", "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return &os.PathError{Op: "mounting over", Path: "/dev", Err: err}
	}
	for p, fd := range nodes {
		if err := attach(fd, p, false); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/dev/pts", "/dev/shm", "/dev/mqueue"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	// Without it, or without an IPC namespace of our own, mq_open is refused.
	_ = unix.Mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err := unix.Chmod("/dev/shm", 0o1777); err != nil {
		return &os.PathError{Op: "chmod", Path: "/dev/shm", Err: err}
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return &os.PathError{Op: "mounting a private devpts on", Path: "/dev/pts", Err: err}
	}
	for link, to := range map[string]string{
		"/dev/ptmx": "pts/ptmx", "/dev/fd": "/proc/self/fd",
		"/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, link); err != nil {
			return err
		}
	}
	return nil
}
