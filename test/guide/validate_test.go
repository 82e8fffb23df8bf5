package guide

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"fence/test/bed"
	"fence/test/tasks"
)

// The jobs of an array share a validation: each trial is one's, the folder has
// all, and a job that is submitted again has nothing to do.
func TestExamples_ValidateArray(t *testing.T) {
	t.Parallel()
	const jobs = 2
	p := withExamples(t).tasks()
	wants := tasks.Wants()
	names := []string{"artifacts", "broken-grader", "reward-text", "variables"}
	if os.Getenv("TEST_FULL") != "" {
		names = nil
		for name := range wants {
			if name != "pytest" && name != "wheels" { // they need more than their folder
				names = append(names, name)
			}
		}
	}
	args := []string{"--array=1-2", "validate.sbatch", "--base", "debian:12=" + bed.Root("debian"), "--base", "busybox:1=" + bed.Root("busybox"), "--require", "none"}
	for _, name := range names {
		if err := os.CopyFS(p.path("ours/"+name), os.DirFS("../tasks/"+name)); err != nil {
			t.Fatal(err)
		}
		args = append(args, "ours/"+name)
	}
	for _, again := range []bool{false, true} {
		r := p.submit(args...)
		got, files := p.rewards("validate-*.jsonl")
		logs := p.logs("validate-*.log")
		if len(files) != jobs || r.code != 1 && r.code != 3 { // a broken grader, and no verdict: whose is whose share, and the larger code is told
			t.Errorf("%d files of records, exit code %d\n%s%s", len(files), r.code, r.stderr, logs)
		}
		for name, n := range files {
			if n == 0 {
				t.Errorf("%s has no record: it did nothing of the work", name)
			}
		}
		for _, name := range names {
			for agent, want := range map[string]string{"oracle": wants[name].Oracle, "nop": wants[name].Nop} {
				if want == "n/a" {
					want = "solution_missing"
				}
				if got := got[agent+" "+name]; got != want {
					t.Errorf("%s of %s: %q, want %q", agent, name, got, want)
				}
			}
		}
		if again && strings.Contains(logs, "rollout: 1/") {
			t.Errorf("it was run again:\n%s", logs)
		}
		p.ok(p.sh("rm validate-*"))
	}
	report := p.ok(p.sh("rollout report validation"))
	if !regexp.MustCompile(`ours +\d+/\d+ +\d+/\d+ +\d+/\d+`).MatchString(report.stdout) || !strings.Contains(report.stdout, "passed with no action") {
		t.Errorf("the table of the whole:\n%s%s", report.stdout, report.stderr)
	}
}

// rewards are those of records, or the classes of their faults, by agent and
// task, and how many records each file has. One that is there twice is an error.
func (p place) rewards(pattern string) (all map[string]string, files map[string]int) {
	p.t.Helper()
	all, files = map[string]string{}, map[string]int{}
	names, _ := filepath.Glob(p.path(pattern))
	for _, name := range names {
		files[filepath.Base(name)] = 0
		data, err := os.ReadFile(name)
		if err != nil {
			p.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var one struct {
				Task      string
				AgentInfo struct{ Name string } `json:"agent_info"`
				Reward    float64
				Fault     *struct{ Class string }
			}
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				p.t.Fatal(err)
			}
			files[filepath.Base(name)]++
			key, value := one.AgentInfo.Name+" "+filepath.Base(one.Task), strconv.FormatFloat(math.Round(one.Reward*1e4)/1e4, 'f', -1, 64)
			if one.Fault != nil {
				value = one.Fault.Class
			}
			if _, twice := all[key]; twice {
				p.t.Errorf("%s has two records", key)
			}
			all[key] = value
		}
	}
	return all, files
}

// logs are all files of that pattern.
func (p place) logs(pattern string) string {
	p.t.Helper()
	files, _ := filepath.Glob(p.path(pattern))
	var text strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			p.t.Fatal(err)
		}
		text.WriteString(filepath.Base(f) + ":\n" + string(data))
	}
	return text.String()
}
