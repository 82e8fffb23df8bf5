package trial

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/spec"
	"fence/pkg/task"
)

// fake is a container without processes: its files are a folder, and what
// commands do the test says.
type fake struct {
	options box.Options
	root    string
	upper   string // root, if it is watched
	run     func(f *fake, c box.Command, s session.Streams) (session.Exit, error)
	put     func(domain, dir string) error
	get     func(domain, dir string) error
	full    int // what emptying folders ends with

	mu    sync.Mutex
	calls []string
	done  chan struct{}
	err   error
	ended bool
}

func (f *fake) note(format string, a ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, a...))
}

func (f *fake) Run(_ context.Context, c box.Command, s session.Streams) (session.Exit, error) {
	if len(c.Argv) == 5 && strings.HasPrefix(c.Argv[2], "[ -e") {
		if _, err := os.Lstat(filepath.Join(f.root, c.Argv[4])); err != nil {
			return session.Exit{Code: 1}, nil
		}
		return session.Exit{}, nil
	}
	f.note("run %s %s", c.Domain, c.Argv[len(c.Argv)-1])
	if empty := box.Empty(); len(c.Argv) > len(empty) && slices.Equal(c.Argv[:len(empty)], empty) {
		for _, dir := range c.Argv[len(empty):] {
			names, _ := filepath.Glob(filepath.Join(f.root, dir, "*"))
			for _, name := range names {
				if err := os.RemoveAll(name); err != nil {
					return session.Exit{}, err
				}
			}
		}
		return session.Exit{Code: f.full}, nil
	}
	if f.run == nil {
		return session.Exit{}, nil
	}
	return f.run(f, c, s)
}

func (f *fake) Put(_ context.Context, domain, dir string, in io.Reader) error {
	f.note("put %s %s", domain, dir)
	if f.put != nil {
		if err := f.put(domain, dir); err != nil {
			return err
		}
	}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		name := filepath.Join(f.root, dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(name, 0o755); err != nil {
				return err
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, data, os.FileMode(h.Mode)); err != nil {
			return err
		}
	}
}

func (f *fake) Get(_ context.Context, domain, dir string, paths []string, out io.Writer) error {
	f.note("get %s %s", domain, path.Join(dir, paths[0]))
	if f.get != nil {
		if err := f.get(domain, dir); err != nil {
			return err
		}
	}
	root := filepath.Join(f.root, dir)
	w := tar.NewWriter(out)
	err := filepath.WalkDir(filepath.Join(root, paths[0]), func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		info, _ := d.Info()
		link := ""
		if info.Mode()&os.ModeSymlink != 0 {
			link, _ = os.Readlink(p)
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name = rel
		if err := w.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		data, err := os.ReadFile(p)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}

func (f *fake) End(context.Context, string) error { return nil }
func (f *fake) Done() <-chan struct{}             { return f.done }
func (f *fake) Err() error                        { return f.err }
func (f *fake) Isolation() result.Isolation       { return result.Isolation{Below: true} }
func (f *fake) Upper() string                     { return f.upper }
func (f *fake) Config() box.Config                { return box.Config{} }
func (f *fake) Domain(user string) string {
	if user != f.options.AgentUser && slices.Contains(f.options.Users, user) {
		return box.Agent + "-" + user
	}
	return box.Agent
}
func (f *fake) Workdir() string { return cmp.Or(f.options.Workdir, "/app") }
func (f *fake) Close() error    { f.ended = true; return nil }

// Usage is complete after Close.
func (f *fake) Usage() result.Usage {
	if !f.ended {
		return result.Usage{MemoryBytes: 1}
	}
	return result.Usage{MemoryBytes: 7, CPUSec: 1}
}

// dies ends the container as box.Box says it.
func (f *fake) dies(e *box.Error) error {
	f.err = e
	close(f.done)
	return e
}

// tests says whether a command is the tests' script, solves the oracle's.
func isTests(c box.Command) bool { return strings.Contains(c.Argv[len(c.Argv)-1], "/tests/test.sh") }
func isSolve(c box.Command) bool {
	return strings.Contains(c.Argv[len(c.Argv)-1], "/solution/solve.sh")
}

// writes makes a file in the container.
func (f *fake) writes(name, text string) {
	at := filepath.Join(f.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
		panic(err)
	}
}

// passes is a container in which the tests reward what the oracle left.
func passes(f *fake, c box.Command, _ session.Streams) (session.Exit, error) {
	switch {
	case isSolve(c):
		f.writes("app/done", "yes")
	case isTests(c):
		reward := "0"
		if _, err := os.Stat(filepath.Join(f.root, "app/done")); err == nil {
			reward = "1"
		}
		f.writes("logs/verifier/reward.txt", reward)
	}
	return session.Exit{}, nil
}

// bench is a trial that a test changes before it runs.
type bench struct {
	Options
	boxes []*fake
	run   func(f *fake, c box.Command, s session.Streams) (session.Exit, error)
	put   func(domain, dir string) error
	get   func(domain, dir string) error
	full  int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{run: passes}
	for name, text := range map[string]string{"task/tests/test.sh": "#!/bin/sh\n", "task/solution/solve.sh": "#!/bin/sh\n", "out/x": "", "scratch/x": ""} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	b.Options = Options{
		Spec: spec.Spec{
			Task:     task.Task{Name: "task", Dir: filepath.Join(dir, "task"), Tests: filepath.Join(dir, "task/tests"), Solution: filepath.Join(dir, "task/solution")},
			Verifier: spec.Verifier{Timeout: 600e9}, StepReward: "mean",
		},
		Agent: Oracle{}, Dir: filepath.Join(dir, "out"), Box: box.Options{Image: "/i.sif", Scratch: filepath.Join(dir, "scratch")},
	}
	b.Start = func(_ context.Context, o box.Options) (Box, error) {
		f := &fake{options: o, root: t.TempDir(), run: b.run, put: b.put, get: b.get, full: b.full, done: make(chan struct{})}
		b.boxes = append(b.boxes, f)
		return f, nil
	}
	return b
}

// brief is a result in a line.
func brief(r result.Trial) string {
	text := "reward none"
	if r.Reward != nil {
		text = fmt.Sprintf("reward %v", *r.Reward)
	}
	if f := r.Fault; f != nil {
		text += fmt.Sprintf(", %s %s %s", f.Phase, f.Class, f.Cause)
	}
	if r.Agent.Stop != "" {
		text += ", " + r.Agent.Stop
	}
	return text
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		text := strings.Repeat("x", int(h.Size))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}
