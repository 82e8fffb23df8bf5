package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

// place is a folder with shared storage, a home and a task folder, a running
// canary, and an environment that leads to them.
type testPlace struct {
	prog, shared, home, task, canary string
	env                              []string
}

func newPlace(t *testing.T) testPlace {
	t.Helper()
	prog, dir := program(t), publicDir(t)
	p := testPlace{prog: prog, shared: filepath.Join(dir, "shared"), home: filepath.Join(dir, "home"), task: filepath.Join(dir, "task")}
	for _, d := range []string{p.shared, p.home, p.task, filepath.Join(p.home, ".ssh")} {
		mkdir(t, d)
	}
	write(t, filepath.Join(p.shared, "results.csv"), "1,2,3\n", 0o644)
	write(t, filepath.Join(p.home, ".ssh/id_ed25519"), "not a key\n", 0o600)
	p.canary = startCanary(t, prog, dir)
	p.env = []string{"HOME=" + p.home, "HF_TOKEN=0123456789"}
	return p
}

func (p testPlace) options() Options {
	return Options{Shared: []string{p.shared, p.home}, Canary: p.canary}
}

func mkdir(t *testing.T, d string) {
	t.Helper()
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, d)
}

func write(t *testing.T, p, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(p, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	own(t, p)
}

func own(t *testing.T, p string) {
	t.Helper()
	if os.Getuid() == 0 {
		if err := os.Lchown(p, sandboxtest.Nobody, sandboxtest.Nobody); err != nil {
			t.Fatal(err)
		}
	}
}

// tooLong fails for a run that waited for something. On a quiet machine each
// takes a second; the bound leaves room for a busy one.
func tooLong(t *testing.T, took time.Duration) {
	t.Helper()
	t.Logf("it took %v", took)
	if took > 5*time.Second*stretchNow() {
		t.Errorf("it took %v", took)
	}
}

// TestRunAll_FindsWhatIsOpen is the control of the tests below: what they
// find closed is open here.
func TestRunAll_FindsWhatIsOpen(t *testing.T) {
	p := newPlace(t)
	r, took := inside{spec: subjectSpec{Options: p.options()}, env: p.env, dir: p.task}.report(t, p.prog)
	t.Logf("%d findings", len(r.Checks))
	tooLong(t, took)
	want(t, r,
		"ctl.seccomp info", "ctl.landlock.layers info",
		"fs.shared.list["+p.shared+"] reachable", "fs.shared.read["+p.shared+"] reachable",
		"fs.shared.write["+p.shared+"] reachable", "fs.shared.stat["+p.shared+"] reachable", "fs.meta["+p.shared+"] reachable",
		"fs.shared.list["+p.home+"] reachable", "fs.home reachable",
		"fs.task.write[cwd] reachable", "fs.task.write[/tmp] reachable", "work.exec[cwd] reachable",
		"net.tcp.canary[canary:127.0.0.1] reachable", "net.tcp.fastopen[canary:127.0.0.1] reachable|denied", "net.mptcp[canary:127.0.0.1] reachable|absent|denied",
		"net.udp.canary[canary:127.0.0.1] reachable", "net.udp.socket reachable", "net.bind reachable", "net.autobind reachable", "net.loopback.own reachable",
		"ipc.abstract[canary] reachable", "ipc.unix[canary] reachable",
		"proc.signal reachable - - kill", "proc.environ reachable - - open", "proc.root reachable", "proc.mem reachable|denied", "proc.kcmp reachable|denied|absent",
		"proc.prlimit reachable", "proc.priority reachable", "proc.pidfd reachable", "proc.pidfd_getfd reachable|denied", "proc.signal.own reachable", "proc.ptrace.own reachable",
		"cred.env[HF_TOKEN] reachable", "cred.files[~/.ssh/id_ed25519] reachable", "cred.files[/etc/shadow] denied dac EACCES",
		"work.fork reachable", "work.memfd reachable", "sys.ptrace reachable", "sys.memfd.exec reachable",
		"net.tcp.out skipped", "sys.i386 reachable|absent|denied", "sys.x32 reachable|absent", "net.metadata[169.254.169.254:80] skipped",
	)
	noFaults(t, r, "ipc.walk", "slurm.submit", "ssh.lateral")
	if _, err := os.Stat("/proc/self/net/if_inet6"); err == nil {
		want(t, r, "net.tcp.canary[canary:::1] reachable", "net.udp.canary[canary:::1] reachable")
	}
	if r.Controls.Seccomp.Mode != 0 || r.Controls.Landlock.Layers > 0 || r.Controls.Seccomp.Listener {
		t.Errorf("controls %+v in a process without any", r.Controls)
	}
	if r.Subject.UID == 0 || r.Subject.BootID == "" || r.Controls.Namespaces["net"] == 0 {
		t.Errorf("subject %+v", r.Subject)
	}
	for _, f := range r.Checks {
		if strings.Contains(f.Evidence, "0123456789") {
			t.Errorf("%s tells a secret", f.Key())
		}
	}
	if !slices.ContainsFunc(Reaches(r), func(s string) bool { return strings.Contains(s, "can write to shared storage") }) {
		t.Errorf("Reaches: %q", Reaches(r))
	}
	// Nothing was left behind.
	for _, d := range []string{p.shared, p.task, p.home} {
		entries, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "results.csv" && e.Name() != ".ssh" {
				t.Errorf("%s was left in %s", e.Name(), d)
			}
		}
	}
}

