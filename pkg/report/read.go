package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/readfile"
	"fence/pkg/result"
)

const (
	maxRecord = 256 << 20 // a trial's record with the token ids of all turns
	tail      = 16 << 10  // of what a verifier printed: the part that says what failed
)

// Read reads a run: a folder of trials' folders, or one of such folders, as
// validate makes (OUT/oracle, OUT/nop), or a trial's folder alone. The trials
// are in the order of their names. What should be a result and is none is
// noted; it is an error if there is no trial at all.
func Read(dir string) (Input, error) {
	in := Input{Name: filepath.Clean(dir)}
	if isTrial(dir) {
		in.add(dir)
	} else if err := in.walk(dir, 2); err != nil {
		return in, err
	}
	if len(in.Trials)+len(in.Unfinished)+len(in.Unread) == 0 {
		return in, fmt.Errorf("%s holds no trial", dir)
	}
	return in, nil
}

// isTrial says that a folder is a trial's: a job's folder has no trial.log.
func isTrial(dir string) bool {
	for _, name := range []string{"trial.log", "verifier", "agent"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			_, err := os.Stat(filepath.Join(dir, "config.json"))
			_, done := os.Stat(filepath.Join(dir, "result.json"))
			return err == nil || done == nil
		}
	}
	return false
}

func (in *Input) walk(dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		sub := filepath.Join(dir, e.Name())
		switch info, err := os.Stat(sub); {
		case err != nil || !info.IsDir():
		case isTrial(sub):
			in.add(sub)
		case depth > 1:
			if err := in.walk(sub, depth-1); err != nil {
				in.Unread = append(in.Unread, err.Error())
			}
		}
	}
	return nil
}

func (in *Input) add(dir string) {
	switch t, err := ReadTrial(dir); {
	case err == nil:
		in.Trials = append(in.Trials, t)
	case errors.Is(err, os.ErrNotExist):
		in.Unfinished = append(in.Unfinished, filepath.Base(dir))
	default:
		in.Unread = append(in.Unread, err.Error())
	}
}

// ReadTrial reads a trial's folder. One that has no result yet is an
// os.ErrNotExist.
func ReadTrial(dir string) (Trial, error) {
	path := filepath.Join(dir, "result.json")
	data, err := readfile.Regular(path, maxRecord)
	if err != nil {
		return Trial{}, err
	}
	t, err := decode(data)
	if err != nil {
		return Trial{}, fmt.Errorf("%s: %w", path, err)
	}
	t.Dir = dir
	t.printed()
	return t, nil
}

// decode reads a record. What only training needs is let go.
func decode(data []byte) (Trial, error) {
	var t Trial
	if err := json.Unmarshal(data, &t.Trial); err != nil {
		return t, fmt.Errorf("not a record of a trial: %w", err)
	}
	if t.Schema != result.Schema {
		return t, fmt.Errorf("its schema is %q, not %s", t.Schema, result.Schema)
	}
	if t.AgentResult != nil {
		t.AgentResult.RolloutDetails = nil
	}
	t.Config = nil
	return t, nil
}

// Stream reads records as a run prints them, one a line.
func Stream(r io.Reader) (Input, error) {
	in := Input{Name: "standard input"}
	lines := bufio.NewReaderSize(r, 1<<16)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return in, fmt.Errorf("reading standard input: %w", err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			t, bad := decode(line)
			if bad != nil {
				return in, fmt.Errorf("standard input, line %d: %w", n, bad)
			}
			if u, err := url.Parse(t.TrialURI); err == nil && u.Scheme == "file" && u.Host == "" {
				t.Dir = u.Path
			}
			t.printed()
			in.Trials = append(in.Trials, t)
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

// printed takes the ends of what the verifier and a scripted agent printed: of
// the step that went wrong, where there are several.
func (t *Trial) printed() {
	if t.Dir == "" {
		return
	}
	where := t.Dir
	for _, s := range t.StepResults {
		if name := filepath.Base(s.StepName); name == s.StepName && name != ".." {
			where = filepath.Join(t.Dir, "steps", name)
		}
		if s.Fault != nil || s.Reward == nil || *s.Reward < 1 {
			break
		}
	}
	t.Verifier = end(filepath.Join(where, "verifier", "test-stdout.txt"), tail)
	t.Script = end(filepath.Join(where, "agent", "oracle.txt"), tail)
}

// end is the last n bytes of a file, less: whole lines where there is one; ""
// where it cannot be read.
func end(path string, n int64) string {
	f, err := readfile.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	from := max(0, size-n)
	data := make([]byte, size-from)
	got, err := f.ReadAt(data, from)
	if err != nil && err != io.EOF {
		return ""
	}
	data = data[:got]
	if i := bytes.IndexByte(data, '\n'); from > 0 && i >= 0 && i < len(data)-1 {
		data = data[i+1:]
	}
	return string(data)
}
