package spec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"fence/pkg/internal/text"
	"fence/pkg/task"
)

// variables are those of testdata/golden.py.
func variables(name string) (string, bool) {
	v, ok := map[string]string{"SET": "value of SET", "EMPTY": ""}[name]
	return v, ok
}

// read is what settings makes of a text.
func read(toml string) (Spec, *Refused, []string) {
	root, reason := task.Settings([]byte(toml))
	if reason != "" {
		return Spec{}, &Refused{Reason: reason}, nil
	}
	var s Spec
	r := &reader{getenv: variables}
	r.settings(&s, root)
	return s, r.bad, r.warnings
}

// Harbor itself has read each of these texts: what it takes we take, with the
// same values, and what it refuses we refuse.
func TestSettings_AsHarborReadsThem(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/harbor.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(archive.Files); i += 2 {
		text, said := archive.Files[i], archive.Files[i+1]
		name := strings.TrimSuffix(text.Name, ".toml")
		if said.Name != name+".json" {
			t.Fatalf("%s is followed by %s: run golden.py", text.Name, said.Name)
		}
		t.Run(name, func(t *testing.T) {
			got, bad, _ := read(string(text.Data))
			if strings.HasPrefix(string(said.Data), "refused: ") {
				if bad == nil {
					t.Errorf("not refused; Harbor: %s", said.Data)
				}
				return
			}
			if bad != nil {
				t.Fatalf("refused: %v", bad)
			}
			var want Spec
			if err := json.Unmarshal(said.Data, &want); err != nil {
				t.Fatal(err)
			}
			got.Environment.Image, got.Metadata, got.NeedsWhy = "", nil, ""
			if !reflect.DeepEqual(got, want) {
				g, _ := json.MarshalIndent(got, "", " ")
				w, _ := json.MarshalIndent(want, "", " ")
				t.Errorf("got  %s\nwant %s", g, w)
			}
		})
	}
}

