package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/build"
	"fence/pkg/cli"
	"fence/pkg/job"
	"fence/pkg/spec"
	"fence/pkg/task"
	"fence/pkg/taskflags"
)

func planCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "plan",
		Usage:     "say what a build would do: distinct images, bases, shared steps",
		UsageText: "sifbuild plan TASKS... [flags]",
		Description: "TASKS are task folders, folders of task folders, or - for lines on standard input:\n" +
			"paths, or records of 'sifbuild build'. Nothing is built. Bases that the cache\n" +
			"does not have are looked up, which a registry may count.\n\n" +
			"Examples:\n" +
			"  sifbuild plan tasks/ --cache $SIF_CACHE --include 'web-*'\n" +
			"  sifbuild plan tasks/ --cache $SIF_CACHE --update-lock\n" +
			"  sifbuild plan tasks/ --cache $SIF_CACHE --fetch\n\n" +
			"Exit codes: 0 every task has a plan, 2 wrong flags or no task, 3 some have none,\n" +
			"or a base could not be fetched.",
		Flags: slices.Concat(planFlags(), taskFlags(), []urfave.Flag{
			&urfave.BoolFlag{Name: "fetch", Usage: "bring the bases into the cache: then builds need no registry (--offline)"},
		}),
		Action: planCommand,
	}
}

// PlanSchema names the record of one image that is wanted.
const planSchema = "sifbuild.plan/v1"

// planRecord is an image that is wanted, or a task that no image can be planned for.
type planRecord struct {
	Schema   string   `json:"schema"`
	Key      string   `json:"key,omitempty"`
	Image    string   `json:"image,omitempty"`
	Cached   bool     `json:"cached"`
	Tasks    []string `json:"tasks"`
	Bases    []string `json:"bases"`
	Steps    int      `json:"steps"`
	Shared   int      `json:"shared"` // of them, also in another image of this plan
	Warnings []string `json:"warnings"`
	Error    string   `json:"error,omitempty"`
	Hint     string   `json:"hint,omitempty"`
}

func planCommand(c *urfave.Context) error {
	if c.Bool("fetch") && c.String("cache") == "" {
		return cli.Usagef("--cache DIR, or the variable SIF_CACHE", "--fetch needs a cache to fetch to")
	}
	ctx, stop := job.Interruptible()
	defer stop()
	p, all, skipped, err := readTasks(ctx, c)
	if err != nil {
		return err
	}
	records := planRecords(p, all)
	if c.Bool("json") {
		enc := cli.Records(c.App.Writer)
		for _, r := range records {
			enc.Encode(r)
		}
	} else {
		planTable(c.App.Writer, records)
	}
	saySkipped(os.Stderr, skipped)
	sayRegistries(os.Stderr, p.registry)
	var none []unplanned
	for _, r := range records {
		if r.Error != "" {
			_, same, _ := strings.Cut(r.Error, "/"+r.Tasks[0]+"/")
			none = append(none, unplanned{r.Tasks[0], r.Error, r.Hint, cmp.Or(same, r.Error)})
		}
	}
	sayUnplanned(os.Stderr, none)
	failed := len(none)
	if c.Bool("fetch") {
		if err := p.fetch(ctx); err != nil {
			return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("fetching the bases: %w", err)}
		}
	}
	if failed > 0 {
		return &cli.Error{Code: cli.Unknown, Err: lack(failed, len(all), "plan")}
	}
	return nil
}

// readTasks finds the tasks that the arguments name, and plans them. Those that
// no image can be made of are among them, with the reason in place of a plan.
func readTasks(ctx context.Context, c *urfave.Context) (*planner, []planned, []task.Skipped, error) {
	if !c.Args().Present() {
		return nil, nil, nil, cli.Usagef("sifbuild "+c.Command.Name+" tasks/", "no task folder is named")
	}
	p, err := newPlanner(c)
	if err != nil {
		return nil, nil, nil, err
	}
	type found struct {
		all     []planned
		skipped []task.Skipped
		err     error
	}
	done := make(chan found, 1)
	go func() {
		tasks, skipped, err := findTasks(c)
		done <- found{p.plan(ctx, withGraders(tasks)), skipped, err}
	}()
	var f found
	select {
	case f = <-done:
	case <-ctx.Done(): // standard input may stay open, and a file of many gigabytes may still be read
	}
	if ctx.Err() != nil {
		return nil, nil, nil, &cli.Error{Code: cli.Unknown, Err: errors.New("stopped while reading the tasks; nothing was built")}
	}
	var others []task.Skipped
	for _, s := range f.skipped {
		if s.Task {
			f.all = append(f.all, planned{task: task.Task{Name: filepath.Base(s.Path), Dir: s.Path}, err: &task.Invalid{Reason: s.Reason}})
		} else {
			others = append(others, s)
		}
	}
	return p, f.all, others, f.err
}

