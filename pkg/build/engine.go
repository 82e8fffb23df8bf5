package build

import (
	"context"
	"os"
	"sync"

	"fence/pkg/step"
)

// engine does steps, by way of Apptainer if it has the path of one.
type engine struct {
	apptainer string
	work      func() (string, error) // makes a folder

	mu sync.Mutex
	in *step.Sandbox
}

func (e *engine) name() string {
	if e.apptainer == "" {
		return "native"
	}
	return "sandbox"
}

// do is step.Do.
func (e *engine) do(ctx context.Context, s step.Spec, log *os.File, streams ...step.Stream) (step.Result, error) {
	by, err := e.get(ctx)
	if err != nil {
		return step.Result{}, err
	}
	return step.Do(ctx, by, s, log, streams...)
}

// get starts Apptainer for the first step, and again where it has come to an
// end: somebody may have killed it.
func (e *engine) get(ctx context.Context) (step.Engine, error) {
	if e.apptainer == "" {
		return step.Native{}, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.in != nil && !e.in.Gone() {
		return e.in, nil
	}
	if e.in != nil {
		e.in.Close()
		e.in = nil
	}
	dir, err := e.work()
	if err != nil {
		return nil, err
	}
	in, err := step.Enter(ctx, e.apptainer, dir)
	if err != nil {
		return nil, err
	}
	e.in = in
	return in, nil
}

func (e *engine) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.in != nil {
		e.in.Close()
	}
}
