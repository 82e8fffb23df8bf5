// Command sifbuild makes Apptainer images out of task folders' Dockerfiles,
// as an ordinary user and without Docker: each distinct image once, cached,
// checked.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"fence/pkg/cli"
	"fence/pkg/smoke"
	"fence/pkg/step"
)

func main() {
	step.Main()  // a step of a build begins as this program
	smoke.Main() // and so does the start of an image
	os.Exit(cli.Main(app(), os.Args))
}

const help = `Builds the images of tasks: folders that hold environment/Dockerfile, as in
Harbor's format, or just a Dockerfile. Each distinct image is built once, by
you, without root and without Docker: it needs user namespaces and mksquashfs
(Debian: squashfs-tools). Every RUN line runs under fence, so it reaches the
network and nothing of yours.

  sifbuild plan tasks/
  sifbuild build tasks/ --cache $SIF_CACHE > images.jsonl
  sifbuild build tasks/ --cache $SIF_CACHE |
      rollout run - --agent oracle --out $RUN
  sifbuild check image.sif --require tmux,python3

What differs from 'docker build' is in docs/sifbuild.md.

Exit codes, of every subcommand:
  0  every image is there; of check: and it is as it must be
  1  check only: the answer is no
  2  wrong flags, or no task to be found
  3  some image could not be built; the records say why`

func app() *urfave.App {
	return &urfave.App{
		Name:        "sifbuild",
		Usage:       "Dockerfiles of tasks to Apptainer images, without root",
		UsageText:   "sifbuild plan|build|def|check|gc ...",
		Description: help,
		Action: func(c *urfave.Context) error {
			if name := c.Args().First(); name != "" {
				return notACommand(name)
			}
			return urfave.ShowAppHelp(c)
		},
		Commands: []*urfave.Command{planCmd(), buildCmd(), defCmd(), checkCmd(), gcCmd()},
	}
}

func notACommand(name string) error {
	hint := "run 'sifbuild --help' for the subcommands"
	if near := cli.Suggest(name, []string{"plan", "build", "def", "check", "gc"}); near != "" {
		hint = "did you mean 'sifbuild " + near + "'?"
	}
	return cli.Usagef(hint, "%q is not a subcommand", name)
}

// interruptible ends with the signals that end a job, but for those that
// whoever started this program had ignored: nohup(1), a shell's background.
func interruptible() (context.Context, context.CancelFunc) {
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, signal.Ignored)
	if len(signals) == 0 { // which NotifyContext would take for all
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}

// closed says that a standard descriptor was closed when this program was
// started: Go's runtime opens /dev/null in its place then, for reading and
// writing (runtime.checkfds). A shell's > /dev/null is for writing; what cannot
// be told apart is a caller that has it open for both, such as Python's
// subprocess.DEVNULL.
func closed(f *os.File) bool {
	var st, null unix.Stat_t
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR && unix.Fstat(int(f.Fd()), &st) == nil && unix.Stat(os.DevNull, &null) == nil && st.Rdev == null.Rdev && st.Mode == null.Mode
}
