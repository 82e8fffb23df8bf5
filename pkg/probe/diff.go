package probe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// DiffSchema names the format of Comparison.
const DiffSchema = "probe.diff/v1"

// Answer is what a comparison or a gate came to. The zero value is no yes.
type Answer string

const (
	Yes         Answer = "yes"
	No          Answer = "no"
	CannotTell  Answer = "could not tell"
	notAnswered Answer = ""
)

// worse is the one of two answers that decides: a no beats a doubt, and a
// doubt beats a yes.
func (a Answer) worse(b Answer) Answer {
	switch {
	case a == No || b == No:
		return No
	case a == Yes && b == Yes, a == Yes && b == notAnswered, a == notAnswered && b == Yes:
		return Yes
	}
	return CannotTell
}

// Kind is what became of one attempt between two reports.
type Kind string

const (
	Closed           Kind = "closed"            // open before, closed after
	Opened           Kind = "opened"            // closed before, open after
	StillOpen        Kind = "still_open"        // open in both
	StillClosed      Kind = "still_closed"      // closed in both, by the same thing
	MechanismChanged Kind = "mechanism_changed" // closed in both, by different things
	Inconclusive     Kind = "inconclusive"      // one of the two could not tell
	OnlyBefore       Kind = "only_before"       // not tried after
	OnlyAfter        Kind = "only_after"        // not tried before
)

// Kinds lists every Kind.
var Kinds = []Kind{Closed, Opened, StillOpen, StillClosed, MechanismChanged, Inconclusive, OnlyBefore, OnlyAfter}

// Comparison is what changed between a report made without a fence and one
// made behind it, and whether the fence did what a fence must.
type Comparison struct {
	Schema  string       `json:"schema"` // DiffSchema
	Tool    Tool         `json:"tool"`
	Answer  Answer       `json:"answer"`
	Reasons []string     `json:"reasons"` // why the answer is not yes, worst first
	Host    *Origin      `json:"host,omitempty"`
	Before  Origin       `json:"before"`
	After   Origin       `json:"after"`
	Differ  []string     `json:"differ"`  // why these reports cannot be compared at all; usually none
	Notes   []string     `json:"notes"`   // what a reader must know and the answer does not hang on
	Rows    []Row        `json:"rows"`    // the guide's five, in its order
	Changes []Change     `json:"changes"` // every attempt of either report, by (id, target)
	Values  []Value      `json:"values"`  // facts, not attempts, that differ
	Counts  map[Kind]int `json:"counts"`
}

// Origin says which process a report speaks of.
type Origin struct {
	Label    string   `json:"label"`
	Time     string   `json:"time"`
	Hostname string   `json:"hostname"`
	Kernel   string   `json:"kernel"`
	Arch     string   `json:"arch"`
	UID      int      `json:"uid"`
	Runtime  string   `json:"runtime"` // "" on a bare node
	Version  string   `json:"version"` // of the probe
	Seccomp  int      `json:"seccomp"` // mode
	Landlock int      `json:"landlock"`
	Argv     []string `json:"argv"`
}

// Change is one attempt, as it ended in each report.
type Change struct {
	Key
	Group    string `json:"group"`
	Severity string `json:"severity"`
	Kind     Kind   `json:"kind"`
	Function bool   `json:"function"` // a thing that must work, not a door that must be shut
	Open     bool   `json:"open"`     // in AFTER
	Host     *Seen  `json:"host,omitempty"`
	Before   *Seen  `json:"before,omitempty"`
	After    *Seen  `json:"after,omitempty"`
	Note     string `json:"note,omitempty"`
}

// Seen is how one attempt ended.
type Seen struct {
	Outcome   Outcome `json:"outcome"`
	Mechanism string  `json:"mechanism,omitempty"`
	Errno     string  `json:"errno,omitempty"`
	Syscall   string  `json:"syscall,omitempty"`
	Evidence  string  `json:"evidence,omitempty"`
}

// Value is a fact that both reports state, differently.
type Value struct {
	Key
	Before string `json:"before"`
	After  string `json:"after"`
}

