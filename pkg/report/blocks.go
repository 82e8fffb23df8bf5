package report

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fence/pkg/internal/text"
	"fence/pkg/result"
)

// Block is a part of a report as a person reads it: a heading, a table, lines.
type Block struct {
	Heading string     `json:"heading"`
	Level   int        `json:"level"`            // of the heading, from 1
	Header  []string   `json:"header,omitempty"` // of the table; empty if there is none
	Left    int        `json:"left,omitempty"`   // so many first columns are words; the others but the last are numbers
	Words   bool       `json:"words,omitempty"`  // the last column is words too, and takes the room that is left
	Rows    [][]string `json:"rows,omitempty"`
	Lines   []string   `json:"lines,omitempty"` // below
}

// Blocks lays a report out.
func Blocks(r Report) (out []Block) {
	for _, run := range r.Runs {
		out = append(out, ofRun(run)...)
	}
	for _, c := range r.Changes {
		out = append(out, ofComparison(c))
	}
	return out
}

func ofRun(run Run) (out []Block) {
	head := Block{Heading: run.Name, Level: 1, Lines: []string{trials(run.Trials)}}
	if n := len(run.Unfinished); n > 0 {
		head.Lines[0] += fmt.Sprintf("; %d without a result, running or stopped: %s", n, names(run.Unfinished))
	}
	if run.NotBegun > 0 {
		head.Lines[0] += fmt.Sprintf("; %d not begun", run.NotBegun)
	}
	if n := len(run.Skipped); n > 0 {
		head.Lines[0] += "; skipped: " + times(n, "task", "tasks")
	}
	for n, s := range run.Skipped {
		if n == shown {
			head.Lines = append(head.Lines, fmt.Sprintf("and %d more are skipped: --json has all", len(run.Skipped)-n))
			break
		}
		head.Lines = append(head.Lines, "skipped "+s.Path+": "+s.Reason)
	}
	for _, u := range run.Unread {
		head.Lines = append(head.Lines, "not read: "+u)
	}
	out = append(out, head)
	if len(run.Datasets) > 0 {
		b := Block{Heading: "Scripted validation", Level: 2, Header: []string{"Dataset", "Images built", "Oracle passed", "No-op rejected", "Note"}, Left: 1, Words: true}
		for _, d := range run.Datasets {
			b.Rows = append(b.Rows, []string{d.Name, fmt.Sprintf("%d/%d", d.Images.N, d.Images.Of), d.Oracle.String(), d.Nop.String(), strings.Join(d.Notes, "; ")})
		}
		if slices.ContainsFunc(run.Datasets, func(d Dataset) bool { return d.Oracle.State == "n/a" }) {
			b.Lines = []string{"n/a: the dataset ships no reference solutions, so only the no-op run is possible."}
		}
		b.Lines = append(b.Lines, ofFit(run.Datasets)...)
		out = append(out, b)
		if b := ofWrong(run.Datasets); len(b.Rows) > 0 {
			if run.Name != standardInput {
				b.Lines = append(b.Lines, "rollout show "+filepath.Join(run.Name, b.Rows[0][1])+" says what one did")
			}
			out = append(out, b)
		}
	}
	for _, g := range run.Groups {
		if g.Agent != oracle && g.Agent != nop {
			out = append(out, ofGroup(g)...)
		}
	}
	if b := ofFaults(run.Groups); len(b.Rows) > 0 {
		out = append(out, b)
	}
	for _, g := range run.Groups {
		if len(g.Tainted) > 0 {
			out = append(out, Block{Heading: "Tainted: " + who(g), Level: 2, Lines: []string{
				fmt.Sprintf("%s changed files that the verifier then executed or loaded: %s", trials(len(g.Tainted)), names(g.Tainted))}})
		}
	}
	if run.Trials > 0 {
		out = append(out, ofIsolation(run.Isolation, run.Trials))
	}
	return out
}

