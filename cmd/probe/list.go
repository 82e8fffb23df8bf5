package main

import (
	"os"

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
flags.`,
		Flags: []urfave.Flag{&urfave.BoolFlag{Name: "json", Usage: "print JSON records"}},
		Action: func(c *urfave.Context) error {
			if c.Args().Present() {
				return cli.Usagef("", "list takes no arguments, got %q", c.Args().First())
			}
			if c.Bool("json") {
				return answer(probe.Yes, probe.ListJSON(os.Stdout))
			}
			return answer(probe.Yes, probe.ListTable(os.Stdout, cli.Columns(os.Stdout)))
		},
	}
}
