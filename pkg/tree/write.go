package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attr is an extended attribute.
type attr struct {
	name  string
	value []byte
}

// mkdir makes a folder that only its maker may enter; finish it with chmod.
func (r *rooted) mkdir(p string) error {
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	return inside("mkdir", p, unix.Mkdirat(fd, name, 0o700))
}

// create makes a file that only its maker may read. There is none yet.
func (r *rooted) create(p string) (*os.File, error) {
	return r.open(p, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
}

// wholeFile is how large a file may be that is read and written at once: most
// are small, and a copy of those is all overhead.
const wholeFile = 256 << 10

// writeFile makes a file with everything it has.
func (r *rooted) writeFile(p string, data []byte, m meta) error {
	dir, name, err := r.parent(p)
	if err != nil {
		return err
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return inside("create", p, err)
	}
	defer unix.Close(fd)
	for len(data) > 0 {
		n, err := retry(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return inside("write", p, err)
		}
		data = data[n:]
	}
	return r.finishFile(fd, p, m)
}

// meta is what a file or folder has beside its contents.
type meta struct {
	mode  uint32
	owner Owner
	mtime unix.Timespec
	attrs []attr // what the file system does not take is left out, as in BuildKit
}

// finishFile gives a new file all but its bytes. The mode comes after the
// attributes: those may clear setuid.
func (r *rooted) finishFile(fd int, p string, m meta) error {
	if m.owner != (Owner{}) {
		err := unix.Fsetxattr(fd, OwnerAttr, []byte(m.owner.String()), 0)
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = errNoAttributes
		}
		if err != nil {
			return inside("set "+OwnerAttr+" of", p, err)
		}
	}
	for _, a := range m.attrs {
		_ = unix.Fsetxattr(fd, a.name, a.value, 0)
	}
	if err := unix.Fchmod(fd, m.mode&0o7777); err != nil {
		return inside("chmod", p, err)
	}
	return r.chtime(p, m.mtime)
}

// finishDir gives a folder all but what is in it.
func (r *rooted) finishDir(p string, m meta) error {
	if err := r.setOwner(p, m.owner); err != nil {
		return err
	}
	for _, a := range m.attrs {
		_ = r.setAttr(p, a)
	}
	if err := r.chmod(p, m.mode); err != nil {
		return err
	}
	return r.chtime(p, m.mtime)
}

func (r *rooted) symlink(target, p string) error {
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	return inside("symlink", p, unix.Symlinkat(target, fd, name))
}

func (r *rooted) mkfifo(p string) error {
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	return inside("mkfifo", p, unix.Mknodat(fd, name, unix.S_IFIFO|0o600, 0))
}

// whiteout makes what hides p of the layers below: a character device 0/0,
// which everybody may make (overlayfs, Linux 5.8).
func (r *rooted) whiteout(p string) error {
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	return inside("make a whiteout", p, unix.Mknodat(fd, name, unix.S_IFCHR, 0))
}

