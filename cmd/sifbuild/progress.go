package main

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

	"fence/pkg/build"
	"fence/pkg/cli"
)

// progress shows what is being built: on a terminal a bar for each build and
// one for all, elsewhere a line for each image that is done, or fails and is tried again.
// What was there before is not worth a line.
type progress struct {
	w        *os.File
	terminal bool
	began    time.Time
	names    map[string]string // of the images, by key

	mu      sync.Mutex
	total   int
	ended   int
	failed  int
	running map[string]running
	drawn   int // lines on the screen
	stop    chan struct{}
	stopped chan struct{}
}

type running struct {
	build.Event
	since time.Time
}

func newProgress(w *os.File) *progress {
	return &progress{w: w, terminal: cli.IsTerminal(w), names: map[string]string{}, running: map[string]running{}, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// start is called before the builds begin.
func (p *progress) start() {
	p.began = time.Now()
	if !p.terminal {
		close(p.stopped)
		return
	}
	go func() {
		defer close(p.stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			case <-p.stop:
				p.mu.Lock()
				p.wipe()
				p.mu.Unlock()
				return
			}
		}
	}()
}

// more adds to what is to be built.
func (p *progress) more(list []build.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += len(list)
	for _, w := range list {
		p.names[w.Key] = w.Names[0]
	}
}

func (p *progress) end() {
	close(p.stop)
	<-p.stopped
}

func (p *progress) event(e build.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.running[e.Image]
	if !ok {
		r.since = time.Now()
	}
	r.Event = e
	p.running[e.Image] = r
	if e.Again && !p.terminal {
		fmt.Fprintf(p.w, "sifbuild: %s: %s\n", cli.Printable(p.names[e.Image]), cli.Printable(e.Text))
	}
}

func (p *progress) done(w build.Want, r *build.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.running[w.Key].since)
	delete(p.running, w.Key)
	p.ended++
	said := "built, " + cli.Size(r.Bytes) + ", in " + span(took)
	switch {
	case r.Fault != nil && r.Fault.Class == "stopped":
		p.failed++
		return // why is said once
	case r.Fault != nil:
		p.failed++
		said = "failed, " + r.Fault.Class + ": " + r.Fault.Message
	case r.Cached:
		return
	}
	p.wipe()
	name := cli.Printable(w.Names[0])
	if columns, _ := screen(p.w); p.terminal {
		name = cli.Short(name, columns/2)
	}
	fmt.Fprintf(p.w, "sifbuild: %d/%d %s: %s\n", p.ended, p.total, name, cli.Printable(said))
	if p.terminal {
		p.draw()
	}
}

// say prints a line.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	fmt.Fprintf(p.w, "sifbuild: %s\n", cli.Printable(text))
}

// wipe takes the bars from the screen, so that a line can be printed. The cursor
// may be behind what was typed, as ^C.
func (p *progress) wipe() {
	if p.drawn > 0 {
		fmt.Fprintf(p.w, "\r\x1b[%dA\x1b[J", p.drawn)
		p.drawn = 0
	}
}

// draw puts the bars where the last ones are.
func (p *progress) draw() {
	columns, rows := screen(p.w)
	lines := p.lines(columns, rows, time.Now())
	var out strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&out, "\r\x1b[%dA", p.drawn)
	}
	for _, l := range lines {
		out.WriteString(l + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	p.drawn = len(lines)
	io.WriteString(p.w, out.String())
}

// lines are the bars: those of the builds that began first, as many as there
// is place for, then one for all.
func (p *progress) lines(columns, rows int, now time.Time) []string {
	keys := slices.SortedFunc(maps.Keys(p.running), func(a, b string) int {
		if n := p.running[a].since.Compare(p.running[b].since); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	shown := keys[:min(len(keys), max(1, rows-3))]
	wide := 0 // the longest name, of a third of the screen at most
	for _, k := range shown {
		wide = max(wide, len([]rune(cli.Printable(p.names[k]))))
	}
	wide = min(wide, columns/3)
	var out []string
	for _, k := range shown {
		e := p.running[k]
		name := cli.Printable(p.names[k])
		line := fmt.Sprintf("%-*s %s %2d/%-2d %6s  ", wide, cli.Short(name, wide), meter(e.Step, e.Of, 10), e.Step, e.Of, span(now.Sub(e.since)))
		r := []rune(line + cli.Printable(e.Text))
		out = append(out, string(r[:min(len(r), columns-1)]))
	}
	last := fmt.Sprintf("%s %d of %d images, %d failed, %s", meter(p.ended, p.total, 20), p.ended, p.total, p.failed, span(now.Sub(p.began)))
	if n := len(keys) - len(shown); n > 0 {
		last += fmt.Sprintf("; %d more are being built", n)
	}
	return append(out, cli.Short(last, columns-1))
}

// screen is how much a terminal shows.
func screen(w *os.File) (columns, rows int) {
	rows = 24
	if ws, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil && ws.Row > 0 {
		rows = int(ws.Row)
	}
	return cli.Columns(w), rows
}

// meter is a bar of a width in columns.
func meter(n, of, width int) string {
	full := 0
	if of > 0 {
		full = min(n, of) * width / of
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

// span is a time for people: 3.2s, 41s, 12m03s.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", max(d, 0).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
