package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/trial"
)

// gates are how the probe's gate ended, for each image and network.
type gates struct {
	dir  string
	why  string // they are not asked, because of this
	mu   sync.Mutex
	done map[string]*gate
}

type gate struct {
	mu  sync.Mutex
	has bool
	err error
}

// pass asks the gate once for each image on this node. What is not about the
// image, such as a busy node, is asked again by the next trial.
func (g *gates) pass(ctx context.Context, o trial.Options, image string) (string, error) {
	if g.why != "" {
		return "off: " + g.why, nil
	}
	mode, why := o.Granted()
	key := image + " " + mode
	g.mu.Lock()
	one := g.done[key]
	if one == nil {
		one = &gate{}
		g.done[key] = one
	}
	g.mu.Unlock()
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.has {
		return word(one.err), one.err
	}
	b := o.Box
	b.Image, b.Network, b.Why = image, mode, why
	b.Scratch = filepath.Join(b.Scratch, "gate")
	if err := os.Mkdir(b.Scratch, 0o700); err != nil {
		return "", err
	}
	record, err := box.Gate(ctx, b)
	if len(record) > 0 {
		node, _ := os.Hostname()
		sum := fnv.New32a() // of two images with one name
		sum.Write([]byte(image))
		name := fmt.Sprintf("%s-%s-%08x-%s.json", cmp.Or(node, "node"), filepath.Base(image), sum.Sum32(), mode)
		if werr := os.MkdirAll(g.dir, 0o755); werr == nil {
			_ = os.WriteFile(filepath.Join(g.dir, name), record, 0o644) // for people; the verdict is in each trial
		}
	}
	var said *box.Error
	if err == nil || errors.As(err, &said) && said.Class == "gate_failed" {
		one.has, one.err = true, err
	}
	return word(err), err
}

// word is how a gate has ended.
func word(err error) string {
	if err != nil {
		return "did not pass"
	}
	return "pass"
}

// gateFault is the fault of a trial whose gate did not open.
func gateFault(err error) *result.Fault {
	var e *box.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		phase := "start"
		if e.Class == "gate_failed" || e.Class == "not_isolated" {
			phase = "isolation"
		}
		return &result.Fault{Phase: phase, Class: e.Class, Cause: e.Cause, Message: e.Message, Hint: e.Hint}
	}
	return &result.Fault{Phase: "start", Class: "start_failed", Cause: "infra", Message: err.Error()}
}
