package terminal

import (
	"fmt"
	"regexp"
	"strings"
)

// Keys by their names in tmux (tmux(1), KEY BINDINGS), as they stand there. A
// single character is itself, without a name.
const (
	modifier = `(?:[CMScms]-)`
	special  = `F(?:[1-9]|1[0-2])|Enter|Escape|Tab|BTab|BSpace|Space|Up|Down|Left|Right|Home|End|` +
		`IC|Insert|DC|Delete|NPage|PageDown|PgDn|PPage|PageUp|PgUp|KP(?:[-/*+.0-9]|Enter)`
)

var (
	isKey    = regexp.MustCompile(`^(?:` + modifier + `*(?:` + special + `)|` + modifier + `+[!-~]|\^[!-~])$`)
	withLine = regexp.MustCompile(`^` + modifier + `+(?:[!-~]|` + special + `)\n$`)

	// No terminal has bytes for these, and tmux types nothing.
	isNone = regexp.MustCompile("^(?:[Cc]-(?:Enter|Escape|Tab|BTab|BSpace|KP.+)|(?:[Cc]-|\\^)[!#'()+,.0134578:;<=>`9])$")
)

// asXterm are the keys that tmux types in a way that programs for xterm do not
// know, which is what TERM says that the terminal is: the last character of the
// sequence.
var asXterm = map[string]byte{"Home": 'H', "End": 'F'}

// lineMost is how many bytes of a line a terminal keeps for a program that
// reads lines, see termios(3), canonical mode.
const lineMost = 4095

// piece is how many bytes are typed with one command of tmux's.
const piece = 1000

// typed is what tmux is asked to type, and what the model should know about it.
// Text goes byte for byte, so that no character of it means anything to tmux.
func typed(keys string) (commands, notes []string) {
	if withLine.MatchString(keys) {
		keys = strings.TrimSuffix(keys, "\n")
		notes = append(notes, fmt.Sprintf(`"%s\n" was taken as the key %s; no newline was typed after it.`, keys, keys))
	}
	if as, ok := asXterm[keys]; ok {
		return []string{fmt.Sprintf("if-shell -F -t %%0 '#{keypad_cursor_flag}' 'send-keys -t %%0 -H 1b 4f %02x' 'send-keys -t %%0 -H 1b 5b %02x'", as, as)}, notes
	}
	if isNone.MatchString(keys) {
		return nil, append(notes, keys+" is no key that a terminal has: nothing was typed.")
	}
	if isKey.MatchString(keys) {
		return []string{"send-keys -t %0 -- " + word(keys)}, notes
	}
	for line := range strings.FieldsFuncSeq(keys, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if len(line) > lineMost {
			notes = append(notes, fmt.Sprintf("A line of %d bytes was typed. Programs that read lines from the terminal (cat, sh, input()) get only the first %d bytes of a line; bash and editors get all.", len(line), lineMost))
			break
		}
	}
	for len(keys) > 0 {
		n := min(piece, len(keys))
		commands = append(commands, "send-keys -t %0 -H"+fmt.Sprintf(strings.Repeat(" %02x", n), bytesOf(keys[:n])...))
		keys = keys[n:]
	}
	return commands, notes
}

func bytesOf(s string) []any {
	all := make([]any, len(s))
	for i := range len(s) {
		all[i] = s[i]
	}
	return all
}

// word is a key's name for tmux's own parser.
func word(s string) string {
	if strings.Contains(s, "'") {
		return `"` + s + `"`
	}
	return "'" + s + "'"
}
