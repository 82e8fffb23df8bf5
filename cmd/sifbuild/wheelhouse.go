package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/job"
	"fence/pkg/task"
	"fence/pkg/taskflags"
	"fence/pkg/wanted"
	"fence/pkg/wheel"
	"fence/pkg/wheelhouse"
)

func wheelhouseCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "wheelhouse",
		Usage:     "fetch the Python wheels that tasks install, for use without a network",
		UsageText: "sifbuild wheelhouse [TASKS...] --out DIR [flags]",
		Description: "Reads what the tasks install with pip and uv: in RUN lines, and in the shell\n" +
			"scripts of solution/ and tests/. Then has this node's pip fetch the wheels for the\n" +
			"wanted machine, Python and C library, and looks at each: name and tags, the\n" +
			"machine of every library, the digest of every file. Nothing of a package is run.\n" +
			"The same command again fetches only what is missing.\n\n" +
			"Examples:\n" +
			"  sifbuild wheelhouse tasks/ --out wheels --python 3.12 --libc glibc2.31\n" +
			"  sifbuild wheelhouse --requirements r.txt --out wheels --arch aarch64\n" +
			"  sifbuild wheelhouse --wheels dataset/wheels.txt --out wheels\n" +
			"      the versions of a dataset's list, whatever machine it is for\n" +
			"  sifbuild wheelhouse tasks/ --out grader --grader\n" +
			"      also uv and a Python: for test.sh scripts that fetch them\n" +
			"  PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels/wheels pip install ...\n" +
			"  pip install --no-index --find-links wheels/wheels --require-hashes \\\n" +
			"      -r wheels/requirements.lock\n\n" +
			"docs/wheelhouse.md says what is in the folder, and how trials use it.\n\n" +
			"Exit codes: 0 all of it is there, 2 wrong flags, nothing to read, or no pip here,\n" +
			"3 some is not there, must not be used, or was not understood: a line says which.",
		Flags: slices.Concat([]urfave.Flag{
			&urfave.StringFlag{Name: "out", Usage: "the wheelhouse, `DIR`; what is there is kept"},
			&urfave.StringFlag{Name: "arch", Usage: "wheels for `ARCH`, such as x86_64 or aarch64 (default: this node's)"},
			&urfave.StringFlag{Name: "python", Usage: "for Python `VERSION`, where a task asks for no other", Value: "3.12"},
			&urfave.StringFlag{Name: "libc", Usage: "for images with the C library `LIBC` or a newer one, such as glibc2.28 or musl1.2", Value: "glibc2.31"},
			&urfave.StringSliceFlag{Name: "requirements", Usage: "also what the requirements `FILE` names"},
			&urfave.StringSliceFlag{Name: "wheels", Usage: "also the versions of the wheels that `LIST` names: a file with one a line, or a folder"},
			&urfave.BoolFlag{Name: "grader", Usage: "also uv, a Python, and the wheels that graders fetch most"},
			&urfave.StringSliceFlag{Name: "interpreter", Usage: "for --grader: a Python that can be moved, the folder or archive `PATH`, in place of one that uv fetches"},
			&urfave.BoolFlag{Name: "offline", Usage: "fetch nothing: look at what is there, and say what is missing"},
			&urfave.BoolFlag{Name: "json", Usage: "print the record to a terminal too"},
		}, taskflags.All()),
		Action: wheelhouseCommand,
	}
}

