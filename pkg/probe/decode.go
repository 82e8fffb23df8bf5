package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"fence/pkg/internal/strictjson"
)

// maxReport is the most that Decode reads. A report of a node with a
// thousand mounts is under one.
const maxReport = 16 << 20

var (
	outcomes   = []Outcome{Reachable, Denied, Absent, Unreachable, Timeout, Error, Skipped, Info}
	severities = []string{"high", "medium", "low", "info"}
	checkID    = regexp.MustCompile(`^[a-z0-9_]+(\.[a-z0-9_-]+)*$`)
)

// SchemaError says that a file is a record of another kind, or of another
// version of the format.
type SchemaError struct{ Name, Got, Want string }

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s: its schema is %q, and this probe reads %q", e.Name, clip(e.Got, 60), e.Want)
}

// Decode reads one report from r; name is what errors call it. It takes only
// what Report.Write would have written: a report that was cut short, edited
// into something else or made by a later format is an error that names the
// line, and then the Report is the zero value.
func Decode(name string, r io.Reader) (Report, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err != nil {
		return Report{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxReport {
		return Report{}, fmt.Errorf("%s: larger than %d MiB, so not a probe report", name, maxReport>>20)
	}
	if s := schemaOf(data); s != "" && s != ReportSchema {
		return Report{}, &SchemaError{name, s, ReportSchema}
	}
	var rep Report
	lines, err := strictjson.Unmarshal(data, &rep)
	var at *strictjson.Error
	switch {
	case errors.As(err, &at):
		return Report{}, fmt.Errorf("%s:%d: %s", name, at.Line, printable(clip(at.Msg, 200)))
	case err != nil:
		return Report{}, fmt.Errorf("%s: %w", name, err)
	}
	if rep.Schema != ReportSchema {
		return Report{}, &SchemaError{name, rep.Schema, ReportSchema}
	}
	if i, err := rep.check(); err != nil {
		if i < 0 {
			return Report{}, fmt.Errorf("%s: %w", name, err)
		}
		return Report{}, fmt.Errorf("%s:%d: check %d, %s: %w", name, lines[fmt.Sprintf("checks[%d]", i)], i+1, printable(clip(rep.Checks[i].Key().String(), 100)), err)
	}
	return rep, nil
}

// Write prints the report as JSON that Decode reads and that the same report
// always becomes.
func (r Report) Write(w io.Writer) error {
	if r.Run.Argv == nil {
		r.Run.Argv = []string{}
	}
	if r.Controls.Namespaces == nil {
		r.Controls.Namespaces = map[string]uint64{}
	}
	if r.Checks == nil {
		r.Checks = []Finding{}
	}
	if r.Summary == nil {
		r.Summary = map[Outcome]int{}
	}
	return writeJSON(w, r)
}

// writeJSON prints v the way all our records look: one field a line, and
// characters such as '<' as themselves.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}

// Key is the name of one attempt: the check's id and what it was tried on.
type Key struct {
	ID     string `json:"id"`
	Target string `json:"target,omitempty"`
}

func (k Key) String() string {
	if k.Target == "" {
		return k.ID
	}
	return k.ID + "[" + k.Target + "]"
}

// Key is what two reports are compared by.
func (f Finding) Key() Key { return Key{f.ID, f.Target} }

// check finds what a well-formed report cannot hold, and the index of the
// finding it is in, -1 for none.
func (r Report) check() (int, error) {
	if _, err := time.Parse(time.RFC3339Nano, r.Run.Time); err != nil {
		return -1, fmt.Errorf("run.time %q is not a time", clip(r.Run.Time, 60))
	}
	if len(r.Checks) == 0 {
		return -1, errors.New("it holds no checks")
	}
	seen := make(map[Key]int, len(r.Checks))
	count := map[Outcome]int{}
	for i, f := range r.Checks {
		switch first, dup := seen[f.Key()]; {
		case !checkID.MatchString(f.ID):
			return i, errors.New("that is no check's id")
		case dup:
			return i, fmt.Errorf("the same id and target as check %d", first+1)
		case !slices.Contains(outcomes, f.Outcome):
			return i, fmt.Errorf("outcome %q is none of %s", clip(string(f.Outcome), 40), join(outcomes))
		case !slices.Contains(severities, f.Severity):
			return i, fmt.Errorf("severity %q is none of %s", clip(f.Severity, 40), join(severities))
		}
		seen[f.Key()] = i
		count[f.Outcome]++
	}
	for o, n := range r.Summary {
		if !slices.Contains(outcomes, o) {
			return -1, fmt.Errorf("summary counts %q, which is none of %s", clip(string(o), 40), join(outcomes))
		}
		if n != count[o] {
			return -1, fmt.Errorf("summary says %d %s, the checks hold %d: edited or damaged", n, o, count[o])
		}
	}
	for o, n := range count {
		if _, ok := r.Summary[o]; !ok {
			return -1, fmt.Errorf("summary has no %s, the checks hold %d: edited or damaged", o, n)
		}
	}
	return -1, nil
}

// schemaOf is the schema that data claims, "" when that cannot be said. It
// is asked before the fields are: those of another version are others.
func schemaOf(data []byte) string {
	var head struct {
		Schema string `json:"schema"`
	}
	if json.Unmarshal(data, &head) != nil {
		return ""
	}
	return head.Schema
}

func join[T ~string](list []T) string {
	var words []string
	for _, x := range list {
		words = append(words, string(x))
	}
	return strings.Join(words, " ")
}

// clip shortens text that a damaged file may have made long.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}
