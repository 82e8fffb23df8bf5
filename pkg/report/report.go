// Package report says what came of trials: counted, for programs and for
// people. Summarise and Compare decide; Blocks lays out; nothing is read here
// but by Read and Stream.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"fence/pkg/result"
)

// Schema is the first field of a Report as JSON.
const Schema = "rollout.report/v1"

// Report is what is known of some runs. Its lists are never nil.
type Report struct {
	Schema  string       `json:"schema"`
	Runs    []Run        `json:"runs"`
	Changes []Comparison `json:"changes"` // of each run after the first, with the first
}

// Run is one job: what one command has run, or several shards of it.
type Run struct {
	Name       string           `json:"name"`
	Trials     int              `json:"trials"`
	Unfinished []string         `json:"unfinished"` // trials without a result: running, or stopped
	NotBegun   int              `json:"not_begun"`  // trials that were to be, as far as it is known
	Unread     []string         `json:"unread"`     // what should have been a result, and why it is none
	Skipped    []result.Skipped `json:"skipped"`    // tasks of which there is no trial
	Datasets   []Dataset        `json:"datasets"`   // of scripted agents only
	Groups     []Group          `json:"groups"`
	Isolation  Isolation        `json:"isolation"`
}

// Group is what one agent (and model) made of its trials.
type Group struct {
	Agent string `json:"agent"`
	Model string `json:"model"` // "" for an agent that has none

	Settings []result.Setting `json:"settings"`
	Trials   int              `json:"trials"`
	Outcomes []Outcome        `json:"outcomes"`
	Faults   []Fault          `json:"faults"`
	Rates    Rates            `json:"rates"`
	PassAt   []PassAt         `json:"pass_at"`
	Sets     []SetRate        `json:"datasets"`
	Stops    []Count          `json:"stops"`   // how the agent ended
	Tainted  []string         `json:"tainted"` // trials
	Turns    int              `json:"turns"`
	Replies  Replies          `json:"replies"`
	Fence    Met              `json:"met_fence"`
	Tokens   Tokens           `json:"tokens"`
	Seconds  Spread           `json:"seconds"` // of a trial, all of it
}

// Outcome is one way in which trials ended.
type Outcome struct {
	Kind   string   `json:"kind"` // one of Kinds
	Class  string   `json:"class,omitempty"`
	Phase  string   `json:"phase,omitempty"`
	Detail string   `json:"detail,omitempty"` // the likely cause
	Trials []string `json:"trials"`
}

// Kinds of outcomes. A verdict is any but fault.
var Kinds = []string{"solved", "partly", "failed", "fault"}

// Fault counts the trials without a verdict for one reason.
type Fault struct {
	Phase   string   `json:"phase"`
	Class   string   `json:"class"`
	Cause   string   `json:"cause"`
	Trials  []string `json:"trials"`
	Hint    string   `json:"hint"`    // of the first that has one
	Message string   `json:"message"` // of the first
}

// Rates are means of rewards. Of, the number of trials counted, may be 0.
type Rates struct {
	Verdicts  Rate `json:"verdicts"`          // over trials that have a verdict
	AgentZero Rate `json:"agent_faults_zero"` // and over those that the agent broke, as 0
	Harbor    Rate `json:"missing_zero"`      // and over all others, as 0: Harbor's mean
}

// Rate is a sum of rewards over a number of trials.
type Rate struct {
	Sum float64 `json:"sum"`
	Of  int     `json:"of"`
}

// PassAt is the chance that one of K attempts solves a task: the mean, over the
// tasks with at least K attempts, of the unbiased estimator 1 - C(n-c,k)/C(n,k)
// (Chen et al. 2021, arXiv:2107.03374).
type PassAt struct {
	K     int     `json:"k"`
	Value float64 `json:"value"`
	Tasks int     `json:"tasks"`
}

// SetRate are the verdicts of one dataset.
type SetRate struct {
	Dataset string `json:"dataset"`
	Trials  int    `json:"trials"`
	Solved  int    `json:"solved"`
	Faults  int    `json:"faults"`
	Rate    Rate   `json:"verdicts"`
}

// Count is a word and how many trials it holds for.
type Count struct {
	What string `json:"what"`
	N    int    `json:"n"`
}

// Met counts turns of a model whose output has words that a closed door may have
// caused.
type Met struct {
	Turns  int `json:"turns"`
	Trials int `json:"trials"` // that have such turns
	Known  int `json:"known"`  // trials of which it was counted
}

// Replies counts those of a model's that were not as they should be, and what was
// done about a context that was full.
type Replies struct {
	Unread    int `json:"unread"`
	Truncated int `json:"truncated"`
	HandOvers int `json:"hand_overs"`
}

