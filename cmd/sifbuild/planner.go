package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	urfave "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"fence/pkg/base"
	"fence/pkg/build"
	"fence/pkg/check"
	"fence/pkg/cli"
	"fence/pkg/dockerfile"
	"fence/pkg/registry"
	"fence/pkg/step"
	"fence/pkg/task"
	"fence/pkg/taskflags"
)

// planFlags are those that decide what a Dockerfile means.
func planFlags() []urfave.Flag {
	return append([]urfave.Flag{
		&urfave.StringFlag{Name: "cache", Usage: "images, steps and bases are kept in `DIR`, which nodes may share; or the variable SIF_CACHE", EnvVars: []string{"SIF_CACHE"}},
		&urfave.StringSliceFlag{Name: "base", Usage: "`NAME=PATH`: the image NAME is this root folder, OCI layout, image archive or SIF"},
		&urfave.StringSliceFlag{Name: "context-add", Usage: "`NAME=DIR`: one more folder, for COPY --from=NAME"},
		&urfave.StringSliceFlag{Name: "build-arg", Usage: "`NAME=VALUE` for ARG NAME"},
		&urfave.StringFlag{Name: "target", Usage: "build the stage `NAME` instead of the last"},
		&urfave.StringFlag{Name: "arch", Usage: "build for `ARCH` (default: this node's)"},
	}, registryFlags()...)
}

// taskFlags are those of commands that want images of tasks.
func taskFlags() []urfave.Flag {
	return append(taskflags.All(),
		&urfave.StringFlag{Name: "require", Usage: "`LIST` of commands that every image must have, and that are installed where they are missing; none: no such check", Value: "tmux"},
		&urfave.BoolFlag{Name: "json", Usage: "print records: of a plan instead of the table, of a build to a terminal too"})
}

// planner turns Dockerfiles into plans.
type planner struct {
	cache    string
	store    *base.Store
	registry *registry.Client
	args     map[string]string
	contexts map[string]string
	target   string
	platform v1.Platform
	require  []string

	mu    sync.Mutex
	bases map[string]base.Base // by digest
}

func newPlanner(c *urfave.Context) (*planner, error) {
	p := &planner{
		cache: c.String("cache"), target: c.String("target"), args: map[string]string{}, contexts: map[string]string{},
		bases: map[string]base.Base{},
	}
	arch, err := goArch(c.String("arch"))
	if err != nil {
		return nil, err
	}
	p.platform = v1.Platform{OS: "linux", Architecture: arch}
	for _, pair := range c.StringSlice("build-arg") {
		name, value, ok := strings.Cut(pair, "=")
		if name == "" {
			return nil, cli.Usagef("--build-arg VERSION=1.2", "--build-arg: %q is not NAME=VALUE", pair)
		}
		if !ok {
			// As docker build has it: the caller's own variable.
			if value, ok = os.LookupEnv(name); !ok {
				continue
			}
		}
		p.args[name] = value
	}
	for _, pair := range c.StringSlice("context-add") {
		name, dir, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, cli.Usagef("--context-add wheels=/project/wheels", "--context-add: %q is not NAME=DIR", pair)
		}
		abs, err := filepath.Abs(dir)
		if err == nil {
			var info os.FileInfo
			if info, err = os.Stat(abs); err == nil && !info.IsDir() {
				err = fmt.Errorf("%s is not a folder", dir)
			}
		}
		if err != nil {
			return nil, cli.Usagef("", "--context-add %s: %w", name, err)
		}
		p.contexts[name] = abs
	}
	if p.require, err = commandList(c.String("require")); err != nil {
		return nil, err
	}
	local := map[string]string{}
	for _, pair := range c.StringSlice("base") {
		name, path, ok := strings.Cut(pair, "=")
		if !ok || name == "" || path == "" {
			return nil, cli.Usagef("--base ubuntu:22.04=/project/images/ubuntu", "--base: %q is not NAME=PATH", pair)
		}
		if _, err := os.Stat(path); err != nil {
			return nil, cli.Usagef("the root folder, OCI layout, image archive or SIF that "+name+" is", "--base %s: %w", name, err)
		}
		local[name] = path
	}
	o := base.Options{Local: local}
	if p.cache != "" {
		o.Dir = filepath.Join(p.cache, "base")
	}
	if o.Registry, err = registries(c, o.Dir); err != nil {
		return nil, err
	}
	p.registry, p.store = o.Registry, base.New(o)
	return p, nil
}

// architectures are those that an image can be for, see sif.GetSIFArch.
var architectures = []string{"386", "amd64", "arm", "arm64", "ppc64", "ppc64le", "mips", "mipsle", "mips64", "mips64le", "s390x", "riscv64", "loong64"}

