package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"fence/pkg/build"
	"fence/pkg/harbor"
	"fence/pkg/task"
)

// harborNames gives images the names that Harbor's workers look for, as they
// come. A nil one gives none.
type harborNames struct {
	cache   string
	named   map[string]harbor.Named // by the task's folder
	all     []harbor.Named
	keys    []string        // of the images of all
	shared  map[string]bool // files that must not be
	entries []harbor.Entry
	err     error // the first that went wrong
}

func newHarborNames(cache string) *harborNames {
	return &harborNames{cache: cache, named: map[string]harbor.Named{}}
}

// add names tasks that have a plan. What cannot be named, or only by a name that
// another task has for another image, gets a warning.
func (h *harborNames) add(b *build.Builder, all []planned) {
	if h == nil {
		return
	}
	for i, t := range all {
		if t.err != nil {
			continue
		}
		n, err := harbor.Name(t.task)
		if err != nil {
			all[i].task.Warnings = append(t.task.Warnings, fmt.Sprintf("--harbor-names: it gets none: %v", err))
			continue
		}
		h.named[t.task.Dir] = n
		h.all, h.keys = append(h.all, n), append(h.keys, b.Key(t.plan))
	}
	before := h.shared
	h.shared = harbor.Shared(h.all, h.keys)
	for file := range h.shared {
		if !before[file] {
			h.failed(harbor.Unlink(h.cache, file)) // of a task that was built before the other had a plan
		}
	}
	for i, t := range all {
		for _, file := range h.named[t.task.Dir].Files {
			if h.shared[file] {
				all[i].task.Warnings = append(all[i].task.Warnings, fmt.Sprintf("--harbor-names: %s would be the image of another task too and is not made: name one of the tasks otherwise, or give each dataset its own cache", file))
			}
		}
	}
}

// done names the image of a task.
func (h *harborNames) done(t task.Task, r *build.Report) {
	if h == nil || r.Fault != nil {
		return
	}
	n, ok := h.named[t.Dir]
	if !ok {
		return
	}
	e := harbor.Entry{
		Task: n.Task, Dockerfile: n.Dockerfile, Environment: n.Environment, DockerImage: t.DockerImage,
		Key: r.Key, Image: filepath.Join("sif", filepath.Base(r.Image)), Files: []string{},
	}
	for _, file := range n.Files {
		if h.shared[file] {
			h.failed(harbor.Unlink(h.cache, file))
			continue
		}
		if err := harbor.Link(h.cache, file, r.Image); err != nil {
			h.failed(err)
			continue
		}
		e.Files = append(e.Files, file)
	}
	h.entries = append(h.entries, e)
}

func (h *harborNames) failed(err error) {
	if h.err == nil {
		h.err = err
	}
}

// end writes the index. The error is the first that any name met.
func (h *harborNames) end(ctx context.Context) error {
	if h == nil {
		return nil
	}
	for i := range h.entries {
		h.entries[i].Files = slices.DeleteFunc(h.entries[i].Files, func(file string) bool { return h.shared[file] })
	}
	h.failed(harbor.Merge(ctx, h.cache, h.entries))
	if h.err != nil {
		return fmt.Errorf("--harbor-names: the images are there, and not all have Harbor's names: %w", h.err)
	}
	return nil
}
