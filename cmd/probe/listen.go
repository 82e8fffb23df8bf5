package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/probe"
)

func listenCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "listen",
		Usage:     "answer on TCP, UDP and Unix sockets of this node, until it is ended",
		UsageText: "probe listen --canary FILE &",
		Description: "A refused connection proves something only if there was something to reach.\n" +
			"FILE appears once all sockets answer, and goes with them; give it to the runs.\n" +
			"The sockets are open to everybody on the node, send back the one byte they get,\n" +
			"and lead nowhere.\n\n" +
			"Examples:\n" +
			"  probe listen --canary c.json &\n" +
			"  until test -e c.json; do sleep 0.1; done\n" +
			"  apptainer exec img.sif /.fence/probe --canary - < c.json > before.json\n\n" +
			"Exit codes: 0 it was ended by a signal, 2 wrong flags, 3 it could not listen.",
		Flags: []urfave.Flag{
			&urfave.StringFlag{Name: "canary", Usage: "the `FILE` to write"},
			&urfave.StringFlag{Name: "scratch", Usage: "folder `DIR` on this node for the Unix socket (default: $TMPDIR, else /tmp)"},
		},
		Action: func(c *urfave.Context) error {
			o := probe.ListenOptions{Canary: c.String("canary"), Scratch: c.String("scratch")}
			switch {
			case o.Canary == "":
				return cli.Usagef("probe listen --canary FILE", "listen needs --canary")
			case c.Args().Present():
				return cli.Usagef("the file is --canary FILE", "listen takes no arguments, got %q", c.Args().First())
			}
			o.Ready = func(ca *probe.Canary) {
				fmt.Fprintf(os.Stderr, "probe: listening on %d TCP, %d UDP and 2 Unix sockets; %s says where\n", len(ca.TCP), len(ca.UDP), o.Canary)
			}
			ctx, stop := interruptible()
			defer stop()
			err := probe.Listen(ctx, o)
			if err == nil {
				return nil
			}
			e := &cli.Error{Code: cli.Unknown, Err: err}
			var scratch *probe.ScratchError
			var file *fs.PathError
			switch {
			case errors.As(err, &scratch):
				e.Hint = "--scratch DIR puts the socket elsewhere: a folder with a short path, on this node"
			case errors.As(err, &file):
				e.Hint = "--canary FILE names a file in a folder that is there and can be written"
			}
			return e
		},
	}
}
