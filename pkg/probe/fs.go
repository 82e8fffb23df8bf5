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

// fsChecks are group B without the network filesystems.
func fsChecks() []Check {
	check := func(c Check) Check {
		c.Group, c.limit = "fs", fsLimit
		if c.Worker == "" {
			c.Worker = classFS
		}
		return c
	}
	return []Check{
		check(Check{
			ID: "fs.mounts", Severity: "info", Worker: classSelf, targets: networkMounts, try: fsMount,
			none: func(s *site) Finding {
				ms, err := s.mounts()
				if err != nil {
					return Finding{Outcome: Error, Evidence: err.Error()}
				}
				return info("none of %d mounts is of a network filesystem", len(ms))
			},
			What: "looks in mountinfo for network and cluster filesystems, touching none",
			Why:  "a container shows whatever the site's configuration binds",
		}),
		check(Check{
			ID: "fs.home", Severity: "high", Attack: []string{"T1083", "T1552"}, Worker: classShared, try: fsHome,
			What: "opens the home folder",
			Why:  "dotfiles, keys and the start-up files of the next login",
		}),
		check(Check{
			ID: "fs.cwd", Severity: "info", Worker: classShared, try: fsCwd,
			What: "says what the working directory is",
			Why:  "a working directory inside a hidden path keeps it reachable",
		}),
		check(Check{
			ID: "fs.tmp", Severity: "low", Attack: []string{"T1080"}, targets: tmpDirs, try: fsTmp,
			What: "makes a nameless file there, and says which mount it is",
			Why:  "if it is the node's own, other users and other rollouts meet there",
		}),
		check(Check{
			ID: "fs.tmp.foreign", Severity: "medium", Attack: []string{"T1083"}, targets: tmpDirs, try: fsTmpForeign,
			What: "looks for entries of other users there, among the first 256",
			Why:  "shows that the folder is shared with other people",
		}),
		check(Check{
			ID: "fs.writable", Severity: "medium", Attack: []string{"T1565.001"}, targets: writableDirs, try: fsWrite,
			none: nothing(Absent, "no other mount to try"),
			What: "makes a nameless file on every other local mount and in the usual folders",
			Why:  "a place outside the task's that outlives the command",
		}),
		check(Check{
			ID: "fs.rootfs", Severity: "low", Attack: []string{"T1543"}, targets: to("/", "/usr", "/usr/bin", "/etc"), try: fsWrite,
			What: "makes a nameless file in the root's own folders",
			Why:  "harmless on a throw-away overlay; on a bare node it is everybody's system",
		}),
		check(Check{
			ID: "fs.task.write", Severity: "info", targets: taskDirs, try: fsWrite,
			What: "makes a nameless file in the task's own folders: it must work",
			Why:  "a fence that stops the work is no fence anybody keeps on",
		}),
		check(Check{
			ID: "fs.suid", Severity: "info", try: fsSuid,
			What: "counts setuid and setgid files in PATH",
			Why:  "each is a way up where no_new_privs is off",
		}),
		check(Check{
			ID: "fs.lustre.ctl", Severity: "high", Attack: []string{"T1083", "T1006"}, Worker: classShared, targets: to("/dev/lnet", "/dev/obd", "/proc/fs/lustre", "/sys/fs/lustre", lustreFIDs), try: fsLustre,
			What: "opens Lustre's control points, .lustre/fid of each mount among them",
			Why:  "opening by file id crosses the edge of a bound sub-folder",
		}),
		check(Check{
			ID: "fs.gpfs.ctl", Severity: "high", targets: to("/dev/ss0", "/var/mmfs"), try: fsControl,
			What: "opens Spectrum Scale's control device and folder", Why: "commands to the filesystem's daemon",
		}),
		check(Check{
			ID: "fs.beegfs.ctl", Severity: "high", targets: to("/proc/fs/beegfs", "/etc/beegfs/conn.auth"), try: fsControl,
			What: "opens BeeGFS's control folder and its connection secret, reading nothing", Why: "who knows the secret talks to the servers as anybody",
		}),
		check(Check{
			ID: "fs.weka.ctl", Severity: "high", targets: to("/dev/wekafs", "/dev/weka0", "/opt/weka"), try: fsControl,
			What: "opens WekaFS's devices and folder", Why: "commands to the filesystem's driver",
		}),
		check(Check{
			ID: "fs.ceph.key", Severity: "high", Attack: []string{"T1552.004"}, targets: to("/etc/ceph/ceph.client.admin.keyring", "/etc/ceph/ceph.keyring"), try: fsControl,
			What: "opens Ceph's keyrings, reading nothing", Why: "a key is the storage of the whole cluster",
		}),
		check(Check{
			ID: "fs.handle", Severity: "high", Attack: []string{"T1611"}, Worker: classSys, try: fsHandle,
			What: "open_by_handle_at of a handle that no file has", Why: "opens files by number, past every path rule",
		}),
		check(Check{
			ID: "fs.cvmfs", Severity: "info", Worker: classSelf, try: fsCVMFS,
			What: "looks for /cvmfs in mountinfo", Why: "read-only software; harmless if it is wanted",
		}),
		check(Check{
			ID: "fs.proc.mask", Severity: "high", Attack: []string{"T1611"}, try: fsOpenWrite,
			targets: to("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"),
			What:    "opens for writing, and writes nothing",
			Why:     "what is written there the node's kernel runs, as root",
		}),
		check(Check{
			ID: "fs.cgroup.write", Severity: "medium", Attack: []string{"T1611"}, targets: cgroupFiles, try: fsOpenWrite,
			none: nothing(Absent, "no control group of this process is mounted here"),
			What: "opens its own group's cgroup.procs, memory limit and cgroup.kill for writing, and writes nothing",
			Why:  "leaving the group is leaving the scheduler's limits",
		}),
	}
}

