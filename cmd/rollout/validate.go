package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/report"
)

func validateCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "validate",
		Usage:     "whether tasks are fit for a model: their solutions pass, doing nothing does not",
		UsageText: "rollout validate TASKS... --out DIR [flags] > TRIALS.jsonl",
		Description: "Runs two agents on the tasks of 'rollout run': oracle, which is the task's own\n" +
			"solution, into DIR/oracle, and nop, which does nothing, into DIR/nop. A table says\n" +
			"of each dataset how many images there are, oracles passed and nops were rejected.\n" +
			"A task without a solution is n/a, and not a no.\n\n" +
			"Examples:\n" +
			"  rollout validate tasks/ --sif-cache $SIF_CACHE --out $RUN\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE | rollout validate - --out $RUN\n" +
			"  rollout validate tasks/ --out $RUN --per-dataset 4 --suggest\n\n" +
			"Exit codes: 0 every oracle passed and every nop was rejected, 1 one was not, 2 wrong\n" +
			"flags, no task, or a node that cannot run trials, 3 of some it could not be told.",
		Flags: slices.Concat(selectFlags(), runFlags(), fenceFlags(), []urfave.Flag{
			&urfave.BoolFlag{Name: "suggest", Usage: "run each oracle that failed in wider modes too, and print the one [[open]] that it needs"},
		}),
		Action: validateCommand,
	}
}

func validateCommand(c *urfave.Context) error {
	j, err := newJob(c)
	if err != nil {
		return err
	}
	defer j.close()
	var trials []report.Trial
	var stopped error
	for _, agent := range []string{"oracle", "nop"} {
		all, err := j.run(filepath.Join(j.out, agent), agent, j.items)
		if err != nil {
			return err
		}
		trials = append(trials, all.trials...)
		if !all.sum.Done() {
			if agent == "oracle" {
				all.sum.Trials *= 2 // no-op's are not done either
			}
			stopped = all.verdict()
			break
		}
	}
	tables(j.out, trials)
	sayMissing(os.Stderr, j.items)
	if stopped != nil {
		return stopped
	}
	if c.Bool("suggest") {
		j.suggest(j.ctx, trials)
	}
	switch report.Answer(trials) {
	case cli.OK:
		return nil
	case cli.No:
		return &cli.Error{Code: cli.No, Err: fmt.Errorf("not every task is as it must be"), Hint: "rollout show TRIAL says what one did"}
	}
	return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("of some tasks it cannot be told")}
}
