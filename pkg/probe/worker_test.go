package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

// The test binary plays three parts beside the test: the worker that RunAll
// starts, the operator's canary, and the subject, a process that restricts
// itself in some way and then runs RunAll.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case WorkerName:
			os.Exit(workerMain(os.Args[2:], os.Stdin, os.Stdout, testTable()))
		case "__canary":
			os.Exit(canaryMain(os.Args[2]))
		case "__subject":
			os.Exit(subjectMain())
		}
	}
	// What this was started with is not what its subjects are to find.
	_ = unix.CloseRange(3, 1<<30, unix.CLOSE_RANGE_CLOEXEC)
	os.Exit(m.Run())
}

// canaryMain listens until its standard input ends.
func canaryMain(file string) int {
	ctx, stop := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); stop() }()
	err := Listen(ctx, ListenOptions{Canary: file, Ready: func(*Canary) { fmt.Println("ready") }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// subjectSpec is what a subject does to itself, in this order, before it
// probes.
type subjectSpec struct {
	Mask     string   // as root: an empty read-only tmpfs over this path
	Dead     string   // as root: a filesystem over this path whose server never answers
	UID      int      // to become
	Landlock []string // write roots; everything else read-only but for the hidden
	Hide     []string // not even readable; with Landlock
	Filter   bool     // testFilter
	NoExec   bool     // refuse execve, in this very process
	NoFork   bool     // refuse clone, but for threads
	Table    bool     // testChecks too
	Options  Options
}

const subjectVar = "TEST_PROBE_SUBJECT"

func subjectMain() int {
	var s subjectSpec
	if err := json.Unmarshal([]byte(os.Getenv(subjectVar)), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if s.restrict() {
		return 0 // not reached: it became another process
	}
	if s.NoExec || s.NoFork {
		nrs := []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT}
		if s.NoFork {
			nrs = []uint32{unix.SYS_CLONE, unix.SYS_CLONE3}
		}
		if err := refuse(nrs); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	r, err := runAll(ctx, s.Options, testTable())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := r.Write(os.Stdout); err != nil {
		return 1
	}
	return 0
}

// restrict applies what must be in force from the first instruction on, and
// runs this program again.
func (s subjectSpec) restrict() bool {
	rest := s
	rest.Mask, rest.Dead, rest.UID, rest.Landlock, rest.Hide, rest.Filter = "", "", 0, nil, nil, false
	if s.Mask == "" && s.Dead == "" && s.UID == 0 && s.Landlock == nil && !s.Filter {
		return false
	}
	runtime.LockOSThread()
	must := func(what string, err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "subject: %s: %v\n", what, err)
			os.Exit(2)
		}
	}
	if s.Mask != "" || s.Dead != "" {
		must("mount", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	}
	if s.Dead != "" {
		fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0) // and nobody reads it
		must("fuse", err)
		must("dead", unix.Mount("dead", s.Dead, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)))
	}
	if s.Mask != "" {
		must("mask", unix.Mount("mask", s.Mask, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0555,nr_inodes=2"))
	}
	if s.UID != 0 {
		_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		must("setgroups", e2err(e))
		_, _, e = unix.RawSyscall(unix.SYS_SETRESGID, uintptr(s.UID), uintptr(s.UID), uintptr(s.UID))
		must("setresgid", e2err(e))
		_, _, e = unix.RawSyscall(unix.SYS_SETRESUID, uintptr(s.UID), uintptr(s.UID), uintptr(s.UID))
		must("setresuid", e2err(e))
	}
	must("no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if s.Landlock != nil {
		must("landlock", applyLandlock(s.Landlock, s.Hide))
	}
	if s.Filter {
		must("seccomp", installFilter(testFilter(), 0))
	}
	spec, err := json.Marshal(rest)
	must("spec", err)
	must("setenv", os.Setenv(subjectVar, string(spec)))
	must("exec", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	return true
}

func e2err(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// applyLandlock restricts the calling thread: TCP and scopes closed, writes
// below the given roots only, reads everywhere but below what is hidden.
func applyLandlock(write, hide []string) error {
	attr := struct{ fs, net, scoped uint64 }{
		fs:     1<<16 - 1,
		net:    unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP,
		scoped: 3, // abstract Unix sockets, signals
	}
	rs, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if e != 0 {
		return e
	}
	add := func(p string, access uint64) error {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		rule := struct {
			access uint64
			fd     int32
		}{access, int32(fd)}
		_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rs, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
		return e2err(e)
	}
	const read = 1<<0 | 1<<2 | 1<<3 // execute, read file, read directory
	// A rule opens all below it, so the parents of what is hidden are opened
	// entry by entry.
	var open func(dir string) error
	open = func(dir string) error {
		above := false
		for _, h := range hide {
			if h == dir {
				return nil
			}
			above = above || strings.HasPrefix(h, strings.TrimSuffix(dir, "/")+"/")
		}
		if !above {
			var st unix.Stat_t
			if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return nil
			}
			access := uint64(read)
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				access &^= 1 << 3
			}
			if dir == "/dev" {
				access |= 1<<1 | 1<<15 // write to and ask of devices
			}
			if err := add(dir, access); err != nil && err != unix.ENOENT && err != unix.EACCES {
				return fmt.Errorf("%s: %w", dir, err)
			}
			return nil
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := open(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
		return nil
	}
	if err := open("/"); err != nil {
		return err
	}
	for _, w := range write {
		if err := add(w, attr.fs); err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
	}
	_, _, e = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rs, 0, 0)
	return e2err(e)
}

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

// onCall makes the part of a filter that answers one system call.
func onCall(nr, action uint32) []unix.SockFilter {
	return []unix.SockFilter{{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: nr}, stmt(unix.BPF_RET|unix.BPF_K, action)}
}

const (
	loadNR   = 0  // offset in struct seccomp_data
	loadArg0 = 16 // its low half, on a little-endian machine
)

func errnoAction(e syscall.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// testFilter refuses in every way that there is.
func testFilter() []unix.SockFilter {
	f := []unix.SockFilter{stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, loadNR)}
	for _, r := range []struct{ nr, action uint32 }{
		{unix.SYS_IO_URING_SETUP, unix.SECCOMP_RET_KILL_PROCESS},
		{unix.SYS_KEYCTL, unix.SECCOMP_RET_KILL_THREAD},
		{unix.SYS_ADD_KEY, unix.SECCOMP_RET_TRAP},
		{unix.SYS_PTRACE, errnoAction(unix.EPERM)},
		{unix.SYS_UNSHARE, errnoAction(unix.EPERM)},
		{unix.SYS_USERFAULTFD, errnoAction(unix.ENOSYS)},
		{unix.SYS_PRLIMIT64 + 0x10000, 0}, // no such call: the filter is long enough to be one
	} {
		f = append(f, onCall(r.nr, r.action)...)
	}
	f = append(f, // socket: Unix only
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 4, K: unix.SYS_SOCKET},
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, loadArg0),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.AF_UNIX},
		stmt(unix.BPF_RET|unix.BPF_K, errnoAction(unix.EAFNOSUPPORT)),
		stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW),
		stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW),
	)
	return f
}

