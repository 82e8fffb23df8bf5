package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"fence/pkg/build"
	"fence/pkg/cli"
)

// progress shows what is being built: on a terminal a bar for each build and
// one for all, elsewhere a line for each image that is done.
type progress struct {
	w        *os.File
	terminal bool
	began    time.Time

	mu      sync.Mutex
	total   int
	ended   int
	failed  int
	running map[string]build.Event
	since   map[string]time.Time
	drawn   int // lines on the screen
	stop    chan struct{}
	stopped chan struct{}
}

func newProgress(w *os.File) *progress {
	return &progress{w: w, terminal: cli.IsTerminal(w), running: map[string]build.Event{}, since: map[string]time.Time{}, stop: make(chan struct{}), stopped: make(chan struct{})}
}

func (p *progress) start(total int) {
	p.total, p.began = total, time.Now()
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

func (p *progress) end() {
	close(p.stop)
	<-p.stopped
}

func (p *progress) event(e build.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.running[e.Image]; !ok {
		p.since[e.Image] = time.Now()
	}
	p.running[e.Image] = e
}

func (p *progress) done(w build.Want, r *build.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, w.Key)
	delete(p.since, w.Key)
	p.ended++
	said := "built"
	switch {
	case r.Fault != nil:
		p.failed++
		said = "failed: " + r.Fault.Message
	case r.Cached:
		if p.terminal {
			return
		}
		said = "there"
	}
	p.wipe()
	fmt.Fprintf(p.w, "sifbuild: %d/%d %s %s (%s)\n", p.ended, p.total, cli.Printable(w.Names[0]), cli.Printable(said), time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond))
}

// wipe takes the bars from the screen, so that a line can be printed.
func (p *progress) wipe() {
	if p.drawn > 0 {
		fmt.Fprintf(p.w, "\x1b[%dA\x1b[J", p.drawn)
		p.drawn = 0
	}
}

func (p *progress) draw() {
	p.wipe()
	columns := cli.Columns(p.w)
	var keys []string
	for k := range p.running {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return p.since[a].Compare(p.since[b]) })
	var out strings.Builder
	line := func(s string) {
		r := []rune(cli.Printable(s))
		out.WriteString(string(r[:min(len(r), columns-1)]) + "\n")
		p.drawn++
	}
	for _, k := range keys {
		e := p.running[k]
		line(fmt.Sprintf("%s %2d/%-2d %6s  %s", meter(e.Step, e.Of, 10), e.Step, e.Of, time.Since(p.since[k]).Round(time.Second), e.Text))
	}
	line(fmt.Sprintf("%s %d of %d images, %d failed, %s", meter(p.ended, p.total, 20), p.ended, p.total, p.failed, time.Since(p.began).Round(time.Second)))
	p.w.WriteString(out.String())
}

// meter is a bar of a width in columns.
func meter(n, of, width int) string {
	full := 0
	if of > 0 {
		full = n * width / of
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}
