package spec

import (
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fence/pkg/task"
)

// What Harbor takes where a task says nothing.
const (
	verifierTimeout = 10 * time.Minute
	collectTimeout  = time.Minute
)

// published is where an agent may leave what is to be kept, without a task
// saying so.
const published = "/logs/artifacts"

// template is a value that is taken from the environment: all of it or none
// (harbor/utils/env.py).
var template = regexp.MustCompile(`\A\$\{([^}:]+)(?::-(.*))?\}\z`)

// organization is Harbor's form of a task's name.
var organization = regexp.MustCompile(`\A[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*\z`)

// settings fills s from the tables of a task.toml. No file is looked at: the
// environments of separate verifiers have no image yet, and steps no files.
func (r *reader) settings(s *Spec, root map[string]any) {
	top := table{r, "", root}
	for _, key := range []string{"schema_version", "version", "source"} {
		top.text(key)
	}
	if about := top.table("task"); top.has("task") {
		if s.Title = about.text("name"); !organization.MatchString(s.Title) || strings.Contains(s.Title, "..") {
			about.wrong("name", `"organization/name", of letters, digits and . _ -`)
		}
		about.text("version")
		about.text("description")
		about.list("authors")
		about.texts("keywords")
	}
	s.Metadata = top.table("metadata").of
	s.NeedsWhy = sensitive(s.Metadata, top.table("task").of["keywords"])
	s.Environment = top.table("environment").environment()
	s.Agent = top.table("agent").agent(Agent{})
	s.Verifier = top.table("verifier").verifier(Verifier{}, &s.Environment)
	env, missing := top.table("solution").env("env")
	s.SolutionEnv = env
	if missing != "" {
		s.SolutionRefused = &Refused{"task.toml: " + missing, missingAdvice}
	}
	s.Artifacts = top.artifacts(nil)
	if s.StepReward = top.word("multi_step_reward_strategy", "mean", "final"); s.StepReward == "" {
		s.StepReward = "mean"
	}
	steps := top.tables("steps")
	if len(steps) > mostSteps {
		top.wrong("steps", "at most "+strconv.Itoa(mostSteps)+" tables")
		return
	}
	for _, t := range steps {
		s.Steps = append(s.Steps, t.step(s))
	}
	s.Artifacts = withPublished(s.Artifacts)
	r.stepNames(s.Steps)
}

func (t table) environment() Environment {
	os := t.text("os")
	switch strings.ToLower(os) {
	case "", "linux":
	case "windows":
		t.refuse("run it where Harbor has Windows containers", "it is for Windows")
	default:
		t.wrong("os", "linux")
	}
	if t.has("tpu") {
		t.refuse("run it where Harbor has TPUs", "it asks for a TPU (%s)", t.name("tpu"))
	}
	if t.whole("gpus", "a whole number") > 0 {
		t.refuse("if it can do without, remove gpus from its task.toml", "it asks for a GPU (%s), and none is given to a container here", t.name("gpus"))
	}
	t.texts("gpu_types")
	if len(t.list("mcp_servers")) > 0 {
		t.refuse("run it with Harbor", "it asks for MCP servers (%s), and no agent here speaks to one", t.name("mcp_servers"))
	}
	if t.text("skills_dir") != "" {
		t.warn("task.toml: %s is not used: no agent here has skills", t.name("skills_dir"))
	}
	e := Environment{
		BuildTimeout: t.seconds("build_timeout_sec", task.DefaultBuildTimeout),
		CPUs:         t.number("cpus", "a number"),
		MemoryMB:     t.megabytes("memory_mb", "memory"),
		StorageMB:    t.megabytes("storage_mb", "storage"),
		Network:      t.baseline(),
		Env:          t.filled("env"),
		Workdir:      t.text("workdir"),
		Healthcheck:  t.healthcheck(),
	}
	for _, key := range []string{"image", "docker_image"} { // as package task has it: the second counts
		if image := strings.TrimSpace(t.text(key)); image != "" {
			e.Image = image
		}
	}
	if e.Workdir != "" && !path.IsAbs(e.Workdir) {
		t.wrong("workdir", "an absolute path")
	}
	return e
}

