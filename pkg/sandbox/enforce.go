package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/policy"
	"fence/pkg/seccomp"
)

// Enforce applies rs to the calling thread, which Enter locked. After it the
// thread can only be replaced by the command: Exec. Any error means that the
// command must not run.
func Enforce(rs Ruleset) error {
	// Compiled first: it is the one step that may need memory and a library.
	filter, err := seccomp.Program(rs.Filter)
	if err != nil {
		return fmt.Errorf("preparing the system call filter: %w", err)
	}

	if rs.Supervised() && rs.HandOver == nil {
		return errors.New("BUG: there is no supervisor")
	}

	// An inherited descriptor is checked by nobody: a folder or a socket of
	// the caller's would beat every rule below.
	if err := closeDescriptors(rs.Node.Stdio); err != nil {
		return err
	}

	if err := leaveTerminal(rs.Node.Stdio); err != nil {
		return err
	}

	proc := writableProc(rs)
	if rs.joined == nil { // else its maker has done it
		if err := furnish(rs); err != nil {
			return err
		}
	}
	// Also in the bare form: by its absolute path, so that a folder that is
	// now covered is not the current one any more (Landlock walks up under a
	// mask). "/" first: if the second fails, nothing is left open.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := os.Chdir(rs.Workdir); err != nil {
		return &os.PathError{Op: "changing to the working folder", Path: rs.Workdir, Err: errors.Unwrap(err)}
	}
	lowers := makeBelow(rs, proc) // in that folder, too

	keep, err := capabilitySet(rs.Policy.Capabilities)
	if err != nil {
		return err
	}
	cut, err := dropCapabilities(keep)
	if err != nil {
		return err
	}

	// Asked for by Landlock and seccomp of an ordinary user, and the end of
	// set-user-ID programs.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
	}
	if err := settled(rs, keep, cut); err != nil {
		return err
	}
	if err := restrict(rs, lowers); err != nil {
		return err
	}
	for _, l := range lowers {
		l.join()
	}
	var session Session
	if rs.Supervised() {
		session, err = loadSupervised(filter, rs.HandOver)
	} else {
		err = seccomp.Load(filter)
	}
	if err != nil {
		return fmt.Errorf("loading the system call filter: %w", err)
	}
	// So late because a limit is ours too: with no more processes to be had,
	// Go's runtime ends where it wants another thread.
	if err := setLimits(rs.Policy.Limits); err != nil {
		return err
	}
	return selfTest(rs, keep, session)
}

// furnish gives the namespaces what belongs into them.
func furnish(rs Ruleset) error {
	if rs.ownLoopback() {
		if err := raiseLoopback(); err != nil {
			return err
		}
		if rs.Policy.Network.Mode == policy.NetworkProxy {
			if err := startRelay(rs.Policy.Network.Socket); err != nil {
				return err
			}
		}
	}
	if rs.Form != Namespace {
		return nil
	}
	if rs.Node.Container == "" { // into a container, files come from mounts of another root
		for _, d := range rs.Node.Stdio {
			if err := protect(d); err != nil {
				return err
			}
		}
	}
	return applyMounts(rs.Mounts)
}