// ofFit says how many tasks are fit for a model, where both agents ran.
func ofFit(sets []Dataset) []string {
	fit, all, oracles, nops := 0, 0, false, false
	for _, d := range sets {
		fit, all = fit+len(d.Fit), all+d.Tasks
		oracles, nops = oracles || d.Oracle.State == "ran", nops || d.Nop.State == "ran"
	}
	if !oracles || !nops {
		return nil
	}
	line := fmt.Sprintf("Fit for a model: %d of %s.", fit, times(all, "task", "tasks"))
	if fit > 0 && fit < all {
		line += " rollout report --json lists their folders."
	}
	return []string{line}
}

// ofWrong names what to look at.
func ofWrong(sets []Dataset) Block {
	const most = 20
	b := Block{Heading: "Oracles that failed, no-ops that were rewarded", Level: 2, Header: []string{"Agent", "Trial", "Reward", "Likely cause"}, Left: 2, Words: true}
	all := 0
	for _, d := range sets {
		for _, x := range d.Wrong {
			if all++; all <= most {
				b.Rows = append(b.Rows, []string{x.Agent, x.Trial, fmt.Sprintf("%.3g", x.Reward), x.Likely})
			}
		}
	}
	if slices.ContainsFunc(b.Rows, func(r []string) bool { return r[0] == nop }) {
		b.Lines = append(b.Lines, "a no-op that is rewarded: whoever does nothing passes its tests. Mend them, or leave the task out (rollout run --validated)")
	}
	if all > most {
		b.Lines = append(b.Lines, fmt.Sprintf("and %d more: --json and --html have all", all-most))
	}
	return b
}

// shown names of a list; a report has all as JSON.
const shown = 5

func names(all []string) string {
	if len(all) > shown {
		return strings.Join(all[:shown], ", ") + fmt.Sprintf(" and %d more", len(all)-shown)
	}
	return strings.Join(all, ", ")
}

func trials(n int) string { return times(n, "trial", "trials") }

func who(g Group) string {
	if g.Model != "" {
		return g.Agent + ", " + g.Model
	}
	return g.Agent
}

func ofGroup(g Group) []Block {
	b := Block{Heading: "Outcomes: " + who(g), Level: 2, Header: []string{"Outcome", "Trials"}, Left: 1}
	for _, o := range g.Outcomes {
		b.Rows = append(b.Rows, []string{o.words(), fmt.Sprint(len(o.Trials))})
	}
	b.Lines = append(b.Lines,
		"rate over verdicts: "+g.Rates.Verdicts.String(),
		"with agent-caused faults as 0: "+g.Rates.AgentZero.String(),
		"with all faults as 0, as Harbor counts: "+g.Rates.Harbor.String())
	for _, p := range g.PassAt {
		b.Lines = append(b.Lines, fmt.Sprintf("pass@%d: %.3f over %s", p.K, p.Value, times(p.Tasks, "task", "tasks")))
	}
	if len(g.Settings) > 0 {
		b.Lines = append(b.Lines, "settings: "+settings(g.Settings))
	}
	if len(g.Stops) > 0 {
		var all []string
		for _, s := range g.Stops {
			all = append(all, fmt.Sprintf("%s %d", s.What, s.N))
		}
		b.Lines = append(b.Lines, "the agent's ends: "+strings.Join(all, ", "))
	}
	if g.Turns > 0 || g.Tokens.Trials > 0 {
		line := times(g.Turns, "turn", "turns")
		if g.Tokens.Trials > 0 {
			line += fmt.Sprintf("; tokens: %d in, %d out, in %s", g.Tokens.Input, g.Tokens.Output, trials(g.Tokens.Trials))
		}
		b.Lines = append(b.Lines, line)
	}
	if r := g.Replies; r != (Replies{}) {
		b.Lines = append(b.Lines, r.String())
	}
	if g.Fence.Known > 0 {
		b.Lines = append(b.Lines, fmt.Sprintf("%s may have met the fence, in %d of %s", times(g.Fence.Turns, "turn", "turns"), g.Fence.Trials, trials(g.Fence.Known)))
	}
	if g.Seconds.Longest > 0 {
		b.Lines = append(b.Lines, fmt.Sprintf("a trial took %s (median), %s at most (%s)", duration(g.Seconds.Median), duration(g.Seconds.Longest), g.Seconds.Trial))
	}
	if len(g.Sets) < 2 {
		return []Block{b}
	}
	sets := Block{Heading: "By dataset: " + who(g), Level: 2, Header: []string{"Dataset", "Trials", "Solved", "No verdict", "Rate over verdicts"}, Left: 1}
	for _, s := range g.Sets {
		sets.Rows = append(sets.Rows, []string{s.Dataset, fmt.Sprint(s.Trials), fmt.Sprint(s.Solved), fmt.Sprint(s.Faults), s.Rate.String()})
	}
	return []Block{b, sets}
}

