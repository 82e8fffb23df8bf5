package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Error is one thing wrong with a policy: where it stands, and what to try.
// Its text is always one line and never holds a variable's value.
type Error struct {
	File string // the file, the built-in policy, or the flag
	Line int    // 0 for a flag
	Msg  string
	Hint string // what to type instead, may be ""
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return oneLine(e.File) + ": " + e.Msg
	}
	return oneLine(e.File) + ":" + strconv.Itoa(e.Line) + ": " + e.Msg
}

// fault is an error of a check that does not know where its input stands.
type fault struct{ msg, hint string }

func faultf(hint, format string, a ...any) *fault {
	return &fault{fmt.Sprintf(format, a...), hint}
}

func oneLine(s string) string {
	if badText(s) == "" {
		return s
	}
	return strconv.Quote(s)
}

// didYouMean is a hint with the word of known nearest to got, or "".
func didYouMean(got string, known []string) string {
	best, at := "", 3
	for _, k := range known {
		if d := edits(got, k); d < at && d < len(k) {
			best, at = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// edits counts the single-letter changes that turn a into b. It gives up on
// text that is no word.
func edits(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diag+cost)
		}
	}
	return row[len(b)]
}

// oneOf is "(a, b, c)", for messages about a word that is not known.
func oneOf(known []string) string { return "(" + strings.Join(known, ", ") + ")" }
