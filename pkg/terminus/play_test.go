package terminus_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"fence/pkg/model"
	"fence/pkg/terminus"
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
