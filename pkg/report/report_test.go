package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"fence/pkg/result"
	"fence/test/clitest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// trial makes a record. verdict is a reward, or a fault as PHASE CLASS CAUSE.
func trial(set, task, agent, verdict string, more ...func(*Trial)) Trial {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	t := Trial{Trial: result.Trial{Schema: result.Schema, TaskName: task, TrialName: task + "__" + agent, Source: set, Task: "/data/" + set + "/" + task, Attempt: 1, Tries: 1,
		AgentInfo: result.AgentInfo{Name: agent}, StartedAt: begin, FinishedAt: begin.Add(12 * time.Second), Agent: result.AgentEnd{Stop: "done"}, Image: "/cache/sif/" + set + "-" + task + ".sif"}}
	var r float64
	if _, err := fmt.Sscan(verdict, &r); err == nil {
		t.Reward = &r
	} else {
		f := strings.Fields(verdict)
		t.Fault = &result.Fault{Phase: f[0], Class: f[1], Cause: f[2], Message: strings.Join(f[3:], " ")}
	}
	for _, m := range more {
		m(&t)
	}
	return t
}

func image(path string) func(*Trial)   { return func(t *Trial) { t.Image = path } }
func printed(text string) func(*Trial) { return func(t *Trial) { t.Verifier = text } }
func attempt(n int) func(*Trial) {
	return func(t *Trial) { t.Attempt, t.TrialName = n, fmt.Sprintf("%s%d", t.TrialName, n) }
}
func model(name string) func(*Trial) {
	return func(t *Trial) { t.AgentInfo.ModelInfo = &result.ModelInfo{Name: name} }
}
func held(network, asked string, opened ...result.Opened) func(*Trial) {
	return func(t *Trial) {
		t.Isolation = &result.Isolation{Agent: result.Domain{Policy: "strict", Form: "namespace", Network: network}, Verifier: result.Domain{Policy: "verifier", Form: "namespace", Network: network},
			Below: true, Gate: "pass", Asked: asked, Limits: "watchdog", Opened: opened}
	}
}

// guide are records of the guide's runs: the table of four tasks per dataset.
func guide() (all []Trial) {
	both := func(set, task string, o, n string, more ...func(*Trial)) {
		all = append(all, trial(set, task, "oracle", o, append(more, held("none", "public"))...), trial(set, task, "nop", n, held("none", "public"), more[len(more)-1]))
	}
	own := func(*Trial) {}
	for i := range 4 {
		task := fmt.Sprintf("task_%d", i)
		both("Endless Terminals", task, "1", "0", own)
		both("Nemotron Terminal (easy)", task, "1", "0", image("/cache/sif/nemotron.sif"))
		both("InferredBugs", task, "setup solution_missing task", "0", image("/cache/sif/inferred.sif"))
		switch {
		case i < 2:
			both("Recursive Task Synthesis", task, "1", "0", own)
			both("OpenThoughts-TBLite", task, "1", map[int]string{0: "0", 1: "1"}[i], own)
		default:
			both("Recursive Task Synthesis", task, "build image_missing task step: npm ERR! 404 'left-padd@1.0.0' is not in this registry", "build image_missing task step: npm ERR! 404 'left-padd@1.0.0' is not in this registry", own)
			both("OpenThoughts-TBLite", task, "0", "0", printed("error: No interpreter found for Python 3.13 in managed installations or search path"), own)
		}
		both("SWE-Gym", task, "build image_missing task the wheels folder is not there", "build image_missing task the wheels folder is not there", image("/cache/sif/swegym.sif"))
		both("Terminal-Bench 2.1", task, map[bool]string{true: "1", false: "0"}[i == 0], "0", printed("error: No interpreter found for Python 3.13 in managed installations or search path"), own)
	}
	return all
}