// protect opens a file again that was given for reading, on a mount of its own
// that is read-only: its descriptor is under no mask, so that the rule that
// lets "/" be changed would let it be written through /proc/self/fd, and its
// mode be changed. Its position is no longer shared with the caller.
func protect(d Descriptor) error {
	var given, found unix.Stat_t
	if err := unix.Fstat(d.FD, &given); err != nil || !d.Readable || d.Writable || given.Mode&unix.S_IFMT != unix.S_IFREG || given.Nlink == 0 || !canWrite(d.Path) {
		return err
	}
	fail := func(err error) error {
		return fmt.Errorf("descriptor %d: opening %s again, read-only: %w", d.FD, d.Path, err)
	}
	at, err := openSame(d.Path)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(at)
	if err := unix.Fstat(at, &found); err != nil {
		return fail(err)
	}
	if found.Dev != given.Dev || found.Ino != given.Ino {
		return fail(errors.New("another file is there now"))
	}
	mount, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(mount)
	if err := unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fail(err)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", mount), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	position, err := unix.Seek(d.FD, 0, io.SeekCurrent)
	if err == nil {
		_, err = unix.Seek(fd, position, io.SeekStart)
	}
	if err == nil {
		err = unix.Dup3(fd, d.FD, 0)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

func loadSupervised(filter []byte, handOver func(int) (Session, error)) (Session, error) {
	listener, err := seccomp.LoadListener(filter)
	if err != nil {
		return Session{}, err
	}
	defer unix.Close(listener) // who has it answers
	return handOver(listener)
}

// restrict puts one Landlock layer on this thread: two would each have to
// grant what moves between folders.
func restrict(rs Ruleset, lowers []lower) error {
	if j := rs.joined; j != nil {
		return restrictSelf(j.ruleset, j.flags)
	}
	fd, flags, err := makeRuleset(rs)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, l := range lowers {
		if err := l.grantTerminals(fd, rs.Handled.FS); err != nil {
			return fmt.Errorf("making a Landlock rule for the terminals of a fence below: %w", err)
		}
	}
	return restrictSelf(fd, flags)
}

func restrictSelf(ruleset, flags int) error {
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), uintptr(flags), 0); errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

// makeRuleset is a Landlock ruleset with the rules of rs, and the flags to put
// it in force with.
func makeRuleset(rs Ruleset) (fd, flags int, err error) {
	config := landlock.Config{
		HandledAccessFS:  landlock.AccessFSSet(rs.Handled.FS),
		HandledAccessNet: landlock.AccessNetSet(rs.Handled.Net),
		Scoped:           landlock.ScopedSet(rs.Handled.Scoped),
	}
	fd, how, err := config.NewRulesetFD()
	if err != nil {
		return -1, 0, err
	}
	// The library returns no descriptor when there is nothing to enforce.
	if fd < 0 {
		return -1, 0, errors.New("BUG: Landlock has nothing to enforce")
	}
	for _, p := range rs.Paths {
		if err := grant(fd, p); err != nil {
			unix.Close(fd)
			return -1, 0, &os.PathError{Op: "making a Landlock rule for", Path: p.Path, Err: err}
		}
	}
	return fd, int(how), nil
}

// grant adds one rule. What was found by listing a folder may be gone by now,
// as files in /tmp are: that grants nothing. The library's own rules follow
// links.
func grant(ruleset int, p PathRule) error {
	fd, err := openSame(p.Path)
	if p.Open {
		fd, err = unix.Open(p.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = ll.LandlockAddPathBeneathRule(ruleset, &ll.PathBeneathAttr{AllowedAccess: p.Rights, ParentFd: fd}, 0)
		unix.Close(fd)
	}
	if p.Open && err == unix.EBADFD {
		return nil // a file in memory, which Landlock does not ask about
	}
	if p.Listed && (err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP || err == unix.EINVAL) {
		return nil // EINVAL: a file where a folder was
	}
	return err
}

// openSame names what Resolve saw at a path. A link in it is new: another
// command, still running, has put it there.
func openSame(p string) (int, error) {
	return unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
}

func closeDescriptors(keep []Descriptor) error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	for _, d := range keep {
		if !d.KeptByRequest {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(d.FD), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keeping descriptor %d: %w", d.FD, err)
		}
	}
	return nil
}

// leaveTerminal gives up a controlling terminal that no standard descriptor
// is: through /dev/tty the command could read what is typed there. A new
// session would do it too, and take the command out of its process group.
func leaveTerminal(stdio []Descriptor) error {
	if slices.ContainsFunc(stdio, func(d Descriptor) bool { return d.Controlling }) {
		return nil
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENXIO || err == unix.ENOENT {
		return nil // none, or no way to it
	}
	if err != nil {
		return &os.PathError{Op: "looking for a controlling terminal", Path: "/dev/tty", Err: err}
	}
	defer unix.Close(fd)
	// A session's leader takes the terminal from the whole session, which is
	// told so by SIGHUP: the leader too.
	signal.Ignore(unix.SIGHUP)
	defer signal.Reset(unix.SIGHUP)
	if err := unix.IoctlSetInt(fd, unix.TIOCNOTTY, 0); err != nil {
		return os.NewSyscallError("ioctl(TIOCNOTTY)", err)
	}
	if again, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != unix.ENXIO {
		unix.Close(again)
		return fmt.Errorf("the controlling terminal is still there (%v)", err)
	}
	return nil
}

var limits = map[string]int{
	"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
	"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
	"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE,
	"nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO, "rttime": unix.RLIMIT_RTTIME,
	"sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
}

// noCore is the limit of a core file that gives none: with 0 a core still goes
// to a program that the node has for it, core(5), outside of the fence.
const noCore = 1

// setLimits lowers; what the caller already has lower stays.
func setLimits(list []policy.Limit) error {
	for _, l := range list {
		which, ok := limits[l.Name]
		if !ok {
			return fmt.Errorf("BUG: limit %q", l.Name)
		}
		most := l.Value
		if l.Name == "core" {
			most = max(most, noCore)
		}
		var was, is unix.Rlimit
		if err := unix.Getrlimit(which, &was); err != nil {
			return fmt.Errorf("reading the limit %s: %w", l.Name, err)
		}
		v := min(most, was.Max)
		if err := unix.Setrlimit(which, &unix.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("setting the limit %s to %d: %w", l.Name, v, err)
		}
		if err := unix.Getrlimit(which, &is); err != nil {
			return fmt.Errorf("reading the limit %s: %w", l.Name, err)
		}
		if is.Max > most || is.Cur > is.Max {
			return fmt.Errorf("self-test: the limit %s is %d, asked for %d", l.Name, is.Max, most)
		}
	}
	return nil
}

// Exec replaces this process by the command. It looks the command up in the
// PATH that the command will have, inside the fence. It returns only on
// error: a *NotFoundError or the error of execve(2).
func Exec(rs Ruleset, argv []string) error {
	candidates, search := []string{argv[0]}, !strings.Contains(argv[0], "/")
	if search {
		candidates = nil
		for _, dir := range strings.Split(cmp.Or(env(rs.Env, "PATH"), defaultPath), ":") {
			if argv[0] == "" {
				break // no name of anything
			}
			candidates = append(candidates, path.Join(dir, argv[0]))
		}
	}
	if err := giveSignalsBack(); err != nil {
		return err
	}
	// As execvp(3): a file that may not be executed is remembered, the search
	// goes on.
	var denied error
	for _, c := range candidates {
		err := unix.Exec(c, argv, rs.Env)
		switch err {
		case unix.ENOENT, unix.ENOTDIR, nil:
		case unix.EACCES:
			// Of a search only a file counts, as bash has it: not a folder, nor
			// what may lie in one that cannot be entered.
			var st unix.Stat_t
			if search && (unix.Stat(c, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG) {
				continue
			}
			denied = &os.PathError{Op: "executing", Path: c, Err: err}
		default:
			return &os.PathError{Op: "executing", Path: c, Err: err}
		}
	}
	if denied != nil {
		return denied
	}
	return &NotFoundError{Command: argv[0], Path: env(rs.Env, "PATH")}
}

// defaultPath is for a policy that keeps no PATH, as a shell has one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// NotFoundError is a command that is not there, seen from inside the fence.
type NotFoundError struct{ Command, Path string }

func (e *NotFoundError) Error() string {
	return cmp.Or(e.Command, `""`) + ": no such command inside the fence"
}
