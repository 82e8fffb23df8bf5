package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/test/clitest"
)

// full is a trial of which nothing is left out; fault says that it broke.
func full(fault bool) Trial {
	at := time.Date(2026, 1, 31, 18, 0, 0, 123456789, time.UTC)
	later := at.Add(time.Minute)
	span := &Timing{StartedAt: at, FinishedAt: &later}
	n, code, cost, reward := 1200, 0, 0.25, 0.5
	used := &AgentResult{InputTokens: &n, OutputTokens: &n, CostUSD: &cost, Metadata: map[string]any{"episodes": 3.0},
		RolloutDetails: []json.RawMessage{json.RawMessage(`{"prompt_token_ids":[[1,2]],"completion_token_ids":[[3]],"logprobs":[[-0.5]]}`)}}
	config, err := json.Marshal(Config{
		Task: TaskConfig{Path: "/data/set/task <1>", Source: "set"}, TrialName: "task__abc", TrialsDir: "/run", TimeoutMultiplier: 1,
		Agent: AgentConfig{Name: "terminus", Kwargs: map[string]any{"max_turns": 30}}, Environment: Environment(nil), JobID: NewID(),
	})
	if err != nil {
		panic(err)
	}
	t := Trial{
		ID: NewID(), TaskName: "org/task", TrialName: "task__abc", TrialURI: "file:///run/task__abc", TaskID: TaskID{Path: "/data/set/task <1>"}, Source: "set",
		TaskChecksum: strings.Repeat("0", 64), Config: config,
		AgentInfo:   AgentInfo{Name: "terminus", Version: "1.0.0", ModelInfo: &ModelInfo{Name: "model", Provider: "hosted_vllm"}},
		AgentResult: used, VerifierResult: &VerifierResult{Rewards: map[string]float64{"reward": reward}},
		StartedAt: at, FinishedAt: later, EnvironmentSetup: span, AgentSetup: span, AgentExecution: span, VerifierTiming: &Timing{StartedAt: at},
		Task: "/data/set/task <1>", Attempt: 2, Tries: 3, Reward: &reward,
		Agent: AgentEnd{Stop: "turn_cap", ExitCode: &code, Turns: 30}, Verify: &VerifyEnd{ExitCode: &code, From: "reward.txt"},
		Tainted: []Taint{{"/usr/bin/python3", "the tests ran it"}},
		Isolation: &Isolation{Agent: Domain{"strict", "namespace", "loopback"}, Verifier: Domain{"verifier", "namespace", "loopback"}, Beside: "why", Gate: "pass",
			Asked: "public", Opened: []Opened{{"/wheels", "pip"}}, Limits: "watchdog"},
		Usage: Usage{MemoryBytes: 1 << 30, DiskBytes: 1 << 20, Processes: 12, CPUSec: 1.5}, Image: "/c/sif/x.sif", Node: "n1", Warnings: []string{"w"},
	}
	t.StepResults = []StepResult{{StepName: "one", AgentResult: used, VerifierResult: t.VerifierResult, AgentExecution: span, Verifier: span, Reward: &reward, Agent: t.Agent, Verify: t.Verify}}
	if fault {
		t.Reward, t.VerifierResult, t.Verify = nil, nil, nil
		t.Fault = &Fault{"verify", "reward_missing", "task", "no reward", "look at it"}
		t.ExceptionInfo = &ExceptionInfo{"RewardFileNotFoundError", "no reward", "", later}
		t.StepResults[0].Fault, t.StepResults[0].Reward, t.StepResults[0].ExceptionInfo = t.Fault, nil, t.ExceptionInfo
	}
	return t.Normal()
}

// least is a trial that has only what it must have.
func least() Trial {
	reward := 1.0
	return Trial{ID: NewID(), TaskName: "t", TrialName: "t__1", TrialURI: "file:///t", TaskID: TaskID{"/t"}, Config: json.RawMessage("{}"), AgentInfo: AgentInfo{Name: "nop"},
		StartedAt: time.Unix(1, 0), FinishedAt: time.Unix(2, 0), Task: "/t", Attempt: 1, Tries: 1, Reward: &reward}.Normal()
}

