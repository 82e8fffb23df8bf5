package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"fence/pkg/build"
	"fence/pkg/harbor"
	"fence/pkg/task"
)

// harborNames puts images into the cache's index, by which rollout finds them,
// and gives them the names that Harbor's workers look for, as they come.
type harborNames struct {
	cache   string
	links   bool                    // the names, too
	named   map[string]harbor.Named // by the task's folder
	all     []harbor.Named
	keys    []string        // of the images of all
	shared  map[string]bool // files that must not be
	entries []harbor.Entry
	err     error // the first that went wrong
}

func newHarborNames(cache string, links bool) *harborNames {
	return &harborNames{cache: cache, links: links, named: map[string]harbor.Named{}}
}

// add names tasks that have a plan. What cannot be named, or only by a name that
// another task has for another image, gets a warning.
func (h *harborNames) add(b *build.Builder, all []planned) {
	for i, t := range all {
		if t.err != nil {
			continue
		}
		n, err := harbor.Name(t.task)
		if err != nil && !h.links {
			continue
		} else if err != nil {
			all[i].task.Warnings = append(t.task.Warnings, fmt.Sprintf("--harbor-names: it gets none: %v", err))
			continue
		}
		h.named[t.task.Dir] = n
		h.all, h.keys = append(h.all, n), append(h.keys, b.Key(t.plan))
	}
	if !h.links {
		return
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
	if r.Fault != nil {
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
		if !h.links {
			break
		}
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

// end writes the index. The error is the first that any name met; where only the
// index was to be written, and the cache is one that only others write to, it
// stays as it is.
func (h *harborNames) end(ctx context.Context) error {
	if !h.links {
		return h.index(ctx)
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

func (h *harborNames) index(ctx context.Context) error {
	if len(h.entries) == 0 || unix.Access(h.cache, unix.W_OK) != nil {
		return nil
	}
	known, err := harbor.ReadIndex(h.cache)
	if err != nil {
		return err
	}
	for i, e := range h.entries { // names that an earlier run gave stay
		for _, was := range known.Images {
			if was.Task == e.Task && was.Key == e.Key && was.Environment == e.Environment && was.Dockerfile == e.Dockerfile && was.DockerImage == e.DockerImage {
				h.entries[i].Files = was.Files
			}
		}
	}
	return harbor.Merge(ctx, h.cache, h.entries)
}
