package spec

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"fence/pkg/internal/readfile"
	"fence/pkg/internal/text"
	"fence/pkg/task"
)

// fileMax is how large a task.toml or an instruction may be, in bytes.
const fileMax = 1 << 20

// Load reads a task that package task has found. A task that no trial here can
// be made of is a *Refused; any other error is of the disk. getenv is asked for
// the variables that the task's templates name: what it does not give, a task
// cannot have, so it is the place to say which of yours a task may read.
func Load(t task.Task, getenv func(string) (string, bool)) (Spec, error) {
	s, err := load(t, getenv)
	if err != nil {
		return Spec{}, err
	}
	return s, nil
}

func load(t task.Task, getenv func(string) (string, bool)) (Spec, error) {
	s := Spec{Task: t, Warnings: slices.Concat(t.Warnings, t.Notes)}
	data, err := readfile.Regular(filepath.Join(t.Dir, "task.toml"), fileMax)
	if errors.Is(err, fs.ErrNotExist) {
		return s, &Refused{"it has no task.toml: it is a folder to build an image from", "add task.toml, instruction.md and tests/test.sh, with the Dockerfile in environment/"}
	} else if err != nil {
		return s, err
	}
	root, reason := task.Settings(data)
	if reason != "" {
		return s, &Refused{Reason: reason}
	}
	r := &reader{getenv: getenv}
	r.settings(&s, root)
	if r.bad != nil {
		return s, r.bad
	}
	if s.Checksum, err = Checksum(t.Dir); err != nil { // before any other file is read: none leads out of the task
		return s, err
	}
	s.Warnings = append(s.Warnings, r.warnings...)
	s.Warnings = append(s.Warnings, unread(t.Dir)...)
	s.Environment.Image, s.Environment.Context = t.DockerImage, t.Context
	if t.DockerImage != "" && t.Dockerfile == "" {
		s.Environment.Files = t.Context
	}
	if len(s.Steps) == 0 {
		if s.Instruction, err = instruction(t.Dir, "instruction.md"); err != nil {
			return s, err
		}
	}
	for i := range s.Steps {
		if err := s.Steps[i].files(s.Task); err != nil {
			return s, err
		}
	}
	return s, s.graders()
}

// graders finds the images of separate verifiers, and sees that there are tests.
func (s *Spec) graders() error {
	at := func(verifier Verifier, folder string) grader {
		return grader{verifier.Separate.image(), filepath.Join(s.Task.Dir, folder), folder}
	}
	shared := at(s.Verifier, "tests")
	if len(s.Steps) == 0 {
		return s.Verifier.place(shared)
	}
	for i := range s.Steps {
		p := &s.Steps[i]
		if err := p.Verifier.place(at(p.Verifier, filepath.Join("steps", p.Name, "tests")), shared); err != nil {
			return err
		}
	}
	return oneGrader(s.Steps)
}

// Separate are the environments of verifiers that have their own, by step; of a
// task without steps by "".
func (s Spec) Separate() map[string]*Environment {
	all := map[string]*Environment{}
	if e := s.Verifier.Separate; e != nil && len(s.Steps) == 0 {
		all[""] = e
	}
	for _, p := range s.Steps {
		if e := p.Verifier.Separate; e != nil {
			all[p.Name] = e
		}
	}
	return all
}

// Grader is what the image of a separate verifier is made from, as if its folder
// tests were a task; false if it is the task's own image.
func (e *Environment) Grader() (task.Task, bool) {
	t := task.Task{Name: filepath.Base(e.Context), Dir: e.Context, Source: filepath.Base(filepath.Dir(e.Context)), Context: e.Context, DockerImage: e.Image, BuildTimeout: e.BuildTimeout}
	if e.Image == "" {
		t.Dockerfile = filepath.Join(e.Context, "Dockerfile")
	}
	return t, e.Context != ""
}

// Graders are the images that a task needs beside its own, each once. A task
// that Load refuses may have none.
func Graders(t task.Task) (all []task.Task) {
	s := Spec{Task: t}
	data, err := readfile.Regular(filepath.Join(t.Dir, "task.toml"), fileMax)
	root, reason := task.Settings(data)
	r := &reader{getenv: func(string) (string, bool) { return "", true }}
	if r.settings(&s, root); err != nil || reason != "" || r.bad != nil || s.graders() != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Separate())) {
		g, own := s.Separate()[name].Grader()
		if inside, err := task.Within(t.Dir, g.Dir); own && g.Dockerfile != "" && (err != nil || !inside) {
			continue // Load says so
		}
		if own && !slices.ContainsFunc(all, func(o task.Task) bool { return o.Dir == g.Dir && o.DockerImage == g.DockerImage }) {
			all = append(all, g)
		}
	}
	return all
}

