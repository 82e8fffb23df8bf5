package probe

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ipcChecks are the other ways to another process in group C.
func ipcChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Worker = "proc", classIPC
		return c
	}
	return []Check{
		each(Check{
			ID: "ipc.sysv", Severity: "medium", Attack: []string{"T1559"}, try: ipcSysV,
			What: "counts System V shared memory, semaphores and queues in /proc/sysvipc, and asks whether the ipc namespace is the node's",
			Why:  "other jobs of this user share memory there; Landlock does not cover it",
		}),
		each(Check{
			ID: "ipc.mqueue", Severity: "low", Attack: []string{"T1559"}, try: ipcMqueue,
			What: "opens a POSIX message queue that does not exist", Why: "queues of other sessions in the same ipc namespace",
		}),
		each(Check{
			ID: "ipc.abstract", Severity: "high", Attack: []string{"T1559"}, targets: abstractTargets, try: ipcAbstract,
			none: nothing(Absent, "no abstract Unix socket is listed in /proc/net/unix"),
			What: "connects to each listening abstract Unix socket, up to 64, and hangs up",
			Why:  "X11, D-Bus and container daemons answer there, whatever the mounts",
		}),
		each(Check{
			ID: "ipc.unix", Severity: "high", Attack: []string{"T1559", "T1611"}, targets: unixTargets, try: ipcUnix,
			What: "connects to a Unix socket by path and hangs up, sending nothing",
			Why:  "one reachable daemon, agent or tmux server runs commands outside the fence; Landlock covers these only from ABI 9",
		}),
		each(Check{
			ID: "ipc.walk", Severity: "low", try: ipcWalk,
			What: "walks /run, /tmp, /var/tmp and the Slurm spool for sockets: 5,000 entries, depth 4, no network mounts",
			Why:  "says whether ipc.unix knew of every socket there",
		}),
	}
}

func ipcSysV(s *site, _ string) Finding {
	n := 0
	for _, f := range []string{"shm", "sem", "msg"} {
		data, err := os.ReadFile("/proc/sysvipc/" + f)
		if err != nil {
			if err, _ := err.(*os.PathError); err != nil && err.Err == unix.ENOENT {
				return Finding{Outcome: Absent, Errno: "ENOENT", Evidence: "no /proc/sysvipc"}
			}
			return s.pathFinding("/proc/sysvipc/"+f, unix.R_OK, "open", errnoOf(err))
		}
		n += max(0, strings.Count(string(data), "\n")-1)
	}
	// shmget of a key that nobody has: the filter's word on the matter.
	_, _, e := unix.Syscall(unix.SYS_SHMGET, uintptr(uint32(0x70726f62)), 0, 0)
	f := Finding{Errno: errnoName(e), Syscall: "shmget"}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	if f.Outcome == Reachable && s.Controls.Namespaces["ipc"] != initialNS["ipc"] && n == 0 {
		f.Outcome, f.Mechanism = Absent, "ipcns"
	}
	f.Evidence = fmt.Sprintf("%s; %d objects; ipc namespace %d", sysErr("shmget(no such key)", e), n, s.Controls.Namespaces["ipc"])
	return f
}

func ipcMqueue(s *site, _ string) Finding {
	name, _ := unix.BytePtrFromString("probe-no-such-queue")
	_, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDONLY, 0, 0, 0, 0)
	f := Finding{Errno: errnoName(e), Syscall: "mq_open"}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	if f.Outcome == Reachable && s.Controls.Namespaces["ipc"] != initialNS["ipc"] {
		f.Outcome, f.Mechanism = Absent, "ipcns"
	}
	f.Evidence = fmt.Sprintf("%s; ipc namespace %d", sysErr("mq_open(no such queue)", e), s.Controls.Namespaces["ipc"])
	return f
}

// abstractList has the Unix sockets of this network namespace.
const abstractList = "/proc/self/net/unix"

// maxAbstract bounds the abstract sockets that are tried.
const maxAbstract = 64

func abstractTargets(s *site) []string {
	var out []string
	if s.Canary != nil && s.Canary.Abstract != "" {
		out = append(out, "canary")
	}
	data, err := os.ReadFile(abstractList)
	if err != nil {
		return append(out, abstractList) // which says that there may be more
	}
	names := abstractNames(string(data))
	if s.Canary != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return n == "@"+s.Canary.Abstract })
	}
	return append(out, names[:min(len(names), maxAbstract)]...)
}

