package result

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"fence/pkg/internal/readfile"
)

// Job is DIR/result.json: Harbor's JobResult. Trials are in folders of their own.
type Job struct {
	ID         string     `json:"id"`
	StartedAt  time.Time  `json:"started_at"`
	UpdatedAt  time.Time  `json:"updated_at"`
	FinishedAt *time.Time `json:"finished_at"`
	Total      int        `json:"n_total_trials"`
	Stats      Stats      `json:"stats"`
}

// Stats are the counts of a job. Trials with a fault are completed, too.
type Stats struct {
	Completed int              `json:"n_completed_trials"`
	Errored   int              `json:"n_errored_trials"`
	Running   int              `json:"n_running_trials"`
	Pending   int              `json:"n_pending_trials"`
	Cancelled int              `json:"n_cancelled_trials"`
	Retries   int              `json:"n_retries"`
	Evals     map[string]*Eval `json:"evals"` // by agent__model__dataset

	InputTokens  *int     `json:"n_input_tokens"`
	CacheTokens  *int     `json:"n_cache_tokens"`
	OutputTokens *int     `json:"n_output_tokens"`
	CostUSD      *float64 `json:"cost_usd"`
}

// Eval is what one agent made of one dataset. Its figures are over the trials
// that have a reward: one that broke does not count as 0.
type Eval struct {
	Trials     int                            `json:"n_trials"`
	Errors     int                            `json:"n_errors"`
	Metrics    []map[string]float64           `json:"metrics"`
	PassAtK    map[int]float64                `json:"pass_at_k"`
	Rewards    map[string]map[string][]string `json:"reward_stats"`    // by name and value: trials
	Exceptions map[string][]string            `json:"exception_stats"` // by type: trials
}

// Tally is as much of a trial as its job's figures need.
type Tally struct {
	Name, Task, Eval string
	Rewards          map[string]float64 // nil after a fault
	Exceptions       []string
	Tries            int
	Input, Cache     *int
	Output           *int
	Cost             *float64
}

// TallyOf is what counts of a trial.
func TallyOf(t Trial) Tally {
	y := Tally{Name: t.TrialName, Task: t.Task, Tries: t.Tries, Eval: t.AgentInfo.Name}
	if m := t.AgentInfo.ModelInfo; m != nil {
		y.Eval += "__" + m.Name
	}
	source := t.Source
	if source == "" {
		source = "adhoc"
	}
	y.Eval += "__" + source
	if t.Reward != nil {
		y.Rewards = map[string]float64{"reward": *t.Reward}
		if t.VerifierResult != nil && len(t.VerifierResult.Rewards) > 0 {
			y.Rewards = t.VerifierResult.Rewards
		}
	}
	if t.ExceptionInfo != nil {
		y.Exceptions = append(y.Exceptions, t.ExceptionInfo.Type)
	}
	for _, s := range t.StepResults {
		if s.ExceptionInfo != nil {
			y.Exceptions = append(y.Exceptions, s.ExceptionInfo.Type)
		}
	}
	slices.Sort(y.Exceptions)
	y.Exceptions = slices.Compact(y.Exceptions)
	for _, u := range t.Used() {
		add(&y.Input, u.InputTokens)
		add(&y.Cache, u.CacheTokens)
		add(&y.Output, u.OutputTokens)
		add(&y.Cost, u.CostUSD)
	}
	return y
}

func add[T int | float64](sum **T, more *T) {
	if more == nil {
		return
	}
	if *sum == nil {
		*sum = new(T)
	}
	**sum += *more
}

// Count makes a job's figures out of its trials': of total there are to be,
// running are under way.
func Count(all []Tally, total, running int) Stats {
	s := Stats{Completed: len(all), Running: running, Pending: max(0, total-len(all)-running), Evals: map[string]*Eval{}}
	byEval := map[string][]Tally{}
	for _, y := range all {
		byEval[y.Eval] = append(byEval[y.Eval], y)
		if len(y.Exceptions) > 0 {
			s.Errored++
		}
		if slices.Contains(y.Exceptions, "CancelledError") {
			s.Cancelled++
		}
		s.Retries += max(0, y.Tries-1)
		add(&s.InputTokens, y.Input)
		add(&s.CacheTokens, y.Cache)
		add(&s.OutputTokens, y.Output)
		add(&s.CostUSD, y.Cost)
	}
	for name, some := range byEval {
		slices.SortFunc(some, func(a, b Tally) int { return strings.Compare(a.Name, b.Name) })
		s.Evals[name] = eval(some)
	}
	return s
}

