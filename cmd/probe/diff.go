package main

import (
	"io"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/probe"
)

// diffOptions are the arguments and flags of probe diff.
type diffOptions struct {
	files          []string // [HOST] BEFORE AFTER
	markdown, json bool
}

func diffCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "diff",
		Usage:     "compare a report made without the fence with one made behind it",
		ArgsUsage: "[HOST] BEFORE AFTER",
		Description: "Prints five lines first: the shared filesystem, TCP to the outside, UDP, the\n" +
			"system-call filter, and writing in the task's own directories; then every other\n" +
			"change, then what stayed open. '-' is standard input.\n\n" +
			"Examples:\n" +
			"  probe diff before.json after.json\n" +
			"  probe diff host.json before.json after.json --markdown > isolation.md\n\n" +
			"Exit codes: 0 the five are as a fence must leave them and nothing opened, 1 they\n" +
			"are not, 2 no report, or of different nodes or in the wrong order, 3 could not\n" +
			"tell.",
		Flags: []urfave.Flag{
			&urfave.BoolFlag{Name: "markdown", Usage: "print a page for operators"},
			&urfave.BoolFlag{Name: "json", Usage: "print a probe.diff/v1 record"},
		},
		Action: func(c *urfave.Context) error {
			o := diffOptions{files: c.Args().Slice(), markdown: c.Bool("markdown"), json: c.Bool("json")}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.run(c.App.Writer)
		},
	}
}

// Validate says what is wrong with the options taken together.
func (o diffOptions) Validate() error {
	if n := len(o.files); n != 2 && n != 3 {
		return cli.Usagef("probe diff [HOST] BEFORE AFTER", "diff takes two reports or three, got %d", n)
	}
	stdin := 0
	for _, f := range o.files {
		if f == "-" {
			stdin++
		}
	}
	if stdin > 1 {
		return cli.Usagef("write one of them to a file", "only one report can come from standard input")
	}
	if o.markdown && o.json {
		return cli.Usagef("", "--markdown and --json exclude each other")
	}
	return nil
}

func (o diffOptions) run(out io.Writer) error {
	var reports []probe.Report
	for _, f := range o.files {
		r, err := readReport(f)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	if why := probe.WrongOrder(reports...); why != "" {
		return wrongOrder("probe diff [HOST] BEFORE AFTER", why)
	}
	var host *probe.Report
	if len(reports) == 3 {
		host, reports = &reports[0], reports[1:]
	}
	d := probe.Diff(host, reports[0], reports[1])
	if len(d.Differ) > 0 {
		return notComparable(d.Differ)
	}
	switch {
	case o.json:
		return answer(d.Answer, d.Write(out))
	case o.markdown:
		return answer(d.Answer, d.Markdown(out))
	}
	return answer(d.Answer, d.Table(out, cli.Columns(out)))
}
