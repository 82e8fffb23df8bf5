package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fence/pkg/result"
)

// Comparison is what one agent's verdicts were in one run and are in another.
type Comparison struct {
	From   string              `json:"from"` // run
	To     string              `json:"to"`
	Agent  string              `json:"agent"` // "terminus model-a > terminus model-b" where they differ
	Same   int                 `json:"same"`
	Only   int                 `json:"only_from"` // tasks that To has not
	New    int                 `json:"only_to"`
	Better int                 `json:"better"`
	Worse  int                 `json:"worse"`
	Tasks  []Change            `json:"tasks"`
	Files  []string            `json:"other_files"` // of To's tasks whose files are not those of From's
	Differ []result.Difference `json:"settings"`    // that are not the same
}

// Change is a task whose verdict is another now.
type Change struct {
	Dataset string `json:"dataset"`
	Task    string `json:"task"`
	Was     string `json:"was"` // "solved", "partly", "failed", a fault's class, or with attempts "2/4 solved"
	Now     string `json:"now"`
}

// compare pairs the groups of two runs: those of one name, and where each run
// has only one, these two, if both are models'.
func compare(from, to Input) (out []Comparison) {
	a, b := groups(from.Trials), groups(to.Trials)
	label := func(lot []Trial) string {
		return strings.TrimSpace(lot[0].AgentInfo.Name + " " + ModelOf(lot[0]))
	}
	for _, was := range a {
		for _, now := range b {
			if label(was) != label(now) && (len(a) > 1 || len(b) > 1 || scripted(was[0]) || scripted(now[0])) {
				continue
			}
			c := pair(was, now)
			c.From, c.To, c.Agent = from.Name, to.Name, label(was)
			c.Differ = list(result.Differs(was[0].Settings, now[0].Settings))
			if label(now) != c.Agent {
				c.Agent += " > " + label(now)
			}
			out = append(out, c)
		}
	}
	return out
}

func pair(from, to []Trial) Comparison {
	c := Comparison{Tasks: []Change{}, Files: []string{}}
	was, now := byTask(from), byTask(to)
	for _, key := range slices.Sorted(maps.Keys(was)) {
		old, fresh := was[key], now[key]
		if fresh != nil && old[0].TaskChecksum != fresh[0].TaskChecksum {
			c.Files = append(c.Files, fresh[0].Task)
		}
		switch {
		case fresh == nil:
			c.Only++
			continue
		case verdict(old) == verdict(fresh), len(old) != len(fresh) && each(old) != "" && each(old) == each(fresh):
			c.Same++
			continue
		}
		// Better and worse are said only of what was judged both times.
		if a, b := rates(old).Verdicts, rates(fresh).Verdicts; a.Of > 0 && b.Of > 0 {
			switch cmp.Compare(b.Sum/float64(b.Of), a.Sum/float64(a.Of)) {
			case 1:
				c.Better++
			case -1:
				c.Worse++
			}
		}
		set, task, _ := strings.Cut(key, "\x00")
		c.Tasks = append(c.Tasks, Change{set, task, verdict(old), verdict(fresh)})
	}
	for key := range now {
		if was[key] == nil {
			c.New++
		}
	}
	return c
}

func byTask(trials []Trial) map[string][]Trial {
	out := map[string][]Trial{}
	for _, lot := range split(trials, taskOf) {
		out[taskOf(lot[0])] = lot
	}
	return out
}

func word(t Trial) string {
	switch k := Kind(t); k {
	case "fault":
		return Why(t).Class
	case "partly":
		return number(*t.Reward)
	default:
		return k
	}
}

// each is what came of every attempt at a task, "" if it was not the same.
func each(lot []Trial) string {
	for _, t := range lot {
		if word(t) != word(lot[0]) {
			return ""
		}
	}
	return word(lot[0])
}

// verdict is what came of all attempts at a task.
func verdict(lot []Trial) string {
	if len(lot) == 1 {
		return word(lot[0])
	}
	judged, solved := 0, 0
	for _, t := range lot {
		if Kind(t) != "fault" {
			judged++
		}
		if Kind(t) == "solved" {
			solved++
		}
	}
	if judged == 0 {
		return word(lot[0])
	}
	return fmt.Sprintf("%d/%d solved", solved, judged)
}
