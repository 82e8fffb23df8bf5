package trajectory

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Plain takes out of what a program prints for a terminal all that a recording
// must not do to whoever watches it: set titles and the clipboard, ask the
// terminal for answers (which would be typed into the viewer's shell), turn on
// the mouse, resize, ring. What is left are text, colours, the cursor and the
// clearing of parts (ECMA-48; XTerm Control Sequences), with no number beyond
// the terminal's size and few marks on a character, over which a player would
// sit for ever. A sequence that comes in pieces is held back until it is whole.
//
// Where a sequence begins and ends is as tmux has it (its input.c), so that a
// recording shows what the model was shown.
type Plain struct {
	Width, Height int // of the terminal, in cells
	// Work is what xterm.js takes to draw all that came so far, as measured, in
	// the time that it takes for a letter: about 0.1 microseconds.
	Work int

	held   []byte        // the beginning of a sequence, as far as it came
	within byte          // a string, of the kind that the character after its ESC says
	since  time.Duration // and when that came
	dcs    byte          // of a device control string, the part that it is in
	esc    bool          // and an ESC came last, in its data
	marks  int           // on the last character
	again  bool          // that came last, and can be repeated
	insert bool          // characters push others to the right
}

const (
	sequenceMost = 256             // bytes; what is longer is none
	stringMost   = 5 * time.Second // tmux waits so long for the end of a string
	marksMost    = 8               // what a cell of tmux's has room for

	bel, can, sub, esc = 0x07, 0x18, 0x1a, 0x1b
)

// The strings, by the characters after their ESC: operating system's and
// device's commands, those of applications and privacy, and tmux's title.
const (
	osc, dcs, sos = ']', 'P', 'X'
	stringKinds   = "]PX^_k"
)

// Parts of a device control string.
const (
	dcsNumbers byte = iota + 1
	dcsBetween
	dcsData
)

// reset is what tmux makes of ESC c, which would take a viewer's settings too:
// the modes below, colours, letters, the region, and an empty screen.
const reset = "\x1b[4l\x1b[?5;6l\x1b[?7;25h\x1b[m\x1b(B\x0f\x1b[r\x1b[H\x1b[2J\x1b7"

// finals are the last characters of control sequences that only change what is
// to be seen: cursor, erasing, inserting, scrolling, colours, regions.
const finals = "@ABCDEFGHIJKLMPSTXZ`abdefhlmrsu"

// modes are the private ones that only change what is to be seen: reverse video,
// origin, wrapping, the cursor, and xterm's other screen.
var modes = []string{"5", "6", "7", "12", "25", "47", "1047", "1048", "1049"}

// Filter is the part of a text that may be shown, behind what came before. It
// was printed at a time from the beginning.
func (p *Plain) Filter(at time.Duration, text string) string {
	if at-p.since >= stringMost {
		p.within = 0
	}
	var out strings.Builder
	for _, r := range text {
		switch {
		case p.within != 0:
			p.pass(r)
		case r == esc:
			p.held = append(p.held[:0], esc)
		case r == can || r == sub:
			p.held = p.held[:0]
		case len(p.held) == 0 || r < ' ': // which is carried out within a sequence, too
			if p.shown(r) {
				out.WriteRune(r)
			}
		case r < 0x7f:
			out.Write(p.more(byte(r), at))
		}
	}
	return out.String()
}

// pass takes the next character of a string, which is not shown.
func (p *Plain) pass(r rune) {
	switch {
	case p.within == dcs && p.dcs == dcsData: // whatever it is, up to ESC \
		if p.esc && r == '\\' {
			p.within = 0
		}
		p.esc = r == esc && !p.esc
	case r == esc:
		p.within, p.held = 0, append(p.held[:0], esc)
	case r == can, r == sub, r == bel && p.within == osc:
		p.within = 0
	case p.within != dcs || r < ' ' || r >= 0x7f:
	case r >= '@':
		p.dcs, p.esc = dcsData, false
	case r < '0':
		p.dcs = dcsBetween
	case p.dcs == dcsBetween, r == ':', r > ';' && p.dcs == dcsNumbers: // as none that there is
		p.within = sos
	default:
		p.dcs = dcsNumbers
	}
}