func networkMounts(s *site) []string {
	ms, _ := s.mounts()
	var out []string
	for _, m := range ms {
		if isNetworkFS(m.FS) && m.FS != "cvmfs" {
			out = append(out, m.Point)
		}
	}
	return out
}

func fsMount(s *site, p string) Finding {
	ms, _ := s.mounts()
	f := info("")
	for _, m := range ms {
		if m.Point == p && isNetworkFS(m.FS) {
			f.Evidence = fmt.Sprintf("%s %s dev %s root %s", m.FS, m.Options, m.Dev, m.Root)
			if top, ok := mountAt(ms, p); ok && top.ID != m.ID {
				f.Evidence += "; " + top.FS + " lies over it"
			}
		}
	}
	return f
}

func fsHome(s *site, _ string) Finding {
	home := os.Getenv("HOME")
	if home == "" {
		home = passwdHome()
	}
	if home == "" {
		return Finding{Outcome: Absent, Evidence: "no HOME is set and passwd names none"}
	}
	f := sharedList(s, home)
	f.Evidence = home + ": " + f.Evidence
	return f
}

// passwdHome is this user's home in /etc/passwd.
func passwdHome() string {
	data, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return ""
	}
	uid := fmt.Sprint(os.Getuid())
	for _, l := range strings.Split(string(data), "\n") {
		if p := strings.Split(l, ":"); len(p) > 5 && p[2] == uid {
			return p[5]
		}
	}
	return ""
}

func fsCwd(s *site, _ string) Finding {
	wd, err := os.Readlink("/proc/self/cwd")
	if err != nil {
		if wd, err = os.Getwd(); err != nil {
			return info("unknown (%s)", errnoName(errnoOf(err)))
		}
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, ".", &st, 0); err != nil {
		return info("%s, stat %s", wd, errnoName(errnoOf(err)))
	}
	return info("%s, %s", wd, place(&st, s.fsAt(wd)))
}

func tmpDirs(*site) []string {
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", fmt.Sprintf("/run/user/%d", os.Getuid())}
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		dirs = append(dirs, path.Clean(d))
	}
	return dirs
}

func fsTmp(s *site, p string) Finding {
	f := s.tryWrite(p)
	ms, _ := s.mounts()
	if m, ok := mountAt(ms, p); ok && f.Outcome != Absent {
		f.Evidence += fmt.Sprintf("; on the mount of %s, root %s", m.Point, m.Root)
	}
	return f
}

func fsTmpForeign(s *site, p string) Finding {
	fd, err := openDir(p)
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "open", errnoOf(err))
	}
	defer unix.Close(fd)
	names, err := someNames(fd)
	if err != nil {
		return s.pathFinding(p, unix.R_OK, "getdents64", errnoOf(err))
	}
	own, foreign := uint32(os.Getuid()), 0
	for _, e := range names[:min(len(names), 256)] {
		var st unix.Stat_t
		if unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) == nil && st.Uid != own && st.Uid != 0 {
			foreign++
		}
	}
	if foreign > 0 {
		return Finding{Outcome: Reachable, Evidence: fmt.Sprintf("%d of the first %d entries are other users'", foreign, len(names))}
	}
	return Finding{Outcome: Absent, Evidence: fmt.Sprintf("none of the first %d entries is another user's", len(names))}
}

// usualDirs are folders that a command may try beside mount points.
var usualDirs = []string{"/opt", "/srv", "/mnt", "/media", "/var", "/var/lib", "/var/cache", "/var/log", "/var/spool", "/run", "/run/lock", "/home", "/root", "/usr/local", "/.fence", "/.singularity.d"}

func writableDirs(s *site) []string {
	ms, _ := s.mounts()
	skip := slices.Concat(tmpDirs(s), []string{"/", "/usr", "/usr/bin", "/etc"}, sharedTargets(s))
	var out []string
	for _, m := range ms {
		if slices.Contains(pseudoFS, m.FS) || isNetworkFS(m.FS) || strings.HasPrefix(m.Point, "/proc/") || strings.HasPrefix(m.Point, "/sys/") {
			continue
		}
		if strings.HasPrefix(m.Point, "/etc/") && slices.Contains(runtimeBinds, m.Point) {
			continue // the runtime's own copy
		}
		if onItself(m, ms) {
			continue // a fence holds the folder where it is: it is no other place than before
		}
		out = append(out, m.Point)
	}
	out = slices.DeleteFunc(slices.Concat(out, usualDirs), func(p string) bool { return slices.Contains(skip, p) })
	out = dedupe(out)
	return out[:min(len(out), 128)]
}

