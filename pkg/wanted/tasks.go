package wanted

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"fence/pkg/dockerfile"
	"fence/pkg/internal/readfile"
	"fence/pkg/task"
	"fence/pkg/tree"
	"fence/pkg/wheel"
)

// Tasks says what the tasks install: the RUN lines of their Dockerfiles, and
// the shell scripts of solution/ and tests/, also those of their steps.
func Tasks(ctx context.Context, tasks []task.Task, platform v1.Platform) ([]wheel.Set, []wheel.Unread) {
	found := make([]result, len(tasks))
	var g errgroup.Group
	g.SetLimit(16) // shared storage answers slowly, and many at once
	for i, t := range tasks {
		g.Go(func() error {
			if ctx.Err() == nil {
				one(ctx, t, platform, &found[i])
			}
			return nil
		})
	}
	_ = g.Wait()
	var all result
	for _, r := range found {
		all.sets, all.unread = append(all.sets, r.sets...), append(all.unread, r.unread...)
	}
	return wheel.Merge(all.sets), all.unread
}

func one(ctx context.Context, t task.Task, platform v1.Platform, r *result) {
	image := container{places: map[string]string{}}
	if t.Dockerfile != "" {
		image = build(ctx, t, platform, r)
	}
	type place struct{ host, inside string }
	places := []place{{t.Solution, "/solution"}, {t.Tests, "/tests"}}
	steps, _ := filepath.Glob(filepath.Join(globbed(t.Dir), "steps", "*"))
	for _, dir := range steps {
		places = append(places, place{filepath.Join(dir, "solution"), "/solution"}, place{filepath.Join(dir, "tests"), "/tests"})
	}
	for _, p := range places {
		if st, err := os.Stat(p.host); p.host == "" || err != nil || !st.IsDir() {
			continue
		}
		all := image
		all.places = map[string]string{p.inside: p.host}
		scripts(p.host, func(file string, text []byte) {
			name, err := filepath.Rel(t.Dir, file)
			if err != nil {
				name = file
			}
			s := script{name: t.Name + " " + name, line: 1, cwd: image.cwd, env: map[string]string{}, file: all.open}
			s.read(r, string(text), 0)
		}, func(name string, err error) { r.skip(t.Name+" "+name, "", "%v", err) })
	}
}

// globbed is a path as a pattern that matches it.
func globbed(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// scripts finds the shell scripts in a folder: by name, or by their first line.
func scripts(dir string, found func(name string, text []byte), failed func(name string, err error)) {
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			failed(p, err)
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil || info.Size() > fileMax {
			return nil // no script that anybody wrote
		}
		ext := filepath.Ext(p)
		if ext != ".sh" && ext != ".bash" && ext != "" {
			return nil
		}
		text, err := readfile.Regular(p, fileMax)
		if err != nil {
			failed(p, err)
			return nil
		}
		first, _, _ := strings.Cut(string(text[:min(len(text), 200)]), "\n")
		if ext != "" || strings.HasPrefix(first, "#!") && strings.HasSuffix(strings.Fields(first + " x")[0], "sh") || strings.HasPrefix(first, "#!/usr/bin/env ") && strings.Contains(first, "sh") {
			found(p, text)
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		failed(dir, err)
	}
}

// container is what is known of a container's files.
type container struct {
	cwd    string
	places map[string]string // folders of the container that are folders here
	steps  []dockerfile.Step // of the image, as far as they have come
	mounts []dockerfile.Mount
}

// open gives a file of the container that came from the task.
func (c container) open(abs string) (string, []byte, error) {
	for inside, host := range c.places {
		if rest, ok := strings.CutPrefix(abs, inside+"/"); ok {
			text, err := within(host, rest)
			return abs, text, err
		}
	}
	for _, m := range c.mounts {
		if m.From == nil || m.From.Context == "" {
			continue
		}
		for _, match := range m.Matches {
			if rel, ok := below(abs, m.Target); ok {
				text, err := within(m.From.Context, path.Join(match.Path, rel))
				return abs, text, err
			}
		}
	}
	for _, step := range slices.Backward(c.steps) {
		cp := step.Copy
		if cp == nil {
			continue
		}
		for _, in := range cp.Inline {
			if dest(cp, in.Path, len(cp.Inline) > 1) == abs {
				return abs, in.Data, nil
			}
		}
		if cp.From.Context == "" {
			continue
		}
		for _, m := range slices.Backward(cp.Matches) {
			if m.Entry.Type == "dir" {
				rel, ok := below(abs, path.Clean(cp.Dest))
				if ok && slices.ContainsFunc(m.Below, func(e tree.Entry) bool { return e.Path == rel }) {
					text, err := within(cp.From.Context, path.Join(m.Path, rel))
					return abs, text, err
				}
			} else if dest(cp, m.Name, len(cp.Matches) > 1) == abs {
				text, err := within(cp.From.Context, m.Path)
				return abs, text, err
			}
		}
	}
	return "", nil, fmt.Errorf("%s is not a file of the task: what is in it is not known here", abs)
}

// dest is where a file that a COPY takes comes to be.
func dest(cp *dockerfile.Copy, name string, several bool) string {
	if strings.HasSuffix(cp.Dest, "/") || several {
		return path.Join(cp.Dest, name)
	}
	return path.Clean(cp.Dest)
}

// below is p relative to dir, which it is in or is.
func below(p, dir string) (string, bool) {
	if dir == "/" {
		return strings.TrimPrefix(p, "/"), true
	}
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, dir+"/")
}

