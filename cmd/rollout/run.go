package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/box"
	"fence/pkg/cli"
	"fence/pkg/job"
	"fence/pkg/report"
	"fence/pkg/result"
	"fence/pkg/runner"
	"fence/pkg/scratch"
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

// setup is what a command that runs trials begins with.
type setup struct {
	c       *urfave.Context
	ctx     context.Context
	stop    context.CancelFunc
	out     string
	items   []item
	skipped []result.Skipped
	options trial.Options // what all trials share
	scratch *scratch.Dir
	gates   *gates
	shard   job.Shard
	content map[string]string // of files that flags name: their digests
	encoder *json.Encoder     // nil: no records

	terminus *terminusAgent // nil: not asked for
	replay   *replayer      // nil: not asked for

	attempts, atATime, retries int
}

// newJob reads what is to be done; nothing has been done when it fails.
func newJob(c *urfave.Context) (*setup, error) {
	if c.String("out") == "" {
		return nil, cli.Usagef("--out DIR", "no folder for the results is named")
	}
	out, err := filepath.Abs(c.String("out"))
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		flag  string
		least int
	}{{"n", 1}, {"attempts", 1}, {"retries", 0}} {
		if n := c.Int(f.flag); n < f.least || n > 100_000 {
			dashes := "--"
			if len(f.flag) == 1 {
				dashes = "-"
			}
			return nil, cli.Usagef(fmt.Sprintf("%d or more", f.least), "%s%s: %d is no number of trials", dashes, f.flag, n)
		}
	}
	shard, err := job.This().ParseShard(c.String("shard"))
	if err != nil {
		return nil, cli.Usagef("--shard 2/8, or --shard slurm in an array", "--shard: %w", err)
	}
	if _, err := job.ParseDeadline(c.String("deadline"), time.Now()); err != nil {
		return nil, cli.Usagef("such as 3h, 2026-01-31T18:00:00Z, or none", "--deadline: %w", err)
	}
	if !c.Args().Present() {
		return nil, cli.Usagef("rollout "+c.Command.Name+" tasks/", "no task folder is named")
	}
	j, err := prepare(c, out, c.Args().Slice())
	if err != nil {
		return nil, err
	}
	j.shard, j.attempts, j.atATime, j.retries = shard, c.Int("attempts"), c.Int("n"), c.Int("retries")
	if c.Bool("json") || !cli.IsTerminal(c.App.Writer) {
		j.encoder = cli.Records(c.App.Writer)
	}
	return j, nil
}