// rollouts are twelve trials of a model as the guide has them, and a second
// run of which some are different.
func rollouts() (before, after []Trial) {
	m := model("nemotron-30b")
	in, out := 1000, 50
	tokens := func(t *Trial) {
		t.AgentResult = &result.AgentResult{InputTokens: &in, OutputTokens: &out}
		t.Agent.Turns = 7
	}
	for i := range 12 {
		verdict, then := "1", "1"
		switch i {
		case 3:
			verdict, then = "0", "1"
		case 5:
			then = "agent memory_limit agent 2.1G of 2.0G"
		case 7:
			verdict = "setup setup_failed task bash: line 1: tmux: command not found"
		case 9:
			then = "0.5"
		}
		task := fmt.Sprintf("task_%02d", i)
		hint := func(t *Trial) {
			if t.Fault != nil {
				t.Fault.Hint = "build the images with --require tmux"
			}
		}
		before = append(before, trial("Endless Terminals", task, "terminus", verdict, m, tokens, hint, held("loopback", "public", result.Opened{What: "read /data/wheels", Why: "offline pip"})))
		after = append(after, trial("Endless Terminals", task, "terminus", then, m, tokens, held("none", "public")))
	}
	for i := range after {
		before[i].Settings, after[i].Settings = []result.Setting{{Name: "--max-turns", Value: "12"}}, []result.Setting{{Name: "--max-turns", Value: "4"}, {Name: "--temperature", Value: "0"}}
	}
	before[6].TaskChecksum = "mended"
	before[0].Agent.Stop = "turn_cap"
	none := 0
	before[4].AgentResult, before[4].StepResults = nil, []result.StepResult{ // of a task with steps, theirs
		{AgentResult: &result.AgentResult{InputTokens: &in, OutputTokens: &none, Metadata: map[string]any{MetFence: 1.0}}},
		{AgentResult: &result.AgentResult{InputTokens: &none, OutputTokens: &out, Metadata: map[string]any{MetFence: 2.0}}}, {},
	}
	before[5].AgentResult = &result.AgentResult{InputTokens: &in, OutputTokens: &out, Metadata: map[string]any{MetFence: 0.0, "unread_replies": 3.0, "truncated_replies": 1.0}}
	for i := range before { // of two jobs of an array, on two nodes
		before[i].Node = fmt.Sprintf("gpu%02d", i%2+1)
		before[i].Isolation.Host = &result.Host{User: "ada, uid 1000", Job: fmt.Sprintf("77_%d", i%2+1), Rollout: "v1.0.0", Apptainer: "1.4.2", Kernel: "6.12.0", Landlock: 6, Server: "unix:/tmp/x/model.sock"}
	}
	before[1].Tainted = []result.Taint{{Path: "/usr/bin/python3", Why: "executed"}}
	before[2].FinishedAt = before[2].StartedAt.Add(400 * time.Second)
	return before, after[:11]
}

// An image that is not there is no build that failed: nobody has tried.
func TestNotes_NoImage(t *testing.T) {
	for cause, want := range map[string]string{"infra": "1 image is not there: image_missing: not in C", "task": "1 build failed: image_missing: not in C"} {
		if got := row([]Trial{trial("d", "t", nop, "build image_missing "+cause+" not in C")}).Notes; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", cause, got, want)
		}
	}
}

