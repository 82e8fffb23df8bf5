package sifbuild

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fence/test/bed"
)

// tasks makes n plain task folders, with what each Dockerfile says. Their
// owner is whoever runs the test: everybody may read them.
func (p *place) tasks(n int, dockerfile func(i int) string) {
	p.t.Helper()
	for i := range n {
		dir := p.path(fmt.Sprintf("tasks/t%04d", i))
		p.must(os.Mkdir(dir, 0o755))
		p.must(os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile(i)), 0o644))
		p.must(os.WriteFile(filepath.Join(dir, "own"), []byte("same"), 0o644))
	}
}

// Thousands of Dockerfiles are planned in one go. Those that mean nothing are
// named, each with its line, and keep nobody else from a plan.
func TestMany_Plan(t *testing.T) {
	t.Parallel()
	const tasks, images, every = 5000, 40, 100
	p := newPlace(t)
	wrong := []struct{ file, want string }{
		{"FROM busybox\nRUNN true\n", ":2: "},
		{"FROM busybox\nCOPY nowhere /x\n", ":2: "},
		{"{dockerfile}\n", ":1: "},
		{"FROM busybox AS a\nCOPY --from=b /x /x\nFROM a AS b\n", ":2: "},
		{"# nothing else\n", "Dockerfile"},
	}
	p.tasks(tasks, func(i int) string {
		if i%every == 0 {
			return wrong[i/every%len(wrong)].file
		}
		return fmt.Sprintf("FROM busybox\nCOPY own /own\nENV N=%d\n", i%images)
	})
	cmd := bed.Command(t, bed.Bin(t, "sifbuild"), "plan", "--json", "--cache", p.path("cache"), "--base", p.bases[0], p.path("tasks"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3: some tasks have no plan\n%s", code, stderr.String())
	}
	planned, keys, failed := 0, map[string]bool{}, map[string]string{}
	for line := range strings.Lines(stdout.String()) {
		var r struct {
			Key   string
			Tasks []string
			Error string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r.Error != "" {
			failed[r.Tasks[0]] = r.Error
			continue
		}
		keys[r.Key], planned = true, planned+len(r.Tasks)
	}
	if planned != tasks-tasks/every || len(keys) != images {
		t.Errorf("%d tasks have a plan, of %d images; want %d of %d", planned, len(keys), tasks-tasks/every, images)
	}
	for i := 0; i < tasks; i += every {
		name, want := fmt.Sprintf("t%04d", i), wrong[i/every%len(wrong)].want
		if got := failed[name]; !strings.Contains(got, name+"/Dockerfile") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want the file and %q", name, got, want)
		}
	}
}

// A second run over a thousand tasks does nothing at all.
func TestMany_Again(t *testing.T) {
	t.Parallel()
	const tasks, images = 1000, 10
	p := newPlace(t)
	p.tasks(tasks, func(i int) string {
		return fmt.Sprintf("FROM busybox\nCOPY own /own\nRUN echo %d > /n\n", i%images)
	})
	built := 0
	for _, r := range p.build(nil, "--no-smoke", "-j", "2") {
		built += r.Built
	}
	if built == 0 {
		t.Fatal("the first run did nothing")
	}
	logs := func() (all []string) {
		files, err := filepath.Glob(p.path("cache/logs/*"))
		p.must(err)
		for _, f := range files {
			st, err := os.Stat(f)
			p.must(err)
			all = append(all, fmt.Sprint(st.Name(), st.Size(), st.ModTime()))
		}
		return all
	}
	before := fmt.Sprint(logs())
	again := p.build(nil, "--no-smoke", "-j", "2")
	if len(again) != tasks {
		t.Errorf("%d records of %d tasks", len(again), tasks)
	}
	for name, r := range again {
		if !r.Cached || r.Built != 0 {
			t.Errorf("%s: cached %v, %d steps", name, r.Cached, r.Built)
		}
	}
	if after := fmt.Sprint(logs()); after != before || len(logs()) != images {
		t.Errorf("the logs of the builds are\n%s\nand were\n%s", after, before)
	}
}
