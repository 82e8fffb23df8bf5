package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"fence/pkg/dockerfile"
	"fence/pkg/job"
	"fence/pkg/sif"
	"fence/pkg/step"
)

// packsAtOnce is how many images are packed at a time: each uses four
// processors well, and more not as well.
func packsAtOnce(cpus int) int { return max(1, cpus/4) }

// share is what one of so many mksquashfs may use: its part of the processors,
// and MiB of memory, a quarter of what is left. Without such bounds it takes all
// processors of the machine and a quarter of its memory, whatever the job has.
func share(cpus, packs int, left int64) (processors, mib int) {
	return max(1, cpus/packs), int(min(max(left/4/int64(packs)>>20, 64), 1024))
}

// pack makes the image.
func (o *one) pack(ctx context.Context, c chain, st *dockerfile.Stage) error {
	if err := o.packs.take(ctx); err != nil {
		return err
	}
	squashfs, meta, err := o.squash(ctx, c, st)
	o.packs.give()
	if squashfs != "" {
		defer remove(filepath.Dir(squashfs))
	}
	if err != nil {
		return err
	}
	return o.publish(ctx, squashfs, meta)
}

// squash packs the layers, once more with as little as it can do with if the
// node had not enough. The folder of the file is the caller's to remove.
func (o *one) squash(ctx context.Context, c chain, st *dockerfile.Stage) (squashfs string, meta sif.Meta, err error) {
	o.say("packing")
	began := time.Now()
	defer func() { o.note("== packed: %.1f s\n", time.Since(began).Seconds()) }()
	cpus, mem := share(o.o.CPUs, cap(o.packs), job.This().Memory().Bytes)
	r, squashfs, err := o.squashed(ctx, c, st, cpus, mem)
	var failed *step.Failure
	if errors.As(err, &failed) && (failed.Kind == "starved" || failed.Kind == "memory") {
		o.note("-- %v (%d processors, %d MiB): once more with one processor and 64 MiB\n", err, cpus, mem)
		remove(filepath.Dir(squashfs))
		r, squashfs, err = o.squashed(ctx, c, st, 1, 64)
	}
	if err != nil {
		return squashfs, meta, err
	}
	meta = sif.Meta{Arch: st.Platform.Architecture, Config: st.Config, StartInterval: st.StartInterval}
	for _, p := range r.Owners {
		meta.Owners = append(meta.Owners, sif.Owner{Path: p.Path, UID: p.Owner.UID, GID: p.Owner.GID})
	}
	for _, d := range r.Specials {
		meta.Owners = append(meta.Owners, sif.Owner{Path: d.Path, UID: d.Owner.UID, GID: d.Owner.GID, Device: d.Device, Mode: d.Mode, Major: d.Major, Minor: d.Minor})
	}
	return squashfs, meta, nil
}

func (o *one) squashed(ctx context.Context, c chain, st *dockerfile.Stage, cpus, mem int) (r step.Result, squashfs string, err error) {
	work, err := o.scratch.work()
	if err != nil {
		return r, "", err
	}
	squashfs = filepath.Join(work, "root.squashfs")
	upper := filepath.Join(work, "fs")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return r, squashfs, err
	}
	r, err = o.scratch.engine.do(ctx, step.Spec{Lower: o.layers.lower(c), Upper: upper, Dir: work, Squash: &step.Squash{
		Config: st.Config, Specials: c.specials(), Out: squashfs, CPUs: cpus, MemMiB: mem,
	}}, o.log)
	return r, squashfs, err
}
