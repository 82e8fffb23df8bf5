package main

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

func TestInto(t *testing.T) {
	built := measured{want: "on base\n", config: "{}\n"}
	failed := measured{failure: "# error: words\n"}
	for name, x := range map[string]struct {
		found       measured
		files, want string
	}{
		"a new case": {built, "-- Dockerfile --\nd\n",
			"-- Dockerfile --\nd\n-- want --\non base\n-- config --\n{}\n"},
		"a case again, with what a person added": {built, "-- Dockerfile --\nd\n-- want --\nold\n-- config --\nold\n-- differs --\nwhy\n",
			"-- Dockerfile --\nd\n-- want --\non base\n-- config --\n{}\n-- differs --\nwhy\n"},
		"an error again": {failed, "-- error --\nDockerfile:1: x\n# old\n-- differs --\nwhy\n",
			"-- error --\nDockerfile:1: x\n# error: words\n-- differs --\nwhy\n"},
		"an error now": {failed, "-- want --\nold\n-- config --\nold\n-- error --\nDockerfile:1: x\n",
			"-- error --\nDockerfile:1: x\n# error: words\n"},
		"an error that is not meant": {failed, "-- Dockerfile --\nd\n-- want --\nold\n", "if that is meant"},
		"an error that is not there": {built, "-- error --\nDockerfile:1: x\n", "and builds"},
	} {
		files, err := x.found.into(txtar.Parse([]byte(x.files)).Files)
		switch {
		case err != nil && (files != nil || !strings.Contains(err.Error(), x.want)):
			t.Errorf("%s: %v, with %v", name, err, files)
		case err == nil && string(txtar.Format(&txtar.Archive{Files: files})) != x.want:
			t.Errorf("%s:\n%s", name, txtar.Format(&txtar.Archive{Files: files}))
		}
	}
}

func TestFailure(t *testing.T) {
	got := failure("#5 0.1 error: inside\nDockerfile:3\n--------\n   3 | >>> RUN false\n" +
		"error: failed to solve: ref 4b1xk3m5q2p9z8y7w6v5u4t3s::abcdefghijklmnopqrstuvwxy at /r/cachemounts/buildkit12/d/x\n")
	if want := "# Dockerfile:3\n# error: failed to solve: ref ... at .../d/x\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
