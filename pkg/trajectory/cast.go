package trajectory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// Cast records a terminal as an asciicast v2
// (https://docs.asciinema.org/manual/asciicast/v2): a header, then an event a
// line with the seconds since the start. It is valid UTF-8 whatever a program
// prints: what is no text stands there as U+FFFD, and a character that comes
// in pieces is written when it is whole. Of what a program can ask a terminal
// to do, it has only what is to be seen: no titles, no clipboard, no questions.
type Cast struct {
	mu      sync.Mutex
	w       io.Writer
	now     func() time.Time
	began   time.Time // of its clock: the whole second that the header names
	left    int64     // bytes that may be written, if there is a limit
	limited bool
	full    bool
	rest    []byte // the beginning of a character
	plain   Plain
	err     error
}

// NewCast writes the header. What would make the recording longer than max
// bytes (0: no limit), and all that follows, is not recorded, and a marker says
// so.
//
// The format has whole seconds for when a recording began. Its events count
// from there, and not from this call, so that header and event together say
// when something was printed: that is what a turn's times are held against.
func NewCast(w io.Writer, width, height int, title string, max int64, now func() time.Time) (*Cast, error) {
	began := now()
	began = began.Add(-time.Duration(began.Nanosecond())) // not Truncate: that loses the monotonic clock
	c := &Cast{w: w, now: now, began: began, left: max, limited: max > 0, plain: Plain{Width: width, Height: height}}
	c.line(struct {
		Version   int               `json:"version"`
		Width     int               `json:"width"`
		Height    int               `json:"height"`
		Timestamp int64             `json:"timestamp"`
		Title     string            `json:"title,omitempty"`
		Env       map[string]string `json:"env"`
	}{2, width, height, c.began.Unix(), title, map[string]string{"TERM": "xterm-256color", "SHELL": "/bin/bash"}})
	return c, c.err
}

// Write records what a program printed. It fails only as the file does.
func (c *Cast) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := append(c.rest, p...)
	keep := partial(all)
	c.shown(all[:len(all)-keep])
	c.rest = bytes.Clone(all[len(all)-keep:])
	return len(p), c.err
}

// Input records what was typed.
func (c *Cast) Input(keys string) error { return c.locked("i", keys) }

// Marker records a point in time with a label.
func (c *Cast) Marker(label string) error { return c.locked("m", label) }

// Close writes what is left of a character that never became whole.
func (c *Cast) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown(c.rest)
	c.rest = nil
	return c.err
}

func (c *Cast) shown(p []byte) {
	if len(p) == 0 || c.full {
		return
	}
	at := c.now().Sub(c.began)
	if text := c.plain.Filter(at, string(p)); text != "" {
		c.event(at, "o", text)
	}
}

func (c *Cast) locked(kind, data string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.full {
		c.event(c.now().Sub(c.began), kind, data)
	}
	return c.err
}

func (c *Cast) event(at time.Duration, kind, data string) {
	at = max(at, 0)
	// Not a float64, which JSON may write as 1e-06: not every player reads that.
	sec := json.RawMessage(fmt.Sprintf("%d.%06d", at/time.Second, at%time.Second/time.Microsecond))
	if c.line([]any{sec, kind, data}); c.full {
		c.limited = false
		c.line([]any{sec, "m", "more is not recorded: the limit of this recording was reached"})
	}
}

// line writes a value, if there is room for it. A "<" stands there as it is:
// as JSON escapes it for pages, it has six times its length.
func (c *Cast) line(v any) {
	if c.err != nil {
		return
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if c.err = e.Encode(v); c.err != nil {
		return
	}
	if c.left -= int64(b.Len()); c.limited && c.left < 0 {
		c.full = true
		return
	}
	_, c.err = c.w.Write(b.Bytes())
}

// partial is how many bytes at the end of p begin a character that may still
// become whole.
func partial(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		tail := p[len(p)-n:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}