func TestSettings_Refused(t *testing.T) {
	for _, c := range []struct{ toml, want, advice string }{
		{"[environment]\nos = \"windows\"", "it is for Windows", "Windows containers"},
		{"[environment]\nos = \"plan9\"", "task.toml: environment.os must be linux", ""},
		{"[environment.tpu]\ntype = \"v6e\"", "it asks for a TPU (environment.tpu)", "TPUs"},
		{"[environment]\ngpus = 1", "it asks for a GPU (environment.gpus), and none is given to a container here", "remove gpus"},
		{"[verifier.environment]\ngpus = 1", "it asks for a GPU (verifier.environment.gpus)", "remove gpus"},
		{"[[environment.mcp_servers]]\nname = \"x\"", "it asks for MCP servers (environment.mcp_servers)", "run it with Harbor"},
		{"artifacts = [{source = \"/a\", service = \"db\"}]", "it needs the service db (artifacts[0].service), and a trial is one container", "Harbor"},
		{"[[verifier.collect]]\ncommand = \"x\"\nservice = \"db\"", "it needs the service db (verifier.collect[0].service)", "Harbor"},
		{"[environment]\nallow_internet = false\nnetwork_mode = \"public\"", "task.toml: environment.allow_internet is false and environment.network_mode is public", "remove environment.allow_internet"},
		{"[environment]\nallow_internet = true\nnetwork_mode = \"no-network\"", "allow_internet is true and environment.network_mode is no-network", "remove"},
		{"[environment]\nnetwork_mode = \"no_network\"", `task.toml: environment.network_mode must be one of public, no-network, allowlist, not "no_network"`, "did you mean no-network?"},
		{"[environment.env]\nA = \"${UNSET}\"", "task.toml: environment.env.A needs the variable UNSET, which is not set", "--pass-env"},
		{"[verifier.env]\nA = \"${UNSET}\"", "task.toml: verifier.env.A needs the variable UNSET", "set it"},
		{"[[steps]]\nname = \"a\"\nverifier.env.A = \"${UNSET}\"", "task.toml: steps[0].verifier.env.A needs the variable UNSET", "set it"},
		{"[environment.env]\n\"A=B\" = \"x\"", `task.toml: environment.env has "A=B", which cannot be the name`, ""},
		{"[environment.env]\nA = true", "task.toml: environment.env.A must be text: put it in quotes", ""},
		{"[environment.env]\nA = \"a\\u0000\"", "task.toml: environment.env.A must be without NUL", ""},
		{"[environment]\nenv = [\"A=1\"]", "task.toml: environment.env must be a table: [environment.env] on a line of its own", ""},
		{"[agent]\ntimeout_sec = \"900\"", "task.toml: agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = 0", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = -1", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = nan", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = inf", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = 3e9", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = 1e300", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\ntimeout_sec = true", "agent.timeout_sec must be a number of seconds above 0", ""},
		{"[agent]\nuser = -1", "task.toml: agent.user must be the name or the number of a user", ""},
		{"[agent]\nuser = \"a:b\"", "agent.user must be the name or the number of a user, without a group", ""},
		{"[agent]\nuser = \"a\\n\"", "agent.user must be the name", ""},
		{"agent = 1", "task.toml: agent must be a table: [agent] on a line of its own", ""},
		{"steps = [1]", "task.toml: steps must be a list of tables: [[steps]] on a line of its own, for each", ""},
		{"[environment]\nallow_internet = \"no\"", "task.toml: environment.allow_internet must be true or false", ""},
		{"[environment]\ncpus = -1", "environment.cpus must be a number", ""},
		{"[environment]\nmemory_mb = 1.5", "environment.memory_mb must be a whole number of megabytes", ""},
		{"[environment]\nmemory_mb = 99999999999", "environment.memory_mb must be a whole number of megabytes", ""},
		{"[environment]\nmemory = 2", `environment.memory must be text`, ""},
		{"[environment]\nmemory = \"2GB\"", `environment.memory must be text such as "2G" or "512M"`, ""},
		{"[environment]\nmemory = \"\"", `environment.memory must be text such as "2G"`, ""},
		{"[environment]\nmemory = \"G\"", `environment.memory must be text such as "2G"`, ""},
		{"[environment]\nmemory = \"2GG\"", `environment.memory must be text such as "2G"`, ""},
		{"[environment]\nmemory = \"infG\"", `environment.memory must be text such as "2G"`, ""},
		{"[environment]\nstorage = \"2G\"\nstorage_mb = 1", "environment.storage_mb is 1 megabytes and environment.storage is 2048", "remove environment.storage"},
		{"[environment]\nworkdir = \"app\"", "environment.workdir must be an absolute path", ""},
		{"[environment]\ndocker_image = 1", "environment.docker_image must be text", ""},
		{"[environment.healthcheck]\ncommand = \"\"", "environment.healthcheck.command must be there, and text", ""},
		{"[environment.healthcheck]\ncommand = \"x\"\nretries = 0", "environment.healthcheck.retries must be 1 or more", ""},
		{"[environment.healthcheck]\ncommand = \"x\"\nstart_period_sec = -1", "environment.healthcheck.start_period_sec must be a number of seconds", ""},
		{"artifacts = [\"/\"]", "artifacts[0].source must be the path of a file or folder", ""},
		{"artifacts = [\"\"]", "artifacts[0].source must be the path", ""},
		{"artifacts = [\".\"]", "artifacts[0].destination must be the path of a file or folder", ""},
		{"artifacts = [{source = \"/a\", exclude = \"x\"}]", "artifacts[0].exclude must be a list", ""},
		{"artifacts = [{source = \"/a\", exclude = [1]}]", `artifacts[0].exclude must be a list of text: ["...", "..."]`, ""},
		{"[[steps]]\nname = \"a\"\nmin_reward = {x = nan}", "steps[0].min_reward must be a number, or a table of numbers", ""},
		{"[[steps]]\nname = \"a\"\nmin_reward = true", "steps[0].min_reward must be a number", ""},
		{"[[steps]]\nname = \"a\"\n[[steps]]\nname = \"A\"", "task.toml: two steps are called A", ""},
		{"[[steps]]\nname = \"a.\"", "task.toml: steps[0].name must be the name of a folder in steps", ""},
		{"[[steps]]\nname = \"a\\n\"", "steps[0].name must be the name of a folder", ""},
		{"[verifier]\nenvironment_mode = \"shared\"\n[verifier.environment]", "verifier.environment_mode is shared, and yet there is a [verifier.environment]", "remove one"},
		{"[task]\nname = \"a/b\"\nkeywords = \"x\"", "task.toml: task.keywords must be a list", ""},
		{"version = 1.0", "task.toml: version must be text: put it in quotes", ""},
		{"metadata = 1", "task.toml: metadata must be a table", ""},
		{"a = \n", "task.toml:1: ", ""},
	} {
		s, bad, _ := read(c.toml)
		if bad == nil {
			t.Errorf("%q is not refused", c.toml)
			continue
		}
		if !strings.Contains(bad.Reason, c.want) || !strings.Contains(bad.Advice, c.advice) || (c.advice == "") != (bad.Advice == "") || strings.Contains(bad.Reason, "\n") {
			t.Errorf("%q: %s (%s), want %s (%s)", c.toml, bad.Reason, bad.Advice, c.want, c.advice)
		}
		_ = s
	}
}

