package probe

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
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
	ID  string `toml:"id"` // or id[target]
	Why string `toml:"why"`
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
	Version int    `toml:"version"`
	Extends string `toml:"extends"`
	Require struct {
		Closed []string `toml:"closed"`
		Open   []string `toml:"open"`
		Proof  []string `toml:"proof"`
	} `toml:"require"`
	Except []Except `toml:"except"`
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
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&f); err != nil {
		return Expectation{}, tomlError(name, err)
	}
	if f.Version != 1 {
		return Expectation{}, fmt.Errorf("%s: version is %d, must be 1", name, f.Version)
	}
	e := Expectation{}
	if f.Extends != "" {
		if e, err = BuiltIn(f.Extends); err != nil {
			return Expectation{}, fmt.Errorf("%s:%d: extends: %w", name, lineOf(data, f.Extends), err)
		}
	}
	e.Name = name
	for _, list := range []struct {
		from []string
		to   *[]Requirement
	}{{f.Require.Closed, &e.Closed}, {f.Require.Open, &e.Open}} {
		for _, s := range list.from {
			req, err := parseRequirement(s)
			if err != nil {
				return Expectation{}, fmt.Errorf("%s:%d: %w", name, lineOf(data, s), err)
			}
			*list.to = append(*list.to, req)
		}
	}
	for _, id := range f.Require.Proof {
		if !slices.Contains(proofs, id) {
			return Expectation{}, fmt.Errorf("%s:%d: %w", name, lineOf(data, id), &UnknownIDError{id, proofs})
		}
		if !slices.Contains(e.Proof, id) {
			e.Proof = append(e.Proof, id)
		}
	}
	for _, x := range f.Except {
		if err := e.except(x); err != nil {
			return Expectation{}, fmt.Errorf("%s:%d: %w", name, lineOf(data, x.ID), err)
		}
	}
	if len(e.Closed)+len(e.Open)+len(e.Proof) == 0 {
		return Expectation{}, fmt.Errorf("%s: it requires nothing", name)
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

// UnknownIDError says that an expectation names an id that nothing has.
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

// lineOf is the line on which a quoted word of a TOML file stands.
func lineOf(data []byte, word string) int {
	for i, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if strings.Contains(line, `"`+word+`"`) || strings.Contains(line, `'`+word+`'`) {
			return i + 1
		}
	}
	return 1
}

func tomlError(name string, err error) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		first := strict.Errors[0]
		row, _ := first.Position()
		return fmt.Errorf("%s:%d: unknown key %q", name, row, strings.Join(first.Key(), "."))
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		row, _ := bad.Position()
		return fmt.Errorf("%s:%d: %s", name, row, strings.TrimPrefix(bad.Error(), "toml: "))
	}
	return fmt.Errorf("%s: %w", name, err)
}
