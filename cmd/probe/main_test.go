package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"fence/pkg/probe"
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
			"exits":  exits,
			"report": report,
		},
	})
}

// exits runs a program and checks its exit code: exits 3 probe gate a.json
func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG...]")
	}
	err, code := ts.Exec(args[1], args[2:]...), 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// report writes a report made by hand:
//
//	report FILE [fenced] [boot=ID] [version=V] ID[TARGET]=OUTCOME...
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
