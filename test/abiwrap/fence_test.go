package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fence/test/kernels"
)

// fence on this machine, told that its Landlock is another: each ABI, none, and RHEL 9's lie. What it must do with the attempts
// of a command is in test/kernels, whose kernels these are; here is that it runs the command or says what is missing.
func TestFence(t *testing.T) {
	needLandlock(t)
	built, err := os.ReadFile("../../bin/fence")
	if err != nil {
		kernels.SkipOrFail(t, "%v: make build", err)
	}
	fence := filepath.Join(filepath.Dir(self), "fence") // where an ordinary user may run it
	if err := os.WriteFile(fence, built, 0o755); err != nil {
		t.Fatal(err)
	}
	// As apptainer exec --pid leaves it: a user and pid namespace with its own /proc.
	alone := []string{"unshare", "-r", "-p", "-f", "--mount-proc"}
	run := func(argv ...string) (code int, stdout, stderr string) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr, cmd.Dir = ordinary(), "/"
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	if code, _, stderr := run(append(alone, "true")...); code != 0 {
		kernels.SkipOrFail(t, "an ordinary user gets no namespaces here: %s", stderr)
	}

	type kernel struct {
		flags string
		says  string // the missing thing, if the host's processes are visible
		never string // the missing thing in any case
	}
	list := []kernel{
		{flags: "--abi 0", never: "no Landlock (ENOSYS)"},
		{flags: "--abi 0 --no-landlock eopnotsupp", never: "no Landlock (EOPNOTSUPP)"},
		{flags: "--abi 6 --lie scope.signal", says: "Landlock (ABI 6) cannot keep signals in"},
		{flags: "--abi 6 --lie scope.abstract_unix"}, // its own network namespace stands in
		{flags: "--abi 6 --lie fs.ioctl_dev"},
	}
	for abi := 1; abi <= newestABI; abi++ {
		k := kernel{flags: fmt.Sprintf("--abi %d", abi)}
		if abi < 6 {
			k.says = fmt.Sprintf("Landlock (ABI %d) cannot keep signals in", abi)
		}
		list = append(list, k)
	}
	for _, k := range list {
		for _, private := range []bool{false, true} {
			argv := append(append([]string{wrapper}, strings.Fields(k.flags)...), "--")
			missing := k.never
			if private {
				argv = append(argv, alone...)
			} else if missing == "" {
				missing = k.says
			}
			code, stdout, stderr := run(append(argv, fence, "--policy", "strict", "--", "/bin/echo", "ran")...)
			switch {
			case missing == "" && (code != 0 || stdout != "ran\n" || stderr != ""):
				t.Errorf("%s, own processes %v: exit %d, %q %s", k.flags, private, code, stdout, stderr)
			case missing != "" && (code != 125 || stdout != "" || !strings.Contains(stderr, missing) || !strings.Contains(stderr, "\nhint: ")):
				t.Errorf("%s, own processes %v, to be refused for %q: exit %d, %q %s", k.flags, private, missing, code, stdout, stderr)
			}
		}
	}
}