// settings are what a person gave, as flags.
func settings(all []result.Setting) string {
	var out []string
	for _, s := range all {
		out = append(out, s.Name+" "+s.Value)
	}
	return strings.Join(out, ", ")
}

// words are how the guide says an outcome.
func (o Outcome) words() string {
	why := o.Class
	if o.Detail != "" {
		why += ": " + o.Detail
	}
	switch o.Kind {
	case "solved":
		return "Solved"
	case "partly":
		return "Solved in part"
	case "failed":
		return "Failed (verifier rejected the result)"
	}
	switch o.Phase {
	case "build":
		return "No image (" + why + ")"
	case "start", "setup":
		return "Could not start (" + why + ")"
	case "agent":
		return "Broke while the agent worked (" + why + ")"
	case "isolation":
		return "Not isolated (" + why + ")"
	case "stopped":
		return "Stopped (" + why + ")"
	default:
		return "No verdict (" + why + ")"
	}
}

// ofFaults has a row for each class: that an image is missing is no more to know
// for having met the oracle and the no-op.
func ofFaults(groups []Group) Block {
	b := Block{Heading: "Faults", Level: 2, Header: []string{"Class", "Cause", "Phase", "Agent", "Trials", "Which, and what can be done"}, Left: 4, Words: true}
	var all []Fault
	who := map[string][]string{}
	key := func(f Fault) string { return f.Phase + "\x00" + f.Class + "\x00" + f.Cause }
	for _, g := range groups {
		for _, f := range g.Faults {
			if f.Class == "solution_missing" && g.Agent == oracle {
				continue // the table says so
			}
			i := slices.IndexFunc(all, func(x Fault) bool { return key(x) == key(f) })
			if i < 0 {
				i = len(all)
				all = append(all, Fault{Phase: f.Phase, Class: f.Class, Cause: f.Cause, Message: f.Message})
			}
			all[i].Trials = append(all[i].Trials, f.Trials...)
			all[i].Hint = cmp.Or(all[i].Hint, f.Hint)
			if !slices.Contains(who[key(f)], g.Agent) {
				who[key(f)] = append(who[key(f)], g.Agent)
			}
		}
	}
	for _, f := range all {
		which := names(f.Trials)
		if f.Hint != "" {
			which += "; hint: " + f.Hint
		} else if f.Message != "" {
			which += "; "
			if len(f.Trials) > 1 {
				which += "of the first: "
			}
			which += brief(f.Message)
		}
		b.Rows = append(b.Rows, []string{f.Class, f.Cause, f.Phase, strings.Join(who[key(f)], ", "), fmt.Sprint(len(f.Trials)), which})
	}
	return b
}

