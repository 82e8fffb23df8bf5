package guide

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"fence/test/bed"
	"fence/test/modelserver"
)

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every block of commands in README.md is typed as it stands there, in a new
// shell in a folder of the person's that has what it speaks of. It works, and
// the first minute shows the table.
func TestReadme_Commands(t *testing.T) {
	p := newPlace(t).wheelhouse().tasks()
	blocks := regexp.MustCompile(`(?m)^    \S.*\n(?:    .*\n)*`).FindAllString(regexp.MustCompile("(?s)```.*?```").ReplaceAllString(readme(t), ""), -1)
	typed := 0
	model := modelserver.Start(t, modelserver.Say(modelserver.Turn("a copy", false, "cp question answer\n")), modelserver.Say(modelserver.Turn("done", true)))
	for _, block := range blocks {
		if strings.HasPrefix(block, "    make ") {
			continue // the demo and the tests themselves
		}
		typed++
		name, _, _ := strings.Cut(strings.TrimSpace(block), "\n")
		t.Run(name, func(t *testing.T) {
			p := place{t, p.dir}
			block := strings.ReplaceAll(block, "http://gpu01:8000/v1", model.Base)
			if strings.Contains(block, "pip install") || strings.Contains(block, "python3 -m") {
				p.image("workloads")
				defer p.image("debian")
			}
			r := p.sh("set -e\n" + block)
			for i := 0; i < 2 && r.code == 3; i++ {
				t.Log("a check got no answer in time: again")
				r = p.sh("set -e\n" + block)
			}
			p.ok(r)
			if strings.Contains(block, model.Base) {
				rewards, _ := filepath.Glob(p.path("model/*/verifier/reward.txt"))
				if len(rewards) != 1 || p.read(strings.TrimPrefix(rewards[0], p.dir+"/")) != "1\n" {
					t.Errorf("what the model did has the rewards %q; it says\n%s", rewards, r.stderr)
				}
				if !strings.Contains(p.read("pages/index.html"), "<script") {
					t.Error("pages/index.html is no report")
				}
			}
			if want := table(readme(t)); strings.Contains(block, "probe diff") && (table(r.stdout) != want || strings.Count(r.stdout, "\nanswer: yes") != 2) {
				t.Errorf("it shows\n%s\nwant\n%s", r.stdout, want)
			}
			if strings.Contains(block, "sifbuild build") {
				numbers := regexp.MustCompile(`[0-9.]+([smMG]|m[0-9]+s)\b`) // sizes and times
				want := regexp.MustCompile("(?s)```\n(sifbuild: .*?)```").FindStringSubmatch(readme(t))
				if want == nil || !strings.Contains(numbers.ReplaceAllString(r.stderr, "N"), numbers.ReplaceAllString(want[1], "N")) {
					t.Errorf("it says\n%s\nwant\n%s", r.stderr, want)
				}
				if n := strings.Count(p.read("images.jsonl"), `"smoke":"ok"`); n != 2 {
					t.Errorf("%d images were started once:\n%s", n, p.read("images.jsonl"))
				}
			}
		})
	}
	if typed < 3 {
		t.Errorf("README.md has %d blocks of commands: %q", typed, blocks)
	}
}

// Every example of fence's --help works as it stands there, in a folder below
// the home, which is hidden.
func TestHelp_Examples(t *testing.T) {
	bed.Require(t, "slurm")
	p := placeIn(t, bed.HomeDir).wheelhouse()
	help := p.ok(p.sh("fence --help; for c in env check explain policies; do fence $c --help; done")).stdout
	p.write("solve.py", "print(6 * 7)\n", 0o644)
	p.write("solve.sh", "ls "+p.path("wheels")+"\n", 0o644)
	p.write("wheels.toml", strings.ReplaceAll(regexp.MustCompile(`(?m)^     version = 1\n(?:     .*\n)*`).FindString(help), "/wheels", p.path("wheels")), 0o644)
	has := p.sh("command -v jq python3").stdout
	examples := 0
	for _, block := range regexp.MustCompile(`(?m)^   Examples:\n((?:     .*\n)*)`).FindAllStringSubmatch(help, -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "   ") // a remark
			examples++
			script := line
			for _, tool := range []string{"jq", "python3"} { // not every node has them
				if strings.Contains(line, tool) && !strings.Contains(line, "apptainer ") && !strings.Contains(has, "/"+tool+"\n") {
					script = "echo 42"
				}
			}
			if strings.HasPrefix(line, "apptainer ") {
				script = `eval "$(fence env)"; ` + line
			}
			r := p.sh("export TMPDIR=$(mktemp -d); set -eo pipefail; " + script)
			if r.code != 0 || strings.Contains(line, "solve.py") && r.stdout != "42\n" || strings.Contains(line, "solve.sh") && r.stdout != "requests-1.0-py3-none-any.whl\n" {
				t.Errorf("%s: exit code %d\n%s%s", line, r.code, r.stdout, r.stderr)
			}
		}
	}
	if examples < 12 {
		t.Errorf("%d examples in\n%s", examples, help)
	}
}

// What README.md shows of other files is in them.
func TestReadme_Examples(t *testing.T) {
	text := readme(t)
	for name, kind := range map[string]string{"task.sbatch": "bash", "session.sbatch": "bash", "wheels.toml": "toml"} {
		if !strings.Contains(text, "```"+kind+"\n"+example(t, name)+"```\n") {
			t.Errorf("README.md does not have examples/%s as it is", name)
		}
	}
}