func installFilter(f []unix.SockFilter, flags uintptr) error {
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	return e2err(e)
}

// refuse makes calls fail in all threads of this process.
func refuse(nrs []uint32) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	f := []unix.SockFilter{stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, loadNR)}
	for _, nr := range nrs {
		if nr == unix.SYS_CLONE {
			// Threads must go on: only a clone without CLONE_THREAD is refused.
			f = append(f,
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 4, K: nr},
				stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, loadArg0),
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: unix.CLONE_THREAD},
				stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW),
				stmt(unix.BPF_RET|unix.BPF_K, errnoAction(unix.EPERM)))
			continue
		}
		action := errnoAction(unix.EPERM)
		if nr == unix.SYS_CLONE3 {
			action = errnoAction(unix.ENOSYS) // then libc makes its threads by clone
		}
		f = append(f, onCall(nr, action)...)
	}
	f = append(f, stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW))
	return installFilter(f, unix.SECCOMP_FILTER_FLAG_TSYNC)
}

// tableVar makes the test's own checks part of the table.
const tableVar = "TEST_PROBE_TABLE"

// testTable is the table of subjects and workers: the real one, or the
// test's own.
func testTable() []Check {
	if os.Getenv(tableVar) == "" {
		return Checks()
	}
	return testChecks()
}

