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
// a step that makes a folder and, with run, one that runs a command. It tells a
// node without user namespaces, or on which fence or what is mounted for a
// command is refused, and a scratch folder that cannot hold an overlay, or that
// Apptainer cannot be told of.
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
	try := func(s step.Spec, name string) error {
		for _, sub := range []string{"lower", "fs", "work"} {
			if err := os.MkdirAll(filepath.Join(work, name, sub), 0o755); err != nil {
				return fmt.Errorf("the scratch folder (--scratch): %w", err)
			}
		}
		at := func(sub string) string { return filepath.Join(work, name, sub) }
		s.Lower, s.Upper, s.Dir = []string{at("lower")}, at("fs"), at("work")
		r, err := b.scratch.engine.do(ctx, s, log)
		if err == nil && r.Exit != 0 {
			err = fmt.Errorf("a command ends with status %d", r.Exit)
		}
		if said := strings.TrimSpace(tail(log.Name(), 0)); err != nil && said != "" {
			first, _, _ := strings.Cut(said, "\n")
			err = fmt.Errorf("%w: %s", err, first)
		}
		return err
	}
	if err := try(step.Spec{Workdir: &step.Workdir{Path: "/made"}}, "folder"); err != nil || !run {
		return err
	}
	// In an empty root folder there is only fence to be run.
	return try(step.Spec{Run: &step.Run{Argv: []string{"/.fence/fence", "--version"}, Env: []string{"PATH=/"}, Cwd: "/", Fence: b.o.Fence}}, "run")
}

// InMemory says whether the scratch folder takes the node's memory: it is on
// tmpfs(5), so that what is built counts against the job's.
func (b *Builder) InMemory() bool {
	var st unix.Statfs_t
	return unix.Statfs(b.scratch.dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