// Every file that a page links to is there.
func TestDocs_Links(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	pages, err := filepath.Glob("../../docs/*.md")
	records, failed := filepath.Glob("../../docs/decisions/*.md")
	if err = errors.Join(err, failed); err != nil || len(pages) < 10 || len(records) < 10 {
		t.Fatalf("%v: %d pages, %d records", err, len(pages), len(records))
	}
	for _, page := range slices.Concat([]string{"../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md"}, pages, records) {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// docs/README.md leads to every page and decision, once.
func TestPages_Index(t *testing.T) {
	data, err := os.ReadFile("../../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.md", "decisions/*.md"} {
		files, err := filepath.Glob("../../docs/" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("docs/%s: %v", pattern, err)
		}
		for _, f := range files {
			name := strings.TrimPrefix(f, "../../docs/")
			if n := strings.Count(string(data), "]("+name+")"); name != "README.md" && n != 1 {
				t.Errorf("docs/README.md leads to docs/%s %d times", name, n)
			}
		}
	}
}

// table is the five rows and their heading, without what differs from machine
// to machine.
func table(text string) string {
	var rows []string
	for line := range strings.Lines(text) {
		if words := strings.Join(strings.Fields(line), " "); regexp.MustCompile(`^(host )?before after$|^(ok|NO|\?\?) `).MatchString(words) {
			rows = append(rows, words)
		}
		if len(rows) == 6 {
			break
		}
	}
	return strings.Join(rows, "\n")
}

// test/demo shows what README.md shows, on 80 columns, and what it says to type
// next works.
func TestDemo(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: as root the demo brings up the test bed")
	}
	cmd := exec.CommandContext(t.Context(), "../demo")
	cmd.Env = append(os.Environ(), "OUT="+p.path("demo"), "BED_BIN="+p.path("bin"))
	r := p.run(cmd)
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if got, want := table(r.stdout), table(readme(t)); got != want || strings.Count(want, "\n") != 5 {
		t.Errorf("the demo shows\n%s\nREADME.md\n%s", got, want)
	}
	columns(t, r.stdout)
	if n := strings.Count(r.stdout, "answer: yes"); n != 2 {
		t.Errorf("%d answers are yes:\n%s", n, r.stdout)
	}
	// What it says to type next, typed by the person.
	_, next, ok := strings.Cut(r.stdout, "Next, type:\n")
	if !ok {
		t.Fatalf("it does not say what to type next:\n%s", r.stdout)
	}
	var typed []string
	for line := range strings.Lines(next) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "  #")
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && line != "su fencer" {
			typed = append(typed, strings.Replace(line, "less ", "cat ", 1))
		}
	}
	if len(typed) < 6 {
		t.Errorf("it says to type %q", typed)
	}
	script := "set -e\n" + strings.Join(typed, "\n") + " -c 'echo a shell'\n"
	if r := p.sh(script); r.code != 0 || !strings.HasSuffix(r.stdout, "a shell\n") || !strings.Contains(r.stdout, "\nrisk ") {
		t.Errorf("exit code %d\n%s\n%s%s", r.code, script, r.stdout, r.stderr)
	}
}

// As anybody else: with an image of their own, with none, without apptainer,
// and on a node where fence refuses.
func TestDemo_OrdinaryUser(t *testing.T) {
	p := newPlace(t)
	data, err := os.ReadFile("../demo")
	if err != nil {
		t.Fatal(err)
	}
	p.write("bin/demo", string(data), 0o755)
	for _, tc := range []struct {
		name, env string
		limits    []string
		codes     []int
		says      []string
		never     string
	}{
		{"an image", "IMAGE=" + bed.Image("busybox"), nil, []int{0}, []string{"ok Shared project filesystem visible visible not mounted", "answer: yes"}, ""},
		{"no image", "", nil, []int{0}, []string{"ok Shared project filesystem visible visible not mounted", "answer: yes"}, "-- sh"},
		{"an image that is none", "IMAGE=/etc/passwd", nil, []int{3}, []string{"demo: probe does not run in /etc/passwd: "}, "answer:"},
		{"no such image", "IMAGE=nosuch.sif", nil, []int{3}, []string{"demo: IMAGE=nosuch.sif is not there"}, "answer:"},
		{"no apptainer", "PATH=/usr/bin:/bin BED_DIR=/nonexistent", nil, []int{0},
			[]string{"ok Shared project filesystem visible masked", "== What this cannot show There is no apptainer in PATH.", "answer: yes"}, "apptainer exec"},
		{"no user namespaces", "", []string{"max_user_namespaces=0"}, []int{125}, []string{"== The command was not run", "hint: or take the risk by name"}, "answer:"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := place{t, p.dir}
			r := p.ends(p.on(tc.limits, "env BED_BIN=$PWD/bin OUT=$PWD/out "+tc.env+" bash bin/demo"), tc.codes...)
			words := strings.Join(strings.Fields(r.stdout+r.stderr), " ")
			for _, want := range tc.says {
				if !strings.Contains(words, want) {
					t.Errorf("it does not say %q:\n%s%s", want, r.stdout, r.stderr)
				}
			}
			if tc.never != "" && strings.Contains(r.stdout, tc.never) {
				t.Errorf("it says %q:\n%s", tc.never, r.stdout)
			}
			columns(t, r.stdout)
		})
	}
}

func columns(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		// A path is as long as it is.
		if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > 80 && !strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "  export PATH=/") {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
}
