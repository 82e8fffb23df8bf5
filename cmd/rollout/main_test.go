package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"fence/pkg/cli"
	"fence/test/clitest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"rollout": func() { os.Exit(cli.Main(app(), os.Args)) }})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}