// within reads a file of a folder; links must not lead out of it.
func within(dir, rel string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	st, err := root.Stat(rel)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > fileMax {
		return nil, fmt.Errorf("%s is not a file of requirements", rel)
	}
	return root.ReadFile(rel)
}

// build reads the RUN lines of a task's Dockerfile, and says what is known of
// its image. What is in a base image is not: none is fetched.
func build(ctx context.Context, t task.Task, platform v1.Platform, r *result) container {
	image := container{}
	shown := t.Name + " " + filepath.Base(t.Dockerfile)
	data, err := dockerfile.Read(t.Dockerfile)
	var plan *dockerfile.Plan
	if err == nil {
		plan, err = dockerfile.New(ctx, data, dockerfile.Options{
			File: t.Dockerfile, Context: t.Context, Args: t.Args, Target: t.Target, Platform: platform, Build: platform,
			Base: func(_ context.Context, name string, p v1.Platform) (dockerfile.Base, error) {
				return dockerfile.Base{Name: name, Digest: "sha256:unknown", Platform: p}, nil
			},
		})
	}
	if err != nil {
		r.skip(shown, "", "%v", err)
		return image
	}
	for i, st := range plan.Stages {
		at := container{cwd: "/"}
		for _, step := range st.Steps {
			if step.Workdir != nil {
				at.cwd = step.Workdir.Path
			}
			if step.Run == nil {
				at.steps = append(at.steps, step)
				continue
			}
			run := at
			run.mounts = step.Run.Mounts
			s := script{name: shown, line: step.Line, cwd: step.Run.Cwd, env: environment(step.Run.Env), file: run.open}
			c := command{walker: &walker{script: s, result: r}, where: fmt.Sprintf("%s:%d", shown, step.Line), text: step.Text, cwd: step.Run.Cwd, env: s.env}
			argv := step.Run.Argv
			if len(argv) == 3 && strings.Contains(step.Text, "<<") && !strings.Contains(argv[2], "<<") {
				s.line++ // the text is the heredoc's
			}
			if len(argv) == 3 && strings.HasSuffix(argv[1], "c") && strings.HasPrefix(argv[1], "-") {
				s.read(r, argv[2], 0)
			} else {
				var args []argument
				for _, a := range argv {
					args = append(args, argument{text: a})
				}
				c.run(args)
			}
			for _, f := range step.Run.Files { // scripts of heredocs
				s.line++
				s.read(r, string(f.Data), 0)
			}
		}
		if i == len(plan.Stages)-1 {
			image = at
		}
	}
	return image
}

func environment(env []string) map[string]string {
	known := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		known[name] = value
	}
	return known
}
