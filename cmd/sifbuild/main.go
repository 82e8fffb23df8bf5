// Command sifbuild makes Apptainer images out of task folders' Dockerfiles,
// as an ordinary user and without Docker: each distinct image once, cached,
// checked.
package main

import (
	"os"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/apptainer"
	"fence/pkg/cli"
	"fence/pkg/step"
)

func main() {
	step.Main()      // a step of a build begins as this program
	apptainer.Main() // and so does what starts Apptainer
	os.Exit(cli.Main(app(), os.Args))
}

const help = `Builds the images of tasks: folders that hold environment/Dockerfile, as in
Harbor's format, or just a Dockerfile. Each distinct image is built once, by
you, without root and without Docker: it needs user namespaces, or an Apptainer
that may make them (build --engine sandbox), and mksquashfs (Debian:
squashfs-tools). Every RUN line runs under fence, so it reaches the
network and nothing of yours.

  sifbuild plan tasks/
  sifbuild build tasks/ --cache $SIF_CACHE > images.jsonl
  sifbuild build tasks/ --cache $SIF_CACHE |
      rollout run - --agent oracle --out $RUN
  sifbuild check image.sif --require tmux,python3
  sifbuild wheelhouse tasks/ --out wheels --python 3.12

What differs from 'docker build' is in docs/sifbuild.md.

Exit codes, of every subcommand:
  0  every image is there; of check: and it is as it must be
  1  check only: the answer is no
  2  wrong flags, no task to be found, or a node that cannot build
  3  some image could not be built; the records say why`

func app() *urfave.App {
	return &urfave.App{
		Name:        "sifbuild",
		Usage:       "Dockerfiles of tasks to Apptainer images, without root",
		UsageText:   "sifbuild plan|build|def|check|wheelhouse|gc ...",
		Description: help,
		Action: func(c *urfave.Context) error {
			if name := c.Args().First(); name != "" {
				return notACommand(name)
			}
			return urfave.ShowAppHelp(c)
		},
		Commands: []*urfave.Command{planCmd(), buildCmd(), defCmd(), checkCmd(), wheelhouseCmd(), gcCmd()},
	}
}

func notACommand(name string) error {
	hint := "run 'sifbuild --help' for the subcommands"
	if near := cli.Suggest(name, []string{"plan", "build", "def", "check", "wheelhouse", "gc"}); near != "" {
		hint = "did you mean 'sifbuild " + near + "'?"
	}
	return cli.Usagef(hint, "%q is not a subcommand", name)
}
