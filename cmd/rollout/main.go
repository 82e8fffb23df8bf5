// Command rollout runs tasks in containers behind the fence: an agent acts, the
// task's tests judge, and what came of it is kept in Harbor's layout.
package main

import (
	"os"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/apptainer"
	"fence/pkg/cli"
)

func main() {
	apptainer.Main() // what starts Apptainer begins as this program
	os.Exit(cli.Main(app(), os.Args))
}

const help = `Runs tasks in Harbor's format under Apptainer, as an ordinary user: a container
for each trial, with nothing of the site in it, in which an agent acts and then
the task's tests judge. Every command of either is behind fence; the tests are
above the agent, which can neither see nor change them or their verdict.

  sifbuild build tasks/ --cache $SIF_CACHE |
      rollout validate - --out $RUN
  rollout run tasks/ --sif-cache $SIF_CACHE --agent oracle --out $RUN
  rollout report $RUN

A trial that broke has a fault and no reward: it is not a task that was failed.
The same command again continues where it was ended.

Exit codes, of every subcommand:
  0  every trial has a verdict; of validate: and each is as it must be
  1  validate, replay: the answer is no
  2  wrong flags, no task to be found, or a node that cannot run trials
  3  some trial ended in a fault, or was not run; the records say why`

func app() *urfave.App {
	return &urfave.App{
		Name:        "rollout",
		Usage:       "tasks and an agent to trials and rewards, each behind the fence",
		UsageText:   "rollout run|validate|replay|report|show ...",
		Description: help,
		Action: func(c *urfave.Context) error {
			if name := c.Args().First(); name != "" {
				return notACommand(name)
			}
			return urfave.ShowAppHelp(c)
		},
		Commands: commands(),
	}
}

func commands() []*urfave.Command {
	return []*urfave.Command{runCmd(), validateCmd(), replayCmd(), reportCommand(), showCommand()}
}

func notACommand(name string) error {
	var names []string
	for _, c := range commands() {
		names = append(names, c.Name)
	}
	hint := "run 'rollout --help' for the subcommands"
	if near := cli.Suggest(name, names); near != "" {
		hint = "did you mean 'rollout " + near + "'?"
	}
	return cli.Usagef(hint, "%q is not a subcommand", name)
}
