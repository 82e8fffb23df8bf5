package rollout

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fence/pkg/result"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/bed"
	ms "fence/test/modelserver"
)

// Of a task with steps, each has its own conversation, counts and recording, and
// the trial has all of them. What was typed can be typed again.
func TestTerminus_Steps(t *testing.T) {
	p := newPlace(t)
	p.task("two", "", rewards, "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n")
	p.write("tasks/two/steps/one/instruction.md", "First.\n")
	p.write("tasks/two/steps/two/instruction.md", "Second.\n")
	// What is to be seen has its time, then and when it is typed again.
	slow := func(keys string) ms.Answer {
		return ms.Say(strings.Replace(ms.Turn("a", false, keys), `"duration":0.1`, `"duration":3`, 1))
	}
	s := ms.Start(t, slow("touch /it; echo >/.fence/x\n"), done, done, turn("rm /it\n"),
		slow(`printf '\033[?1049h\033[2J\033[7;3H\033[1;38;2;255;120;0m日本\033[0m é\033[9;150Hthe edge\033[12;1H'`+"\n"), done)
	r := p.model(s.Base, "--token-ids")
	rec := r.records["terminus two"]
	if word(rec) != "0.5" || len(rec.StepResults) != 2 || rec.Agent.Turns != 7 || rec.AgentResult != nil {
		t.Fatalf("%s of %d steps, %+v, all it used stands there %v, %+v\n%s", word(rec), len(rec.StepResults), rec.Agent, rec.AgentResult != nil, rec.Fault, r.stderr)
	}
	in, out := 0, 0
	for i, n := range []int{3, 4} {
		step := rec.StepResults[i]
		turns, sum := p.turns(rec, "steps", step.StepName), trajectory.Tokens{}
		for _, turn := range turns {
			sum.Add(turn)
		}
		in, out = in+*sum.Prompt, out+*sum.Completion
		if u := step.AgentResult; len(turns) != n || step.Agent.Turns != n || *u.InputTokens != *sum.Prompt || *u.OutputTokens != *sum.Completion || u.Metadata["turns_that_met_the_fence"] != float64(1-i) || len(u.RolloutDetails) != 1 {
			t.Errorf("step %s: %d turns, %+v, %v", step.StepName, len(turns), step.Agent, u.Metadata)
		}
		if opening := turns[0].Prompt; !strings.Contains(opening, []string{"First.", "Second."}[i]) {
			t.Errorf("step %s begins with %q", step.StepName, opening)
		}
	}
	var job result.Job
	if err := result.ReadJob(p.path("out/run/result.json"), &job); err != nil || *job.Stats.InputTokens != in || *job.Stats.OutputTokens != out {
		t.Errorf("%v; the job has %v and %v tokens, the turns %d and %d", err, job.Stats.InputTokens, job.Stats.OutputTokens, in, out)
	}
	said, err := p.command("report", "out/run", "--json").Output()
	if want := fmt.Sprintf(`"turns":7,"replies":{"unread":0,"truncated":0,"hand_overs":0},"met_fence":{"turns":1,"trials":1,"known":1},"tokens":{"input":%d,"output":%d,"trials":1}`, in, out); err != nil || !bytes.Contains(said, []byte(want)) {
		t.Errorf("%v: no %s in\n%s", err, want, said)
	}
	// The recording shows in the end what the model saw.
	trial := filepath.Join("out/run", rec.TrialName)
	two := p.path(trial, "steps/two/agent")
	screen, ok := strings.CutPrefix(p.turns(rec, "steps/two")[1].Output, "Current terminal screen:\n")
	cast := readFile(t, filepath.Join(two, "recording.cast"))
	if code, shown := played(t, cast); code != "0" || !ok || shown != screen || !strings.Contains(shown, "\n  日本 é\n\n") {
		t.Errorf("asciinema ends with %s and shows\n%s\nthe model saw\n%s", code, shown, screen)
	}
	if code, shown := played(t, bytes.Replace(cast, []byte(`"version":2`), []byte(`"version":7`), 1)); code == "0" || !strings.Contains(shown, "only asciicast") {
		t.Errorf("of something else it ends with %s and shows\n%s", code, shown)
	}
	// What was typed is typed again, and what is typed decides what comes of it.
	if r := p.run(p.command("replay", trial, "--scratch", p.path("scratch"), "--out", "out/again")); r.code != 0 {
		t.Errorf("typed again: exit code %d\n%s", r.code, r.stderr)
	}
	now, err := filepath.Glob(p.path("out/again/two__*/steps/two/agent/recording.cast"))
	if err != nil || len(now) != 1 {
		t.Fatalf("%v, %v", now, err)
	}
	if _, shown := played(t, readFile(t, now[0])); shown != screen {
		t.Errorf("typed again it shows\n%s\nand then it was\n%s", shown, screen)
	}
	file := filepath.Join(two, terminus.TurnsFile)
	if err := os.WriteFile(file, bytes.Replace(readFile(t, file), []byte(`"rm /it\n"`), []byte(`"ls /it\n"`), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := p.run(p.command("replay", trial, "--scratch", p.path("scratch"))); r.code != 1 || !strings.Contains(r.stderr, "it does not come out the same") {
		t.Errorf("with other keys: exit code %d\n%s", r.code, r.stderr)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// played is what asciinema says in the end of a recording, and what is then to
// be seen in a terminal.
func played(t *testing.T, cast []byte) (code, screen string) {
	t.Helper()
	bed.Require(t, "tools")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cast"), cast, 0o644); err != nil {
		t.Fatal(err)
	}
	tmux := tmuxIn(t, dir)
	tmux("new-session", "-d", "-x", "160", "-y", "40", "asciinema play -i 0.01 cast; echo $? >code; tmux -S socket wait-for -S over; exec sleep infinity")
	defer tmux("kill-server")
	tmux("wait-for", "over")
	said, err := os.ReadFile(filepath.Join(dir, "code"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(said)), strings.TrimRight(tmux("capture-pane", "-p"), "\n")
}

// tmuxIn runs commands of a tmux server of its own, in a folder.
func tmuxIn(t *testing.T, dir string) func(...string) string {
	return func(args ...string) string {
		t.Helper()
		cmd := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", "socket"}, args...)...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %s: %v\n%s", args[0], err, out)
		}
		return string(out)
	}
}

// Pieces of which a program's output is made that nobody expects: strings that
// do not end, sequences within sequences, numbers without measure.
var pieces = []string{"\x1b]", "0;", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1bk", "\x1b\\", "\x1b", "\x18", "\x1a", "\a", "a", "bc", "q", "1", ";", ":", "?", " ", "!", "\r\n", "\t", "é", "日", "e\u0301", "\x1b[", "\x1b[99999L",
	"\x1b[5@", "\x1b[999999999P", "\x1b[3X", "\x1b[999;999Hz", "\x1b[H", "\x1b[3;5H", "\x1b[2S", "\x1b[T", "\x1b[31m", "\x1b[3", "\x1b[J", "\x1b[1K", "\x1b(0", "\x1b(B", "\\", "\x7f", "\x1bM", "\x1b7", "\x1b8", "m", "x\x1b[5b", "\x1bc"}

// Of whatever is printed a recording shows what tmux, and so a model, shows.
func TestRecording_ShowsWhatTmuxShows(t *testing.T) {
	bed.Require(t, "tools")
	dir := t.TempDir()
	tmux := tmuxIn(t, dir)
	tmux("new-session", "-d", "-x", "80", "-y", "24", "exec sleep infinity")
	defer tmux("kill-server")
	show := func(s string) string {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		tmux("respawn-pane", "-k", `stty raw; cat f; printf '\033\\\033\\'; tmux -S socket wait-for -S over; exec sleep infinity`)
		tmux("wait-for", "over")
		return tmux("capture-pane", "-p")
	}
	chosen := rand.New(rand.NewPCG(0, 0))
	for range 60 {
		s := "start "
		for range 5 + chosen.IntN(30) {
			s += pieces[chosen.IntN(len(pieces))]
		}
		p := trajectory.Plain{Width: 80, Height: 24}
		recorded := p.Filter(0, s)
		if was, now := show(s), show(recorded); was != now {
			t.Errorf("%q is recorded as %q, which shows\n%s\nand it was\n%s", s, recorded, now, was)
		}
	}
}
