package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/probe"
)

// runOptions are the flags of probe run.
type runOptions struct {
	probe.Options
	out  string
	json bool
}

func runFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "write the report to `FILE`, whole or not at all"},
		&urfave.StringFlag{Name: "label", Usage: "call the report `L` (default: host, before or after, as it looks)"},
		&urfave.StringSliceFlag{Name: "shared", Usage: "also try the shared path `P`, absolute"},
		&urfave.StringSliceFlag{Name: "tcp", Usage: "also connect to `HOST:PORT`, outside this node"},
		&urfave.StringSliceFlag{Name: "udp", Usage: "also send one byte to `HOST:PORT`"},
		&urfave.StringFlag{Name: "canary", Usage: "the `FILE` that 'probe listen' wrote, '-' for standard input"},
		&urfave.StringFlag{Name: "proxy", Usage: "the egress proxy's Unix socket, `PATH`"},
		&urfave.StringSliceFlag{Name: "allow", Usage: "`HOST:PORT` that the proxy must let through"},
		&urfave.StringSliceFlag{Name: "deny", Usage: "`HOST:PORT` that the proxy must refuse"},
		&urfave.StringSliceFlag{Name: "skip", Usage: "leave out the check `ID`, or all below it"},
		&urfave.BoolFlag{Name: "write-test", Usage: "make named files, removed at once, where nameless ones fail"},
		&urfave.DurationFlag{Name: "timeout", Usage: "`TIME` for the whole run", Value: time.Minute},
		&urfave.BoolFlag{Name: "json", Usage: "print JSON to a terminal too"},
	}
}

func runCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "run",
		Usage:     "try everything and report; what 'probe' alone does",
		UsageText: "probe run [flags] > REPORT.json",
		Description: "Examples:\n" +
			"  probe > host.json\n" +
			"  probe --shared /proj/mygroup --tcp login1:22 -o host.json\n" +
			"  probe --canary $TMPDIR/canary.json | probe diff host.json before.json -\n\n" +
			"PROBE_SHARED (paths, separated by colons) and PROBE_SKIP (ids, by commas) add\n" +
			"to the flags. Exit codes: 0 every check has an answer, 2 wrong flags, 3 a check\n" +
			"ended without one (it hung, or probe failed); the report is whole all the same.",
		Flags:  runFlags(),
		Action: runCommand,
	}
}

func parseRun(c *urfave.Context) (runOptions, error) {
	o := runOptions{
		Options: probe.Options{
			Label: c.String("label"), Shared: c.StringSlice("shared"), TCP: c.StringSlice("tcp"), UDP: c.StringSlice("udp"),
			Canary: c.String("canary"), Proxy: c.String("proxy"), Allow: c.StringSlice("allow"), Deny: c.StringSlice("deny"),
			Skip: c.StringSlice("skip"), WriteTest: c.Bool("write-test"), Timeout: c.Duration("timeout"),
		},
		out: c.String("out"), json: c.Bool("json"),
	}
	if o.Canary == "-" {
		o.Canary = "/dev/stdin"
	}
	if o.Timeout <= 0 {
		return o, cli.Usagef("leave it out for a minute, or give it longer: --timeout 2m", "--timeout: %v is no time to try anything in", o.Timeout)
	}
	if c.Args().Present() {
		return o, cli.Usagef("the report goes to stdout or to -o FILE", "run takes no arguments, got %q", c.Args().First())
	}
	return o, nil
}

func runCommand(c *urfave.Context) error {
	o, err := parseRun(c)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	if cli.IsTerminal(os.Stderr) {
		fmt.Fprintf(os.Stderr, "probe: trying %d checks, for %v at most\n", len(probe.Checks()), o.Timeout)
	}
	r, err := probe.RunAll(ctx, o.Options)
	switch {
	case errors.Is(err, context.Canceled):
		return &cli.Error{Code: cli.Unknown, Err: err}
	case err != nil:
		hint := ""
		if o.Canary != "" && (errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*probe.SchemaError))) {
			hint = "'probe listen --canary FILE' of this version writes it, and goes on running"
		}
		return unknown(err, hint)
	}
	if r.Run.Label == "" {
		r.Run.Label = probe.GuessLabel(r)
	}
	if err := o.print(c.App.Writer, r); err != nil {
		return err
	}
	if n := r.Summary[probe.Error] + r.Summary[probe.Timeout]; n > 0 {
		return &cli.Error{
			Code: cli.Unknown, Err: fmt.Errorf("%d checks ended without an answer; the report says which", n),
			Hint: "run it again; --timeout gives it longer",
		}
	}
	return nil
}

// print sends the report where it belongs: data to a file or a pipe, a table
// to a person.
func (o runOptions) print(out io.Writer, r probe.Report) error {
	switch {
	case o.out == "" && !o.json && cli.IsTerminal(out):
		return r.Table(out, cli.Columns(out))
	case o.out == "":
		if err := r.Write(out); err != nil {
			return err
		}
	default:
		if err := probe.WriteFile(o.out, r); err != nil {
			return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("writing the report: %w", err), Hint: "-o FILE names a file in a folder that is there and can be written"}
		}
	}
	_ = r.Brief(os.Stderr, cli.Columns(os.Stderr)) // the report is whole without it
	return nil
}
