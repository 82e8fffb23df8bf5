package main

import (
	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
)

func replayCmd() *urfave.Command {
	return &urfave.Command{Name: "replay", Usage: "a trial again, in a fresh container", Action: func(*urfave.Context) error { return cli.Usagef("", "not yet") }}
}