// link makes p another name of what from's old is; a link is not followed.
func (r *rooted) link(from *rooted, old, p string) error {
	oldfd, oldname, err := from.parent(old)
	if err != nil {
		return err
	}
	if from == r { // the next call may close what the one before opened
		if oldfd, err = unix.FcntlInt(uintptr(oldfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return inside("link", p, err)
		}
		defer unix.Close(oldfd)
	}
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	return inside("link", p, unix.Linkat(oldfd, oldname, fd, name, 0))
}

// pin opens whatever is at p without reading or following it, and gives its
// name in /proc, through which calls that know no such descriptor reach it.
func (r *rooted) pin(p string) (f *os.File, name string, err error) {
	f, err = r.open(p, unix.O_PATH, 0)
	if err != nil {
		return nil, "", err
	}
	return f, "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}

// chmod sets the mode of anything but a link. It must come after a change of
// contents or attributes: those may clear setuid.
func (r *rooted) chmod(p string, mode uint32) error {
	f, name, err := r.pin(p)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return inside("stat", p, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return inside("chmod", p, unix.ELOOP)
	}
	return inside("chmod", p, unix.Chmod(name, mode&0o7777))
}

// chtime sets the time of the last change of p, a link itself.
func (r *rooted) chtime(p string, mtime unix.Timespec) error {
	fd, name, err := r.parent(p)
	if err != nil {
		return err
	}
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	return inside("set the time of", p, unix.UtimesNanoAt(fd, name, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// errNoAttributes is what a work folder on the wrong file system leads to.
var errNoAttributes = errors.New("this file system keeps no user attributes: choose a work folder on a local disk (ext4, xfs, btrfs; tmpfs from Linux 6.6)")

func setAttr(proc, p, name string, value []byte) error {
	err := unix.Setxattr(proc, name, value, 0)
	if errors.Is(err, unix.EOPNOTSUPP) && strings.HasPrefix(name, "user.") {
		err = errNoAttributes
	}
	return inside("set "+name+" of", p, err)
}

// setOwner notes the owner of the file or folder at p.
func (r *rooted) setOwner(p string, o Owner) error {
	f, name, err := r.pin(p)
	if err != nil {
		return err
	}
	defer f.Close()
	if o != (Owner{}) {
		return setAttr(name, p, OwnerAttr, []byte(o.String()))
	}
	err = unix.Removexattr(name, OwnerAttr)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return inside("remove "+OwnerAttr+" of", p, err)
}

// setAttr sets one attribute of the file or folder at p.
func (r *rooted) setAttr(p string, a attr) error {
	f, name, err := r.pin(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return setAttr(name, p, a.name, a.value)
}

// attrs reads the attributes of the file or folder at p that matter here: user
// attributes, and what a file may do (capabilities(7)). A file system without
// any has none.
func (r *rooted) attrs(p string) ([]attr, error) {
	f, proc, err := r.pin(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var buf []byte
	for {
		n, err := unix.Listxattr(proc, nil)
		if err != nil || n == 0 {
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = nil
			}
			return nil, inside("list the attributes of", p, err)
		}
		buf = make([]byte, n)
		if n, err = unix.Listxattr(proc, buf); err == nil {
			buf = buf[:n]
			break
		} else if !errors.Is(err, unix.ERANGE) {
			return nil, inside("list the attributes of", p, err)
		}
	}
	var list []attr
	for raw := range bytes.SplitSeq(bytes.TrimSuffix(buf, []byte{0}), []byte{0}) {
		name := string(raw)
		if !strings.HasPrefix(name, "user.") && name != capabilityAttr {
			continue
		}
		value := make([]byte, 64<<10) // the largest there is (xattr(7))
		n, err := unix.Getxattr(proc, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, inside("read "+name+" of", p, err)
		}
		list = append(list, attr{name, bytes.Clone(value[:n])})
	}
	return list, nil
}

const (
	capabilityAttr = "security.capability"
	overlayPrefix  = "user.overlay."
	opaqueAttr     = overlayPrefix + "opaque"
)

// ours reports whether an attribute means something to us or to overlayfs, so
// that it must never come out of a tar or a source folder.
func ours(name string) bool {
	return name == OwnerAttr || strings.HasPrefix(name, overlayPrefix)
}

// owner returns what the attributes note; an attribute that is no owner is an error.
func owner(attrs []attr) (Owner, error) {
	for _, a := range attrs {
		if a.name == OwnerAttr {
			return ParseOwner(string(a.value))
		}
	}
	return Owner{}, nil
}

// ownerAt reads the note at p only.
func (r *rooted) ownerAt(p string) (Owner, error) {
	f, proc, err := r.pin(p)
	if err != nil {
		return Owner{}, err
	}
	defer f.Close()
	value := make([]byte, 64)
	n, err := unix.Getxattr(proc, OwnerAttr, value)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return Owner{}, nil
	}
	if err != nil {
		return Owner{}, inside("read "+OwnerAttr+" of", p, err)
	}
	o, err := ParseOwner(string(value[:n]))
	return o, inside("read "+OwnerAttr+" of", p, err)
}

// String writes an owner as OwnerAttr has it.
func (o Owner) String() string { return fmt.Sprintf("%d:%d", o.UID, o.GID) }

// ParseOwner reads "UID:GID".
func ParseOwner(s string) (Owner, error) {
	user, group, _ := strings.Cut(s, ":")
	uid, err1 := strconv.ParseUint(user, 10, 32)
	gid, err2 := strconv.ParseUint(group, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return Owner{}, fmt.Errorf("%q is no owner UID:GID", s)
	}
	return Owner{int(uid), int(gid)}, nil
}

// mkdirAll makes the folder p (resolved) and those above it that are not there,
// and returns those it made, the topmost first. What is made in a setgid folder
// is setgid, too, and of its group unless there is an owner.
func (r *rooted) mkdirAll(p string, mode uint32, o *Owner) (made []string, err error) {
	st, err := r.lstat(p)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, nil
	case err == nil:
		return nil, inside("make a folder at", p, unix.ENOTDIR)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if made, err = r.mkdirAll(path.Dir(p), mode, o); err != nil {
		return nil, err
	}
	if err := r.mkdir(p); err != nil {
		return nil, err
	}
	var is Owner
	if o != nil {
		is = *o
	}
	if st, err = r.lstat(path.Dir(p)); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_ISGID != 0 {
		mode |= unix.S_ISGID
		if o == nil {
			above, err := r.ownerAt(path.Dir(p))
			if err != nil {
				return nil, err
			}
			is.GID = above.GID
		}
	}
	if is != (Owner{}) {
		if err := r.setOwner(p, is); err != nil {
			return nil, err
		}
	}
	return append(made, p), r.chmod(p, mode)
}
