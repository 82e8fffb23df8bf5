package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/sandbox"
	"fence/pkg/status"
	"fence/test/bed"
	"fence/test/faults/facts"
	"fence/test/faults/inject"
)

// A stage is what the launches happen on: the decoys, the outsiders, and the
// two programs.
type stage struct {
	dir            string
	fence, checker string
	container      int // a process in the mount namespace of a container's root
	node           int // the same for a node's, which holds little and does not change
	config         facts.Config
}

// newStage makes the decoys on the site's shared project, because /tmp is
// covered as a whole in the namespace form.
func newStage(t *testing.T) *stage {
	t.Helper()
	bed.Require(t, "users", "site", "nonet")
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: the launcher must be an ordinary user's, and some nodes are made by root")
	}
	s := &stage{dir: bed.SharedDir(t)}
	uid, gid, home := bed.User(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "decoy", "fake/shown", "work"} {
		must(os.MkdirAll(filepath.Join(s.dir, d), 0o755))
	}
	for _, f := range []string{"decoy/secret", "fake/secret", "fake/shown/data"} {
		must(os.WriteFile(filepath.Join(s.dir, f), []byte("canary\n"), 0o644))
	}
	must(filepath.WalkDir(s.dir, func(p string, _ os.DirEntry, err error) error { return os.Lchown(p, uid, gid) }))

	s.fence, s.checker = filepath.Join(s.dir, "bin/fence"), filepath.Join(s.dir, "bin/checker")
	// A copy: others may build a newer one while this runs.
	data, err := os.ReadFile(bed.Bin(t, "fence"))
	must(err)
	must(os.WriteFile(s.fence, data, 0o755))
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", s.checker, "./checker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the checker: %v\n%s", err, out)
	}
	must(os.Chmod(s.checker, 0o755))

	s.config = facts.Config{
		Decoy: s.dir + "/decoy", Fake: s.dir + "/fake", Home: home, Shown: s.dir + "/fake/shown",
		Agent: s.dir + "/agent.sock", Device: "/dev/fuse", Abstract: fmt.Sprintf("fence-faults-%d", os.Getpid()),
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		f, err := os.CreateTemp(dir, "fence-faults-")
		must(err)
		f.Close()
		t.Cleanup(func() { os.Remove(f.Name()) })
		s.config.Planted = append(s.config.Planted, f.Name())
	}
	listen(t, s.config.Agent)
	listen(t, "@"+s.config.Abstract)
	s.config.Port = listen(t, "127.0.0.1:0").(*net.TCPAddr).Port
	victim := bed.Command(t, "sleep", "3600")
	must(victim.Start())
	t.Cleanup(func() { victim.Process.Kill(); victim.Wait() })
	s.config.Victim = victim.Process.Pid
	s.container = s.root(t, "container")
	s.node = s.root(t, "node")
	// A socket in that root, too.
	listen(t, fmt.Sprintf("/proc/%d/root%s", s.node, s.config.Agent))
	return s
}