func TestSettings_Warnings(t *testing.T) {
	for toml, want := range map[string]string{
		"": "",
		"[environment]\nskills_dir = \"/skills\"\n":                                       "task.toml: environment.skills_dir is not used: no agent here has skills",
		"[environment]\nallow_internet = false\nnetwork_mode = \"allowlist\"\n":           "task.toml: environment.allow_internet is false and environment.network_mode is allowlist, which counts",
		"[environment]\nallow_internet = true\nnetwork_mode = \"public\"\n":               "",
		"[verifier.environment.healthcheck]\ncommand = \"x\"":                             "task.toml: verifier.environment.healthcheck is not run, as with Harbor: tests that need a server wait for it",
		"[verifier]\ntimeout_sec = 60\n":                                                  "",
		"[verifier]\ntimeout_sec = 60\n[[steps]]\nname = \"a\"\n":                         "task.toml: steps[0] has no verifier.timeout_sec, and a step does not have it from the task: it is 10m0s, as in Harbor",
		"[verifier]\ntimeout_sec = 60\n[[steps]]\nname = \"a\"\nverifier.timeout_sec = 5": "",
		"[verifier]\ntimeout_sec = 600\n[[steps]]\nname = \"a\"\n":                        "",
	} {
		_, bad, warnings := read(toml)
		if got := strings.Join(warnings, "; "); bad != nil || got != want {
			t.Errorf("%q: %v, %s, want %s", toml, bad, got, want)
		}
	}
}

// A task.toml may be a megabyte long, and each step has all that is the task's.
func TestSettings_NotTooMuch(t *testing.T) {
	list := func(n int) string { return "[" + strings.Repeat("\"/a\",", n) + "]\n" }
	env := func(n int) string {
		text := "[environment.env]\n"
		for i := range n {
			text += fmt.Sprintf("A%d = \"\"\n", i)
		}
		return text
	}
	steps := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf("[[steps]]\nname = \"%d\"\n", i)
		}
		return text
	}
	for text, want := range map[string]string{
		"artifacts = " + list(1000): "", "artifacts = " + list(1001): "task.toml: artifacts must be a list of at most 1000",
		env(1000): "", env(1001): "task.toml: environment.env must be at most 1000 variables",
		steps(100): "", steps(101): "task.toml: steps must be at most 100 tables",
	} {
		_, bad, _ := read(text)
		if bad == nil {
			bad = &Refused{}
		}
		if bad.Reason != want {
			t.Errorf("%q, want %q", bad.Reason, want)
		}
	}
}

// A solution that cannot be run is no reason not to run the task without it.
func TestSettings_SolutionNeedsVariable(t *testing.T) {
	s, bad, _ := read("[solution.env]\nA = \"${UNSET}\"\n")
	if bad != nil || s.SolutionRefused == nil || s.SolutionRefused.Reason != "task.toml: solution.env.A needs the variable UNSET, which is not set" {
		t.Errorf("%v, %v", bad, s.SolutionRefused)
	}
	if s, bad, _ := read("[solution.env]\nA = \"${SET}\"\n"); bad != nil || s.SolutionRefused != nil || s.SolutionEnv["A"] != "value of SET" {
		t.Errorf("%v, %+v", bad, s)
	}
}

