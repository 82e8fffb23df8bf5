// Package page writes a report that a browser opens from a folder, without a
// server and without a network: index.html, its program, and for each trial one
// script file that is loaded when somebody looks at the trial.
//
// What models, tasks and verifiers wrote is in these files as JSON alone, with
// every "<" escaped, and the program puts it on the page as text: never as
// markup, script or address. The page's policy (CSP) lets it run what lies
// beside it, and reach nothing.
package page

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"fence/pkg/report"
	"fence/pkg/result"
)

//go:embed assets
var assets embed.FS

// index is what index.html shows without opening a trial.
type index struct {
	Runs   []string       `json:"runs"`
	Open   int            `json:"open"` // trials that were begun or planned, and have no result
	Blocks []report.Block `json:"blocks"`
	Trials []entry        `json:"trials"` // the nth is in data/N.js
}

// entry is a trial in the list.
type entry struct {
	Run     int      `json:"run"`
	Name    string   `json:"name"`
	Dataset string   `json:"set"`
	Task    string   `json:"task"`
	Agent   string   `json:"agent"` // with the model
	Kind    string   `json:"kind"`  // of a no-op rejected or accepted, for it is to fail
	Reward  *float64 `json:"reward"`
	Class   string   `json:"class,omitempty"`
	Cause   string   `json:"cause,omitempty"`
	Likely  string   `json:"likely,omitempty"`
	Stop    string   `json:"stop"`
	Turns   int      `json:"turns"`
	Input   *int     `json:"in"`
	Output  *int     `json:"out"`
	Seconds float64  `json:"s"`
	Unread  int      `json:"unread,omitempty"` // replies
	CutOff  int      `json:"cut,omitempty"`    // replies
	Handed  int      `json:"handed,omitempty"` // times that the conversation was
	Tainted int      `json:"tainted,omitempty"`
}

// ErrOthers is a folder that holds something else than a report.
var ErrOthers = errors.New("the folder holds something else than a report")

// Of a report's files the marker, by which its folder is known, is the first
// that is written, and start the last: what a command that was killed has left
// is replaced by the next one, and nobody takes it for a report.
const (
	marker = ".rollout-report"
	start  = "index.html"
)

// Write makes the report of runs in dir, which is empty, or a report's that is
// to be replaced; any other folder is an ErrOthers.
func Write(dir string, runs []report.Input) error {
	if err := prepare(dir); err != nil {
		return err
	}
	r := report.Summarise(runs...)
	ix := index{Runs: []string{}, Blocks: report.Blocks(r), Trials: []entry{}}
	for n, run := range runs {
		ix.Runs = append(ix.Runs, run.Name)
		ix.Open += len(r.Runs[n].Unfinished) + r.Runs[n].NotBegun
		for _, t := range run.Trials {
			name := fmt.Sprintf("data/%d.js", len(ix.Trials))
			if err := script(filepath.Join(dir, name), fmt.Sprintf("rollout.trial(%d, ", len(ix.Trials)), details(t)); err != nil {
				return err
			}
			ix.Trials = append(ix.Trials, entryOf(n, t))
		}
	}
	if err := script(filepath.Join(dir, "data", "index.js"), "rollout.index(", ix); err != nil {
		return err
	}
	err := fs.WalkDir(assets, "assets", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(path[len("assets"):]))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		if d.Name() == start {
			return nil
		}
		return copied(to, path)
	})
	if err != nil {
		return err
	}
	return copied(filepath.Join(dir, start), "assets/"+start)
}

// copied writes one of the files that are the same in every report.
func copied(to, asset string) error {
	data, err := assets.ReadFile(asset)
	if err != nil {
		return err
	}
	return write(to, data)
}

// prepare makes the folder, without what an earlier report left there.
func prepare(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the report's folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, marker)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s: %w", dir, ErrOthers)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the report's folder: %w", err)
	}
	if err := write(filepath.Join(dir, marker), []byte("'rollout report --html' made this folder, and replaces what is in it.\n")); err != nil {
		return err
	}
	for _, old := range []string{start, "data"} {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			return fmt.Errorf("removing the earlier report: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		return fmt.Errorf("the report's folder: %w", err)
	}
	return nil
}

// script writes a call of one of the page's functions with a value. "<", ">",
// "&", U+2028 and U+2029 are escaped in it, as encoding/json does, and bytes
// that are no text are U+FFFD.
func script(path, call string, v any) error {
	var b bytes.Buffer
	b.WriteString(call)
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	b.Truncate(b.Len() - 1)
	b.WriteString(");\n")
	return write(path, b.Bytes())
}

func write(path string, data []byte) error {
	if err := os.WriteFile(path, data, 0o666); err != nil {
		return fmt.Errorf("the report: %w", err)
	}
	return nil
}

func entryOf(run int, t report.Trial) entry {
	e := entry{Run: run, Name: t.TrialName, Dataset: report.DatasetOf(t), Task: t.TaskName, Agent: t.AgentInfo.Name, Kind: report.Kind(t),
		Likely: report.Likely(t), Stop: t.Agent.Stop, Turns: t.Agent.Turns, Seconds: math.Round(t.FinishedAt.Sub(t.StartedAt).Seconds()*10) / 10, Tainted: len(t.Tainted)}
	if m := report.ModelOf(t); m != "" {
		e.Agent += " " + m
	}
	tally := result.TallyOf(t.Trial)
	e.Input, e.Output = tally.Input, tally.Output
	replies := report.RepliesOf(t)
	e.Unread, e.CutOff, e.Handed = replies.Unread, replies.Truncated, replies.HandOvers
	if t.AgentInfo.Name == "nop" {
		switch e.Kind {
		case "failed":
			e.Kind = "rejected"
		case "solved":
			e.Kind = "accepted"
		}
	}
	if e.Kind == "fault" {
		f := report.Why(t)
		e.Class, e.Cause = f.Class, f.Cause
	} else {
		e.Reward = t.Reward
	}
	return e
}
