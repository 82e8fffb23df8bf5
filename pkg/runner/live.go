package runner

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"fence/pkg/cli"
	"fence/pkg/result"
)

// Live shows people how a run goes: on a terminal a bar for each trial under way
// and one for all, with the rewards so far; a line for each trial that ends.
// Event and Say are those of Options.
type Live struct {
	*cli.Bars
	now func() time.Time

	total, kept, ended int // ended since this run began
	verdicts, solved   int
	rewards            float64
	faults             int
	began              time.Time
}

// NewLive is of a run of so many trials.
func NewLive(w *os.File, tool string, trials int) *Live {
	l := &Live{Bars: cli.NewBars(w, tool, "trials", "are running"), now: time.Now, total: trials, began: time.Now()}
	l.More(trials)
	return l
}

// phases are the first words of what a trial says that it does, in their order.
var phases = []string{"gate", "start", "setup", "agent", "verify"}

// Event takes what Run tells.
func (l *Live) Event(e Event) {
	name := e.Item.Name
	switch e.Kind {
	case Begun:
		phase, _, _ := strings.Cut(e.Text, " ") // what follows is the part of a task
		l.Show(name, name, slices.Index(phases, phase)+1, len(phases), e.Text)
	case Again:
		l.Show(name, name, 0, len(phases), e.Text)
		if !l.Terminal() {
			l.Say(name + ": " + e.Text)
		}
	case Stopped:
		l.Drop(name)
	case Kept:
		l.count(*e.Trial)
		l.kept++
		l.Done(name, name, "")
	case Ended:
		took := e.Trial.FinishedAt.Sub(e.Trial.StartedAt) // as a report has it
		l.count(*e.Trial)
		l.ended++
		l.Note(l.note())
		l.Done(name, name, said(*e.Trial)+", in "+cli.Span(took))
	}
}

func (l *Live) count(t result.Trial) {
	if t.Reward == nil {
		l.faults++
		return
	}
	l.verdicts++
	l.rewards += *t.Reward
	if *t.Reward >= 1 {
		l.solved++
	}
}

// note is what is known so far, and when the rest will be done: by the pace of
// those that ended in this run.
func (l *Live) note() string {
	text := fmt.Sprintf("%d solved, ", l.solved)
	if l.verdicts > 0 {
		text += fmt.Sprintf("mean reward %.2f, ", l.rewards/float64(l.verdicts))
	}
	if l.faults > 0 {
		text += fmt.Sprintf("%d faults, ", l.faults)
	}
	if rest := l.total - l.kept - l.ended; rest > 0 && l.ended > 0 {
		pace := l.now().Sub(l.began) / time.Duration(l.ended)
		text += "about " + cli.Span(pace*time.Duration(rest)) + " to go, "
	}
	return text
}

// said is what came of a trial.
func said(t result.Trial) string {
	if t.Fault != nil {
		return fmt.Sprintf("fault, %s (%s): %s", t.Fault.Class, t.Fault.Cause, t.Fault.Message)
	}
	text := "reward " + strconv.FormatFloat(*t.Reward, 'g', -1, 64)
	if t.Agent.Stop != "done" && t.Agent.Stop != "" {
		text += ", agent " + t.Agent.Stop
	}
	if len(t.Tainted) > 0 {
		text += ", tainted"
	}
	return text
}
