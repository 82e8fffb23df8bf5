package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"fence/pkg/nodecheck"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"fence": main})
}

// The scripts run the real fence: namespaces, Landlock and all. Each begins in
// a folder of its own, in which the file names and line numbers of messages
// are always the same. In files, @WORK@ stands for that folder.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup:               fillIn,
		Condition:           condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"refused": refused,
		},
	})
}

func fillIn(env *testscript.Env) error {
	files, err := filepath.Glob(filepath.Join(env.WorkDir, "*.toml"))
	for _, f := range files {
		var data []byte
		if data, err = os.ReadFile(f); err != nil {
			return err
		}
		if err = os.WriteFile(f, []byte(strings.ReplaceAll(string(data), "@WORK@", env.WorkDir)), 0o644); err != nil {
			return err
		}
	}
	return err
}

// condition is [namespace]: whether this node has what the namespace form
// takes.
func condition(name string) (bool, error) {
	if name != "namespace" {
		return false, errors.New("there is only [namespace]")
	}
	h := nodecheck.Detect()
	if !h.UserNS.OK || !h.MountNS.OK || h.Landlock.FS == 0 {
		if os.Getenv("TEST_REQUIRED") == "1" {
			return false, errors.New("TEST_REQUIRED=1, and this node has no namespaces or no Landlock")
		}
		return false, nil
	}
	return true, nil
}

// exits runs a program and checks its exit code, that of a shell if a signal
// ended it: exits 3 fence -- false
func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	if code := run1(ts, args[1:]); strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func run1(ts *testscript.TestScript, argv []string) int {
	err := ts.Exec(argv[0], argv[1:]...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		ts.Fatalf("%v", err)
	}
	if st := exit.Sys().(interface {
		Signaled() bool
		Signal() unix.Signal
	}); st.Signaled() {
		return 128 + int(st.Signal())
	}
	return exit.ExitCode()
}

// A person who types a relative path should not have to guess why it is not
// there: on a terminal fence says that the working folder was left.
func TestMoved_SaidOnATerminal(t *testing.T) {
	if namespaces, err := condition("namespace"); err != nil || !namespaces {
		t.Skip("no namespaces here", err)
	}
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	fd := int(ptmx.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("fence", "--hide", dir, "--", "true")
	cmd.Dir, cmd.Stderr = dir, tty
	err = cmd.Run()
	tty.Close()
	said, _ := io.ReadAll(ptmx) // until the last of its other side is closed
	if want := "fence: the working folder is /: " + dir + " is out of the command's reach\r\n"; err != nil || string(said) != want {
		t.Errorf("%v, and the terminal shows %q, want %q", err, said, want)
	}
}

// What fence says when it refuses: one line of its own, then hints.
var message = regexp.MustCompile(`^fence: [^\n]+\n(hint: [^\n]+\n)*$`)

// refused runs fence with the flags before a "--" and, behind it, a command
// that leaves a mark in two ways, and checks that neither is there:
//
//	refused CODE [FLAG...]        with the policy of the flags, or
//	refused CODE [FLAG...] -- COMMAND...
//
// control.toml opens the folder of the mark, so that it would be there.
func refused(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 1 {
		ts.Fatalf("usage: refused CODE [FLAG...] [-- COMMAND...]")
	}
	mark := ts.MkAbs("mark/ran")
	argv := append([]string{"fence"}, args[1:]...)
	if !strings.Contains(" "+strings.Join(args, " ")+" ", " -- ") {
		argv = append(argv, "--", "sh", "-c", "echo ran; : >"+mark)
	}
	if code := run1(ts, argv); strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("something ran: it printed %q", out)
	}
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		ts.Fatalf("something ran: %s (%v)", mark, err)
	}
	if text := ts.ReadFile("stderr"); !message.MatchString(text) {
		ts.Fatalf("not one line and hints:\n%s", text)
	}
}
