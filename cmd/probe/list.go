package main

import (
	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/probe"
)

func listCmd() *urfave.Command {
	return &urfave.Command{
		Name:  "list",
		Usage: "say what every check tries, and why that matters on a cluster",
		Description: `Examples:
  probe list | less
  probe list --json | jq -r 'select(.severity == "high") | .id'

With --json, one probe.check/v1 record a line. Exit codes: 0 printed, 2 wrong
flags, 3 not all of it could be printed.`,
		Flags: []urfave.Flag{&urfave.BoolFlag{Name: "json", Usage: "print JSON records"}},
		Action: func(c *urfave.Context) error {
			if c.Args().Present() {
				return cli.Usagef("", "list takes no arguments, got %q", c.Args().First())
			}
			if c.Bool("json") {
				return probe.ListJSON(c.App.Writer)
			}
			return probe.ListTable(c.App.Writer, cli.Columns(c.App.Writer))
		},
	}
}
