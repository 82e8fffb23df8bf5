package sandbox

// #include "userns.h"
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/policy"
	"fence/pkg/seccomp"
)

// Below is a fence to be made below this one: its processes can be signalled
// and looked at from here, and not the other way round, as Landlock's domains
// are nested (landlock(7)). Behind a Landlock layer nobody can mount, and none
// is entered from outside. So it takes two processes: a maker in our
// namespaces, before our layer, which makes namespaces and mounts and hands
// them over; and a joiner behind our layer, which enters them and goes on to
// the command. The maker stays, as the first process of the PID namespace: all
// ends with it. Both belong to nobody: they come to the next subreaper.
type Below struct {
	Argv  []string `json:"argv"`  // of its launch: fence [flags] -- COMMAND
	Files []int    `json:"files"` // its descriptors 0, 1, 2, ... here; the last is told the maker's number
}

const (
	makerName  = "fence:make:"
	joinerName = "fence:join:"
)

// handover is what a joiner is told. The mounts are there, and the rules are in
// a Landlock ruleset: it looks at nothing.
type handover struct {
	Policy  policy.Policy
	Filter  seccomp.Spec
	Stdio   []Descriptor
	Hidden  []Hidden
	Env     []string
	Workdir string
	OwnNet  bool // it is in a network namespace
	Flags   int  // of landlock_restrict_self(2)
	Status  []byte
}

// lower is a Below whose maker is done: descriptors of its namespaces (nsFiles,
// network only if it has one of its own), of its ruleset, of its handover, and
// of the folder of its terminals.
type lower struct {
	Below
	fds []int
}

// joined is what a joiner has of its maker.
type joined struct {
	namespaces     []int
	ruleset, flags int
}

var nsFiles = []string{"user", "mnt", "ipc", "pid", "net"}

// makeBelow runs the makers. One that fails says so on its own stderr, and the
// command comes up without it.
func makeBelow(rs Ruleset, proc int) []lower {
	var all []lower
	for _, b := range rs.Below {
		fds, err := b.make(rs, proc)
		if err != nil {
			b.say(err)
			continue
		}
		all = append(all, lower{b, fds})
	}
	return all
}

func (b Below) say(err error) {
	_, _ = unix.Write(b.Files[2], []byte("fence: "+err.Error()+"\n"))
}

func (b Below) make(rs Ruleset, proc int) (fds []int, err error) {
	if rs.Form != Namespace {
		return nil, errors.New("the one above has no namespaces of its own")
	}
	if proc < 0 {
		return nil, errors.New("there is no /proc to map its user in")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	shared := 0
	if rs.ownLoopback() {
		shared = 1
	}
	n := len(b.Files)
	wait, err := b.start(fmt.Sprintf("%s%d:%d:%d:%d:%d", makerName, n, shared, n+1, n-1, caller()), pair[1], proc)
	unix.Close(pair[1])
	if err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4*(len(nsFiles)+3)))
	n, oobn, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err == nil && n == 1 {
		var messages []unix.SocketControlMessage
		if messages, err = unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) == 1 {
			fds, err = unix.ParseUnixRights(&messages[0])
		}
	}
	if ended := wait(); err == nil {
		err = ended
	}
	if err == nil && len(fds) != len(nsFiles)+2 && len(fds) != len(nsFiles)+3 {
		err = fmt.Errorf("its maker handed over %d descriptors", len(fds))
	}
	return fds, err
}

// writableProc is /proc as it is before ours is made read-only, -1 if it is
// not needed or cannot be had. A user namespace below maps its ids there.
func writableProc(rs Ruleset) int {
	if len(rs.Below) == 0 || rs.Form != Namespace {
		return -1
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1
	}
	return fd
}

// start runs this program again, on the launch of b and with more descriptors
// behind its own.
func (b Below) start(name string, more ...int) (wait func() error, err error) {
	var files []uintptr
	for _, fd := range append(b.Files[:len(b.Files):len(b.Files)], more...) {
		files = append(files, uintptr(fd))
	}
	argv := append([]string{name}, b.Argv[1:]...)
	pid, err := syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return nil, os.NewSyscallError("fork", err)
	}
	return func() error {
		var ws unix.WaitStatus
		for {
			if _, err := unix.Wait4(pid, &ws, 0, nil); err == nil {
				break
			} else if err != unix.EINTR {
				return os.NewSyscallError("wait4", err)
			}
		}
		if !ws.Exited() || ws.ExitStatus() != 0 {
			return fmt.Errorf("it ended with %#x", int(ws))
		}
		return nil
	}, nil
}

// grantTerminals lets a fence below use its terminals: a rule of ours must
// allow what one of its own does.
func (l lower) grantTerminals(ruleset int, handled uint64) error {
	rights := (rightsTTY | ll.AccessFSReadDir) & handled
	return ll.LandlockAddPathBeneathRule(ruleset, &ll.PathBeneathAttr{AllowedAccess: rights, ParentFd: l.fds[len(l.fds)-1]}, 0)
}

