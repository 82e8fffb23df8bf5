package escapes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fence/test/escapes/internal/wire"
)

// The arms, and so the columns of the table.
const (
	none         = iota // on the node, unfenced: the control
	landlockOnly        // on the node, Landlock with all that this kernel has
	namespace           // fence, namespace form
	bare                // fence, bare form, on a node without user namespaces
	boxNone             // the same in a container as fence env starts it
	boxNamespace
	boxBare
	arms
)

var armNames = [arms]string{"no fence", "Landlock only", "fence, namespace", "fence, bare",
	"no fence, container", "fence, namespace, container", "fence, bare, container"}

// A row is one line of the table of escapes, or one that it lacks.
type row struct {
	name string // the number there, or a word
	what string
	with []string // fixtures, see wire.Row
	text string   // the steps; see parse
	why  string   // what the outcome means, where it does not speak for itself
}

// A step is one attempt and what must come of it in each arm.
type step struct {
	name string
	kind kind
	want [arms]string
	note string
}

type kind byte

const (
	denied  kind = ' ' // the fence refuses it
	kept    kind = '+' // must still work, or is only on the way
	remains kind = '!' // is open, and known to be
)

// parsed is a row's text read.
type parsed struct {
	row     string
	steps   []step
	changed [arms][]string // parts of the victim's state that differ afterwards
}

// parse reads the steps of a row, a line each:
//
//	name   no fence | Landlock | namespace | bare | container's three    ; note
//
// The container's columns are those of the node unless given. In a cell, "a/b" is either of two,
// "a@9:b" is a before Landlock ABI 9 and b from then on, "-" is not reached. A name that begins
// with + must keep working, one with ! is known to remain open. The name "changes" lists what
// is different about the victim afterwards.
func (r row) parse() (parsed, error) {
	p := parsed{row: r.name}
	for line := range strings.Lines(strings.TrimSpace(r.text)) {
		line, note, _ := strings.Cut(strings.TrimSpace(line), ";")
		name, rest, _ := strings.Cut(line, " ")
		cells := strings.Split(rest, "|")
		if len(cells) != 4 && len(cells) != 7 {
			return p, fmt.Errorf("row %s, %q: %d columns", r.name, line, len(cells))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == 4 {
			cells = append(cells, cells[none], cells[namespace], cells[bare])
		}
		if name == "changes" {
			for i, c := range cells {
				if c != "-" {
					p.changed[i] = strings.Split(c, ", ")
				}
			}
			continue
		}
		s := step{name: name, kind: denied, want: [arms]string(cells), note: strings.TrimSpace(note)}
		if k := kind(name[0]); k == kept || k == remains {
			s.kind, s.name = k, name[1:]
		}
		p.steps = append(p.steps, s)
	}
	return p, nil
}

// sound says what is wrong with a step's expectations themselves: a denial that proves nothing,
// or something open that is not called so.
func (s step) sound() error {
	fenced := []int{namespace, bare, boxNamespace, boxBare}
	open := slices.ContainsFunc(fenced, func(arm int) bool { return strings.HasPrefix(s.want[arm], "OK") })
	if s.kind == denied && open && s.note == "" {
		return fmt.Errorf("%s: open in an arm of fence, and neither marked nor explained", s.name)
	}
	if s.kind != denied || s.note != "" {
		return nil
	}
	for _, arm := range fenced {
		control := none
		if arm >= boxNone {
			control = boxNone
		}
		if s.want[arm] == s.want[control] {
			return fmt.Errorf("%s: %s with fence and without it, so it proves nothing: a note must say why", s.name, s.want[arm])
		}
	}
	return nil
}

// matches reports whether an outcome is what a cell wants on a kernel with that Landlock ABI.
func matches(cell, outcome string, abi int) bool {
	for alternative := range strings.SplitSeq(cell, "/") {
		before, since, changes := strings.Cut(alternative, "@")
		if changes {
			from, to, _ := strings.Cut(since, ":")
			if n, err := strconv.Atoi(from); err == nil && abi >= n {
				before = to
			}
		}
		if before == outcome {
			return true
		}
	}
	return false
}

// compare lists how a result differs from what the row wants in an arm.
func (p parsed) compare(r wire.Result, arm, abi int) []string {
	if r.Broken != "" {
		return []string{"could not be run: " + r.Broken + " " + r.Said}
	}
	var wrong []string
	outcomes := map[string]string{}
	for _, s := range r.Steps {
		outcomes[s.Step] = s.Outcome()
		if !slices.ContainsFunc(p.steps, func(want step) bool { return want.name == s.Step }) {
			wrong = append(wrong, fmt.Sprintf("%s: %s, and the table does not have it", s.Step, s.Outcome()))
		}
	}
	for _, s := range p.steps {
		got, ok := outcomes[s.name]
		if !ok {
			got = "-"
		}
		if !matches(s.want[arm], got, abi) {
			wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", s.name, got, s.want[arm]))
		}
	}
	if !slices.Equal(r.Changed, p.changed[arm]) {
		wrong = append(wrong, fmt.Sprintf("changed: %q, want %q\n%s", r.Changed, p.changed[arm], strings.Join(r.Details, "\n")))
	}
	if len(wrong) > 0 && r.Said != "" {
		wrong = append(wrong, "it said: "+r.Said)
	}
	return wrong
}

func TestTheTableIsSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows {
		p, err := r.parse()
		if err != nil {
			t.Error(err)
			continue
		}
		if seen[r.name] {
			t.Errorf("row %s stands twice", r.name)
		}
		seen[r.name] = true
		fenced := false
		for _, s := range p.steps {
			if err := s.sound(); err != nil {
				t.Errorf("row %s: %v", r.name, err)
			}
			fenced = fenced || s.want[none] != s.want[namespace]
		}
		for _, arm := range []int{namespace, bare} {
			fenced = fenced || !slices.Equal(p.changed[none], p.changed[arm])
		}
		if !fenced && r.why == "" {
			t.Errorf("row %s is the same with and without fence, and does not say why", r.name)
		}
	}
	for _, o := range otherwise {
		if seen[o.name] {
			t.Errorf("row %s stands twice", o.name)
		}
		seen[o.name] = true
	}
	for n := 1; n <= 65; n++ {
		if !seen[strconv.Itoa(n)] {
			t.Errorf("row %d of the table is missing", n)
		}
	}
}

