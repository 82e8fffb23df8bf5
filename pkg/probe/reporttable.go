package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"fence/pkg/internal/atomicfile"
)

// Table prints one report for a person: what this process reaches, the
// weightiest first and with the reason that it matters, then what does not
// work and what could not be told. Facts and what is shut are in the JSON.
func (r Report) Table(w io.Writer, columns int) error {
	p := &page{w: w, columns: columns}
	o := originOf(r)
	p.para("", fmt.Sprintf("%s, Linux %s, %s, uid %d, %s; %s", o.Hostname, o.Kernel, o.Arch, o.UID, o.where(), o.controls()))
	if o.Runtime == "" && !fenced(r) {
		p.line("What this account reaches here, a command would if the fence failed.")
	}
	whys := map[string]string{}
	for _, c := range Checks() {
		whys[c.ID] = c.Why
	}
	for _, s := range severities[:3] {
		list := r.pick(func(f Finding) bool { return f.Outcome == Reachable && f.Severity == s && !isFunction(f.ID) })
		say := func(f Finding) string { return whys[f.ID] }
		if s != "high" {
			say = nil
		}
		p.findings("Reachable, of "+s+" weight", list, say)
	}
	p.findings("Does not work", r.pick(func(f Finding) bool {
		return isFunction(f.ID) && (f.Outcome == Denied || f.Outcome == Absent)
	}), told1)
	p.findings("Could not tell", r.pick(func(f Finding) bool {
		return slices.Contains([]Outcome{Unreachable, Timeout, Error}, f.Outcome)
	}), func(f Finding) string { return string(f.Outcome) + ": " + f.Evidence })
	p.findings("Not tried", r.pick(func(f Finding) bool { return f.Outcome == Skipped }), func(f Finding) string {
		reason, _, _ := strings.Cut(f.Evidence, "; ") // what follows differs from target to target
		return reason
	})
	p.line("")
	p.para("", r.counts())
	p.line("-o FILE keeps every check and what came back, as JSON")
	return p.err
}

func told1(f Finding) string {
	return told(&Seen{f.Outcome, f.Mechanism, f.Errno, f.Syscall, f.Evidence})
}

func (r Report) pick(ok func(Finding) bool) (out []Finding) {
	for _, f := range r.Checks {
		if ok(f) {
			out = append(out, f)
		}
	}
	return out
}

// findings prints a section: what ended alike on one line, or, without say,
// only the names.
func (p *page) findings(title string, fs []Finding, say func(Finding) string) {
	if len(fs) == 0 {
		return
	}
	sec := section{title: title, merge: true}
	text := map[Key]string{}
	var keys []Key
	for _, f := range fs {
		keys = append(keys, f.Key())
		sec.changes = append(sec.changes, Change{Key: f.Key()})
		if say != nil {
			text[f.Key()] = clip(say(f), 160)
		}
	}
	if say == nil {
		p.line("")
		p.line("%s (%d)", title, len(fs))
		p.para("  ", strings.Join(bundle(keys, 2), ", "))
		return
	}
	sec.line = func(ch Change) string { return text[ch.Key] }
	p.section(sec)
}

// counts is the tally of outcomes in one line.
func (r Report) counts() string {
	var words []string
	for _, o := range outcomes {
		if n := r.Summary[o]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, o))
		}
	}
	return fmt.Sprintf("%d checks in %.1f s: %s", len(r.Checks), float64(r.Run.DurationMS)/1000, strings.Join(words, ", "))
}

// Brief says in a few lines what a person must know of a report that went to
// a file. On a bare node that is what would be lost if a fence failed.
func (r Report) Brief(w io.Writer, columns int) error {
	p := &page{w: w, columns: columns}
	o := originOf(r)
	p.para("probe: ", fmt.Sprintf("%s, %s, %s; %s", nonEmpty(r.Run.Label, "no label"), o.where(), o.controls(), r.counts()))
	var open, late []Key
	answered := false
	for _, f := range r.Checks {
		switch {
		case f.Severity != "high" || isFunction(f.ID) || f.Outcome == Skipped:
		case f.Outcome == Timeout || f.Outcome == Error:
			late = append(late, f.Key())
		case f.Outcome == Reachable:
			open = append(open, f.Key())
		default:
			answered = true
		}
	}
	switch {
	case len(open) > 0 && r.Subject.Runtime == "" && !fenced(r):
		p.para("probe: ", "this account reaches, and a command would if the fence failed: "+strings.Join(bundle(open, 3), ", "))
	case len(open) > 0:
		p.para("probe: ", "reached, of high weight: "+strings.Join(bundle(open, 3), ", "))
	case len(late) > 0 && !answered:
		p.para("probe: ", fmt.Sprintf("could not tell what is reached: none of the %d checks of high weight got an answer", len(late)))
		late = nil
	case !answered:
		p.para("probe: ", "no check of high weight was made")
	case len(late) == 0:
		p.para("probe: ", "nothing of high weight was reached")
	}
	if len(late) > 0 {
		p.para("probe: ", "could not tell, of high weight: "+strings.Join(bundle(late, 3), ", "))
	}
	return p.err
}

// ListTable prints every check for a person.
func ListTable(w io.Writer, columns int) error {
	p := &page{w: w, columns: columns}
	group := ""
	for _, c := range Checks() {
		if c.Group != group {
			group = c.Group
			p.line("")
			p.line("%s", strings.ToUpper(group))
		}
		p.line("  %-30s %s", c.ID, c.Severity)
		p.para("      tries: ", c.What)
		p.para("      why:   ", c.Why)
	}
	return p.err
}

// ListJSON prints every check as a record of its own.
func ListJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, c := range Checks() {
		if err := enc.Encode(checkRecord{CheckSchema, c}); err != nil {
			return err
		}
	}
	return nil
}

type checkRecord struct {
	Schema string `json:"schema"` // CheckSchema
	Check
}

// WriteFile writes a report to a file, whole or not at all.
func WriteFile(path string, r Report) error { return atomicfile.Write(path, r.Write) }
