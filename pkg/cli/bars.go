package cli

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/text"
)

// Bars shows people how far work has come, in several parts at a time: on a
// terminal a bar for each part that is under way and one for all, elsewhere
// nothing but the lines that are said.
type Bars struct {
	w        *os.File
	terminal bool
	tool     string
	what     string // the parts are: images
	doing    string // of several of them: are being built
	began    time.Time

	mu      sync.Mutex
	total   int
	ended   int
	note    string
	running map[string]bar
	drawn   int // lines on the screen
	stop    chan struct{}
	stopped chan struct{}
}

type bar struct {
	name, text string
	step, of   int
	since      time.Time
}

// NewBars are a tool's. what its parts are called, and doing what is done with
// several: "images", "are being built".
func NewBars(w *os.File, tool, what, doing string) *Bars {
	return &Bars{w: w, terminal: IsTerminal(w), tool: tool, what: what, doing: doing, running: map[string]bar{}, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// Terminal says whether there are bars.
func (b *Bars) Terminal() bool { return b.terminal }

// Start is called before the work begins, End when it has ended.
func (b *Bars) Start() {
	b.began = time.Now()
	if !b.terminal {
		close(b.stopped)
		return
	}
	go func() {
		defer close(b.stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.mu.Lock()
				b.draw()
				b.mu.Unlock()
			case <-b.stop:
				b.mu.Lock()
				b.wipe()
				b.mu.Unlock()
				return
			}
		}
	}()
}

// End takes the bars away.
func (b *Bars) End() {
	close(b.stop)
	<-b.stopped
}

// More adds to the number of parts.
func (b *Bars) More(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total += n
}

// Note is what the bar for all says after the numbers.
func (b *Bars) Note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note = text
}

// Show says what a part does now: step of so many, or 0 of 0.
func (b *Bars) Show(key, name string, step, of int, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	since := time.Now()
	if r, ok := b.running[key]; ok {
		since = r.since
	}
	b.running[key] = bar{name, text, step, of, since}
}

// Since is how long a part has been shown.
func (b *Bars) Since(key string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := b.running[key]; ok {
		return time.Since(r.since)
	}
	return 0
}

// Done takes a part away that has ended; what is said of it is a line, and "" is
// none.
func (b *Bars) Done(key, name, said string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, key)
	b.ended++
	if said == "" {
		return
	}
	name = Printable(name)
	if columns, _ := screen(b.w); b.terminal {
		name = Short(name, columns/2)
	}
	b.line(fmt.Sprintf("%d/%d %s: %s", b.ended, b.total, name, Printable(said)))
	if b.terminal {
		b.draw()
	}
}

// Drop takes a part away that has not ended.
func (b *Bars) Drop(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, key)
}

// Say prints a line.
func (b *Bars) Say(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.line(Printable(text))
}

func (b *Bars) line(text string) {
	b.wipe()
	fmt.Fprintf(b.w, "%s: %s\n", b.tool, text)
}

// wipe takes the bars from the screen, so that a line can be printed. The cursor
// may be behind what was typed, as ^C.
func (b *Bars) wipe() {
	if b.drawn > 0 {
		fmt.Fprintf(b.w, "\r\x1b[%dA\x1b[J", b.drawn)
		b.drawn = 0
	}
}

// draw puts the bars where the last ones are.
func (b *Bars) draw() {
	columns, rows := screen(b.w)
	lines := b.lines(columns, rows, time.Now())
	var out strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&out, "\r\x1b[%dA", b.drawn)
	}
	for _, l := range lines {
		out.WriteString(l + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	b.drawn = len(lines)
	io.WriteString(b.w, out.String())
}

// lines are the bars: those of the parts that began first, as many as there is
// place for, then one for all.
func (b *Bars) lines(columns, rows int, now time.Time) []string {
	keys := slices.SortedFunc(maps.Keys(b.running), func(x, y string) int {
		if n := b.running[x].since.Compare(b.running[y].since); n != 0 {
			return n
		}
		return strings.Compare(x, y)
	})
	shown := keys[:min(len(keys), max(1, rows-3))]
	wide := 0 // the longest name, of a third of the screen at most
	for _, k := range shown {
		wide = max(wide, len([]rune(Printable(b.running[k].name))))
	}
	wide = min(wide, columns/3)
	var out []string
	for _, k := range shown {
		r := b.running[k]
		line := fmt.Sprintf("%-*s %s %2d/%-2d %6s  ", wide, Short(Printable(r.name), wide), meter(r.step, r.of, 10), r.step, r.of, Span(now.Sub(r.since)))
		text := []rune(line + Printable(r.text))
		out = append(out, string(text[:min(len(text), columns-1)]))
	}
	last := fmt.Sprintf("%s %d of %d %s, %s%s", meter(b.ended, b.total, 20), b.ended, b.total, b.what, b.note, Span(now.Sub(b.began)))
	if n := len(keys) - len(shown); n > 0 {
		last += fmt.Sprintf("; %d more %s", n, b.doing)
	}
	return append(out, Short(last, columns-1))
}

// screen is how much a terminal shows.
func screen(w *os.File) (columns, rows int) {
	rows = 24
	if ws, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil && ws.Row > 0 {
		rows = int(ws.Row)
	}
	return Columns(w), rows
}

// meter is a bar of a width in columns.
func meter(n, of, width int) string {
	full := 0
	if of > 0 {
		full = min(n, of) * width / of
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

// Span is a time for people: 3.2s, 41s, 12m03s.
func Span(d time.Duration) string { return text.Span(d) }
