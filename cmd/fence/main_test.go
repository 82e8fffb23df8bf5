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

	"fence/pkg/nodecheck"
	"fence/test/clitest"
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
			"exits":   clitest.Exits,
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

func TestHelp(t *testing.T) { clitest.Help(t, "fence", commands().Commands) }

// What cannot be printed is no answer: half a list of exports would be worse
// than none.
func TestFullDisk(t *testing.T) {
	clitest.FullDisk(t, "fence", commands().Commands, map[string][]string{
		"":         {"--help", "--version", "help env"},
		"env":      {"", "--help"},
		"check":    {"", "--json"},
		"explain":  {"--policy build --form auto", "--policy build --json"},
		"policies": {"", "strict"},
		"serve":    {"--help"},
		"run":      {"--help"},
		"put":      {"--help"},
		"get":      {"--help"},
	})
}

// A person who types a relative path should not have to guess why it is not
// there: on a terminal fence says that the working folder was left.
func TestMoved_SaidOnATerminal(t *testing.T) {
	if namespaces, err := condition("namespace"); err != nil {
		t.Fatal(err)
	} else if !namespaces && os.Getenv("TEST_REQUIRED") == "1" {
		t.Fatal("no namespaces here")
	} else if !namespaces {
		t.Skip("no namespaces here")
	}
	screen, tty := clitest.Terminal(t, 80)
	dir := t.TempDir()
	cmd := exec.Command("fence", "--hide", dir, "--", "true")
	cmd.Dir, cmd.Stderr = dir, tty
	err := cmd.Run()
	tty.Close()
	said, _ := io.ReadAll(screen) // until the last of its other side is closed
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
	if code := clitest.Run(ts, argv); strconv.Itoa(code) != args[0] {
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