// Diff compares before with after, both of one node; host, which may be nil,
// is a report from the bare node. If the reports cannot be compared, Differ
// says why, and there are no rows and no changes.
func Diff(host *Report, before, after Report) Comparison {
	c := Comparison{
		Schema: DiffSchema, Tool: after.Tool, Before: originOf(before), After: originOf(after),
		Reasons: []string{}, Notes: []string{}, Rows: []Row{}, Changes: []Change{}, Values: []Value{},
		Differ: differ("before", before, "after", after, false), Counts: map[Kind]int{},
	}
	v := views{before: viewOf(&before), after: viewOf(&after)}
	if host != nil {
		o := originOf(*host)
		c.Host, v.host = &o, viewOf(host)
		c.Differ = append(c.Differ, differ("host", *host, "after", after, true)...)
	}
	if len(c.Differ) > 0 {
		c.Answer, c.Reasons = CannotTell, append(c.Reasons, c.Differ...)
		return c
	}
	c.Notes = append(c.Notes, v.notes()...)
	c.Rows = v.rows()
	for _, k := range v.keys() {
		c.add(v.change(k))
	}
	c.Values = v.values()
	c.decide(before.Subject.BootID == "")
	return c
}

func originOf(r Report) Origin {
	argv := r.Run.Argv
	if argv == nil {
		argv = []string{}
	}
	return Origin{
		Label: r.Run.Label, Time: r.Run.Time, Hostname: r.Subject.Hostname, Kernel: r.Subject.Kernel,
		Arch: r.Subject.Arch, UID: r.Subject.UID, Runtime: r.Subject.Runtime, Version: r.Tool.Version,
		Seccomp: r.Controls.Seccomp.Mode, Landlock: r.Controls.Landlock.Layers, Argv: argv,
	}
}

// differ lists what two reports must agree on and do not. A container may
// call the same user by another number in a user namespace of its own, which
// mapped allows.
func differ(aName string, a Report, bName string, b Report, mapped bool) []string {
	d := []string{}
	for _, f := range []struct{ what, a, b string }{
		{"formats", a.Schema, b.Schema},
		{"boots or nodes", a.Subject.BootID + " (" + a.Subject.Hostname + ")", b.Subject.BootID + " (" + b.Subject.Hostname + ")"},
		{"machine types", a.Subject.Arch, b.Subject.Arch},
		{"users", fmt.Sprint(a.Subject.UID), fmt.Sprint(b.Subject.UID)},
	} {
		same := f.a == f.b
		if f.what == "boots or nodes" {
			same = a.Subject.BootID == b.Subject.BootID
		}
		if f.what == "users" && mapped && a.Controls.Namespaces["user"] != b.Controls.Namespaces["user"] {
			same = true
		}
		if !same {
			d = append(d, fmt.Sprintf("%s and %s are of different %s: %s, %s", aName, bName, f.what, clip(f.a, 80), clip(f.b, 80)))
		}
	}
	return d
}

func (c *Comparison) add(ch Change, ok bool) {
	if !ok {
		return
	}
	c.Counts[ch.Kind]++
	c.Changes = append(c.Changes, ch)
}

// decide sets the answer: yes when the five rows are as a fence must leave
// them and nothing opened.
func (c *Comparison) decide(noBoot bool) {
	c.Answer = Yes
	reason := func(a Answer, format string, args ...any) {
		c.Answer = c.Answer.worse(a)
		c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...))
	}
	for _, want := range []Answer{No, CannotTell} {
		for _, r := range c.Rows {
			if r.Answer != want {
				continue
			}
			reason(want, "%s: %s", r.Name, cmp.Or(r.Note, r.After.text()))
		}
		for _, ch := range c.Changes {
			if ch.opening() == want {
				reason(want, "%s: %s", ch.Key, ch.story())
			}
		}
	}
	if noBoot {
		reason(CannotTell, "the reports do not name the node's boot, so they may be of different nodes")
	}
}

