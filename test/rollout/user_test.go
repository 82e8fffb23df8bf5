// Package rollout tests the parts of rollout in real containers of the test bed.
package rollout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fence/pkg/apptainer"
	"fence/test/bed"
)

func TestMain(m *testing.M) {
	apptainer.Main() // what starts Apptainer begins as this program
	code := m.Run()
	if public.dir != "" {
		os.RemoveAll(public.dir)
	}
	os.Exit(code)
}

// holdVar is the folder of TestHold.
const holdVar = "ROLLOUT_TEST_HOLD"

// asUserVar is set for the process in which an ordinary user runs a test.
const asUserVar = "ROLLOUT_TEST_AS_USER"

var public struct {
	once sync.Once
	dir  string
	err  error
}

// asUser has the test run once more, by the bed's ordinary user, if root runs
// it: then it returns false, and the test is over.
func asUser(t *testing.T) bool {
	t.Helper()
	bed.Require(t, "users", "images", "site")
	if os.Geteuid() != 0 {
		return true
	}
	if os.Getenv(asUserVar) != "" {
		t.Fatal("not an ordinary user")
	}
	out, err := userTest(t, asUserVar+"=1").CombinedOutput()
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) && err == nil {
		t.Fatalf("the test was not run\n%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// userTest is the test as the ordinary user runs it.
func userTest(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	public.once.Do(func() {
		public.dir, public.err = os.MkdirTemp("", "rollout-test-")
		if public.err == nil {
			public.err = os.Chmod(public.dir, 0o755)
		}
		if public.err != nil {
			return
		}
		compile := exec.Command("go", "test", "-c", "-o", filepath.Join(public.dir, "rollout.test"), ".")
		compile.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := compile.CombinedOutput(); err != nil {
			public.err = err
			t.Logf("%s", out)
		}
	})
	if public.err != nil {
		t.Fatal(public.err)
	}
	bins := filepath.Join(public.dir, "bin")
	if err := os.MkdirAll(bins, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fence", "probe"} {
		if err := os.Symlink(bed.Bin(t, name), filepath.Join(bins, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	cmd := bed.Command(t, filepath.Join(public.dir, "rollout.test"), "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(cmd.Env, append(env, "BED_BIN="+bins, "BED_DIR="+bed.Dir(), "TEST_REQUIRED="+os.Getenv("TEST_REQUIRED"))...)
	cmd.Dir = public.dir
	return cmd
}