// megabytes reads a size: key in megabytes, or its older form with a unit.
func (t table) megabytes(key, older string) int {
	mb := t.whole(key, "a whole number of megabytes")
	if !t.has(older) {
		return mb
	}
	const must = `text such as "2G" or "512M"`
	size := strings.ToUpper(strings.TrimSpace(t.text(older)))
	last := max(len(size)-1, 0)
	unit := map[string]float64{"G": 1024, "M": 1, "K": 1.0 / 1024}[size[last:]]
	n, err := strconv.ParseFloat(strings.TrimSpace(size[:last]), 64)
	n *= unit
	if unit == 0 || err != nil || !(n >= 0 && n <= math.MaxInt32) {
		t.wrong(older, must)
		return mb
	}
	if t.has(key) && mb != int(n) {
		t.refuse("remove "+t.name(older), "task.toml: %s is %d megabytes and %s is %d", t.name(key), mb, t.name(older), int(n))
	}
	return int(n)
}

func (t table) healthcheck() *Healthcheck {
	if !t.has("healthcheck") {
		return nil
	}
	t = t.table("healthcheck")
	h := &Healthcheck{
		Command:       t.text("command"),
		Interval:      t.seconds("interval_sec", 5*time.Second),
		Timeout:       t.seconds("timeout_sec", 30*time.Second),
		StartInterval: t.seconds("start_interval_sec", 5*time.Second),
		Retries:       3,
	}
	if t.number("start_period_sec", "a number of seconds") > 0 {
		h.StartPeriod = t.seconds("start_period_sec", 0)
	}
	if t.has("retries") {
		if h.Retries = t.whole("retries", "a whole number"); h.Retries == 0 {
			t.wrong("retries", "1 or more")
		}
	}
	if h.Command == "" {
		t.wrong("command", "there, and text")
	}
	return h
}

// agent reads an [agent] whose unsaid things are those of from.
func (t table) agent(from Agent) Agent {
	a := Agent{Timeout: t.seconds("timeout_sec", from.Timeout), User: t.user("user"), Network: t.network()}
	if a.User == "" {
		a.User = from.User
	}
	if a.Network.Mode == "" {
		a.Network = from.Network
	}
	return a
}

// verifier reads a [verifier], of a step if from is the task's. Harbor gives a
// step that has no timeout of its own the default, not the task's.
func (t table) verifier(from Verifier, agents *Environment) Verifier {
	v := Verifier{
		Timeout: t.seconds("timeout_sec", verifierTimeout),
		Env:     maps.Clone(from.Env),
		User:    t.user("user"),
		Network: t.network(),
		Collect: slices.Clone(from.Collect),
	}
	if v.Env == nil {
		v.Env = map[string]string{}
	}
	maps.Copy(v.Env, t.filled("env"))
	if v.User == "" {
		v.User = from.User
	}
	if v.Network.Mode == "" {
		v.Network = from.Network
	}
	for _, t := range t.tables("collect") {
		c := Collect{Command: t.text("command"), Timeout: t.seconds("timeout_sec", collectTimeout), User: t.user("user")}
		if c.Command == "" {
			t.wrong("command", "there, and text")
		}
		t.mainOnly()
		v.Collect = append(v.Collect, c)
	}
	mode := t.word("environment_mode", "shared", "separate")
	own := t.has("environment")
	if mode == "shared" && own {
		t.refuse("remove one of the two", "task.toml: %s is shared, and yet there is a [%s]", t.name("environment_mode"), t.name("environment"))
	}
	switch {
	case own:
		e := t.table("environment").environment()
		if e.Healthcheck != nil {
			t.warn("task.toml: %s.healthcheck is not run, as with Harbor: tests that need a server wait for it", t.name("environment"))
		}
		v.Separate = &e
	case mode == "separate" && from.Separate == nil:
		v.Separate = agents.clone()
	case mode != "shared" && from.Separate != nil:
		v.Separate = from.Separate.clone()
	}
	return v
}

// clone is an environment of its own with the same settings and no image.
func (e *Environment) clone() *Environment {
	c := *e
	c.Image = ""
	c.Env = maps.Clone(e.Env)
	c.Network.Hosts = slices.Clone(e.Network.Hosts)
	if e.Healthcheck != nil {
		h := *e.Healthcheck
		c.Healthcheck = &h
	}
	return &c
}

