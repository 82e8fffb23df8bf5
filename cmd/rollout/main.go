// Command rollout runs agents on tasks, each in a container of its own and
// inside the fence, and reports what came of it.
package main

import (
	"os"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
)

func main() { os.Exit(cli.Main(app(), os.Args)) }

func app() *urfave.App {
	return &urfave.App{
		Name: "rollout", Usage: "agents on tasks", UsageText: "rollout report|show ...",
		Description: "Exit codes are each subcommand's.",
		Commands:    []*urfave.Command{reportCommand(), showCommand()},
	}
}
