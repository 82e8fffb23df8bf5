package harbor

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"fence/test/bed"
	ms "fence/test/modelserver"
)

// tasks are two of steps, one that has no verdict, and one that is plain.
func tasks(t *testing.T, dir string) {
	t.Helper()
	const verdict = "#!/bin/sh\n[ -f /it ]; echo $((1 - $?)) >/logs/verifier/reward.txt\n"
	for name, text := range map[string]string{
		"fault/task.toml": "", "fault/tests/test.sh": "#!/bin/sh\n", "fault/instruction.md": "Fault.\n", "fault/solution/solve.sh": "#!/bin/sh\n",
		"plain/task.toml": "", "plain/tests/test.sh": verdict, "plain/instruction.md": "Plain.\n", "plain/solution/solve.sh": "#!/bin/sh\ntouch /it\n",
		"steps/task.toml": "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n", "steps/tests/test.sh": verdict,
		"steps/steps/one/instruction.md": "First.\n", "steps/steps/one/solution/solve.sh": "#!/bin/sh\n",
		"steps/steps/two/instruction.md": "Second.\n", "steps/steps/two/solution/solve.sh": "#!/bin/sh\ntouch /it\n",
	} {
		at := filepath.Join(dir, name)
		for _, err := range []error{
			os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o755),
			os.MkdirAll(filepath.Join(dir, strings.Split(name, "/")[0], "environment"), 0o755),
			os.WriteFile(filepath.Join(dir, strings.Split(name, "/")[0], "environment/Dockerfile"), []byte("FROM busybox:1\n"), 0o644),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Harbor's models take the folders of real runs, with their trajectories and
// token ids: of scripted agents and a model's, in steps and with a hand-over,
// with faults and without.
func TestModels_TakeRuns(t *testing.T) {
	bed.Require(t, "users", "images", "apptainer", "harbor")
	dir := bed.TempDir(t)
	tasks(t, filepath.Join(dir, "tasks"))
	turn := func(done bool, keys ...string) ms.Answer { return ms.Say(ms.Turn("a", done, keys...)) }
	script := []ms.Answer{turn(false, "touch /it\n"), ms.Overflow(1000, 2000), ms.Say("sum"), ms.Say("what?"), ms.Say("that"), turn(true), turn(true), turn(false, "ls\n", "C-c"), turn(true)}
	var asked atomic.Int32
	s := ms.Start(t, func(w http.ResponseWriter, r ms.Request) {
		if strings.Contains(r.Messages[0].Content, "Plain.") { // a model that never answers
			ms.Status(http.StatusUnauthorized, `{}`)(w, r)
			return
		}
		script[min(int(asked.Add(1)), len(script))-1](w, r)
	})
	for _, run := range []struct {
		agent, exclude string
		more           []string
		want           string // trials, pass@k, trajectories
	}{
		{"oracle", "none", nil, "ok 3 0 0\n"},
		{"terminus", "fault", []string{"--api-base", s.Base, "--model", "m", "--token-ids"}, "ok 2 0 3\n"},
	} {
		out := filepath.Join(dir, run.agent)
		cmd := bed.Command(t, bed.Bin(t, "rollout"), append([]string{"run", filepath.Join(dir, "tasks"), "--image", bed.Image("busybox"), "--out", out, "--scratch", dir, "--agent", run.agent, "--exclude", run.exclude, "--retries", "0"}, run.more...)...)
		said, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 { // each has a fault
			t.Fatalf("%v\n%s", err, said)
		}
		if got, err := models(t, "read", out); err != nil || got != run.want {
			t.Fatalf("%s: %s, want %s%v\n%s", run.agent, got, run.want, err, said)
		}
	}
	// And refuse a trajectory and token ids that are none.
	for _, c := range []struct{ file, from, to, because string }{
		{"terminus/steps__*/steps/one/agent/trajectory.json", `"source": "system"`, `"source": "tool"`, "for Trajectory\n"},
		{"terminus/steps__*/steps/one/agent/trajectory.json", `"total_steps": `, `"total_steps": 1`, "total_steps == "},
		{"terminus/steps__*/steps/two/agent/trajectory.json", `"completion_token_ids": \[0,`, `"completion_token_ids": [7,`, "assert ids == "},
		{"terminus/plain__*/agent/trajectory.json", `"steps": \[[^]]*\]`, `"steps": []`, "for Trajectory\n"},
		{"terminus/steps__*/result.json", `(?s)("prompt_token_ids": \[\s*\[\s*)0,`, `${1}"a",`, "for TrialResult\n"},
		{"terminus/steps__*/result.json", `(?s)("logprobs": \[\s*\[\s*)-0.5,`, `${1}`, `d["logprobs"]`},
	} {
		found, err := filepath.Glob(filepath.Join(dir, c.file))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", c.file, found, err)
		}
		good, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		bad := regexp.MustCompile(c.from).ReplaceAll(good, []byte(c.to))
		if bytes.Equal(bad, good) {
			t.Errorf("%s has no %s", c.file, c.from)
			continue
		}
		if err := os.WriteFile(found[0], bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if said, err := models(t, "read", filepath.Join(dir, "terminus")); err == nil || !strings.Contains(err.Error(), c.because) {
			t.Errorf("%s with %s: %s%v", c.file, c.to, said, err)
		}
		if err := os.WriteFile(found[0], good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
