package wheel

import (
	"deps.dev/util/semver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Requirement is what has to be installed: a project, and which versions of it.
type Requirement struct {
	Project string   // normalized
	Extras  []string // normalized, sorted
	Spec    string   // version specifiers such as ">=1.2,<2", "" for any
	Marker  string   // when it counts, "" for always
}

// String is the requirement as pip reads it.
func (r Requirement) String() string {
	s := r.Project
	if len(r.Extras) > 0 {
		s += "[" + strings.Join(r.Extras, ",") + "]"
	}
	s += r.Spec
	if r.Marker != "" {
		s += " ; " + r.Marker
	}
	return s
}

var (
	projectName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`)
	specifier   = regexp.MustCompile(`^(===|==|~=|!=|<=|>=|<|>)\s*([A-Za-z0-9.*+!_-]+)$`)
)

// ParseRequirement reads a dependency specifier (PEP 508). One that names a
// URL is an error: what is there is no wheel of an index.
func ParseRequirement(s string) (Requirement, error) {
	rest := strings.TrimSpace(s)
	name := projectName.FindString(rest)
	if name == "" {
		return Requirement{}, fmt.Errorf("%q does not begin with a project's name", s)
	}
	r := Requirement{Project: Normalize(name)}
	rest = strings.TrimSpace(rest[len(name):])
	if after, ok := strings.CutPrefix(rest, "["); ok {
		list, after, ok := strings.Cut(after, "]")
		if !ok {
			return Requirement{}, fmt.Errorf("%q: the list of extras has no end", s)
		}
		for extra := range strings.SplitSeq(list, ",") {
			if extra = strings.TrimSpace(extra); extra == "" {
				continue
			}
			if projectName.FindString(extra) != extra {
				return Requirement{}, fmt.Errorf("%q: %q is no name of an extra", s, extra)
			}
			r.Extras = append(r.Extras, Normalize(extra))
		}
		slices.Sort(r.Extras)
		r.Extras = slices.Compact(r.Extras)
		rest = strings.TrimSpace(after)
	}
	if strings.HasPrefix(rest, "@") {
		return Requirement{}, fmt.Errorf("%q names a URL, not a version of an index", s)
	}
	spec, marker, hasMarker := strings.Cut(rest, ";")
	if r.Marker = strings.TrimSpace(marker); hasMarker {
		if _, err := parseMarker(r.Marker); err != nil {
			return Requirement{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	spec = strings.TrimSpace(spec)
	if inner, ok := strings.CutPrefix(spec, "("); ok && strings.HasSuffix(inner, ")") {
		spec = strings.TrimSuffix(inner, ")")
	}
	var clauses []string
	for clause := range strings.SplitSeq(spec, ",") {
		clause = strings.TrimSpace(clause)
		if clause == "" {
			continue
		}
		m := specifier.FindStringSubmatch(clause)
		if m == nil {
			return Requirement{}, fmt.Errorf("%q: %q is no version specifier", s, clause)
		}
		clauses = append(clauses, m[1]+m[2])
	}
	r.Spec = strings.Join(clauses, ",")
	if _, err := constraint(r.Spec); err != nil {
		return Requirement{}, fmt.Errorf("%q: %w", s, err)
	}
	return r, nil
}

func constraint(spec string) (*semver.Constraint, error) {
	if strings.Contains(spec, "===") {
		return nil, errors.New("=== compares text, and no version of an index needs that")
	}
	return semver.PyPI.ParseConstraint(spec)
}

// Pinned is the one version that the requirement takes, if it takes only one.
func (r Requirement) Pinned() (string, bool) {
	v, ok := strings.CutPrefix(r.Spec, "==")
	return v, ok && !strings.ContainsAny(v, ",*")
}

// Allows says whether the requirement takes a version. It takes a pre-release
// that is in its range: whether an index has something better is not known
// here.
func (r Requirement) Allows(version string) bool {
	if r.Spec == "" {
		return true
	}
	c, err := constraint(r.Spec)
	if err != nil {
		return false
	}
	if !strings.Contains(r.Spec, "+") {
		version, _, _ = strings.Cut(version, "+") // a local label counts only where it is asked for (PEP 440)
	}
	v, err := semver.PyPI.Parse(version)
	return err == nil && c.MatchVersionPrerelease(v)
}

// SameVersion says whether two texts are one version (PEP 440): 1.0 and 1.0.0
// are.
func SameVersion(a, b string) bool { return semver.PyPI.Compare(a, b) == 0 }

// CompareVersions orders versions.
func CompareVersions(a, b string) int { return semver.PyPI.Compare(a, b) }
