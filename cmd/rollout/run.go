package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/box"
	"fence/pkg/cli"
	"fence/pkg/job"
	"fence/pkg/report"
	"fence/pkg/result"
	"fence/pkg/runner"
	"fence/pkg/spec"
	"fence/pkg/tree"
	"fence/pkg/trial"
)

func runCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "run",
		Usage:     "an agent on tasks: a trial each, judged by the task's tests",
		UsageText: "rollout run TASKS... --agent NAME --out DIR [flags] > TRIALS.jsonl",
		Description: "TASKS are task folders, folders of task folders, or - for lines on standard input:\n" +
			"paths, or records of 'sifbuild build', which say where the images are. One record\n" +
			"for each trial goes to stdout as soon as it has ended; tables go to stderr at the\n" +
			"end. DIR is a job folder as Harbor's. The same command again continues: trials\n" +
			"that have a verdict are kept, and so are faults that are the task's.\n\n" +
			"Examples:\n" +
			"  rollout run tasks/ --sif-cache $SIF_CACHE --agent oracle --out $RUN -n 8\n" +
			"  sifbuild build tasks/ --cache $C | rollout run - --agent nop --out $RUN\n" +
			"  rollout run task/ --image img.sif --agent oracle --out $RUN\n" +
			"  rollout run tasks/ --agent oracle --out $RUN --wheelhouse w --grader g\n" +
			"  rollout run tasks/ --agent oracle --out $RUN --open '/opt/sdk:they read it'\n" +
			"  rollout run tasks/ --sif-cache $SIF_CACHE --agent terminus --model NAME \\\n" +
			"      --api-base http://gpu01:8000/v1 --validated $CHECKED --out $RUN -n 8\n\n" +
			"Agents: oracle runs the task's own solution, nop does nothing, terminus is a model in\n" +
			"a terminal (docs/terminus.md): --api-base says where its server is.\n\n" +
			"Two minutes before a Slurm job ends, or when a signal asks for it, trials that are\n" +
			"under way are ended and left without a result, and the same command goes on there.\n\n" +
			"Exit codes: 0 every trial has a verdict, whatever it is, 2 wrong flags, no task, or\n" +
			"a node that cannot run trials, 3 some trials ended in a fault or were not run.",
		Flags: slices.Concat([]urfave.Flag{
			&urfave.StringFlag{Name: "agent", Usage: "`NAME` of who acts: oracle, nop or terminus"},
		}, selectFlags(), runFlags(), modelFlags(), fenceFlags()),
		Action: runCommand,
	}
}

// runFlags are those of whatever runs trials.
func runFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "out", Usage: "the results go to `DIR`; a run that was ended goes on there"},
		&urfave.IntFlag{Name: "n", Aliases: []string{"n-concurrent"}, Usage: "`N` trials at a time", Value: 4},
		&urfave.IntFlag{Name: "attempts", Usage: "`K` trials of each task", Value: 1},
		&urfave.IntFlag{Name: "retries", Usage: "try a trial `N` times again when what failed may pass", Value: 1},
		&urfave.StringFlag{Name: "shard", Usage: "only this share of the trials: `I/N`, or slurm, which is this task's of its array or step; others have the same DIR"},
		&urfave.StringFlag{Name: "deadline", Usage: "end before `TIME`: 3h, 2026-01-31T18:00:00Z, or none", DefaultText: "the Slurm job's end"},
		&urfave.BoolFlag{Name: "json", Usage: "print records to a terminal too"},
	}
}

// agents are those that need no model.
func agents() map[string]trial.Agent {
	return map[string]trial.Agent{"oracle": trial.Oracle{}, "nop": trial.Nop{}}
}

// agent is who acts in a trial.
func (j *setup) agent(i runner.Item) trial.Agent {
	switch i.Agent.Name {
	case "terminus":
		return j.terminus.of(i.Name)
	case "replay":
		one := *j.replay
		one.now = filepath.Join(j.out, i.Name)
		return &one
	}
	return agents()[i.Agent.Name]
}

