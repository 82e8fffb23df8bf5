package main

import (
	"fmt"
	"io"
	"slices"

	"fence/pkg/cli"
	"fence/pkg/report"
	"fence/pkg/result"
)

// validated leaves out the tasks that a validation in dir did not find fit, and
// says which: those whose oracle did not pass, whose nop did, or of which it
// cannot be told.
func validated(w io.Writer, dir string, items []item) ([]item, error) {
	found, err := result.Trials(dir)
	if err != nil {
		return nil, cli.Usagef("rollout validate TASKS --out "+dir, "--validated: %w", err)
	}
	trials := map[string][]report.Trial{}
	for _, f := range found {
		if f.Trial != nil {
			trials[f.Trial.Task] = append(trials[f.Trial.Task], report.Trial{Trial: *f.Trial, Dir: f.Dir})
		}
	}
	var fit []item
	left := 0
	for _, it := range items {
		if why := unfit(it.Checksum, trials[it.Task.Dir]); why != "" {
			left++
			fmt.Fprintf(w, "rollout: left out %s: %s\n", cli.Printable(it.Task.Dir), cli.Printable(why))
			continue
		}
		fit = append(fit, it)
	}
	if len(fit) == 0 {
		return nil, cli.Usagef("rollout report "+dir+" says what came of it", "--validated: none of %d tasks is fit", left)
	}
	return fit, nil
}

// unfit is why a task is not to be used, or "". Of one without a solution the
// oracle has said so, and it is judged by its nop alone. What is known of a task
// with other files says nothing of it.
func unfit(checksum string, trials []report.Trial) string {
	if len(trials) == 0 {
		return "it was not validated"
	}
	if slices.ContainsFunc(trials, func(t report.Trial) bool { return t.TaskChecksum != checksum }) {
		return "it has changed since it was validated"
	}
	for _, agent := range []string{"oracle", "nop"} {
		if !slices.ContainsFunc(trials, func(t report.Trial) bool { return t.AgentInfo.Name == agent }) {
			return "its " + agent + " has no result that can be read"
		}
	}
	for _, t := range trials {
		kind := report.Kind(t)
		switch {
		case t.AgentInfo.Name == "oracle" && kind == "fault" && report.Why(t).Class == "solution_missing":
		case kind == "fault":
			return fmt.Sprintf("its %s has no verdict: %s", t.AgentInfo.Name, report.Why(t).Class)
		case t.AgentInfo.Name == "oracle" && kind != "solved":
			return "its solution does not pass"
		case t.AgentInfo.Name == "nop" && kind == "solved":
			return "doing nothing passes"
		}
	}
	return ""
}
