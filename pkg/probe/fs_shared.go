package probe

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedChecks are the part of group B that touches network filesystems.
func sharedChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Worker, c.limit, c.targets = "fs", classShared, fsLimit, sharedTargets
		c.none = nothing(Absent, "no network mount, no bind of the site's and none of HOME SCRATCH WORK PROJECT SLURM_SUBMIT_DIR is here; --shared names more")
		return c
	}
	return []Check{
		each(Check{
			ID: "fs.shared.list", Severity: "high", Attack: []string{"T1083"}, try: sharedList,
			What: "opens the folder and asks for its first entries (counted, not kept); absent/masked is an empty read-only mount over it",
			Why:  "the shared project filesystem holds everybody's data, code and keys",
		}),
		each(Check{
			ID: "fs.shared.read", Severity: "high", Attack: []string{"T1005"}, try: sharedRead,
			What: "opens the first regular file found there for reading, and reads nothing",
			Why:  "what can be opened can be sent out or trained on",
		}),
		each(Check{
			ID: "fs.shared.write", Severity: "high", Attack: []string{"T1565.001", "T1080"}, try: sharedWrite,
			What: "makes a nameless file (O_TMPFILE) there; where that is unknown, reads the permissions or, with --write-test, makes and removes a named one",
			Why:  "one command can delete or poison a project's results",
		}),
		each(Check{
			ID: "fs.shared.stat", Severity: "medium", Attack: []string{"T1083"}, try: sharedStat,
			What: "statx, without synchronising or triggering a mount",
			Why:  "Landlock does not hide names and sizes: only an absent or masked path is out of sight",
		}),
		each(Check{
			ID: "fs.meta", Severity: "medium", Attack: []string{"T1083"}, try: sharedMeta,
			What: "opens the path with O_PATH, asks statfs and puts an inotify watch on it",
			Why:  "a hidden folder that can be watched leaks who works when; chmod and utime need no more than this",
		}),
	}
}

// maxShared bounds the paths that are tried.
const maxShared = 64

// sharedVars are the variables in which sites put people's storage.
var sharedVars = []string{"HOME", "SCRATCH", "WORK", "PROJECT", "SLURM_SUBMIT_DIR"}

func sharedTargets(s *site) []string {
	ms, _ := s.mounts()
	list := sharedPaths(s.Shared, os.Getenv, ms, s.container())
	return list[:min(len(list), maxShared)]
}

// sharedPaths lists what may be shared storage: what the operator named,
// mounts of network filesystems, a site's binds in a container, and what
// the usual variables say. Mounts that something covers are in it too: to
// try the path is how to know that it is covered.
func sharedPaths(named []string, getenv func(string) string, ms []mount, container string) []string {
	list := slices.Clone(named)
	root, _ := mountAt(ms, "/")
	for _, m := range ms {
		switch {
		case m.Point == "/" || m.FS == "autofs" || m.FS == "cvmfs" || m.FS == "fuse.cvmfs2":
		case isNetworkFS(m.FS):
			list = append(list, m.Point)
		case container != "" && m.Dev != root.Dev && siteBind(m):
			list = append(list, m.Point)
		}
	}
	for _, v := range sharedVars {
		if p := path.Clean(getenv(v)); filepath.IsAbs(p) && p != "/" && !ofTheRuntime(p) {
			list = append(list, p)
		}
	}
	return dedupe(list)
}

// runtimeBinds are what a container runtime binds for its own purposes.
var runtimeBinds = []string{
	"/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/hostname", "/etc/mtab",
	"/.fence", "/.singularity.d", "/run/.containerenv",
	"/dev", "/proc", "/sys", "/tmp", "/var/tmp", "/run/user", // each has checks of its own
	"/usr/bin/nvidia-", "/run/nvidia-",
}

// siteBind says whether a mount in a container is storage of the host that
// the runtime did not need. A whole tmpfs is taken for the container's own.
func siteBind(m mount) bool {
	kind, _ := strings.CutPrefix(m.FS, "fuse.")
	switch {
	case slices.Contains(pseudoFS, m.FS), slices.Contains(localFUSE, kind), m.FS == "overlay", m.FS == "squashfs":
		return false
	case m.FS == "tmpfs" && m.Root == "/":
		return false
	}
	return !ofTheRuntime(m.Point)
}

// ofTheRuntime says whether a path is one of runtimeBinds, or below one.
func ofTheRuntime(p string) bool {
	return slices.ContainsFunc(runtimeBinds, func(b string) bool {
		return p == b || strings.HasPrefix(p, b+"/") || strings.HasSuffix(b, "-") && strings.HasPrefix(p, b)
	})
}

