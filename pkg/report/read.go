package report

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	for _, f := range all {
		switch {
		case f.Trial != nil:
			in.Trials = append(in.Trials, known(*f.Trial, f.Dir))
		case errors.Is(f.Err, fs.ErrNotExist):
			in.Unfinished = append(in.Unfinished, filepath.Base(f.Dir))
		default:
			in.Unread = append(in.Unread, f.Err.Error())
		}
	}
	return in, err
}

// ReadTrial reads a trial's folder. One that has no result yet is an
// fs.ErrNotExist.
func ReadTrial(dir string) (Trial, error) {
	t, err := result.Load(dir)
	if err != nil {
		return Trial{}, err
	}
	return known(t, dir), nil
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
