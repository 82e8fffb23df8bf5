package rollout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fence/test/modelserver"
)

// model runs the agent terminus on the place's tasks.
func (p *place) model(base string, more ...string) ran {
	p.t.Helper()
	return p.run(p.command(p.args("run", append([]string{"--agent", "terminus", "--api-base", base, "--model", "m", "--api-wait", "2s"}, more...)...)...))
}

func TestTerminus(t *testing.T) {
	p := newPlace(t)
	p.task("one", "", rewards, "")
	s := modelserver.Start(t, modelserver.Say(modelserver.Turn("look", false, "touch /it; id\n")), modelserver.Say(modelserver.Turn("done", true)))
	r := p.model(s.Base)
	rec := r.records["terminus one"]
	if r.code != 0 || word(rec) != "1" || rec.Agent.Stop != "done" || rec.Agent.Turns != 3 {
		t.Errorf("exit code %d, %s, %+v, %+v\n%s", r.code, word(rec), rec.Agent, rec.Fault, r.stderr)
	}
	dir := p.path("out/run", rec.TrialName, "agent")
	for _, name := range []string{"turns.jsonl", "trajectory.json", "recording.cast"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		t.Logf("%v\n%s", err, data)
	}
	_ = strings.Contains
}
