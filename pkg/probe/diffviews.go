package probe

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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

// view is a report to look findings up in. There may be very many: whoever
// wrote a report may want to keep its reader busy.
type view struct {
	rep   *Report
	found map[Key]Finding
	there map[Key]bool // found, and not absent
	lists map[string]*list
}

// list is what the attempts of one id come to.
type list struct {
	count    int
	facts    int
	doubt    bool     // one came to nothing
	closed   bool     // refused whatever the target, or nothing to list
	patterns []string // of which nothing was there
}

func viewOf(r *Report) *view {
	v := &view{rep: r, found: make(map[Key]Finding, len(r.Checks)), there: map[Key]bool{}, lists: map[string]*list{}}
	for _, f := range r.Checks {
		l := v.lists[f.ID]
		if l == nil {
			l = &list{}
			v.lists[f.ID] = l
		}
		l.count++
		v.found[f.Key()] = f
		switch {
		case f.Outcome == Info:
			l.facts++
		case f.Outcome == Error || f.Outcome == Timeout || f.Outcome == Skipped:
			l.doubt = true
		case f.Target == "" && (f.Outcome == Denied || f.Outcome == Absent):
			l.closed = true
		case f.Outcome == Absent && strings.ContainsAny(f.Target, "*?["):
			l.patterns = append(l.patterns, f.Target)
		}
		if f.Outcome != Absent {
			v.there[f.Key()] = true
		}
	}
	return v
}

// list is that of an id, an empty one if there was no attempt.
func (v *view) list(id string) list {
	if l := v.lists[id]; l != nil {
		return *l
	}
	return list{}
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

// made says whether the attempt k was made.
func (v *view) made(k Key) bool {
	s := v.seen(k)
	return s != nil && s.Outcome != Skipped
}

// itself says whether target, HOST:PORT, is the report's own node.
func (v *view) itself(target string) bool {
	host, _, _ := strings.Cut(target, ":")
	host, _, _ = strings.Cut(host, ".")
	own, _, _ := strings.Cut(v.rep.Subject.Hostname, ".")
	return host != "" && host == own
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
	if s != nil && r.unlisted(k) {
		return unknown
	}
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
	ch.was, ch.is, ch.Open = b, a, a == open
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
	if v.host != nil && fenced(*v.host.rep) {
		n = append(n, "the host report was made behind a fence, so it does not show the bare node")
	}
	return n
}
