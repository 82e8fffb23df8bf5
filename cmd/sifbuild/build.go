package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"fence/pkg/build"
	"fence/pkg/cli"
	"fence/pkg/dockerfile"
	"fence/pkg/job"
)

func buildCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "build",
		Usage:     "build the images of tasks, each distinct one once",
		UsageText: "sifbuild build TASKS... --cache DIR [flags] > IMAGES.jsonl",
		Description: "TASKS are task folders, folders of task folders, or - for lines on standard input:\n" +
			"paths, or records of 'sifbuild build'. One record for each task goes to stdout, as\n" +
			"soon as its image is there, and says where it is; a table goes to stderr at the\n" +
			"end. The same command again continues: what is there is not built again.\n\n" +
			"Examples:\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE > images.jsonl\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE -j 8 --require tmux,python3\n" +
			"  sifbuild build task/ --cache $SIF_CACHE --base debian:12=/project/deb.sif\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE --mirror docker.io=HOST/hub\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE --harbor-names\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE --engine sandbox\n\n" +
			"What may pass (network, rate_limit, stalled, timeout) is tried again, what will\n" +
			"not is not; docs/sifbuild.md lists the classes. Two minutes before a Slurm job\n" +
			"ends, or when a signal asks for it, what is being built is ended and reported as\n" +
			"stopped, and the same command goes on there.\n\n" +
			"A new image is looked at (see sifbuild check) and, where Apptainer is, started\n" +
			"once as a trial starts it; one that must not be used is not in the cache.\n\n" +
			"What a tag such as debian:12 leads to is looked up once and kept in the lock file:\n" +
			"all jobs of a cache build from the same bases, until --update-lock. A registry\n" +
			"that takes no more requests keeps only those waiting that need it.\n\n" +
			"Exit codes: 0 every image is there, 2 wrong flags, no task, or a node that\n" +
			"cannot build, 3 some images are not there (failed or stopped), or not all could\n" +
			"be printed.",
		Flags: slices.Concat(planFlags(), taskFlags(), scheduleFlags(), downloadFlags(), []urfave.Flag{
			&urfave.StringFlag{Name: "scratch", Usage: "work in `DIR`, on a disk of this node (default: $TMPDIR, else /tmp)"},
			&urfave.StringFlag{Name: "engine", Usage: "`NAME` of what gives steps a user namespace: native, or sandbox, which is Apptainer, for nodes that allow it nothing else", Value: "native"},
			&urfave.StringSliceFlag{Name: "secret", Usage: "`ID=FILE` for RUN --mount=type=secret,id=ID"},
			&urfave.BoolFlag{Name: "no-smoke", Usage: "do not start each new image once under Apptainer"},
			&urfave.BoolFlag{Name: "harbor-names", Usage: "name the images for Harbor's Apptainer workers too, whose --sif-cache the cache then is"},
			&urfave.BoolFlag{Name: "dry-run", Usage: "only plan"},
		}),
		Action: buildCommand,
	}
}

// buildOptions are what planner and builder share.
func (p *planner) buildOptions() build.Options {
	return build.Options{Cache: p.cache, Platform: p.platform, Bases: p, From: p.from, Require: p.require}
}

