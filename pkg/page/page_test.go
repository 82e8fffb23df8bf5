package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"fence/pkg/report"
	"fence/pkg/result"
	"fence/pkg/trajectory"
)

// read is the value in a script of the report.
func read(t *testing.T, path, call string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(string(data), call)
	text, ok2 := strings.CutSuffix(text, ");\n")
	if !ok || !ok2 {
		t.Fatalf("%s is not %s...);", path, call)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// hostile is a run of which all is evil.
func hostile(t *testing.T) report.Input {
	t.Helper()
	in := run(3)
	in.Name, in.Unread, in.Unfinished = evil, []string{evil}, []string{evil}
	for i := range in.Trials {
		x := &in.Trials[i]
		played(t, x, t.TempDir(), 3, evil)
		x.TrialName, x.TaskName, x.Source, x.Task, x.Image, x.Node, x.AgentInfo.Name = evil, evil, evil, evil, evil, evil, evil
		x.AgentInfo.ModelInfo.Name, x.AgentInfo.Version, x.Warnings, x.Tainted = evil, evil, []string{evil}, []result.Taint{{Path: evil, Why: evil}}
		x.Agent.Stop = evil
		x.Isolation.Opened = []result.Opened{{What: evil, Why: evil}}
		cast, err := os.OpenFile(filepath.Join(x.Dir, "agent", "recording.cast"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range [][]any{{99, "o", "</script><script>document.title='owned'</script><&>\r\n"}, {99, "m", evil}} {
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cast.WriteString("\n" + string(line)); err != nil {
				t.Fatal(err)
			}
		}
		cast.Close()
	}
	in.Trials[0].Fault = &result.Fault{Phase: evil, Class: evil, Cause: evil, Message: evil, Hint: evil}
	return in
}

// What others wrote cannot end the script it stands in, nor a string of it.
func TestWrite_Hostile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "report")
	if err := Write(dir, []report.Input{hostile(t)}); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "data", "*"))
	if len(files) != 4 {
		t.Fatalf("%q", files)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.IndexAny(data, "<>&\u2028\u2029\x1b"); i >= 0 || !utf8.Valid(data) {
			t.Errorf("%s: %q is not escaped, or no UTF-8", f, data[max(i, 0)])
		}
		if !bytes.Contains(data, []byte(`\u003c/script\u003e`)) {
			t.Errorf("%s: nothing evil is in it", f)
		}
	}
	var d struct {
		Parts []struct {
			Turns    []turn
			Verifier string
			Replay   struct{ Events []json.RawMessage }
		}
	}
	read(t, filepath.Join(dir, "data", "1.js"), "rollout.trial(1, ", &d)
	said := strings.ToValidUTF8(evil, "\ufffd\ufffd")
	if p := d.Parts[0]; len(p.Turns) != 4 || !strings.Contains(p.Turns[1].Message, said) || !strings.Contains(p.Turns[1].Seen, said) || !strings.Contains(p.Verifier, said) || len(p.Replay.Events) < 30 || !bytes.Contains(p.Replay.Events[len(p.Replay.Events)-2], []byte(`"\u003c/script\u003e\u003cscript\u003edocument.title`)) {
		t.Errorf("%+v", p)
	}
}

func TestWrite_Folder(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, []report.Input{run(3)}); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, []report.Input{run(1)}); err != nil {
		t.Errorf("over an earlier one: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "data", "*")); len(files) != 2 {
		t.Errorf("of the earlier one there is still something: %q", files)
	}
	var ix index
	read(t, filepath.Join(dir, "data", "index.js"), "rollout.index(", &ix)
	if len(ix.Trials) != 1 || len(ix.Blocks) == 0 {
		t.Errorf("%+v", ix)
	}
	// One that ended in the middle, as a command that is killed does.
	half := run(3)
	half.Trials[1].VerifierResult = &result.VerifierResult{Rewards: map[string]float64{"reward": math.NaN()}}
	for _, dir := range []string{dir, t.TempDir()} {
		if err := Write(dir, []report.Input{half}); err == nil {
			t.Fatal("a number that cannot be written was")
		}
		if _, err := os.Stat(filepath.Join(dir, "data", "0.js")); err != nil {
			t.Fatal("the control: it had not begun", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "index.html")); err == nil {
			t.Error("half a report can be opened")
		}
		if err := Write(dir, []report.Input{run(1)}); err != nil {
			t.Errorf("over half a report: %v", err)
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "data", "*")); len(files) != 2 {
			t.Errorf("of the half there is still something: %q", files)
		}
	}
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "thesis.tex"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(other, []report.Input{run(1)}); !errors.Is(err, ErrOthers) {
		t.Errorf("a folder with something else: %v", err)
	}
	if all, _ := os.ReadDir(other); len(all) != 1 {
		t.Errorf("and it was written to: %v", all)
	}
}

