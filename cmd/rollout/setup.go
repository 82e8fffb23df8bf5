package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"fence/pkg/trial"
)

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
