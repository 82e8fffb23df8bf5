package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fence/pkg/internal/text"
)

// Dataset is a row of the table of a validation.
type Dataset struct {
	Name   string   `json:"name"`
	Tasks  int      `json:"tasks"`
	Images Part     `json:"images"` // distinct ones
	Oracle Cell     `json:"oracle"` // tasks with an image and a solution
	Nop    Cell     `json:"nop"`    // tasks with an image
	Fit    []string `json:"fit"`    // folders of the tasks whose oracles all passed, and whose no-ops were all rejected
	Notes  []string `json:"notes"`  // the likely causes, with counts
	Wrong  []Wrong  `json:"wrong"`
}

// Wrong is an oracle that failed or a no-op that was rewarded.
type Wrong struct {
	Trial  string  `json:"trial"`
	Agent  string  `json:"agent"`
	Reward float64 `json:"reward"`
	Likely string  `json:"likely"` // cause, "" without a guess
}

// Part is so many of so many.
type Part struct {
	N  int `json:"n"`
	Of int `json:"of"`
}

// Cell is a Part, if there is one.
type Cell struct {
	State string `json:"state"` // "ran"; "n/a": the dataset ships no solution; "not run"
	N     int    `json:"n"`
	Of    int    `json:"of"`
}

// String is the cell as the table has it.
func (c Cell) String() string {
	if c.State != "ran" {
		return c.State
	}
	return fmt.Sprintf("%d/%d", c.N, c.Of)
}

// The agents whose result says something of the task.
const oracle, nop = "oracle", "nop"

func scripted(t Trial) bool { return t.AgentInfo.Name == oracle || t.AgentInfo.Name == nop }

// noSolution says that there is nothing for an oracle to run.
func noSolution(t Trial) bool { return Kind(t) == "fault" && Why(t).Class == "solution_missing" }

func noImage(t Trial) bool { return Kind(t) == "fault" && Why(t).Phase == "build" }

// Answer is the exit code of a validation: 1 if an oracle failed or a nop
// passed, else 3 if of some trial it cannot be told or there is none, else 0.
// Of a task that ships no solution nothing is asked of the oracle.
func Answer(trials []Trial) int {
	asked, open := 0, 0
	for _, t := range trials {
		switch {
		case t.AgentInfo.Name == oracle && noSolution(t):
			continue
		case Kind(t) == "fault":
			open++
		case t.AgentInfo.Name == oracle && Kind(t) != "solved", t.AgentInfo.Name == nop && Kind(t) == "solved":
			return 1
		}
		asked++
	}
	if open > 0 || asked == 0 {
		return 3
	}
	return 0
}

// datasets is the table of a validation, in the order of names: empty where
// no scripted agent ran.
func datasets(trials []Trial) []Dataset {
	out := []Dataset{}
	some := slices.DeleteFunc(slices.Clone(trials), func(t Trial) bool { return !scripted(t) })
	for _, lot := range split(some, DatasetOf) {
		out = append(out, row(lot))
	}
	return out
}

func row(lot []Trial) Dataset {
	d := Dataset{Name: DatasetOf(lot[0]), Oracle: Cell{State: "not run"}, Nop: Cell{State: "not run"}, Fit: []string{}, Wrong: []Wrong{}}
	built, all, tasks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var n notes
	for _, t := range lot {
		// Who has no image has the path where it should be, or one of its own.
		image := cmp.Or(t.Image, taskOf(t))
		all[image], tasks[taskOf(t)] = true, true
		if !noImage(t) {
			built[image] = true
		}
		if k := Kind(t); t.AgentInfo.Name == oracle && (k == "failed" || k == "partly") || t.AgentInfo.Name == nop && (k == "solved" || k == "partly") {
			d.Wrong = append(d.Wrong, Wrong{t.path(), t.AgentInfo.Name, *t.Reward, Likely(t)})
		}
	}
	slices.SortFunc(d.Wrong, func(a, b Wrong) int {
		return cmp.Or(-cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Trial, b.Trial))
	})
	for _, task := range split(lot, taskOf) {
		if fit(task) {
			d.Fit = append(d.Fit, task[0].Task)
		}
		for _, attempts := range groups(task) {
			n.task(attempts)
			if slices.ContainsFunc(attempts, noImage) {
				continue
			}
			switch attempts[0].AgentInfo.Name {
			case oracle:
				if slices.ContainsFunc(attempts, noSolution) {
					if d.Oracle.State == "not run" {
						d.Oracle.State = "n/a"
					}
					continue
				}
				d.Oracle.add(attempts, func(t Trial) bool { return Kind(t) == "solved" })
			case nop:
				d.Nop.add(attempts, func(t Trial) bool { return Kind(t) == "failed" || Kind(t) == "partly" })
			}
		}
	}
	d.Tasks, d.Images = len(tasks), Part{len(built), len(all)}
	d.Notes = n.lines()
	if d.Oracle.State == "n/a" {
		n.unsolved = 0 // the cell says it
		d.Notes = n.lines()
	}
	return d
}

// fit says whether a task's trials show that it can be done, and not by doing
// nothing.
func fit(task []Trial) bool {
	ran := map[string]bool{}
	for _, t := range task {
		k, agent := Kind(t), t.AgentInfo.Name
		if agent == oracle && k != "solved" || agent == nop && k != "failed" && k != "partly" {
			return false
		}
		ran[agent] = true
	}
	return ran[oracle] && ran[nop]
}