// A no-op that failed is as it must be, and one that passed is not.
func TestEntry_Nop(t *testing.T) {
	for reward, want := range map[float64]string{0: "rejected", 0.5: "partly", 1: "accepted"} {
		x := run(2).Trials[1]
		x.AgentInfo.Name, x.Reward = "nop", &reward
		if got := entryOf(0, x).Kind; got != want {
			t.Errorf("%g: %s, want %s", reward, got, want)
		}
		x.AgentInfo.Name = "oracle"
		if got := entryOf(0, x).Kind; got == want && want != "partly" {
			t.Errorf("an oracle's %g: %s", reward, got)
		}
	}
}

// What a model's replies lacked is in the list, and nothing where it was not counted.
func TestEntry_Replies(t *testing.T) {
	x := run(2).Trials[1]
	if e := entryOf(0, x); e.Unread+e.CutOff+e.Handed != 0 {
		t.Errorf("%+v", e)
	}
	x.AgentResult.Metadata = map[string]any{"unread_replies": 3.0, "truncated_replies": 2.0, "hand_overs": 1.0}
	if e := entryOf(0, x); e.Unread != 3 || e.CutOff != 2 || e.Handed != 1 {
		t.Errorf("%+v", e)
	}
}

// Each step of a trial is a part; a name that leads elsewhere is none.
func TestDetails_Steps(t *testing.T) {
	in := run(2)
	trial := in.Trials[1]
	played(t, &trial, filepath.Join(t.TempDir(), "steps", "first"), 2, "")
	trial.Dir = filepath.Dir(filepath.Dir(trial.Dir))
	for _, name := range []string{"first", "../first", "..", "second", "first"} {
		reward := float64(len(trial.StepResults)) / 4
		trial.StepResults = append(trial.StepResults, result.StepResult{StepName: name, Reward: &reward, Agent: result.AgentEnd{Stop: "done", Turns: 2}})
	}
	d := details(trial)
	if len(d.Parts) != 2 || d.Parts[0].Name != "first" || len(d.Parts[0].Turns) != 3 || d.Parts[1].Name != "second" || len(d.Parts[1].Turns) != 0 ||
		!slices.Equal(d.Parts[1].Facts, []string{"verdict: solved in part, reward 0.75", "ended by: done, 2 turns"}) {
		t.Errorf("%+v", d.Parts)
	}
}

// Of a file that any command can write nobody is told that another made it.
func TestDetails_Agents(t *testing.T) {
	trial := run(2).Trials[1]
	played(t, &trial, t.TempDir(), 2, "")
	if err := os.WriteFile(filepath.Join(trial.Dir, "agent", "oracle.txt"), []byte("forged"), 0o644); err != nil {
		t.Fatal(err)
	}
	for agent, want := range map[string]string{"terminus": "3 true", "replay": "3 true", "another": "3 true", "oracle": "0 false forged", "nop": "0 false"} {
		trial.AgentInfo.Name = agent
		p := details(trial).Parts[0]
		if got := strings.TrimSpace(fmt.Sprintf("%d %t %s", len(p.Turns), p.Replay != nil, p.Script)); got != want || p.Verifier == "" {
			t.Errorf("%s: %s, want %s", agent, got, want)
		}
	}
}