func needLandlock(t *testing.T, abi int) {
	t.Helper()
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockVersion)
	if e != 0 || int(n) < abi {
		sandboxtest.Skip(t, "this kernel has Landlock ABI %d (%v), the test needs %d", n, e, abi)
	}
}

func TestRunAll_TellsWhatLandlockStops(t *testing.T) {
	needLandlock(t, 6)
	p := newPlace(t)
	r, _ := inside{
		spec: subjectSpec{Landlock: []string{p.task, "/dev"}, Hide: []string{p.shared, p.home}, Options: p.options()},
		env:  append(p.env, "TMPDIR="+p.task), dir: p.task,
	}.report(t, p.prog)
	want(t, r,
		"fs.shared.list["+p.shared+"] denied landlock_fs EACCES open", "fs.shared.read["+p.shared+"] denied landlock_fs EACCES",
		"fs.shared.write["+p.shared+"] denied landlock_fs EACCES",
		"fs.shared.stat["+p.shared+"] reachable", // Landlock hides no names
		"fs.meta["+p.shared+"] reachable",
		"fs.home denied landlock_fs", "cred.files[~/.ssh/id_ed25519] denied landlock_fs EACCES", "cred.files[~/.ssh/id_*] denied landlock_fs EACCES",
		"fs.task.write[cwd] reachable", "work.exec[cwd] reachable", "fs.task.write[/tmp] denied landlock_fs",
		"net.tcp.canary[canary:127.0.0.1] denied landlock_net EACCES connect", "net.bind denied landlock_net EACCES bind", "net.loopback.own denied landlock_net",
		"net.udp.canary[canary:127.0.0.1] reachable|denied", // denied from ABI 10 on
		"ipc.abstract[canary] denied landlock_scope EPERM", "ipc.unix[canary] reachable|denied",
		"proc.signal denied landlock_scope EPERM kill", "proc.environ denied landlock_scope EACCES", "proc.mem denied", "proc.root denied", "proc.prlimit reachable",
		"proc.signal.own reachable", "ctl.landlock.layers info",
	)
	noFaults(t, r, "ipc.walk", "slurm.submit", "ssh.lateral")
	if r.Controls.Landlock.Layers != 1 || !r.Controls.NoNewPrivs || r.Controls.Seccomp.Mode != 0 {
		t.Errorf("controls %+v", r.Controls)
	}
	// Where the control reached MPTCP and fast open, this kernel's Landlock
	// does not see them; the finding must say so and not "denied".
	if abi := r.Controls.Landlock.ABI; abi == 7 {
		want(t, r, "net.mptcp[canary:127.0.0.1] reachable|absent", "net.tcp.fastopen[canary:127.0.0.1] reachable|denied", "net.autobind reachable")
	}
}

