package page

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/report"
	"fence/pkg/result"
)

// evil is what a model, a task or a verifier may write to harm whoever reads a
// report.
const evil = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x1b]0;owned\a\x1b[31mred\x1b[0m \xff\xfe \u202egpj.exe\u2028`${document.title='owned'}`"

var begin = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// late is how long after a whole second a recording began. It counts from that
// second.
const late = 0.7

// run makes records of n trials, without files but for those that a test writes.
func run(n int) report.Input {
	in := report.Input{Name: "jobs/demo"}
	for i := range n {
		task := fmt.Sprintf("task-%04d", i)
		tin, tout := 2000+i%37*900, 100+i%23*80
		t := report.Trial{Trial: result.Trial{Schema: result.Schema, TaskName: task, TrialName: task + "__Ab3dE6g", Source: []string{"endless-terminals", "nemotron-easy", "tmax"}[i%3], Task: "/data/" + task,
			Attempt: 1, Tries: 1, AgentInfo: result.AgentInfo{Name: "terminus", Version: "1", ModelInfo: &result.ModelInfo{Name: "model-" + []string{"a", "b"}[i%2]}},
			StartedAt: begin, FinishedAt: begin.Add(time.Duration(20+i%41*3+i%7*11) * time.Second), Agent: result.AgentEnd{Stop: "done", Turns: 3 + i%28},
			AgentResult: &result.AgentResult{InputTokens: &tin, OutputTokens: &tout}, Image: "/cache/sif/" + task + ".sif", Node: "n1",
			Isolation: &result.Isolation{Agent: result.Domain{Policy: "strict", Form: "namespace", Network: "none"}, Verifier: result.Domain{Policy: "verifier", Form: "namespace", Network: "none"}, Below: true, Gate: "pass", Limits: "watchdog"}}}
		reward := []float64{1, 0, 1, 1, 0.5, 1, 0}[i%7]
		switch {
		case i%29 == 0:
			t.Fault = &result.Fault{Phase: "setup", Class: "setup_failed", Cause: "task", Message: "bash: line 1: tmux: command not found", Hint: "build the images with --require tmux"}
		case i%31 == 0:
			t.Fault = &result.Fault{Phase: "agent", Class: "memory_limit", Cause: "agent", Message: "2.1G of 2.0G"}
		default:
			t.Reward = &reward
			t.VerifierResult = &result.VerifierResult{Rewards: map[string]float64{"reward": reward}}
		}
		until := begin.Add(15 * time.Second)
		t.AgentExecution = &result.Timing{StartedAt: begin.Add(2 * time.Second), FinishedAt: &until}
		t.VerifierTiming = &result.Timing{StartedAt: until, FinishedAt: &t.FinishedAt}
		in.Trials = append(in.Trials, t)
	}
	return in
}

// played gives a trial its files: a trajectory of so many turns, a recording
// that shows each, and what the verifier printed.
func played(t testing.TB, trial *report.Trial, dir string, turns int, text string) {
	t.Helper()
	trial.Dir = dir
	type m = map[string]any
	steps := []m{{"step_id": 1, "timestamp": begin.Format(time.RFC3339Nano), "source": "user", "message": "You are given a terminal. " + text}}
	var cast strings.Builder
	line := func(v any) {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		cast.Write(append(data, '\n'))
	}
	line(m{"version": 2, "width": 160, "height": 40, "timestamp": begin.Unix()})
	for i := range turns {
		at := late + 2 + float64(i)*4
		steps = append(steps, m{"step_id": i + 2, "timestamp": begin.Add(time.Duration(at * float64(time.Second))).Format(time.RFC3339Nano), "source": "agent",
			"message": fmt.Sprintf("Analysis: turn %d %s\nPlan: list the files", i+1, text), "reasoning_content": "I think " + text,
			"tool_calls":  []m{{"tool_call_id": "c", "function_name": "bash_command", "arguments": m{"keystrokes": fmt.Sprintf("echo turn-%d\n", i+1), "duration": 1.5}}, {"tool_call_id": "d", "function_name": "bash_command", "arguments": m{"keystrokes": "C-c", "duration": 0.1}}},
			"observation": m{"results": []m{{"content": fmt.Sprintf("New Terminal Output:\nturn-%d %s", i+1, text)}}}, "metrics": m{"prompt_tokens": 1000 + i, "completion_tokens": 50}})
		line([]any{at + 0.1, "o", "\x1b[32mroot@task\x1b[0m:/app# "})
		for k, c := range fmt.Sprintf("echo turn-%d", i+1) {
			line([]any{at + 0.2 + float64(k)*0.05, "o", string(c)})
		}
		line([]any{at + 1, "o", fmt.Sprintf("\r\nturn-%d\r\n", i+1) + "\x1b[38;2;255;120;0mcolour\x1b[0m \x1b]0;owned\a\x1b]52;c;b3duZWQ=\a\x1b]8;;http://127.0.0.1:9/\aa link\x1b]8;;\a 日本語\r\n"})
	}
	trajectory, err := json.Marshal(m{"schema_version": "ATIF-v1.7", "agent": m{"name": "terminus", "version": "1"}, "steps": steps})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"agent/trajectory.json": string(trajectory), "agent/recording.cast": cast.String() + "[9999, \"o\"", "verifier/test-stdout.txt": "=== FAILURES ===\nassert 1 == 2\n" + text + "\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		raw := strings.ReplaceAll(data, "\ufffd", "\xff") // what is no text is so in the files, too
		if err := os.WriteFile(path, []byte(raw), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
