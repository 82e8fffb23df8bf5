package terminus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/model"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/clitest"
	"fence/test/modelserver"
)

func play(t *testing.T, dir string, script ...modelserver.Answer) (terminus.End, map[string]any, error) {
	t.Helper()
	e := &episode{srv: modelserver.Start(t, script...)}
	m, err := model.New(model.Options{Base: e.srv.Base, Name: "m", Details: true})
	if err != nil {
		t.Fatal(err)
	}
	end, used, err := terminus.Play(t.Context(), m, &terminal{}, terminus.Options{Trial: "x", Instruction: "do it"}, dir, "session", "m")
	data, failed := json.Marshal(used)
	if failed != nil {
		t.Fatal(failed)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	return end, fields, err
}

func TestPlay(t *testing.T) {
	dir := t.TempDir()
	end, used, err := play(t, dir, work, done)
	if err != nil || end.Stop != "done" {
		t.Fatalf("%+v, %v", end, err)
	}
	if used["n_input_tokens"] == nil || used["n_output_tokens"] == nil || len(used["rollout_details"].([]any)) != 1 ||
		used["metadata"].(map[string]any)["n_episodes"] != 3.0 {
		t.Errorf("%v", used)
	}
	data, err := os.ReadFile(filepath.Join(dir, terminus.TrajectoryFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := clitest.Validate(t, "atif", data); err != nil {
		t.Errorf("%v: %s", err, data)
	}
}

// What was done before a fault is there to be read.
func TestPlayThatFails(t *testing.T) {
	dir := t.TempDir()
	end, _, err := play(t, dir, work, modelserver.Status(401, `{"error":"no such key"}`))
	if f, ok := terminus.Fault(err); !ok || end.Stop != "error" || f.Class != "model_auth" || f.Cause != "infra" || f.Phase != "agent" || f.Hint == "" {
		t.Errorf("%+v, %+v", end, f)
	}
	if _, err := os.Stat(filepath.Join(dir, terminus.TrajectoryFile)); err != nil {
		t.Error(err)
	}
	dir = t.TempDir()
	if _, used, err := play(t, dir, modelserver.Status(401, ``)); err == nil || used["rollout_details"] != nil {
		t.Errorf("%v, %v", used, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, terminus.TrajectoryFile)); err != nil || clitest.Validate(t, "atif", data) != nil || !bytes.Contains(data, []byte("do it")) {
		t.Errorf("of a model that never answered: %v\n%s", err, data)
	}
	if _, ok := terminus.Fault(terminus.ErrGone); ok {
		t.Error("a terminal that is gone is no fault of the server's")
	}
	if _, _, err := play(t, filepath.Join(dir, "none"), work); err == nil {
		t.Error("a folder that is not there")
	}
}

// A record is typed as it was, with the waits between turns, hand-overs and all.
func TestAgain(t *testing.T) {
	turns := []trajectory.Turn{
		{Kind: trajectory.Act, ModelSec: 7, Commands: []trajectory.Command{{Keystrokes: "ls\n", Duration: 0.5}, {Keystrokes: "C-c", Duration: 2}}},
		{Kind: trajectory.Act, ModelSec: 1, Error: "no JSON"},
		{Kind: trajectory.Summary, ModelSec: 3},
		{Kind: trajectory.Answers, ModelSec: 4},
		{Kind: trajectory.Act, ModelSec: 5, Commands: []trajectory.Command{{Keystrokes: "exit\n", Duration: 1}}},
	}
	sends := func(err error) func(context.Context, string) error {
		return func(ctx context.Context, keys string) error {
			if keys == "exit\n" {
				return err
			}
			return ctx.Err()
		}
	}
	expired, cancel := context.WithDeadlineCause(t.Context(), time.Time{}, terminus.ErrTimeCap)
	defer cancel()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, c := range map[string]struct {
		ctx    context.Context
		err    error
		pause  time.Duration
		typed  string
		waited time.Duration
		stop   string
	}{
		"as then":            {t.Context(), nil, 0, "|ls\n|C-c|||exit\n", 23500 * time.Millisecond, "done"},
		"sooner":             {t.Context(), nil, 2 * time.Second, "|ls\n|C-c|||exit\n", 8500 * time.Millisecond, "done"},
		"the shell ends":     {t.Context(), terminus.ErrGone, 0, "|ls\n|C-c|||exit\n", 23500 * time.Millisecond, "session_lost"},
		"the terminal fails": {t.Context(), errors.New("no tmux"), 0, "|ls\n|C-c|||exit\n", 23500 * time.Millisecond, "error"},
		"no time":            {expired, nil, 0, "", 7 * time.Second, "time_cap"},
		"stopped":            {stopped, nil, 0, "", 7 * time.Second, "error"},
	} {
		term := &terminal{send: sends(c.err)}
		end, err := terminus.Again(c.ctx, term, turns, c.pause, 0)
		if got := strings.Join(term.typed, "|"); got != c.typed || term.waited != c.waited || end.Stop != c.stop || (err != nil) != (c.stop == "error") {
			t.Errorf("%s: %q in %v, %s, %v; want %q in %v, %s", name, got, term.waited, end.Stop, err, c.typed, c.waited, c.stop)
		}
	}
}