func TestRunAll_TellsWhatAFilterStops(t *testing.T) {
	p := newPlace(t)
	r, took := inside{spec: subjectSpec{Filter: true, Options: p.options()}, env: p.env, dir: p.task}.report(t, p.prog)
	want(t, r,
		"net.tcp.canary[canary:127.0.0.1] denied seccomp_errno EAFNOSUPPORT socket", "net.tcp.fastopen[canary:127.0.0.1] denied seccomp_errno EAFNOSUPPORT socket",
		"net.udp.canary[canary:127.0.0.1] denied seccomp_errno EAFNOSUPPORT socket", "net.udp.socket denied seccomp_errno EAFNOSUPPORT socket",
		"net.tcp.out denied seccomp_errno EAFNOSUPPORT socket", "net.metadata[169.254.169.254:80] denied seccomp_errno EAFNOSUPPORT socket",
		"net.ifaces info - EAFNOSUPPORT", "net.loopback.own denied seccomp_errno",
		"net.uring denied seccomp_kill", "sys.add_key denied seccomp_kill", "sys.keyctl denied seccomp_kill", "cred.keyring[@s] denied seccomp_kill",
		"sys.ptrace denied seccomp_errno EPERM", "proc.ptrace.own denied seccomp_errno EPERM", "sys.unshare.user denied seccomp_errno EPERM",
		"sys.userfaultfd denied seccomp_errno ENOSYS", "sys.clone.user reachable|denied",
		"sys.personality reachable", "sys.memfd.exec reachable", // after the deadly ones
		"net.mptcp[canary:127.0.0.1] denied|absent", "ipc.unix[canary] reachable", "proc.signal reachable", "fs.shared.list["+p.shared+"] reachable",
	)
	noFaults(t, r, "ipc.walk", "slurm.submit", "ssh.lateral")
	if c := r.Controls; c.Seccomp.Mode != 2 || c.Seccomp.Filters != 1 || c.Landlock.Layers > 0 || !c.NoNewPrivs {
		t.Errorf("controls %+v", c)
	}
	tooLong(t, took)
}

func TestRunAll_SocketRefusedWithoutACanary(t *testing.T) {
	p := newPlace(t)
	r, _ := inside{spec: subjectSpec{Filter: true}, dir: p.task}.report(t, p.prog)
	want(t, r, "net.tcp.canary denied seccomp_errno EAFNOSUPPORT socket", "net.udp.canary denied seccomp_errno EAFNOSUPPORT socket",
		"net.tcp.fastopen denied seccomp_errno EAFNOSUPPORT socket", "net.tcp.out denied - EAFNOSUPPORT socket")
	r, _ = inside{dir: p.task}.report(t, p.prog)
	want(t, r, "net.tcp.canary skipped", "net.udp.canary skipped", "net.tcp.fastopen skipped", "net.tcp.out skipped", "net.udp.out skipped", "net.mptcp reachable|absent|denied")
}

func TestRunAll_TellsWhatNamespacesHide(t *testing.T) {
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		sandboxtest.Skip(t, "bwrap is not installed")
	}
	p := newPlace(t)
	dir := filepath.Dir(p.shared)
	base := []string{bwrap, "--unshare-all", "--as-pid-1", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", filepath.Dir(dir), "--ro-bind", filepath.Dir(p.prog), filepath.Dir(p.prog), "--ro-bind", p.canary, "/run/canary"}
	if out, err := ordinary(exec.Command(bwrap, "--unshare-all", "--ro-bind", "/", "/", "true")).CombinedOutput(); err != nil {
		sandboxtest.Skip(t, "bwrap does not work here: %v: %s", err, out)
	}
	base[len(base)-1] = filepath.Join(filepath.Dir(p.prog), "canary.json")
	write(t, base[len(base)-1], "", 0o644)
	o := p.options()
	o.Canary = base[len(base)-1]
	r, _ := inside{spec: subjectSpec{Options: o}, wrap: append(base, "--chdir", "/tmp"), env: p.env}.report(t, p.prog)
	want(t, r,
		"net.ifaces absent no_interface", "net.tcp.canary[canary:127.0.0.1] absent no_interface ECONNREFUSED", "net.udp.canary[canary:127.0.0.1] absent no_interface ECONNREFUSED",
		"net.loopback.own reachable", "proc.visible absent pidns", "proc.signal absent pidns", "proc.environ absent pidns",
		"ipc.abstract[canary] absent - ECONNREFUSED", "ipc.unix[canary] absent not_mounted ENOENT",
		"fs.shared.list["+p.shared+"] absent - ENOENT", "fs.home absent - ENOENT", "fs.task.write[/tmp] reachable", "fs.task.write[cwd] reachable",
		"fs.rootfs[/usr] denied readonly_mount|dac", "work.fork reachable",
	)
	for _, f := range r.Checks {
		if f.ID == "net.tcp.canary" && f.Outcome != Absent && f.Outcome != Unreachable {
			t.Errorf("%s: %s %s", f.Key(), f.Outcome, f.Evidence)
		}
	}
	noFaults(t, r, "ipc.walk", "slurm.submit", "ssh.lateral")
}

