package probe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
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

	was, is state // in BEFORE and AFTER
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
	ordered := []Report{before, after}
	if host != nil {
		o := originOf(*host)
		c.Host, v.host = &o, viewOf(host)
		c.Differ = append(c.Differ, differ("host", *host, "after", after, true)...)
		ordered = []Report{*host, before, after}
	}
	if w := WrongOrder(ordered...); w != "" {
		c.Differ = append(c.Differ, w)
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
	c.decide(unnamed(before, after) || host != nil && unnamed(*host))
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
			same = a.Subject.BootID == b.Subject.BootID || unnamed(a, b)
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

// unnamed says whether any of the reports does not name the node's boot.
func unnamed(reports ...Report) bool {
	return slices.ContainsFunc(reports, func(r Report) bool { return r.Subject.BootID == "" })
}

const noBoot = "a report does not name the node's boot, so they may be of different nodes"

func (c *Comparison) add(ch Change, ok bool) {
	if !ok {
		return
	}
	c.Counts[ch.Kind]++
	c.Changes = append(c.Changes, ch)
}

// decide sets the answer: yes when the five rows are as a fence must leave
// them and nothing opened.
func (c *Comparison) decide(unnamed bool) {
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
	if unnamed {
		reason(CannotTell, noBoot)
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
	case ch.Kind == Inconclusive && weighty && (ch.is == open || ch.was == shut && ch.is != shut):
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

// kinds are what GuessLabel tells apart, in the order of a comparison.
var kinds = []string{"host", "before", "after"}

// kindOf is an index of kinds: what is fenced is "after", else the label
// says it, else the look of the place.
func kindOf(r Report) int {
	if i := slices.Index(kinds, r.Run.Label); i >= 0 && !fenced(r) {
		return i
	}
	return slices.Index(kinds, GuessLabel(r))
}

// WrongOrder says that of [HOST] BEFORE AFTER two stand in each other's
// place: a fenced command in front of one that is not, or a container in
// front of the bare node. It is "" where nothing shows that.
func WrongOrder(reports ...Report) string {
	names := []string{"HOST", "BEFORE", "AFTER"}[3-len(reports):]
	for i := 1; i < len(reports); i++ {
		if a, b := kindOf(reports[i-1]), kindOf(reports[i]); a > b {
			return fmt.Sprintf("the reports are in the wrong order: %s is of kind %q, %s of kind %q", names[i-1], kinds[a], names[i], kinds[b])
		}
	}
	return ""
}

// Write prints the comparison as JSON.
func (c Comparison) Write(w io.Writer) error { return writeJSON(w, c) }