// A comparison that cannot fail would make every row pass.
func TestCompareFails(t *testing.T) {
	r := row{name: "1", text: "kill OK | EPERM | EPERM@9:EACCES | EPERM/ESRCH\nchanges signals | - | - | -"}
	p, err := r.parse()
	if err != nil {
		t.Fatal(err)
	}
	result := func(outcome string, changed ...string) wire.Result {
		return wire.Result{Row: "1", Steps: []wire.Step{{Row: "1", Step: "kill", Errno: outcome}}, Changed: changed}
	}
	for _, c := range []struct {
		what   string
		result wire.Result
		arm    int
		abi    int
		fails  bool
	}{
		{"as the table has it", result("OK", "signals"), none, 7, false},
		{"the control does not work", result("EPERM"), none, 7, true},
		{"the control has no effect", result("OK"), none, 7, true},
		{"not refused", result("OK"), namespace, 7, true},
		{"refused with another error", result("EACCES"), namespace, 7, true},
		{"refused with a later kernel's error", result("EACCES"), namespace, 9, false},
		{"refused, and has an effect all the same", result("EPERM", "signals"), namespace, 7, true},
		{"one of two", result("ESRCH"), bare, 7, false},
		{"not tried", wire.Result{Row: "1"}, namespace, 7, true},
		{"could not be run", wire.Result{Row: "1", Broken: "x"}, namespace, 7, true},
	} {
		wrong := p.compare(c.result, c.arm, c.abi)
		if (len(wrong) > 0) != c.fails {
			t.Errorf("%s: %q", c.what, wrong)
		}
	}
}