func TestRunAll_SaysThatAPathIsMasked(t *testing.T) {
	if os.Getuid() != 0 {
		sandboxtest.Skip(t, "the test mounts a mask: it needs root")
	}
	p := newPlace(t)
	r, _ := inside{spec: subjectSpec{Mask: p.shared, UID: sandboxtest.Nobody, Options: p.options()}, root: true, ns: unix.CLONE_NEWNS, env: p.env, dir: p.task}.report(t, p.prog)
	for _, id := range []string{"fs.shared.list", "fs.shared.read", "fs.shared.write", "fs.shared.stat", "fs.meta"} {
		want(t, r, id+"["+p.shared+"] absent masked")
	}
	want(t, r, "fs.shared.list["+p.home+"] reachable")
	// An empty folder that is no mask is only an empty folder.
	empty := filepath.Join(filepath.Dir(p.shared), "empty")
	mkdir(t, empty)
	r, _ = inside{spec: subjectSpec{Options: Options{Shared: []string{empty, "/dev/shm"}}}, env: p.env, dir: p.task}.report(t, p.prog)
	want(t, r, "fs.shared.list["+empty+"] reachable", "fs.shared.read["+empty+"] info", "fs.shared.list[/dev/shm] reachable")
}

func TestRunAll_EndsThoughChecksHangAndDie(t *testing.T) {
	prog := program(t)
	r, took := inside{spec: subjectSpec{Table: true, Options: Options{Skip: []string{"skip"}}}}.report(t, prog)
	want(t, r,
		"hang.first reachable", "hang.try timeout", "hang.kernel timeout", "hang.one[a] reachable", "hang.one[b] timeout", "hang.one[c] reachable", "hang.listing timeout", "hang.last reachable",
		"die.exit error", "die.panic error", "die.segv error", "die.kill error", "die.sys denied seccomp_kill", "die.garbage error", "die.last reachable",
		"side.many[a] reachable", "side.many[b] timeout", "side.many[c] reachable", "side.many[d] timeout",
		"side.die[a] reachable", "side.die[b] error", "side.die[c] reachable",
		"none.none absent", "skip.it skipped",
	)
	tooLong(t, took)
	for _, f := range r.Checks {
		switch f.ID {
		case "die.exit":
			if !strings.Contains(f.Evidence, "status 7") {
				t.Errorf("%s: %s", f.ID, f.Evidence)
			}
		case "die.panic":
			if !strings.Contains(f.Evidence, "on purpose") {
				t.Errorf("%s: %s", f.ID, f.Evidence)
			}
		case "die.segv":
			if !strings.Contains(f.Evidence, "SIGSEGV") {
				t.Errorf("%s: %s", f.ID, f.Evidence)
			}
		}
	}
}

