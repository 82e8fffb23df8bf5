package probe

import (
	"fmt"
	"io"
	"strings"
)

// Table prints the verdict for a person: what is not as it must be, one
// after the other, each with what to do. all adds what is.
func (v Verdict) Table(w io.Writer, columns int, all bool) error {
	p := &page{w: w, columns: columns}
	p.para("", fmt.Sprintf("%s, %s, uid %d, made %s; expected: %s", v.After.Hostname, v.After.where(), v.After.UID, v.After.made(), v.Expect))
	if len(v.Differ) > 0 {
		p.line("These reports cannot be compared:")
		for _, d := range v.Differ {
			p.para("  - ", d)
		}
		return p.err
	}
	for _, r := range v.Results {
		if r.Answer == Yes && !all {
			continue
		}
		p.para(r.Answer.mark()+" ", fmt.Sprintf("%s %s: %s", r.must(), r.Key, r.Reason))
		if r.Advice != "" {
			p.para("   -> ", r.Advice)
		}
	}
	for _, n := range v.Notes {
		p.para("note: ", n)
	}
	var counts []string
	for _, a := range []Answer{Yes, No, CannotTell} {
		counts = append(counts, fmt.Sprintf("%d %s", v.Counts[a], a))
	}
	p.line("answer: %s (asked: %s)", v.Answer, strings.Join(counts, ", "))
	return p.err
}

// must says in one or two words what a result was to show.
func (r Result) must() string {
	switch r.Want {
	case "closed":
		return "must be shut:"
	case "open":
		return "must work:"
	}
	return "must be on:"
}
