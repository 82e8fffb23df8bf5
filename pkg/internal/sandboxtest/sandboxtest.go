// Package sandboxtest runs part of a test in a process of its own, so that it
// can do to itself what cannot be undone: drop its user, restrict itself,
// fill its tables.
//
//	func TestFilterDeniesMount(t *testing.T) {
//		sandboxtest.Run(t, func(t *testing.T) {
//			load(t, filter)
//			if err := mount(); err != unix.EPERM { t.Errorf(...) }
//		})
//	}
//
// The child is the test binary again, told to run the same test. What stands
// before Run in the test function happens in both processes; what follows it
// happens only in the parent.
//
// The child passes only if it ends with status 0 and has printed an end mark
// that a dead, silenced or replaced process cannot have printed. A child that
// a filter killed, that exited early or that ran no test is a failure.
//
// A test of a denial has three parts: the same attempt works (or fails in
// another way) in a child without the restriction; with it, the exact error;
// and something next to it still works.
package sandboxtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Nobody is the user and group that children run as if the test runs as root.
const Nobody = 65534

// markVar tells a child that it is one, and what to print at its end.
const markVar = "SANDBOXTEST_MARK"

var childMark = os.Getenv(markVar)

// Child says how the child is started. The zero Child is what Run uses: an
// ordinary user, 60 seconds.
type Child struct {
	Root    bool          // stay root if the test is
	Env     []string      // added to the environment
	Files   []*os.File    // inherited, from descriptor 3 on
	Timeout time.Duration // 0: 60 seconds
	Attr    *syscall.SysProcAttr
}

// Run runs f in a child process as an ordinary user. See Child.Run.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	Child{}.Run(t, f)
}

// InChild says whether this process is a child of Run.
func InChild() bool { return childMark != "" }

// Run runs f in a child process and fails the test if the child fails. A child
// that skips (by Skip) skips the test. At most one Run can stand in a test
// function; use subtests for more.
func (c Child) Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if InChild() {
		os.Unsetenv(markVar) // the child's own children are none of Run's
		done := false
		ok := t.Run("child", func(t *testing.T) { // a subtest, so that its cleanups run before the end
			f(t)
			done = true // not reached by a skip, which t.Run calls a success
		})
		if ok && done {
			fmt.Printf("\n%s end\n", childMark)
			os.Exit(0)
		}
		if !ok {
			t.FailNow()
		}
		t.SkipNow() // no mark: the parent skips if Skip said why, and fails otherwise
	}

	mark := "sandboxtest " + rand.Text()
	timeout := c.Timeout
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	// /proc/self/exe and not the path: an ordinary user cannot reach the folder
	// that "go test" builds in.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run="+pattern(t.Name()), "-test.v", "-test.count=1")
	cmd.Env = append(append(os.Environ(), c.Env...), markVar+"="+mark)
	cmd.ExtraFiles = c.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if c.Attr != nil {
		*cmd.SysProcAttr = *c.Attr
	}
	if os.Geteuid() == 0 && !c.Root && cmd.SysProcAttr.Credential == nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: Nobody, Gid: Nobody}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()

	switch text := string(out); {
	case ctx.Err() != nil:
		t.Fatalf("the child did not end in %v:\n%s", timeout, text)
	case err == nil && strings.Contains(text, "\n"+skipMark):
		_, why, _ := strings.Cut(text, "\n"+skipMark)
		why, _, _ = strings.Cut(why, "\n")
		t.Skip("in the child: " + why)
	case err != nil:
		t.Fatalf("the child failed, %v:\n%s", err, text)
	case strings.Contains(text, "\n"+mark+" end\n"):
		if testing.Verbose() {
			t.Logf("child:\n%s", text)
		}
	default:
		t.Fatalf("the child ended with status 0 but without its end mark:\n%s", text)
	}
}

const skipMark = "sandboxtest skip: "

// Skip skips the test because this machine lacks something. Where the
// environment says TEST_REQUIRED=1, as in CI, that is a failure.
func Skip(t *testing.T, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...)
	if os.Getenv("TEST_REQUIRED") == "1" {
		t.Fatalf("TEST_REQUIRED=1, but: %s", why)
	}
	fmt.Printf("\n%s%s\n", skipMark, why)
	t.Skip(why)
}

// pattern is the -test.run pattern that matches the named test and no other.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
