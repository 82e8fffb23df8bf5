package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/page"
	"fence/pkg/report"
	"fence/pkg/result"
)

const reportHelp = `Counts what came of trials: for each dataset how many images, oracles and
no-ops are as they must be, and the likely causes where they are not; for each
agent its outcomes, faults and rates; what the isolation was, for those who run
the cluster. RUN is the folder of a run (--out), or of a validation. Several
are compared with the first. "-" reads the records that a run prints.

  rollout report $RUN
  rollout report $RUN --markdown > report.md
  rollout run tasks/ --agent oracle --out $RUN | rollout report -
  rollout report $RUN --json | jq -r '.runs[].datasets[].fit[]' > fit.txt
  rollout report $BEFORE $AFTER
  rollout report $RUN --html $RUN/report && firefox $RUN/report/index.html

A rate is over the trials that have a verdict. Beside it stand the rate that
counts trials which the agent broke as 0, and Harbor's, which counts all that
have no reward as 0. pass@k is the unbiased estimator, per task, then the mean.

The pages of --html are opened from the disk: an index with plots, and each trial
with its turns, its terminal to play again and what its verifier printed. They
reach no network, and can be copied or packed as a folder. DIR must be empty, or
hold an earlier report, which is replaced. What is very long is cut, with a mark.

The record of --json is rollout.report/v1 (docs/records.md).

Exit codes:
  0  all was read and counted, whatever came of the trials
  2  wrong flags, or no trial to be found
  3  some result could not be read; the rest was counted`

func reportCommand() *urfave.Command {
	return &urfave.Command{
		Name:        "report",
		Usage:       "tables of one run or several",
		ArgsUsage:   "RUN...|-",
		Description: reportHelp,
		Flags: []urfave.Flag{
			&urfave.BoolFlag{Name: "markdown", Usage: "tables in Markdown"},
			&urfave.BoolFlag{Name: "json", Usage: "one record, for programs"},
			&urfave.StringFlag{Name: "html", Usage: "write pages for a browser to `DIR`, instead of the tables"},
		},
		Action: reportRuns,
	}
}

func reportRuns(c *urfave.Context) error {
	if c.Bool("markdown") && c.Bool("json") {
		return cli.Usagef("give one of them", "--markdown and --json exclude each other")
	}
	runs, err := readRuns(c)
	if err != nil {
		return err
	}
	out := c.App.Writer
	if dir := c.String("html"); dir != "" {
		err := page.Write(dir, runs)
		if errors.Is(err, page.ErrOthers) {
			return cli.Usagef("name an empty folder, or an earlier report", "%v", err)
		}
		if err != nil {
			return &cli.Error{Code: cli.Unknown, Err: err}
		}
		fmt.Fprintln(out, cli.Printable(filepath.Join(dir, "index.html")))
	}
	r := report.Summarise(runs...)
	switch {
	case c.Bool("json"):
		if err := cli.Records(out).Encode(r); err != nil {
			return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("writing the record: %w", err)}
		}
	case c.Bool("markdown"):
		report.Markdown(out, append(report.Blocks(r), report.Words()))
	case c.String("html") == "":
		report.Text(out, report.Blocks(r), cli.Columns(out))
	}
	unread := 0
	for _, run := range runs {
		unread += len(run.Unread)
	}
	if unread > 0 {
		return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("%d of the results could not be read", unread), Hint: "the report names them"}
	}
	return nil
}

// readRuns reads what the arguments name.
func readRuns(c *urfave.Context) (runs []report.Input, err error) {
	if c.NArg() == 0 {
		return nil, cli.Usagef("'rollout report RUN', or '-' for the records of a run", "no run was named")
	}
	for _, arg := range c.Args().Slice() {
		var in report.Input
		switch {
		case arg != "-":
			in, err = report.Read(arg)
		case c.NArg() > 1:
			return nil, cli.Usagef("write the records to a run's folder (--out) first", "- cannot be compared with other runs")
		default:
			in, err = report.Stream(os.Stdin)
		}
		if err != nil {
			return nil, cli.Usagef("a run's folder is what --out named", "%v", err)
		}
		runs = append(runs, in)
	}
	return runs, nil
}

const showHelp = `Shows one trial: its verdict, how long each phase took, why there is no verdict
and what can be done, which files taint it, what the isolation was, the last
lines that its verifier printed, and of a model each turn. TRIAL is a trial's
folder, in that of a run.

  rollout show $RUN/hello-world__a1b2c3d
  rollout show $RUN/hello-world__a1b2c3d --lines 200
  rollout show $RUN/hello-world__a1b2c3d --turn 3

Exit codes:
  0  it was shown, whatever came of it
  2  wrong flags, or no trial
  3  the trial has no result yet, or one that cannot be read`

func showCommand() *urfave.Command {
	return &urfave.Command{
		Name:        "show",
		Usage:       "one trial, for a person",
		ArgsUsage:   "TRIAL",
		Description: showHelp,
		Flags: []urfave.Flag{
			&urfave.IntFlag{Name: "lines", Value: 20, Usage: "so many of the last `LINES` that the verifier printed"},
			&urfave.IntFlag{Name: "turn", Usage: "the model's turn `N` in full, and nothing else"},
		},
		Action: showTrial,
	}
}

func showTrial(c *urfave.Context) error {
	if c.NArg() != 1 {
		return cli.Usagef("'rollout show RUN/TRIAL'", "one trial's folder is needed, and %d were named", c.NArg())
	}
	dir, err := trialAt(c.Args().First())
	if err != nil {
		return err
	}
	t, err := report.ReadTrial(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return noResult(dir)
	case err != nil:
		return &cli.Error{Code: cli.Unknown, Err: err}
	}
	nth := c.Int("turn")
	blocks, err := report.Turns(t, nth)
	switch {
	case !c.IsSet("turn"):
		blocks = append(report.Show(t, c.Int("lines")), blocks...)
	case err == nil && (nth < 1 || len(blocks) == 0):
		return cli.Usagef("'rollout show "+dir+"' lists its turns", "--turn: the trial has no turn %d", nth)
	}
	report.Text(c.App.Writer, blocks, cli.Columns(c.App.Writer))
	if err != nil {
		return &cli.Error{Code: cli.Unknown, Err: err}
	}
	return nil
}

// trialAt is the folder of a trial that a person names: by its result, too. That
// of a run, or of a validation, is refused.
func trialAt(dir string) (string, error) {
	if filepath.Base(dir) == result.ResultFile {
		dir = filepath.Dir(dir)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", cli.Usagef("'rollout report RUN' names the trials", "%s is no trial's folder", dir)
	}
	for _, of := range []string{"", "oracle", "nop"} {
		if isRun(filepath.Join(dir, of)) {
			return "", cli.Usagef("'rollout report "+dir+"' names its trials", "%s is the folder of a run, not of a trial", dir)
		}
	}
	return dir, nil
}

func noResult(dir string) error {
	return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("%s has no result.json", dir), Hint: "it is running or was stopped: the same 'rollout run' again goes on with it"}
}
