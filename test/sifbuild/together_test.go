package sifbuild

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Two builds at once on one cache and one scratch folder do each other no harm.
func TestTogether_TwoBuilds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServer(t)
	// Neither goes on before the other has come as far: they do overlap.
	var both sync.WaitGroup
	both.Add(2)
	met := make(chan struct{})
	go func() { both.Wait(); close(met) }()
	s.on(func(path string) {
		if strings.HasPrefix(path, "/own") {
			both.Done()
			select {
			case <-met:
			case <-time.After(time.Minute):
				t.Error("the builds do not overlap")
			}
		}
	})
	names := map[int][]string{}
	for i := range 2 {
		own := fmt.Sprintf("own%d", i)
		p.task(own, "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/"+own+" > /own\nRUN /inside get "+s.URL+"/same > /same\nRUN echo "+own+" > /last\n")
		p.program(own, "inside")
		names[i] = []string{own, "shared"}
	}
	p.task("shared", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/shared > /shared\nRUN i=0; while [ $i -lt 200 ]; do echo $i > /f$i; i=$((i+1)); done\n")
	p.program("shared", "inside")

	var runs []*exec.Cmd
	for i := range 2 {
		runs = append(runs, start(t, p.command(names[i], "-j", "2")))
	}
	images := map[string]string{}
	for i, cmd := range runs {
		r := p.wait(cmd)
		if r.code != 0 {
			t.Fatalf("exit code %d\n%s", r.code, r.stderr)
		}
		for name, one := range r.records {
			if was, ok := images[name]; ok && was != one.Image {
				t.Errorf("%s is %s in one build, and %s in the other", name, was, one.Image)
			}
			images[name] = one.Image
		}
		if want := fmt.Sprintf("/own%d\n", i); p.file(images[names[i][0]], "/own") != want {
			t.Errorf("the image of %s has another's file", names[i][0])
		}
	}
	p.clean()
	p.whole()
	if n := s.asked("/shared"); n != 1 {
		t.Errorf("a step that both want was run %d times", n)
	}
	got := p.listing(images["shared"])
	p.empty()
	p.same(p.listing(p.build([]string{"shared"})["shared"].Image), got)
}

// A build that is killed while another waits for what it does keeps that one
// from nothing: it does it itself.
func TestTogether_OneIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServer(t)
	p.task("a", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/here > /here\n")
	p.program("a", "inside")
	first, second := p.command(nil), p.command(nil)
	asked := make(chan struct{})
	s.on(func(path string) {
		if s.asked(path) == 1 {
			close(asked)
			<-t.Context().Done() // no answer for the first
		}
	})
	start(t, first)
	<-asked
	stop := p.watch(1, func() { first.Process.Kill() }) // the second has made its scratch folder
	start(t, second)
	if r := p.wait(first); r.code >= 0 {
		t.Errorf("the control: the first was not killed, but ended with %d\n%s", r.code, r.stderr)
	}
	r := p.wait(second)
	stop()
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	// What the first left, the next removes.
	if got := p.file(p.build(nil)["a"].Image, "/here"); got != "/here\n" || s.asked("/here") != 2 {
		t.Errorf("the image has %q, and the step was run %d times", got, s.asked("/here"))
	}
	p.whole()
}

// What tasks have in common is done once, however many there are.
func TestTogether_SharedSteps(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServer(t)
	tasks := 8
	if full() {
		tasks = 20
	}
	for i := range tasks {
		name := fmt.Sprintf("task%02d", i)
		p.task(name, "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/first > /first\nRUN /inside get "+s.URL+"/second > /second\n"+
			fmt.Sprintf("RUN /inside get %s/half%d\n", s.URL, i%2)+
			fmt.Sprintf("RUN /inside get %s/own%d > /own\n", s.URL, i))
		p.program(name, "inside")
	}
	all := p.build(nil, "-j", "4", "--no-smoke")
	if len(all) != tasks {
		t.Fatalf("%d records", len(all))
	}
	want := map[string]int{"/first": 1, "/second": 1, "/half0": 1, "/half1": 1}
	built := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		built += r.Built
		if r.Built+r.Reused != 5 {
			t.Errorf("%s: %d steps built and %d reused, of 5", name, r.Built, r.Reused)
		}
		var i int
		fmt.Sscanf(name, "task%d", &i)
		own := fmt.Sprintf("/own%d", i)
		want[own] = 1
		if got := p.file(r.Image, "/own"); got != own+"\n" {
			t.Errorf("%s has %q", name, got)
		}
	}
	for path, n := range want {
		if got := s.asked(path); got != n {
			t.Errorf("%s was run %d times", path, got)
		}
	}
	if built != 5+tasks { // COPY, two RUN lines, two halves, and what is a task's own
		t.Errorf("%d steps were done", built)
	}
	p.whole()
}

// Scratch has the layers of what is being built, and what is still to be built
// has in common with it, whether images work out or not.
func TestTogether_ScratchIsGivenBack(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, p *place) {
		s := newServer(t)
		const tasks = 6
		for i := range tasks {
			name := fmt.Sprintf("task%d", i)
			last := "true"
			if i == 1 {
				last = "false"
			}
			p.task(name, fmt.Sprintf("FROM busybox\nCOPY inside /inside\nRUN /inside get %s/shared\nRUN /inside get %s/own%d\n"+
				"RUN --mount=type=cache,target=/c /inside get %s/last%d; %s\n", s.URL, s.URL, i, s.URL, i, last))
			p.program(name, "inside")
		}
		var mu sync.Mutex
		found := map[string][]string{}
		s.on(func(path string) {
			mu.Lock()
			defer mu.Unlock()
			for _, sub := range []string{"layers", "caches"} {
				all, err := filepath.Glob(p.path("scratch/sifbuild-*/" + sub + "/*"))
				if err != nil {
					t.Error(err)
				}
				found[sub] = append(found[sub], fmt.Sprintf("%s %d", path, len(all)))
			}
		})
		r := p.run(p.command(nil, "-j", "1", "--no-smoke"))
		if f := r.records["task1"].Fault; r.code != 3 || f == nil || f.Class != "step" {
			t.Errorf("exit code %d, and one is to fail: %+v\n%s", r.code, f, r.stderr)
		}
		p.clean()
		// The base, COPY, /shared; and of the one that is being built, /own.
		want := map[string][]string{"layers": {"/shared 2"}, "caches": {"/shared 0"}}
		for i := range tasks {
			want["layers"] = append(want["layers"], fmt.Sprintf("/own%d 3", i), fmt.Sprintf("/last%d 4", i))
			want["caches"] = append(want["caches"], fmt.Sprintf("/own%d 0", i), fmt.Sprintf("/last%d 1", i))
		}
		for sub := range want {
			if !slices.Equal(found[sub], want[sub]) {
				t.Errorf("%s: when each was asked for, there were\n%q, want\n%q", sub, found[sub], want[sub])
			}
		}
	})
}
