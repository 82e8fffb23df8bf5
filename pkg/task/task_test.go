package task

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// plant makes files below dir; a text "-> X" is a link, a name with a slash at
// its end an empty folder.
func plant(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for p, text := range files {
		full := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, full)
		} else if strings.HasSuffix(p, "/") {
			err = os.MkdirAll(full, 0o755)
		} else {
			err = os.WriteFile(full, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// good are the files of a whole task.
func good(name string, more map[string]string) map[string]string {
	files := map[string]string{"task.toml": "version = \"1.0\"\n", "instruction.md": "do", "environment/Dockerfile": "FROM x", "tests/test.sh": "", "solution/solve.sh": ""}
	for p, text := range more {
		files[p] = text
	}
	out := map[string]string{}
	for p, text := range files {
		if text != "-" {
			out[name+"/"+p] = text
		}
	}
	return out
}

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name string
		more map[string]string // files; "-" removes one
		want func(*Task)       // what differs from a plain task
		skip string            // or the reason
	}{
		{name: "plain", want: func(*Task) {}},
		{name: "all keys", more: map[string]string{"task.toml": `
			schema_version = "1.4"
			[metadata]
			anything = { goes = 1 }
			[agent]
			timeout_sec = 900
			network_mode = "no-network"
			[verifier.environment]
			os = "linux"
			[environment]
			build_timeout_sec = 1200
			docker_image = "python:3.12"
			os = "Linux"
			gpus = 0`},
			want: func(k *Task) { k.BuildTimeout, k.DockerImage = 20*time.Minute, "python:3.12" }},
		{name: "fractions of seconds", more: map[string]string{"task.toml": "[environment]\nbuild_timeout_sec = 0.5"}, want: func(k *Task) { k.BuildTimeout = 500 * time.Millisecond }},
		{name: "image under its newer name", more: map[string]string{"task.toml": "[environment]\nimage = \"a\"\n", "environment/Dockerfile": "-", "environment/": ""},
			want: func(k *Task) { k.DockerImage, k.Dockerfile = "a", "" }},
		{name: "unknown keys", more: map[string]string{"task.toml": "x = 1\n[environment]\ndocker_imag = \"a\"\n[agent]\nfoo = 1\n"}, want: func(k *Task) {
			k.Warnings = []string{"task.toml: the key agent.foo is not known", "task.toml: the key environment.docker_imag is not known: did you mean docker_image?", "task.toml: the key x is not known"}
		}},
		{name: "unknown keys further down", more: map[string]string{"task.toml": `
			artifacts = ["/a", {source = "/b", dest = "c"}]
			[environment.healthcheck]
			comand = "true"
			[[verifier.collect]]
			command = "true"
			foo = 1
			[metadata.free]
			x = 1
			[[steps]]
			name = "a"
			[[steps]]
			min_rewards = 1
			agent = {timeout = 1, user = "x"}
			verifier.environment.workdir = "/"
			verifier.environment.work_dir = "/"`}, want: func(k *Task) {
			k.Warnings = []string{"task.toml: the key artifacts[1].dest is not known",
				"task.toml: the key environment.healthcheck.comand is not known: did you mean command?",
				"task.toml: the key steps[1].agent.timeout is not known",
				"task.toml: the key steps[1].min_rewards is not known: did you mean min_reward?",
				"task.toml: the key steps[1].verifier.environment.work_dir is not known: did you mean workdir?",
				"task.toml: the key verifier.collect[0].foo is not known"}
		}},
		{name: "what a runner may refuse", more: map[string]string{"task.toml": "[environment]\nos = \"windows\"\ngpus = 2\n[environment.tpu]\ntype = \"v5\"", "instruction.md": "-"},
			want: func(k *Task) {
				k.Notes = []string{"it is for windows", "it asks for tpu", "it asks for gpus", "it has no instruction.md"}
			}},
		{name: "no tests", more: map[string]string{"tests/test.sh": "-", "solution/solve.sh": "-"}, want: func(k *Task) { k.Tests, k.Solution = "", "" }},
		{name: "a Dockerfile alone", more: map[string]string{"task.toml": "-", "Dockerfile": "FROM x"}, want: func(k *Task) {
			k.Dockerfile, k.Context = filepath.Join(k.Dir, "Dockerfile"), k.Dir
		}},
		{name: "compose, main from the Dockerfile", more: map[string]string{"environment/docker-compose.yaml": "services:\n  main:\n    build: .\n    image: ${MAIN_IMAGE_NAME}\n    command: [\"sh\", \"-c\", \"sleep infinity\"]\n"}, want: func(*Task) {}},
		{name: "compose, nothing of main's build", more: map[string]string{"environment/docker-compose.yml": "services:\n  main:\n    volumes: [\"a:/b\"]\n    ports: []\n"},
			want: func(k *Task) { k.Notes = []string{"its compose file also sets ports, volumes of main"} }},
		{name: "compose, build table", more: map[string]string{"environment/docker-compose.yaml": "services:\n  main:\n    build:\n      context: ${CONTEXT_DIR}/sub\n      dockerfile: D\n      target: st\n      args: {A: 1, B: x}\n", "environment/sub/D": "FROM x"},
			want: func(k *Task) {
				k.Context = filepath.Join(k.Context, "sub")
				k.Dockerfile, k.Target, k.Args = filepath.Join(k.Context, "D"), "st", map[string]string{"A": "1", "B": "x"}
			}},
		{name: "compose, argument list", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {context: ., args: [A=1=2]}}}"}, want: func(k *Task) { k.Args = map[string]string{"A": "1=2"} }},
		{name: "compose, only an image", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {image: busybox}}", "environment/Dockerfile": "-"},
			want: func(k *Task) { k.DockerImage, k.Dockerfile = "busybox", "" }},

		{name: "bad TOML", more: map[string]string{"task.toml": "a = 1\nb = \n"}, skip: "task.toml:2: "},
		{name: "environment is no table", more: map[string]string{"task.toml": "environment = 1"}, skip: "task.toml: environment must be a table"},
		{name: "image is no text", more: map[string]string{"task.toml": "[environment]\ndocker_image = 3"}, skip: "environment.docker_image must be text"},
		{name: "no time", more: map[string]string{"task.toml": "[environment]\nbuild_timeout_sec = 0"}, skip: "build_timeout_sec must be a number of seconds above 0"},
		{name: "not a time", more: map[string]string{"task.toml": "[environment]\nbuild_timeout_sec = nan"}, skip: "build_timeout_sec must be a number of seconds above 0"},
		{name: "no environment", more: map[string]string{"environment/Dockerfile": "-"}, skip: "it has no folder environment"},
		{name: "nothing to build", more: map[string]string{"environment/Dockerfile": "-", "environment/x": ""}, skip: "environment has no Dockerfile, and task.toml no docker_image"},
		{name: "two services", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: .}, db: {image: x}, cache: {}}"}, skip: "environment/docker-compose.yaml: it needs the services cache, db beside main"},
		{name: "no main", more: map[string]string{"environment/docker-compose.yaml": "services: {web: {build: .}}"}, skip: "it has no service main"},
		{name: "no services", more: map[string]string{"environment/docker-compose.yaml": "{}"}, skip: "it has no services"},
		{name: "bad YAML", more: map[string]string{"environment/docker-compose.yaml": "services: [\n"}, skip: "environment/docker-compose.yaml: line "},
		{name: "include", more: map[string]string{"environment/docker-compose.yaml": "include: [x.yaml]\nservices: {main: {build: .}}"}, skip: "it includes other files"},
		{name: "context outside", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {context: ..}}}"}, skip: "the context of main is outside environment"},
		{name: "Dockerfile outside", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {dockerfile: ../D}}}"}, skip: "the Dockerfile of main is outside environment"},
		{name: "Dockerfile missing", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {dockerfile: D}}}"}, skip: "the Dockerfile of main, environment/D, is missing"},
		{name: "other build keys", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {secrets: [x]}}}"}, skip: "services.main.build.secrets is not supported"},
		{name: "argument from outside", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {args: [A]}}}"}, skip: "the build argument A takes its value from the environment"},
		{name: "argument from a variable", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {args: {A: $B}}}}"}, skip: "the build argument A takes its value from the environment"},
		{name: "target from a variable", more: map[string]string{"environment/docker-compose.yaml": "services: {main: {build: {target: $B}}}"}, skip: "services.main.build.target depends on variables"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dataset := filepath.Join(t.TempDir(), "set")
			dir := filepath.Join(dataset, "task")
			plant(t, dataset, good("task", c.more))
			got, reason := load(dir)
			if c.skip != "" {
				if !strings.Contains(reason, c.skip) || strings.Contains(reason, "\n") {
					t.Errorf("reason %q, not %q", reason, c.skip)
				}
				return
			}
			want := Task{Name: "task", Dir: dir, Source: "set", Dockerfile: dir + "/environment/Dockerfile", Context: dir + "/environment",
				Tests: dir + "/tests", Solution: dir + "/solution", BuildTimeout: 10 * time.Minute}
			c.want(&want)
			if reason != "" || !reflect.DeepEqual(got, want) {
				t.Errorf("%s\ngot  %+v\nwant %+v", reason, got, want)
			}
		})
	}
}

