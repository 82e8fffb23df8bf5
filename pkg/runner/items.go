package runner

import (
	"cmp"
	"slices"
	"time"

	"fence/pkg/job"
	"fence/pkg/result"
	"fence/pkg/spec"
)

// Item is one trial that is to be.
type Item struct {
	Spec    spec.Spec
	Agent   result.AgentConfig
	Attempt int    // 1..k
	Name    string // of the trial, and of its folder in Options.Out

	Tries int // this try's number, from 1
	// Phase says, for people, what the trial is about to do.
	Phase func(string)
}

// Items are attempts of each agent at each task, sorted, so that everybody who
// has the same tasks has the same list.
func Items(specs []spec.Spec, agents []result.AgentConfig, attempts int) []Item {
	var all []Item
	seen := map[string]bool{}
	for attempt := 1; attempt <= attempts; attempt++ {
		for _, s := range specs {
			for _, a := range agents {
				if a.Kwargs == nil {
					a.Kwargs = map[string]any{}
				}
				name := result.TrialName(s.Task.Name, s.Task.Dir, who(a), attempt)
				if !seen[name] { // a task that was named twice is one
					all = append(all, Item{Spec: s, Agent: a, Attempt: attempt, Name: name})
				}
				seen[name] = true
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Spec.Task.Dir, b.Spec.Task.Dir))
	})
	return all
}

// who is an agent with its model.
func who(a result.AgentConfig) string {
	if a.ModelName != nil {
		return a.Name + " " + *a.ModelName
	}
	return a.Name
}

// Share is a shard's part of all items: every so manieth attempt at a task, with
// all agents. The shards of a job have each item once.
func Share(all []Item, s job.Shard) (mine []Item) {
	if s.Of <= 1 {
		return all
	}
	nth := -1
	for n, i := range all {
		if n == 0 || i.Attempt != all[n-1].Attempt || i.Spec.Task.Dir != all[n-1].Spec.Task.Dir {
			nth++
		}
		if nth%s.Of == s.Index-1 {
			mine = append(mine, i)
		}
	}
	return mine
}

// patience is how long at most one waits before the nth retry.
func patience(nth int) time.Duration {
	return min(5*time.Second<<min(nth-1, 10), 2*time.Minute)
}

// lasting are classes of faults that are the same the next time: something has
// to be done first.
var lasting = []string{"apptainer_missing", "image_missing", "image_invalid", "gate_failed", "not_isolated", "solution_missing", "tainted", result.OutFull,
	"model_auth", "model_refused"}

// passes says whether what failed may pass by itself.
func passes(f *result.Fault) bool { return open(f) && !slices.Contains(lasting, f.Class) }

// open says whether a trial that ended in a fault is not done: it is neither the
// task's nor the agent's doing, and a later run makes another try, for something
// may have been done about it.
func open(f *result.Fault) bool {
	return f != nil && (f.Cause == "infra" || f.Cause == "unknown")
}
