package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/check"
	"fence/pkg/cli"
	"fence/pkg/sif"
)

func checkCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "check",
		Usage:     "look at images, without running them",
		UsageText: "sifbuild check IMAGE.sif... [flags]",
		Description: "Says whether an image is whole, is for this architecture, has a shell and the\n" +
			"commands that it must have, and whether it gives away what an agent must not\n" +
			"see: files of a task's tests and solution, commits that HEAD does not lead to.\n" +
			"'sifbuild build' does the same with each new image. It needs no Apptainer.\n\n" +
			"Examples:\n" +
			"  sifbuild check image.sif\n" +
			"  sifbuild check image.sif --require tmux,python3\n" +
			"  sifbuild check image.sif --tests task/tests --solution task/solution\n\n" +
			"Exit codes: 0 every image can be used, 1 some cannot, and the lines marked NO\n" +
			"say why, 2 wrong flags or no SIF image, 3 could not tell, or not print all.",
		Flags: []urfave.Flag{
			&urfave.StringFlag{Name: "require", Usage: "commands that each image must have, by `LIST`: names or paths"},
			&urfave.StringFlag{Name: "arch", Usage: "for nodes of `ARCH` (default: this node's)"},
			&urfave.StringFlag{Name: "tests", Usage: "no file of the folder `DIR` may be in it"},
			&urfave.StringFlag{Name: "solution", Usage: "no file of the folder `DIR` may be in it"},
			&urfave.BoolFlag{Name: "json", Usage: "print one JSON record for each image"},
		},
		Action: checkCommand,
	}
}

func checkCommand(c *urfave.Context) error {
	if !c.Args().Present() {
		return cli.Usagef("sifbuild check image.sif", "no image is named")
	}
	require, err := commandList(c.String("require"))
	if err != nil {
		return err
	}
	arch, err := goArch(c.String("arch"))
	if err != nil {
		return err
	}
	o := check.Options{Arch: arch, Require: require}
	task := check.Task{Name: "the task"}
	for name, dir := range map[string]*string{"tests": &task.Tests, "solution": &task.Solution} {
		if *dir = c.String(name); *dir == "" {
			continue
		}
		if st, err := os.Stat(*dir); err != nil || !st.IsDir() {
			return cli.Usagef("--"+name+" task/"+name, "--%s: %s is no folder", name, *dir)
		}
		o.Tasks = []check.Task{task}
		task.Name = filepath.Base(filepath.Dir(absolute(*dir)))
	}
	if o.Tasks != nil {
		o.Tasks[0] = task
	}
	no, untold, unread := 0, 0, 0
	for _, name := range c.Args().Slice() {
		img, err := sif.Open(name)
		if err != nil {
			unread++
			fmt.Fprintf(os.Stderr, "sifbuild: %s\n", cli.Printable(err.Error()))
			continue
		}
		r := check.Run(img, o)
		img.Close()
		switch {
		case r.Untold():
			untold++
		case !r.OK():
			no++
		}
		if c.Bool("json") {
			if err := cli.Records(c.App.Writer).Encode(r); err != nil {
				return err
			}
		} else {
			printCheck(c.App.Writer, r)
		}
	}
	switch {
	case unread > 0:
		return cli.Exit(cli.Usage)
	case untold > 0:
		return cli.Exit(cli.Unknown)
	case no > 0:
		return cli.Exit(cli.No)
	}
	return nil
}

// commandList reads a list of commands, such as tmux,python3.
func commandList(list string) ([]string, error) {
	if list == "" || list == "none" {
		return nil, nil
	}
	names := strings.Split(list, ",")
	for _, n := range names {
		if n == "" || strings.ContainsAny(n, " \t\n'\"\\$") || strings.HasPrefix(n, "-") {
			return nil, cli.Usagef("--require tmux,python3", "--require: %q is no name of a command", n)
		}
	}
	return names, nil
}

func absolute(p string) string {
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}

// printCheck is a report for a person, in 80 columns.
func printCheck(w io.Writer, r check.Report) {
	answer := "yes"
	if !r.OK() {
		answer = "NO"
	}
	fmt.Fprintf(w, "%s\n", cli.Printable(r.Image))
	fmt.Fprintf(w, "  %-8s %s, %s, %d files of %s\n", answer, cli.Printable(r.Arch), cli.Size(r.Bytes), r.Files, cli.Size(r.Unpacked))
	for _, f := range r.Findings {
		word := string(f.Level)
		if f.Level == check.Fault {
			word = "NO"
		}
		cli.Wrap(w, fmt.Sprintf("  %-8s ", word), cli.Printable(f.Text))
		for _, p := range f.Paths {
			fmt.Fprintf(w, "             %s\n", cli.Printable(p))
		}
		if n := f.Count - len(f.Paths); n > 0 && len(f.Paths) > 0 {
			fmt.Fprintf(w, "             and %d more\n", n)
		}
		if f.Hint != "" {
			cli.Wrap(w, "           hint: ", cli.Printable(f.Hint))
		}
	}
}
