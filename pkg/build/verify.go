package build

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"fence/pkg/check"
	"fence/pkg/sif"
	"fence/pkg/smoke"
)

// CheckError is an image that was made and must not be used.
type CheckError struct{ Finding check.Finding } // the first fault

func (e *CheckError) Error() string {
	return "the image was made and is not as it must be: " + e.Finding.Text
}

// publish makes the image and, if it is as it must be, gives it its name: what
// has that name was looked at. Only one build of a key is here at a time.
func (o *one) publish(ctx context.Context, squashfs string, meta sif.Meta) error {
	image := o.report.Image
	dir := filepath.Dir(image) + "/"
	old, err := filepath.Glob(dir + ".*" + o.keys.Image + "*") // of a process that was killed
	if err != nil {
		return err
	}
	made := dir + "." + o.keys.Image + "." + rand.Text()[:8] + ".sif" // its own, should another node have taken the lock
	for _, f := range append(old, made) {
		defer os.Remove(f)
	}
	if err := sif.Write(made, squashfs, meta); errors.Is(err, sif.ErrDiskFull) {
		return fmt.Errorf("writing the image %s: %w", image, sif.ErrDiskFull)
	} else if err != nil {
		return err
	}
	if info, err := os.Stat(made); err == nil {
		o.report.Bytes = info.Size()
	}
	o.say("checking")
	if err := o.look(made, o.report, o.tasks, o.o.Require); err != nil {
		return err
	}
	o.say("starting it once")
	if err := o.smoke(ctx, made, o.report); err != nil {
		return err
	}
	return o.name(ctx, made)
}

// name gives the image its name. Another node may have been faster without this
// one seeing it, as happens where storage shows files late: then that image
// counts, as soon as it is seen. An image without a record counts for nothing.
func (o *one) name(ctx context.Context, made string) error {
	image := o.report.Image
	for range 90 {
		if mine, err := first(made, image); mine || err != nil {
			return err
		}
		if o.there(Want{Key: o.keys.Image, Plan: o.plan}, o.report) {
			o.note("-- another node has made it meanwhile\n")
			return nil
		}
		_, err := os.Stat(image)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err == nil && !o.there(Want{Key: o.keys.Image, Plan: o.plan}, o.report) {
			break
		}
	}
	return os.Rename(made, image)
}

// look checks an image without running it.
func (b *Builder) look(path string, r *Report, tasks []check.Task, require []string) error {
	img, err := sif.Open(path)
	if err != nil {
		return &CheckError{check.Finding{Class: "damaged", Level: check.Fault, Text: err.Error()}}
	}
	defer img.Close()
	found := check.Run(img, check.Options{Arch: b.o.Platform.Architecture, Require: require, Tasks: tasks})
	r.Findings = found.Findings
	for i, f := range r.Findings {
		r.Findings[i].Text = strings.ReplaceAll(f.Text, path, r.Image)
	}
	r.Checked = append(r.Checked[:0:0], digests(tasks)...)
	if i := slices.IndexFunc(r.Findings, func(f check.Finding) bool { return f.Level == check.Fault }); i >= 0 {
		return &CheckError{r.Findings[i]}
	}
	return nil
}

// smoke starts an image once, where that can be done.
func (b *Builder) smoke(ctx context.Context, path string, r *Report) error {
	if why := b.noSmoke(); why != "" {
		r.Smoke = "not run: " + why
		return nil
	}
	img, err := sif.Open(path)
	if err != nil {
		return err
	}
	img.Close()
	dir, err := b.scratch.work()
	if err != nil {
		return err
	}
	defer remove(dir)
	noShell := slices.ContainsFunc(r.Findings, func(f check.Finding) bool { return f.Class == "shell" })
	warnings, err := smoke.Run(ctx, smoke.Tools{Apptainer: b.o.Apptainer, Fence: b.o.Fence, Scratch: dir}, smoke.Image{
		Path: path, Config: img.Config, Shell: !noShell, Require: b.o.Require,
	})
	if err != nil {
		return err
	}
	for _, text := range warnings {
		r.warn(nil, 0, text)
	}
	r.Smoke = "ok"
	return nil
}

// noSmoke says why images are not started here, "" if they are.
func (b *Builder) noSmoke() string {
	switch arch := b.o.Platform.Architecture; {
	case b.o.NoSmoke:
		return "--no-smoke"
	case b.o.Apptainer == "":
		return "apptainer is not on this node"
	case arch != runtime.GOARCH:
		return fmt.Sprintf("the image is for %s, this node is %s", arch, runtime.GOARCH)
	}
	return ""
}

// catchUp looks at an image of the cache for what it was not looked at for:
// tests of other tasks, or its start, where it was made without Apptainer.
func (b *Builder) catchUp(ctx context.Context, r *Report, tasks []check.Task) error {
	start := r.Smoke != "ok" && b.noSmoke() == ""
	if !start && !slices.ContainsFunc(digests(tasks), func(d string) bool { return !slices.Contains(r.Checked, d) }) {
		return nil
	}
	err := b.look(r.Image, r, tasks, b.o.Require)
	if err == nil && start {
		err = b.smoke(ctx, r.Image, r)
	}
	var looked *CheckError
	var started *smoke.Failure
	switch {
	case err == nil:
		_ = b.keep(r) // a cache of somebody else's: it is done again
	case errors.As(err, &looked) || errors.As(err, &started):
		r.Cached = false
		os.Remove(b.reportFile(r.Key)) // without it the image counts for nothing
	}
	return err
}

// digests name what tasks have that must not be in an image. A file counts as
// the same while its size and time of last change are: the answer is a
// warning, and reading all tests at each run would cost more than the rest.
func digests(tasks []check.Task) []string {
	var out []string
	for _, t := range tasks {
		var all []any
		for _, dir := range []string{t.Tests, t.Solution} {
			if dir == "" {
				continue
			}
			filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return nil
				}
				if info, err := d.Info(); err == nil {
					all = append(all, p, info.Size(), info.ModTime().UnixNano())
				}
				return nil
			})
		}
		if len(all) > 0 {
			out = append(out, digest(all...)[:16])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