// prepare reads tasks and flags, and makes the folder for containers.
func prepare(c *urfave.Context, out string, args []string) (*setup, error) {
	j := &setup{c: c, out: out, attempts: 1, atATime: 1}
	var err error
	if j.options, err = common(c); err != nil {
		return nil, err
	}
	ctx, stop := job.Interruptible() // one for all: between two a signal could be lost
	j.options.Host = hostOf(ctx, job.This(), j.options.Box.Apptainer, c.App.Version)
	items, skipped, err := inputs(ctx, c, args)
	saySkipped(os.Stderr, skipped)
	if err != nil {
		stop()
		return nil, err
	}
	if j.content, err = digests(c, "image", "policy"); err != nil {
		stop()
		return nil, err
	}
	j.items = items
	for _, s := range skipped {
		if s.Task {
			j.skipped = append(j.skipped, result.Skipped{Path: s.Path, Reason: s.Reason})
		}
	}
	sayWarnings(os.Stderr, items)
	sayCPUs(os.Stderr, items, c.Int("n"), runtime.NumCPU())
	if err := apart(out, items); err != nil {
		stop()
		return nil, err
	}
	if !slices.ContainsFunc(items, func(it item) bool { return it.broken == nil }) {
		stop()
		return nil, cli.Usagef(items[0].broken.Hint, "none of %d tasks has an image; %s: %s", len(items), items[0].Task.Name, items[0].broken.Message)
	}
	if err := alone(out, c.Command.Name == "validate"); err != nil {
		stop()
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		stop()
		return nil, cli.Usagef("--out DIR where you may write", "the folder for the results: %w", err)
	}
	j.gates = &gates{dir: filepath.Join(out, ".rollout", "gates"), why: c.String("no-gate"), done: map[string]*gate{}}
	if j.scratch, err = scratch.New(j.options.Box.Scratch, "rollout-"); err != nil {
		stop()
		return nil, cli.Usagef("--scratch DIR on a disk of this node", "the folder for containers: %w", err)
	}
	if j.scratch.InMemory() {
		fmt.Fprintf(os.Stderr, "rollout: the folder for containers %s is in memory, and so is what they write: --scratch DIR on a disk of this node\n", cli.Printable(j.options.Box.Scratch))
	}
	if err := j.possible(ctx); err != nil {
		stop()
		_ = j.scratch.Close()
		_ = os.Remove(out) // if nothing is in it
		return nil, err
	}
	if !c.IsSet("disk") {
		j.shareDisk()
	}
	if job.This().OnLogin() {
		fmt.Fprintln(os.Stderr, "rollout: this is heavy work, and not in a job of Slurm")
		example := "validate"
		if c.String("agent") == "terminus" {
			example = "terminus"
		}
		fmt.Fprintf(os.Stderr, "hint: in a job, as examples/%s.sbatch does it\n", example)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the error says it, and what is left ends cleanly
	j.ctx, j.stop = ctx, stop
	return j, nil
}

// possible refuses a node on which no trial can run.
func (j *setup) possible(ctx context.Context) error {
	o := j.options.Box
	for _, it := range j.items {
		if it.broken == nil {
			o.Image = it.image
		}
	}
	o.Network = "none"
	var err error
	if o.Scratch, err = os.MkdirTemp(j.scratch.Path, ""); err != nil {
		return err
	}
	var said *box.Error
	if err = box.Possible(ctx, o); errors.As(err, &said) && said.Class == "start_failed" {
		return cli.Usagef(said.Hint, "this node cannot run trials: %w", err)
	}
	return nil // what else there is, the trials say
}

// shareDisk has each trial write no more than what is free for each.
func (j *setup) shareDisk() {
	share := j.scratch.Free() / int64(max(1, min(j.c.Int("n"), len(j.items)*j.c.Int("attempts"))))
	if share <= 0 || share >= j.options.Box.Limits.Disk {
		return
	}
	j.options.Box.Limits.Disk = share
	wanted := 1 << 10
	for _, it := range j.items {
		wanted = max(wanted, it.Environment.StorageMB)
	}
	if share < int64(wanted)<<20 {
		fmt.Fprintf(os.Stderr, "rollout: the disk for containers has room for %d MB of each trial: --scratch another, fewer at once (-n), or --disk\n", share>>20)
	}
}

// apart refuses results among the tasks: the next run would take the folders of
// trials for tasks, and a task that has results in it is another one.
func apart(out string, items []item) error {
	for _, it := range items {
		if out == filepath.Dir(it.Task.Dir) || strings.HasPrefix(out+"/", it.Task.Dir+"/") {
			return cli.Usagef("--out another folder, such as "+filepath.Join(filepath.Dir(filepath.Dir(it.Task.Dir)), "run"), "--out: the results would go among tasks: %s is one", it.Task.Dir)
		}
	}
	return nil
}

// alone refuses a run in a folder of runs, and a validation, which is two, in
// that of one: what a report counts below a folder would be of both.
func alone(out string, validates bool) error {
	if isRun(out) {
		if validates {
			return cli.Usagef("another --out", "--out: %s holds the trials of a run, and a validation is two: oracle and nop", out)
		}
		return nil
	}
	entries, _ := os.ReadDir(out)
	for _, e := range entries {
		name := e.Name()
		half := name == "oracle" || name == "nop"
		if validates && half || !isRun(filepath.Join(out, name)) {
			continue
		}
		of := "a folder of runs"
		if half {
			of = "the folder of a validation"
		}
		return cli.Usagef("another --out", "--out: %s is %s: %s in it has trials of its own", out, of, name)
	}
	return nil
}

// isRun says whether a folder is a run's, with trials in it. A trial's record has
// no updated_at.
func isRun(dir string) bool {
	var job result.Job
	return result.ReadJob(filepath.Join(dir, result.ResultFile), &job) == nil && !job.UpdatedAt.IsZero()
}

func (j *setup) close() {
	j.stop()
	_ = os.Remove(j.out) // if nothing is in it
	if err := j.scratch.Close(); err != nil {
		fmt.Fprintf(os.Stderr, "rollout: the folder for containers could not be removed: %s\n", cli.Printable(err.Error()))
	}
}

// outcome is what came of a run.
type outcome struct {
	sum    runner.Summary
	why    error // it was ended; nil if it was not
	trials []report.Trial
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
