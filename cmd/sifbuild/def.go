package main

import (
	"errors"
	"fmt"
	"path/filepath"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/dockerfile"
	"fence/pkg/job"
)

func defCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "def",
		Usage:     "print an Apptainer definition that says what a Dockerfile does",
		UsageText: "sifbuild def DOCKERFILE [--context DIR]",
		Description: "The definition is for reading: it is not what 'sifbuild build' builds with. What\n" +
			"a definition cannot express is a comment in it.\n\n" +
			"Example:\n  sifbuild def tasks/a/environment/Dockerfile\n\n" +
			"Exit codes: 0 printed, 2 wrong flags or a Dockerfile that does not parse.",
		Flags: append(planFlags(), &urfave.StringFlag{Name: "context", Usage: "the build context, `DIR` (default: the Dockerfile's folder)"}),
		Action: func(c *urfave.Context) error {
			if c.NArg() != 1 {
				return cli.Usagef("sifbuild def tasks/a/environment/Dockerfile", "def takes one Dockerfile, got %d", c.NArg())
			}
			name := c.Args().First()
			data, err := dockerfile.Read(name)
			if err != nil {
				return cli.Usagef("name the Dockerfile itself", "%w", err)
			}
			env, err := newPlanner(c)
			if err != nil {
				return err
			}
			o := env.options()
			o.File, o.Context = name, c.String("context")
			if o.Context == "" {
				o.Context = filepath.Dir(name)
			}
			ctx, stop := job.Interruptible()
			defer stop()
			p, err := dockerfile.New(ctx, data, o)
			if err != nil {
				var e *dockerfile.Error
				if errors.As(err, &e) {
					return cli.Usagef(e.Hint, "%w", err)
				}
				return cli.Usagef("", "%w", err)
			}
			text, err := dockerfile.Definition(p)
			if err != nil {
				return cli.Usagef("", "%w", err)
			}
			fmt.Fprint(c.App.Writer, text)
			return nil
		},
	}
}