// testChecks hang, die and break in every way.
func testChecks() []Check {
	fine := func(*site, string) Finding { return Finding{Outcome: Reachable} }
	hang := func() { r, _, _ := os.Pipe(); r.Read(make([]byte, 1)) }
	block := func() { // in the kernel, where the runtime cannot see it
		var p [2]int
		unix.Pipe(p[:])
		unix.Syscall(unix.SYS_READ, uintptr(p[0]), uintptr(unsafe.Pointer(&p)), 1)
	}
	list := []Check{
		{ID: "hang.first", Worker: "hang", try: fine},
		{ID: "hang.try", Worker: "hang", try: func(*site, string) Finding { hang(); return fine(nil, "") }},
		{ID: "hang.kernel", Worker: "hang", try: func(*site, string) Finding { block(); return fine(nil, "") }},
		{ID: "hang.one", Worker: "hang", targets: to("a", "b", "c"), try: func(_ *site, t string) Finding {
			if t == "b" {
				hang()
			}
			return fine(nil, "")
		}},
		{ID: "hang.listing", Worker: "hang", targets: func(*site) []string { block(); return nil }, try: fine},
		{ID: "hang.last", Worker: "hang", try: fine},
		{ID: "die.exit", Worker: "die", try: func(*site, string) Finding { os.Exit(7); panic("") }},
		{ID: "die.panic", Worker: "die", try: func(*site, string) Finding { panic("on purpose") }},
		{ID: "die.segv", Worker: "die", try: func(*site, string) Finding {
			defaultAction(unix.SIGSEGV)
			unix.Kill(os.Getpid(), unix.SIGSEGV)
			hang()
			return fine(nil, "")
		}},
		{ID: "die.kill", Worker: "die", try: func(*site, string) Finding { unix.Kill(os.Getpid(), unix.SIGKILL); hang(); return fine(nil, "") }},
		{ID: "die.sys", Worker: "die", try: func(*site, string) Finding { unix.Kill(os.Getpid(), unix.SIGSYS); hang(); return fine(nil, "") }},
		{ID: "die.garbage", Worker: "die", try: func(*site, string) Finding { os.Stdout.WriteString("not json\n"); hang(); return fine(nil, "") }},
		{ID: "die.last", Worker: "die", try: fine},
		{ID: "side.many", Worker: classNetOut, targets: to("a", "b", "c", "d"), try: func(_ *site, t string) Finding {
			switch t {
			case "b", "d":
				hang()
			}
			return fine(nil, "")
		}},
		{ID: "side.die", Worker: classNetOut, targets: to("a", "b", "c"), try: func(_ *site, t string) Finding {
			if t == "b" {
				os.Exit(9)
			}
			return fine(nil, "")
		}},
		{ID: "none.none", Worker: "none", targets: to(), none: nothing(Absent, "nothing to try"), try: fine},
		{ID: "skip.it", Worker: "none", try: fine},
	}
	for i := range list {
		list[i].Group, list[i].Severity, list[i].What, list[i].Why = "test", "low", "a test", "a test"
		list[i].limit = 300 * time.Millisecond
	}
	return list
}

