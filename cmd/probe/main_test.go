package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"

	"fence/pkg/probe"
	"fence/test/clitest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"probe": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   clitest.Exits,
			"report":  report,
			"waitfor": waitFor,
		},
	})
}

// waitFor waits until a file is there: waitfor FILE
func waitFor(ts *testscript.TestScript, _ bool, args []string) {
	for range 200 {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("%s did not appear", args[0])
}

func TestHelp(t *testing.T) { clitest.Help(t, "probe", app().Commands) }

// What cannot be printed is no answer.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "r.json")
	if out, err := exec.Command("probe", append([]string{"-o", file}, quick...)...).CombinedOutput(); err != nil && !strings.Contains(string(out), "without an answer") {
		t.Fatalf("%v\n%s", err, out)
	}
	some := strings.Join(quick, " ")
	clitest.FullDisk(t, "probe", app().Commands, map[string][]string{
		"":       {some, "--help", "--version", "help gate"},
		"run":    {some, "--help"},
		"list":   {"", "--json"},
		"diff":   {file + " " + file, "--json " + file + " " + file, "--markdown " + file + " " + file},
		"gate":   {file + " --expect strict", file + " --expect strict --json --before " + file},
		"listen": {"--help"},
	})
}

// quick are the flags of a run that has little to try.
var quick = []string{"--skip", "net", "--skip", "proc", "--skip", "fs", "--skip", "sys", "--skip", "work"}

// On a terminal a person reads: a table as wide as the terminal, no JSON.
func TestTerminal(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--skip", "net", "--skip", "proc", "--skip", "fs"}, "checks in "},
		{[]string{"list"}, "net.tcp.canary"},
	} {
		out := onTerminal(t, 72, tc.args...)
		if !strings.Contains(out, tc.want) || strings.Contains(out, `"schema"`) {
			t.Errorf("probe %q printed\n%s", tc.args, out)
		}
		for _, l := range strings.Split(out, "\n") {
			if utf8.RuneCountInString(strings.TrimRight(l, "\r")) > 72 {
				t.Errorf("probe %q: too wide: %s", tc.args, l)
			}
		}
	}
	if out := onTerminal(t, 80, "--json", "--skip", "net", "--skip", "proc", "--skip", "fs"); !strings.Contains(out, `"schema"`) {
		t.Errorf("--json printed\n%s", out)
	}
}

// onTerminal runs probe on a pseudo-terminal and returns what it showed.
func onTerminal(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	screen, tty := clitest.Terminal(t, columns)
	cmd := exec.Command("probe", args...)
	cmd.Stdin, cmd.Stdout = tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	out, _ := io.ReadAll(screen) // ends with EIO once nobody holds the terminal
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("probe %q: %v", args, err)
	}
	return string(out)
}

// report writes a report made by hand:
//
//	report FILE [fenced|host] [boot=ID] [version=V] ID[TARGET]=OUTCOME...
func report(ts *testscript.TestScript, _ bool, args []string) {
	r := probe.Report{
		Schema: probe.ReportSchema,
		Tool:   probe.Tool{Name: "probe", Version: "0.1.0"},
		Run:    probe.Run{Label: "before", Time: "2026-11-29T16:00:00Z", DurationMS: 2140, Argv: []string{"probe"}},
		Subject: probe.Subject{
			Hostname: "node17", BootID: "c0ffee00", Kernel: "6.12.0", Arch: "x86_64", UID: 1003, GID: 1003, Runtime: "apptainer",
		},
		Controls: probe.Controls{NoNewPrivs: true, Landlock: probe.LandlockState{ABI: 6}, CapEff: "0", CapBnd: "0"},
		Summary:  map[probe.Outcome]int{},
	}
	for _, a := range args[1:] {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "fenced":
			r.Run.Label, r.Run.Time = "after", "2026-11-29T16:00:09Z"
			r.Controls.Seccomp = probe.SeccompState{Mode: 2, Filters: 1}
			r.Controls.Landlock.Layers = 1
		case "host":
			r.Run.Label, r.Subject.Runtime = "host", ""
		case "boot":
			r.Subject.BootID = value
		case "version":
			r.Tool.Version = value
		default:
			id, target, _ := strings.Cut(strings.TrimSuffix(name, "]"), "[")
			f := probe.Finding{ID: id, Target: target, Group: strings.SplitN(id, ".", 2)[0], Severity: "high", Outcome: probe.Outcome(value)}
			r.Checks = append(r.Checks, f)
			r.Summary[f.Outcome]++
		}
	}
	ts.Check(probe.WriteFile(ts.MkAbs(args[0]), r))
}