// onItself reports whether a mount shows at its point what was there already.
func onItself(m mount, all []mount) bool {
	return slices.ContainsFunc(all, func(below mount) bool {
		rest, inside := strings.CutPrefix(m.Point, strings.TrimSuffix(below.Point, "/"))
		return below.ID == m.Parent && below.Dev == m.Dev && inside && m.Root == path.Join(below.Root, rest)
	})
}

func fsWrite(s *site, p string) Finding {
	if p == "cwd" {
		f := s.tryWrite(".")
		if wd, err := os.Readlink("/proc/self/cwd"); err == nil {
			f.Evidence = wd + ": " + f.Evidence
		}
		return f
	}
	if f, ok := s.covered(p); ok && f.Mechanism == "masked" {
		return f
	}
	f := s.tryWrite(p)
	if f.Errno == "ENOTDIR" { // a bound file
		f = fsOpenWrite(s, p)
	}
	return f
}

// taskDirs are where a task works: by role, so that reports from different
// working directories can be compared.
func taskDirs(*site) []string {
	dirs := []string{"cwd", "/tmp"}
	if d := os.Getenv("TMPDIR"); filepath.IsAbs(d) && path.Clean(d) != "/tmp" {
		dirs = append(dirs, path.Clean(d))
	}
	return dirs
}

func fsSuid(*site, string) Finding {
	n, files, nosuid := 0, 0, 0
	for _, dir := range dedupe(filepath.SplitList(os.Getenv("PATH"))) {
		fd, err := openDir(dir)
		if err != nil {
			continue
		}
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) == nil && fs.Flags&unix.ST_NOSUID != 0 {
			nosuid++
		}
		for files < 8000 {
			names, err := someNames(fd)
			if err != nil || len(names) == 0 {
				break
			}
			for _, e := range names {
				files++
				var st unix.Stat_t
				if unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) == nil &&
					st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && st.Mode&0o111 != 0 {
					n++
				}
			}
		}
		unix.Close(fd)
	}
	return info("%d setuid or setgid among %d files in PATH, %d folders of it nosuid", n, files, nosuid)
}

// lustreFIDs stands for .lustre/fid of every Lustre mount.
const lustreFIDs = "*/.lustre/fid"

func fsLustre(s *site, target string) Finding {
	if target != lustreFIDs {
		return fsControl(s, target)
	}
	ms, err := s.mounts()
	if err != nil {
		return Finding{Outcome: Error, Evidence: err.Error()}
	}
	f := Finding{Outcome: Absent, Evidence: "no Lustre is mounted"}
	for _, m := range ms {
		if m.FS != "lustre" {
			continue
		}
		g := fsControl(s, path.Join(m.Point, ".lustre/fid"))
		g.Evidence = m.Point + ": " + g.Evidence
		if g.Outcome == Reachable {
			return g
		}
		if f.Outcome == Absent || g.Outcome == Error {
			f = g
		}
	}
	return f
}

// fsControl opens a device, folder or secret, whichever is there.
func fsControl(s *site, p string) Finding {
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
	}
	flags := unix.O_RDONLY
	if st.Mode&unix.S_IFMT == unix.S_IFCHR {
		flags = unix.O_RDWR
	}
	return s.openNothing(p, flags, uint32(st.Mode))
}

func fsOpenWrite(s *site, p string) Finding { return s.openNothing(p, unix.O_WRONLY, modeOf(p)) }

func fsHandle(s *site, _ string) Finding {
	root, err := openDir("/")
	if err != nil {
		return s.pathFinding("/", unix.R_OK, "open", errnoOf(err))
	}
	defer unix.Close(root)
	fd, err := unix.OpenByHandleAt(root, unix.NewFileHandle(0xfe, make([]byte, 8)), unix.O_PATH)
	if err == nil {
		unix.Close(fd)
	}
	e := errnoOf(err)
	f := Finding{Errno: errnoName(e), Syscall: "open_by_handle_at", Evidence: sysErr("open_by_handle_at(no such handle)", e)}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, true)
	return f
}

func fsCVMFS(s *site, _ string) Finding {
	ms, _ := s.mounts()
	n := 0
	for _, m := range ms {
		if m.Point == "/cvmfs" || strings.HasPrefix(m.Point, "/cvmfs/") {
			n++
		}
	}
	return info("%d mounts at or below /cvmfs", n)
}

func cgroupFiles(s *site) []string {
	var out []string
	for _, dir := range s.cgroupDirs() {
		for _, f := range []string{"cgroup.procs", "memory.max", "memory.limit_in_bytes", "cgroup.kill"} {
			if p := path.Join(dir, f); modeOf(p) != 0 {
				out = append(out, p)
			}
		}
	}
	return out
}
