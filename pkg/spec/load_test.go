package spec

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fence/pkg/task"
)

// plant makes files below dir; a text "-> X" is a link, a name with a slash at
// its end an empty folder.
func plant(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for p, text := range files {
		full := filepath.Join(dir, p)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		if to, ok := strings.CutPrefix(text, "-> "); err == nil && ok {
			err = os.Symlink(to, full)
		} else if err == nil && strings.HasSuffix(p, "/") {
			err = os.MkdirAll(full, 0o755)
		} else if err == nil {
			err = os.WriteFile(full, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The sums are those of the package dirhash (testdata/dirhash.py).
func TestChecksum_AsDirhash(t *testing.T) {
	data, err := os.ReadFile("testdata/dirhash.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]struct {
		Files map[string]string
		Sum   string
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 10 {
		t.Fatal(err, len(cases))
	}
	for name, c := range cases {
		dir := t.TempDir()
		plant(t, dir, c.Files)
		sum, err := Checksum(dir)
		if _, refused := errors.AsType[*Refused](err); strings.HasPrefix(c.Sum, "error: ") {
			if !refused || sum != "" {
				t.Errorf("%s: %s, %v; dirhash: %s", name, sum, err, c.Sum)
			}
			continue
		}
		if sum != c.Sum || err != nil {
			t.Errorf("%s: %s, %v, want %s", name, sum, err, c.Sum)
		}
	}
}

func TestChecksum(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, map[string]string{"task/a": "x", "task/d/b": "y", "link": "-> task", "outside/f": "z"})
	want, err := Checksum(dir + "/task")
	if err != nil {
		t.Fatal(err)
	}
	same := func(what string) {
		t.Helper()
		for _, name := range []string{"task", "link"} {
			if got, err := Checksum(filepath.Join(dir, name)); got != want || err != nil {
				t.Errorf("%s, through %s: %s, %v, want %s", what, name, got, err, want)
			}
		}
	}
	same("again")
	if err := os.Chmod(dir+"/task/a", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(dir+"/task/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	same("other modes and a FIFO")
	for link, reason := range map[string]string{
		"../outside":   "its d/out is a link that leads out of the task: copy it there",
		"../outside/f": "its d/out is a link that leads out of the task: copy it there",
		"/dev/zero":    "its d/out is a link that leads out of the task: copy it there",
		"../a/x":       "its d/out is a link that cannot be followed",
	} {
		out := dir + "/task/d/out"
		if err := os.Symlink(strings.Replace(link, "../outside", "../../outside", 1), out); err != nil {
			t.Fatal(err)
		}
		if sum, err := Checksum(dir + "/task"); sum != "" || err == nil || err.Error() != reason {
			t.Errorf("link to %s: %s, %v", link, sum, err)
		}
		if err := os.Remove(out); err != nil {
			t.Fatal(err)
		}
	}
	same("without links out")
	plant(t, dir, map[string]string{"task/\xff": ""})
	if sum, err := Checksum(dir + "/task"); sum != "" || err == nil || !strings.Contains(err.Error(), `its \xff has a name that is not UTF-8`) {
		t.Errorf("%s, %v", sum, err)
	}
	if _, err := Checksum(dir + "/nothing"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Folders that lead to one another many times over are read once each.
func TestChecksum_ManyLinks(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{"40/f": "x"}
	for i := range 40 {
		at := filepath.Join(string(rune('A' + i)))
		next := "-> ../" + string(rune('A'+i+1))
		if i == 39 {
			next = "-> ../40"
		}
		files[at+"/1"], files[at+"/2"] = next, next
	}
	plant(t, dir, files)
	if _, err := Checksum(dir); err != nil {
		t.Error(err)
	}
}

// good are the files of a whole task; "-" removes one.
func good(more map[string]string) map[string]string {
	files := map[string]string{"task.toml": "version = \"1.0\"\n", "instruction.md": "do it\n", "environment/Dockerfile": "FROM x", "tests/test.sh": "", "solution/solve.sh": ""}
	maps.Copy(files, more)
	maps.DeleteFunc(files, func(_, text string) bool { return text == "-" })
	return files
}

// loaded is the task that package task finds among the files, loaded.
func loaded(t *testing.T, files map[string]string) (Spec, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "set", "one")
	plant(t, dir, files)
	found, skipped, err := task.Find([]string{dir}, task.Selection{})
	if err != nil || len(found) != 1 {
		t.Fatal(err, skipped)
	}
	return Load(found[0], variables)
}

func TestLoad(t *testing.T) {
	s, err := loaded(t, good(map[string]string{
		"task.toml":       "[task]\nname = \"org/one\"\n[metadata]\nx = 1\n[agent]\ntimeout_sec = 5\nfoo = 1\n[environment]\nskills_dir = \"/s\"\n",
		"trajectory.json": "{}", "tests/.harborignore": "*",
	}))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := Checksum(s.Task.Dir)
	if err != nil {
		t.Fatal(err)
	}
	want := Spec{
		Task: s.Task, Title: "org/one", Checksum: sum, Instruction: "do it\n",
		Agent: Agent{Timeout: 5 * time.Second}, Verifier: Verifier{Timeout: 10 * time.Minute, Env: map[string]string{}},
		SolutionEnv: map[string]string{}, Environment: Environment{BuildTimeout: 10 * time.Minute, Env: map[string]string{}, Context: s.Task.Dir + "/environment"},
		Artifacts: []Artifact{{Source: "/logs/artifacts", Destination: "logs/artifacts"}}, StepReward: "mean",
		Metadata: map[string]any{"x": int64(1)},
		Warnings: []string{"task.toml: the key agent.foo is not known", "task.toml: environment.skills_dir is not used: no agent here has skills",
			"tests/.harborignore is not read: all of tests is put into the container", "trajectory.json is not read: an agent does not begin with it"},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestLoad_Prebuilt(t *testing.T) {
	for _, c := range []struct {
		more  map[string]string
		files string
	}{
		{map[string]string{"environment/Dockerfile": "-", "environment/data": "x"}, "environment"},
		{map[string]string{"environment/Dockerfile": "FROM x"}, ""},
	} {
		c.more["task.toml"] = "[environment]\ndocker_image = \"python:3.12\"\n"
		s, err := loaded(t, good(c.more))
		if err != nil || s.Environment.Image != "python:3.12" || strings.TrimPrefix(s.Environment.Files, s.Task.Dir+"/") != c.files {
			t.Errorf("%v: %v, %+v", c.more, err, s.Environment)
		}
	}
}

func TestLoad_Instruction(t *testing.T) {
	for in, want := range map[string]string{
		"do it":                         "do it",
		"":                              "",
		"\n\n do it\n":                  " do it\n",
		"# a\nCANARY":                   "# a\nCANARY",
		"<!-- canary GUID 1 -->\ndo it": "do it",
		"<!-- BENCHMARK CANARY -->\n# xCanary x\n\n \n# Title\n": "# Title\n",
		"  # canary  \r\n\r\ndo\rit\r\n":                         "do\nit\n",
		"<!-- canary --> do it\n":                                "<!-- canary --> do it\n",
		"do it\n# canary\n":                                      "do it\n# canary\n",
		"# canary":                                               "",
		"\n# canary\nx":                                          "# canary\nx",
	} {
		s, err := loaded(t, good(map[string]string{"instruction.md": in}))
		if err != nil || s.Instruction != want {
			t.Errorf("%q: %q, %v, want %q", in, s.Instruction, err, want)
		}
	}
}

func TestLoad_Steps(t *testing.T) {
	s, err := loaded(t, good(map[string]string{
		"instruction.md":           "-",
		"task.toml":                "[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n",
		"steps/one/instruction.md": "# canary\nfirst", "steps/one/tests/test.sh": "", "steps/one/solution/solve.sh": "", "steps/one/workdir/setup.sh": "",
		"steps/two/instruction.md": "second",
	}))
	if err != nil {
		t.Fatal(err)
	}
	at := s.Task.Dir + "/"
	one, two := s.Steps[0], s.Steps[1]
	if one.Instruction != "first" || one.Tests != at+"steps/one/tests" || one.Solution != at+"steps/one/solution" || one.Workdir != at+"steps/one/workdir" {
		t.Errorf("%+v", one)
	}
	if two.Instruction != "second" || two.Tests != "" || two.Solution != at+"solution" || two.Workdir != "" || s.Instruction != "" {
		t.Errorf("%+v", two)
	}
}

// Which image a separate verifier has, and whether the tests are in it
// (harbor/models/task/verifier_mode.py).
func TestLoad_SeparateVerifier(t *testing.T) {
	const own = "[verifier.environment]\ncpus = 1\n"
	const steps = "[[steps]]\nname = \"a\"\n"
	type place struct {
		Image, Context string
		HasTests       bool
	}
	for _, c := range []struct {
		name, toml string
		more       map[string]string
		want       place
	}{
		{"the task's image", own, nil, place{}},
		{"an image of its own", own + "docker_image = \"v\"\n", map[string]string{"tests/test.sh": "-", "tests/x": ""}, place{"v", "tests", true}},
		{"a Dockerfile of its own", own, map[string]string{"tests/test.sh": "-", "tests/Dockerfile": ""}, place{"", "tests", true}},
		{"an image before a Dockerfile", own + "docker_image = \"v\"\n", map[string]string{"tests/Dockerfile": ""}, place{"v", "tests", true}},
		{"a Dockerfile without settings", "[verifier]\nenvironment_mode = \"separate\"\n", map[string]string{"tests/Dockerfile": ""}, place{"", "tests", true}},
		{"the task's prebuilt image is not the verifier's", "[environment]\ndocker_image = \"e\"\n[verifier]\nenvironment_mode = \"separate\"\n", nil, place{}},
		{"a step has the task's image", own + "docker_image = \"v\"\n" + steps, nil, place{"v", "tests", true}},
		{"a step's Dockerfile before the task's image", own + "docker_image = \"v\"\n" + steps, map[string]string{"steps/a/tests/Dockerfile": ""}, place{"", "steps/a/tests", true}},
		{"a step's image", own + "docker_image = \"v\"\n" + steps + "verifier.environment.docker_image = \"s\"\n", map[string]string{"steps/a/tests/Dockerfile": ""}, place{"s", "steps/a/tests", true}},
		{"a step with settings and the task's Dockerfile", own + steps + "verifier.environment.cpus = 2\n", map[string]string{"tests/Dockerfile": ""}, place{"", "tests", true}},
		{"a step alone", steps + "verifier.environment_mode = \"separate\"\n", nil, place{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := good(map[string]string{"task.toml": c.toml, "steps/a/instruction.md": ""})
			maps.Copy(files, c.more)
			maps.DeleteFunc(files, func(_, text string) bool { return text == "-" })
			s, err := loaded(t, files)
			if err != nil {
				t.Fatal(err)
			}
			e := s.Verifier.Separate
			if len(s.Steps) > 0 {
				e = s.Steps[0].Verifier.Separate
			}
			if e == nil {
				t.Fatal("not separate")
			}
			if got := (place{e.Image, strings.TrimPrefix(e.Context, s.Task.Dir+"/"), e.HasTests}); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			want := []task.Task{}
			if g, own := e.Grader(); own {
				want = append(want, g)
			}
			if got := Graders(s.Task); len(got) != len(want) || len(got) == 1 && !reflect.DeepEqual(got[0], want[0]) || (c.want.Context == "") != (len(got) == 0) {
				t.Errorf("to be built: %+v, want %+v", got, want)
			}
		})
	}
	// Each once, and none that lies elsewhere.
	files := good(map[string]string{"task.toml": own + steps + "[[steps]]\nname = \"b\"\n[[steps]]\nname = \"c\"\n", "tests/Dockerfile": "", "steps/b/tests/Dockerfile": "", "steps/c/tests": "-> ../../../out", "../out/Dockerfile": "", "steps/a/x": ""})
	dir := filepath.Join(t.TempDir(), "one")
	plant(t, dir, files)
	var got []string
	for _, g := range Graders(task.Task{Dir: dir}) {
		got = append(got, strings.TrimPrefix(g.Dir, dir+"/")+" in "+g.Source)
	}
	if want := []string{"tests in " + filepath.Base(dir), "steps/b/tests in b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLoad_Refused(t *testing.T) {
	const steps = "[[steps]]\nname = \"a\"\n"
	for _, c := range []struct {
		name         string
		more         map[string]string
		want, advice string
	}{
		{"an image alone", map[string]string{"task.toml": "-", "Dockerfile": "FROM x"}, "it has no task.toml", "add task.toml, instruction.md and tests/test.sh"},
		{"settings", map[string]string{"task.toml": "agent = 1"}, "task.toml: agent must be a table", ""},
		{"no instruction", map[string]string{"instruction.md": "-"}, "it has no instruction.md", "write there"},
		{"odd instruction", map[string]string{"instruction.md": "\xff"}, "instruction.md is not UTF-8", "iconv"},
		{"linked instruction", map[string]string{"instruction.md": "-> /etc/passwd"}, "its instruction.md is a link that leads out of the task", ""},
		{"linked tests", map[string]string{"tests/data": "-> /etc"}, "its tests/data is a link that leads out", ""},
		{"no tests", map[string]string{"tests/test.sh": "-"}, "it has no tests/test.sh, and so nothing here can grade it", "Monty"},
		{"other tests", map[string]string{"tests/test.sh": "-", "tests/test.py": ""}, "it has no tests/test.sh", "Monty"},
		{"tests are a folder", map[string]string{"tests/test.sh": "-", "tests/test.sh/x": ""}, "it has no tests/test.sh", "Monty"},
		{"a separate verifier without tests", map[string]string{"tests/test.sh": "-", "task.toml": "[verifier.environment]\n"}, "it has no tests/test.sh", "Monty"},
		{"a separate verifier of several containers", map[string]string{"tests/docker-compose.yaml": "", "task.toml": "[verifier.environment]\n"}, "tests has a docker-compose.yaml", "tests/Dockerfile"},
		{"no folder of a step", map[string]string{"task.toml": steps}, "it has a step a and no folder steps/a", "folders in steps/"},
		{"no instruction of a step", map[string]string{"task.toml": steps, "steps/a/x": ""}, "it has no steps/a/instruction.md", "write there"},
		{"no tests of a step", map[string]string{"task.toml": steps, "steps/a/instruction.md": "", "tests/test.sh": "-"}, "it has neither steps/a/tests/test.sh nor tests/test.sh", "Monty"},
		{"tests of two users", map[string]string{"task.toml": steps + "[[steps]]\nname = \"b\"\nverifier.user = \"x\"\n", "steps/a/instruction.md": "", "steps/b/instruction.md": ""},
			"the tests of its step a are to run as the image's user and those of b as x, in one container", "separate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := loaded(t, good(c.more))
			e, ok := errors.AsType[*Refused](err)
			if !ok || !strings.Contains(e.Reason, c.want) || !strings.Contains(e.Advice, c.advice) || (c.advice == "") != (e.Advice == "") || !reflect.DeepEqual(s, Spec{}) {
				t.Errorf("%v, %+v", err, e)
			}
		})
	}
}