// shown says whether a character outside of sequences is.
func (p *Plain) shown(r rune) bool {
	switch {
	case r < ' ':
		p.again = false
		if !strings.ContainsRune("\b\t\n\v\f\r\x0e\x0f", r) {
			return false
		}
		p.Work++
		if r >= '\n' && r <= '\f' { // a line
			p.Work += p.Width / 4
		}
		p.marks = 0
		return true
	case r >= 0x7f && r < 0xa0: // some terminals take these as the beginnings of sequences
		return false
	case unicode.In(r, unicode.M, unicode.Cf) || r >= 0x1160 && r < 0x1200: // with the later parts of Hangul's syllables
		p.Work += 10
		p.marks++
		return p.marks <= marksMost
	}
	p.Work++
	if p.insert {
		p.Work += p.Width
	}
	p.marks, p.again = 0, true
	return true
}

// more is the next character of a sequence; what is complete and harmless is
// returned.
func (p *Plain) more(c byte, at time.Duration) []byte {
	if len(p.held) == 1 && strings.IndexByte(stringKinds, c) >= 0 {
		p.held, p.within, p.since, p.dcs, p.again = p.held[:0], c, at, 0, false
		return nil
	}
	if len(p.held) <= sequenceMost {
		p.held = append(p.held, c)
	}
	control := p.held[1] == '['
	if control && (len(p.held) == 2 || c < '@') || !control && c < '0' { // not its last
		return nil
	}
	whole, again := bytes.Clone(p.held), p.again
	p.held = p.held[:0]
	// What tmux does not know leaves what could be repeated.
	p.again = again && !control && len(whole) == 2 && strings.IndexByte("78=>DEHMc\\", c) < 0
	switch {
	case c == 'b' && control && !again:
	case len(whole) > sequenceMost:
	case control:
		return p.control(whole[2:])
	case len(whole) == 2 && c == 'c':
		p.insert = false
		p.Work += p.Height * p.Width
		return []byte(reset)
	case len(whole) == 2 && strings.IndexByte("78DEHM", c) >= 0:
		p.Work += 2 * p.Width
		return whole
	case len(whole) == 3 && strings.IndexByte("()", whole[1]) >= 0 && strings.IndexByte("0AB", c) >= 0:
		p.Work += 16
		return whole
	}
	return nil
}

// control is a control sequence, of which all but its beginning is given, if it
// only changes what is to be seen.
func (p *Plain) control(s []byte) []byte {
	last, rest := s[len(s)-1], s[:len(s)-1]
	if strings.IndexByte(finals, last) < 0 {
		return nil
	}
	n := 0 // the greatest of its numbers
	if last == 'h' || last == 'l' {
		if !p.mode(rest, last == 'h') {
			return nil
		}
	} else {
		if len(bytes.Trim(rest, "0123456789;:")) > 0 {
			return nil
		}
		most := max(p.Width, p.Height, 10) // J and K know numbers up to 3, whatever the size
		switch last {
		case 'm':
			most = 255
		case 'L', 'M', 'S', 'T':
			most = p.Height
		}
		rest, n = bounded(rest, most)
	}
	if last == 'J' && bytes.IndexByte(rest, '3') >= 0 { // what the viewer can scroll back to
		return nil
	}
	n = max(n, 1)
	switch last {
	case 'L', 'M', 'S', 'T':
		p.Work += 2 * n * p.Width
	case 'J':
		p.Work += p.Height * p.Width / 4
	case 'K', 'X', 'P', '@':
		p.Work += p.Width
	case 'b':
		p.Work += 80 * n
	case 'I', 'Z':
		p.Work += 16 * n
	default:
		p.Work += 64
	}
	return append(append([]byte("\x1b["), rest...), last)
}

// mode says whether the modes that are set or reset only change what is to be
// seen.
func (p *Plain) mode(s []byte, set bool) bool {
	numbers, private := strings.CutPrefix(string(s), "?")
	all := strings.Split(numbers, ";")
	known := modes
	if !private {
		known = []string{"4", "20"}
	}
	if slices.ContainsFunc(all, func(n string) bool { return !slices.Contains(known, n) }) {
		return false
	}
	if slices.Contains(all, "4") {
		p.insert = set
	}
	if private {
		p.Work += p.Height * p.Width * len(all) // for another screen
	}
	return true
}

// bounded are the numbers of a sequence, none greater than most, and the
// greatest.
func bounded(s []byte, most int) (out []byte, greatest int) {
	for len(s) > 0 {
		end := bytes.IndexAny(s, ";:")
		if end < 0 {
			end = len(s)
		}
		if end > 0 {
			n, err := strconv.Atoi(string(s[:end]))
			if err != nil || n > most {
				n = most
			}
			greatest = max(greatest, n)
			out = strconv.AppendInt(out, int64(n), 10)
		}
		out = append(out, s[end:min(end+1, len(s))]...)
		s = s[min(end+1, len(s)):]
	}
	return out, greatest
}
