package kernels_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"fence/test/kernels"
)

// build builds a program of the tests, static, for the guest.
func build(t *testing.T, arch, pkg string) string {
	t.Helper()
	return goTool(t, arch, filepath.Base(pkg), "build", pkg)
}

func goTool(t *testing.T, arch, name string, words ...string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	args := append(slices.Clone(words[:len(words)-1]), "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", to, words[len(words)-1])
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
	return to
}

// abiwrap's own tests on each kernel: what it thinks that an ABI is, is what the kernel of that ABI says.
func TestAbiwrap(t *testing.T) {
	for _, k := range kernels.Fetched(t) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			files := []kernels.File{
				{Path: "/usr/bin/abiwrap", From: build(t, k.Arch, "fence/test/abiwrap")},
				{Path: "/usr/bin/abiwrap.test", From: goTool(t, k.Arch, "abiwrap.test", "test", "-c", "fence/test/abiwrap")},
			}
			r := kernels.Boot(t, kernels.Spec{Kernel: k, Files: files, Commands: []kernels.Command{{
				Argv: []string{"/usr/bin/abiwrap.test", "-test.v"}, Env: []string{"ABIWRAP=/usr/bin/abiwrap"},
				Set: map[string]string{"kernel.yama.ptrace_scope": "1"}, Seconds: 300,
			}}})
			o := r.Outcomes[0]
			if o.Exit != 0 || o.Killed || !bytes.Contains(o.Stdout, []byte("--- PASS: TestRealKernel")) {
				t.Errorf("Landlock ABI %d: %s", r.Facts.LandlockABI, show(o))
			}
			t.Logf("Landlock ABI %d; %v in all", r.Facts.LandlockABI, r.Took.Round(1e8))
		})
	}
}
