package probe

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fence/pkg/internal/tomldoc"
)

//go:embed expect/*.toml
var expectFiles embed.FS

// Expectations lists the built-in expectations by name.
func Expectations() []string {
	entries, err := expectFiles.ReadDir("expect")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".toml"))
	}
	return names
}

// Expectation is what a report must show for a gate to let it pass. The zero
// Expectation asks for nothing, and Gate never passes it.
type Expectation struct {
	Name   string
	Closed []Requirement // doors that must be proven shut
	Open   []Requirement // functions that must be proven to work
	Proof  []string      // controls that must be in force: see proofs
	Except []Except      // what an expectation that it extends asks and it does not
}

// Except takes a check out of an expectation, or some targets of one, and says
// why.
type Except struct {
	ID  string // or id[target]
	Why string
}

func (x Except) pattern() Pattern {
	if id, target, ok := strings.Cut(x.ID, "["); ok {
		return Pattern{id, strings.TrimSuffix(target, "]")}
	}
	return Pattern{x.ID, "*"}
}

// Requirement is met by any of its patterns: what one check cannot be asked
// here, another may show. A door is shut only if none of them is open.
type Requirement []Pattern

// Pattern names attempts: a check's id, and a glob that their targets match.
type Pattern struct{ ID, Target string }

func (p Pattern) String() string {
	if p.Target == "*" {
		return p.ID
	}
	return p.ID + "[" + p.Target + "]"
}

func (r Requirement) String() string {
	var s []string
	for _, p := range r {
		s = append(s, p.String())
	}
	return strings.Join(s, " | ")
}

// proofs are the controls that an expectation may ask for.
var proofs = []string{"ctl.seccomp", "ctl.landlock.layers", "ctl.nnp"}

// expectationFile is an expectation as a person writes it.
type expectationFile struct {
	Version any
	Extends *string
	Require struct{ Closed, Open, Proof []string }
	Except  []Except
}

// BuiltIn is the built-in expectation of that name.
func BuiltIn(name string) (Expectation, error) {
	data, err := expectFiles.ReadFile("expect/" + name + ".toml")
	if err != nil {
		return Expectation{}, fmt.Errorf("no expectation %q: built in are %s", name, strings.Join(Expectations(), ", "))
	}
	return ParseExpectation(name, bytes.NewReader(data))
}

// ParseExpectation reads an expectation; name is what errors and the verdict
// call it. Unknown keys and ids that no check has are errors with their
// line.
func ParseExpectation(name string, r io.Reader) (Expectation, error) {
	data, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if err != nil {
		return Expectation{}, fmt.Errorf("%s: %w", name, err)
	}
	var f expectationFile
	d, err := tomldoc.Read(name, data, &f)
	if err != nil {
		return Expectation{}, err
	}
	at := func(key string, err error) (Expectation, error) {
		return Expectation{}, fmt.Errorf("%s: %w", d.At(key), err)
	}
	e := Expectation{}
	if f.Extends != nil {
		if e, err = BuiltIn(*f.Extends); err != nil {
			return at("extends", fmt.Errorf("extends: %w", err))
		}
	}
	e.Name = name
	for _, list := range []struct {
		key  string
		from []string
		to   *[]Requirement
	}{{"closed", f.Require.Closed, &e.Closed}, {"open", f.Require.Open, &e.Open}} {
		for i, s := range list.from {
			req, err := parseRequirement(s)
			if err != nil {
				return at(fmt.Sprintf("require.%s[%d]", list.key, i), err)
			}
			*list.to = append(*list.to, req)
		}
	}
	for i, id := range f.Require.Proof {
		if !slices.Contains(proofs, id) {
			return at(fmt.Sprintf("require.proof[%d]", i), &UnknownIDError{id, proofs})
		}
		if !slices.Contains(e.Proof, id) {
			e.Proof = append(e.Proof, id)
		}
	}
	for i, x := range f.Except {
		if err := e.except(x); err != nil {
			return at(fmt.Sprintf("except[%d].id", i), err)
		}
	}
	if len(e.Closed)+len(e.Open)+len(e.Proof) == 0 {
		return at("require", errors.New("it requires nothing"))
	}
	return e, nil
}

// except takes out every pattern that names the check. Of a check with a
// target the rest is still asked for: Gate leaves out the attempt.
func (e *Expectation) except(x Except) error {
	if strings.TrimSpace(x.Why) == "" {
		return fmt.Errorf("except %q: say why", clip(x.ID, 60))
	}
	p := x.pattern()
	if p.Target != "*" {
		if !strings.HasSuffix(x.ID, "]") || p.Target == "" {
			return fmt.Errorf("except: %q is not of the form id[target]", clip(x.ID, 60))
		}
		for _, req := range slices.Concat(e.Closed, e.Open) {
			if slices.ContainsFunc(req, func(q Pattern) bool { return q.ID == p.ID }) {
				e.Except = append(e.Except, x)
				return nil
			}
		}
		return fmt.Errorf("except: nothing requires %q", clip(x.ID, 60))
	}
	found := false
	for _, list := range []*[]Requirement{&e.Closed, &e.Open} {
		var keep []Requirement
		for _, req := range *list {
			n := len(req)
			req = slices.DeleteFunc(slices.Clone(req), func(q Pattern) bool { return q.ID == p.ID })
			found = found || len(req) < n
			if len(req) > 0 {
				keep = append(keep, req)
			}
		}
		*list = keep
	}
	if !found {
		return fmt.Errorf("except: nothing requires %q", clip(x.ID, 60))
	}
	e.Except = append(e.Except, x)
	return nil
}

// UnknownIDError says that an expectation, or who leaves a check out, names an
// id that nothing has.
type UnknownIDError struct {
	ID    string
	Known []string
}

func (e *UnknownIDError) Error() string { return fmt.Sprintf("no check has the id %q", clip(e.ID, 60)) }

func parseRequirement(s string) (Requirement, error) {
	var req Requirement
	for _, alt := range strings.Split(s, "|") {
		alt = strings.TrimSpace(alt)
		p := Pattern{ID: alt, Target: "*"}
		if id, target, ok := strings.Cut(alt, "["); ok {
			t, closed := strings.CutSuffix(target, "]")
			if !closed || t == "" {
				return nil, fmt.Errorf("%q is not of the form id[target]", clip(alt, 80))
			}
			p = Pattern{id, t}
		}
		if known := checkIDs(); !slices.Contains(known, p.ID) {
			return nil, &UnknownIDError{p.ID, known}
		}
		req = append(req, p)
	}
	return req, nil
}

// checkIDs lists the ids of all checks.
func checkIDs() []string {
	var ids []string
	for _, c := range Checks() {
		ids = append(ids, c.ID)
	}
	return ids
}

// matches says whether k is one of the attempts that p names.
func (p Pattern) matches(k Key) bool { return p.ID == k.ID && glob(p.Target, k.Target) }

// glob matches s against a pattern in which "*" stands for any text, slashes
// included.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(s, part)
		if !found {
			return false
		}
		s = rest
	}
	return strings.HasSuffix(s, last)
}