// abstractNames lists the abstract sockets in /proc/net/unix that wait for
// somebody: listening ones, and datagram ones.
func abstractNames(text string) []string {
	var out []string
	for _, l := range strings.Split(text, "\n") {
		f := strings.Fields(l)
		if len(f) < 8 || !strings.HasPrefix(f[7], "@") {
			continue
		}
		flags, _ := strconv.ParseUint(f[3], 16, 32)
		if flags&0x10000 != 0 || f[4] == "0002" { // __SO_ACCEPTCON, SOCK_DGRAM
			out = append(out, strings.Join(f[7:], " "))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ipcAbstract(s *site, target string) Finding {
	name := target
	if target == abstractList { // a name begins with @
		return Finding{Outcome: Error, Evidence: "the kernel's list of them cannot be read"}
	}
	if target == "canary" {
		name = "@" + s.Canary.Abstract
	}
	return s.unixFinding(name, true)
}

// connectNamed connects to a path, or to an abstract name as the kernel prints
// it: with @ for each NUL, and many programs fill the whole address with them.
func connectNamed(fd int, name string) syscall.Errno {
	if !strings.HasPrefix(name, "@") {
		return errnoOf(unix.Connect(fd, &unix.SockaddrUnix{Name: name}))
	}
	e := unix.EINVAL
	for _, as := range []string{"\x00" + name[1:], strings.ReplaceAll(name, "@", "\x00")} {
		sa := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
		if len(as) > len(sa.Path) {
			return e
		}
		for i := range len(as) {
			sa.Path[i] = int8(as[i])
		}
		_, _, e = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(2+len(as)))
		if e != unix.ECONNREFUSED {
			break
		}
	}
	return e
}

// connectUnix connects to a Unix socket of whichever type it is, without
// waiting, and hangs up.
func connectUnix(name string) (call string, e syscall.Errno) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return "socket", errnoOf(err)
		}
		e = connectNamed(fd, name)
		unix.Close(fd)
		if e != unix.EPROTOTYPE {
			return "connect", e
		}
	}
	return "connect", e
}

// unixFinding connects to a path, or to an abstract name that starts with @.
func (s *site) unixFinding(name string, abstract bool) Finding {
	addr := name
	if !abstract && len(name) > 107 {
		// An address holds 107 bytes; the folder can be named by descriptor.
		dir, err := unix.Open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return s.pathFinding(path.Dir(name), unix.X_OK, "open", errnoOf(err))
		}
		defer unix.Close(dir)
		addr = fmt.Sprintf("/proc/self/fd/%d/%s", dir, path.Base(name))
		if len(addr) > 107 {
			return Finding{Outcome: Error, Evidence: "the name is too long for an address"}
		}
	}
	call, e := connectUnix(addr)
	f := Finding{Errno: errnoName(e), Syscall: call, Evidence: sysErr(call, e)}
	dac := e != unix.EACCES || dacAllows(name, unix.W_OK)
	if call == "socket" {
		f.Outcome, f.Mechanism = judgeSocket(s.facts, e, true)
		return f
	}
	f.Outcome, f.Mechanism = judgeUnix(s.facts, e, abstract, dac)
	switch {
	case e == unix.EAGAIN:
		f.Evidence += ": the backlog is full, the door is open"
	case e == unix.ECONNREFUSED && !abstract && s.isNull(name):
		f.Mechanism, f.Evidence = "masked", "/dev/null lies over it"
	case e == unix.ECONNREFUSED:
		f.Evidence += ": nobody listens"
	case e == unix.ENOENT && !abstract:
		f.Mechanism = "not_mounted"
	}
	return f
}

// unixPaths are sockets that lead out of a fence, with globs.
var unixPaths = []string{
	"/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2",
	"/run/slurm/sack.socket", "/run/slurm-*/sack.socket", "/run/slurmctld/sack.socket", "/run/slurmdbd/sack.socket",
	"/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket",
	"/run/systemd/private", "/run/systemd/notify", "/run/systemd/journal/stdout", "/run/systemd/journal/socket", "/run/systemd/journal/dev-log",
	"/run/systemd/resolve/io.systemd.Resolve", "/run/systemd/userdb/*", "/run/systemd/io.systemd.ManagedOOM",
	"/var/lib/sss/pipes/*", "/run/nscd/socket", "/var/run/nscd/socket", "/run/nslcd/socket",
	"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock", "/run/podman/podman.sock",
	"/tmp/ssh-*/agent.*", "/tmp/.X11-unix/X*", "/tmp/vscode-*", "/tmp/nvidia-mps/control", "/run/screen/*/*",
	"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/run/.heim_org.h5l.kcm-socket", "/var/run/.heim_org.h5l.kcm-socket",
	"/var/lib/gssproxy/default.sock", "/run/gssproxy.sock", "/dev/log", "/run/rpcbind.sock", "/run/lldpd.socket", "/run/apptheus/gateway.sock",
}