func TestTrial_Record(t *testing.T) {
	clitest.NamesEveryField(t, "rollout.trial", reflect.TypeFor[Trial]())
	for name, want := range map[string]Trial{"a verdict": full(false), "a fault": full(true), "the least": least()} {
		dir := t.TempDir()
		if err := Write(dir, want); err != nil {
			t.Fatal(err)
		}
		got, err := Read(dir)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data, err := os.ReadFile(filepath.Join(dir, ResultFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := clitest.Validate(t, "rollout.trial", data); err != nil {
			t.Errorf("%s: %v\n%s", name, err, data)
		}
		for _, more := range []string{"{}", "x", "]"} {
			if _, err := Decode(append(bytes.Clone(data), more...)); err == nil {
				t.Errorf("%s: %s after it is taken", name, more)
			}
		}
		if _, err := Decode(data[:len(data)-3]); err == nil {
			t.Errorf("%s: half of it is taken", name)
		}
		unknown := bytes.Replace(data, []byte("{"), []byte(`{"surprise": 1,`), 1)
		if clitest.Validate(t, "rollout.trial", unknown) == nil {
			t.Errorf("%s: the schema takes an unknown field", name)
		}
		if _, err := Decode(unknown); err == nil {
			t.Errorf("%s: an unknown field is taken", name)
		}
		if !bytes.HasPrefix(data, []byte("{\n    \"schema\"")) || !bytes.Contains(data, []byte(`"n_cache_tokens": null`)) && want.AgentResult != nil {
			t.Errorf("%s: not as Harbor lays it out\n%s", name, data)
		}
		// Read and written again it is the same, as a line of a stream too.
		line, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		streamed, err := Decode(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := Write(dir, streamed); err != nil {
			t.Fatal(err)
		}
		if again, _ := os.ReadFile(filepath.Join(dir, ResultFile)); !bytes.Equal(again, data) {
			t.Errorf("%s:\n%s\nwas\n%s", name, again, data)
		}
	}
}

func TestTrial_Refused(t *testing.T) {
	nan, neg := math.NaN(), math.Inf(-1)
	for name, spoil := range map[string]func(*Trial){
		"no name":              func(r *Trial) { r.TrialName = "" },
		"no task":              func(r *Trial) { r.TaskID.Path = "" },
		"no agent":             func(r *Trial) { r.AgentInfo.Name = "" },
		"no config":            func(r *Trial) { r.Config = json.RawMessage("null") },
		"attempt 0":            func(r *Trial) { r.Attempt = 0 },
		"no try":               func(r *Trial) { r.Tries = 0 },
		"no times":             func(r *Trial) { r.StartedAt, r.FinishedAt = time.Time{}, time.Time{} },
		"nan":                  func(r *Trial) { r.Reward = &nan },
		"infinity":             func(r *Trial) { r.Reward = &neg },
		"neither":              func(r *Trial) { r.Reward = nil },
		"both":                 func(r *Trial) { r.Fault = &Fault{Phase: "agent", Class: "x", Cause: "task"} },
		"no cause":             func(r *Trial) { r.Reward, r.Fault = nil, &Fault{Phase: "agent", Class: "x"} },
		"a phase of its own":   func(r *Trial) { r.Reward, r.Fault = nil, &Fault{Phase: "x", Class: "x", Cause: "task"} },
		"no class":             func(r *Trial) { r.Reward, r.Fault = nil, &Fault{Phase: "agent", Cause: "task"} },
		"an end of its own":    func(r *Trial) { r.Agent.Stop = "bored" },
		"control: none at all": func(*Trial) {},
	} {
		r, dir := least(), t.TempDir()
		spoil(&r)
		err := Write(dir, r)
		if good := strings.HasPrefix(name, "control"); (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		} else if _, err := Read(dir); (err == nil) != good || !good && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: read: %v", name, err)
		}
	}
}

// The clock of a node can be set back.
func TestTrial_NormalTimes(t *testing.T) {
	r := least()
	r.StartedAt, r.FinishedAt = time.Now(), time.Now().Add(-time.Hour)
	if err := Write(t.TempDir(), r); err != nil {
		t.Error(err)
	}
}

func TestTrialName(t *testing.T) {
	for _, c := range []struct{ task, want string }{
		{"fix-git", "fix-git__"}, {strings.Repeat("x", 40), strings.Repeat("x", 32) + "__"},
		{"ends-in-dashes-right-at-32-of---_--and-more", "ends-in-dashes-right-at-32-of__"}, {"a\nb\x1b/c", "a_b__c__"}, {strings.Repeat("世", 33), strings.Repeat("世", 32) + "__"},
	} {
		name := TrialName(c.task, "/d/"+c.task, "oracle", 1)
		id := strings.TrimPrefix(name, c.want)
		if len(id) != 7 || strings.Trim(id, letters) != "" {
			t.Errorf("%q: %q, want %q and 7 letters", c.task, name, c.want)
		}
	}
	seen := map[string]bool{}
	for _, folder := range []string{"/a/t", "/b/t"} {
		for _, agent := range []string{"oracle", "nop", "terminus m"} {
			for attempt := range 100 {
				name := TrialName("t", folder, agent, attempt)
				if seen[name] || TrialName("t", folder, agent, attempt) != name {
					t.Errorf("%s %s %d: %s is another's, or not always its name", folder, agent, attempt, name)
				}
				seen[name] = true
			}
		}
	}
}

func TestDiffers(t *testing.T) {
	set := func(pairs ...string) (all []Setting) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, Setting{pairs[i], pairs[i+1]})
		}
		return all
	}
	for _, c := range []struct {
		was, now []Setting
		want     []Difference
	}{
		{nil, nil, nil},
		{set("a", "1", "b", "2"), set("b", "2", "a", "1"), nil},
		{set("a", "1"), set("a", "2"), []Difference{{"a", "1", "2"}}},
		{set("a", "1"), set("b", "2"), []Difference{{"b", "", "2"}, {"a", "1", ""}}},
		{set("a", "1", "a", "2"), set("a", "1", "a", "2"), nil},
		{set("a", "1", "a", "2"), set("a", "1", "a", "3"), []Difference{{"a", "1, 2", "1, 3"}}},
		{set("a", "1", "a", "2"), set("a", "1"), []Difference{{"a", "1, 2", "1"}}},
	} {
		if got := Differs(c.was, c.now); !slices.Equal(got, c.want) {
			t.Errorf("%v, %v: %v, want %v", c.was, c.now, got, c.want)
		}
	}
}

