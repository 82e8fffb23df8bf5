package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/build"
	"fence/pkg/cli"
	"fence/pkg/harbor"
	"fence/pkg/job"
)

func gcCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "gc",
		Usage:     "remove what nobody has used for long from a cache",
		UsageText: "sifbuild gc --cache DIR [--unused TIME] [--keep SIZE] [--dry-run]",
		Description: "Examples:\n" +
			"  sifbuild gc --cache $SIF_CACHE --unused 720h\n" +
			"  sifbuild gc --cache $SIF_CACHE --keep 200G --dry-run\n\n" +
			"An image, a step, a base counts as used when it was made, or when a build took\n" +
			"it. With both flags, a thing goes that was not used for TIME and does not fit in\n" +
			"SIZE. What a running build needs stays, on whatever node that is. What killed\n" +
			"builds left half done goes when it is a week old.\n\n" +
			"Exit codes: 0 done, 2 wrong flags or not a cache, 3 not all could be removed.",
		Flags: []urfave.Flag{
			&urfave.StringFlag{Name: "cache", Usage: "the cache, `DIR`; or the variable SIF_CACHE", EnvVars: []string{"SIF_CACHE"}},
			&urfave.DurationFlag{Name: "unused", Usage: "only what was not used for `TIME`, such as 720h", DefaultText: "any time"},
			&urfave.StringFlag{Name: "keep", Usage: "let `SIZE` stay, the last used first: 200G, 500M"},
			&urfave.BoolFlag{Name: "dry-run", Usage: "remove nothing, say what would go"},
			&urfave.BoolFlag{Name: "json", Usage: "print one record for each file"},
		},
		Action: gcCommand,
	}
}

func gcCommand(c *urfave.Context) error {
	o := build.GCOptions{Cache: c.String("cache"), Unused: c.Duration("unused"), DryRun: c.Bool("dry-run")}
	if o.Cache == "" {
		return cli.Usagef("--cache DIR, or the variable SIF_CACHE", "no cache is named")
	}
	if c.Args().Present() {
		return cli.Usagef("the cache is named by --cache DIR", "gc takes no arguments, got %q", c.Args().First())
	}
	if o.Unused < 0 {
		return cli.Usagef("such as --unused 720h", "--unused: %v is not a time", o.Unused)
	}
	if s := c.String("keep"); s != "" {
		var err error
		if o.Keep, err = parseSize(s); err != nil {
			return cli.Usagef("a number and K, M, G or T, such as 200G", "--keep: %w", err)
		}
	}
	if o.Unused == 0 && o.Keep == 0 {
		return cli.Usagef("--unused TIME or --keep SIZE; --unused 1ns removes everything", "nothing says what may go")
	}
	if st, err := os.Stat(filepath.Join(o.Cache, "sif")); err != nil || !st.IsDir() {
		return cli.Usagef("--cache names the folder that 'sifbuild build' was given", "%s is no cache of sifbuild: it has no folder sif", o.Cache)
	}
	gone, failed := build.GC(o)
	if !o.DryRun {
		ctx, stop := job.Interruptible()
		defer stop()
		failed = errors.Join(failed, harbor.Sweep(ctx, o.Cache))
	}
	var bytes int64
	enc := cli.Records(c.App.Writer)
	for _, g := range gone {
		bytes += g.Bytes
		if c.Bool("json") {
			enc.Encode(g)
		} else if c.Bool("dry-run") {
			fmt.Fprintf(c.App.Writer, "%8s  %-8s  %s  %s\n", cli.Size(g.Bytes), g.Kind, g.Used.Format(time.DateOnly), cli.Printable(g.Path))
		}
	}
	if !c.Bool("json") {
		verb := "removed"
		if o.DryRun {
			verb = "would remove"
		}
		fmt.Fprintf(c.App.Writer, "%s %s, %s\n", verb, plural(len(gone), "file"), cli.Size(bytes))
	}
	if failed != nil {
		return &cli.Error{Code: cli.Unknown, Err: failed}
	}
	return nil
}

// parseSize reads a number of bytes with a unit of 1024.
func parseSize(s string) (int64, error) {
	number, factor := s, 1.0
	for i, u := range []string{"K", "M", "G", "T"} {
		if n, ok := strings.CutSuffix(s, u); ok {
			number, factor = n, math.Pow(1024, float64(i+1))
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if n *= factor; err != nil || !(n >= 0 && n < math.MaxInt64) {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	return int64(n), nil
}
