package probe

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// GateSchema names the format of Verdict.
const GateSchema = "probe.gate/v1"

// Verdict is the answer of a gate, with what it rests on.
type Verdict struct {
	Schema  string         `json:"schema"` // GateSchema
	Tool    Tool           `json:"tool"`
	Expect  string         `json:"expect"` // name of the expectation, or its file
	Answer  Answer         `json:"answer"`
	After   Origin         `json:"after"`
	Before  *Origin        `json:"before,omitempty"` // the control; none was given without it
	Differ  []string       `json:"differ"`           // why before and after cannot be compared; usually none
	Notes   []string       `json:"notes"`
	Results []Result       `json:"results"`
	Counts  map[Answer]int `json:"counts"`
}

// Result is one attempt or control that an expectation asks for.
type Result struct {
	Key
	Want     string `json:"want"`     // closed, open or proof
	Severity string `json:"severity"` // of the check; "" for a control
	Answer   Answer `json:"answer"`
	Seen     *Seen  `json:"seen,omitempty"`   // in AFTER
	Before   *Seen  `json:"before,omitempty"` // in BEFORE
	Reason   string `json:"reason"`           // one clause
	Advice   string `json:"advice,omitempty"` // what to do, when the answer is not yes
}

// Gate says whether a report shows what expect asks for. Only a finding that
// proves its answer passes; what is missing, was skipped or timed out is
// "could not tell". before, which may be nil, is a report made without the
// fence: it shows that a door refused was there to be opened.
func Gate(after Report, before *Report, expect Expectation) Verdict {
	v := Verdict{
		Schema: GateSchema, Tool: after.Tool, Expect: expect.Name, After: originOf(after),
		Differ: []string{}, Notes: []string{}, Results: []Result{}, Counts: map[Answer]int{},
	}
	g := gate{views: views{after: viewOf(&after)}}
	if before == nil {
		v.Notes = append(v.Notes, "there is no control: without --before, nothing shows that what was refused works without the fence")
	} else {
		o := originOf(*before)
		v.Before, g.before = &o, viewOf(before)
		v.Differ = append(v.Differ, differ("before", *before, "after", after, false)...)
		if unnamed(*before, after) {
			v.Answer = CannotTell
			v.Notes = append(v.Notes, noBoot)
		}
		v.Notes = append(v.Notes, g.notes()...)
		if w := WrongOrder(*before, after); w != "" {
			v.Differ = append(v.Differ, w)
		}
	}
	if len(v.Differ) > 0 {
		v.Answer = CannotTell
		return v
	}
	for _, x := range expect.Except {
		v.Notes = append(v.Notes, fmt.Sprintf("not asked: %s, because: %s", x.ID, x.Why))
		g.except = append(g.except, x.pattern())
	}
	for _, id := range expect.Proof {
		v.Results = append(v.Results, g.proof(id))
	}
	for _, r := range expect.Closed {
		v.Results = append(v.Results, g.require("closed", r)...)
	}
	for _, r := range expect.Open {
		v.Results = append(v.Results, g.require("open", r)...)
	}
	for i := range v.Results {
		r := &v.Results[i]
		v.Answer = v.Answer.worse(r.Answer)
		v.Counts[r.Answer]++
		if r.Answer != Yes {
			r.Advice = advice(*r)
		}
	}
	if v.Answer == notAnswered {
		v.Answer = CannotTell
	}
	slices.SortStableFunc(v.Results, func(a, b Result) int {
		return cmp.Or(cmp.Compare(rank(a.Answer), rank(b.Answer)), cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)))
	})
	return v
}

// rank sorts answers by how much they ask of the reader.
func rank(a Answer) int { return slices.Index([]Answer{No, CannotTell, Yes}, a) }

type gate struct {
	views
	except []Pattern // attempts that are not asked for
}

// proof answers for one control, from the process's own state and not from
// an attempt.
func (g gate) proof(id string) Result {
	r := Result{Key: Key{ID: id}, Want: "proof", Answer: No, Seen: g.after.seen(Key{ID: id}), Before: g.before.seen(Key{ID: id})}
	c := g.after.rep.Controls
	switch id {
	case "ctl.seccomp":
		r.Reason = fmt.Sprintf("mode %d, %d filters", c.Seccomp.Mode, c.Seccomp.Filters)
		if c.Seccomp.Mode == 2 {
			r.Answer = Yes
		}
	case "ctl.landlock.layers":
		r.Reason = fmt.Sprintf("%d layers", c.Landlock.Layers)
		if c.Landlock.Layers > 0 {
			r.Answer = Yes
		} else if c.Landlock.Layers < 0 {
			r.Answer, r.Reason = CannotTell, "the layers could not be counted"
		}
	case "ctl.nnp":
		r.Reason = "no_new_privs is off"
		if c.NoNewPrivs {
			r.Answer, r.Reason = Yes, "no_new_privs is on"
		}
	default:
		r.Answer, r.Reason = CannotTell, "no such control"
	}
	if g.before != nil && r.Answer == Yes {
		b := g.before.rep.Controls
		if id == "ctl.seccomp" && b.Seccomp.Mode == 2 && b.Seccomp.Filters >= c.Seccomp.Filters ||
			id == "ctl.landlock.layers" && b.Landlock.Layers >= c.Landlock.Layers {
			r.Answer = CannotTell
			r.Reason += ", and no fewer before: BEFORE is no control, or AFTER ran behind no fence of its own"
		}
	}
	return r
}