func runCommand(c *urfave.Context) error {
	const hint = "--agent oracle, nop or terminus"
	name := c.String("agent")
	switch {
	case name == "":
		return cli.Usagef(hint, "no agent is named")
	case name != "terminus" && agents()[name] == nil:
		return cli.Usagef(hint, "--agent: %q is not known", name)
	}
	if name != "terminus" {
		for _, f := range modelFlags() {
			if flag := f.Names()[0]; c.IsSet(flag) && flag != "validated" {
				return cli.Usagef("--agent terminus", "--%s is for a model, and %s is none", flag, name)
			}
		}
	} else if err := checkModel(c); err != nil {
		return err
	}
	j, err := newJob(c)
	if err != nil {
		return err
	}
	defer j.close()
	if dir := c.String("validated"); dir != "" {
		if j.items, err = validated(os.Stderr, dir, j.items); err != nil {
			return err
		}
	}
	if name == "terminus" {
		if j.terminus, err = newTerminus(j.ctx, c, j); err != nil {
			return err
		}
		j.terminus.say()
		j.options.Host.Server = serverOf(c.String("api-base"))
	}
	all, err := j.run(j.out, name, j.items)
	if err != nil {
		return err
	}
	tables(j.out, all.trials)
	sayMissing(os.Stderr, j.items)
	return all.verdict()
}

// run runs an agent on tasks, with its results in a folder.
func (j *setup) run(out, agent string, items []item) (outcome, error) {
	var all outcome
	byDir := map[string]item{}
	var specs []spec.Spec
	for _, it := range items {
		byDir[it.Task.Dir] = it
		specs = append(specs, it.Spec)
	}
	who := result.AgentConfig{Name: agent, Kwargs: map[string]any{}}
	if agent == "terminus" {
		name := j.terminus.client.Name()
		who.ModelName = &name
		who.Kwargs["api_base"], who.Kwargs["context"] = j.options.Host.Server, j.terminus.client.Limits().Context
		for _, s := range j.settings() {
			if flag := strings.TrimPrefix(s.Name, "--"); slices.Contains(modelSettings, flag) && flag != "context" {
				who.Kwargs[strings.ReplaceAll(flag, "-", "_")] = s.Value
			}
		}
	}
	trials := runner.Items(specs, []result.AgentConfig{who}, j.attempts)
	live := runner.NewLive(os.Stderr, "rollout", len(runner.Share(trials, j.shard)))
	ctx, cancel, err := job.This().Until(j.ctx, j.c.String("deadline"), "run", live.Say)
	if err != nil {
		return all, err
	}
	defer cancel()
	live.Start()
	sum, err := runner.Run(ctx, runner.Options{
		Out: out, Items: trials, Shard: j.shard, Jobs: j.atATime, Retries: j.retries,
		Settings: j.settings(), Skipped: j.skipped, Environment: result.Environment(nil),
		Try: func(ctx context.Context, i runner.Item, dir string) result.Trial {
			return j.try(ctx, byDir[i.Spec.Task.Dir], j.agent(i), i, dir)
		},
		Record: func(t result.Trial) error { return all.record(t, out, j.encoder) },
		Event:  live.Event, Say: live.Say,
	})
	live.End()
	all.sum, all.why = sum, context.Cause(ctx)
	if err != nil {
		var other *runner.Mismatch
		if errors.As(err, &other) {
			return all, cli.Usagef("the same flags as then, or another --out", "%w", err)
		}
		hint, _ := result.Unwritable(err)
		var full *runner.Full
		if errors.As(err, &full) {
			hint = full.Hint
		}
		return all, &cli.Error{Code: cli.Unknown, Err: err, Hint: hint}
	}
	return all, nil
}