// goArch is an architecture as Go names it, from any of the names that people
// use; "" is this node's.
func goArch(arch string) (string, error) {
	switch arch {
	case "":
		return runtime.GOARCH, nil
	case "x86_64":
		return "amd64", nil
	case "aarch64":
		return "arm64", nil
	}
	if !slices.Contains(architectures, arch) {
		return "", cli.Usagef("such as amd64 or arm64", "--arch: %q is not an architecture", arch)
	}
	return arch, nil
}

func (p *planner) options() dockerfile.Options {
	return dockerfile.Options{
		Args: p.args, Contexts: p.contexts, Target: p.target, Platform: p.platform,
		Build: v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, Base: p.base,
	}
}

// base finds an image by the name that a Dockerfile uses.
func (p *planner) base(ctx context.Context, name string, platform v1.Platform) (dockerfile.Base, error) {
	b, err := p.store.Resolve(ctx, name, platform)
	if err != nil {
		return dockerfile.Base{}, err
	}
	p.mu.Lock()
	p.bases[b.Digest] = b
	p.mu.Unlock()
	return dockerfile.Base{Name: b.Name, Digest: b.Digest, Config: b.Config, Platform: b.Platform, Warnings: b.Warnings}, nil
}

// Layers gives the content of a base that was found.
func (p *planner) Layers(ctx context.Context, b dockerfile.Base) ([]step.Stream, error) {
	p.mu.Lock()
	found := p.bases[b.Digest]
	p.mu.Unlock()
	layers, err := p.store.Layers(ctx, found)
	if err != nil {
		return nil, err
	}
	var out []step.Stream
	for _, l := range layers {
		out = append(out, l.Open)
	}
	return out, nil
}

// fetch brings all bases that were found into the cache, and says what it could
// not.
func (p *planner) fetch(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(2)
	var mu sync.Mutex
	var failed []error
	for _, digest := range slices.Sorted(maps.Keys(p.bases)) {
		b := p.bases[digest]
		g.Go(func() error {
			if _, err := p.store.Layers(ctx, b); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Errorf("%s: %w", b.Name, err))
			}
			return nil
		})
	}
	g.Wait()
	if n := len(failed); n > 1 {
		return fmt.Errorf("%d of %d are not there; the first: %w", n, len(p.bases), failed[0])
	} else if n == 1 {
		return failed[0]
	}
	return nil
}

// from are the places that gave any of a base.
func (p *planner) from(b dockerfile.Base) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bases[b.Digest].From()
}

// blobs are the names of the cache's files of a base.
func (p *planner) blobs(b dockerfile.Base) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bases[b.Digest].Blobs()
}

// planned is a task with what is known before anything is built.
type planned struct {
	task task.Task
	plan *dockerfile.Plan
	err  error
}

// plan reads the Dockerfiles of tasks, several at a time.
func (p *planner) plan(ctx context.Context, tasks []task.Task) []planned {
	out := make([]planned, len(tasks))
	var g errgroup.Group
	g.SetLimit(2 * runtime.NumCPU())
	for i, t := range tasks {
		g.Go(func() error {
			out[i] = planned{task: t}
			out[i].plan, out[i].err = p.one(ctx, t)
			return nil
		})
	}
	g.Wait()
	return out
}

func (p *planner) one(ctx context.Context, t task.Task) (*dockerfile.Plan, error) {
	o := p.options()
	o.Context = t.Context
	if t.DockerImage != "" {
		// Harbor's rule: the image that is named wins over the Dockerfile.
		o.File, o.Context = filepath.Join(t.Dir, "task.toml"), ""
		p, err := dockerfile.New(ctx, []byte("FROM "+t.DockerImage+"\n"), o)
		var e *dockerfile.Error
		if errors.As(err, &e) { // that FROM stands in no file
			e.Line, e.Instruction = 0, "docker_image"
		}
		return p, err
	}
	o.File = t.Dockerfile
	if t.Target != "" {
		o.Target = t.Target
	}
	if len(t.Args) > 0 {
		o.Args = maps.Clone(t.Args)
		maps.Copy(o.Args, p.args)
	}
	data, err := dockerfile.Read(t.Dockerfile)
	if err != nil {
		return nil, err
	}
	return dockerfile.New(ctx, data, o)
}

// wants groups tasks by the image that they want.
func wants(b *build.Builder, all []planned) (list []build.Want, byKey map[string][]task.Task) {
	byKey = map[string][]task.Task{}
	at := map[string]int{} // in list, by key
	for _, t := range all {
		if t.err != nil {
			continue
		}
		key := b.Key(t.plan)
		i, ok := at[key]
		if !ok {
			i = len(list)
			at[key], list = i, append(list, build.Want{Key: key, Plan: t.plan})
		}
		list[i].Names = append(list[i].Names, t.task.Name)
		list[i].Tasks = append(list[i].Tasks, check.Task{Name: t.task.Name, Tests: t.task.Tests, Solution: t.task.Solution})
		byKey[key] = append(byKey[key], t.task)
	}
	return list, byKey
}