// cover says what stands where a shared path is looked for: "" for the path
// itself, else why what is there is not it.
//
// fence masks a path by a read-only tmpfs that has room for nothing. A path
// in a container's own root, on no mount of its own, is the image's.
func (s *site) cover(p string) (mechanism, evidence string) {
	var stx unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, p, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &stx) != nil {
		return "", ""
	}
	ms, _ := s.mounts()
	if m, ok := coveringMask(p, stx, ms); ok {
		return "masked", m
	}
	real, err := filepath.EvalSymlinks(p) // a link in the image's root may lead to a mount
	if err != nil {
		return "", ""
	}
	if m, ok := mountAt(ms, real); ok && m.Point == "/" && s.container() != "" && !isNetworkFS(m.FS) {
		return "not_mounted", fmt.Sprintf("nothing is mounted at %s: it is a part of the container's own root, dev %d:%d ino %d fs %s",
			p, stx.Dev_major, stx.Dev_minor, stx.Ino, m.FS)
	}
	return "", ""
}

// coveringMask says whether the path is the root of an empty read-only tmpfs.
func coveringMask(p string, stx unix.Statx_t, ms []mount) (string, bool) {
	if stx.Mode&unix.S_IFMT == unix.S_IFCHR && stx.Rdev_major == 1 && stx.Rdev_minor == 3 {
		return "/dev/null lies over it", true
	}
	root := stx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	if m, ok := mountAt(ms, p); !root && !(ok && m.Point == p) {
		return "", false
	}
	var fs unix.Statfs_t
	if unix.Statfs(p, &fs) != nil || int64(fs.Type) != unix.TMPFS_MAGIC || fs.Flags&unix.ST_RDONLY == 0 {
		return "", false
	}
	// Without room for a file there is none; the folder itself takes one.
	if fs.Files == 0 || fs.Files > 4 || fs.Files-fs.Ffree > 1 {
		return "", false
	}
	return fmt.Sprintf("an empty read-only tmpfs lies over it, %d of %d inodes used, dev %d:%d", fs.Files-fs.Ffree, fs.Files, stx.Dev_major, stx.Dev_minor), true
}

// covered is the finding for a path that something lies over.
func (s *site) covered(p string) (Finding, bool) {
	mech, why := s.cover(p)
	if mech == "" {
		return Finding{}, false
	}
	return Finding{Outcome: Absent, Mechanism: mech, Evidence: why}, true
}

// openDir opens a folder for listing. The descriptor is -1 unless it worked.
func openDir(p string) (int, error) {
	return unix.Open(p, unix.O_RDONLY|unix.O_DIRECTORY|openFlags, 0)
}

func sharedList(s *site, p string) Finding {
	if f, ok := s.covered(p); ok {
		return f
	}
	fd, err := openDir(p)
	if err == unix.ENOTDIR && isRegular(p) {
		return s.openRead(p)
	}
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "open", errnoOf(err))
	}
	defer unix.Close(fd)
	names, err := someNames(fd)
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "getdents64", errnoOf(err))
	}
	return Finding{Outcome: Reachable, Syscall: "open", Evidence: fmt.Sprintf("opened, %d entries in the first block; %s", len(names), s.placeOf(fd, p))}
}

// placeOf is the place of an open descriptor.
func (s *site) placeOf(fd int, p string) string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return "fs " + s.fsAt(p)
	}
	return place(&st, s.fsAt(p))
}

// isRegular looks without opening: a path that the operator named may be
// anything.
func isRegular(p string) bool {
	var st unix.Stat_t
	return unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_NO_AUTOMOUNT) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// openRead opens a regular file for reading, and reads nothing.
func (s *site) openRead(p string) Finding {
	fd, err := unix.Open(p, unix.O_RDONLY|openFlags, 0)
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "open", errnoOf(err))
	}
	defer unix.Close(fd)
	return Finding{Outcome: Reachable, Syscall: "open", Evidence: "opened for reading, nothing read; " + s.placeOf(fd, p)}
}

// entry is a name in a folder with the type that the folder claims for it.
type entry struct {
	name string
	kind byte // DT_*
}

// someNames asks once for the entries of an open folder.
func someNames(fd int) ([]entry, error) {
	buf := make([]byte, 16<<10)
	n, err := unix.Getdents(fd, buf)
	if err != nil {
		return nil, err
	}
	return parseDirents(buf[:n]), nil
}