// withGraders are tasks with what the images of their separate verifiers are made
// from, as if that were tasks too, which somebody may have named already.
func withGraders(tasks []task.Task) []task.Task {
	named := map[string]bool{}
	for _, t := range tasks {
		named[t.Dir] = true
	}
	for _, t := range slices.Clone(tasks) {
		for _, g := range spec.Graders(t) {
			if !named[g.Dir] {
				tasks = append(tasks, g)
			}
		}
	}
	return tasks
}

// findTasks finds the tasks that the arguments and the flags name.
func findTasks(c *urfave.Context) ([]task.Task, []task.Skipped, error) {
	for _, name := range []string{"per-dataset", "limit"} {
		if n := c.Int(name); n < 0 {
			return nil, nil, cli.Usagef("--"+name+" 10", "--%s: %d is no number of tasks", name, n)
		}
	}
	return taskflags.Find(c, c.Args().Slice(), os.Stdin, "a task is a folder with task.toml and environment/Dockerfile, or just a Dockerfile")
}

func saySkipped(w io.Writer, skipped []task.Skipped) {
	const most = 10
	for i, s := range skipped {
		if i == most {
			fmt.Fprintf(w, "sifbuild: and %d more are skipped\n", len(skipped)-most)
			return
		}
		fmt.Fprintf(w, "sifbuild: skipped %s: %s\n", cli.Printable(s.Path), cli.Printable(s.Reason))
	}
}

func planRecords(p *planner, all []planned) []planRecord {
	var out []planRecord
	b := build.Planned(p.buildOptions())
	list, byKey := wants(b, all)
	uses := map[string]int{}
	for _, w := range list {
		for _, key := range b.StepKeys(w.Plan) {
			uses[key]++
		}
	}
	for _, w := range list {
		r := planRecord{Schema: planSchema, Key: w.Key, Image: b.Image(w.Key), Cached: b.Has(w.Key), Tasks: w.Names, Bases: []string{}, Warnings: []string{}}
		for _, st := range w.Plan.Stages {
			if st.From.Base != nil && !slices.Contains(r.Bases, st.From.Base.Name) {
				r.Bases = append(r.Bases, st.From.Base.Name)
			}
		}
		for _, key := range b.StepKeys(w.Plan) {
			r.Steps++
			if uses[key] > 1 {
				r.Shared++
			}
		}
		for _, t := range byKey[w.Key] {
			for _, text := range t.Warnings {
				r.Warnings = append(r.Warnings, t.Name+": "+text)
			}
		}
		for _, warn := range w.Plan.Warnings {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s:%d: %s", warn.File, warn.Line, warn.Text))
		}
		out = append(out, r)
	}
	for _, t := range all {
		if t.err != nil {
			f := build.PlanReport(p.platform.Architecture, t.err).Fault
			out = append(out, planRecord{Schema: planSchema, Tasks: []string{t.task.Name}, Bases: []string{}, Warnings: []string{}, Error: f.Message, Hint: f.Hint})
		}
	}
	return out
}

func planTable(w io.Writer, records []planRecord) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	bases, cached, tasks, images := map[string]int{}, 0, 0, 0
	for _, r := range records {
		tasks += len(r.Tasks)
		if r.Error != "" {
			continue
		}
		if images++; images == 1 {
			fmt.Fprintln(t, "IMAGE\tTASKS\tSTEPS\tSHARED\tBASE\tFIRST TASK")
		}
		key := r.Key[:12]
		if r.Cached {
			cached++
			key += " (there)"
		}
		for _, b := range r.Bases {
			bases[b]++
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\n", key, len(r.Tasks), r.Steps, r.Shared, cli.Printable(strings.Join(r.Bases, ", ")), cli.Printable(r.Tasks[0]))
	}
	t.Flush()
	if images > 0 {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%s, %s, %d of them there; %s\n", plural(tasks, "task"), plural(images, "image"), cached, plural(len(bases), "base"))
	names := slices.SortedFunc(maps.Keys(bases), func(a, b string) int {
		return cmp.Or(bases[b]-bases[a], strings.Compare(a, b))
	})
	for _, name := range names {
		fmt.Fprintf(w, "%6d  %s\n", bases[name], cli.Printable(name))
	}
}