func eval(some []Tally) *Eval {
	e := &Eval{Metrics: []map[string]float64{}, Rewards: map[string]map[string][]string{}, Exceptions: map[string][]string{}}
	for _, y := range some {
		for _, x := range y.Exceptions {
			e.Exceptions[x] = append(e.Exceptions[x], y.Name)
		}
		if len(y.Exceptions) > 0 {
			e.Errors++
		}
		if y.Rewards == nil {
			continue
		}
		e.Trials++
		for k, v := range y.Rewards {
			if e.Rewards[k] == nil {
				e.Rewards[k] = map[string][]string{}
			}
			value := strconv.FormatFloat(v, 'g', -1, 64)
			e.Rewards[k][value] = append(e.Rewards[k][value], y.Name)
		}
	}
	if e.Trials > 0 {
		e.Metrics = append(e.Metrics, means(some, e.Trials, slices.Sorted(maps.Keys(e.Rewards))))
	}
	e.PassAtK = passAtK(some)
	return e
}

// means is Harbor's default metric: by name of the reward, one that a trial
// lacks counting 0; "mean" if there is but one name.
func means(some []Tally, trials int, names []string) map[string]float64 {
	out := map[string]float64{}
	for _, k := range names {
		for _, y := range some {
			out[k] += y.Rewards[k]
		}
		out[k] /= float64(trials)
	}
	if len(names) == 1 {
		return map[string]float64{"mean": out[names[0]]}
	}
	return out
}

// passAtK is Harbor's: of rewards that are one number, 0 or 1, for k of 2, 4, 8,
// ... and 5, 10, ... up to the number of attempts that every task has.
func passAtK(some []Tally) map[int]float64 {
	out := map[int]float64{}
	type count struct{ n, solved int }
	tasks := map[string]*count{}
	for _, y := range some {
		if y.Rewards == nil {
			continue
		}
		r := One(y.Rewards)
		if len(y.Rewards) != 1 || r != 0 && r != 1 {
			return out
		}
		if tasks[y.Task] == nil {
			tasks[y.Task] = &count{}
		}
		tasks[y.Task].n++
		tasks[y.Task].solved += int(r)
	}
	if len(tasks) == 0 {
		return out
	}
	least := slices.MinFunc(slices.Collect(maps.Values(tasks)), func(a, b *count) int { return a.n - b.n }).n
	at := func(k int) {
		for _, name := range slices.Sorted(maps.Keys(tasks)) { // a sum in another order is another
			out[k] += PassAt(tasks[name].n, tasks[name].solved, k)
		}
		out[k] /= float64(len(tasks))
	}
	for _, k := range Ks(least) {
		at(k)
	}
	return out
}

// Ks are the numbers of attempts for which Harbor has a pass@k: the powers of two
// and the multiples of five, from 2 up to most.
func Ks(most int) (all []int) {
	for k := 2; k <= most; k++ {
		if k&(k-1) == 0 || k%5 == 0 {
			all = append(all, k)
		}
	}
	return all
}

// PassAt is the unbiased estimate of the chance that one of k attempts solves a
// task that so many of n solved (Chen et al. 2021, arXiv:2107.03374).
func PassAt(n, solved, k int) float64 {
	if n-solved < k {
		return 1
	}
	miss := 1.0
	for i := range k {
		miss *= float64(n-solved-i) / float64(n-i)
	}
	return 1 - miss
}

// ReadJob reads a job's config.json or result.json. Fields that are not in v
// are passed over: Harbor's newer versions have more.
func ReadJob(path string, v any) error {
	data, err := readfile.Regular(path, limit)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}
