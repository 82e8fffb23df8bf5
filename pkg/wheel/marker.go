package wheel

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/semver"
)

// A marker says when a requirement counts (PEP 508). It is either a comparison
// or, with both, a disjunction or conjunction.
type marker struct {
	or, and     []marker
	left, right operand
	op          string
}

type operand struct {
	text     string
	variable bool
}

var (
	markerToken = regexp.MustCompile(`^(?:(\()|(\))|("[^"]*"|'[^']*')|(===|==|~=|!=|<=|>=|<|>)|([a-z][a-z0-9._]*))`)
	notIn       = regexp.MustCompile(`^not\s+in\b`)
)

// markerVariables are those that PEP 508 has, and two that setuptools once
// wrote.
var markerVariables = []string{
	"os_name", "sys_platform", "platform_machine", "platform_python_implementation", "platform_release",
	"platform_system", "platform_version", "python_version", "python_full_version", "implementation_name",
	"implementation_version", "extra", "os.name", "sys.platform", "platform.machine", "platform.python_implementation", "python_implementation",
}

func parseMarker(s string) (marker, error) {
	var tokens []string
	for rest := strings.TrimSpace(s); rest != ""; rest = strings.TrimSpace(rest) {
		token := notIn.FindString(rest)
		if token == "" {
			token = markerToken.FindString(rest)
		}
		if token == "" {
			return marker{}, fmt.Errorf("the marker %q is not understood at %q", s, rest)
		}
		tokens = append(tokens, strings.Join(strings.Fields(token), " "))
		if token[0] == '"' || token[0] == '\'' {
			tokens[len(tokens)-1] = token
		}
		rest = rest[len(token):]
	}
	p := markerParser{tokens: tokens}
	m := p.or(0)
	if p.bad || len(p.tokens) > 0 {
		return marker{}, fmt.Errorf("the marker %q is not understood", s)
	}
	return m, nil
}

type markerParser struct {
	tokens []string
	bad    bool
}

func (p *markerParser) next() string {
	if len(p.tokens) == 0 {
		p.bad = true
		return ""
	}
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return t
}

func (p *markerParser) at(word string) bool { return len(p.tokens) > 0 && p.tokens[0] == word }

func (p *markerParser) or(depth int) marker {
	m := marker{or: []marker{p.and(depth)}}
	for p.at("or") {
		p.next()
		m.or = append(m.or, p.and(depth))
	}
	return m
}

func (p *markerParser) and(depth int) marker {
	m := marker{and: []marker{p.one(depth)}}
	for p.at("and") {
		p.next()
		m.and = append(m.and, p.one(depth))
	}
	return m
}

// deepest is how many parentheses may be open.
const deepest = 50

func (p *markerParser) one(depth int) marker {
	if p.at("(") {
		p.next()
		if p.bad = p.bad || depth == deepest; p.bad {
			return marker{}
		}
		m := p.or(depth + 1)
		p.bad = p.next() != ")" || p.bad
		return m
	}
	m := marker{left: p.operand(), op: p.next(), right: p.operand()}
	p.bad = p.bad || !slices.Contains([]string{"===", "==", "~=", "!=", "<=", ">=", "<", ">", "in", "not in"}, m.op)
	return m
}

func (p *markerParser) operand() operand {
	t := p.next()
	if t != "" && (t[0] == '"' || t[0] == '\'') {
		return operand{text: t[1 : len(t)-1]}
	}
	p.bad = p.bad || !slices.Contains(markerVariables, t)
	return operand{text: t, variable: true}
}

// environment are the variables of a marker on the target. The third number of
// a Python's version is not known: it stands for a late one.
func (t Target) environment(extra string) map[string]string {
	full := t.Python + ".99"
	return map[string]string{
		"os_name": "posix", "os.name": "posix", "sys_platform": "linux", "sys.platform": "linux",
		"platform_machine": t.Arch, "platform.machine": t.Arch, "platform_system": "Linux",
		"platform_python_implementation": "CPython", "platform.python_implementation": "CPython", "python_implementation": "CPython",
		"platform_release": "", "platform_version": "", "implementation_name": "cpython", "implementation_version": full,
		"python_version": t.Python, "python_full_version": full, "extra": extra,
	}
}

func (m marker) holds(env map[string]string) bool {
	switch {
	case m.or != nil:
		return slices.ContainsFunc(m.or, func(o marker) bool { return o.holds(env) })
	case m.and != nil:
		return !slices.ContainsFunc(m.and, func(a marker) bool { return !a.holds(env) })
	}
	left, right := m.left.text, m.right.text
	if m.left.variable {
		left = env[left]
	}
	if m.right.variable {
		right = env[right]
	}
	if m.left.text == "extra" && m.left.variable || m.right.text == "extra" && m.right.variable {
		left, right = Normalize(left), Normalize(right)
	}
	switch m.op {
	case "in":
		return strings.Contains(right, left)
	case "not in":
		return !strings.Contains(right, left)
	case "===":
		return left == right
	}
	// Versions are compared as such where both are (PEP 508), the rest as text.
	version := right
	if m.right.variable && !m.left.variable {
		version = left
	}
	if c, err := semver.PyPI.ParseConstraint(m.op + version); err == nil && version != "" && version[0] >= '0' && version[0] <= '9' {
		other := left
		if version == left && m.right.variable && !m.left.variable {
			// "3.8" <= python_version: turned round.
			turned := map[string]string{"<": ">", ">": "<", "<=": ">=", ">=": "<="}
			op := m.op
			if o, ok := turned[op]; ok {
				op = o
			}
			if c, err = semver.PyPI.ParseConstraint(op + version); err != nil {
				return false
			}
			other = right
		}
		if v, err := semver.PyPI.Parse(other); err == nil {
			return c.MatchVersionPrerelease(v)
		}
	}
	switch m.op {
	case "==":
		return left == right
	case "!=":
		return left != right
	case "<":
		return left < right
	case ">":
		return left > right
	case "<=":
		return left <= right
	case ">=":
		return left >= right
	}
	return false
}

// AppliesElsewhere says whether a requirement counts on Windows or macOS and
// not on the target.
func (t Target) AppliesElsewhere(r Requirement, extras []string) bool {
	m, err := parseMarker(r.Marker)
	if err != nil || t.Applies(r, extras) {
		return false
	}
	for _, other := range [][3]string{{"win32", "nt", "Windows"}, {"darwin", "posix", "Darwin"}} {
		for _, extra := range append([]string{""}, extras...) {
			env := t.environment(extra)
			env["sys_platform"], env["os_name"], env["platform_system"] = other[0], other[1], other[2]
			env["sys.platform"], env["os.name"] = other[0], other[1]
			if m.holds(env) {
				return true
			}
		}
	}
	return false
}

// Applies says whether a requirement counts on the target, for somebody who
// asked for the given extras.
func (t Target) Applies(r Requirement, extras []string) bool {
	if r.Marker == "" {
		return true
	}
	m, err := parseMarker(r.Marker)
	if err != nil {
		return true // too much is better than too little
	}
	for _, extra := range append([]string{""}, extras...) {
		if m.holds(t.environment(extra)) {
			return true
		}
	}
	return false
}
