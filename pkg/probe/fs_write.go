package probe

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tryWrite makes a nameless file in the folder.
func (s *site) tryWrite(dir string) Finding {
	fd, err := tmpfile(dir)
	if err == nil {
		defer unix.Close(fd)
		works := "O_TMPFILE works; "
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0 {
			works = "O_TMPFILE works, noexec; "
		}
		return Finding{Outcome: Reachable, Syscall: "open", Evidence: works + s.placeOf(fd, dir)}
	}
	e := errnoOf(err)
	switch e {
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL:
		if e == unix.EINVAL && slices.Contains(pseudoFS, s.fsAt(dir)) {
			break
		}
		return s.tryNamed(dir, errnoName(e))
	}
	f := s.pathFinding(dir, unix.W_OK, "open", e)
	f.Evidence = strings.Replace(f.Evidence, "open", "open(O_TMPFILE)", 1)
	if f.Outcome == Denied {
		var st unix.Stat_t
		if unix.Fstatat(unix.AT_FDCWD, dir, &st, unix.AT_NO_AUTOMOUNT) == nil {
			f.Evidence += "; " + place(&st, s.fsAt(dir))
		}
	}
	return f
}

func tmpfile(dir string) (int, error) {
	return unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|openFlags, 0o600)
}

// tryNamed answers for a filesystem without nameless files, as most network
// filesystems are. The kernel checks the permissions before it says so, but
// a Landlock ruleset only after.
func (s *site) tryNamed(dir, said string) Finding {
	if s.WriteTest {
		name := path.Join(dir, ".probe-"+rand.Text())
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|openFlags, 0o600)
		if err != nil {
			return s.pathFinding(dir, unix.W_OK, "open", errnoOf(err))
		}
		unix.Close(fd)
		f := Finding{Outcome: Reachable, Syscall: "open", Evidence: "made and removed a file; fs " + s.fsAt(dir)}
		if err := unix.Unlink(name); err != nil {
			f.Evidence = "made a file that could not be removed again: " + name
		}
		return f
	}
	switch {
	case !dacAllows(dir, unix.W_OK):
		return s.pathFinding(dir, unix.W_OK, "faccessat2", unix.EACCES)
	case s.Layers == 0:
		return Finding{Outcome: Reachable, Errno: said, Syscall: "open",
			Evidence: "O_TMPFILE = -1 " + said + ", which the kernel says after it allowed the write; no Landlock is in force; fs " + s.fsAt(dir)}
	}
	return Finding{Outcome: Skipped, Errno: said, Syscall: "open", Evidence: "this filesystem has no O_TMPFILE (" + s.fsAt(dir) + "); --write-test makes a named file"}
}

// openNothing opens a path and closes it, reading and writing nothing.
func (s *site) openNothing(p string, flags int, mode uint32) Finding {
	if neverOpen(p) {
		return Finding{Outcome: Skipped, Evidence: "to open it would do something, so it was not opened"}
	}
	ask := uint32(unix.R_OK)
	if flags&unix.O_ACCMODE == unix.O_WRONLY {
		ask = unix.W_OK
	} else if flags&unix.O_ACCMODE == unix.O_RDWR {
		ask |= unix.W_OK
	}
	if mode&unix.S_IFMT == unix.S_IFCHR && s.isNull(p) {
		return Finding{Outcome: Absent, Mechanism: "masked", Evidence: "/dev/null lies over it"}
	}
	fd, err := unix.Open(p, flags|unix.O_NOFOLLOW|openFlags, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return s.followed(p, flags)
		}
		if errors.Is(err, unix.ETXTBSY) {
			// It is being run: the kernel says so before it asks whether the mount is
			// read-only. access(2) asks that first, but knows nothing of Landlock: its
			// yes is no answer.
			if e := unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, 0); e != nil {
				return s.pathFinding(p, ask, "faccessat", errnoOf(e))
			}
		}
		return s.pathFinding(p, ask, "open", errnoOf(err))
	}
	unix.Close(fd)
	return Finding{Outcome: Reachable, Syscall: "open", Evidence: fmt.Sprintf("opened and closed, nothing read or written; mode %o", mode&0o7777)}
}

// followed answers for a symbolic link: what it leads to is opened only if it
// is a file or folder.
func (s *site) followed(p string, flags int) Finding {
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_NO_AUTOMOUNT); err != nil {
		return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFREG && k != unix.S_IFDIR {
		return Finding{Outcome: Skipped, Evidence: "a symbolic link to something that is no file, not opened"}
	}
	fd, err := unix.Open(p, flags|openFlags, 0)
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "open", errnoOf(err))
	}
	unix.Close(fd)
	return Finding{Outcome: Reachable, Syscall: "open", Evidence: "a symbolic link; what it leads to was opened and closed"}
}

// isNull says whether the path is the null device, which fence lays over a
// hidden file.
func (s *site) isNull(p string) bool {
	var st unix.Stat_t
	return p != "/dev/null" && unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

func modeOf(p string) uint32 {
	var st unix.Stat_t
	if unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != nil {
		return 0
	}
	return st.Mode
}