// listen accepts connections until the test ends.
func listen(t *testing.T, addr string) net.Addr {
	t.Helper()
	network := "unix"
	if strings.HasPrefix(addr, "127.") {
		network = "tcp"
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(addr, "/") {
		if err := os.Chmod(addr, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l.Addr()
}

// root makes a root of its own and returns a process that is in it.
func (s *stage) root(t *testing.T, kind string) int {
	t.Helper()
	root := filepath.Join(s.dir, kind)
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	who := bed.Person(t)
	script, err := filepath.Abs("testdata/root.sh")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--mount", "--propagation", "private", "bash", script, kind, root, s.dir, filepath.Join(bed.Dir(), "bin/limit-ns"),
		who.Name, strconv.Itoa(who.UID), strconv.Itoa(who.GID), who.Home}
	cmd := exec.Command("unshare", append(args, s.config.Planted...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the root %s was not made: %q, %v", kind, line, err)
	}
	return cmd.Process.Pid
}

// A scene is one way to launch.
type scene struct {
	name   string
	root   string   // "" the machine's, "container", "node"
	closed bool     // where no user namespaces are allowed
	nonet  bool     // where no network namespaces are
	flags  []string // of fence, beside those that every launch has
	policy string
	bare   bool // it must come out in the bare form
	whole  bool // in full, every call fails with every errno
	brief  bool // only the calls that apply a protection are made to fail
	news   bool // and those that no scene before made
	shaky  bool // what it does depends on files that others make and remove
	stage  *stage
	base   *outcome  // a launch without a fault
	traced time.Time // before the launch that the faults are taken from
}

func (sc *scene) String() string { return sc.name }

// args are the launcher's.
func (sc *scene) args(config facts.Config) []string {
	c, err := json.Marshal(config)
	if err != nil {
		panic(err)
	}
	args := []string{"--status-fd", "3", "--limit", "cpu=600"}
	if sc.policy != "" {
		args = append(args, "--policy", sc.policy)
	}
	args = append(args, "--read", config.Shown)
	if !sc.container() {
		args = append(args, "--hide", config.Decoy) // there the mount that it lies in is hidden
	}
	args = append(args, sc.flags...)
	args = append(args, "--why", "the fault tests")
	return append(args, "--", sc.stage.checkerIn(sc), string(c))
}

// container: the launch is in a container's root, with the site's folder bound
// into it.
func (sc *scene) container() bool { return sc.root == "container" }

// supervised: its network is loopback, where there is no network namespace.
func (sc *scene) supervised() bool { return slices.Contains(sc.flags, "loopback") }

func (s *stage) checkerIn(sc *scene) string {
	if sc.container() {
		return "/opt/checker"
	}
	return s.checker
}

// outcome is what a launch came to.
type outcome struct {
	inject.Result
	stdout, stderr, status []byte
	facts                  *facts.Facts   // of a command that ran
	claims                 *status.Status // of the status line

	// What is right in some conditions, without a fault.
	mayBeUsage, mayBeSilent, mayDie, mayHang bool
}

// launch starts the checker under the tracer, in the hidden decoy, with an open
// folder as descriptor 7, a socket as 8, and secrets in the environment.
func (sc *scene) launch(t testing.TB, fault *inject.Fault) *outcome {
	t.Helper()
	config := sc.config()
	if sc.base != nil && sc.base.claims != nil {
		for _, h := range sc.base.claims.Hidden {
			config.Hidden = append(config.Hidden, h.Path)
		}
	}
	o, err := sc.start(t, sc.args(config), fault, func(p *inject.Process) {
		if waits(fault) {
			p.Timeout = 3 * time.Second
		}
	})
	if err != nil {
		t.Fatalf("%v: %v", sc, err)
	}
	return o
}

// workdir is where the command has to start: the launcher starts in the decoy.
func (sc *scene) workdir() string {
	if i := slices.Index(sc.flags, "--workdir"); i >= 0 {
		return sc.flags[i+1]
	}
	return "/"
}

// config is what there is to be tried.
func (sc *scene) config() facts.Config {
	c := sc.stage.config
	if sc.container() {
		c.Places, c.Planted = true, nil // its /tmp is its own
	}
	return c
}

// start runs fence with args. change, if given, may change what is started.
func (sc *scene) start(t testing.TB, args []string, fault *inject.Fault, change func(*inject.Process)) (*outcome, error) {
	env := []string{"HOME=" + sc.stage.config.Fake, "HF_TOKEN=hf_canarycanarycanary", "AWS_SECRET_ACCESS_KEY=canary",
		"SSH_AUTH_SOCK=" + sc.stage.config.Agent, "LANG=C.UTF-8", "PATH=/usr/bin:/bin", "TERM=dumb", "UNKNOWN=1"}
	who := bed.Person(t)
	inside := []string{"/usr/bin/env", "-C", sc.stage.config.Decoy, env[0], sc.stage.fence} // the wrapper for closed sets HOME
	if sc.container() {
		inside[len(inside)-1] = "/.fence/fence"
	}
	inside = append(inside, args...)
	enter := []string{"--target", strconv.Itoa(map[string]int{"container": sc.stage.container, "node": sc.stage.node}[sc.root]), "--mount"}
	var cmd *exec.Cmd
	switch {
	case sc.nonet:
		cmd = bed.NoNetns(t, inside[0], inside[1:]...)
	case sc.root == "" && !sc.closed:
		cmd = bed.Command(t, sc.stage.fence, args...)
	case sc.root == "":
		cmd = bed.NoUserns(t, inside[0], inside[1:]...)
	case !sc.closed:
		cmd = exec.Command("nsenter", append(append(enter, "--setgid", strconv.Itoa(who.GID), "--setuid", strconv.Itoa(who.UID), "--"), inside...)...)
	default:
		cmd = exec.Command("nsenter", append(append(enter, "--", "/opt/limit-ns", who.Name, "max_user_namespaces=0", "--"), inside...)...)
	}
	p := inject.Process{
		Path: cmd.Path, Argv: cmd.Args, Env: env, Dir: sc.stage.config.Decoy, Launcher: "fence", Timeout: 20 * time.Second,
	}
	if cmd.SysProcAttr != nil {
		p.Sys = *cmd.SysProcAttr
	}
	var pipes [3][2]*os.File // stdout, stderr, status
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		pipes[i] = [2]*os.File{r, w}
		defer r.Close()
		defer w.Close()
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	leak, err := os.Open(sc.stage.config.Decoy)
	if err != nil {
		return nil, err
	}
	defer leak.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	p.Files = []uintptr{null.Fd(), pipes[0][1].Fd(), pipes[1][1].Fd(), pipes[2][1].Fd(), inject.None, inject.None, inject.None, leak.Fd(), uintptr(pair[0])}
	if change != nil {
		change(&p)
	}

	o := &outcome{}
	var wg sync.WaitGroup
	for i, to := range []*[]byte{&o.stdout, &o.stderr, &o.status} {
		wg.Go(func() { *to, _ = io.ReadAll(pipes[i][0]) })
	}
	o.Result, err = inject.Run(p, fault)
	runtime.KeepAlive(leak)
	for i := range pipes {
		pipes[i][1].Close()
	}
	wg.Wait()
	if err != nil {
		return nil, err
	}
	o.parse(o.stdout)
	if len(o.status) > 0 {
		var st status.Status
		d := json.NewDecoder(bytes.NewReader(o.status))
		d.DisallowUnknownFields()
		if d.Decode(&st) == nil && bytes.HasSuffix(o.status, []byte("}\n")) {
			o.claims = &st
		}
	}
	return o, nil
}

// parse reads the checker's answer.
func (o *outcome) parse(data []byte) error {
	var f facts.Facts
	if err := json.Unmarshal(data, &f); err != nil {
		return err
	}
	o.facts = &f
	return nil
}

// scenes are the launches that faults are injected into.
func scenes(s *stage) []*scene {
	accept := []string{"--accept", sandbox.AcceptLandlockHide, "--accept", sandbox.AcceptHostTmp, "--accept", sandbox.AcceptSockets}
	bare := append([]string{"--form", "bare"}, accept...)
	return []*scene{
		{name: "namespace", stage: s, whole: true},
		// In the bare form the calls depend on every file beside a hidden one.
		{name: "bare", root: "node", flags: bare, bare: true, stage: s},
		{name: "container", root: "container", stage: s, whole: true},
		{name: "no-userns", root: "node", closed: true, flags: accept, bare: true, stage: s},
		{name: "container-no-userns", root: "container", closed: true, flags: accept, bare: true, stage: s, brief: true},
		{name: "machine-bare", flags: bare, bare: true, stage: s, brief: true, shaky: true},
		{name: "machine-no-userns", closed: true, flags: accept, bare: true, stage: s, brief: true, shaky: true},
		// A supervisor stays above the command, which it starts.
		{name: "supervised", nonet: true, flags: []string{"--net", "loopback"}, stage: s, brief: true, news: true},
		{name: "supervised-bare", root: "node", closed: true, flags: append([]string{"--net", "loopback"}, accept...), bare: true, stage: s, brief: true, news: true},
		// As a session starts the leader of a domain, which keeps a channel.
		{name: "leader", flags: []string{"--keep-fd", "8"}, stage: s, brief: true, news: true},
		{name: "build", policy: "build", stage: s, brief: true},
		{name: "verifier", policy: "verifier", flags: []string{"--workdir", s.dir + "/work"}, stage: s, brief: true},
		{name: "model-server", policy: "model-server", stage: s, brief: true},
	}
}

// exit says how a launch ended.
func (o *outcome) exit() string {
	if o.Status.Signaled() {
		return fmt.Sprintf("signal %v", o.Status.Signal())
	}
	return fmt.Sprintf("exit %d", o.Status.ExitStatus())
}

// message is the first line that a person sees.
func (o *outcome) message() string {
	line, _, _ := strings.Cut(string(o.stderr), "\n")
	return line
}

var errnos = []syscall.Errno{syscall.EPERM, syscall.ENOSYS, syscall.EINVAL, syscall.ENOMEM, syscall.E2BIG}

// runtimes are the calls that Go's runtime and libc make for themselves, at
// times and in numbers that differ from run to run.
var runtimes = strings.Fields(`futex nanosleep clock_nanosleep epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 mmap munmap madvise mprotect brk
	rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack set_robust_list rseq clone clone3 sched_getaffinity sched_yield tgkill
	arch_prctl set_tid_address getrandom exit timer_create timer_settime timer_delete prctl(PR_SET_VMA)`)

// scheduled are those of them by which its threads wait for each other.
var scheduled = strings.Fields(`futex nanosleep clock_nanosleep epoll_pwait epoll_pwait2 sched_yield`)

// infallible calls always succeed (getuid(2), "Errors"): what takes their
// answer for an error code would be wrong.
var infallible = strings.Fields(`getuid geteuid getgid getegid getpid getppid gettid`)

// protects are the calls that apply a protection, or see whether one is in
// force: where they seem to succeed and do nothing, fence has to notice.
var protects = strings.Fields(`mount mount_setattr move_mount open_tree umount2 setns landlock_create_ruleset landlock_add_rule landlock_restrict_self
	seccomp(SET_MODE_FILTER) capset capget close_range setrlimit prlimit64(set) chdir write fcntl(F_SETFD) mkdirat symlinkat fchmodat chmod mknodat mknod socket close execve
	prctl(PR_SET_NO_NEW_PRIVS) prctl(PR_GET_NO_NEW_PRIVS) prctl(PR_CAPBSET_READ) prctl(PR_CAPBSET_DROP) prctl(PR_CAP_AMBIENT)
	prctl(PR_SET_SECUREBITS) prctl(PR_GET_SECUREBITS) prctl(PR_GET_SECCOMP)`)

func isRuntime(a inject.Address) bool {
	return a.Thread == inject.Runtime || a.Thread == inject.ChildRuntime || slices.Contains(runtimes, a.Name) || strings.HasPrefix(a.Path, "anon_inode:[event") // its poller
}

func isProtect(c inject.Call) bool {
	return slices.Contains(protects, c.Name) || strings.HasPrefix(c.Name, "unshare(")
}
