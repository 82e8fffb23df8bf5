package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"fence/pkg/apptainer"
	"fence/test/clitest"
)

func TestMain(m *testing.M) {
	apptainer.Main() // what starts Apptainer begins as this program
	testscript.Main(m, map[string]func(){"rollout": main})
}

func TestHelp(t *testing.T) { clitest.Help(t, "rollout", app().Commands) }

func TestFullDisk(t *testing.T) {
	clitest.FullDisk(t, "rollout", app().Commands, map[string][]string{
		"":         {"--help", "--version", "help run"},
		"run":      {"--help"},
		"validate": {"--help"},
		"replay":   {"--help"},
		"report":   {"--help"},
		"show":     {"--help"},
	})
}

// The scripts have programs in PATH that are called as those that a trial needs
// and do nothing: no container is started.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}
