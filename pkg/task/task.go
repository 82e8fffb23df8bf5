// Package task finds tasks in Harbor's format and says what building the image
// of each begins with. It reads; it builds and runs nothing.
//
// A task is a folder with task.toml and environment/, or for images alone any
// folder with a Dockerfile at its top. Harbor passes in silence over what it
// cannot use; here everything that is passed over is said, with the reason.
package task

import (
	"os"
	"path/filepath"
	"time"

	"fence/pkg/internal/readfile"
)

// DefaultBuildTimeout is Harbor's build_timeout_sec where a task sets none.
const DefaultBuildTimeout = 10 * time.Minute

// Task is one task folder, as far as its image is concerned.
type Task struct {
	Name   string // the folder's
	Dir    string // the folder, absolute, as it was named (links are not resolved)
	Source string // the dataset: the name of the folder that holds it

	Dockerfile  string            // absolute path, "" for none
	Context     string            // the folder that COPY takes from, absolute
	Target      string            // stage to build, "" for the last
	Args        map[string]string // build arguments
	DockerImage string            // prebuilt image, "" for none

	Tests    string // tests/, absolute, "" for none
	Solution string // solution/, absolute, "" for none

	BuildTimeout time.Duration
	// Warnings are keys of task.toml that nobody knows; Notes are what a runner
	// may refuse that has nothing to do with the image.
	Warnings []string
	Notes    []string
}

// Prebuilt says whether the task's image is its DockerImage. As in Harbor, that
// goes before a Dockerfile, unless force asks for a build and there is one.
func (t Task) Prebuilt(force bool) bool {
	return t.DockerImage != "" && !(force && t.Dockerfile != "")
}

// Skipped is something that could have been a task and is not used.
type Skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Task   bool   `json:"task"` // it is a task, and no image can be made of it
}

// Invalid is a task that no image can be made of.
type Invalid struct{ Reason string }

func (e *Invalid) Error() string { return e.Reason }

// isTask says whether a folder is meant as a task, whatever is in it.
func isTask(dir string) bool { return isFile(dir, "task.toml") || isFile(dir, "Dockerfile") }

func isFile(dir, name string) bool {
	st, err := os.Stat(filepath.Join(dir, name))
	return err == nil && st.Mode().IsRegular()
}

// folder is the path of a folder in dir, "" if there is none.
func folder(dir, name string) string {
	p := filepath.Join(dir, name)
	if st, err := os.Stat(p); err == nil && st.IsDir() {
		return p
	}
	return ""
}

// fileMax is how large a file of settings may be, in bytes.
const fileMax = 1 << 20

// load reads the task in dir. A task that cannot have an image is the reason.
func load(dir string) (t Task, reason string) {
	t = Task{Name: filepath.Base(dir), Dir: dir, Source: filepath.Base(filepath.Dir(dir)), BuildTimeout: DefaultBuildTimeout}
	t.Tests, t.Solution = folder(dir, "tests"), folder(dir, "solution")
	if !isFile(dir, "task.toml") {
		t.Dockerfile, t.Context = filepath.Join(dir, "Dockerfile"), dir
		return t, ""
	}
	data, err := readfile.Regular(filepath.Join(dir, "task.toml"), fileMax)
	if err != nil {
		return t, why(err)
	}
	if reason := t.settings(data); reason != "" {
		return t, reason
	}
	t.Context = folder(dir, "environment")
	if t.Context == "" {
		return t, "it has no folder environment"
	}
	if inside, err := Within(dir, t.Context); err != nil {
		return t, why(err)
	} else if !inside {
		return t, "its folder environment is a link that leads out of it: copy it there"
	}
	if isFile(t.Context, "Dockerfile") {
		t.Dockerfile = filepath.Join(t.Context, "Dockerfile")
	}
	for _, name := range []string{"docker-compose.yaml", "docker-compose.yml"} {
		if t.Prebuilt(false) && t.Dockerfile == "" || !isFile(t.Context, name) {
			continue
		}
		data, err := readfile.Regular(filepath.Join(t.Context, name), fileMax)
		if err != nil {
			return t, why(err)
		}
		if reason := t.compose(data); reason != "" {
			return t, "environment/" + name + ": " + reason
		}
	}
	if t.Dockerfile == "" && t.DockerImage == "" {
		return t, "environment has no Dockerfile, and task.toml no docker_image"
	}
	if !isFile(dir, "instruction.md") && folder(dir, "steps") == "" {
		t.Notes = append(t.Notes, "it has no instruction.md")
	}
	return t, ""
}

// why is an error without the path, which is said beside it.
func why(err error) string {
	if pe, ok := err.(*os.PathError); ok {
		return filepath.Base(pe.Path) + ": " + pe.Err.Error()
	}
	return err.Error()
}

// Within says whether a path, links followed, is below a folder. A dataset is
// somebody else's: what it links to may be yours.
func Within(dir, p string) (bool, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, err
	}
	if p, err = filepath.EvalSymlinks(p); err != nil {
		return false, err
	}
	rel, err := filepath.Rel(dir, p)
	return err == nil && filepath.IsLocal(rel), nil
}