// program is a copy of this test binary that any user can run.
func program(t *testing.T) string {
	t.Helper()
	dir := publicDir(t)
	p := filepath.Join(dir, "probe.test")
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// publicDir is a temporary folder that the ordinary user owns.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "probe-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(dir, sandboxtest.Nobody, sandboxtest.Nobody); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ordinary makes a command run as an ordinary user.
func ordinary(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: sandboxtest.Nobody, Gid: sandboxtest.Nobody}
	}
	return cmd
}

// startCanary starts the canary listeners in a process of the ordinary user.
func startCanary(t *testing.T, prog, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "canary.json")
	cmd := ordinary(exec.Command(prog, "__canary", file))
	cmd.Env = []string{"TMPDIR=" + dir}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	var b [6]byte
	if _, err := io.ReadFull(out, b[:]); err != nil {
		t.Fatalf("the canary did not start: %v", err)
	}
	return file
}

// inside is one place to probe from.
type inside struct {
	spec subjectSpec
	wrap []string // a command that runs the subject
	env  []string
	dir  string // working directory
	root bool   // start as root, for a spec that needs it
	ns   uintptr
}

// report probes from there.
func (in inside) report(t *testing.T, prog string) (Report, time.Duration) {
	t.Helper()
	start := time.Now()
	out, err := in.command(t, prog).Output()
	took := time.Since(start)
	if err != nil {
		t.Fatalf("the subject failed: %v\n%s", err, stderrOf(err))
	}
	r, err := Decode("the subject's report", strings.NewReader(string(out)))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r, took
}

func stderrOf(err error) string {
	if e, ok := err.(*exec.ExitError); ok {
		return string(e.Stderr)
	}
	return ""
}

func (in inside) command(t *testing.T, prog string) *exec.Cmd {
	t.Helper()
	if !in.spec.Table {
		in.spec.Options.Skip = append(in.spec.Options.Skip, "net.dns.udp", "net.dns.tcp", "slurm.conf.server") // no traffic off this machine
	}
	spec, err := json.Marshal(in.spec)
	if err != nil {
		t.Fatal(err)
	}
	argv := append(append([]string{}, in.wrap...), prog, "__subject")
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	if !in.root {
		ordinary(cmd)
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags = in.ns
	cmd.Dir = in.dir
	// The race detector makes every process wait a second at its end.
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), subjectVar + "=" + string(spec), "GORACE=atexit_sleep_ms=0"}, in.env...)
	if in.spec.Table {
		cmd.Env = append(cmd.Env, tableVar+"=1")
	}
	return cmd
}

// want checks findings: each line is "id[target] outcome mechanism errno",
// where "-" stands for anything and outcomes may be alternatives: "a|b".
func want(t *testing.T, r Report, lines ...string) {
	t.Helper()
	found := map[string]Finding{}
	for _, f := range r.Checks {
		found[f.Key().String()] = f
	}
	for _, l := range lines {
		w := strings.Fields(l)
		f, ok := found[w[0]]
		if !ok {
			t.Errorf("%s: no such finding", w[0])
			continue
		}
		for i, have := range []string{string(f.Outcome), f.Mechanism, f.Errno, f.Syscall} {
			if i+1 >= len(w) || w[i+1] == "-" {
				continue
			}
			match := false
			for _, alt := range strings.Split(w[i+1], "|") {
				match = match || alt == have
			}
			if !match {
				t.Errorf("%s: want %q, got %s %s %s %s: %s", w[0], strings.Join(w[1:], " "), f.Outcome, f.Mechanism, f.Errno, f.Syscall, f.Evidence)
				break
			}
		}
	}
}

// noFaults fails for findings that say that the probe failed, but for the ids
// that may.
func noFaults(t *testing.T, r Report, but ...string) {
	t.Helper()
next:
	for _, f := range r.Checks {
		if f.Outcome != Error && f.Outcome != Timeout {
			continue
		}
		for _, id := range but {
			if f.ID == id || f.Key().String() == id {
				continue next
			}
		}
		t.Errorf("%s: %s: %s", f.Key(), f.Outcome, f.Evidence)
	}
}
