package wheel

import (
	"cmp"
	"slices"
	"strings"
)

// Set is what is installed together: by one command, or from one list.
type Set struct {
	Requirements []Requirement
	Constraints  []Requirement // versions to keep to, of what is installed anyway (pip's -c)
	NoDeps       bool          // without what they require
	Pre          bool          // pre-releases, too
	Universal    bool          // resolved for all platforms at once, as uv does for projects
	Python       string        // such as 3.13; "" for the caller's
	Index        string        // URL of the index, "" for pip's own
	ExtraIndexes []string
	FindLinks    []string // URLs of pages
	From         []string // where it is wanted, for people: TASK FILE:LINE
}

// Key tells sets apart by what they ask for, not by who asks.
func (s Set) Key() string {
	var b strings.Builder
	add := func(kind string, list ...string) {
		for _, text := range list {
			b.WriteString(kind + "\x00" + text + "\x00")
		}
	}
	texts := func(list []Requirement) []string {
		var all []string
		for _, r := range list {
			all = append(all, r.String())
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	add("requirement", texts(s.Requirements)...)
	add("constraint", texts(s.Constraints)...)
	add("python", s.Python)
	add("index", s.Index)
	add("extra", s.ExtraIndexes...)
	add("links", s.FindLinks...)
	if s.NoDeps {
		add("no-deps", "")
	}
	if s.Pre {
		add("pre", "")
	}
	if s.Universal {
		add("universal", "")
	}
	return b.String()
}

// Merge puts sets that ask for the same together, and orders them.
func Merge(sets []Set) []Set {
	at := map[string]int{}
	var all []Set
	for _, s := range sets {
		key := s.Key()
		i, there := at[key]
		if !there {
			at[key] = len(all)
			s.From = slices.Clone(s.From)
			all = append(all, s)
			continue
		}
		for _, from := range s.From {
			if !slices.Contains(all[i].From, from) {
				all[i].From = append(all[i].From, from)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Set) int { return cmp.Compare(a.Key(), b.Key()) })
	return all
}

// Unread is something that asks for packages and is not understood.
type Unread struct {
	Where  string `json:"where"` // TASK FILE:LINE
	Text   string `json:"text"`  // shortened
	Reason string `json:"reason"`
}
