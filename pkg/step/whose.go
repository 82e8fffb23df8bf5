package step

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// inode is a file of a file system that does not use numbers again meanwhile.
type inode struct{ dev, ino uint64 }

// identity tells an inode from others before and after it: numbers are used again.
type identity struct {
	ino         uint64
	born, nanos int64 // 0 where the file system does not know
}

func identityOf(fd int) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return identity{}, err
	}
	return identity{st.Ino, st.Btime.Sec, int64(st.Btime.Nsec)}, nil
}

// owner says whose an open file of the layers is, and whether the kernel, which
// knows one user only, says the same.
func (n *notary) owner(fd int, st *unix.Stat_t) (o tree.Owner, same bool) {
	defer func() { same = o == n.user }() // whatever is returned below
	if carries(st.Mode) {
		if o, ok := noteOf(proc(fd)); ok {
			return o, false
		}
	} else if o, ok := n.remembered(fd, st); ok {
		return o, false
	}
	switch {
	case n.mounted[st.Dev]:
		return o, false // nothing of it is of this step
	case st.Dev != n.dev || st.Nlink == 0: // not of the layers, or no more
		return n.user, true
	case n.user == (tree.Owner{}) && st.Ctim.Sec < n.since:
		return o, true
	}
	where, err := os.Readlink(proc(fd))
	if err != nil {
		return o, false
	}
	rel := strings.TrimPrefix(where, "/")
	maker := n.user
	if gid, ok := n.groupOf(path.Dir(rel)); ok {
		maker.GID = gid
	}
	if rel == "" || maker == (tree.Owner{}) || !n.fresh(rel, st) {
		return o, false
	}
	return maker, false
}

// carries: the file can have a note as an attribute.
func carries(mode uint32) bool {
	return mode&unix.S_IFMT == unix.S_IFREG || mode&unix.S_IFMT == unix.S_IFDIR
}

// groupOf is the group that what is made in a folder gets, if the folder says so.
func (n *notary) groupOf(rel string) (gid int, ok bool) {
	fd, err := unix.Openat(n.root, rel, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_ISGID == 0 || st.Dev != n.dev {
		return 0, false
	}
	o, _ := n.owner(fd, &st)
	return o.GID, true
}

// fresh reports whether what the layers show at a path is of this step, and no
// copy of what a layer below has: overlayfs marks copies (user.overlay.origin),
// but for links and the like, whose number it keeps, and files of several names.
func (n *notary) fresh(rel string, st *unix.Stat_t) bool {
	fd, err := unix.Openat2(n.upper, rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if !carries(st.Mode) {
		var real unix.Stat_t
		return unix.Fstat(fd, &real) == nil && real.Ino == st.Ino
	}
	if _, err := unix.Getxattr(proc(fd), "user.overlay.origin", nil); err == nil {
		return false
	}
	below, there := lookBelow(n.lower, rel)
	return !there || below.Mode&unix.S_IFMT != unix.S_IFREG || below.Nlink < 2
}

// lookBelow looks a path up through layers, highest first.
func lookBelow(lower []string, rel string) (st unix.Stat_t, there bool) {
	for _, l := range lower {
		if unix.Lstat(l+"/"+rel, &st) == nil {
			return st, st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0
		}
	}
	return st, false
}

// give notes the owner of a file or folder. As the kernel does, it takes setuid
// and setgid from a program that changes hands (chown(2)).
func (n *notary) give(fd int, st *unix.Stat_t, old, now tree.Owner) error {
	folder := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if folder && now.GID != old.GID && st.Mode&unix.S_ISGID != 0 {
		n.keepGroups(fd) // what is there was made for the old group
	}
	if now != old {
		if err := writeNote(proc(fd), now); err != nil {
			return unix.EPERM
		}
	}
	if !folder && st.Mode&0o111 != 0 && st.Mode&0o6000 != 0 {
		return unix.Chmod(proc(fd), st.Mode&0o1777|sgidOfLock(st.Mode))
	}
	return nil
}

// keepGroups notes whose the new files of a folder are, before it becomes one
// that gives its group to what is made in it, or gets another group.
func (n *notary) keepGroups(dir int) {
	where, err := os.Readlink(proc(dir))
	if err != nil {
		return
	}
	f, err := os.Open(proc(dir))
	if err != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Dev == n.dev {
			n.keepOwner(fd, &st, strings.TrimPrefix(path.Join(where, name), "/"))
		}
		unix.Close(fd)
	}
}

// keepOwner notes whose a file is, if that is new and has no note.
func (n *notary) keepOwner(fd int, st *unix.Stat_t, rel string) {
	o, _ := n.owner(fd, st)
	if !carries(st.Mode) {
		if _, ok := n.remembered(fd, st); !ok && n.fresh(rel, st) {
			n.remember(fd, o)
		}
	} else if _, ok := noteOf(proc(fd)); !ok && n.fresh(rel, st) {
		writeNote(proc(fd), o)
	}
}

// chmod is about to make a folder give its group to what is made in it.
func (n *notary) chmod(q *request, c modeCall) {
	dir, at, name := int32(unix.AT_FDCWD), q.args[0], ""
	switch {
	case c.mode == 2:
		dir, at = int32(q.args[0]), q.args[1]
	case c.nr == unix.SYS_FCHMOD:
		dir, at = int32(q.args[0]), 0
	}
	var err error
	if at != 0 {
		if name, err = n.text(q, at); err != nil {
			return
		}
	}
	fd, err := n.open(q, dir, name, unix.AT_EMPTY_PATH, false)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&(unix.S_IFMT|unix.S_ISGID) == unix.S_IFDIR {
		n.keepGroups(fd)
	}
}

// remember notes the owner of what can carry no note.
func (n *notary) remember(fd int, o tree.Owner) error {
	// It gets an inode of this step's, by which it is known wherever it goes.
	if err := unix.Fchownat(fd, "", 0, 0, unix.AT_EMPTY_PATH); err != nil {
		return unix.EPERM
	}
	shown, err := identityOf(fd)
	if err != nil {
		return unix.EPERM
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes[shown] = o
	where, err := os.Readlink(proc(fd))
	if err != nil {
		return unix.EPERM
	}
	real, err := unix.Openat2(n.upper, strings.TrimPrefix(where, "/"), &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil // it has no name any more
	}
	defer unix.Close(real)
	if id, err := identityOf(real); err == nil {
		n.notes[id] = o
	}
	return nil
}

// remembered is what is noted about an open link, FIFO or socket.
func (n *notary) remembered(fd int, st *unix.Stat_t) (o tree.Owner, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.notes) > 0 {
		if id, err := identityOf(fd); err == nil {
			if o, ok = n.notes[id]; ok {
				return o, true
			}
		}
	}
	o, ok = n.old[inode{st.Dev, st.Ino}]
	return o, ok
}

func proc(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// noteOf and writeNote are of the file that a path leads to, links of /proc included.
func noteOf(p string) (o tree.Owner, ok bool) {
	var buf [64]byte
	k, err := unix.Getxattr(p, tree.OwnerAttr, buf[:])
	if err != nil {
		return o, false
	}
	o, err = tree.ParseOwner(string(buf[:k])) // a command can write there, too
	return o, err == nil
}

func writeNote(p string, o tree.Owner) error {
	if err := unix.Setxattr(p, tree.OwnerAttr, fmt.Appendf(nil, "%d:%d", o.UID, o.GID), 0); err != nil {
		return &os.PathError{Op: "setxattr", Path: p, Err: err}
	}
	return nil
}