// oneGrader refuses steps whose tests are to be of different users in one
// container: what is the tests' alone there is one domain's.
func oneGrader(steps []Step) error {
	shared := slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return s.Verifier.Separate != nil })
	for _, s := range shared {
		if a, b := shared[0].Verifier.User, s.Verifier.User; a != b {
			return &Refused{text.Printable(fmt.Sprintf("the tests of its step %s are to run as %s and those of %s as %s, in one container", shared[0].Name, cmp.Or(a, "the image's user"), s.Name, cmp.Or(b, "the image's user"))),
				`name one user for the tests of all steps, or give some environment_mode = "separate"`}
		}
	}
	return nil
}

// files finds what belongs to a step.
func (p *Step) files(t task.Task) (err error) {
	at := filepath.Join("steps", p.Name)
	if !isFolder(t.Dir, at) {
		return &Refused{text.Printable(fmt.Sprintf("it has a step %s and no folder %s", p.Name, at)), "steps are folders in steps/, of the names that task.toml gives them"}
	}
	if p.Instruction, err = instruction(t.Dir, filepath.Join(at, "instruction.md")); err != nil {
		return err
	}
	in := func(name string) string {
		if isFolder(t.Dir, filepath.Join(at, name)) {
			return filepath.Join(t.Dir, at, name)
		}
		return ""
	}
	p.Workdir, p.Tests, p.Solution = in("workdir"), in("tests"), in("solution")
	if p.Solution == "" {
		p.Solution = t.Solution
	}
	return nil
}

// grader is where a verifier may have its tests from: the image that its
// settings name, and a folder, "" if there is none.
type grader struct{ image, tests, name string }

// image is the image that the settings of a separate verifier name, if any.
func (e *Environment) image() string {
	if e == nil {
		return ""
	}
	return e.Image
}

// place finds the image of a separate verifier, and sees that there are tests:
// the first of the graders that has some, as in Harbor.
func (v *Verifier) place(from ...grader) error {
	if e := v.Separate; e != nil {
		for _, g := range from {
			switch {
			case g.image != "" || isFile(g.tests, "Dockerfile"):
				e.Image, e.Context = g.image, g.tests
			case isFile(g.tests, "docker-compose.yaml"):
				return &Refused{g.name + " has a docker-compose.yaml, and a trial is one container", "if the verifier needs no other container, write " + g.name + "/Dockerfile"}
			default:
				continue
			}
			e.HasTests = true
			return nil
		}
	}
	for _, g := range from {
		if isFile(g.tests, "test.sh") {
			return nil
		}
	}
	e := &Refused{"it has no " + from[0].name + "/test.sh, and so nothing here can grade it",
		"if what it grades is a function, an interpreter such as Monty is made for that; a task of files and commands needs a test.sh that writes /logs/verifier/reward.txt"}
	if len(from) > 1 {
		e.Reason = fmt.Sprintf("it has neither %s/test.sh nor tests/test.sh, and so nothing here can grade that step", from[0].name)
	}
	e.Reason = text.Printable(e.Reason)
	return e
}

// canary is a line that marks a task so that it can be found in training data;
// nobody who solves it is to see it (harbor/models/task/task.py).
var canary = regexp.MustCompile(`(?i)\A(<!--.*canary.*-->|#.*canary.*)\z`)

// instruction reads a text as Harbor does: canary lines at its top, and empty
// ones after them, are not of it.
func instruction(dir, name string) (string, error) {
	data, err := readfile.Regular(filepath.Join(dir, name), fileMax)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &Refused{text.Printable("it has no " + name), "write there what is to be done"}
	} else if err != nil {
		return "", err
	}
	if !utf8.Valid(data) {
		return "", &Refused{text.Printable(name + " is not UTF-8"), "convert it with iconv"}
	}
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data)), "\n")
	for len(lines) > 0 && canary.MatchString(strings.TrimSpace(lines[0])) {
		lines = lines[1:]
	}
	for len(lines) > 0 && strings.TrimSpace(lines[0]) == "" {
		lines = lines[1:]
	}
	return strings.Join(lines, "\n"), nil
}

// unread warns of files that newer Harbors read and nothing here does.
func unread(dir string) (warnings []string) {
	for name, what := range map[string]string{
		"trajectory.json":        "an agent does not begin with it",
		"tests/.harborignore":    "all of tests is put into the container",
		"solution/.harborignore": "all of solution is put into the container",
	} {
		if isFile(dir, name) {
			warnings = append(warnings, name+" is not read: "+what)
		}
	}
	slices.Sort(warnings)
	return warnings
}

func isFile(dir, name string) bool {
	st, err := os.Stat(filepath.Join(dir, name))
	return dir != "" && err == nil && st.Mode().IsRegular()
}

func isFolder(dir, name string) bool {
	st, err := os.Stat(filepath.Join(dir, name))
	return err == nil && st.IsDir()
}