// mainOnly refuses what is of another container of a compose file.
func (t table) mainOnly() {
	if service := strings.TrimSpace(t.text("service")); service != "" && service != "main" {
		t.refuse("run it with Harbor", "it needs the service %s (%s), and a trial is one container", service, t.name("service"))
	}
}

// artifacts reads a list of paths and tables, which come after those of from.
func (t table) artifacts(from []Artifact) []Artifact {
	all := slices.Clone(from)
	for i, x := range t.list("artifacts") {
		if s, ok := x.(string); ok {
			x = map[string]any{"source": s}
		}
		m, ok := x.(map[string]any)
		if !ok {
			t.wrong("artifacts", `a list of paths, or of tables {source = "...", destination = "..."}`)
			break
		}
		at := table{t.reader, t.name("artifacts") + "[" + strconv.Itoa(i) + "]", m}
		a := Artifact{Source: at.text("source"), Destination: at.text("destination"), Exclude: at.texts("exclude")}
		at.mainOnly()
		if a.Source == "" || path.Clean(a.Source) == "/" || slices.Contains(strings.Split(a.Source, "/"), "..") {
			at.wrong("source", "the path of a file or folder in the container, without ..")
		}
		if a.Destination == "" {
			a.Destination = strings.TrimLeft(a.Source, "/")
		} else if path.IsAbs(a.Destination) || strings.Contains(a.Destination, `\`) || slices.Contains(strings.Split(a.Destination, "/"), "..") {
			at.wrong("destination", "a path below the trial's folder artifacts, without ..")
		}
		if a.Destination = path.Clean(a.Destination); a.Destination == "." || a.Destination == "manifest.json" {
			at.wrong("destination", "the path of a file or folder, and not manifest.json, which is the list of them")
		}
		all = append(all, a)
	}
	return all
}

// withPublished puts the folder of published things first, unless it is there.
func withPublished(all []Artifact) []Artifact {
	if slices.ContainsFunc(all, func(a Artifact) bool { return path.Clean(a.Source) == published }) {
		return all
	}
	return append([]Artifact{{Source: published, Destination: published[1:]}}, all...)
}

// step reads one [[steps]]; what it does not say it has from the task.
func (t table) step(s *Spec) Step {
	step := Step{
		Name:        t.text("name"),
		Agent:       t.table("agent").agent(s.Agent),
		Verifier:    t.table("verifier").verifier(s.Verifier, &s.Environment),
		Healthcheck: t.healthcheck(),
		Artifacts:   withPublished(t.artifacts(s.Artifacts)),
	}
	if !t.table("verifier").has("timeout_sec") && s.Verifier.Timeout != verifierTimeout {
		t.warn("task.toml: %s has no verifier.timeout_sec, and a step does not have it from the task: it is %v, as in Harbor", t.at, verifierTimeout)
	}
	switch v := t.of["min_reward"].(type) {
	case nil:
	case map[string]any:
		step.MinReward = map[string]float64{}
		for key, x := range v {
			n, ok := number(x)
			if !ok {
				t.wrong("min_reward", "a number, or a table of numbers")
			}
			step.MinReward[key] = n
		}
	default:
		n, ok := number(v)
		if !ok {
			t.wrong("min_reward", "a number, or a table of numbers")
		}
		step.MinReward = map[string]float64{"reward": n}
	}
	return step
}

// stepNames refuses names that are no folder's everywhere, and equal ones.
func (r *reader) stepNames(steps []Step) {
	seen := map[string]bool{}
	for i, s := range steps {
		n := s.Name
		bad := strings.TrimSpace(n) == "" || len(n) > 255 || strings.HasSuffix(n, ".") || strings.HasSuffix(n, " ") ||
			strings.ContainsFunc(n, func(c rune) bool { return c < ' ' || c == 0x7f || strings.ContainsRune(`<>:"/\|?*`, c) })
		if bad {
			r.refuse("", `task.toml: steps[%d].name must be the name of a folder in steps, without < > : " / \ | ? * and no . or space at its end`, i)
		}
		if key := strings.ToLower(n); seen[key] {
			r.refuse("", "task.toml: two steps are called %s", n)
		} else {
			seen[key] = true
		}
	}
}
