package report

import (
	"fmt"
	"math"
	"strconv"

	"fence/pkg/result"
)

func rates(trials []Trial) (r Rates) {
	for _, t := range trials {
		r.Harbor.Of++
		switch {
		case Kind(t) != "fault":
			r.Verdicts.Of++
			r.Verdicts.Sum += *t.Reward
			r.AgentZero.Of++
		case Why(t).Cause == "agent":
			r.AgentZero.Of++
		}
	}
	r.AgentZero.Sum, r.Harbor.Sum = r.Verdicts.Sum, r.Verdicts.Sum
	return r
}

// String is the rate as it was counted, and in decimals: "10/12 (0.833)".
func (r Rate) String() string {
	if r.Of == 0 {
		return "none"
	}
	return fmt.Sprintf("%s/%d (%.3f)", number(r.Sum), r.Of, r.Sum/float64(r.Of))
}

// number is a sum of rewards without the noise of adding them.
func number(f float64) string { return strconv.FormatFloat(math.Round(f*1e6)/1e6, 'f', -1, 64) }

// passAt is of the trials of one group. An attempt without a verdict is none,
// unless the agent broke it: that one has not solved the task.
func passAt(trials []Trial) []PassAt {
	out := []PassAt{}
	type tally struct{ n, c int }
	var tasks []tally
	attempts, most := 0, 0
	for _, lot := range split(trials, taskOf) {
		var one tally
		attempts = max(attempts, len(lot))
		for _, t := range lot {
			switch k := Kind(t); {
			case k == "solved":
				one.c++
				fallthrough
			case k != "fault" || Why(t).Cause == "agent":
				one.n++
			}
		}
		most = max(most, one.n)
		tasks = append(tasks, one)
	}
	if attempts < 2 || most == 0 {
		return out
	}
	for _, k := range append([]int{1}, result.Ks(most)...) {
		p := PassAt{K: k}
		for _, t := range tasks {
			if t.n >= k {
				p.Tasks++
				p.Value += result.PassAt(t.n, t.c, k)
			}
		}
		p.Value /= float64(p.Tasks)
		out = append(out, p)
	}
	return out
}