// Each is written as text, Markdown and JSON.
func TestGolden(t *testing.T) {
	before, after := rollouts()
	for name, runs := range map[string][]Input{
		"guide":   {{Name: "jobs/validate", Trials: guide(), Skipped: []result.Skipped{{Path: "/data/x/untested", Reason: "it has no tests/test.sh"}}}},
		"model":   {{Name: "jobs/a", Trials: before, Unfinished: []string{"task_12__Ab3dE6g"}, NotBegun: 7}},
		"compare": {{Name: "jobs/a", Trials: before}, {Name: "jobs/b", Trials: after, Unread: []string{"jobs/b/x/result.json: not a record of a trial"}}},
		"none":    {{Name: "jobs/empty", Unfinished: []string{"a", "b"}}},
	} {
		r := Summarise(runs...)
		var text, markdown, record bytes.Buffer
		Text(&text, Blocks(r), 80)
		Markdown(&markdown, Blocks(r))
		enc := json.NewEncoder(&record)
		enc.SetIndent("", " ")
		if err := enc.Encode(r); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", text.Bytes())
		golden(t, name+".md", markdown.Bytes())
		golden(t, name+".json", record.Bytes())
		wide(t, text.String(), 80)
		if err := clitest.Validate(t, "rollout.report", record.Bytes()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if bytes.Contains(record.Bytes(), []byte("null")) {
			t.Errorf("%s: a null", name)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got) {
		t.Errorf("%s is not as before (%v); -update writes it anew:\n%s", path, err, got)
	}
}

func wide(t *testing.T, text string, columns int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestSchema_NamesEveryField(t *testing.T) {
	clitest.NamesEveryField(t, "rollout.report", reflect.TypeFor[Report]())
}

// The rows of the guide's table, by hand.
func TestGuidesTable(t *testing.T) {
	want := map[string][4]string{
		"Endless Terminals":        {"4/4", "4/4", "4/4", ""},
		"Nemotron Terminal (easy)": {"1/1", "4/4", "4/4", ""},
		"InferredBugs":             {"1/1", "n/a", "4/4", ""},
		"Recursive Task Synthesis": {"2/4", "2/2", "2/2", "2 builds failed: npm finds no package left-padd@1.0.0"},
		"SWE-Gym":                  {"0/1", "not run", "not run", "1 build failed: image_missing: the wheels folder is not there"},
		"OpenThoughts-TBLite":      {"4/4", "2/4", "3/4", "2 oracles failed: graders need Python 3.13 (sifbuild wheelhouse --grader); 1 task passed with no action"},
		"Terminal-Bench 2.1":       {"4/4", "1/4", "4/4", "3 oracles failed: graders need Python 3.13 (sifbuild wheelhouse --grader)"},
	}
	for _, d := range Summarise(Input{Trials: guide()}).Runs[0].Datasets {
		got := [4]string{fmt.Sprintf("%d/%d", d.Images.N, d.Images.Of), d.Oracle.String(), d.Nop.String(), strings.Join(d.Notes, "; ")}
		if got != want[d.Name] {
			t.Errorf("%s: %q, want %q", d.Name, got, want[d.Name])
		}
		delete(want, d.Name)
	}
	if len(want) > 0 {
		t.Errorf("no row for %v", want)
	}
}

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		trials []Trial
		want   int
	}{
		{"all as it must be", []Trial{trial("d", "a", "oracle", "1"), trial("d", "a", "nop", "0")}, 0},
		{"no solution is not a no", []Trial{trial("d", "a", "oracle", "setup solution_missing task"), trial("d", "a", "nop", "0")}, 0},
		{"an oracle failed", []Trial{trial("d", "a", "oracle", "0"), trial("d", "a", "nop", "0")}, 1},
		{"and in part", []Trial{trial("d", "a", "oracle", "0.9"), trial("d", "a", "nop", "0")}, 1},
		{"a nop passed", []Trial{trial("d", "a", "oracle", "1"), trial("d", "a", "nop", "1")}, 1},
		{"a nop has part of the reward", []Trial{trial("d", "a", "oracle", "1"), trial("d", "a", "nop", "0.2")}, 0},
		{"a fault", []Trial{trial("d", "a", "oracle", "1"), trial("d", "a", "nop", "start start_failed infra")}, 3},
		{"no before a fault", []Trial{trial("d", "a", "oracle", "start start_failed infra"), trial("d", "a", "nop", "1")}, 1},
		{"no image", []Trial{trial("d", "a", "oracle", "build image_missing task")}, 3},
		{"no trial", nil, 3},
		{"nothing to ask", []Trial{trial("d", "a", "oracle", "setup solution_missing task")}, 3},
	} {
		if got := Answer(c.trials); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// Rates are over what they say, and a record that has a reward and a fault, or
// neither, is no verdict.
func TestRates(t *testing.T) {
	lot := []Trial{trial("d", "a", "terminus", "1"), trial("d", "b", "terminus", "0.5"), trial("d", "c", "terminus", "0"),
		trial("d", "e", "terminus", "agent memory_limit agent"), trial("d", "f", "terminus", "start start_failed infra")}
	both := trial("d", "g", "terminus", "1", func(t *Trial) { t.Fault = &result.Fault{Phase: "verify", Class: "tainted", Cause: "agent"} })
	neither := trial("d", "h", "terminus", "1", func(t *Trial) { t.Reward = nil })
	got := rates(append(lot, both, neither))
	if want := (Rates{Verdicts: Rate{1.5, 3}, AgentZero: Rate{1.5, 5}, Harbor: Rate{1.5, 7}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if s := got.Verdicts.String(); s != "1.5/3 (0.500)" {
		t.Error(s)
	}
	if s := (Rate{0.1 + 0.2, 3}).String(); s != "0.3/3 (0.100)" {
		t.Error(s)
	}
	if s := (Rate{}).String(); s != "none" {
		t.Error(s)
	}
}

// The estimator is the share of the subsets of k attempts that hold a solved one.
func TestPassAt_CountsSubsets(t *testing.T) {
	for n := 1; n <= 8; n++ {
		for c := 0; c <= n; c++ {
			for k := 1; k <= n; k++ {
				all, good := 0, 0
				for set := range 1 << n {
					if bits(set) == k {
						all++
						if set&(1<<c-1) != 0 {
							good++
						}
					}
				}
				if got, want := result.PassAt(n, c, k), float64(good)/float64(all); math.Abs(got-want) > 1e-12 {
					t.Errorf("n %d, c %d, k %d: %g, want %g", n, c, k, got, want)
				}
			}
		}
	}
}

func bits(x int) (n int) {
	for ; x > 0; x &= x - 1 {
		n++
	}
	return n
}

func TestPassAt(t *testing.T) {
	var lot []Trial
	for i := range 4 { // a: 2 of 4; b: 0 of 3 and one of infra; c: 1 of 2, one broken by the agent
		lot = append(lot, trial("d", "a", "terminus", []string{"1", "0", "1", "0.5"}[i], attempt(i+1)))
		lot = append(lot, trial("d", "b", "terminus", []string{"0", "0", "0", "start start_failed infra"}[i], attempt(i+1)))
	}
	lot = append(lot, trial("d", "c", "terminus", "1", attempt(1)), trial("d", "c", "terminus", "agent memory_limit agent", attempt(2)))
	got := passAt(lot)
	want := []PassAt{{1, (0.5 + 0 + 0.5) / 3, 3}, {2, (1 - 1.0/6 + 0 + 1) / 3, 3}, {4, 1, 1}}
	if !slices.EqualFunc(got, want, func(a, b PassAt) bool {
		return a.K == b.K && a.Tasks == b.Tasks && math.Abs(a.Value-b.Value) < 1e-12
	}) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := passAt(lot[:2]); len(got) != 0 {
		t.Errorf("one attempt each: %v", got)
	}
}

// Two runs of three tasks, five attempts each, counted by hand. Before: a is
// solved once, b always, c never, and one of its attempts is lost. After: a three
// times, b four times, and of c the model broke one.
func TestByHand(t *testing.T) {
	lot := func(verdicts map[string]string) (all []Trial) {
		for task, each := range verdicts {
			for i, c := range each {
				all = append(all, trial("d", task, "terminus", map[rune]string{'1': "1", '0': "0", 'i': "start start_failed infra", 'm': "agent memory_limit agent"}[c], model("m"), attempt(i+1)))
			}
		}
		return all
	}
	r := Summarise(Input{Name: "was", Trials: lot(map[string]string{"a": "00100", "b": "11111", "c": "0i000"})},
		Input{Name: "is", Trials: lot(map[string]string{"a": "10101", "b": "11011", "c": "000m0"})})
	var got []string
	for _, run := range r.Runs {
		g := run.Groups[0]
		line := run.Name + ": " + g.Rates.Verdicts.String() + ", " + g.Rates.AgentZero.String() + ", " + g.Rates.Harbor.String()
		for _, p := range g.PassAt {
			line += fmt.Sprintf("; @%d %.4f of %d", p.K, p.Value, p.Tasks)
		}
		got = append(got, line)
	}
	c := r.Changes[0]
	got = append(got, fmt.Sprintf("same %d, better %d, worse %d: %v", c.Same, c.Better, c.Worse, c.Tasks))
	want := []string{
		// (1/5 + 1 + 0)/3; (1-6/10 + 1 + 0)/3; (1-1/5 + 1 + 0)/3; c has no five
		"was: 6/14 (0.429), 6/14 (0.429), 6/15 (0.400); @1 0.4000 of 3; @2 0.4667 of 3; @4 0.6000 of 3; @5 1.0000 of 2",
		// (3/5 + 4/5 + 0)/3; (1-1/10 + 1 + 0)/3; (1 + 1 + 0)/3
		"is: 7/14 (0.500), 7/15 (0.467), 7/15 (0.467); @1 0.4667 of 3; @2 0.6333 of 3; @4 0.6667 of 3; @5 0.6667 of 3",
		"same 1, better 1, worse 1: [{d a 1/5 solved 3/5 solved} {d b 5/5 solved 4/5 solved}]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Models are compared with each other, an oracle only with an oracle; several
// attempts at a task are one verdict.
func TestCompare(t *testing.T) {
	a, b := model("a"), model("b")
	many := func(m func(*Trial), verdicts ...string) (all []Trial) {
		for i, v := range verdicts {
			all = append(all, trial("d", "t", "terminus", v, m, attempt(i+1)))
		}
		return all
	}
	for _, c := range []struct {
		name     string
		from, to []Trial
		want     string
	}{
		{"two models", many(a, "0"), many(b, "1"), "terminus a > terminus b: same 0, better 1, worse 0: failed > solved"},
		{"the same", many(a, "1"), many(a, "1"), "terminus a: same 1, better 0, worse 0"},
		{"attempts", many(a, "1", "0", "1"), many(a, "1", "start start_failed infra", "0"), "terminus a: same 0, better 0, worse 1: 2/3 solved > 1/2 solved"},
		{"more attempts", many(a, "1"), many(a, "1", "1"), "terminus a: same 1, better 0, worse 0"},
		{"more attempts of which one fails", many(a, "1"), many(a, "1", "0"), "terminus a: same 0, better 0, worse 1: solved > 1/2 solved"},
		{"a fault is not worse", many(a, "1"), many(a, "start start_failed infra"), "terminus a: same 0, better 0, worse 0: solved > start_failed"},
		{"several groups", append(many(a, "1"), many(b, "0")...), many(b, "1"), "terminus b: same 0, better 1, worse 0: failed > solved"},
		{"oracle and nop", []Trial{trial("d", "t", "oracle", "1")}, []Trial{trial("d", "t", "nop", "0")}, ""},
		{"oracles", []Trial{trial("d", "t", "oracle", "1")}, []Trial{trial("d", "t", "oracle", "0")}, "oracle: same 0, better 0, worse 1: solved > failed"},
	} {
		got := ""
		for _, x := range compare(Input{Trials: c.from}, Input{Trials: c.to}) {
			got += fmt.Sprintf("%s: same %d, better %d, worse %d", x.Agent, x.Same, x.Better, x.Worse)
			for _, y := range x.Tasks {
				got += ": " + y.Was + " > " + y.Now
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestLikely(t *testing.T) {
	for text, want := range map[string]string{
		"error: No interpreter found for Python 3.13 in managed installations": "graders need Python 3.13 (sifbuild wheelhouse --grader)",
		"bash: line 1: tmux: command not found":                                "images have no tmux (sifbuild build --require tmux)",
		"/tests/test.sh: 3: uvx: not found":                                    "graders need uvx (sifbuild wheelhouse --grader)",
		"/tests/test.sh: line 9: uvx: command not found":                       "graders need uvx (sifbuild wheelhouse --grader)",
		"/bin/sh: /tests/test.sh: not found":                                   "images lack what the first line of tests/test.sh names",
		"/solution/solve.sh: cannot execute: required file not found":          "images lack what the first line of solution/solve.sh names",
		"bash: /tests/test.sh: /usr/bin/python3.13: bad interpreter: No such":  "images lack what the first line of tests/test.sh names",
		"env: ‘python3’: No such file or directory":                            "there is no python3",
		"ERROR: No matching distribution found for numpy==1.26.4":              "pip finds no numpy (sifbuild wheelhouse)",
		"E: Unable to locate package left-pad":                                 "apt finds no left-pad",
		"npm ERR! code E404":                                                   "npm finds no package",
		"npm error notarget No matching version found for left-pad@9":          "npm finds no version left-pad@9",
		"curl: (6) Could not resolve host: astral.sh":                          "it wants the network (astral.sh)",
		"socket.gaierror: [Errno -3] Temporary failure in name resolution":     "it wants the network",
		"AssertionError: assert '0o664' == '0o644'":                            "files are writable by the group (umask 0002)",
		"expected mode 644, got -rw-rw-r--":                                    "files are writable by the group (umask 0002)",
		"PermissionError: [Errno 13] Permission denied: '/output'":             "permission denied: /output",
		"mkdir: cannot create directory '/output': Permission denied":          "permission denied: /output",
		"ModuleNotFoundError: No module named 'numpy'":                         "there is no Python module numpy",
		"OSError: [Errno 122] Disk quota exceeded":                             "no space left",
		"ld: /lib/libc.so.6: version `GLIBC_2.34' not found (required by x)":   "a program needs a newer C library than the image has (GLIBC_2.34)",
		"exec /bin/x: exec format error":                                       "programs are for another architecture",
		"plugins: timeout-2.3":                                                 "",
		"subprocess.TimeoutExpired: Command 'x' timed out":                     "a time limit",
		"all is well": "",
		"":            "",
	} {
		if got := likely(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A model's commands can write oracle.txt; that is no solution's output, and no
// cause is guessed by it.
func TestShow_Forged(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "agent"), 0o755), os.WriteFile(filepath.Join(dir, "agent", "oracle.txt"), []byte("mkdir: cannot create directory '/output': Permission denied\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for agent, want := range map[string]bool{"oracle": true, "terminus": false, "nop": false} {
		x := known(trial("d", "t", agent, "0").Trial, dir)
		var out bytes.Buffer
		Text(&out, Show(x, 5), 80)
		if got := strings.Contains(out.String(), "The solution's last lines") && strings.Contains(out.String(), "/output"); got != want || strings.Contains(out.String(), "ermission denied") != want {
			t.Errorf("%s:\n%s", agent, &out)
		}
	}
}

// Names and output of others do nothing to a terminal nor to a page.
func TestHostile(t *testing.T) {
	evil := "\x1b]0;x\a<script>alert(1)</script>|\n# x\u202e[a](http://b)\xff`"
	one := trial(evil, evil, "terminus", "agent memory_limit agent", model(evil), held("none", "public", result.Opened{What: evil, Why: evil}), printed(evil+"\n"+strings.Repeat("x", 300)))
	one.Fault.Class, one.Fault.Message, one.Fault.Hint = evil, evil, evil
	one.Warnings, one.Tainted = []string{evil}, []result.Taint{{Path: evil, Why: evil}}
	two := trial(evil, evil, "oracle", "0", printed(evil))
	r := Summarise(Input{Name: evil, Trials: []Trial{one, two}, Unread: []string{evil}, Unfinished: []string{evil}}, Input{Name: evil, Trials: []Trial{trial(evil, evil, "terminus", "1", model(evil)), two}})
	for name, blocks := range map[string][]Block{"report": Blocks(r), "show": Show(one, 5)} {
		var text, page bytes.Buffer
		Text(&text, blocks, 80)
		Markdown(&page, blocks)
		for _, out := range []string{text.String(), page.String()} {
			for _, bad := range []string{"\x1b", "\a", "\u202e", "\xff", "\n# x"} {
				if strings.Contains(out, bad) {
					t.Errorf("%s has %q", name, bad)
				}
			}
		}
		columns := 0
		for line := range strings.Lines(page.String()) {
			n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
			if columns > 0 && n > 0 && n != columns {
				t.Errorf("%s: a row of another number of columns: %s", name, line)
			}
			columns = n
		}
		for _, bad := range []string{"<script", "a](http", "|\n#"} {
			if strings.Contains(page.String(), bad) {
				t.Errorf("%s: the page has %q:\n%s", name, bad, page.String())
			}
		}
		if !strings.Contains(page.String(), `&lt;script&gt;`) {
			t.Errorf("%s: the page lost the text", name)
		}
		wide(t, text.String(), 80)
	}
}

// A task is fit when every attempt of both agents came out as it must.
func TestFit(t *testing.T) {
	for _, c := range []struct {
		what, oracle, nop string
		fit               bool
	}{
		{"as it must be", "1", "0", true},
		{"part of the reward for nothing", "1", "0.5", true},
		{"solved in part", "0.5", "0", false},
		{"solved by nothing", "1", "1", false},
		{"no solution", "setup solution_missing task", "0", false},
		{"no verdict on nothing", "1", "verify reward_missing task", false},
		{"no nop", "1", "", false},
		{"no oracle", "", "0", false},
	} {
		var in Input
		for agent, verdict := range map[string]string{"oracle": c.oracle, "nop": c.nop} {
			if verdict != "" {
				in.Trials = append(in.Trials, trial("set", "task", agent, verdict))
			}
		}
		d := Summarise(in).Runs[0].Datasets[0]
		if want := map[bool][]string{true: {"/data/set/task"}, false: {}}[c.fit]; !slices.Equal(d.Fit, want) {
			t.Errorf("%s: fit are %q, want %q", c.what, d.Fit, want)
		}
	}
	flaky := Summarise(Input{Trials: []Trial{trial("set", "task", "oracle", "1"), trial("set", "task", "oracle", "0", attempt(2)), trial("set", "task", "nop", "0")}})
	if d := flaky.Runs[0].Datasets[0]; len(d.Fit) != 0 {
		t.Errorf("a task whose solution passes one time of two is fit: %q", d.Fit)
	}
}

// What a solution printed says more than its exit code, and that more than nothing.
func TestLikely_ExitCode(t *testing.T) {
	ended := func(code int) func(*Trial) { return func(t *Trial) { t.Agent.ExitCode = &code } }
	for want, one := range map[string]Trial{
		"the solution ended with 3":     trial("s", "t", "oracle", "0", ended(3), printed("0 of 1")),
		"":                              trial("s", "t", "oracle", "0", ended(0), printed("0 of 1")),
		"there is no Python module foo": trial("s", "t", "oracle", "0", ended(3), printed("ModuleNotFoundError: No module named 'foo'")),
	} {
		if got := Likely(one); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Likely(trial("s", "t", "oracle", "1", ended(3))); got != "" {
		t.Errorf("of a solution that passed: %q", got)
	}
}

// A message that begins with a long path still says something.
func TestBrief(t *testing.T) {
	long := "the container of /" + strings.Repeat("x", 200) + " did not start"
	for text, want := range map[string]string{
		"short":                          "short",
		long:                             long[:70] + "...",
		strings.Repeat("words and ", 20): strings.TrimSpace(strings.Repeat("words and ", 7)) + " ...",
	} {
		if got := brief(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