// record prints a trial's record, if they are printed, and keeps what tables and
// verdicts are made from.
func (o *outcome) record(t result.Trial, out string, records *json.Encoder) (err error) {
	if records != nil {
		err = records.Encode(t)
	}
	t.DropDetails()
	o.trials = append(o.trials, report.Trial{Trial: t, Dir: filepath.Join(out, t.TrialName)})
	return err
}

// tables says for people what came of trials, as 'rollout report DIR' does.
func tables(dir string, trials []report.Trial) {
	in, err := report.Read(dir)
	if err != nil { // no trial has ended
		in.Trials = trials
	}
	report.Text(os.Stderr, report.Blocks(report.Summarise(in)), cli.Columns(os.Stderr))
}

// verdict is the exit code of a run.
func (o outcome) verdict() error {
	switch s := o.sum; {
	case !s.Done():
		hint := "the same command again continues"
		if errors.As(o.why, &job.Ending{}) {
			hint += " in another job"
			if s.Kept+s.Ended == 0 {
				hint = "give it more time than the two minutes in which it ends: sbatch --time, or --deadline"
			}
		}
		err := fmt.Errorf("%d of %d trials are not done", s.Trials-s.Kept-s.Ended, s.Trials)
		if o.why != nil {
			err = fmt.Errorf("%w: %w", err, o.why)
		}
		return &cli.Error{Code: cli.Unknown, Err: err, Hint: hint}
	case s.Faults > 0:
		return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("%d of %d trials have no verdict", s.Faults, s.Trials)}
	}
	return nil
}

// settings are what trials of one folder must have in common to be compared,
// with the defaults that count: to name one is no other setting.
func (j *setup) settings() (all []result.Setting) {
	for _, flag := range slices.Sorted(maps.Keys(j.content)) {
		all = append(all, result.Setting{Name: "content of --" + flag, Value: j.content[flag]})
	}
	flags := []string{"net", "why", "policy", "wheelhouse", "grader", "memory", "processes", "disk", "timeout-multiplier", "build-timeout-multiplier", "agent-timeout-multiplier", "verifier-timeout-multiplier", "strict-verdict", "no-gate"}
	if j.terminus != nil {
		flags = append(flags, modelSettings...)
	}
	for _, flag := range flags {
		value, matters := fmt.Sprint(j.c.Value(flag)), false
		switch flag {
		case "net", "processes", "timeout-multiplier", "max-turns", "time-cap": // each has a default, and 0 is another
			matters = true
		case "disk", "temperature", "top-p", "model-seed": // the node's or the server's, if they are not given
			matters = j.c.IsSet(flag)
		default:
			matters = value != "" && value != "0" && value != "false"
		}
		if matters {
			all = append(all, result.Setting{Name: "--" + flag, Value: value})
		}
	}
	for _, flag := range []string{"open", "body"} {
		for _, text := range j.c.StringSlice(flag) {
			all = append(all, result.Setting{Name: "--" + flag, Value: text})
		}
	}
	return all
}

// try makes one try of a trial.
func (j *setup) try(ctx context.Context, it item, agent trial.Agent, i runner.Item, dir string) result.Trial {
	o := j.options
	o.Spec, o.Agent, o.Dir, o.Broken, o.Phase = it.Spec, agent, dir, it.broken, i.Phase
	o.Box.Image, o.VerifierImages = it.image, it.verifiers
	o.Start = func(ctx context.Context, o box.Options) (trial.Box, error) {
		b, err := box.Start(ctx, o)
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	if o.Broken == nil {
		box.Settle(ctx, j.scratch.Path)
		own, err := os.MkdirTemp(j.scratch.Path, "")
		if err == nil {
			defer tree.RemoveAll(own)
			o.Box.Scratch = own
			i.Phase("gate")
			o.Gate, err = j.gates.pass(ctx, o, it.image)
			for _, image := range it.verifiers {
				if err == nil {
					o.Gate, err = j.gates.pass(ctx, o, image)
				}
			}
		}
		o.Broken = gateFault(err)
	}
	return trial.Run(ctx, o)
}