// join starts the joiner, behind our Landlock layer. What becomes of it is
// told by its status line, or its stderr.
func (l lower) join() {
	fds := l.fds[:len(l.fds)-1] // not the terminals
	wait, err := l.start(fmt.Sprintf("%s%d:%d", joinerName, len(l.Files), len(fds)-2), fds...)
	if err == nil {
		err = wait()
	}
	if err != nil {
		l.say(err)
	}
}

// Maker reports whether this process is one; give is for HandOver, and shared
// says that the loopback of the fence above is to be its own.
func Maker(arg0 string) (give int, shared, ok bool) {
	rest, ok := strings.CutPrefix(arg0, makerName)
	if !ok {
		return 0, false, false
	}
	var n int
	_, err := fmt.Sscanf(rest, "%d:%d", &give, &n)
	return give, n == 1, err == nil
}

// HandOver makes the mounts and hands everything over. status is for the
// joiner to say. Then Hold.
func HandOver(rs Ruleset, status []byte, give int) error {
	if rs.Form != Namespace || rs.Supervised() || !rs.Node.Namespaces.OwnPID {
		return errors.New("it has no namespaces of its own")
	}
	if err := rs.Node.Namespaces.IPC; err != nil {
		return fmt.Errorf("it has no IPC namespace of its own: %w", err)
	}
	err := applyMounts(rs.Mounts)
	if err == nil {
		err = mounted(rs.Mounts)
	}
	if err != nil {
		return err
	}
	ruleset, flags, err := makeRuleset(rs)
	if err != nil {
		return err
	}
	h := handover{rs.Policy, rs.Filter, rs.Node.Stdio, rs.Hidden, rs.Env, rs.Workdir, rs.Node.Namespaces.Net == nil, flags, status}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	memory, err := unix.MemfdCreate("fence", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(memory), "handover")
	if _, err := f.Write(data); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	names := nsFiles
	if rs.Node.Namespaces.Net != nil || rs.ownLoopback() {
		names = nsFiles[:4] // that of the one above, or the host's
	}
	var fds []int
	for _, name := range names {
		fd, err := unix.Open("/proc/thread-self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	pts, err := unix.Open("/dev/pts", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(give, []byte{0}, unix.UnixRights(append(fds, ruleset, memory, pts)...), nil, 0))
}

// Hold is what a maker does to its end: it is there, and waits for those that
// come to it.
func Hold(give int) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_PDEATHSIG)", err)
	}
	signal.Ignore(unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGTERM) // of a child that nobody waits for nothing is left
	// What it was given; the runtime has some of its own.
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for fd := 0; fd <= give+1; fd++ {
		if err := unix.Dup3(null, fd, unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	for {
		_ = unix.Pause()
	}
}

// Leader reports whether this process is the leader of a domain that has a PID
// namespace of its own, as argv[0] says to userns.c.
func Leader(arg0 string) bool { return strings.HasPrefix(arg0, "fence:lead:") }

// Joiner is the ruleset of a process that is one, and the status line that it
// has to say; nil if this process is none.
func Joiner(arg0 string) (*Ruleset, []byte, error) {
	rest, ok := strings.CutPrefix(arg0, joinerName)
	if !ok {
		return nil, nil, nil
	}
	runtime.LockOSThread()
	var first, n int
	if _, err := fmt.Sscanf(rest, "%d:%d", &first, &n); err != nil {
		return nil, nil, fmt.Errorf("%q is no name that fence starts itself by", arg0)
	}
	if C.fence_userns.joined == 0 {
		return nil, nil, fmt.Errorf("entering the namespaces made for it: %w", syscall.Errno(C.fence_userns.map_err))
	}
	j := &joined{ruleset: first + n}
	for i := range n {
		j.namespaces = append(j.namespaces, first+i)
	}
	f := os.NewFile(uintptr(first+n+1), "handover")
	defer f.Close()
	var h handover
	if err := json.NewDecoder(f).Decode(&h); err != nil {
		return nil, nil, fmt.Errorf("reading what was handed over: %w", err)
	}
	j.flags = h.Flags
	rs := &Ruleset{
		Policy: h.Policy, Form: Namespace, Filter: h.Filter, Hidden: h.Hidden, Env: h.Env, Workdir: h.Workdir, joined: j,
		Node: Node{Stdio: h.Stdio, Workdir: h.Workdir},
	}
	if !h.OwnNet {
		rs.Node.Namespaces.Net = ErrNotTried
	}
	return rs, h.Status, nil
}

// entered makes sure that these are the namespaces that were made.
func (j *joined) entered() error {
	for i, fd := range j.namespaces {
		var want, have unix.Stat_t
		if err := unix.Fstat(fd, &want); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		file := "/proc/thread-self/ns/" + nsFiles[i]
		if err := unix.Stat(file, &have); err != nil {
			return &os.PathError{Op: "stat", Path: file, Err: err}
		}
		if want.Ino != have.Ino || want.Dev != have.Dev {
			return fmt.Errorf("the %s namespace is not the one that was made", nsFiles[i])
		}
	}
	return nil
}