// TestRunAll_ADeadFileServerIsATimeout: its filesystem is found by mountinfo,
// and only the attempts on it are lost.
func TestRunAll_ADeadFileServerIsATimeout(t *testing.T) {
	if os.Getuid() != 0 {
		sandboxtest.Skip(t, "the test mounts a filesystem: it needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		sandboxtest.Skip(t, "this machine has no /dev/fuse")
	}
	p := newPlace(t)
	dead := filepath.Join(filepath.Dir(p.shared), "dead")
	mkdir(t, dead)
	o := p.options()
	o.Canary = ""
	r, took := inside{spec: subjectSpec{Dead: dead, UID: sandboxtest.Nobody, Options: o}, root: true, ns: unix.CLONE_NEWNS, env: p.env, dir: p.task}.report(t, p.prog)
	for _, id := range []string{"fs.shared.list", "fs.shared.read", "fs.shared.write", "fs.shared.stat", "fs.meta"} {
		want(t, r, id+"["+dead+"] timeout", id+"["+p.shared+"] reachable", id+"["+p.home+"] reachable")
	}
	want(t, r, "fs.mounts["+dead+"] info", "fs.home reachable", "net.udp.socket reachable", "work.fork reachable")
	for _, f := range r.Checks {
		if f.Outcome == Timeout && f.Target != dead {
			t.Errorf("%s: timeout", f.Key())
		}
	}
	tooLong(t, took-5*time.Second*stretchNow()) // its own deadline comes on top
}

func TestRunAll_EndsWhenItsTimeIsOver(t *testing.T) {
	prog := program(t)
	r, took := inside{spec: subjectSpec{Table: true, Options: Options{Timeout: 100 * time.Millisecond}}}.report(t, prog)
	want(t, r, "hang.try timeout", "hang.last timeout")
	if !slices.ContainsFunc(r.Checks, func(f Finding) bool { return f.ID == "side.many" && f.Outcome == Timeout }) {
		t.Error("nothing says that side.many had no time")
	}
	tooLong(t, took)
}

func TestRunAll_SaysThatItCannotStartWorkers(t *testing.T) {
	for name, spec := range map[string]subjectSpec{"exec": {NoExec: true}, "fork": {NoFork: true}} {
		t.Run(name, func(t *testing.T) {
			r, _ := inside{spec: spec}.report(t, program(t))
			want(t, r, "net.udp.socket error", "fs.shared.list error", "ctl.user error", "slurm.submit error")
			if r.Summary[Reachable]+r.Summary[Denied]+r.Summary[Absent] != 0 {
				t.Errorf("summary %v of a run that could try nothing", r.Summary)
			}
			if r.Controls.Landlock.Layers != -1 {
				t.Errorf("layers %d, want -1", r.Controls.Landlock.Layers)
			}
			for _, f := range r.Checks {
				if f.ID == "ctl.user" && !strings.Contains(f.Evidence, "operation not permitted") {
					t.Errorf("evidence %q", f.Evidence)
				}
			}
		})
	}
}

// TestRunAll_NothingHangsIt: things that make an incautious open, connect or
// walk wait.
func TestRunAll_NothingHangsIt(t *testing.T) {
	p := newPlace(t)
	rt := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(p.shared)))
	mkdir(t, rt)
	t.Cleanup(func() { os.RemoveAll(rt) })
	for i := range 100_000 { // a folder that nobody should read to the end
		if err := unix.Mknod(filepath.Join(rt, strconv.Itoa(i)), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{".netrc", ".pgpass", ".ssh/config"} {
		if err := unix.Mkfifo(filepath.Join(p.home, f), 0o600); err != nil {
			t.Fatal(err)
		}
		own(t, filepath.Join(p.home, f))
	}
	fifo := filepath.Join(p.task, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	own(t, fifo)
	full, stale := filepath.Join(p.task, "full"), filepath.Join(p.task, "stale")
	fullListener(t, full)
	s, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s.SetUnlinkOnClose(false)
	s.Close()
	for _, f := range []string{full, stale} {
		if err := os.Chmod(f, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	o := p.options()
	o.Shared = append(o.Shared, fifo, rt, full)
	r, took := inside{
		spec: subjectSpec{Options: o}, dir: p.task,
		env: append(p.env, "XDG_RUNTIME_DIR="+rt, "SSH_AUTH_SOCK="+full, "DBUS_SESSION_BUS_ADDRESS=unix:path="+stale+",guid=1"),
	}.report(t, p.prog)
	want(t, r,
		"ipc.unix["+full+"] reachable - EAGAIN connect", "ipc.unix["+stale+"] absent - ECONNREFUSED connect", "ipc.walk error",
		"fs.shared.list["+fifo+"] absent - ENOTDIR", "fs.shared.list["+rt+"] reachable", "fs.shared.list["+full+"] absent - ENOTDIR",
		"cred.files[~/.netrc] absent - ENXIO",
	)
	noFaults(t, r, "ipc.walk", "slurm.submit", "ssh.lateral", "ipc.unix["+rt+"/vscode-ipc-*]", "ipc.unix["+rt+"/tmux-*/*]", "ipc.unix["+rt+"/wayland-*]", "ipc.unix["+rt+"/pipewire-*]")
	want(t, r, "ipc.unix["+rt+"/vscode-ipc-*] error") // more names than it looks at, so it cannot say "absent"
	tooLong(t, took)
}

// fullListener makes a Unix socket whose backlog is full.
func fullListener(t *testing.T, p string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: p}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(c) })
		switch err := unix.Connect(c, &unix.SockaddrUnix{Name: p}); err {
		case nil:
		case unix.EAGAIN:
			return
		default:
			t.Fatal(err)
		}
	}
}