func TestPrebuilt(t *testing.T) {
	for _, c := range []struct {
		image, file string
		force, want bool
	}{{"i", "f", false, true}, {"i", "f", true, false}, {"i", "", true, true}, {"", "f", false, false}} {
		if got := (Task{DockerImage: c.image, Dockerfile: c.file}).Prebuilt(c.force); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func names(tasks []Task) string {
	var out []string
	for _, t := range tasks {
		out = append(out, t.Source+"/"+t.Name)
	}
	return strings.Join(out, " ")
}

// sets is two datasets of three tasks each.
func sets(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, set := range []string{"one", "two"} {
		for _, name := range []string{"b", "c", "a"} {
			plant(t, filepath.Join(dir, set), good(name, nil))
		}
	}
	return dir
}

func TestFind(t *testing.T) {
	dir := sets(t)
	plant(t, dir, map[string]string{
		"one/README.md": "", "one/empty/": "", "one/half/environment/Dockerfile": "", "one/.git/config": "", "one/nest/x/task.toml": "",
		"one/gone": "-> /nonexistent", "one/file": "-> README.md", "one/same": "-> a", "one/other": "-> ../far", "one/bad/task.toml": "x",
	})
	plant(t, dir, good("far", nil))
	tasks, skipped, err := Find([]string{dir + "/one/"}, Selection{})
	if err != nil || names(tasks) != "one/a one/b one/c one/other" {
		t.Errorf("%s, %v", names(tasks), err)
	}
	want := map[string]string{"empty": "it has no task.toml, and no Dockerfile at its top", "half": "it has a folder environment but no task.toml",
		".git": "it has no task.toml", "nest": "it holds tasks itself: name it", "gone": "gone: no such file", "same": "it is the same folder as " + dir + "/one/a", "bad": "task.toml:1"}
	for _, s := range skipped {
		if w, ok := want[filepath.Base(s.Path)]; !ok || !strings.Contains(s.Reason, w) {
			t.Errorf("%s: %s", s.Path, s.Reason)
		}
		delete(want, filepath.Base(s.Path))
	}
	if len(want) > 0 {
		t.Errorf("not said: %v", want)
	}

	t.Chdir(dir)
	if tasks, skipped, err := Find([]string{"-"}, Selection{Stdin: strings.NewReader("two/c/tests\n{\"task\":\"two/c/steps/a/tests\"}\ntwo/c\n")}); err != nil || names(tasks) != "two/c" || len(skipped) > 0 {
		t.Errorf("records of a task and of its verifiers: %s, %v, %v", names(tasks), skipped, err)
	}
	for _, c := range []struct {
		args  string
		stdin string
		want  string
	}{
		{"one two", "", "one/a one/b one/c one/other two/a two/b two/c"},
		{"two/b two", "", "two/a two/b two/c"},
		{"two/b", "", "two/b"},
		{"-", `{"schema":"x/v1","task":"two/c"}` + "\n\n" + `{"schema":"summary/v1"}` + "\none/b\nnothing\n", "one/b two/c"},
	} {
		tasks, _, err := Find(strings.Fields(c.args), Selection{Stdin: strings.NewReader(c.stdin)})
		if err != nil || names(tasks) != c.want {
			t.Errorf("%s: %s, %v", c.args, names(tasks), err)
		}
	}
}

func TestFind_Selection(t *testing.T) {
	dir := sets(t)
	args := []string{dir + "/one", dir + "/two"}
	for _, c := range []struct {
		sel  Selection
		want string
	}{
		{Selection{Include: []string{"[ab]"}}, "one/a one/b two/a two/b"},
		{Selection{Include: []string{"a", "b"}, Exclude: []string{"b"}}, "one/a two/a"},
		{Selection{PerDataset: 1}, "one/a two/a"},
		{Selection{Limit: 4}, "one/a one/b one/c two/a"},
		{Selection{PerDataset: 2, Limit: 3}, "one/a one/b two/a"},
	} {
		tasks, _, err := Find(args, c.sel)
		if err != nil || names(tasks) != c.want {
			t.Errorf("%+v: %s, %v", c.sel, names(tasks), err)
		}
	}
	draws := map[string]bool{}
	for seed := range uint64(20) {
		sel := Selection{PerDataset: 1, Seed: seed + 1}
		tasks, _, err := Find(args, sel)
		again, _, _ := Find([]string{args[1], args[0]}, sel)
		if err != nil || len(tasks) != 2 || names(tasks) != names(again) {
			t.Errorf("seed %d: %s and %s, %v", seed, names(tasks), names(again), err)
		}
		draws[names(tasks)] = true
	}
	if len(draws) < 3 {
		t.Errorf("20 seeds drew only %v", draws)
	}
}

func TestFind_Errors(t *testing.T) {
	dir := sets(t)
	plant(t, dir, map[string]string{"none/a/x": "", "none/b/x": "", "none/c/task.toml": "y", "file": "", "empty/": ""})
	for _, c := range []struct {
		args []string
		sel  Selection
		want string
	}{
		{nil, Selection{}, "name task folders"},
		{[]string{dir + "/nothing"}, Selection{}, "looking for tasks: stat " + dir + "/nothing: no such file"},
		{[]string{dir + "/file"}, Selection{}, "is not a folder: name the folder of a task"},
		{[]string{dir + "/one"}, Selection{Include: []string{"["}}, `the pattern "["`},
		{[]string{"-"}, Selection{Stdin: strings.NewReader("{\n")}, "standard input, line 1"},
		{[]string{dir + "/none"}, Selection{}, "no task found in " + dir + "/none: looked at 3 folders; a and 1 more: it has no task.toml, and no Dockerfile at its top; c: task.toml:1"},
		{[]string{dir + "/one"}, Selection{Include: []string{"z*"}}, "no task has a name that --include and --exclude leave, of 3 in "},
		{[]string{dir + "/empty"}, Selection{}, "looked at 0 folders"},
	} {
		tasks, _, err := Find(c.args, c.sel)
		if err == nil || tasks != nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, not %q", c.args, err, c.want)
		}
	}
}

func BenchmarkFind5000(b *testing.B) {
	dir := b.TempDir()
	for i := range 5000 {
		plant(b, dir, good(fmt.Sprintf("task-%04d", i), map[string]string{"task.toml": "version = \"1.0\"\n[metadata]\na = 1\n[agent]\ntimeout_sec = 900.0\n[environment]\nbuild_timeout_sec = 600.0\n"}))
	}
	for b.Loop() {
		if tasks, _, err := Find([]string{dir}, Selection{}); err != nil || len(tasks) != 5000 {
			b.Fatal(len(tasks), err)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("[environment]\ndocker_image = \"x\"\nbuild_timeout_sec = 1.5\n[verifier.environment]\nos = 1"))
	f.Add([]byte("environment = 1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var k Task
		if reason := k.settings(data); strings.Contains(reason, "\n") {
			t.Errorf("%q", reason)
		}
		for _, w := range k.Warnings {
			if strings.Contains(w, "\n") {
				t.Errorf("%q", w)
			}
		}
	})
}

func FuzzCompose(f *testing.F) {
	f.Add([]byte("services: {main: {build: {context: ., args: {A: 1}}}}"))
	f.Add([]byte("services:\n  main:\n    build: .\n  db: &x\n    image: *x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k := Task{Context: "/nonexistent"}
		if reason := k.compose(data); strings.Contains(reason, "\n") {
			t.Errorf("%q", reason)
		}
	})
}