func wheelhouseCommand(c *urfave.Context) error {
	o := wheelhouse.Options{Dir: c.String("out"), Offline: c.Bool("offline"), Grader: c.Bool("grader"), Interpreters: c.StringSlice("interpreter")}
	if o.Dir == "" {
		return cli.Usagef("--out wheels", "no folder is named")
	}
	if len(o.Interpreters) > 0 && !o.Grader {
		return cli.Usagef("--grader --interpreter "+o.Interpreters[0], "--interpreter is for --grader")
	}
	var err error
	if o.Target, err = wheelTarget(c); err != nil {
		return err
	}
	ctx, stop := job.Interruptible()
	defer stop()
	if c.Args().Present() {
		arch, err := goArch(o.Target.Arch)
		if err != nil {
			return err
		}
		tasks, skipped, err := findTasks(c)
		if err != nil {
			return err
		}
		o.Sets, o.Unread = wanted.Tasks(ctx, tasks, v1.Platform{OS: "linux", Architecture: arch})
		saySkipped(os.Stderr, slices.DeleteFunc(skipped, func(s task.Skipped) bool {
			if s.Task {
				o.Unread = append(o.Unread, wheel.Unread{Where: s.Path, Reason: s.Reason})
			}
			return s.Task
		}))
	}
	for _, list := range []struct {
		names []string
		read  func(string) ([]wheel.Set, []wheel.Unread, error)
	}{{c.StringSlice("requirements"), wanted.File}, {c.StringSlice("wheels"), wanted.List}} {
		for _, name := range list.names {
			sets, unread, err := list.read(name)
			if err != nil {
				return cli.Usagef("", "%w", err)
			}
			o.Sets, o.Unread = append(o.Sets, sets...), append(o.Unread, unread...)
		}
	}
	if !c.Args().Present() && len(o.Sets)+len(o.Unread) == 0 && !o.Grader {
		return cli.Usagef("name tasks, --requirements FILE, --wheels LIST or --grader", "nothing says which wheels are wanted")
	}
	o.Say = func(text string) { fmt.Fprintf(os.Stderr, "sifbuild: %s\n", cli.Printable(text)) }
	r, err := wheelhouse.Build(ctx, o)
	switch {
	case errors.Is(err, wheelhouse.ErrNoPip):
		return cli.Usagef("install it (Debian: python3-pip), or uv", "%w: neither python3 -m pip nor uvx pip runs", err)
	case errors.Is(err, wheelhouse.ErrTarget):
		return cli.Usagef("one folder is for one machine and C library: name another with --out", "%w", err)
	case errors.Is(err, wheelhouse.ErrForeign):
		return cli.Usagef("name a new folder with --out", "%w", err)
	case ctx.Err() != nil:
		return &cli.Error{Code: cli.Unknown, Err: errors.New("stopped; what is there is whole, and the same command goes on from it")}
	case err != nil:
		return &cli.Error{Code: cli.Unknown, Err: err}
	}
	if c.Bool("json") || !cli.IsTerminal(c.App.Writer) {
		if err := cli.Records(c.App.Writer).Encode(r); err != nil {
			return err
		}
	}
	houseSummary(os.Stderr, r)
	if !r.OK() {
		return cli.Exit(cli.Unknown)
	}
	return nil
}

func wheelTarget(c *urfave.Context) (wheel.Target, error) {
	var t wheel.Target
	var err error
	if t.Arch, err = wheel.ParseArch(cmp.Or(c.String("arch"), runtime.GOARCH)); err != nil {
		return t, cli.Usagef("--arch x86_64", "--arch: %w", err)
	}
	if t.Python, err = wheel.ParsePython(c.String("python")); err != nil {
		return t, cli.Usagef("--python 3.12", "--python: %w", err)
	}
	if t.Libc, err = wheel.ParseLibc(c.String("libc")); err != nil {
		return t, cli.Usagef("'ldd --version' in the oldest of your images says it", "--libc: %w", err)
	}
	return t, nil
}

// houseSummary says for people what is there and what is not.
func houseSummary(w *os.File, r *wheelhouse.Record) {
	for _, f := range r.Faults {
		text := fmt.Sprintf("%s: %s: %s", f.Class, f.What, f.Text)
		if len(f.From) > 0 {
			text += " (for " + few(f.From) + ")"
		}
		fmt.Fprintf(w, "sifbuild: %s\n", cli.Printable(text))
	}
	for _, u := range r.Unread {
		said := u.Reason
		if u.Text != "" { // a task that cannot be read has no line
			said = u.Text + ": " + said
		}
		fmt.Fprintf(w, "sifbuild: unread: %s: %s\n", cli.Printable(u.Where), cli.Printable(said))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "sifbuild: note: %s\n", cli.Printable(note))
	}
	complete := 0
	for _, s := range r.Sets {
		if s.Complete {
			complete++
		}
	}
	fmt.Fprintf(w, "%s, %s; %d fetched now; %d of %s complete\n", plural(len(r.Wheels), "wheel"), cli.Size(r.Bytes), r.Fetched, complete, plural(len(r.Sets), "set"))
	if r.Grader != nil {
		fmt.Fprintf(w, "for graders: uv %s, %s\n", cli.Printable(cmp.Or(r.Grader.UV, "none")), cli.Printable(cmp.Or(strings.Join(r.Grader.Interpreters, ", "), "no Python")))
	}
}

// few are some names of many.
func few(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
