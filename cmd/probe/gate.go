package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/probe"
)

// gateOptions are the arguments and flags of probe gate.
type gateOptions struct {
	after, before, expect string
	extra                 []string
	json, verbose         bool
}

func gateCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "gate",
		Usage:     "let a script go on only if a report shows what must be so",
		ArgsUsage: "AFTER",
		Description: "AFTER is a report made behind the fence, '-' for standard input. With --before, a\n" +
			"report made in the same place without the fence, a refused connection counts\n" +
			"only if the same one worked there. What is missing, was skipped or hung is\n" +
			"'could not tell', never a pass.\n\n" +
			"Examples:\n" +
			"  probe gate after.json --before before.json --expect strict && run_the_model\n" +
			"  fence -- probe | probe gate - --expect strict\n" +
			"  probe gate after.json --expect ./mine.toml      (see docs/records.md)\n\n" +
			"Built in are " + strings.Join(probe.Expectations(), ", ") + ".\n" +
			"Exit codes: 0 all is shown, 1 a door is open or a function broken, 2 no report or\n" +
			"no such expectation, 3 could not tell.",
		Flags: []urfave.Flag{
			&urfave.StringFlag{Name: "before", Usage: "`REPORT` made without the fence, as the control"},
			&urfave.StringFlag{Name: "expect", Usage: "built-in `NAME`, or a TOML file"},
			&urfave.BoolFlag{Name: "json", Usage: "print a probe.gate/v1 record"},
			&urfave.BoolFlag{Name: "verbose", Usage: "also print what is as it must be"},
		},
		Action: func(c *urfave.Context) error {
			o := gateOptions{
				after: c.Args().First(), extra: c.Args().Tail(), before: c.String("before"), expect: c.String("expect"),
				json: c.Bool("json"), verbose: c.Bool("verbose"),
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return o.run(c.App.Writer)
		},
	}
}

// Validate says what is wrong with the options taken together.
func (o gateOptions) Validate() error {
	switch {
	case o.after == "":
		return cli.Usagef("probe gate AFTER --expect strict", "gate needs a report")
	case len(o.extra) > 0:
		return cli.Usagef("the report without the fence is --before REPORT", "gate takes one report, got also %q", o.extra[0])
	case o.expect == "":
		return cli.Usagef("--expect "+strings.Join(probe.Expectations(), ", or --expect ")+", or a TOML file", "gate needs --expect")
	case o.after == "-" && o.before == "-":
		return cli.Usagef("write one of them to a file", "only one report can come from standard input")
	}
	return nil
}

func (o gateOptions) run(out io.Writer) error {
	expect, err := readExpectation(o.expect)
	if err != nil {
		return err
	}
	after, err := readReport(o.after)
	if err != nil {
		return err
	}
	var before *probe.Report
	if o.before != "" {
		b, err := readReport(o.before)
		if err != nil {
			return err
		}
		before = &b
		if why := probe.WrongOrder(b, after); why != "" {
			return wrongOrder("probe gate AFTER --before BEFORE", why)
		}
	}
	v := probe.Gate(after, before, expect)
	if len(v.Differ) > 0 {
		return notComparable(v.Differ)
	}
	if o.json {
		return answer(v.Answer, v.Write(out))
	}
	return answer(v.Answer, v.Table(out, cli.Columns(out), o.verbose))
}

// readExpectation takes the name of a built-in expectation, or a file.
func readExpectation(name string) (probe.Expectation, error) {
	if slices.Contains(probe.Expectations(), name) {
		return probe.BuiltIn(name)
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, "/.") {
		hint := "a file of that name does not exist either"
		if near := cli.Suggest(name, probe.Expectations()); near != "" {
			hint = "did you mean --expect " + near + "?\n" + hint
		}
		return probe.Expectation{}, cli.Usagef(hint, "no expectation %q: built in are %s", name, strings.Join(probe.Expectations(), ", "))
	}
	if err != nil {
		return probe.Expectation{}, cli.Usagef("", "reading an expectation: %w", err)
	}
	defer f.Close()
	e, err := probe.ParseExpectation(name, f)
	if err == nil {
		return e, nil
	}
	return e, unknown(err, "docs/records.md describes the file")
}
