package main

import (
	"fmt"
	"os"
	"sync"

	"fence/pkg/build"
	"fence/pkg/cli"
)

// progress shows what is being built: a line for each image that is done, or
// fails and is tried again. What was there before is not worth a line.
type progress struct {
	*cli.Bars
	mu     sync.Mutex
	names  map[string]string // of the images, by key
	failed int
}

func newProgress(w *os.File) *progress {
	p := &progress{Bars: cli.NewBars(w, "sifbuild", "images", "are being built"), names: map[string]string{}}
	p.fail(0)
	return p
}

// fail counts images that are not there.
func (p *progress) fail(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed += n
	p.Note(fmt.Sprintf("%d failed, ", p.failed))
}

// more adds to what is to be built.
func (p *progress) more(list []build.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range list {
		p.names[w.Key] = w.Names[0]
	}
	p.More(len(list))
}

func (p *progress) event(e build.Event) {
	p.mu.Lock()
	name := p.names[e.Image]
	p.mu.Unlock()
	p.Show(e.Image, name, e.Step, e.Of, e.Text)
	if e.Again && !p.Terminal() {
		p.Say(name + ": " + e.Text)
	}
}

func (p *progress) done(w build.Want, r *build.Report) {
	said := "built, " + cli.Size(r.Bytes) + ", in " + cli.Span(p.Since(w.Key))
	switch {
	case r.Fault != nil && r.Fault.Class == "stopped":
		p.fail(1)
		said = "" // why is said once
	case r.Fault != nil:
		p.fail(1)
		said = "failed, " + r.Fault.Class + ": " + r.Fault.Message
	case r.Cached:
		said = ""
	}
	p.Done(w.Key, w.Names[0], said)
}