func buildCommand(c *urfave.Context) error {
	if c.Bool("dry-run") {
		return planCommand(c)
	}
	if c.String("cache") == "" {
		return cli.Usagef("--cache DIR, or the variable SIF_CACHE", "no cache is named")
	}
	var o build.Options
	if err := schedule(c, &o); err != nil {
		return err
	}
	end, err := deadline(c)
	if err != nil {
		return err
	}
	fence, err := findFence()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		return cli.Usagef("Debian, Ubuntu: squashfs-tools; or load a module that has it", "mksquashfs is not installed on this node")
	}
	ctx, stop := job.Interruptible() // one for all: between two a signal could be lost
	defer stop()
	p, all, skipped, err := readTasks(ctx, c)
	if err != nil {
		return err
	}
	saySkipped(os.Stderr, skipped)
	o.Cache, o.Platform, o.Bases, o.From, o.Blobs, o.Require, o.Fence = p.cache, p.platform, p, p.from, p.blobs, p.require, fence
	o.NoSmoke = c.Bool("no-smoke")
	if p, err := exec.LookPath("apptainer"); err == nil {
		if o.Apptainer, err = filepath.Abs(p); err != nil {
			return err
		}
	}
	if o.Sandbox, err = sandbox(c, o.Apptainer); err != nil {
		return err
	}
	o.Secrets = map[string]string{}
	for _, pair := range c.StringSlice("secret") {
		id, file, ok := strings.Cut(pair, "=")
		if !ok || id == "" {
			return cli.Usagef("--secret token=/path/to/file", "--secret: %q is not ID=FILE", pair)
		}
		if st, err := os.Stat(file); err != nil {
			return cli.Usagef("--secret token=/path/to/file", "--secret %s: %w", id, err)
		} else if !st.Mode().IsRegular() {
			return cli.Usagef("--secret token=/path/to/file", "--secret %s: %s is not a file", id, file)
		}
		o.Secrets[id] = file
	}
	if o.Scratch = c.String("scratch"); o.Scratch == "" {
		o.Scratch = os.TempDir()
	}
	if o.Scratch, err = filepath.Abs(o.Scratch); err != nil {
		return err
	}
	if o.Cache, err = filepath.Abs(o.Cache); err != nil {
		return err
	}
	ready, waiting := apart(all)
	planned := build.Planned(o)
	names := newHarborNames(o.Cache, c.Bool("harbor-names"))
	list, _ := wants(planned, ready)
	work := len(waiting) > 0 || slices.ContainsFunc(list, func(w build.Want) bool { return !planned.Has(w.Key) })
	if work { // else the cache may be one that only others can write to
		if err := os.MkdirAll(filepath.Join(o.Cache, "sif"), 0o755); err != nil {
			return cli.Usagef("a folder that you can write to, as big as the images: --cache DIR", "the cache (--cache): %w", err)
		}
		if err := unix.Access(filepath.Join(o.Cache, "sif"), unix.W_OK); err != nil {
			return cli.Usagef("what is there can be used by all who can read it; what is not is built in a folder of your own: --cache DIR", "the cache (--cache) %s lacks images, and you cannot write to it: %w", o.Cache, err)
		}
		closeDownloads, config, err := downloads(c, o.Cache)
		if err != nil {
			return err
		}
		defer closeDownloads()
		o.Config = config
	}
	bar := newProgress(os.Stderr)
	o.Progress, o.Say = bar.event, bar.Say
	// Whoever read the records may be gone: the runs that are left end as by a
	// signal then, and nothing is left behind. Not ignored, for commands would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	if work {
		var cancel context.CancelFunc
		if ctx, cancel, err = job.This().Until(ctx, end, "built", bar.Say); err != nil {
			return err
		}
		defer cancel()
	}
	b, err := build.New(o)
	if err != nil {
		return &cli.Error{Code: cli.Usage, Err: err}
	}
	run := len(waiting) > 0 || slices.ContainsFunc(list, func(w build.Want) bool { return runs(w.Plan) && !planned.Has(w.Key) })
	if err := preflight(ctx, b, o, run); err != nil && ctx.Err() == nil {
		b.Close()
		return err
	}
	if b.InMemory() {
		fmt.Fprintf(os.Stderr, "sifbuild: the scratch folder %s is in memory, and so is what is built there: --scratch DIR on a disk of this node\n", o.Scratch)
	}
	if work && job.This().OnLogin() {
		fmt.Fprintln(os.Stderr, "sifbuild: this is heavy work, and not in a job of Slurm\nhint: in a job: sbatch examples/build.sbatch TASKS, with the same flags")
	}
	out := recorder{gone: gone, enc: cli.Records(c.App.Writer), print: c.Bool("json") || !cli.IsTerminal(c.App.Writer)}
	out.unplanned(p, ready)
	if work { // the table at the end may be hours away
		out.early(os.Stderr)
	}
	bar.Start()
	later := p.later(ctx, waiting, o.Patience, bar.Say)
	for some, ok := ready, true; ok; {
		names.add(b, some)
		list, byKey := wants(b, some)
		bar.more(list)
		b.All(ctx, list, func(w build.Want, r *build.Report) {
			bar.done(w, r)
			for _, t := range byKey[w.Key] {
				names.done(t, r)
				out.add(t, r)
			}
		})
		some, ok = <-later
		out.unplanned(p, some)
	}
	bar.End()
	err = names.end(context.WithoutCancel(ctx))
	if closed := b.Close(); err == nil {
		err = closed
	}
	out.summary(os.Stderr, cli.Columns(os.Stderr))
	sayRegistries(os.Stderr, p.registry)
	switch {
	case err != nil:
		return &cli.Error{Code: cli.Unknown, Err: err}
	case out.failed > 0:
		return &cli.Error{Code: cli.Unknown, Err: lack(out.failed, len(out.reports), "image")}
	}
	return nil
}

// runs says that a plan has RUN lines.
func runs(p *dockerfile.Plan) bool {
	return slices.ContainsFunc(p.Stages, func(st dockerfile.Stage) bool {
		return slices.ContainsFunc(st.Steps, func(s dockerfile.Step) bool { return s.Run != nil })
	})
}

// findFence is the fence that comes with this sifbuild.
func findFence() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), "fence")
		if info, err := os.Stat(beside); err == nil && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	if p, err := exec.LookPath("fence"); err == nil {
		return filepath.Abs(p)
	}
	return "", cli.Usagef("put fence beside sifbuild, or on PATH", "fence is not there, and no RUN line runs without it")
}
