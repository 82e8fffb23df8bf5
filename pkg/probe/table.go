package probe

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable makes text from a report safe to print: a report comes out of a
// container, and a path or a host name in it may hold control characters.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func width(s string) int { return utf8.RuneCountInString(s) }

// wrap breaks text into lines of at most n characters, at spaces where there
// are any.
func wrap(text string, n int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		for width(word) > n {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			head := string([]rune(word)[:n])
			lines, word = append(lines, head), word[len(head):]
		}
		switch {
		case line == "":
			line = word
		case width(line)+1+width(word) <= n:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" || lines == nil {
		lines = append(lines, line)
	}
	return lines
}

// page writes text for a person, columns wide. It keeps the first error.
type page struct {
	w       io.Writer
	columns int
	err     error
}

func (p *page) line(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, strings.TrimRight(fmt.Sprintf(format, a...), " "))
	}
}

// para writes text under a lead: the first line starts with lead, the others
// with as many spaces.
func (p *page) para(lead, text string) {
	for i, l := range wrap(printable(text), max(p.columns-width(lead), 20)) {
		if i == 1 {
			lead = strings.Repeat(" ", width(lead))
		}
		p.line("%s%s", lead, l)
	}
}

// grid writes rows of cells below each other.
func (p *page) grid(indent string, limits []int, rows [][]string) {
	t := p.fit(indent, limits, rows)
	for _, row := range rows {
		t.row(row)
	}
}

// layout is where the columns of a grid stand.
type layout struct {
	p      *page
	indent string
	widths []int
	gap    int
}

// fit gives each column the width it needs, but no more than its limit; a
// limit of 0 is what the others leave of the page. Columns stand two apart
// where there is room.
func (p *page) fit(indent string, limits []int, rows [][]string) layout {
	t := layout{p, indent, make([]int, len(limits)), 2}
	for _, row := range rows {
		for i, c := range row {
			t.widths[i] = max(t.widths[i], width(printable(c)))
		}
	}
	need, rest := width(indent), -1
	for i, l := range limits {
		if l > 0 {
			t.widths[i] = min(t.widths[i], l)
		} else {
			rest = i
		}
		need += t.widths[i]
	}
	if need+2*(len(limits)-1) > p.columns && rest < 0 {
		t.gap = 1
	}
	if over := need + t.gap*(len(limits)-1) - p.columns; over > 0 && rest >= 0 {
		t.widths[rest] = max(t.widths[rest]-over, 20)
	}
	return t
}

// row writes one row; a cell that does not fit is wrapped in its column.
func (t layout) row(row []string) {
	cells := make([][]string, len(row))
	height := 0
	for i, c := range row {
		cells[i] = wrap(printable(c), t.widths[i])
		height = max(height, len(cells[i]))
	}
	for y := range height {
		out := t.indent
		for i, lines := range cells {
			text := ""
			if y < len(lines) {
				text = lines[y]
			}
			out += text + strings.Repeat(" ", t.widths[i]-width(text)+t.gap)
		}
		t.p.line("%s", out)
	}
}

// bundle names attempts in few words: "net.netlink[0, 4, 6 and 6 more]".
func bundle(keys []Key, most int) []string {
	var ids []string
	targets := map[string][]string{}
	for _, k := range keys {
		if _, ok := targets[k.ID]; !ok {
			ids = append(ids, k.ID)
			targets[k.ID] = nil
		}
		if k.Target != "" {
			targets[k.ID] = append(targets[k.ID], k.Target)
		}
	}
	for i, id := range ids {
		t := targets[id]
		slices.SortFunc(t, byNumber)
		switch {
		case len(t) == 0:
		case len(t) > most+1:
			ids[i] = fmt.Sprintf("%s[%s and %d more]", id, strings.Join(t[:most], ", "), len(t)-most)
		default:
			ids[i] = fmt.Sprintf("%s[%s]", id, strings.Join(t, ", "))
		}
	}
	return ids
}