func TestTrials(t *testing.T) {
	top := t.TempDir()
	trial := func(path string, done bool) {
		dir := filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Join(dir, "retries/1"), 0o755); err != nil {
			t.Fatal(err)
		}
		r := full(false)
		r.TrialName = filepath.Base(path)
		err := WriteJSON(filepath.Join(dir, ConfigFile), Config{})
		if done {
			err = errors.Join(err, Write(dir, r))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	trial("job/b__1", true)
	trial("job/a__1", false)
	trial("job/c__1", true)
	trial("job/.hidden", true)
	trial("jobs/one/a__1", true)
	trial("jobs/two/a__1", true)
	trial("deep/er/job/a__1", true)
	for path, text := range map[string]string{"job/config.json": `{"agents": [], "tasks": [{"path": "/t"}]}`, "job/result.json": "{}", "job/job.log": "", "job/c__1/result.json": "{}", "empty/x": ""} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(top, path)), 0o755), os.WriteFile(filepath.Join(top, path), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		dirs []string
		want string
	}{
		{[]string{"job"}, "job/a__1: not done, job/b__1, job/c__1: unread"},
		{[]string{"job/b__1"}, "job/b__1"},
		{[]string{"jobs"}, "jobs/one/a__1, jobs/two/a__1"},
		{[]string{"jobs/two", "jobs/one"}, "jobs/two/a__1, jobs/one/a__1"},
		{[]string{"deep"}, "error"},
		{[]string{"empty"}, "error"},
		{[]string{"jobs", "nosuch"}, "error"},
	} {
		var dirs, got []string
		for _, d := range c.dirs {
			dirs = append(dirs, filepath.Join(top, d))
		}
		found, err := Trials(dirs...)
		for _, f := range found {
			rel, _ := filepath.Rel(top, f.Dir)
			switch {
			case f.Trial != nil && f.Trial.TrialName == filepath.Base(f.Dir) && f.Trial.AgentResult.RolloutDetails == nil && *f.Trial.AgentResult.InputTokens > 0:
			case errors.Is(f.Err, fs.ErrNotExist):
				rel += ": not done"
			case f.Err != nil:
				rel += ": unread"
			default:
				rel += ": with details"
			}
			got = append(got, rel)
		}
		if err != nil {
			got = []string{"error"}
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%q: %s (%v), want %s", c.dirs, text, err, c.want)
		}
	}
}

