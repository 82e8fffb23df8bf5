package sandboxtest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRun_DropsRoot(t *testing.T) {
	Run(t, func(t *testing.T) {
		if !InChild() {
			t.Error("not in a child")
		}
		if os.Getuid() == 0 {
			t.Error("still root")
		}
	})
}

func TestRun_NamesSubtestsExactly(t *testing.T) {
	for _, name := range []string{"a", "a(b)", "a b"} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(t *testing.T) {
				if want := t.Name(); !strings.HasSuffix(want, "/child") {
					t.Errorf("running %s", want)
				}
			})
		})
	}
}

// Each way in which a child can end without having done its work must fail the
// parent: the test runs itself with one of them chosen and looks at the result.
func TestRun_NoticesChildrenThatDoNotFinish(t *testing.T) {
	if os.Getenv("SANDBOXTEST_HOW") == "" {
		for how, want := range map[string]string{
			"ok":    "PASS",
			"skip":  "in the child: no such thing here",
			"fail":  "the child failed, exit status 1",
			"exit0": "without its end mark",
			"exit3": "the child failed, exit status 3",
			"kill":  "the child failed, signal: killed",
			"panic": "the child failed, exit status 2",
			"hang":  "the child did not end in",
			"tskip": "without its end mark",
		} {
			cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
			cmd.Env = append(os.Environ(), "SANDBOXTEST_HOW="+how, "TEST_REQUIRED=")
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: output without %q:\n%s", how, want, out)
			}
			if passes := how == "ok" || how == "skip"; passes != (err == nil) {
				t.Errorf("%s: the test ended with %v:\n%s", how, err, out)
			}
		}
		return
	}
	Child{Timeout: 2 * time.Second}.Run(t, func(t *testing.T) {
		switch os.Getenv("SANDBOXTEST_HOW") {
		case "skip":
			Skip(t, "no such thing here")
		case "fail":
			t.Error("as asked")
		case "exit0":
			os.Exit(0)
		case "exit3":
			os.Exit(3)
		case "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "panic":
			panic("as asked")
		case "hang":
			time.Sleep(time.Hour)
		case "tskip":
			t.Skip("without saying so to the parent")
		}
	})
}

func TestSkip_FailsWhereRequired(t *testing.T) {
	if os.Getenv("SANDBOXTEST_HOW") != "" {
		Skip(t, "nothing")
	}
	for required, want := range map[string]bool{"": true, "1": false} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "SANDBOXTEST_HOW=x", "TEST_REQUIRED="+required)
		if err := cmd.Run(); (err == nil) != want {
			t.Errorf("TEST_REQUIRED=%q: %v", required, err)
		}
	}
}
