package terminal

import (
	"unicode"
	"unicode/utf8"
)

// A cell of tmux's may have nine accents, and each different cell that it has
// ever seen stays in its memory. So a character has a few, and a terminal knows
// so many characters with accents; the rest of them are left out.
const (
	mostMarks = 3
	mostKnown = 1 << 16
)

// marks is what tmux is shown of what programs print.
type marks struct {
	part     []byte              // of a character whose other bytes are still to come
	cell     string              // the last character, "" where it is not known what a mark would be put on
	on       int                 // marks on it
	sequence int                 // 1 after an escape, 2 within its sequence
	known    map[string]struct{} // cells with marks
}

// pass is b, or another, without the marks that are too many, and without characters that
// take no room and are no marks (unicode.Cf, C1), which tmux would put onto the
// character before.
func (m *marks) pass(b []byte) []byte {
	if len(m.part) > 0 {
		b = append(m.part, b...)
		m.part = nil
	}
	var out []byte
	for len(b) > 0 {
		plain := 0
		for m.sequence == 0 && plain < len(b) && b[plain] != 0x1b && b[plain] < utf8.RuneSelf {
			plain++
		}
		if plain > 0 {
			m.cell, m.on = "", 0
			if last := b[plain-1]; last >= ' ' && last != 0x7f {
				m.cell = string(rune(last))
			}
			if out == nil && plain == len(b) {
				return b
			}
			out, b = append(out, b[:plain]...), b[plain:]
			continue
		}
		if !utf8.FullRune(b) {
			m.part = append(m.part, b...)
			break
		}
		r, n := utf8.DecodeRune(b)
		if m.shows(r) {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return out
}

func (m *marks) shows(r rune) bool {
	switch {
	case r < ' ' || r == 0x7f || m.sequence > 0:
		m.cell, m.sequence = "", sequence(m.sequence, r)
	case unicode.In(r, unicode.Mn, unicode.Me) || r >= 0x1160 && r <= 0x11ff: // and vowels of Hangul, which are as wide as marks
		cell := m.cell + string(r)
		if _, known := m.known[cell]; m.cell == "" || m.on == mostMarks || !known && len(m.known) == mostKnown {
			return false
		}
		if m.known == nil {
			m.known = map[string]struct{}{}
		}
		m.known[cell] = struct{}{}
		m.cell, m.on = cell, m.on+1
	case unicode.Is(unicode.Cf, r) && r != 0xad || r >= 0x80 && r < 0xa0:
		return false
	case r != utf8.RuneError && (unicode.IsGraphic(r) || unicode.Is(unicode.Co, r)):
		m.cell, m.on = string(r), 0
	default:
		m.cell = ""
	}
	return true
}

// sequence is where r leads in an escape sequence (ECMA-48, 5.3 and 5.4). That of
// a string ends at once: what stands in it is not shown, and its end is a control
// character.
func sequence(now int, r rune) int {
	switch {
	case r == 0x1b:
		return 1
	case r == 0x18 || r == 0x1a:
		return 0
	case r < ' ' || r == 0x7f:
		return now
	case now == 1 && (r == '[' || r >= ' ' && r < '0'), now == 2 && r < '@':
		return 2
	}
	return 0
}
