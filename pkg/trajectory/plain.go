package trajectory

import (
	"bytes"
	"slices"
)

// plain takes out of what a program prints for a terminal all that a recording
// must not do to whoever watches it: set titles and the clipboard, ask the
// terminal for answers (which would be typed into the viewer's shell), turn on
// the mouse, resize, ring. What is left are text, colours, the cursor and the
// clearing of parts (ECMA-48; XTerm Control Sequences). A sequence that comes in
// pieces is held back until it is whole.
type plain struct {
	held []byte // the beginning of a sequence, as far as it came
	skip bool   // within a string (OSC, DCS, tmux's title, ...), up to its end
	esc  bool   // of that, an ESC came last
}

// sequenceMost bounds a sequence; what is longer is none.
const sequenceMost = 256

const (
	bel = 0x07
	esc = 0x1b
)

// finals are the last characters of control sequences that only change what is
// to be seen: cursor, erasing, inserting, scrolling, colours, regions.
const finals = "@ABCDEFGHIJKLMPSTXZ`abdefhlmrsu"

// modes are the private ones that only change what is to be seen: reverse video,
// origin, wrapping, the cursor, and xterm's other screen.
var modes = []string{"5", "6", "7", "12", "25", "47", "1047", "1048", "1049"}

// filter is the part of p that may be shown, behind what came before.
func (f *plain) filter(p []byte) []byte {
	var out []byte
	for _, c := range p {
		switch {
		case f.skip:
			// BEL, ESC \ or CAN and SUB end a string.
			if c == bel || c == 0x18 || c == 0x1a || f.esc && c == '\\' {
				f.skip, f.esc = false, false
				continue
			}
			if f.esc = c == esc; f.esc {
				continue
			}
		case len(f.held) > 0:
			out = append(out, f.more(c)...)
		case c == esc:
			f.held = append(f.held[:0], c)
		case c < ' ' && bytes.IndexByte([]byte("\b\t\n\v\f\r\x0e\x0f"), c) < 0, c == 0x7f:
			// BEL, ENQ and others
		default:
			out = append(out, c)
		}
	}
	return out
}

// more is the next character of a sequence; what is complete and harmless is
// returned.
func (f *plain) more(c byte) []byte {
	switch {
	case c == 0x18 || c == 0x1a: // cancelled
		f.held = f.held[:0]
		return nil
	case c == esc: // another begins
		f.held = append(f.held[:0], c)
		return nil
	case c < ' ': // is carried out within a sequence
		if c == '\n' || c == '\r' || c == '\b' || c == '\t' {
			return []byte{c}
		}
		return nil
	}
	f.held = append(f.held, c)
	if len(f.held) == 2 && bytes.IndexByte([]byte("]PX^_k"), c) >= 0 {
		f.held, f.skip, f.esc = f.held[:0], true, false
		return nil
	}
	if len(f.held) > sequenceMost {
		f.held = f.held[:0]
		return nil
	}
	control := f.held[1] == '['
	switch {
	case control && (len(f.held) == 2 || c < 0x40), !control && c < 0x30: // not its last
		return nil
	}
	whole := append([]byte(nil), f.held...)
	f.held = f.held[:0]
	if control && harmless(whole[2:]) || !control && bytes.IndexByte([]byte("78DEHM"), c) >= 0 && len(whole) == 2 ||
		!control && len(whole) == 3 && bytes.IndexByte([]byte("()"), whole[1]) >= 0 && bytes.IndexByte([]byte("0AB"), c) >= 0 {
		return whole
	}
	return nil
}

// harmless says whether a control sequence, without its beginning, only changes
// what is to be seen.
func harmless(s []byte) bool {
	last, rest := s[len(s)-1], s[:len(s)-1]
	if bytes.IndexByte([]byte(finals), last) < 0 {
		return false
	}
	if last == 'J' && bytes.IndexByte(rest, '3') >= 0 { // what the viewer can scroll back to
		return false
	}
	if last != 'h' && last != 'l' {
		return len(bytes.Trim(rest, "0123456789;:")) == 0
	}
	numbers, private := bytes.CutPrefix(rest, []byte("?"))
	for _, n := range bytes.Split(numbers, []byte(";")) {
		if private && !slices.Contains(modes, string(n)) || !private && string(n) != "4" && string(n) != "20" {
			return false
		}
	}
	return true
}
