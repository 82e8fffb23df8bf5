package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fence/pkg/build"
	"fence/pkg/cli"
	"fence/pkg/registry"
	"fence/pkg/task"
)

// waiting says that what keeps a task from a plan is a registry that is left
// alone for now.
func (t planned) waiting() bool {
	_, ok := registry.Until(t.err)
	return ok
}

// apart are the tasks that wait for a registry, and the others.
func apart(all []planned) (ready, waiting []planned) {
	for _, t := range all {
		if t.waiting() {
			waiting = append(waiting, t)
		} else {
			ready = append(ready, t)
		}
	}
	return ready, waiting
}

// unplanned records those that have no plan.
func (o *recorder) unplanned(p *planner, some []planned) {
	for _, t := range some {
		if t.err != nil {
			o.add(t.task, build.PlanReport(p.platform.Architecture, t.err))
		}
	}
}

// awayMost is how long, in all, registries are waited for that cannot be reached.
// Of those with a limit that is known to end, a person says.
const awayMost = 5 * time.Minute

// later plans again what registries keep from being planned, each task when its
// registry is asked again, for as long as patience allows. What is settled comes
// through the channel, in parts as it becomes so, while others are built; it is
// closed after the last. say says what is waited for.
func (p *planner) later(ctx context.Context, tasks []planned, patience time.Duration, say func(string)) <-chan []planned {
	out := make(chan []planned, len(tasks)) // each part has one at least: nobody waits for a reader
	go func() {
		defer close(out)
		begun := p.registry.Now()
		inTime := func(t planned) bool {
			most := patience
			if !registry.Limited(t.err) {
				most = min(most, awayMost)
			}
			return !t.until().After(begun.Add(most))
		}
		for said := ""; ; {
			var settled, rest []planned
			for _, t := range tasks {
				if t.waiting() && inTime(t) {
					rest = append(rest, t)
				} else {
					settled = append(settled, t)
				}
			}
			if len(settled) > 0 {
				out <- settled
			}
			if tasks = rest; len(tasks) == 0 {
				return
			}
			if text := p.waitsFor(len(tasks)); text != "" && text != said {
				say(text)
				said = text
			}
			next := slices.MinFunc(tasks, func(a, b planned) int { return a.until().Compare(b.until()) }).until()
			if err := p.registry.Sleep(ctx, next.Sub(p.registry.Now())); err != nil {
				out <- tasks
				return
			}
			var due []task.Task
			tasks = slices.DeleteFunc(tasks, func(t planned) bool {
				is := !t.until().After(next)
				if is {
					due = append(due, t.task)
				}
				return is
			})
			tasks = append(tasks, p.plan(ctx, due)...)
		}
	}()
	return out
}

func (t planned) until() time.Time {
	at, _ := registry.Until(t.err)
	return at
}

// waitsFor names the registries that are left alone for now.
func (p *planner) waitsFor(tasks int) string {
	text := ""
	for _, s := range p.registry.States() {
		if s.Until.IsZero() {
			continue
		}
		if text != "" {
			text += ", "
		}
		text += s.Registry
		if s.Limit != "" {
			text += " (its limit is " + s.Limit + ")"
		}
		text += " until " + s.Until.Local().Format("15:04:05")
	}
	if text == "" {
		return ""
	}
	return fmt.Sprintf("%s wait for %s", plural(tasks, "task"), cli.Printable(text))
}
