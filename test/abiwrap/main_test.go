package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"fence/test/kernels"
)

var wrapper, self string

func TestMain(m *testing.M) {
	if mode := os.Getenv("ABIWRAP_CLIENT"); mode != "" {
		os.Exit(client(mode))
	}
	dir, err := os.MkdirTemp("", "abiwrap-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // another user runs them
	}
	if err == nil {
		wrapper, self = filepath.Join(dir, "abiwrap"), filepath.Join(dir, "client")
		if built := os.Getenv("ABIWRAP"); built != "" { // test/kernels brings one: there is no compiler in the guest
			wrapper = built
		}
	}
	if err == nil && os.Getenv("ABIWRAP") == "" {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", wrapper, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		err = cmd.Run()
	}
	if err == nil {
		err = copyTo(self)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func copyTo(path string) error {
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o755)
}

// ordinary is who the commands run as: an ordinary user, also where the tests run as root.
func ordinary() *syscall.SysProcAttr {
	if os.Getuid() != 0 {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// runClient runs the client in that mode, under the wrapper unless flags is nil, and returns what it said.
func runClient(t *testing.T, mode string, flags []string, set func(*exec.Cmd)) (said map[string]string, code int, stderr string) {
	t.Helper()
	argv := []string{self}
	if flags != nil {
		argv = append(append([]string{wrapper}, flags...), "--", self)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "ABIWRAP_CLIENT="+mode)
	cmd.SysProcAttr = ordinary()
	cmd.Dir = "/"
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if set != nil {
		set(cmd)
	}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &said); err != nil {
			t.Fatalf("the client said %q: %v", out.Bytes(), err)
		}
	}
	return said, cmd.ProcessState.ExitCode(), errs.String()
}

func needLandlock(t *testing.T) int {
	t.Helper()
	abi, err := realABI()
	if err != nil {
		t.Fatal(err)
	}
	if abi < 2 {
		kernels.SkipOrFail(t, "this kernel's Landlock ABI is %d: there is nothing to answer from", abi)
	}
	return abi
}

// wanted is what a kernel with this ABI says to the client's questions.
func wanted(abi int, lied rights) map[string]string {
	w := map[string]string{
		"version": strconv.Itoa(abi), "flag 4": "EINVAL", "version with a size": "EINVAL", "no attr": "EFAULT", "bad attr": "EFAULT",
		"fs.execute": "ok", "fs.1<<63": "EINVAL", "nothing": "ENOMSG", "size 7": "EINVAL", "size 64, zeroes": "ok", "size 64, not zero": "E2BIG",
		"size 5000": "E2BIG", "quiet": "ok", "quiet beyond handled": "EINVAL", "restrict": "EBADF",
	}
	has := rightsOf(abi).without(lied)
	for right, r := range lies {
		switch {
		case r.without(has).empty():
			w[right] = "ok"
		case r.net != 0 && abi < 4, r.scoped != 0 && abi < 6:
			w[right] = "E2BIG" // the struct has no such field there
		default:
			w[right] = "EINVAL"
		}
	}
	if abi < 10 {
		w["quiet"], w["quiet beyond handled"] = "E2BIG", "E2BIG"
	}
	for bit := range 3 {
		w[fmt.Sprintf("restrict flag %d", bit)] = "EINVAL"
		if abi >= 7 {
			w[fmt.Sprintf("restrict flag %d", bit)] = "EBADF"
		}
	}
	return w
}

func compare(t *testing.T, said, want map[string]string) {
	t.Helper()
	for what, w := range want {
		if said[what] != w {
			t.Errorf("%s: %q, want %q", what, said[what], w)
		}
	}
}

// The control: without the wrapper this kernel answers as rightsOf and attrSize say that its ABI does.
func TestRealKernel(t *testing.T) {
	abi := needLandlock(t)
	if abi > newestABI {
		kernels.SkipOrFail(t, "this kernel's Landlock ABI is %d, newer than what is known here", abi)
	}
	said, code, stderr := runClient(t, "ask", nil, nil)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	t.Logf("ABI %d, errata %s", abi, said["errata"])
	compare(t, said, wanted(abi, rights{}))
}

func TestClaims(t *testing.T) {
	abi := needLandlock(t)
	for claim := 1; claim <= newestABI; claim++ {
		t.Run(strconv.Itoa(claim), func(t *testing.T) {
			said, code, stderr := runClient(t, "ask", []string{"--abi", strconv.Itoa(claim), "--errata", "5"}, nil)
			if claim > abi && claim >= 7 && abi < 7 {
				if code != exitFault {
					t.Errorf("exit %d: flags that this kernel lacks were pretended", code)
				}
				return
			}
			if code != 0 {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			w := wanted(claim, rights{})
			w["errata"] = "5"
			compare(t, said, w)
		})
	}
}

// RHEL 9.7 says ABI 6 and refuses a right of it; a right that is not refused still works.
func TestLie(t *testing.T) {
	needLandlock(t)
	said, code, stderr := runClient(t, "ask", []string{"--abi", "6", "--lie", "scope.signal,fs.ioctl_dev", "--errata", "none"}, nil)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	w := wanted(6, rights{scoped: scopeSignal, fs: fsIoctlDev})
	w["errata"] = "EINVAL"
	compare(t, said, w)
	if said["scope.signal"] != "EINVAL" || said["scope.abstract_unix"] != "ok" || said["version"] != "6" {
		t.Errorf("%v", said)
	}
}

func TestNoLandlock(t *testing.T) {
	for _, errno := range []string{"ENOSYS", "EOPNOTSUPP"} {
		said, code, stderr := runClient(t, "ask", []string{"--abi", "0", "--no-landlock", strings.ToLower(errno)}, nil)
		if code != 0 {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		for what, s := range said {
			if s != errno {
				t.Errorf("%s: %s, want %s", what, s, errno)
			}
		}
	}
}

// What is claimed and what this kernel has, is enforced; the control can do all of it.
func TestEnforces(t *testing.T) {
	abi := needLandlock(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := func(t *testing.T) func(*exec.Cmd) {
		d := t.TempDir()
		for _, f := range []string{"open/sub/x", "closed/file", "closed/other"} {
			if err := os.MkdirAll(filepath.Join(d, filepath.Dir(f)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d, f), []byte("xx"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for p := d; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
			_ = os.Chmod(p, 0o755)
		}
		if c := ordinary().Credential; c != nil {
			err := filepath.WalkDir(d, func(p string, _ os.DirEntry, err error) error { return os.Lchown(p, int(c.Uid), int(c.Gid)) })
			if err != nil {
				t.Fatal(err)
			}
		}
		return func(cmd *exec.Cmd) {
			cmd.Dir = d
			cmd.Env = append(cmd.Env, "ABIWRAP_TCP="+l.Addr().String())
		}
	}
	all := map[string]string{"read": "ok", "write": "ok", "write open": "ok", "truncate": "ok", "rename": "ok", "connect": "ok", "signal": "ok"}
	// Without the wrapper the parent is the test, which may be another user's: signal is left to the wrapped control.
	control, code, stderr := runClient(t, "control", nil, dir(t))
	delete(control, "signal")
	if len(control) != len(all)-1 || code != 0 {
		t.Fatalf("exit %d: %s %v", code, stderr, control)
	}
	for what, s := range control {
		if s != "ok" {
			t.Errorf("control: %s: %s", what, s)
		}
	}
	for claim := 1; claim <= newestABI; claim++ {
		t.Run(strconv.Itoa(claim), func(t *testing.T) {
			flags := []string{"--abi", strconv.Itoa(claim)}
			said, code, stderr := runClient(t, "control", flags, dir(t))
			if code != 0 {
				t.Fatalf("control: exit %d: %s", code, stderr)
			}
			compare(t, said, all)

			said, code, stderr = runClient(t, "enforce", flags, dir(t))
			if code != 0 {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			w := map[string]string{"ruleset": "ok", "rule /": "ok", "rule open": "ok", "rule of nothing": "ENOMSG", "rule of an unknown right": "EINVAL",
				"rule port": "ok", "restrict": "ok", "read": "ok", "write": "EACCES", "write open": "ok", "truncate": "ok", "rename": "EXDEV", "connect": "ok", "signal": "ok"}
			has := min(claim, abi)
			if claim < 4 {
				w["rule port"] = "EINVAL"
			}
			if claim >= 10 {
				w["rule udp port"] = "ok"
			}
			if has >= 2 {
				w["rename"] = "ok"
			}
			if has >= 3 {
				w["truncate"] = "EACCES"
			}
			if has >= 4 {
				w["connect"] = "EACCES"
			}
			if has >= 6 {
				w["signal"] = "EPERM"
			}
			compare(t, said, w)
		})
	}
}

func TestStatusAndDescriptors(t *testing.T) {
	for mode, want := range map[string]int{"exit": 3, "signal": 128 + 9} {
		if _, code, stderr := runClient(t, mode, []string{"--abi", "5"}, nil); code != want {
			t.Errorf("%s: exit %d, want %d: %s", mode, code, want, stderr)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, code, stderr := runClient(t, "fd3", []string{"--abi", "5"}, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{w} })
	w.Close()
	got := make([]byte, 100)
	n, _ := r.Read(got)
	if string(got[:n]) != "by descriptor 3\n" || code != 0 {
		t.Errorf("exit %d, %q on descriptor 3: %s", code, got[:n], stderr)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"--abi 12 -- true", "--abi 5", "-- true", "--abi 6 --lie scope.nothing -- true", "--abi 0 --no-landlock eperm -- true", "--abi 6 --errata x -- true"} {
		cmd := exec.Command(wrapper, strings.Fields(args)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != exitUsage || !strings.HasPrefix(string(out), "abiwrap: ") {
			t.Errorf("%s: exit %d, %s", args, cmd.ProcessState.ExitCode(), out)
		}
	}
}

// What cannot be answered truly ends the run; nothing goes on with a wrong answer.
func TestFaults(t *testing.T) {
	abi := needLandlock(t)
	if abi < 8 {
		said, code, stderr := runClient(t, "tsync", []string{"--abi", "8"}, nil)
		if code != exitFault || said != nil || !strings.Contains(stderr, "cannot be pretended") {
			t.Errorf("a flag that this kernel lacks: exit %d, %v, %s", code, said, stderr)
		}
	}
	if said, code, stderr := runClient(t, "tsync", []string{"--abi", "7"}, nil); code != 0 || said["tsync"] != "EINVAL" {
		t.Errorf("the control: exit %d, %v, %s", code, said, stderr)
	}
	said, code, stderr := runClient(t, "undumpable", []string{"--abi", "7"}, nil)
	if code != exitFault || said != nil || !strings.Contains(stderr, "run abiwrap as root with --uid") {
		t.Errorf("a caller that is not dumpable: exit %d, %v, %s", code, said, stderr)
	}
	if os.Getuid() != 0 {
		kernels.SkipOrFail(t, "only root can read the arguments of a command that is not dumpable")
	}
	said, code, stderr = runClient(t, "undumpable", []string{"--abi", "7", "--uid", "65534"}, func(c *exec.Cmd) { c.SysProcAttr = nil })
	if code != 0 || said["fs.read_file"] != "ok" {
		t.Errorf("the same with --uid: exit %d, %v, %s", code, said, stderr)
	}
}