// userSockets are those of this user.
func userSockets(uid int, getenv func(string) string) []string {
	dirs := []string{fmt.Sprintf("/run/user/%d", uid)}
	if d := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		dirs = append(dirs, path.Clean(d))
	}
	var out []string
	for _, d := range dirs {
		for _, n := range []string{"bus", "systemd/private", "systemd/notify", "gnupg/S.gpg-agent*", "podman/podman.sock", "docker.sock", "vscode-ipc-*", "tmux-*/*", "wayland-*", "pipewire-*"} {
			out = append(out, path.Join(d, n))
		}
	}
	out = append(out, fmt.Sprintf("/tmp/tmux-%d/*", uid))
	if p := getenv("SSH_AUTH_SOCK"); filepath.IsAbs(p) {
		out = append(out, path.Clean(p))
	}
	if p, ok := strings.CutPrefix(getenv("DBUS_SESSION_BUS_ADDRESS"), "unix:path="); ok {
		p, _, _ = strings.Cut(p, ",")
		out = append(out, path.Clean(p))
	}
	if p, _, _ := strings.Cut(getenv("TMUX"), ","); filepath.IsAbs(p) {
		out = append(out, path.Clean(p))
	}
	return out
}

// maxSockets bounds the sockets that are tried beside the known ones.
const maxSockets = 200

func unixTargets(s *site) []string {
	var out []string
	if s.Canary != nil && s.Canary.Unix != "" {
		out = append(out, "canary")
	}
	for _, p := range slices.Concat(unixPaths, userSockets(os.Getuid(), os.Getenv)) {
		out = append(out, s.expand(p)...)
	}
	found, _ := s.walkSockets()
	if s.Canary != nil {
		found = slices.DeleteFunc(found, func(p string) bool { return p == s.Canary.Unix })
	}
	return append(out, found[:min(len(found), maxSockets)]...)
}

func ipcUnix(s *site, target string) Finding {
	switch {
	case target == "canary":
		f := s.unixFinding(s.Canary.Unix, false)
		f.Evidence = s.Canary.Unix + ": " + f.Evidence
		return f
	case unmatched(target):
		return s.noMatch(target)
	}
	return s.unixFinding(target, false)
}

// walkRoots are where daemons and people leave their sockets.
func (s *site) walkRoots() []string {
	roots := []string{"/run", "/var/run", "/tmp", "/var/tmp"}
	roots = append(roots, s.matches("/var/spool/slurm*")...)
	if d := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(d) {
		roots = append(roots, path.Clean(d))
	}
	return roots
}

const (
	maxWalk  = 5000
	maxDepth = 4
	walkTime = time.Second
)

// walkSockets looks for sockets, and says why it stopped early, if it did.
func (s *site) walkSockets() (found []string, cut string) {
	ms, err := s.mounts()
	if err != nil {
		return nil, "mountinfo cannot be read"
	}
	seen := map[[2]uint64]bool{}
	left := maxWalk
	stop := time.Now().Add(walkTime)
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		if cut != "" {
			return
		}
		if m, ok := mountAt(ms, dir); !ok || isNetworkFS(m.FS) || slices.Contains(pseudoFS, m.FS) {
			return
		}
		fd, err := openDir(dir)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || seen[[2]uint64{st.Dev, st.Ino}] {
			return
		}
		seen[[2]uint64{st.Dev, st.Ino}] = true
		for {
			names, err := someNames(fd)
			if err != nil || len(names) == 0 {
				return
			}
			for _, e := range names {
				if left--; left < 0 {
					cut = fmt.Sprintf("stopped after %d entries", maxWalk)
					return
				}
				if time.Now().After(stop) {
					cut = fmt.Sprintf("stopped after %v", walkTime)
					return
				}
				p := path.Join(dir, e.name)
				switch e.kind {
				case unix.DT_SOCK:
					found = append(found, p)
				case unix.DT_DIR:
					if depth < maxDepth {
						walk(p, depth+1)
					}
				}
			}
		}
	}
	for _, r := range s.walkRoots() {
		walk(r, 1)
	}
	slices.Sort(found)
	return found, cut
}

func ipcWalk(s *site, _ string) Finding {
	found, cut := s.walkSockets()
	if cut == "" && len(found) > maxSockets {
		cut = fmt.Sprintf("only the first %d were tried", maxSockets)
	}
	if cut != "" {
		return Finding{Outcome: Error, Evidence: fmt.Sprintf("%d sockets found, but %s: there may be more", len(found), cut)}
	}
	return info("%d sockets found, all of them tried", len(found))
}