// add counts a task: all its attempts must be good.
func (c *Cell) add(attempts []Trial, good func(Trial) bool) {
	c.State = "ran"
	c.Of++
	if !slices.ContainsFunc(attempts, func(t Trial) bool { return !good(t) }) {
		c.N++
	}
}

// notes gathers why cells are not full.
type notes struct {
	said     map[[2]string]map[string]bool // what happened and why: to which tasks or images
	message  map[[2]string]string          // of the faults, if it is the same for all
	unsolved int                           // tasks without a solution
}

func (n *notes) add(what, why, whom string) {
	if n.said == nil {
		n.said = map[[2]string]map[string]bool{}
	}
	if n.said[[2]string{what, why}] == nil {
		n.said[[2]string{what, why}] = map[string]bool{}
	}
	n.said[[2]string{what, why}][whom] = true
}

// words keeps what faults say as long as they say the same.
func (n *notes) words(key [2]string, message string) {
	if n.message == nil {
		n.message = map[[2]string]string{}
	}
	if was, ok := n.message[key]; ok && was != message {
		message = ""
	}
	n.message[key] = message
}

// What happened, in the order of the notes: of one, and of several.
var happened = [][2]string{
	{"build failed", "builds failed"},
	{"task could not start", "tasks could not start"},
	{"task could not be set up", "tasks could not be set up"},
	{"trial broke while the agent worked", "trials broke while the agent worked"},
	{"task got no verdict", "tasks got no verdict"},
	{"task was not isolated", "tasks were not isolated"},
	{"task was stopped", "tasks were stopped"},
	{"image is not there", "images are not there"}, // nobody has tried to build them
	{"oracle failed", "oracles failed"},
	{"oracle passed in part", "oracles passed in part"},
	{"task does not give the same verdict each time", "tasks do not give the same verdict each time"},
	{"task passed with no action", "tasks passed with no action"},
	{"task gives part of the reward for no action", "tasks give part of the reward for no action"},
	{"oracle changed what the verifier ran (tainted)", "oracles changed what the verifier ran (tainted)"},
}

// ofPhase is the index in happened of a fault.
var ofPhase = map[string]int{"build": 0, "start": 1, "setup": 2, "agent": 3, "verify": 4, "isolation": 5, "stopped": 6}

// task notes all attempts of one agent at one task.
func (n *notes) task(attempts []Trial) {
	verdicts := map[string]bool{}
	agent, task := attempts[0].AgentInfo.Name, taskOf(attempts[0])
	for _, t := range attempts {
		k := Kind(t)
		if k != "fault" {
			verdicts[k] = true
		}
		switch {
		case agent == oracle && noSolution(t):
			n.unsolved++
		case k == "fault":
			f := Why(t)
			whom := task
			if f.Phase == "build" {
				whom = cmp.Or(t.Image, task)
			}
			i, ok := ofPhase[f.Phase]
			if !ok {
				i = ofPhase["verify"]
			}
			if f.Phase == "build" && f.Cause == "infra" {
				i = 7
			}
			why := Likely(t)
			n.add(happened[i][0], cmp.Or(why, f.Class), whom)
			if why == "" {
				n.words([2]string{happened[i][0], f.Class}, f.Message)
			}
		case agent == oracle && k == "failed":
			n.add("oracle failed", Likely(t), task)
		case agent == oracle && k == "partly":
			n.add("oracle passed in part", Likely(t), task)
		case agent == nop && k == "solved":
			n.add("task passed with no action", "", task)
		case agent == nop && k == "partly":
			n.add("task gives part of the reward for no action", "", task)
		}
		if agent == oracle && len(t.Tainted) > 0 {
			n.add("oracle changed what the verifier ran (tainted)", t.Tainted[0].Path, task)
		}
	}
	if len(verdicts) > 1 {
		n.add("task does not give the same verdict each time", agent, task)
	}
}

func (n *notes) lines() []string {
	out := []string{}
	for _, h := range happened {
		var whys [][2]string
		for k := range maps.Keys(n.said) {
			if k[0] == h[0] {
				whys = append(whys, k)
			}
		}
		slices.SortFunc(whys, func(a, b [2]string) int {
			return cmp.Or(cmp.Compare(len(n.said[b]), len(n.said[a])), strings.Compare(a[1], b[1]))
		})
		for _, k := range whys {
			line := times(len(n.said[k]), h[0], h[1])
			if k[1] != "" {
				line += ": " + k[1]
			}
			if m := n.message[k]; m != "" {
				line += ": " + brief(m)
			}
			out = append(out, line)
		}
	}
	if n.unsolved > 0 {
		out = append(out, times(n.unsolved, "task ships no solution", "tasks ship no solution"))
	}
	return out
}

// brief is a message without its end, where that is far: whole words, unless
// they are long, as paths are.
func brief(s string) string {
	const most = 70
	line := text.Fold(text.Printable(s), most)
	if len(line) == 1 {
		return line[0]
	}
	if len(line[0]) < most/2 {
		all := []rune(text.Printable(s))
		return string(all[:min(most, len(all))]) + "..."
	}
	return line[0] + " ..."
}

func times(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
