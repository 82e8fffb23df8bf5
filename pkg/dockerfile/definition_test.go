package dockerfile

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDefinition holds the whole text against testdata; UPDATE=1 writes it.
func TestDefinition(t *testing.T) {
	o := options(t)
	file, err := os.ReadFile("testdata/definition.Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	o.File = "Dockerfile"
	got, err := Definition(mustPlan(t, o, string(file)))
	if err != nil {
		t.Fatal(err)
	}
	got = strings.ReplaceAll(got, o.Context, "/context")
	const golden = "testdata/definition.def"
	if os.Getenv("UPDATE") != "" {
		write(t, golden, got)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	checkDefinition(t, got)
}

// section is a line that Apptainer takes for the start of one.
var section = regexp.MustCompile(`^\s*%(\S+)`)

// checkDefinition: no text of the Dockerfile's is taken for one of the
// definition's own lines. (Apptainer's parser: a section begins where a line
// does with %; {{ }} is replaced anywhere; bootstrap: begins a stage.)
func checkDefinition(t *testing.T, def string) {
	t.Helper()
	head := true
	for n, line := range strings.Split(def, "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if m := section.FindStringSubmatch(line); m != nil {
			head = false
			if !strings.HasPrefix(line, "%") || !strings.Contains(" files post environment labels runscript ", " "+m[1]+" ") {
				t.Errorf("line %d is a section: %q", n+1, line)
			}
			continue
		}
		lower := strings.ToLower(strings.TrimSpace(line))
		if strings.HasPrefix(lower, "bootstrap:") {
			if !strings.HasPrefix(line, "Bootstrap: ") {
				t.Errorf("line %d begins a stage: %q", n+1, line)
			}
			head = true
		}
		if strings.Contains(line, "{{") {
			t.Errorf("line %d has a build argument: %q", n+1, line)
		}
		if head && line != "" && !strings.Contains(line, ": ") {
			t.Errorf("line %d is no header: %q", n+1, line)
		}
	}
}

// TestDefinition_Hostile: texts that a definition would read as its own.
func TestDefinition_Hostile(t *testing.T) {
	o := options(t)
	for i, file := range []string{
		"FROM base\nRUN <<E\n%files\n/etc/shadow /x\nE", "FROM base\nRUN echo '\\\n%post'\nRUN echo {{ x }}",
		"FROM base\nRUN <<E\nBootstrap: docker\nFrom: evil\nE", "FROM base\nENV A={{x}} B=%post",
		"FROM base\nLABEL a={{x}} \"b\n\"=c %post=x", "FROM base\nCMD [\"a\\n%post\", \"{{ y }}\"]",
		"FROM base\nCOPY <<E /x\n%post\nrm -rf /\nE", "FROM base\nCOPY src/a {{ x }}/a", "FROM base\nWORKDIR /{{ x }}\nUSER \"{{ u }}\"",
		"FROM base\nRUN --mount=type=secret,id={{x}},env={{y}} x\nVOLUME {{z}}", "FROM base AS stage\nFROM base\nCOPY --from=stage {{a}} %b /",
	} {
		p, err := New(t.Context(), []byte(file), o)
		if err != nil {
			continue // a template
		}
		def, err := Definition(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) { checkDefinition(t, def) })
	}
}

// TestNew_Large plans a Dockerfile of 1,500 lines.
func TestNew_Large(t *testing.T) {
	o := options(t)
	var b strings.Builder
	b.WriteString("FROM base\n")
	for i := range 499 {
		fmt.Fprintf(&b, "ENV V%d=$V%d.%d\nRUN echo $V%[1]d\nCOPY src/a /d/%[1]d/\n", i, i-1, i%7)
	}
	p := mustPlan(t, o, b.String())
	steps := last(p).Steps
	if len(steps) != 998 || len(steps[996].Run.Env) != 2+499 {
		t.Errorf("%d steps, %d variables", len(steps), len(steps[996].Run.Env))
	}
	if n := strings.Count(b.String(), "\n"); n < 1498 {
		t.Errorf("only %d lines", n)
	}
}

// BenchmarkPlan5000 plans 5,000 small Dockerfiles, each with a context of its
// own, as sifbuild plan does for a folder of tasks.
func BenchmarkPlan5000(b *testing.B) {
	dir := b.TempDir()
	for i := range 5000 {
		write(b, filepath.Join(dir, fmt.Sprint(i), "Dockerfile"), fmt.Sprintf(
			"FROM base\nARG V=%d\nENV DEBIAN_FRONTEND=noninteractive TASK=$V\nRUN apt-get update && apt-get install -y tmux\nWORKDIR /app\nCOPY . .\nRUN <<E\nset -e\nmake\nE\nCMD [\"bash\"]\n", i))
		write(b, filepath.Join(dir, fmt.Sprint(i), "app/main.py"), "print()\n")
	}
	for b.Loop() {
		for i := range 5000 {
			context := filepath.Join(dir, fmt.Sprint(i))
			data, err := os.ReadFile(filepath.Join(context, "Dockerfile"))
			if err != nil {
				b.Fatal(err)
			}
			p := mustPlan(b, Options{File: filepath.Join(context, "Dockerfile"), Context: context, Platform: amd64, Base: testBase}, string(data))
			if len(p.Inputs) != 2 {
				b.Fatal(p.Inputs)
			}
		}
	}
}
