package main

import (
	"time"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/build"
	"fence/pkg/cli"
	"fence/pkg/job"
)

// scheduleFlags are about when builds begin and end.
func scheduleFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.IntFlag{Name: "jobs", Aliases: []string{"j"}, Usage: "build `N` images at a time", Value: max(1, job.This().CPUs()/2), DefaultText: "half of the job's processors"},
		&urfave.DurationFlag{Name: "timeout", Usage: "`TIME` for one image; 0: no limit", Value: 30 * time.Minute},
		&urfave.DurationFlag{Name: "idle-timeout", Usage: "end a RUN line that prints nothing for `TIME`; 0: never", Value: 10 * time.Minute},
		&urfave.IntFlag{Name: "retries", Usage: "try `N` times more what may pass, of each class (network, stalled, rate_limit, ...)", Value: 2},
		&urfave.DurationFlag{Name: "registry-wait", Usage: "wait at most `TIME` for registries that take no more requests; 0: not at all", Value: 6 * time.Hour},
		&urfave.StringFlag{Name: "min-disk", Usage: "begin no further build while the disk of scratch or cache has less than `SIZE` left; 0: never mind", Value: "1G"},
		&urfave.StringFlag{Name: "min-memory", Usage: "begin no further build while the node, its control group or the job has less than `SIZE` left", Value: "1G"},
		&urfave.StringFlag{Name: "deadline", Usage: "end cleanly two minutes before `TIME`: 3h from now, 2026-01-31T18:00:00Z, seconds since 1970, or none (default: the end of the Slurm job)"},
	}
}

// schedule reads those flags.
func schedule(c *urfave.Context, o *build.Options) (err error) {
	o.Jobs, o.Retries, o.Timeout, o.Idle, o.Patience = c.Int("jobs"), c.Int("retries"), c.Duration("timeout"), c.Duration("idle-timeout"), c.Duration("registry-wait")
	switch {
	case o.Jobs < 1:
		return cli.Usagef("-j 4", "-j: %d is no number of builds", o.Jobs)
	case o.Retries < 0:
		return cli.Usagef("--retries 0 tries once", "--retries: %d is no number of tries", o.Retries)
	case o.Timeout < 0:
		return cli.Usagef("--timeout 30m", "--timeout: %v is no time", o.Timeout)
	case o.Patience < 0:
		return cli.Usagef("--registry-wait 6h", "--registry-wait: %v is no time", o.Patience)
	case o.Idle < 0:
		return cli.Usagef("--idle-timeout 10m", "--idle-timeout: %v is no time", o.Idle)
	}
	if o.Least.Disk, err = parseSize(c.String("min-disk")); err != nil {
		return cli.Usagef("--min-disk 2G", "--min-disk: %w", err)
	}
	if o.Least.Memory, err = parseSize(c.String("min-memory")); err != nil {
		return cli.Usagef("--min-memory 500M", "--min-memory: %w", err)
	}
	return nil
}

// deadline reads --deadline, so that a wrong one is said before anything begins.
func deadline(c *urfave.Context) (string, error) {
	text := c.String("deadline")
	if _, err := job.ParseDeadline(text, time.Now()); err != nil {
		return "", cli.Usagef("such as 3h, 2026-01-31T18:00:00Z, or none", "--deadline: %w", err)
	}
	return text, nil
}
