package verdict

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// How the rewards of a task with several steps become the task's.
const (
	Mean  = "mean"  // of each name, over the steps that have rewards
	Final = "final" // those of the last step that was begun
)

// Combine puts the rewards of the steps that were begun together, in their
// order; nil is a step without rewards. A name that a step lacks counts there
// as 0 in the mean. The result is nil if there is nothing to take: no step has
// rewards, or the final one has none.
func Combine(strategy string, steps []map[string]float64) (map[string]float64, error) {
	switch strategy {
	case Final:
		if len(steps) == 0 || len(steps[len(steps)-1]) == 0 {
			return nil, nil
		}
		return maps.Clone(steps[len(steps)-1]), nil
	case Mean:
	default:
		return nil, fmt.Errorf("multi_step_reward_strategy is %q: it must be %q or %q", strategy, Mean, Final)
	}
	n := 0.0
	names := map[string]bool{}
	for _, s := range steps {
		if len(s) > 0 {
			n++
		}
		for k := range s {
			names[k] = true
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	means := map[string]float64{}
	for k := range names {
		sum, parts := 0.0, 0.0
		for _, s := range steps {
			sum += s[k]
			parts += s[k] / n
		}
		// As Harbor rounds it; where the sum is larger than any number, the mean
		// is not.
		if means[k] = sum / n; math.IsInf(sum, 0) || math.IsNaN(sum) {
			means[k] = parts
		}
	}
	return means, nil
}

// Short says which of a step's min_reward was not reached, in one line; "" if
// all were and the next step may begin. A reward that is not there is less than
// any.
func Short(rewards, least map[string]float64) string {
	var missed []string
	for _, k := range slices.Sorted(maps.Keys(least)) {
		got, ok := rewards[k]
		if !ok {
			got = math.Inf(-1)
		}
		if got >= least[k] {
			continue
		}
		was := "missing"
		if ok {
			was = strconv.FormatFloat(got, 'g', -1, 64)
		}
		missed = append(missed, fmt.Sprintf("%s is %s, less than %v", quote(k), was, least[k]))
	}
	return strings.Join(missed, "; ")
}
