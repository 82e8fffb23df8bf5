package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"fence/pkg/smoke"
	"fence/pkg/step"
)

// Preflight says why nothing could be built here, before anything is: it does
// a step that makes a folder. It tells a node without user namespaces, and a
// scratch folder that cannot hold an overlay, or that Apptainer cannot be told of.
func (b *Builder) Preflight(ctx context.Context) error {
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
	for _, name := range []string{"lower", "fs", "work"} {
		if err := os.Mkdir(filepath.Join(work, name), 0o755); err != nil {
			return fmt.Errorf("the scratch folder (--scratch): %w", err)
		}
	}
	_, err = step.Do(ctx, step.Spec{
		Lower: []string{filepath.Join(work, "lower")}, Upper: filepath.Join(work, "fs"), Dir: filepath.Join(work, "work"),
		Workdir: &step.Workdir{Path: "/made"},
	}, os.Stderr)
	return err
}

// InMemory says whether the scratch folder takes the node's memory: it is on
// tmpfs(5), so that what is built counts against the job's.
func (b *Builder) InMemory() bool {
	var st unix.Statfs_t
	return unix.Statfs(b.scratch.dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