// parseDirents reads struct linux_dirent64 records.
func parseDirents(b []byte) []entry {
	var out []entry
	for len(b) >= 19 {
		size := int(hostOrder.Uint16(b[16:]))
		if size < 19 || size > len(b) {
			break
		}
		name, _, _ := strings.Cut(string(b[19:size]), "\x00")
		if name != "." && name != ".." && name != "" {
			out = append(out, entry{name, b[18]})
		}
		b = b[size:]
	}
	return out
}

// sharedRead opens the first regular file within two folders' depth.
func sharedRead(s *site, p string) Finding {
	if f, ok := s.covered(p); ok {
		return f
	}
	if isRegular(p) {
		return s.openRead(p)
	}
	fd, err := openDir(p)
	if err != nil {
		f := s.pathFinding(p, unix.R_OK, "open", errnoOf(err))
		f.Evidence += ": no name below it to open is known"
		return f
	}
	defer unix.Close(fd)
	names, err := someNames(fd)
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "getdents64", errnoOf(err))
	}
	var refused *Finding
	try := func(dir string, list []entry) (Finding, bool) {
		tried := 0
		for _, e := range list {
			if e.kind != unix.DT_REG && e.kind != unix.DT_UNKNOWN || tried == 8 {
				continue
			}
			file := path.Join(dir, e.name)
			if !isRegular(file) {
				continue
			}
			tried++
			f := s.openRead(file)
			if f.Outcome == Reachable {
				return f, true
			}
			if refused == nil || refused.Mechanism == "dac" {
				refused = &f // a fence's refusal says more than a file's mode
			}
		}
		return Finding{}, false
	}
	if f, ok := try(p, names); ok {
		return f
	}
	looked := 0
	for _, e := range names {
		if e.kind != unix.DT_DIR || looked == 4 {
			continue
		}
		looked++
		sub := path.Join(p, e.name)
		d, err := openDir(sub)
		if err != nil {
			continue
		}
		list, _ := someNames(d)
		unix.Close(d)
		if f, ok := try(sub, list); ok {
			return f
		}
	}
	if refused != nil {
		return *refused
	}
	return info("no regular file among the first entries, so none was opened; %s", s.placeOf(fd, p))
}

func sharedWrite(s *site, p string) Finding {
	if f, ok := s.covered(p); ok {
		return f
	}
	if isRegular(p) {
		fd, err := unix.Open(p, unix.O_WRONLY|openFlags, 0)
		if err != nil {
			return s.pathFinding(p, unix.W_OK, "open", errnoOf(err))
		}
		unix.Close(fd)
		return Finding{Outcome: Reachable, Syscall: "open", Evidence: "a file, opened for writing, nothing written"}
	}
	return s.tryWrite(p)
}

func sharedStat(s *site, p string) Finding {
	if f, ok := s.covered(p); ok {
		return f
	}
	var stx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &stx)
	if err != nil {
		return s.pathFinding(p, unix.F_OK, "statx", errnoOf(err))
	}
	return Finding{Outcome: Reachable, Syscall: "statx", Evidence: fmt.Sprintf("mode %o, dev %d:%d ino %d fs %s", stx.Mode, stx.Dev_major, stx.Dev_minor, stx.Ino, s.fsAt(p))}
}

func sharedMeta(s *site, p string) Finding {
	if f, ok := s.covered(p); ok {
		return f
	}
	var works, not []string
	note := func(what string, err error) {
		if err == nil {
			works = append(works, what)
		} else {
			not = append(not, what+" "+errnoName(errnoOf(err)))
		}
	}
	fd, err := unix.Open(p, unix.O_PATH|openFlags, 0)
	first := err
	note("O_PATH", err)
	if err == nil {
		unix.Close(fd)
	}
	var fs unix.Statfs_t
	note("statfs", unix.Statfs(p, &fs))
	if in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
		_, err = unix.InotifyAddWatch(in, p, unix.IN_CREATE|unix.IN_ONLYDIR)
		note("inotify", err)
		unix.Close(in)
	} else {
		note("inotify", err)
	}
	if len(works) == 0 {
		f := s.pathFinding(p, unix.F_OK, "open", errnoOf(first))
		f.Evidence = strings.Join(not, ", ")
		return f
	}
	f := Finding{Outcome: Reachable, Syscall: "open", Evidence: strings.Join(works, ", ") + " work"}
	if len(not) > 0 {
		f.Evidence += "; not " + strings.Join(not, ", ")
	}
	return f
}
