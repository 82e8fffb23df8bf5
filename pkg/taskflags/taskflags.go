// Package taskflags are the flags that choose tasks, the same in every command
// that takes task folders.
package taskflags

import (
	"errors"
	"io"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/task"
)

// All are the flags.
func All() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringSliceFlag{Name: "include", Usage: "only tasks whose name matches `GLOB`"},
		&urfave.StringSliceFlag{Name: "exclude", Usage: "no task whose name matches `GLOB`"},
		&urfave.IntFlag{Name: "per-dataset", Usage: "at most `N` tasks of each dataset, which is a folder of tasks", DefaultText: "all"},
		&urfave.IntFlag{Name: "limit", Usage: "at most `N` tasks", DefaultText: "all"},
		&urfave.Uint64Flag{Name: "seed", Usage: "choose those at random, the same for the same `S`", DefaultText: "the first by name"},
	}
}

// Find finds the tasks that args name and the flags choose, see task.Find. Where
// there is none, hint says what a task is.
func Find(c *urfave.Context, args []string, stdin io.Reader, hint string) ([]task.Task, []task.Skipped, error) {
	tasks, skipped, err := task.Find(args, task.Selection{
		Stdin:   stdin,
		Include: c.StringSlice("include"), Exclude: c.StringSlice("exclude"),
		PerDataset: c.Int("per-dataset"), Limit: c.Int("limit"), Seed: c.Uint64("seed"),
	})
	if errors.Is(err, task.ErrNames) {
		hint = "a GLOB is for the whole name of a task's folder, such as 'web-*'"
	}
	if err != nil {
		return nil, skipped, cli.Usagef(hint, "%w", err)
	}
	return tasks, skipped, nil
}