func (r Replies) String() string {
	return fmt.Sprintf("%s could not be read, %d cut off; %s to a summary", times(r.Unread, "reply", "replies"), r.Truncated, times(r.HandOvers, "hand-over", "hand-overs"))
}

// RepliesOf counts those of one trial, 0 where nobody did.
func RepliesOf(t Trial) (r Replies) {
	r.Unread, _ = noted(t, "unread_replies")
	r.Truncated, _ = noted(t, "truncated_replies")
	r.HandOvers, _ = noted(t, "hand_overs")
	return r
}

// MetFence is where a trial's record has the number of such turns: in the
// metadata of what the agent used.
const MetFence = "turns_that_met_the_fence"

// noted is a number in the metadata of what the agent of one trial used, if it
// was counted.
func noted(t Trial, what string) (sum int, known bool) {
	for _, u := range t.Used() {
		switch n := u.Metadata[what].(type) {
		case float64: // of JSON
			sum, known = sum+int(n), true
		case int:
			sum, known = sum+n, true
		}
	}
	return sum, known
}

// Tokens are sums over the trials of which they were counted.
type Tokens struct {
	Input  int `json:"input"`
	Output int `json:"output"`
	Trials int `json:"trials"`
}

// Spread is of a quantity over trials; zeros for none.
type Spread struct {
	Median  float64 `json:"median"`
	Longest float64 `json:"longest"`
	Trial   string  `json:"trial"` // the longest
}

// Trial is a record, and what else is known of it: the ends of what its
// verifier and, of an oracle's, the task's solution printed, "" where nobody can tell.
type Trial struct {
	result.Trial
	Dir      string           // "" where only the record was read
	Path     string           // of Dir in the folder that was read; "" is the trial's name
	Settings []result.Setting // of its run, where they are known
	Verifier string
	Script   string
}

// path names a trial in its run's folder: what follows RUN/ to see it.
func (t Trial) path() string { return cmp.Or(t.Path, t.TrialName) }

// Input is a run as it was read.
type Input struct {
	Name       string
	Trials     []Trial
	Unfinished []string
	NotBegun   int
	Unread     []string
	Skipped    []result.Skipped
}

// Summarise counts runs, and compares the first with each other.
func Summarise(runs ...Input) Report {
	r := Report{Schema: Schema, Runs: []Run{}, Changes: []Comparison{}}
	for i, in := range runs {
		run := Run{Name: in.Name, Trials: len(in.Trials), Unfinished: list(in.Unfinished), NotBegun: in.NotBegun, Unread: list(in.Unread), Skipped: list(in.Skipped),
			Datasets: datasets(in.Trials), Groups: []Group{}, Isolation: isolation(in.Trials)}
		for _, g := range groups(in.Trials) {
			run.Groups = append(run.Groups, group(g))
		}
		r.Runs = append(r.Runs, run)
		if i > 0 {
			r.Changes = append(r.Changes, compare(runs[0], in)...)
		}
	}
	return r
}

// groups are the trials by who acted, in the order of names.
func groups(trials []Trial) [][]Trial {
	return split(trials, func(t Trial) string { return t.AgentInfo.Name + "\x00" + ModelOf(t) })
}

// split sorts trials into lots by a key, the lots in the order of their keys.
func split(trials []Trial, key func(Trial) string) (lots [][]Trial) {
	by := map[string][]Trial{}
	for _, t := range trials {
		by[key(t)] = append(by[key(t)], t)
	}
	for _, k := range slices.Sorted(maps.Keys(by)) {
		lots = append(lots, by[k])
	}
	return lots
}

// ModelOf is the model that acted, "" if none did.
func ModelOf(t Trial) string {
	switch m := t.AgentInfo.ModelInfo; {
	case m == nil:
		return ""
	case m.Provider != "":
		return m.Provider + "/" + m.Name
	default:
		return m.Name
	}
}