func TestRunAll_SeesInheritedDescriptors(t *testing.T) {
	p := newPlace(t)
	cmd := inside{dir: p.task}.command(t, p.prog)
	dir, err := os.Open(p.shared)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.ExtraFiles = []*os.File{dir}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, stderrOf(err))
	}
	r, err := Decode("report", bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	want(t, r, "ctl.fds reachable", "ctl.fd[3] info", "ctl.fd[0] info")
	for _, f := range r.Checks {
		if f.Key().String() == "ctl.fd[3]" && !strings.HasPrefix(f.Evidence, "directory") {
			t.Errorf("evidence %q", f.Evidence)
		}
	}
	r, _ = inside{dir: p.task}.report(t, p.prog)
	want(t, r, "ctl.fds absent", "ctl.fd[1] info")
}

func TestRunAll_AnswersOfAProxy(t *testing.T) {
	p := newPlace(t)
	sock := filepath.Join(p.task, "proxy.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := os.Chmod(sock, 0o777); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 200)
				n, _ := c.Read(b)
				switch {
				case bytes.HasPrefix(b[:n], []byte("CONNECT good.example:443 HTTP/1.1\r\n")):
					io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
				case n > 0:
					io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\n")
				}
			}()
		}
	}()
	o := Options{Proxy: sock, Allow: []string{"good.example:443"}, Deny: []string{"bad.example:443"}}
	r, _ := inside{spec: subjectSpec{Options: o}, dir: p.task}.report(t, p.prog)
	want(t, r, "net.proxy.socket["+sock+"] reachable", "net.proxy.allow[good.example:443] reachable", "net.proxy.deny[bad.example:443] denied proxy_policy",
		"net.proxy.deny[127.0.0.1:1] denied proxy_policy", "net.proxy.deny[[::ffff:127.0.0.1]:1] denied proxy_policy")
}

func TestRunAll_StopsWithItsContext(t *testing.T) {
	prog := program(t)
	cmd := inside{spec: subjectSpec{Table: true}}.command(t, prog)
	var errb bytes.Buffer
	cmd.Stderr = &errb
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Its first worker is up: the run is under way.
	for len(children(t, cmd.Process.Pid)) == 0 {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v, %q", err, errb.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	start := time.Now()
	cmd.Process.Signal(syscall.SIGTERM)
	err := <-ended
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errb.String(), "the run was stopped") {
		t.Errorf("got %v, %q", err, errb.String())
	}
	tooLong(t, time.Since(start))
}

func children(t *testing.T, pid int) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(pid) + "/children")
	if err != nil {
		return nil
	}
	out := strings.Fields(string(data))
	threads, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, th := range threads {
		data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + th.Name() + "/children")
		out = append(out, strings.Fields(string(data))...)
	}
	return out
}

