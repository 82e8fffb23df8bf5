package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"fence/pkg/internal/text"
)

// Text writes blocks for a terminal that has that many columns. What others
// named does nothing to it.
func Text(w io.Writer, blocks []Block, columns int) {
	for i, b := range blocks {
		if i > 0 {
			fmt.Fprintln(w)
		}
		heading := text.Printable(b.Heading)
		if b.Level == 1 {
			heading = "== " + heading
		}
		fold(w, "", heading, columns)
		if len(b.Rows) > 0 {
			table(w, b, columns)
			if len(b.Lines) > 0 {
				fmt.Fprintln(w)
			}
		}
		for _, l := range b.Lines {
			fold(w, "  ", l, columns)
		}
	}
}

// fold prints a text with its later lines indented by two more.
func fold(w io.Writer, indent, s string, columns int) {
	for i, line := range text.Fold(text.Printable(s), columns-len(indent)-2) {
		if i > 0 {
			line = "  " + line
		}
		fmt.Fprintln(w, strings.TrimRight(indent+line, " "))
	}
}

// least columns of a cell of words.
const least = 10

// table prints rows in columns that are as wide as their cells, cells and
// header folded where that is too much: first the last column, if it is one of
// words, then the widest of words.
func table(w io.Writer, b Block, columns int) {
	rows := [][]string{b.Header}
	for _, r := range b.Rows {
		line := make([]string, len(r))
		for i, cell := range r {
			line[i] = text.Printable(cell)
		}
		rows = append(rows, line)
	}
	widths := make([]int, len(b.Header))
	for n, r := range rows {
		for i, cell := range r {
			if n > 0 {
				widths[i] = max(widths[i], runes(cell))
				continue
			}
			for _, word := range strings.Fields(cell) {
				widths[i] = max(widths[i], runes(word))
			}
		}
	}
	isWords := func(i int) bool { return i < b.Left || b.Words && i == len(widths)-1 }
	for over(widths) > columns {
		widest := -1
		for i := range widths {
			if isWords(i) && widths[i] > least && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	bare := strings.Join(b.Header, "") == ""
	for n, r := range rows {
		if n == 0 && bare {
			continue
		}
		cells := make([][]string, len(r))
		high := 1
		for i, cell := range r {
			cells[i] = text.Fold(cell, widths[i])
			if bare && !strings.Contains(cell, " ") {
				cells[i] = []string{cell} // a path stays whole, so that it can be copied
			}
			high = max(high, len(cells[i]))
		}
		for l := range high {
			line := ""
			for i := range r {
				part := ""
				if l < len(cells[i]) {
					part = cells[i][l]
				}
				pad := strings.Repeat(" ", max(0, widths[i]-runes(part)))
				if isWords(i) {
					line += "  " + part + pad
				} else {
					line += "  " + pad + part
				}
			}
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
		if n == 0 {
			rule := ""
			for _, width := range widths {
				rule += "  " + strings.Repeat("-", width)
			}
			fmt.Fprintln(w, rule)
		}
	}
}

// over is how wide a table is, with its gaps.
func over(widths []int) (all int) {
	for _, w := range widths {
		all += 2 + w
	}
	return all
}

func runes(s string) int { return len([]rune(s)) }

// escape are the characters that mean something in Markdown. Underscores
// within words do not.
var escape = strings.NewReplacer(`\`, `\\`, "`", "\\`", "*", `\*`, "[", `\[`, "]", `\]`, "<", "&lt;", ">", "&gt;", "&", "&amp;", "|", `\|`, "#", `\#`, "~", `\~`)

// Markdown writes blocks for a page. Text of others is text there.
func Markdown(w io.Writer, blocks []Block) {
	cell := func(s string) string { return escape.Replace(text.Printable(s)) }
	for i, b := range blocks {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s\n\n", strings.Repeat("#", b.Level+1), cell(b.Heading))
		if len(b.Rows) > 0 {
			rule := "|"
			for i := range b.Header {
				if i < b.Left || b.Words && i == len(b.Header)-1 {
					rule += "---|"
				} else {
					rule += "--:|"
				}
			}
			fmt.Fprintf(w, "| %s |\n%s\n", strings.Join(b.Header, " | "), rule)
			for _, r := range b.Rows {
				cells := slices.Clone(r)
				for i := range cells {
					cells[i] = cell(cells[i])
				}
				fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
			}
			if len(b.Lines) > 0 {
				fmt.Fprintln(w)
			}
		}
		for _, l := range b.Lines {
			fmt.Fprintf(w, "- %s\n", cell(l))
		}
	}
}
