package kernels_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fence/test/kernels"
)

// build builds a program or, with test, a package's test binary: static, for the guest.
func build(t *testing.T, pkg string, test bool) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(pkg))
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", to, pkg}
	if test {
		args = []string{"test", "-c", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", to, pkg}
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return to
}

// abiwrap's own tests on each kernel: what it thinks that an ABI is, is what the kernel of that ABI says.
func TestAbiwrap(t *testing.T) {
	list := kernels.Fetched(t)
	files := []kernels.File{
		{Path: "/usr/bin/abiwrap", From: build(t, "fence/test/abiwrap", false)},
		{Path: "/usr/bin/abiwrap.test", From: build(t, "fence/test/abiwrap", true)},
	}
	for _, k := range list {
		t.Run(k.Name, func(t *testing.T) {
			r := kernels.Boot(t, kernels.Spec{Kernel: k, Files: files, Commands: []kernels.Command{{
				Argv: []string{"/usr/bin/abiwrap.test", "-test.v"}, Env: []string{"ABIWRAP=/usr/bin/abiwrap"},
				Set: map[string]string{"kernel.yama.ptrace_scope": "1"}, Seconds: 120,
			}}})
			o := r.Outcomes[0]
			if o.Exit != 0 || o.Killed || !bytes.Contains(o.Stdout, []byte("--- PASS: TestRealKernel")) {
				t.Errorf("Landlock ABI %d: %s", r.Facts.LandlockABI, show(o))
			}
			t.Logf("Landlock ABI %d; %v in all", r.Facts.LandlockABI, r.Took.Round(1e8))
		})
	}
}
