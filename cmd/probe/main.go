// Command probe says what a process here can reach, compares two such
// reports, and is a gate in a script.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/probe"
	"fence/pkg/tree"
)

func main() { os.Exit(run(os.Args)) }

func run(args []string) int {
	if len(args) > 1 && args[1] == probe.WorkerName {
		return probe.WorkerMain(args[2:], os.Stdin, os.Stdout)
	}
	if len(args) > 1 && args[1] == "__empty" {
		return empty(args[2:])
	}
	return cli.Main(app(), args)
}

// empty removes what is in folders. rollout has it done by the program that it
// brings into a container whose own are an agent's by then (box.Empty).
func empty(dirs []string) int {
	for _, dir := range dirs {
		names, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, name := range names {
			err = cmp.Or(err, tree.RemoveAll(filepath.Join(dir, name.Name()))) // the first, and all the same the others
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "probe: emptying %s: %v\n", dir, err)
			return cli.Unknown
		}
	}
	return 0
}

const help = `Tries, one by one, what a command in this place could do: read shared and home
directories, reach the network, other processes, sockets, devices and Slurm,
make system calls, find credentials. It reads nothing that may be a secret,
leaves no file behind and sends at most one byte to your own canary.

Run it three times through the very path that the commands will take, then
compare:

  eval "$(fence env)"
  probe > host.json
  apptainer exec img.sif /.fence/probe > before.json
  apptainer exec img.sif /.fence/fence -- /.fence/probe > after.json
  probe diff host.json before.json after.json
  probe gate after.json --before before.json --expect strict

The report is JSON on stdout when that is not a terminal. To prove that a
refused connection was there to be made, start 'probe listen' first.

Exit codes, of every subcommand:
  0  every check has an answer; of diff and gate: and it is yes
  1  diff and gate only: the answer is no
  2  wrong flags, or a file that is no report
  3  could not tell, or a check ended without an answer`

func app() *urfave.App {
	return &urfave.App{
		Name:        "probe",
		Usage:       "say what a process here can reach",
		UsageText:   "probe [run] [flags] > REPORT.json\nprobe listen|diff|gate|list ...",
		Description: help,
		Flags:       runFlags(),
		Action: func(c *urfave.Context) error {
			if name := c.Args().First(); name != "" {
				return notACommand(name)
			}
			return runCommand(c)
		},
		Commands: []*urfave.Command{runCmd(), listenCmd(), diffCmd(), gateCmd(), listCmd()},
	}
}

func notACommand(name string) error {
	hint := "run 'probe --help' for the subcommands"
	if near := cli.Suggest(name, []string{"run", "listen", "diff", "gate", "list"}); near != "" {
		hint = "did you mean 'probe " + near + "'?"
	}
	return cli.Usagef(hint, "%q is not a subcommand", name)
}

// unknown is the usage error for err: the nearest known name is the hint if
// it is about an unknown one.
func unknown(err error, hint string) error {
	var id *probe.UnknownIDError
	var name *probe.UnknownVarError
	got, known := "", []string(nil)
	switch {
	case errors.As(err, &id):
		hint, got, known = "'probe list' names them all", strings.TrimRight(id.ID, ".*"), id.Known
	case errors.As(err, &name):
		known = []string{probe.SharedVar, probe.SkipVar}
		hint, got = "there are "+strings.Join(known, " and "), name.Name
	}
	if near := cli.Suggest(got, known); near != "" {
		hint = "did you mean " + near + "?\n" + hint
	}
	return cli.Usagef(hint, "%w", err)
}

// interruptible ends with the signals that end a job.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}

// readReport reads the report in a file, or standard input for "-".
func readReport(name string) (probe.Report, error) {
	in, shown := io.Reader(os.Stdin), "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return probe.Report{}, cli.Usagef("'probe > FILE' writes a report", "reading a report: %w", err)
		}
		defer f.Close()
		in, shown = f, name
	}
	r, err := probe.Decode(shown, in)
	var schema *probe.SchemaError
	switch {
	case errors.As(err, &schema):
		return r, cli.Usagef("'probe > FILE' writes a report; make all of them with this version of probe", "%w", err)
	case err != nil:
		return r, cli.Usagef("'probe > FILE' writes a report; if the run failed, FILE is empty or cut short", "%w", err)
	}
	return r, nil
}

// answer ends diff and gate, when the answer has been printed.
func answer(a probe.Answer, printing error) error {
	switch {
	case printing != nil:
		return printing
	case a == probe.Yes:
		return nil
	case a == probe.No:
		return cli.Exit(cli.No)
	}
	return cli.Exit(cli.Unknown)
}

// wrongOrder is the error for reports that stand in each other's place.
func wrongOrder(order, why string) error {
	return cli.Usagef(order+"\n'probe --label' says of what kind a report is, where it does not look so", "%s", why)
}

// notComparable is the error for reports of different places.
func notComparable(differ []string) error {
	return &cli.Error{Code: cli.Usage, Err: errors.New(differ[0]), Hint: "make all reports in one job on one node, with the same probe"}
}