// opening says whether the change is a door that opened: No for one that
// did, CannotTell for one that may have, Yes otherwise. A door of little
// weight raises no doubt, nor does one of which neither report could tell.
func (ch Change) opening() Answer {
	weighty := (ch.Severity == "high" || ch.Severity == "medium") && !ch.fresh()
	switch {
	case ch.Function:
		return Yes
	case ch.Kind == Opened:
		return No
	case ch.Kind == OnlyAfter && ch.Open && weighty:
		return CannotTell
	case ch.Kind == Inconclusive && weighty && (ch.Open || stateOf(ch.Before) == shut):
		return CannotTell
	}
	return Yes
}

// fresh says that the change is a mount that only the fenced command has, and
// in memory: what is written there goes with it.
func (ch Change) fresh() bool {
	return ch.ID == "fs.writable" && ch.Before == nil && strings.HasSuffix(ch.After.Evidence, " fs tmpfs")
}

// story tells a change in a few words.
func (ch Change) story() string {
	s := fmt.Sprintf("%s before, %s after", seenWord(ch.Before), seenWord(ch.After))
	if ch.Note != "" {
		s += " (" + ch.Note + ")"
	}
	return s
}

func seenWord(s *Seen) string {
	if s == nil {
		return "not tried"
	}
	return string(s.Outcome)
}

// state is what an outcome says of a door.
type state int

const (
	unknown state = iota
	open
	shut
	value // not a door
)

// stateOf reads an outcome that stands alone: unreachable proves nothing.
func stateOf(s *Seen) state {
	if s == nil {
		return unknown
	}
	switch s.Outcome {
	case Reachable:
		return open
	case Denied, Absent:
		return shut
	case Info:
		return value
	}
	return unknown
}

// view is a report to look findings up in.
type view struct {
	rep   *Report
	found map[Key]Finding
}

func viewOf(r *Report) *view {
	v := &view{rep: r, found: make(map[Key]Finding, len(r.Checks))}
	for _, f := range r.Checks {
		v.found[f.Key()] = f
	}
	return v
}

// seen is how the attempt k ended, nil when it was not made or there is no
// report.
func (v *view) seen(k Key) *Seen {
	if v == nil {
		return nil
	}
	f, ok := v.found[k]
	if !ok {
		return nil
	}
	return &Seen{f.Outcome, f.Mechanism, f.Errno, f.Syscall, f.Evidence}
}

// views are the reports of one comparison; host may be nil.
type views struct{ host, before, after *view }

// keys lists every attempt of before and after, first by weight, then by
// name.
func (v views) keys() []Key {
	var keys []Key
	for _, r := range []*view{v.after, v.before} {
		for _, f := range r.rep.Checks {
			if _, ok := v.after.found[f.Key()]; r == v.after || !ok {
				keys = append(keys, f.Key())
			}
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(v.weight(a), v.weight(b)), cmp.Compare(a.ID, b.ID), byNumber(a.Target, b.Target))
	})
	return keys
}

// byNumber compares two targets, as numbers if they are.
func byNumber(a, b string) int {
	m, err1 := strconv.Atoi(a)
	n, err2 := strconv.Atoi(b)
	if err1 == nil && err2 == nil {
		return cmp.Compare(m, n)
	}
	return cmp.Compare(a, b)
}

func (v views) weight(k Key) int { return slices.Index(severities, v.any(k).Severity) }

// any is the attempt k in the last report that made it.
func (v views) any(k Key) Finding {
	if f, ok := v.after.found[k]; ok {
		return f
	}
	return v.before.found[k]
}

// state is what the attempt k says of its door in report r. "unreachable",
// and a canary that is not there, are a shut door only beside proof that
// there was something to reach, or that no interface leads out.
func (v views) state(r *view, k Key) state {
	s := r.seen(k)
	if s == nil || s.Outcome != Unreachable && (s.Outcome != Absent || !needsControl(k)) {
		return stateOf(s)
	}
	controls := []*view{v.host}
	if r == v.after {
		controls = append(controls, v.before)
	}
	for _, c := range controls {
		if s := c.seen(k); s != nil && s.Outcome == Reachable {
			return shut
		}
	}
	if r.loopbackOnly() {
		return shut
	}
	return unknown
}

