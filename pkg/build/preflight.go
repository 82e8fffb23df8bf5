package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/smoke"
	"fence/pkg/step"
)

// Preflight says why nothing could be built here, before anything is: it does
// a step that makes a folder and, with run, one whose command does behind the
// fence to files of a layer what builds do. It tells a node without user
// namespaces, or on which fence or what is mounted for a command is refused, a
// scratch folder that Apptainer cannot be told of, and, with a [ScratchError],
// one that cannot hold an overlay with all that belongs to it.
func (b *Builder) Preflight(ctx context.Context, run bool) error {
	if b.noSmoke() == "" {
		if err := (smoke.Tools{Fence: b.o.Fence, Scratch: b.scratch.dir}).Check(); err != nil {
			return fmt.Errorf("%w (another folder, --scratch DIR, or --no-smoke)", err)
		}
	}
	work, err := b.scratch.work()
	if err != nil {
		return err
	}
	defer remove(work)
	log, err := os.Create(filepath.Join(work, "log"))
	if err != nil {
		return fmt.Errorf("the scratch folder (--scratch): %w", err)
	}
	defer log.Close()
	for _, sub := range []string{"lower", "fs", "work"} {
		if err := os.Mkdir(filepath.Join(work, sub), 0o755); err != nil {
			return fmt.Errorf("the scratch folder (--scratch): %w", err)
		}
	}
	at := func(sub string) string { return filepath.Join(work, sub) }
	if err := unix.Setxattr(log.Name(), "user.try", nil, 0); err != nil { // where owners are noted, also those of COPY
		return &ScratchError{filepath.Dir(b.scratch.dir), fmt.Sprintf("cannot keep user attributes of files (xattr(7)): %v", err)}
	}
	s := step.Spec{Lower: []string{at("lower")}, Upper: at("fs"), Dir: at("work")}
	if !run {
		s.Workdir = &step.Workdir{Path: "/made"}
	} else if s.Run, err = step.Trial(at("lower"), b.o.Fence); err != nil {
		return fmt.Errorf("the scratch folder (--scratch): %w", err)
	}
	r, err := b.scratch.engine.do(ctx, s, log)
	said, _, _ := strings.Cut(strings.TrimSpace(tail(log.Name(), 0)), "\n")
	switch {
	case err != nil && said != "":
		return fmt.Errorf("%w: %s", err, said)
	case err == nil && r.Exit != 0:
		return &ScratchError{filepath.Dir(b.scratch.dir), said}
	}
	return err
}

// ScratchError is a scratch folder that nothing can be built in.
type ScratchError struct {
	Dir  string
	Said string // what cannot be done there
}

func (e *ScratchError) Error() string {
	return fmt.Sprintf("the file system of the scratch folder %s is none to build on: it %s", e.Dir, e.Said)
}

// InMemory says whether the scratch folder takes the node's memory: it is on
// tmpfs(5), so that what is built counts against the job's.
func (b *Builder) InMemory() bool { return b.scratch.own.InMemory() }
