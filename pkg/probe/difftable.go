package probe

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// mark is how an answer stands at the edge of a table.
func (a Answer) mark() string {
	switch a {
	case Yes:
		return "ok"
	case No:
		return "NO"
	}
	return "??"
}

// Table prints the comparison for a person, columns wide.
func (c Comparison) Table(w io.Writer, columns int) error {
	p := &page{w: w, columns: columns}
	p.subject(c)
	if len(c.Differ) > 0 {
		p.line("")
		p.line("These reports cannot be compared:")
		for _, d := range c.Differ {
			p.para("  - ", d)
		}
		return p.err
	}
	p.rows(c)
	for _, s := range c.sections() {
		p.section(s)
	}
	p.line("")
	head, kinds := c.tally()
	p.para("", head)
	for _, k := range kinds {
		p.para("  - ", k)
	}
	for _, n := range c.Notes {
		p.para("note: ", n)
	}
	p.para("answer: ", c.verdict())
	return p.err
}

// verdict says the answer in a sentence.
func (c Comparison) verdict() string {
	switch c.Answer {
	case Yes:
		return "yes - the five rows are as a fence must leave them, and nothing opened"
	case No:
		return "no - " + strings.Join(c.Reasons, "; ")
	}
	return "could not tell - " + strings.Join(c.Reasons, "; ")
}

func (p *page) subject(c Comparison) {
	o := c.After
	p.para("", fmt.Sprintf("%s, Linux %s, %s, uid %d", o.Hostname, o.Kernel, o.Arch, o.UID))
	var rows [][]string
	for _, r := range c.origins() {
		rows = append(rows, []string{r.role, r.o.where(), r.o.controls(), r.o.made()})
	}
	p.grid("  ", []int{6, 0, 30, 20}, rows)
}

func (o Origin) where() string {
	if o.Runtime == "" {
		return "bare node"
	}
	return o.Runtime
}