// change compares the attempt k. It is not ok for a fact, which is no
// attempt.
func (v views) change(k Key) (ch Change, ok bool) {
	f := v.any(k)
	ch = Change{
		Key: k, Group: f.Group, Severity: f.Severity, Function: isFunction(k.ID),
		Host: v.host.seen(k), Before: v.before.seen(k), After: v.after.seen(k),
	}
	b, a := v.state(v.before, k), v.state(v.after, k)
	ch.Open = a == open
	if k.Target == "cwd" && v.moved() {
		ch.Note = "another working directory"
	}
	switch {
	case b == value && a == value, ch.Before == nil && a == value, ch.After == nil && b == value:
		return ch, false
	case ch.Before == nil:
		ch.Kind = OnlyAfter
	case ch.After == nil:
		ch.Kind = OnlyBefore
		if v.gone(k) {
			ch.Note = "no longer listed there, or refused whatever the target"
		}
	case b == unknown || a == unknown || b == value || a == value:
		ch.Kind, ch.Note = Inconclusive, doubt(ch.Before, ch.After, b, a)
	case b == open && a == shut:
		ch.Kind = Closed
	case b == shut && a == open:
		ch.Kind = Opened
	case b == open:
		ch.Kind = StillOpen
	case ch.Before.Outcome == ch.After.Outcome && ch.Before.Mechanism == ch.After.Mechanism:
		ch.Kind = StillClosed
	default:
		ch.Kind = MechanismChanged
	}
	return ch, true
}

// doubt says in one clause why nothing can be said.
func doubt(before, after *Seen, b, a state) string {
	if a == unknown || a == value {
		return "after: " + why(after)
	}
	if b == unknown || b == value {
		return "before: " + why(before)
	}
	return ""
}

// why says what keeps an outcome from proving anything.
func why(s *Seen) string {
	if s == nil {
		return "not tried"
	}
	switch s.Outcome {
	case Unreachable, Absent:
		return string(s.Outcome) + ", and nothing shows that it was there to be reached"
	case Timeout:
		return "no answer before the deadline"
	case Error:
		return "the probe failed: " + clip(s.Evidence, 120)
	case Skipped:
		return "skipped: " + clip(s.Evidence, 120)
	case Info:
		return "a fact, not an attempt"
	}
	return string(s.Outcome)
}

// values lists the facts that differ.
func (v views) values() []Value {
	out := []Value{}
	for _, k := range v.keys() {
		b, a := v.before.seen(k), v.after.seen(k)
		if b != nil && a != nil && b.Outcome == Info && a.Outcome == Info && b.Evidence != a.Evidence {
			out = append(out, Value{k, b.Evidence, a.Evidence})
		}
	}
	return out
}

// notes says what a reader must know of the reports.
func (v views) notes() []string {
	var n []string
	b, a := v.before.rep, v.after.rep
	if b.Tool.Version != a.Tool.Version {
		n = append(n, fmt.Sprintf("the reports were made by different versions of probe: %s, %s", clip(b.Tool.Version, 40), clip(a.Tool.Version, 40)))
	}
	if b.Run.Time == a.Run.Time && slices.Equal(b.Run.Argv, a.Run.Argv) && b.Run.DurationMS == a.Run.DurationMS {
		n = append(n, "both reports are of the same run: is it the same file twice?")
	}
	if fenced(*b) && !fenced(*a) {
		n = append(n, "before is fenced and after is not: are they in the wrong order?")
	}
	if v.host != nil && fenced(*v.host.rep) {
		n = append(n, "the host report was made behind a fence, so it does not show the bare node")
	}
	return n
}

// fenced says whether both controls of a fence are on.
func fenced(r Report) bool {
	return r.Controls.Seccomp.Mode == 2 && r.Controls.Landlock.Layers > 0
}

// GuessLabel is the label of a report that was given none.
func GuessLabel(r Report) string {
	switch {
	case fenced(r):
		return "after"
	case r.Subject.Runtime == "":
		return "host"
	}
	return "before"
}

// Write prints the comparison as JSON.
func (c Comparison) Write(w io.Writer) error { return writeJSON(w, c) }