// Of what is long both ends are shown.
func TestText_Long(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, []byte("begin "+strings.Repeat("é", 5<<19)+" end"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := text(path)
	if len(got) > maxText+100 || !strings.HasPrefix(got, "begin é") || !strings.HasSuffix(got, "é end") || !strings.Contains(got, fmt.Sprintf("\n[... %d bytes are left out here ...]\n", 5<<20+10-maxText)) {
		t.Errorf("%d bytes: %.40q ... %.40q", len(got), got, got[len(got)-40:])
	}
	if got := short(strings.Repeat("é", 100), 11); !utf8.ValidString(got) || !strings.Contains(got, "190 bytes") && !strings.Contains(got, "192 bytes") {
		t.Errorf("%q", got)
	}
	if got := text(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("%q", got)
	}
}

func TestFit(t *testing.T) {
	turns := make([]turn, 100)
	for i := range turns {
		turns[i] = turn{Message: fmt.Sprint(i), Seen: strings.Repeat("x", maxTurns/40)}
	}
	got := fit(turns)
	if len(got) < 38 || len(got) > 41 || got[0].Message != "0" || got[len(got)-1].Message != "99" || got[10].Message != "10" {
		t.Errorf("%d turns, from %s to %s", len(got), got[0].Message, got[len(got)-1].Message)
	}
	if got := fit(turns[:30]); len(got) != 30 {
		t.Errorf("%d of 30", len(got))
	}
	if got := fit(make([]turn, 1_000_000)); len(got) > maxTurns/200 {
		t.Errorf("%d turns without a word", len(got))
	}
	x, k := turn{Calls: make([]action, 100_000), Notes: make([]string, 100_000), Fence: make([]string, 100_000)}, strings.Repeat("x", maxText)
	if x.few(); len(x.Calls) != maxCalls || len(x.Notes) != maxNotes+1 || x.Notes[maxNotes] != "99500 more calls of it are not in this report" || len(x.Fence) != maxNotes {
		t.Errorf("%d calls, %q, %d words", len(x.Calls), x.Notes[len(x.Notes)-1], len(x.Fence))
	}
	x = turn{Calls: []action{{Keys: &k}, {Keys: &k}, {Keys: &k}, {Keys: &k}, {Args: "one"}, {Args: "two"}}}
	if x.few(); len(x.Calls) != 4 {
		t.Errorf("%d calls of %d bytes", len(x.Calls), maxText)
	}
}

func write1(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTrajectory(t *testing.T) {
	turns, err := fromATIF(write1(t, `{"schema_version":"ATIF-v1.5","extra":1,"steps":[
		{"step_id":1,"source":"user","message":[{"type":"text","text":"do"},{"type":"image","source":{}},{"type":"text","text":"it"}]},
		{"step_id":2,"timestamp":"2026-11-30T12:00:01.500Z","source":"agent","message":"m","reasoning_content":"r","tool_calls":[{"function_name":"bash_command","arguments":{"keystrokes":"ls\n","duration":0.5}},{"function_name":"mark_task_complete","arguments":{}},{"function_name":"edit","arguments":{"a":1}},{"function_name":"odd","arguments":["k"]}],"observation":{"results":[{"content":"one"},{},{"content":null},{"content":"two"}]},"metrics":{"prompt_tokens":5}}]}`))
	if err != nil || len(turns) != 2 {
		t.Fatal(turns, err)
	}
	got, err := json.Marshal(turns)
	want := `[{"source":"user","at":0,"message":"do\n[image]\nit","calls":[],"seen":"","in":null,"out":null,"end":1796040001500},` +
		`{"source":"agent","n":1,"at":1796040001500,"message":"m","thoughts":"r","calls":[{"name":"bash_command","keys":"ls\n","duration":0.5},{"name":"mark_task_complete","keys":null,"duration":null},{"name":"edit","keys":null,"duration":null,"args":"{\"a\":1}"},{"name":"odd","keys":null,"duration":null,"args":"[\"k\"]"}],"seen":"one\n\n\ntwo","in":5,"out":null,"end":0}]`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	if turns, _, err := turnsOf(t.TempDir()); err != nil || turns == nil || len(turns) != 0 {
		t.Error(turns, err)
	}
	if _, err := fromATIF(write1(t, "[1]")); err == nil || !strings.Contains(err.Error(), "is no trajectory") {
		t.Error(err)
	}
}

// The log of turns is read before the trajectory made of it.
func TestTurnLog(t *testing.T) {
	dir := t.TempDir()
	log, err := trajectory.Create(filepath.Join(dir, "turns.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 5
	for _, x := range []trajectory.Turn{
		{Turn: 1, Kind: trajectory.Act, StartedAt: begin, Prompt: "do it", Reply: "{...}", Analysis: "a", Plan: "p", Commands: []trajectory.Command{{Keystrokes: "curl x\n", Duration: 1}}, Output: "Could not resolve host", Fence: []string{"Could not resolve"}, Warnings: []string{"w"}, PromptTokens: &n, ModelSec: 1.5, TerminalSec: 1, Finish: "stop"},
		{Turn: 2, Kind: trajectory.Summary, StartedAt: begin, Reply: "so far"},
		{Turn: 2, Kind: trajectory.Act, StartedAt: begin, Prompt: "go on", Reply: "nonsense", Error: "No valid JSON", Finish: "length"},
		{Turn: 3, Kind: trajectory.Act, StartedAt: begin, Prompt: "done?", Analysis: "yes", TaskComplete: true, Reasoning: "r"},
	} {
		if err := log.Add(x); err != nil {
			t.Fatal(err)
		}
	}
	log.Close()
	if err := os.WriteFile(filepath.Join(dir, "trajectory.json"), []byte("not read"), 0o644); err != nil {
		t.Fatal(err)
	}
	turns, _, err := turnsOf(dir)
	var got []string
	for _, x := range turns {
		line := fmt.Sprintf("%s %d %q", x.Source, x.N, x.Message)
		for _, c := range x.Calls {
			line += " " + c.Name
		}
		got = append(got, line+fmt.Sprintf(" %q %q +%g", x.Notes, x.Fence, x.End-x.At))
	}
	want := []string{
		`user 0 "do it" [] [] +0`,
		`agent 1 "a\n\np" bash_command ["w"] ["Could not resolve"] +2500`,
		`the conversation was too long: summary 0 "so far" [] [] +0`,
		`user 0 "go on" [] [] +0`,
		`agent 2 "nonsense" ["nothing of it was done: No valid JSON" "the reply ended by: length"] [] +0`,
		`agent 3 "yes" mark_task_complete [] [] +0`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Whatever is in these files, what comes of them can be written.
func FuzzFiles(f *testing.F) {
	f.Add(`{"steps":[{"message":["x"],"tool_calls":[{"arguments":1}]}]}`)
	f.Add("{\"version\":2,\"timestamp\":1e308}\n[1e308,\"o\",\"x\"]\n[1e308,\"r\",\"999x999\"]\n")
	f.Add(`{"schema":"rollout.turn/v1","model_sec":1e308,"terminal_sec":1e308}` + "\n")
	f.Add("{\"version\":2,\"width\":-1}\n[1e308,\"o\",\"\xff\"]\n[-1,\"r\",\"0x0\"]\n")
	f.Fuzz(func(t *testing.T, data string) {
		path := write1(t, data)
		turns, _ := fromATIF(path)
		more, _ := fromLog(path)
		if _, err := json.Marshal([]any{turns, more, recording(path)}); err != nil {
			t.Error(err)
		}
	})
}

// xterm.js is as npm has it: @xterm/xterm 6.0.0 (docs/decisions/024).
func TestXterm(t *testing.T) {
	for name, want := range map[string]string{
		"xterm.js":  "14903579ff54664cd72f8e8699e6961a6272c21863ec1c3b118cdc8af5d4a972",
		"xterm.css": "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6",
		"LICENSE":   "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
	} {
		data, err := assets.ReadFile("assets/xterm/" + name)
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