// made is when the report was made, to the second.
func (o Origin) made() string {
	t, err := time.Parse(time.RFC3339Nano, o.Time)
	if err != nil {
		return o.Time
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

func (o Origin) controls() string {
	seccomp, landlock := "no seccomp", "no landlock"
	if o.Seccomp > 0 {
		seccomp = "seccomp"
	}
	if o.Landlock > 0 {
		landlock = "landlock"
	} else if o.Landlock < 0 {
		landlock = "landlock unknown"
	}
	return seccomp + ", " + landlock
}

// rows prints the guide's five. The name's column gives way first, so that
// the words stay whole.
func (p *page) rows(c Comparison) {
	var names []string
	for _, r := range c.origins() {
		names = append(names, r.role)
	}
	grid := [][]string{append([]string{"", ""}, names...)}
	for _, r := range c.Rows {
		line := []string{r.Answer.mark(), r.Name}
		for _, cell := range r.cells() {
			line = append(line, cell.Word)
		}
		grid = append(grid, line)
	}
	limits := []int{2, 41}
	for range names {
		limits = append(limits, 14)
	}
	if len(names) == 3 {
		limits = []int{2, 41, 11, 11, 11}
	}
	p.line("")
	t := p.fit("", limits, grid)
	t.row(grid[0])
	for i, r := range c.Rows {
		t.row(grid[i+1])
		for _, s := range r.rests(names, 2) {
			p.para("    "+s.said, strings.Join(s.names, ", "))
		}
		for i, cell := range r.cells() {
			if cell.Why != "" {
				p.para("    "+names[i]+": ", cell.text())
			}
		}
		if r.Note != "" {
			p.para("    ", r.Note)
		}
	}
}

func (r Row) cells() []Cell {
	if r.Host != nil {
		return []Cell{*r.Host, r.Before, r.After}
	}
	return []Cell{r.Before, r.After}
}

// restsOn lists the attempts of all cells of a row.
func (r Row) restsOn() []Key {
	var keys []Key
	for _, c := range r.cells() {
		for _, k := range c.RestsOn {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// rests says which attempts of its own report each cell of a row rests on. Cells that rest on the same
// are told together, and without their names if all do.
func (r Row) rests(names []string, most int) (out []saying) {
	var cells [][]Key
	for i, c := range r.cells() {
		switch j := slices.IndexFunc(cells, func(keys []Key) bool { return slices.Equal(keys, c.made) }); {
		case len(c.made) == 0:
		case j >= 0:
			out[j].said += ", " + names[i]
		default:
			cells = append(cells, c.made)
			out = append(out, saying{bundle(c.made, most), names[i]})
		}
	}
	for i := range out {
		out[i].said += ": "
		if out[i].said == strings.Join(names, ", ")+": " {
			out[i].said = ""
		}
	}
	return out
}

// section is a heading and the changes below it.
type section struct {
	title   string
	changes []Change
	line    func(Change) string // what is said of each
	merge   bool                // the attempts of which the same is said stand together
	lead    bool                // and that stands first
}

// sections sorts every change into what a reader asks, in the order of how
// much it asks of the reader. What stayed shut is only counted.
func (c Comparison) sections() []section {
	pick := func(ok func(Change) bool) (out []Change) {
		for _, ch := range c.Changes {
			if ok(ch) {
				out = append(out, ch)
			}
		}
		return out
	}
	var told5 []Key
	for _, r := range c.Rows {
		told5 = append(told5, r.restsOn()...)
	}
	after := func(ch Change) string {
		if ch.Note != "" {
			return told(ch.After) + "; " + ch.Note
		}
		return told(ch.After)
	}
	both := func(ch Change) string { return told(ch.Before) + " -> " + told(ch.After) }
	return []section{
		{"Opened: shut before, open behind the fence", pick(func(ch Change) bool { return ch.opening() == No }), both, false, false},
		{"May have opened", pick(func(ch Change) bool { return ch.opening() == CannotTell }), Change.story, false, false},
		{"Stopped working", pick(func(ch Change) bool { return ch.Function && ch.Kind == Closed }), after, false, false},
		{"Closed, besides these", pick(func(ch Change) bool { return !ch.Function && ch.Kind == Closed && !slices.Contains(told5, ch.Key) }), after, true, true},
		{"Shut before too, now by something else", pick(func(ch Change) bool { return ch.Kind == MechanismChanged }), both, true, true},
		{"Could not tell", pick(func(ch Change) bool {
			return ch.Kind == Inconclusive && ch.opening() == Yes && ch.is != shut && !ch.idle()
		}), func(ch Change) string { return ch.Note }, true, false},
		{"No longer there", pick(func(ch Change) bool {
			return ch.Kind == OnlyBefore && ch.was == open && ch.Note != "" && !slices.Contains(told5, ch.Key)
		}), func(ch Change) string { return ch.Severity }, true, true},
		{"Open before, not tried behind the fence", pick(func(ch Change) bool {
			return ch.Kind == OnlyBefore && ch.was == open && ch.Note == ""
		}), func(ch Change) string { return ch.Severity }, true, true},
		{"Open behind the fence", pick(func(ch Change) bool { return !ch.Function && ch.Open && ch.Kind != Opened }),
			func(ch Change) string { return ch.Severity }, true, true},
	}
}

// idle says that neither report was asked to try it.
func (ch Change) idle() bool {
	return ch.Before != nil && ch.After != nil && ch.Before.Outcome == Skipped && ch.After.Outcome == Skipped
}

// saying is one line of a section: attempts, and what is said of them.
type saying struct {
	names []string
	said  string
}

// entries are the lines of a section, with at most most targets of a check.
func (s section) entries(most int) []saying {
	type same struct{ id, said string }
	var order []same
	keys := map[same][]Key{}
	for _, ch := range s.changes {
		l := same{ch.ID, s.line(ch)}
		if s.merge {
			l.id = ""
		}
		if _, ok := keys[l]; !ok {
			order = append(order, l)
		}
		keys[l] = append(keys[l], ch.Key)
	}
	var out []saying
	for _, l := range order {
		out = append(out, saying{bundle(keys[l], most), l.said})
	}
	return out
}

// section prints one section.
func (p *page) section(s section) {
	if len(s.changes) == 0 {
		return
	}
	limits := []int{44, 0}
	if s.lead {
		limits = []int{24, 0}
	}
	var grid [][]string
	for _, e := range s.entries(4) {
		row := []string{strings.Join(e.names, ", "), e.said}
		if s.lead {
			slices.Reverse(row)
		}
		grid = append(grid, row)
	}
	p.line("")
	p.line("%s (%d)", s.title, len(s.changes))
	p.grid("  ", limits, grid)
}

// tally counts the attempts by kind, and says where each count is told.
func (c Comparison) tally() (head string, kinds []string) {
	listed := map[Key]bool{}
	for _, s := range c.sections() {
		for _, ch := range s.changes {
			listed[ch.Key] = true
		}
	}
	inRow := map[Key]bool{}
	for _, r := range c.Rows {
		for _, k := range r.restsOn() {
			inRow[k] = true
		}
	}
	where := map[Kind]map[string]int{}
	for _, ch := range c.Changes {
		w := ch.unlisted()
		if listed[ch.Key] {
			w = places[0]
		} else if inRow[ch.Key] {
			w = places[1]
		}
		if where[ch.Kind] == nil {
			where[ch.Kind] = map[string]int{}
		}
		where[ch.Kind][w]++
	}
	for _, k := range Kinds {
		var words []string
		for _, w := range places {
			if n := where[k][w]; n > 0 {
				words = append(words, fmt.Sprintf("%d %s", n, w))
			}
		}
		if n := c.Counts[k]; n > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s: %s", n, strings.ReplaceAll(string(k), "_", " "), strings.Join(words, ", ")))
		}
	}
	attempts := "attempts"
	if len(c.Changes) == 1 {
		attempts = "attempt"
	}
	return fmt.Sprintf("%d %s (`probe list` says what each is)", len(c.Changes), attempts), kinds
}

// places are where an attempt is told, or why no list has it.
var places = []string{
	"listed", "in the five rows",
	"that must work", "that neither report was asked to try", "shut behind the fence", "not open before", "in no list",
}

// unlisted says why no list has the change.
func (ch Change) unlisted() string {
	switch {
	case ch.Function && ch.Open:
		return places[2]
	case ch.idle():
		return places[3]
	case ch.Kind != StillClosed && ch.is == shut:
		return places[4]
	case ch.Kind == OnlyBefore && ch.was != open:
		return places[5]
	}
	return places[6]
}
