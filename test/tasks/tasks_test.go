package tasks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fence/pkg/spec"
	"fence/pkg/task"
)

// Each task is in the table, can be loaded, and says nothing that is not meant.
func TestTasks(t *testing.T) {
	found, skipped, err := task.Find([]string{"."}, task.Selection{})
	if err != nil || len(skipped) > 0 {
		t.Fatal(err, skipped)
	}
	wants := Wants()
	for _, one := range found {
		want, ok := wants[one.Name]
		if !ok {
			t.Errorf("%s is not in the table of README.md", one.Name)
		}
		delete(wants, one.Name)
		s, err := spec.Load(one, func(string) (string, bool) { return "", false })
		if err != nil || len(s.Warnings) > 0 || s.NeedsWhy != "" {
			t.Errorf("%s: %v, %v, %s", one.Name, err, s.Warnings, s.NeedsWhy)
		}
		solved := s.Task.Solution != ""
		for _, p := range s.Steps {
			solved = p.Solution != ""
		}
		if solved != (want.Oracle != "n/a") {
			t.Errorf("%s: a solution: %v, and an oracle of %s", one.Name, solved, want.Oracle)
		}
		// The bases that every machine with the test bed has.
		data, err := os.ReadFile(filepath.Join(one.Dir, "environment/Dockerfile"))
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(data)) {
			if from, ok := strings.CutPrefix(line, "FROM "); ok {
				switch name, _, _ := strings.Cut(strings.TrimSpace(from), " "); name {
				case "debian:12", "busybox:1", "build":
				default:
					t.Errorf("%s: FROM %s", one.Name, name)
				}
			}
		}
	}
	for name := range wants {
		t.Errorf("%s is in the table, and there is no such task", name)
	}
	if len(found) < 30 {
		t.Errorf("%d tasks", len(found))
	}
}
