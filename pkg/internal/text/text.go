// Package text makes what others named fit for a terminal.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Printable is s in one line that does nothing to a terminal: what is not
// printable (control characters, escapes, marks that turn the direction of
// writing) stands there as Go writes it, \x1b.
func Printable(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Fold breaks a text into lines of at most that many columns, between words
// where it can.
func Fold(text string, columns int) (lines []string) {
	columns = max(columns, 1)
	line := ""
	for _, word := range strings.Fields(text) {
		for {
			room := columns - len([]rune(line))
			if line != "" {
				room--
			}
			r := []rune(word)
			switch {
			case len(r) <= room:
				line = strings.TrimSpace(line + " " + word)
			case line != "":
				lines, line = append(lines, line), ""
				continue
			default: // longer than a line
				lines, word = append(lines, string(r[:columns])), string(r[columns:])
				continue
			}
			break
		}
	}
	return append(lines, line)
}

// Short is s in that many columns: what is too long loses its middle, so that
// names that begin alike are told apart.
func Short(s string, columns int) string {
	r := []rune(s)
	if len(r) <= columns {
		return s
	}
	if columns < 12 {
		return string(r[:max(columns, 0)])
	}
	tail := columns / 3
	return string(r[:columns-tail-2]) + ".." + string(r[len(r)-tail:])
}

// Size is a number of bytes for people.
func Size(n int64) string {
	units := []string{"", "K", "M", "G", "T"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%.1f%s", f, units[i])
}

// Span is a time for people: 3.2s, 41s, 12m03s.
func Span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", max(d, 0).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