func TestOptions_RefuseWhatCannotBeMeant(t *testing.T) {
	for name, o := range map[string]Options{
		"relative path":       {Shared: []string{"project"}},
		"no port":             {TCP: []string{"example.org"}},
		"a name for a port":   {UDP: []string{"example.org:domain"}},
		"port 0":              {TCP: []string{"example.org:0"}},
		"no canary file":      {Canary: filepath.Join(t.TempDir(), "none.json")},
		"no proxy":            {Allow: []string{"example.org:443"}},
		"a relative proxy":    {Proxy: "proxy.sock"},
		"time before the run": {Timeout: -1},
		"no such check":       {Skip: []string{"net.dns", "nosuch"}},
		"a wildcard":          {Skip: []string{"net.*"}},
		"half a group":        {Skip: []string{"ne"}},
	} {
		if _, err := RunAll(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOptions_RefuseUnknownVariables(t *testing.T) {
	for kv, want := range map[string]string{
		"PROBE_SKIPP=net":      "the variable PROBE_SKIPP is not known",
		"PROBE_SKIP=net.*":     `PROBE_SKIP: no check has the id "net.*"`,
		"PROBE_SKIP=dev, proc": `PROBE_SKIP: no check has the id " proc"`,
		"PROBE_SHARED=proj":    `shared path "proj": must be absolute`,
	} {
		t.Run(kv, func(t *testing.T) {
			name, value, _ := strings.Cut(kv, "=")
			t.Setenv(name, value)
			if _, err := RunAll(t.Context(), Options{}); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

func TestOptions_TakeMoreFromTheEnvironment(t *testing.T) {
	t.Setenv(SharedVar, "/proj/a:/proj/b/")
	t.Setenv(SkipVar, "net.dns,dev.kvm")
	o, _, err := Options{Shared: []string{"/proj/b"}, Skip: []string{"net.tcp.out"}}.complete(Checks())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(o.Shared, " "); got != "/proj/b /proj/a" {
		t.Errorf("shared %q", got)
	}
	r := run{skip: o.Skip}
	for id, want := range map[string]bool{"net.dns.udp": true, "net.dns": true, "dev.kvm": true, "net.tcp.out": true, "net.dnssec": false, "net.tcp.canary": false} {
		if r.skipped(id) != want {
			t.Errorf("skipped(%s) = %v", id, !want)
		}
	}
}

func TestStretch(t *testing.T) {
	const two = "cpu  1 2\ncpu0 1\ncpu1 1\nintr 5\n"
	for load, want := range map[string]time.Duration{"0.10 1 1": 1, "2.00 1 1": 1, "2.10 1 1": 2, "5.00 1 1": 3, "900.1 1 1": 5, "": 1, "x": 1} {
		if got := stretch(load, two); got != want {
			t.Errorf("load %q: %d, want %d", load, got, want)
		}
	}
	if got := stretch("9 9 9", ""); got != 1 {
		t.Errorf("with no processors: %d", got)
	}
}

func TestListen_AnswersAndCleansUp(t *testing.T) {
	dir := publicDir(t)
	prog := program(t)
	file := filepath.Join(dir, "canary.json")
	cmd := ordinary(exec.Command(prog, "__canary", file))
	cmd.Env = []string{"TMPDIR=" + dir}
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	c, err := readCanary(file)
	if err != nil {
		t.Fatal(err)
	}
	if c.PID != cmd.Process.Pid || len(c.TCP) == 0 || len(c.UDP) != len(c.TCP) {
		t.Errorf("canary %+v", c)
	}
	for _, a := range append([]string{c.Unix, "@" + c.Abstract}, c.TCP...) {
		network := "tcp"
		if !strings.Contains(a, "]:") && !isAddrPort(a) {
			network = "unix"
		}
		conn, err := net.Dial(network, a)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("xyz"))
		got, _ := io.ReadAll(conn)
		if string(got) != "x" { // its peer may be reset by the unread rest, after the byte
			t.Errorf("%s sent back %q", a, got)
		}
		conn.Close()
	}
	for _, a := range c.UDP {
		conn, err := net.Dial("udp", a)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write([]byte("two")) // not echoed: it would come first
		conn.Write([]byte("1"))
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		b := make([]byte, 10)
		n, err := conn.Read(b)
		if err != nil || string(b[:n]) != "1" {
			t.Errorf("%s sent back %q, %v", a, b[:n], err)
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("%d entries were left, %s the first", len(left), left[0].Name())
	}
}

func isAddrPort(s string) bool {
	_, err := netip.ParseAddrPort(s)
	return err == nil
}

func TestReadCanary_RefusesWhatIsNone(t *testing.T) {
	for name, text := range map[string]string{
		"empty":          "",
		"another schema": `{"schema":"probe.canary/v2","tcp":[],"udp":[],"unix":"","abstract":"","pid":1,"pid_ns":1,"time":""}`,
		"no address":     `{"schema":"probe.canary/v1","tcp":["x"],"udp":[],"unix":"","abstract":"","pid":1,"pid_ns":1,"time":""}`,
		"an unknown key": `{"schema":"probe.canary/v1","tcp":[],"udp":[],"unix":"","abstract":"","pid":1,"pid_ns":1,"time":"","more":1}`,
	} {
		f := filepath.Join(t.TempDir(), "c.json")
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := readCanary(f); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestWorkerMain_RefusesAHandTypedCall(t *testing.T) {
	var out bytes.Buffer
	if code := WorkerMain(nil, strings.NewReader(""), &out); code != 2 {
		t.Errorf("no arguments: %d", code)
	}
	if code := WorkerMain([]string{helperExit}, nil, &out); code != 0 {
		t.Errorf("the child that ends: %d", code)
	}
}

func TestTask_SurvivesTheWayToTheWorker(t *testing.T) {
	in := task{Class: classFS, Done: []Key{{"a.b", "/x"}}, Canary: &Canary{PID: 3}, Controls: Controls{CapEff: "0"}, Parent: 7}
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var got task
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Done[0] != in.Done[0] || got.Canary.PID != 3 || got.Parent != 7 || got.Class != classFS {
		t.Errorf("%+v", got)
	}
}
