package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/step"
	"fence/test/bed"
	"fence/test/clitest"
)

func TestMain(m *testing.M) {
	step.Main()      // a step of a build begins as this program
	apptainer.Main() // and so does what starts Apptainer
	testscript.Main(m, map[string]func(){"sifbuild": main})
}

func TestHelp(t *testing.T) { clitest.Help(t, "sifbuild", app().Commands) }

func TestFullDisk(t *testing.T) {
	clitest.FullDisk(t, "sifbuild", app().Commands, map[string][]string{
		"":           {"--help", "--version", "help build"},
		"plan":       {"--help", "testdata/tasks", "testdata/tasks --json"},
		"build":      {"--help", "testdata/tasks --dry-run"},
		"def":        {"testdata/tasks/one/Dockerfile"},
		"check":      {"--help"},
		"gc":         {"--help"},
		"wheelhouse": {"--help"},
	})
}

// The scripts run sifbuild as an ordinary user without subordinate ids, in a
// folder of that user's: user CODE ARGS... is "sifbuild ARGS", which has to end
// with that code. They have $ROOTS, the root folders of the test bed, and
// $APPTAINER, a folder for PATH. Without it there is no Apptainer.
func TestScripts(t *testing.T) {
	bed.Require(t, "users", "images")
	bin := bed.Bin(t, "sifbuild")
	if beside := filepath.Join(filepath.Dir(bin), "fence"); beside != bed.Bin(t, "fence") {
		t.Fatalf("fence is not beside %s", bin)
	}
	uid, gid, _ := bed.User(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(err)
	}
	person := func(argv ...string) []string {
		if os.Geteuid() != 0 {
			return argv
		}
		return append([]string{setpriv, "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(gid), "--clear-groups", "--"}, argv...)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		WorkdirRoot:         bed.TempDir(t),
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("ROOTS", filepath.Join(bed.Dir(), "roots"))
			env.Setenv("APPTAINER", filepath.Join(bed.Dir(), "bin"))
			env.Setenv("BIN", filepath.Dir(bin))
			env.Setenv("SLURM_JOB_ID", "1") // what is said outside a job, and shortly before its end, has a script of its own
			env.Setenv("SLURM_JOB_END_TIME", "9999999999")
			env.Setenv("TMPDIR", filepath.Join(env.WorkDir, "scratch"))
			if err := os.Mkdir(filepath.Join(env.WorkDir, "scratch"), 0o755); err != nil {
				return err
			}
			return filepath.WalkDir(env.WorkDir, func(p string, _ os.DirEntry, err error) error {
				if err == nil {
					err = os.Lchown(p, uid, gid)
				}
				return err
			})
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, errors.New("there is only [root]")
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits,
			"user": func(ts *testscript.TestScript, _ bool, args []string) {
				if len(args) < 1 {
					ts.Fatalf("usage: user CODE [ARG...]")
				}
				if code := clitest.Run(ts, person(append([]string{bin}, args[1:]...)...)); strconv.Itoa(code) != args[0] {
					ts.Fatalf("exit code %d, want %s", code, args[0])
				}
				if text := ts.ReadFile("stderr"); strings.Contains(text, "goroutine ") {
					ts.Fatalf("it fell over:\n%s", text)
				}
			},
			"mounted": mounted,
			"nothing": nothing,
		},
	})
}

// mounted DIR OPTIONS mounts a tmpfs for the rest of the script, or an overlay:
// a disk that is full, read-only, or cannot hold another overlay.
func mounted(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: mounted DIR OPTIONS")
	}
	if os.Geteuid() != 0 {
		ts.Fatalf("only root mounts")
	}
	dir := ts.MkAbs(args[0])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		ts.Fatalf("%v", err)
	}
	kind := "tmpfs"
	if strings.Contains(args[1], "lowerdir=") {
		kind = "overlay"
	}
	if out, err := exec.Command("mount", "-t", kind, "-o", args[1], kind, dir).CombinedOutput(); err != nil {
		ts.Fatalf("%v\n%s", err, out)
	}
	ts.Defer(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// nothing DIR checks that nothing is in a folder and what is below it but
// folders: nothing that a build has not finished is left behind.
func nothing(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		err := filepath.WalkDir(ts.MkAbs(name), func(p string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				ts.Fatalf("%s is there", p)
			}
			return err
		})
		if err != nil {
			ts.Fatalf("%v", err)
		}
	}
}
