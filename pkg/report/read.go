package report

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/readfile"
	"fence/pkg/result"
)

const tail = 16 << 10 // of what a verifier printed: the part that says what failed

// Read reads a run: a folder of trials' folders, or one of such folders, as
// validate makes (OUT/oracle, OUT/nop), or a trial's folder alone; see
// [result.Trials]. What should be a result and is none is noted; it is an error
// if there is no trial at all.
func Read(dir string) (Input, error) {
	in := Input{Name: filepath.Clean(dir)}
	all, err := result.Trials(dir)
	begun := map[string]int{} // trials of a job, by its folder
	for _, f := range all {
		if f.Dir != dir { // which is one trial's
			begun[filepath.Dir(f.Dir)]++
		}
		switch {
		case f.Trial != nil:
			t := known(*f.Trial, f.Dir)
			t.Path = within(dir, f.Dir)
			in.Trials = append(in.Trials, t)
		case errors.Is(f.Err, fs.ErrNotExist):
			in.Unfinished = append(in.Unfinished, within(dir, f.Dir))
		default:
			in.Unread = append(in.Unread, f.Err.Error())
		}
	}
	if len(all) == 0 { // a job that has only its plan
		begun[dir] = 0
	}
	config := map[string]result.JobConfig{}
	for _, job := range slices.Sorted(maps.Keys(begun)) {
		n := begun[job]
		config[job] = configOf(job)
		for _, s := range config[job].Skipped {
			if !slices.Contains(in.Skipped, s) { // as it is by the other agent
				in.Skipped = append(in.Skipped, s)
			}
		}
		var j result.Job
		if result.ReadJob(filepath.Join(job, result.ResultFile), &j) == nil {
			in.NotBegun += max(0, j.Total-n)
		}
	}
	for i := range in.Trials {
		in.Trials[i].Settings = config[filepath.Dir(in.Trials[i].Dir)].Settings
	}
	return in, err
}

// within is a trial's folder as it is in a run's; "" where both are one.
func within(run, dir string) string {
	path, err := filepath.Rel(run, dir)
	if err != nil || path == "." {
		return ""
	}
	return path
}

// configOf is what a job's trials have in common, as far as it can be read.
func configOf(job string) (c result.JobConfig) {
	_ = result.ReadJob(filepath.Join(job, result.ConfigFile), &c)
	return c
}

// ReadTrial reads a trial's folder. One that has no result yet is an
// fs.ErrNotExist.
func ReadTrial(dir string) (Trial, error) {
	t, err := result.Load(dir)
	if err != nil {
		return Trial{}, err
	}
	one := known(t, dir)
	one.Settings = configOf(filepath.Dir(filepath.Clean(dir))).Settings
	return one, nil
}

// known is a record with what else its folder says. What only training needs
// is let go.
func known(r result.Trial, dir string) Trial {
	r.Config = nil
	r.DropDetails()
	t := Trial{Trial: r, Dir: dir}
	t.printed()
	return t
}

const standardInput = "standard input"

// Stream reads records as a run prints them, one a line.
func Stream(r io.Reader) (Input, error) {
	in := Input{Name: standardInput}
	lines := bufio.NewReaderSize(r, 1<<16)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return in, fmt.Errorf("reading standard input: %w", err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			r, bad := result.Decode(line)
			if bad != nil {
				return in, fmt.Errorf("standard input, line %d: %w", n, bad)
			}
			dir := ""
			if u, err := url.Parse(r.TrialURI); err == nil && u.Scheme == "file" && u.Host == "" {
				dir = u.Path
			}
			in.Trials = append(in.Trials, known(r, dir))
		}
		if err == io.EOF {
			break
		}
	}
	if len(in.Trials) == 0 {
		return in, errors.New("standard input held no record of a trial")
	}
	slices.SortStableFunc(in.Trials, func(a, b Trial) int { return strings.Compare(a.TrialName, b.TrialName) })
	return in, nil
}

// printed takes the ends of what the verifier and a solution printed: of
// the step that went wrong, where there are several.
func (t *Trial) printed() {
	if t.Dir == "" {
		return
	}
	where := t.Dir
	for _, s := range t.StepResults {
		if dir := t.StepDir(s.StepName); dir != "" {
			where = dir
		}
		if s.Fault != nil || s.Reward == nil || *s.Reward < 1 {
			break
		}
	}
	t.Verifier = end(filepath.Join(where, "verifier", "test-stdout.txt"), tail)
	// Any agent's commands can write a file of that name. What a task's own
	// solution printed is in an oracle's.
	if t.AgentInfo.Name == oracle {
		t.Script = end(filepath.Join(where, "agent", "oracle.txt"), tail)
	}
}

// StepDir is the folder of a step's files; "" for a name that leads elsewhere.
func (t Trial) StepDir(name string) string {
	if filepath.Base(name) != name || name == "." || name == ".." {
		return ""
	}
	return filepath.Join(t.Dir, "steps", name)
}

// end is the last n bytes of a file, less: whole lines where there is one; ""
// where it cannot be read.
func end(path string, n int64) string {
	_, data, left, err := readfile.Ends(path, 0, n)
	if err != nil {
		return ""
	}
	if i := bytes.IndexByte(data, '\n'); left > 0 && i >= 0 && i < len(data)-1 {
		data = data[i+1:]
	}
	return string(data)
}