// More of what Harbor's own say is in test/harbor.
func TestForeign(t *testing.T) {
	const head = `{"trial_name": "x__1", "task_name": "org/x", "agent_info": {"name": "oracle", "version": "1"}, "started_at": "2026-05-29T12:00:00.5", "finished_at": "2026-05-29T14:00:00.5+02:00", "new": {"in": 2030}, `
	for text, want := range map[string]string{
		`"task_id": {"path": "/t"}, "verifier_result": {"rewards": {"reward": 1}}}`:                                          "/t 1 done",
		`"task_id": {"git_url": "u", "path": "tasks/x"}, "verifier_result": {"rewards": {"a": 0, "reward": 0.5}}}`:           "tasks/x 0.5 done",
		`"task_id": {"org": "o", "name": "x", "ref": null}, "verifier_result": {"rewards": {}}}`:                             "o/x reward_missing",
		`"task_id": {"path": "/t"}, "exception_info": {"exception_type": "E", "occurred_at": "2026-05-29T12:00:00.123456"}}`: "/t E",
		`"task_id": {"path": "/t"}}`: "/t reward_missing",
		`"task_id": 7}`:              "error",
	} {
		r, err := Foreign([]byte(head + text))
		got := r.Task
		switch {
		case err != nil:
			got = "error"
		case r.Fault != nil:
			got += " " + r.Fault.Class
		default:
			got += fmt.Sprint(" ", *r.Reward, " ", r.Agent.Stop)
		}
		if got != want || err == nil && r.FinishedAt.Sub(r.StartedAt) != 0 {
			t.Errorf("%s: %s (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"trial_name": "x"}`} {
		if _, err := Foreign([]byte(text)); err == nil {
			t.Errorf("%q is a trial", text)
		}
	}
}

func tallies() (all []Tally) {
	n := 100
	for attempt, r := range []float64{1, 0, 0, 1, 0} {
		all = append(all, Tally{Name: "a__" + string(rune('0'+attempt)), Task: "/a", Eval: "oracle__set", Rewards: map[string]float64{"reward": r}, Tries: 1 + attempt, Input: &n})
		all = append(all, Tally{Name: "b__" + string(rune('0'+attempt)), Task: "/b", Eval: "oracle__set", Rewards: map[string]float64{"reward": 1}, Tries: 1})
	}
	return append(all,
		Tally{Name: "c", Task: "/c", Eval: "nop__adhoc", Exceptions: []string{"RuntimeError"}, Tries: 1},
		Tally{Name: "d", Task: "/d", Eval: "nop__adhoc", Rewards: map[string]float64{"x": 1, "y": 0.5}, Exceptions: []string{"AgentTimeoutError"}, Tries: 1},
		Tally{Name: "e", Task: "/e", Eval: "nop__adhoc", Rewards: map[string]float64{"x": 0}, Tries: 1, Exceptions: []string{"CancelledError"}})
}

func TestCount(t *testing.T) {
	s := Count(tallies(), 20, 2)
	if s.Completed != 13 || s.Errored != 3 || s.Cancelled != 1 || s.Running != 2 || s.Pending != 5 || s.Retries != 10 || *s.InputTokens != 500 || s.OutputTokens != nil {
		t.Errorf("%+v", s)
	}
	got, err := json.Marshal(s.Evals)
	// pass@2 of /a is 1 - (3*2)/(5*4) = 0.7, of /b 1; @4 and @5 are 1.
	want := `{"nop__adhoc":{"n_trials":2,"n_errors":3,"metrics":[{"x":0.5,"y":0.25}],"pass_at_k":{},"reward_stats":{"x":{"0":["e"],"1":["d"]},"y":{"0.5":["d"]}},` +
		`"exception_stats":{"AgentTimeoutError":["d"],"CancelledError":["e"],"RuntimeError":["c"]}},` +
		`"oracle__set":{"n_trials":10,"n_errors":0,"metrics":[{"mean":0.7}],"pass_at_k":{"2":0.85,"4":1,"5":1},"reward_stats":{"reward":{"0":["a__1","a__2","a__4"],"1":["a__0","a__3","b__0","b__1","b__2","b__3","b__4"]}},"exception_stats":{}}}`
	if err != nil || string(got) != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if s := Count(nil, 0, 0); s.Completed != 0 || s.Pending != 0 || len(s.Evals) != 0 {
		t.Errorf("%+v", s)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range []Trial{full(false), full(true), least()} {
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"trial_name": "x", "task_name": "t", "agent_info": {"name": "oracle"}, "started_at": "2026-01-31T18:00:00.5"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = Foreign(data)
		r, err := Decode(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(r.Normal())
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
	})
}
