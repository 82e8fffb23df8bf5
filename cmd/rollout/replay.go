package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/result"
	"fence/pkg/terminus"
)

func replayCmd() *urfave.Command {
	return &urfave.Command{
		Name:      "replay",
		Usage:     "a trial again in a fresh container, and whether it comes out the same",
		UsageText: "rollout replay TRIAL [flags]",
		Description: "TRIAL is a trial's folder in a run's. What its agent did is done again, with the\n" +
			"settings of that run, and the tests judge again; both results are printed. The\n" +
			"new one goes to a folder replay-* in TRIAL, or to --out. An oracle and a nop are\n" +
			"run anew; what a model typed is typed again, after waits as long as then.\n\n" +
			"Examples:\n" +
			"  rollout replay $RUN/hello__y7k4Mh7\n" +
			"  rollout replay $RUN/hello__y7k4Mh7 --image other.sif --out again\n" +
			"  rollout replay $RUN/hello__y7k4Mh7 --pause 1s\n\n" +
			"Exit codes: 0 the same verdict, 1 another, 2 wrong flags, no trial, or a node that\n" +
			"cannot run trials, 3 there was no verdict, or is none now.",
		Flags: slices.Concat([]urfave.Flag{
			&urfave.StringFlag{Name: "out", Usage: "the new trial goes to `DIR`"},
			&urfave.StringFlag{Name: "image", Usage: "run it in `FILE.sif`", DefaultText: "the trial's"},
			&urfave.StringFlag{Name: "sif-cache", Hidden: true},
			&urfave.StringSliceFlag{Name: "pass-env", Usage: "the task may ask for your variable `NAME`"},
			&urfave.DurationFlag{Name: "pause", Usage: "where the model took longer for a reply, go on after `TIME`; what it had started has less time then", DefaultText: "wait as long"},
		}, slices.DeleteFunc(modelFlags(), func(f urfave.Flag) bool { return f.Names()[0] != "time-cap" && f.Names()[0] != "tmux" }), fenceFlags()),
		Action: replayCommand,
	}
}

func replayCommand(c *urfave.Context) error {
	if c.NArg() != 1 {
		return cli.Usagef("rollout replay RUN/TRIAL", "name one trial's folder")
	}
	dir, err := filepath.Abs(c.Args().First())
	if err != nil {
		return err
	}
	if dir, err = trialAt(dir); err != nil {
		return err
	}
	then, err := result.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return noResult(dir)
	} else if err != nil {
		return cli.Usagef("", "%w", err)
	}
	agent := then.AgentInfo.Name
	if agents()[agent] == nil {
		if !recorded(dir) {
			return cli.Usagef("", "what %s did in %s cannot be done again: there is no %s of it", agent, then.TrialName, terminus.TurnsFile)
		}
		agent = "replay"
	}
	if err := asThen(c, filepath.Join(filepath.Dir(dir), result.ConfigFile), then); err != nil {
		return err
	}
	out := c.String("out")
	if out == "" {
		if out, err = os.MkdirTemp(dir, "replay-"); err == nil {
			err = os.Chmod(out, 0o755)
		}
	} else {
		out, err = filepath.Abs(out)
	}
	if err != nil {
		return cli.Usagef("--out DIR", "the new trial's folder: %w", err)
	}
	j, err := prepare(c, out, []string{then.Task})
	if err != nil {
		_ = os.Remove(out) // nothing is in it
		return err
	}
	defer j.close()
	if j.items[0].Checksum != then.TaskChecksum {
		fmt.Fprintf(os.Stderr, "rollout: the files of %s have changed since that trial: this is another task\n", cli.Printable(then.Task))
	}
	if agent == "replay" {
		j.replay = &replayer{then: dir, pause: c.Duration("pause"), limit: c.Duration("time-cap")}
		if j.replay.desk, err = newDesk(c, j); err != nil {
			return err
		}
	}
	all, err := j.run(out, agent, j.items)
	if err != nil {
		return err
	}
	if !all.sum.Done() {
		return all.verdict()
	}
	now := all.trials[0].Trial
	fmt.Fprintf(c.App.Writer, "then  %s\nnow   %s\nin    %s\n", cli.Printable(inWords(then)), cli.Printable(inWords(now)), cli.Printable(filepath.Join(out, now.TrialName)))
	switch {
	case then.Fault != nil || now.Fault != nil:
		return &cli.Error{Code: cli.Unknown, Err: errors.New("there are no two verdicts to compare")}
	case !maps.Equal(result.TallyOf(then).Rewards, result.TallyOf(now).Rewards):
		return &cli.Error{Code: cli.No, Err: errors.New("it does not come out the same")}
	}
	return nil
}

// recorded says whether what was typed in a trial is in its folder.
func recorded(dir string) bool {
	for _, pattern := range []string{"agent", "steps/*/agent"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern, terminus.TurnsFile)); len(found) > 0 {
			return true
		}
	}
	return false
}

// asThen sets what the trial's run was told, where nothing else is said now, and
// of what its model was told the time.
func asThen(c *urfave.Context, config string, then result.Trial) error {
	var job result.JobConfig
	if err := result.ReadJob(config, &job); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cli.Usagef("", "the settings of the trial's run: %w", err)
	}
	settings := append(job.Settings, result.Setting{Name: "--image", Value: then.Image})
	said := map[string]bool{}
	for _, s := range settings {
		name := strings.TrimPrefix(s.Name, "--")
		said[s.Name] = c.IsSet(name) || name != "time-cap" && (name == "body" || slices.Contains(modelSettings, name))
	}
	for _, s := range settings {
		flag, is := strings.CutPrefix(s.Name, "--")
		if said[s.Name] || !is {
			continue
		}
		if err := c.Set(flag, s.Value); err != nil {
			return cli.Usagef("", "the settings of the trial's run: %s %s: %w", s.Name, s.Value, err)
		}
	}
	return nil
}

// inWords is what came of a trial, in a line.
func inWords(t result.Trial) string {
	if f := t.Fault; f != nil {
		return fmt.Sprintf("no verdict: %s: %s", f.Class, f.Message)
	}
	text, rewards := fmt.Sprintf("reward %v", *t.Reward), result.TallyOf(t).Rewards
	for _, name := range slices.Sorted(maps.Keys(rewards)) {
		if name != "reward" {
			text += fmt.Sprintf(", %s %v", name, rewards[name])
		}
	}
	return fmt.Sprintf("%s, agent %s, in %.1f s", text, t.Agent.Stop, t.FinishedAt.Sub(t.StartedAt).Seconds())
}
