package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"fence/pkg/base"
	"fence/pkg/registry"
	"fence/pkg/task"
	"fence/test/registrytest"
)

func picture(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c.OS, c.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

// One registry says no: the tasks of the other have their plans at once, and
// those that need it when it says yes again, or when that is too late, or never.
func TestLater(t *testing.T) {
	begin := time.Unix(1<<30, 0)
	for _, c := range []struct {
		name    string
		fault   func(now time.Time) registrytest.Fault
		wait    time.Duration
		stopped bool
		took    time.Duration // 0: not looked at
		errs    int           // tasks of the first registry that get no plan
		says    string
	}{
		{"an hour", limited(begin.Add(time.Hour)), 2 * time.Hour, false, 0, 0, "3 tasks wait for REGISTRY (its limit is 100;w=21600) until "},
		{"longer than one waits", limited(begin.Add(3 * time.Hour)), 2 * time.Hour, false, time.Nanosecond, 3, ""},
		{"one does not wait", limited(begin.Add(time.Hour)), 0, false, time.Nanosecond, 3, ""},
		{"the job ends", limited(begin.Add(time.Hour)), 2 * time.Hour, true, 0, 3, "3 tasks wait for"},
		{"broken", func(time.Time) registrytest.Fault { return registrytest.Status(500) }, 2 * time.Hour, false, 6 * time.Minute, 3, ""},
		{"broken for a while", func(now time.Time) registrytest.Fault {
			if now.Before(begin.Add(30 * time.Second)) {
				return registrytest.Status(502)
			}
			return nil
		}, 2 * time.Hour, false, 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			busy, other := registrytest.Serve(t), registrytest.Serve(t)
			dir := t.TempDir()
			var tasks []task.Task
			for i, ref := range []string{busy.Push("a:1", picture(t)), busy.Push("b:1", picture(t)), busy.Push("c:1", picture(t)), other.Push("d:1", picture(t))} {
				tk := task.Task{Name: fmt.Sprint(i), Dir: filepath.Join(dir, fmt.Sprint(i)), Dockerfile: filepath.Join(dir, fmt.Sprint(i), "Dockerfile")}
				tk.Context = tk.Dir
				if err := os.Mkdir(tk.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(tk.Dockerfile, []byte("FROM "+ref+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				tasks = append(tasks, tk)
			}
			clk := registrytest.NewClock(begin)
			busy.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
				f := c.fault(clk.Now())
				return f != nil && f(w, r, n)
			})
			client, err := registry.New(registry.Options{Dir: dir + "/base", Clock: registry.Clock{Now: clk.Now, Sleep: clk.Sleep}})
			if err != nil {
				t.Fatal(err)
			}
			amd64 := v1.Platform{OS: "linux", Architecture: "amd64"}
			p := &planner{registry: client, store: base.New(base.Options{Registry: client, Node: amd64}), platform: amd64, bases: map[string]base.Base{}}
			ready, waiting := apart(p.plan(t.Context(), tasks))
			if len(ready) != 1 || ready[0].err != nil || len(waiting) != 3 {
				t.Fatalf("%d ready (%v), %d wait", len(ready), ready[0].err, len(waiting))
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var said []string
			from := clk.Now()
			parts := p.later(ctx, waiting, c.wait, func(text string) {
				said = append(said, text)
				if c.stopped {
					stop()
				}
			})
			errs, all := 0, []string{}
			for some := range parts {
				for _, tk := range some {
					all = append(all, tk.task.Name)
					if tk.err != nil {
						errs++
					} else if tk.plan == nil {
						t.Error("neither a plan nor an error")
					}
				}
			}
			slices.Sort(all)
			if errs != c.errs || strings.Join(all, " ") != "0 1 2" {
				t.Errorf("%q, %d without a plan", all, errs)
			}
			if took := clk.Now().Sub(from); c.took > 0 && took >= c.took {
				t.Errorf("waited %v", took)
			}
			if want := strings.ReplaceAll(c.says, "REGISTRY", busy.Host); !strings.Contains(strings.Join(said, "\n"), want) {
				t.Errorf("said %q, not %q", said, want)
			}
		})
	}
}

func limited(until time.Time) func(time.Time) registrytest.Fault {
	return func(now time.Time) registrytest.Fault {
		if !now.Before(until) {
			return nil
		}
		return registrytest.Status(429, "Retry-After", fmt.Sprint(int(until.Sub(now).Seconds())+1), "Ratelimit-Limit", "100;w=21600")
	}
}
