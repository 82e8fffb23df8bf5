package terminal

import (
	"fmt"
	"slices"
	"strings"

	"fence/pkg/terminus"
)

// look asks tmux for all that a view has. What lies above the screen is
// forgotten with it, so that the next look finds there what came since; not
// while a full-screen program has the terminal, whose end brings back the
// screen that was before.
var look = []string{
	"display-message -p -t %0 '#{alternate_on} #{cursor_y} #{history_size}'",
	"capture-pane -p -J -t %0 -S -",
	"if-shell -F -t %0 '#{alternate_on}' '' 'clear-history -t %0'",
	"capture-pane -p -J -t %0",
	"capture-pane -p -N -t %0",
	"capture-pane -p -t %0",
}

// view is what a look found.
type view struct {
	alternate bool
	cursor    int      // its row, from 0
	history   int      // rows above the screen
	all       []string // lines above the screen and on it; a wrapped one is one
	omitted   int      // bytes that are missing in the middle of all
	lost      bool     // all may begin anywhere
	joined    []string // of these, those on the screen
	rows      []string // the screen row by row, with blanks at their ends
	screen    []string // the screen as it is to be seen
}

func parse(answers []text) (v view, err error) {
	alternate := 0
	if _, err := fmt.Sscan(strings.Join(answers[0].lines, ""), &alternate, &v.cursor, &v.history); err != nil {
		return v, fmt.Errorf("tmux: %q", answers[0].lines)
	}
	v.alternate = alternate != 0
	v.all, v.omitted = answers[1].lines, answers[1].omitted
	v.joined, v.rows, v.screen = answers[3].lines, answers[4].lines, answers[5].lines
	return v, nil
}

// tidy is text without blanks at the ends of lines, or blank lines at its end.
func tidy(lines []string) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strings.TrimRight(line, " "))
	}
	return strings.TrimRight(b.String(), "\n")
}

// mark is where the last look ended: what stood above the line of the cursor.
// What comes after the same lines is new.
type mark struct {
	above []string
	lost  bool // something stood below the cursor, too, or it is not known where it was
}

// next is what a view has that the mark has not, and the mark for the next.
func (m mark) next(v view) (terminus.Output, mark) {
	if v.alternate {
		return terminus.Output{Text: tidy(v.screen), Screen: true}, m
	}
	after := place(v)
	switch {
	case !m.lost && !v.lost && len(v.all) >= len(m.above) && slices.EqualFunc(m.above, v.all[:len(m.above)], same):
		if text := tidy(v.all[len(m.above):]); text != "" {
			return terminus.Output{Text: text, Omitted: v.omitted}, after
		}
	case v.lost, v.history >= Lines*9/10: // it drops a tenth when it is full
		return terminus.Output{Text: fmt.Sprintf("[more than %d lines came; the first of them are gone]\n", v.history) + tidy(v.all), Omitted: v.omitted}, after
	}
	return terminus.Output{Text: tidy(v.screen), Screen: true}, after
}

func same(a, b string) bool { return strings.TrimRight(a, " ") == strings.TrimRight(b, " ") }

// place is the mark of a view.
func place(v view) mark {
	row := 0
	for i, line := range v.joined {
		if row >= len(v.rows) {
			break
		}
		// A line has one row, or as many as it is put together of.
		n, text := 1, v.rows[row]
		for text != line && len(text) < len(line) && row+n < len(v.rows) {
			text += v.rows[row+n]
			n++
		}
		if text != line {
			break
		}
		if v.cursor < row+n {
			return mark{above: v.joined[:i], lost: tidy(v.joined[i+1:]) != ""}
		}
		row += n
	}
	return mark{lost: true}
}