// require answers for every attempt that req names, or for the requirement
// as a whole when none was made that proves anything.
func (g gate) require(want string, req Requirement) []Result {
	var results, idle []Result
	proven := false
	for _, p := range req {
		keys := g.matching(p)
		if len(keys) == 0 {
			idle = append(idle, Result{Key: keyOf(p), Want: want, Answer: CannotTell, Reason: "not in the report"})
		}
		all := len(keys) > 0
		for _, k := range keys {
			if slices.ContainsFunc(g.except, func(x Pattern) bool { return x.matches(k) }) {
				continue
			}
			r := g.attempt(want, k)
			all = all && r.Answer == Yes
			if r.Answer == CannotTell && (r.Seen == nil || r.Seen.Outcome == Skipped) {
				idle = append(idle, r)
			} else {
				results = append(results, r)
			}
		}
		proven = proven || all
	}
	if len(req) > 1 && proven {
		if want == "open" { // one way to work is enough
			results = slices.DeleteFunc(results, func(r Result) bool { return r.Answer != Yes })
		}
		return results // an alternative was proven, so what was not asked is not missed
	}
	if len(req) > 1 && len(results) == 0 {
		return []Result{oneOf(idle)}
	}
	return append(results, idle...)
}

// oneOf is one result for alternatives of which none shows anything.
func oneOf(idle []Result) Result {
	one := idle[0]
	var reasons []string
	for _, r := range idle {
		if one.Seen == nil && r.Seen != nil {
			one = r
		}
		reasons = append(reasons, r.Key.String()+" "+r.Reason)
	}
	one.Reason = "none of these shows it: " + strings.Join(reasons, "; ")
	return one
}

func keyOf(p Pattern) Key {
	if p.Target == "*" {
		return Key{ID: p.ID}
	}
	return Key(p)
}

// matching lists the attempts that p names in either report.
func (g gate) matching(p Pattern) []Key {
	var keys []Key
	known := map[Key]bool{}
	for _, r := range []*view{g.after, g.before} {
		if r == nil {
			continue
		}
		for _, f := range r.rep.Checks {
			if k := f.Key(); p.matches(k) && !known[k] {
				keys, known[k] = append(keys, k), true
			}
		}
	}
	return keys
}

// attempt answers for one attempt.
func (g gate) attempt(want string, k Key) Result {
	r := Result{Key: k, Want: want, Answer: CannotTell, Seen: g.after.seen(k), Before: g.before.seen(k), Severity: g.finding(k).Severity}
	s := g.state(g.after, k)
	switch {
	case want == "closed" && g.foreign(k):
		r.Answer, r.Reason = Yes, "no such thing on "+g.after.rep.Subject.Arch
	case r.Seen == nil && want == "closed" && g.gone(k):
		r.Answer, r.Reason = Yes, "no longer listed"
	case r.Seen == nil:
		r.Reason = "not tried; before it was " + string(r.Before.Outcome)
	case g.after.unlisted(k):
		r.Reason = "the mounts could not be listed, so a shared path may be there"
	case s == unknown, s == value:
		r.Reason = why(r.Seen)
	case (s == open) != (want == "open"):
		r.Answer, r.Reason = No, told(r.Seen)
	default:
		r.Answer, r.Reason = Yes, told(r.Seen)
		if want == "closed" && needsControl(k) && g.before != nil && !controlled(k, g.after, g.before) {
			r.Answer = CannotTell
			r.Reason += ", but before it was " + seenWord(r.Before) + ": nothing shows that it was there to be reached"
		}
	}
	return r
}

// foreign says that k is about entries to the kernel that only x86-64 has.
func (g gate) foreign(k Key) bool {
	return (k.ID == "sys.x32" || k.ID == "sys.i386") && g.after.rep.Subject.Arch != "x86_64" && g.after.rep.Subject.Arch != ""
}

func (g gate) finding(k Key) Finding {
	if f, ok := g.after.found[k]; ok || g.before == nil {
		return f
	}
	return g.before.found[k]
}

// told is an outcome with what refused it.
func told(s *Seen) string {
	if s == nil {
		return "not tried"
	}
	by := mechanisms[s.Mechanism]
	if by == "" {
		by = cmp.Or(s.Errno, s.Mechanism)
	}
	if s.Outcome == Reachable || by == "" {
		return string(s.Outcome)
	}
	return string(s.Outcome) + " (" + by + ")"
}

// mechanisms are the words for what refuses.
var mechanisms = map[string]string{
	"seccomp_errno": "seccomp", "seccomp_kill": "seccomp", "landlock_fs": "landlock", "landlock_net": "landlock", "landlock_scope": "landlock",
	"nnp_caps": "no privilege", "dac": "file mode", "lsm": "the system", "sysctl": "the system", "userns_limit": "the system's limit",
	"readonly_mount": "read-only", "not_mounted": "not mounted", "masked": "masked", "no_interface": "no interface",
	"pidns": "pid namespace", "ipcns": "ipc namespace", "proxy_policy": "proxy",
}

// Write prints the verdict as JSON.
func (v Verdict) Write(w io.Writer) error { return writeJSON(w, v) }
