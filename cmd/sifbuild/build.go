package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/build"
	"fence/pkg/cli"
	"fence/pkg/task"
)

func buildCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "build",
		Usage:     "build the images of tasks, each distinct one once",
		UsageText: "sifbuild build TASKS... --cache DIR [flags] > IMAGES.jsonl",
		Description: "TASKS are task folders, folders of task folders, or - for a list on standard input.\n" +
			"One record for each task goes to stdout, as soon as its image is there; a table\n" +
			"goes to stderr at the end. The same command again continues: what is there is\n" +
			"not built again.\n\n" +
			"Examples:\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE > images.jsonl\n" +
			"  sifbuild build tasks/ --cache $SIF_CACHE -j 8 --timeout 30m --require tmux,python3\n" +
			"  sifbuild build task/ --cache $SIF_CACHE --base ubuntu:22.04=/project/ubuntu.sif\n\n" +
			"Exit codes: 0 every image is there, 2 wrong flags or no task, 3 some are not.",
		Flags: slices.Concat(planFlags(), taskFlags(), []urfave.Flag{
			&urfave.StringFlag{Name: "scratch", Usage: "work in `DIR`, on a disk of this node (default: $TMPDIR, else /tmp)"},
			&urfave.IntFlag{Name: "jobs", Aliases: []string{"j"}, Usage: "build `N` images at a time", Value: max(1, runtime.NumCPU()/2)},
			&urfave.DurationFlag{Name: "timeout", Usage: "`TIME` for one image", Value: 30 * time.Minute},
			&urfave.IntFlag{Name: "retries", Usage: "try `N` times more what may work the next time (network, rate limits)", Value: 2},
			&urfave.StringSliceFlag{Name: "secret", Usage: "`ID=FILE` for RUN --mount=type=secret,id=ID"},
			&urfave.BoolFlag{Name: "no-smoke", Usage: "do not start each new image once under Apptainer"},
			&urfave.BoolFlag{Name: "dry-run", Usage: "only plan"},
		}),
		Action: buildCommand,
	}
}

// buildOptions are what planner and builder share.
func (p *planner) buildOptions() build.Options {
	return build.Options{Cache: p.cache, Platform: p.platform, Bases: p, Require: p.require}
}

func buildCommand(c *urfave.Context) error {
	if c.Bool("dry-run") {
		return planCommand(c)
	}
	if c.String("cache") == "" {
		return cli.Usagef("--cache DIR, or the variable SIF_CACHE", "no cache is named")
	}
	if c.Int("jobs") < 1 {
		return cli.Usagef("-j 4", "-j: %d is no number of builds", c.Int("jobs"))
	}
	fence, err := findFence()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		return cli.Usagef("Debian, Ubuntu: squashfs-tools; or load a module that has it", "mksquashfs is not installed on this node")
	}
	p, all, skipped, err := readTasks(c)
	if err != nil {
		return err
	}
	saySkipped(os.Stderr, skipped)
	o := p.buildOptions()
	o.Fence, o.Timeout, o.Retries, o.Pause = fence, c.Duration("timeout"), c.Int("retries"), 10*time.Second
	o.NoSmoke = c.Bool("no-smoke")
	if p, err := exec.LookPath("apptainer"); err == nil {
		if o.Apptainer, err = filepath.Abs(p); err != nil {
			return err
		}
	}
	o.Secrets = map[string]string{}
	for _, pair := range c.StringSlice("secret") {
		id, file, ok := strings.Cut(pair, "=")
		if !ok {
			return cli.Usagef("--secret token=/path/to/file", "--secret: %q is not ID=FILE", pair)
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
	bar := newProgress(os.Stderr)
	o.Progress = bar.event
	b, err := build.New(o)
	if err != nil {
		return &cli.Error{Code: cli.Usage, Err: err}
	}
	ctx, stop := interruptible()
	defer stop()

	list, byKey := wants(b, all)
	out := recorder{enc: json.NewEncoder(c.App.Writer), print: c.Bool("json") || !cli.IsTerminal(c.App.Writer)}
	for _, t := range all {
		if t.err != nil {
			out.add(t.task, build.PlanReport(p.platform.Architecture, t.err))
		}
	}
	bar.start(len(list))
	b.All(ctx, list, c.Int("jobs"), func(w build.Want, r *build.Report) {
		bar.done(w, r)
		for _, t := range byKey[w.Key] {
			out.add(t, r)
		}
	})
	bar.end()
	err = b.Close()
	out.table(os.Stderr)
	switch {
	case err != nil:
		return &cli.Error{Code: cli.Unknown, Err: err}
	case out.failed > 0:
		return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("%d of %d tasks have no image", out.failed, len(out.reports))}
	}
	return nil
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

// recorder prints a record for each task and remembers all for the table.
type recorder struct {
	enc     *json.Encoder
	print   bool
	reports []build.Report
	failed  int
}

func (o *recorder) add(t task.Task, r *build.Report) {
	one := *r
	one.Name, one.Task = t.Name, t.Dir
	o.reports = append(o.reports, one)
	if one.Fault != nil {
		o.failed++
	}
	if o.print {
		o.enc.Encode(one)
	}
}

func (o *recorder) table(w *os.File) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	images, there, built := map[string]bool{}, 0, 0
	var bytes int64
	for _, r := range o.reports {
		if r.Fault != nil || images[r.Key] {
			continue
		}
		images[r.Key] = true
		bytes += r.Bytes
		if r.Cached {
			there++
		} else {
			built++
		}
	}
	fmt.Fprintf(w, "%d tasks, %d images: %d built, %d there before; %s\n", len(o.reports), len(images), built, there, size(bytes))
	if o.failed > 0 {
		fmt.Fprintln(t, "NO IMAGE\tCLASS\tWHY")
		for _, r := range o.reports {
			if r.Fault != nil {
				fmt.Fprintf(t, "%s\t%s\t%s\n", cli.Printable(r.Name), r.Fault.Class, cli.Printable(r.Fault.Message))
			}
		}
	}
	t.Flush()
}
