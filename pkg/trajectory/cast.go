package trajectory

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
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
	mu    sync.Mutex
	w     io.Writer
	now   func() time.Time
	began time.Time // of its clock: the whole second that the header names
	max   int64     // bytes of output that are recorded
	seen  int64
	rest  []byte // the beginning of a character
	plain plain
	err   error
}

// NewCast writes the header. After max bytes of output (0: no limit) the rest
// is not recorded, and a marker says so.
//
// The format has whole seconds for when a recording began. Its events count
// from there, and not from this call, so that header and event together say
// when something was printed: that is what a turn's times are held against.
func NewCast(w io.Writer, width, height int, title string, max int64, now func() time.Time) (*Cast, error) {
	began := now()
	began = began.Add(-time.Duration(began.Nanosecond())) // not Truncate: that loses the monotonic clock
	c := &Cast{w: w, now: now, began: began, max: max}
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
	n := len(p)
	if c.max > 0 && c.seen >= c.max {
		return n, c.err
	}
	c.seen += int64(n)
	p = append(c.rest, c.plain.filter(p)...)
	keep := partial(p)
	c.rest = append([]byte(nil), p[len(p)-keep:]...)
	c.shown(p[:len(p)-keep])
	if c.max > 0 && c.seen >= c.max {
		c.event("m", "more is not recorded: the limit of this recording was reached")
	}
	return n, c.err
}

// Input records what was typed.
func (c *Cast) Input(keys string) error { return c.locked("i", keys) }

// Marker records a point in time with a label.
func (c *Cast) Marker(label string) error { return c.locked("m", label) }

// Close writes what is left of a character that never became whole.
func (c *Cast) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rest) > 0 {
		c.shown(c.rest)
		c.rest = nil
	}
	return c.err
}

// shown records text, without the control characters of ISO 6429's second set,
// which some terminals take as the beginnings of sequences.
func (c *Cast) shown(p []byte) {
	text := strings.Map(func(r rune) rune {
		if r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, string(p))
	if text != "" {
		c.event("o", text)
	}
}

func (c *Cast) locked(kind, data string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event(kind, data)
	return c.err
}

func (c *Cast) event(kind, data string) {
	at := max(c.now().Sub(c.began), 0)
	// Not a float64, which JSON may write as 1e-06: not every player reads that.
	sec := fmt.Sprintf("%d.%06d", at/time.Second, at%time.Second/time.Microsecond)
	c.line([]any{json.RawMessage(sec), kind, data})
}

func (c *Cast) line(v any) {
	if c.err != nil {
		return
	}
	data, err := json.Marshal(v)
	if err == nil {
		_, err = c.w.Write(append(data, '\n'))
	}
	c.err = err
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
