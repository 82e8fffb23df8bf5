package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Records writes values as lines of JSON that do nothing to a terminal: what is
// not printable in a string stands there as \u009b, which JSON leaves to its
// writer but for characters below a space (RFC 8259, 7).
func Records(w io.Writer) *json.Encoder {
	e := json.NewEncoder(printed{w})
	e.SetEscapeHTML(false)
	return e
}

type printed struct{ io.Writer }

// Write takes whole values, as an Encoder writes them.
func (p printed) Write(b []byte) (int, error) {
	if !strings.ContainsFunc(string(b), hidden) {
		return p.Writer.Write(b)
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case !hidden(r):
			out = append(out, string(r)...)
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	if _, err := p.Writer.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

func hidden(r rune) bool { return r > '~' && !strconv.IsPrint(r) }
