package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/readfile"
)

// limit is how large a file of results may be: with the tokens of a long
// trajectory one has some hundred megabytes.
const limit = 1 << 30

// WriteJSON writes a file of a job or a trial as Harbor does: whole or not at
// all, four blanks deep, with its nulls.
func WriteJSON(path string, v any) error {
	return atomicfile.Write(path, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "    ")
		return enc.Encode(v)
	})
}

// OutFull is the class of a fault of the job folder's disk.
const OutFull = "out_full"

// Unwritable says of an error that the disk it is about has no room, the user
// no more of it, or nobody may write there; and what can be done.
func Unwritable(err error) (hint string, is bool) {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) {
		return "make room for the results (the disk, the quota); the same command then goes on", true
	}
	return "", false
}

// Normal is t with what is always so: the schema, UTC, no list of ours null.
func (t Trial) Normal() Trial {
	t.Schema = Schema
	t.StartedAt, t.FinishedAt = t.StartedAt.Round(0).UTC(), t.FinishedAt.Round(0).UTC()
	if t.FinishedAt.Before(t.StartedAt) { // the node's clock was set
		t.FinishedAt = t.StartedAt
	}
	if t.Tainted == nil {
		t.Tainted = []Taint{}
	}
	if t.Isolation != nil && t.Isolation.Opened == nil {
		i := *t.Isolation
		i.Opened = []Opened{}
		t.Isolation = &i
	}
	return t
}

// Write makes a trial done: DIR/result.json, where there is none or one that is
// to be replaced. What Read would refuse is not written.
func Write(dir string, t Trial) error {
	t = t.Normal()
	if err := t.Valid(); err != nil {
		return fmt.Errorf("the result of %s: %w", t.TrialName, err)
	}
	return WriteJSON(filepath.Join(dir, ResultFile), t)
}

// Read reads what Write wrote: a trial that is done. Where there is none the
// error is fs.ErrNotExist; any other says what is wrong with it.
func Read(dir string) (Trial, error) {
	data, err := readfile.Regular(filepath.Join(dir, ResultFile), limit)
	if err != nil {
		return Trial{}, err
	}
	t, err := Decode(data)
	if err != nil {
		return Trial{}, fmt.Errorf("%s: %w", filepath.Join(dir, ResultFile), err)
	}
	return t, nil
}

// Decode reads one record, of a file or of a line of a stream.
func Decode(data []byte) (t Trial, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err = d.Decode(&t); err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("more text after the end")
		}
	}
	if err == nil {
		err = t.Valid()
	}
	if err != nil {
		return Trial{}, err
	}
	return t, nil
}

// Valid says what a trial's record lacks to be one.
func (t Trial) Valid() error {
	for _, f := range []struct {
		ok   bool
		what string
	}{
		{t.Schema == Schema, "its schema is not " + Schema},
		{t.TrialName != "", "it has no trial_name"},
		{t.TaskName != "", "it has no task_name"},
		{t.Task != "" && t.TaskID.Path != "", "it has no task"},
		{t.AgentInfo.Name != "", "it has no agent_info"},
		{len(t.Config) > 0 && t.Config[0] == '{', "it has no config"},
		{t.Attempt > 0 && t.Tries > 0, "its attempt or tries are not numbered from 1"},
		{!t.StartedAt.IsZero() && !t.FinishedAt.Before(t.StartedAt), "its times are missing, or in the wrong order"},
		{(t.Reward == nil) == (t.Fault != nil), "it has a reward and a fault, or neither"},
		{t.Reward == nil || finite(*t.Reward), "its reward is no finite number"},
		{t.Fault == nil || slices.Contains(Phases, t.Fault.Phase) && slices.Contains(Causes, t.Fault.Cause) && t.Fault.Class != "", "its fault has no phase, class or cause that is known"},
		{t.Agent.Stop == "" || slices.Contains(Stops, t.Agent.Stop), "its agent stopped in a way that is not known"},
	} {
		if !f.ok {
			return errors.New(f.what)
		}
	}
	return nil
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// Found is a trial's folder, and what is in it.
type Found struct {
	Dir   string
	Trial *Trial
	// Err is why there is no Trial: fs.ErrNotExist where it is not done
	// (running, or stopped), else what is wrong with its result.
	Err error
}

// Trials finds the trials below folders, each of which is a job folder (one that
// shards share, too), a trial's, or one that holds job folders. They come by
// name of the folder, those of one folder together. Results of Harbor's own
// are read as far as they say the same; see [Load]. RolloutDetails, which all
// trials at once have no room for, are left out.
//
// A folder without any trial is an error.
func Trials(dirs ...string) (all []Found, err error) {
	for _, dir := range dirs {
		some, err := below(dir, 2)
		if err != nil {
			return nil, err
		}
		if len(some) == 0 {
			return nil, fmt.Errorf("%s: no trial is in it", dir)
		}
		all = append(all, some...)
	}
	return all, nil
}

// below are the trials of a folder and of those in it, so many deep.
func below(dir string, deep int) ([]Found, error) {
	if is, err := trialFolder(dir); err != nil || is {
		if err != nil {
			return nil, err
		}
		return []Found{look(dir)}, nil
	}
	if deep == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Found
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if st, err := os.Stat(path); err != nil || !st.IsDir() || e.Name()[0] == '.' {
			continue
		}
		some, err := below(path, deep-1)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func look(dir string) Found {
	t, err := Load(dir)
	if err != nil {
		return Found{Dir: dir, Err: err}
	}
	t.DropDetails()
	return Found{Dir: dir, Trial: &t}
}

// Used is what the agent used: of the trial, or of each step of a task that has
// some. As with Harbor the trial itself then has none.
func (t Trial) Used() (all []*AgentResult) {
	if t.AgentResult != nil {
		return []*AgentResult{t.AgentResult}
	}
	for _, s := range t.StepResults {
		if s.AgentResult != nil {
			all = append(all, s.AgentResult)
		}
	}
	return all
}

// DropDetails lets the tokens of all turns go, which only training needs: all
// trials at once have no room for them.
func (t Trial) DropDetails() {
	steps := Trial{StepResults: t.StepResults} // also beside a trial's own
	for _, u := range append(t.Used(), steps.Used()...) {
		u.RolloutDetails = nil
	}
}

// trialFolder says whether a folder is a trial's: its config.json names one
// task, a job's names many.
func trialFolder(dir string) (bool, error) {
	data, err := readfile.Regular(filepath.Join(dir, ConfigFile), limit)
	var c struct {
		Task json.RawMessage `json:"task"`
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, serr := os.Stat(dir); serr != nil {
			return false, serr
		}
		return false, nil
	case err != nil:
		return false, err
	}
	return json.Unmarshal(data, &c) == nil && len(c.Task) > 0 && c.Task[0] == '{', nil
}
