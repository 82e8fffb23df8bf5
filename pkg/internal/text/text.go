// Package text makes what others named fit for a terminal.
package text

import (
	"strconv"
	"strings"
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