func group(trials []Trial) Group {
	g := Group{Agent: trials[0].AgentInfo.Name, Model: ModelOf(trials[0]), Settings: list(trials[0].Settings), Trials: len(trials), Rates: rates(trials), PassAt: passAt(trials),
		Outcomes: outcomes(trials), Faults: faults(trials), Sets: []SetRate{}, Stops: []Count{}, Tainted: []string{}}
	stops := map[string]int{}
	var seconds []float64
	for _, t := range trials {
		if t.Agent.Stop != "" {
			stops[t.Agent.Stop]++
		}
		if len(t.Tainted) > 0 {
			g.Tainted = append(g.Tainted, t.path())
		}
		g.Turns += t.Agent.Turns
		if n, ok := noted(t, MetFence); ok {
			g.Fence.Known++
			g.Fence.Turns += n
			g.Fence.Trials += min(n, 1)
		}
		r := RepliesOf(t)
		g.Replies = Replies{g.Replies.Unread + r.Unread, g.Replies.Truncated + r.Truncated, g.Replies.HandOvers + r.HandOvers}
		if a := result.TallyOf(t.Trial); a.Input != nil || a.Output != nil {
			g.Tokens.Trials++
			g.Tokens.Input += deref(a.Input)
			g.Tokens.Output += deref(a.Output)
		}
		if s := span(t.StartedAt, &t.FinishedAt); s > 0 {
			seconds = append(seconds, s)
			if s > g.Seconds.Longest {
				g.Seconds.Longest, g.Seconds.Trial = s, t.path()
			}
		}
	}
	g.Stops = counts(stops)
	slices.Sort(g.Tainted)
	if slices.Sort(seconds); len(seconds) > 0 {
		g.Seconds.Median = (seconds[(len(seconds)-1)/2] + seconds[len(seconds)/2]) / 2
	}
	for _, lot := range split(trials, DatasetOf) {
		s := SetRate{Dataset: DatasetOf(lot[0]), Trials: len(lot), Rate: rates(lot).Verdicts}
		for _, t := range lot {
			switch Kind(t) {
			case "solved":
				s.Solved++
			case "fault":
				s.Faults++
			}
		}
		g.Sets = append(g.Sets, s)
	}
	return g
}

// Kind is what came of a trial, one of Kinds. Without a reward there is no
// verdict, whatever else the record says.
func Kind(t Trial) string {
	switch {
	case t.Fault != nil || t.Reward == nil || math.IsNaN(*t.Reward):
		return "fault"
	case *t.Reward >= 1:
		return "solved"
	case *t.Reward > 0:
		return "partly"
	default:
		return "failed"
	}
}

// Why is the reason that a trial has no verdict.
func Why(t Trial) result.Fault {
	if t.Fault != nil {
		return *t.Fault
	}
	return result.Fault{Phase: "verify", Class: "reward_missing", Cause: "unknown", Message: "the record has neither a reward nor a fault"}
}

func outcomes(trials []Trial) []Outcome {
	by := map[string]*Outcome{}
	var all []*Outcome
	for _, t := range trials {
		o := Outcome{Kind: Kind(t)}
		if o.Kind == "fault" {
			f := Why(t)
			o.Class, o.Phase = f.Class, f.Phase
			o.Detail = Likely(t)
		}
		key := o.Kind + "\x00" + o.Phase + "\x00" + o.Class + "\x00" + o.Detail
		if by[key] == nil {
			by[key] = &o
			all = append(all, &o)
		}
		by[key].Trials = append(by[key].Trials, t.path())
	}
	slices.SortStableFunc(all, func(a, b *Outcome) int {
		return cmp.Or(cmp.Compare(slices.Index(Kinds, a.Kind), slices.Index(Kinds, b.Kind)), cmp.Compare(len(b.Trials), len(a.Trials)),
			cmp.Compare(slices.Index(result.Phases, a.Phase), slices.Index(result.Phases, b.Phase)), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Detail, b.Detail))
	})
	out := []Outcome{}
	for _, o := range all {
		slices.Sort(o.Trials)
		out = append(out, *o)
	}
	return out
}

func faults(trials []Trial) []Fault {
	out := []Fault{}
	lots := split(slices.DeleteFunc(slices.Clone(trials), func(t Trial) bool { return Kind(t) != "fault" }), func(t Trial) string {
		f := Why(t)
		return fmt.Sprintf("%02d\x00%s\x00%s", slices.Index(result.Phases, f.Phase)+1, f.Class, f.Cause)
	})
	for _, lot := range lots {
		f := Why(lot[0])
		one := Fault{Phase: f.Phase, Class: f.Class, Cause: f.Cause, Message: f.Message, Trials: []string{}}
		for _, t := range lot {
			one.Trials = append(one.Trials, t.path())
			one.Hint = cmp.Or(one.Hint, Why(t).Hint)
		}
		slices.Sort(one.Trials)
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b Fault) int { return cmp.Compare(len(b.Trials), len(a.Trials)) })
	return out
}

// DatasetOf is the name of where a task came from. Harbor says adhoc of one that
// came from nowhere.
func DatasetOf(t Trial) string { return cmp.Or(t.Source, "adhoc") }

// taskOf names a task of its dataset, for all attempts and agents.
func taskOf(t Trial) string { return DatasetOf(t) + "\x00" + cmp.Or(t.TaskName, t.Task) }

func counts(m map[string]int) []Count {
	out := []Count{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, Count{k, m[k]})
	}
	slices.SortStableFunc(out, func(a, b Count) int { return cmp.Compare(b.N, a.N) })
	return out
}

// span is the seconds between two times, 0 where one is missing.
func span(from time.Time, to *time.Time) float64 {
	if to == nil || from.IsZero() || to.IsZero() || to.Before(from) {
		return 0
	}
	return math.Round(to.Sub(from).Seconds()*1000) / 1000
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