// Words explains the block of isolation to those who run the cluster, and get
// no more than the page.
func Words() Block {
	return Block{Heading: "The words under Isolation", Level: 2, Lines: []string{
		"Each trial is an Apptainer container of the caller's with nothing of the site mounted. Each command in it, the agent's and the tests', is behind fence, and can do what a policy lets it.",
		"strict, verifier: policies. Neither reaches files of the node, its processes, or its network unless 'network' says host. What was opened besides stands there with the reason.",
		"namespace form: user namespaces, Landlock and seccomp hold it; bare form: without namespaces.",
		"below: the tests can signal the agent's processes and reach its servers; the agent can neither see, change nor signal the tests. side by side: neither can the other.",
		"gate: what probe found when it tried, in such a container, to reach what must not be reached. It has no control: that the same is open on this node without the fence, 'probe gate --before' shows.",
		"watchdog: memory, processes and disk are looked at once a second, and a trial that takes too much is ended.",
	}}
}

func ofIsolation(i Isolation, all int) Block {
	b := Block{Heading: "Isolation", Level: 2}
	if i.Unknown == all {
		b.Lines = []string{"no trial says what its isolation was"}
		return b
	}
	line := func(what string, all []Count) {
		if len(all) > 0 {
			b.Lines = append(b.Lines, what+": "+counted(all))
		}
	}
	if all > 1 {
		b.Lines = []string{fmt.Sprintf("of %s, from %s to %s", trials(all-i.Unknown), i.From, i.To)}
	} else {
		b.Lines = []string{"from " + i.From + " to " + i.To}
	}
	line("by", i.Users)
	line("on the node", i.Nodes)
	line("in Slurm's job", i.Jobs)
	line("versions", i.Versions)
	if len(i.Servers) > 0 {
		line("the model's server, which rollout itself asks, outside of the fence and as this user", i.Servers)
		b.Lines = append(b.Lines, "the model's terminal: tmux on the node, one a trial, under a fence of its own without a network; its shell is in the container, behind the agent's")
	}
	b.Lines = append(b.Lines,
		"fence: "+counted(i.Forms),
		"network: "+counted(i.Networks)+"; gate: "+counted(i.Gates)+"; limits: "+counted(i.Limits))
	var opened []string
	for _, o := range i.Opened {
		one := o.What + ", because " + o.Why
		if all > 1 {
			one += " (" + trials(o.Trials) + ")"
		}
		opened = append(opened, one)
	}
	if len(opened) == 0 {
		opened = []string{"nothing"}
	}
	last := "opened: " + strings.Join(opened, "; ")
	if i.Unknown > 0 {
		last += fmt.Sprintf("; not known of %s: no container began, or its start failed", trials(i.Unknown))
	}
	b.Lines = append(b.Lines, last)
	return b
}

// counted is a list with its numbers, where there is more than one thing.
func counted(all []Count) string {
	var out []string
	for _, c := range all {
		if len(all) == 1 {
			return c.What
		}
		out = append(out, fmt.Sprintf("%s: %s", trials(c.N), c.What))
	}
	return strings.Join(out, "; ")
}

func ofComparison(c Comparison) Block {
	b := Block{Heading: c.Agent + ": " + c.From + " > " + c.To, Level: 1, Lines: []string{
		fmt.Sprintf("%s as before, %d changed (%d better, %d worse)", times(c.Same, "task", "tasks"), len(c.Tasks), c.Better, c.Worse)}}
	if n := len(c.Files); n > 0 {
		b.Lines = append(b.Lines, times(n, "task has other files", "tasks have other files")+" than then: "+names(c.Files))
	}
	for _, d := range c.Differ {
		b.Lines = append(b.Lines, "another setting: "+d.String())
	}
	if c.Only+c.New > 0 {
		b.Lines = append(b.Lines, fmt.Sprintf("only in %s: %d; only in %s: %d", c.From, c.Only, c.To, c.New))
	}
	if len(c.Tasks) > 0 {
		b.Header, b.Left = []string{"Dataset", "Task", "Was", "Is"}, 4
		for _, t := range c.Tasks {
			b.Rows = append(b.Rows, []string{t.Dataset, t.Task, t.Was, t.Now})
		}
	}
	return b
}

// duration is seconds for people.
func duration(s float64) string { return text.Span(time.Duration(s * float64(time.Second))) }