// What a separate verifier has from [environment] is its own.
func TestSettings_SeparateIsACopy(t *testing.T) {
	s, bad, _ := read("[verifier]\nenvironment_mode = \"separate\"\n[environment]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"a\"]\nenv = {A = \"1\"}\nhealthcheck = {command = \"true\"}\ndocker_image = \"x\"\n")
	if bad != nil {
		t.Fatal(bad)
	}
	e := s.Verifier.Separate
	e.Env["A"], e.Network.Hosts[0], e.Healthcheck.Command = "2", "b", "false"
	if s.Environment.Env["A"] != "1" || s.Environment.Network.Hosts[0] != "a" || s.Environment.Healthcheck.Command != "true" || e.Image != "" {
		t.Errorf("%+v and %+v", s.Environment, e)
	}
}

// Steps add to what the task has, each for itself.
func TestSettings_StepsAddForThemselves(t *testing.T) {
	toml := "artifacts = [\"/logs/artifacts/\", \"/b\", \"/c\"]\n"
	for range 3 {
		toml += "[[verifier.collect]]\ncommand = \"task\"\n"
	}
	for _, name := range []string{"one", "two"} {
		toml += "[[steps]]\nname = \"" + name + "\"\nartifacts = [\"/" + name + "\"]\nverifier.collect = [{command = \"" + name + "\"}]\n"
	}
	s, bad, _ := read(toml)
	if bad != nil || len(s.Artifacts) != 3 || len(s.Verifier.Collect) != 3 {
		t.Fatalf("%v, %+v", bad, s)
	}
	for _, p := range s.Steps {
		if len(p.Artifacts) != 4 || p.Artifacts[3].Source != "/"+p.Name || len(p.Verifier.Collect) != 4 || p.Verifier.Collect[3].Command != p.Name {
			t.Errorf("%+v", p)
		}
	}
}

func TestSettings_NeedsWhy(t *testing.T) {
	for toml, want := range map[string]string{
		"[metadata]\ncategory = \"security\"":                    "metadata.category has security",
		"[metadata]\ncategory = \"Cyber-Security\"":              "metadata.category has Cyber-Security",
		"[metadata]\ntags = [\"c\", \"binary exploitation\"]":    "metadata.tags has binary exploitation",
		"[metadata]\nTags = [\"web_security\"]":                  "metadata.Tags has web_security",
		"[metadata]\ntags = \"files, ctf\"":                      "metadata.tags has files, ctf",
		"[task]\nname = \"a/b\"\nkeywords = [\"pwn\"]":           "task.keywords has pwn",
		"[metadata]\ncategory = \"data-science\"":                "",
		"[metadata]\ntags = [\"insecurity\", \"securities\", 1]": "",
		"[metadata]\ndescription = \"security\"":                 "",
		"[metadata]\ncategory = 1":                               "",
	} {
		s, bad, _ := read(toml)
		if bad != nil || s.NeedsWhy != want {
			t.Errorf("%q: %v, %q, want %q", toml, bad, s.NeedsWhy, want)
		}
	}
}

func FuzzSettings(f *testing.F) {
	archive, err := txtar.ParseFile("testdata/harbor.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range archive.Files {
		if strings.HasSuffix(file.Name, ".toml") {
			f.Add(string(file.Data))
		}
	}
	f.Fuzz(func(t *testing.T, toml string) {
		s, bad, warnings := read(toml)
		if bad != nil {
			warnings = append(warnings, bad.Reason, bad.Advice)
		}
		for _, line := range append(warnings, s.NeedsWhy) {
			if text.Printable(line) != line {
				t.Errorf("not one line: %q", line)
			}
		}
		if bad != nil {
			return
		}
		again, _, _ := read(toml)
		again.Metadata, s.Metadata = nil, nil // a NaN there is not equal to itself
		if !reflect.DeepEqual(again, s) {
			t.Errorf("read twice: %+v and %+v", s, again)
		}
		if s.Verifier.Timeout <= 0 || s.Environment.BuildTimeout <= 0 || len(s.Artifacts) == 0 {
			t.Errorf("%+v", s)
		}
		for _, p := range s.Steps {
			if p.Verifier.Timeout <= 0 || p.Name == "" || strings.Contains(p.Name, "/") || len(p.Artifacts) < len(s.Artifacts) {
				t.Errorf("%+v", p)
			}
		}
	})
}
