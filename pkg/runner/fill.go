package runner

import (
	"encoding/json"
	"time"

	"fence/pkg/result"
)

// fill adds to what a try has found what follows from the Item.
func (f *folder) fill(i Item, dir string, began time.Time, t result.Trial) result.Trial {
	config, err := json.Marshal(f.config(i))
	if err != nil {
		panic("BUG: a config that is not JSON: " + err.Error())
	}
	if t.ID == "" {
		t.ID = result.NewID()
	}
	if t.AgentInfo.Name == "" {
		t.AgentInfo.Name = i.Agent.Name
	}
	if t.StartedAt.IsZero() {
		t.StartedAt = began
	}
	if t.FinishedAt.IsZero() {
		t.FinishedAt = f.o.Now()
	}
	t.TaskName = i.Spec.Task.Name
	if i.Spec.Title != "" {
		t.TaskName = i.Spec.Title
	}
	t.TrialName, t.TrialURI, t.Config = i.Name, uri(dir), config
	t.TaskID, t.Source, t.TaskChecksum = result.TaskID{Path: i.Spec.Task.Dir}, i.Spec.Task.Source, i.Spec.Checksum
	t.Task, t.Attempt, t.Tries = i.Spec.Task.Dir, i.Attempt, i.Tries
	t = t.Normal()
	if err := t.Valid(); err != nil {
		t.Reward = nil
		t.Fault = &result.Fault{Phase: "verify", Class: "internal", Cause: "unknown", Message: "BUG: the trial's own account of itself: " + err.Error()}
	}
	return t
}
