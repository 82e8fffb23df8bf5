package build

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

const gib = 1 << 30

func TestShort(t *testing.T) {
	least := Least{Disk: gib, Memory: gib}
	disk := func(bytes, files int64) free { return free{"disk", "the disk of /scratch", bytes, files} }
	memory := func(bytes int64) free { return free{"memory", "the Slurm job", bytes, -1} }
	for _, c := range []struct {
		name            string
		have            []free
		least           Least
		running, recent int
		class, says     string
	}{
		{name: "enough", have: []free{disk(gib, 1e6), memory(gib)}, least: least, running: 1},
		{name: "no memory for one more", have: []free{disk(gib, 1e6), memory(gib - 1)}, least: least, running: 1, class: "memory", says: "the Slurm job has 1023 MiB left, and a build is begun with 1.0 GiB (--min-memory)"},
		{name: "no disk for one more", have: []free{disk(gib-1, 1e6), memory(gib)}, least: least, running: 1, class: "disk", says: "the disk of /scratch has 1023 MiB left, and a build is begun with 1.0 GiB (--min-disk)"},
		{name: "alone, it is tried with less", have: []free{disk(gib/alone, 1e6), memory(gib / alone)}, least: least},
		{name: "alone, and hardly anything", have: []free{disk(gib/alone-1, 1e6)}, least: least, class: "disk", says: "has 15 MiB left"},
		{name: "those that have just begun will take theirs", have: []free{memory(3*gib - 1)}, least: least, running: 5, recent: 2, class: "memory", says: "3.0 GiB"},
		{name: "those that began long ago have theirs", have: []free{memory(gib)}, least: least, running: 5},
		{name: "no files", have: []free{disk(gib, leastFiles-1)}, least: least, running: 1, class: "disk", says: "takes 9999 files more"},
		{name: "files are not counted there", have: []free{disk(gib, -1)}, least: least, running: 1},
		{name: "not asked for", have: []free{disk(0, 0), memory(0)}, running: 1},
	} {
		got := short(c.have, c.least, c.running, c.recent)
		switch {
		case got == nil && c.class != "", got != nil && (got.Class != c.class || !strings.Contains(got.Text, c.says)):
			t.Errorf("%s: %+v, want %s, %s", c.name, got, c.class, c.says)
		}
	}
}

// A build waits while others run, begins when one has ended, and fails if no
// other could give anything back.
func TestRoom(t *testing.T) {
	var mu sync.Mutex
	left := int64(gib)
	set := func(n int64) { mu.Lock(); left = n; mu.Unlock() }
	said := make(chan string, 10)
	r := newRoom(Least{Memory: gib}, func(text string) { said <- text })
	r.free = func([]string) ([]free, error) {
		mu.Lock()
		defer mu.Unlock()
		return []free{{"memory", "the node", left, -1}}, nil
	}
	leave, err := r.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set(gib / 2)
	entered := make(chan func())
	go func() {
		leave, err := r.enter(t.Context())
		if err != nil {
			t.Error(err)
		}
		entered <- leave
	}()
	if text := <-said; !strings.Contains(text, "no further build begins for now: the node has 512 MiB left") || !strings.Contains(text, "(1 running)") {
		t.Errorf("said: %q", text)
	}
	select {
	case <-entered:
		t.Fatal("a second build began without room")
	default:
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := r.enter(ctx); err == nil || err.Error() != "enough" {
		t.Errorf("one that is ended: %v", err)
	}
	leave() // and gives nothing back: alone, half is enough
	leave = <-entered
	leave()
	set(0)
	var none *NoRoom
	if _, err := r.enter(t.Context()); !errors.As(err, &none) || none.Class != "memory" {
		t.Errorf("alone, with nothing left: %v", err)
	}
}

// What takes long gives its place to others meanwhile.
func TestSlots_Without(t *testing.T) {
	s := make(slots, 1)
	if err := s.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	taken := make(chan struct{})
	go func() {
		s <- struct{}{}
		close(taken)
		s.give()
	}()
	want := errors.New("done")
	if err := s.without(func() error { <-taken; return want }); err != want {
		t.Error(err)
	}
	if len(s) != 1 {
		t.Error("the place was not given back")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(want)
	if err := s.take(ctx); err != want {
		t.Errorf("waiting for a place: %v", err)
	}
}

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		class string
		nth   int
		want  time.Duration
	}{
		{"network", 1, 10 * time.Second}, {"network", 2, 20 * time.Second}, {"network", 50, 2 * time.Minute},
		{"rate_limit", 1, time.Minute}, {"rate_limit", 9, 10 * time.Minute}, {"cache", 1, time.Millisecond},
	} {
		if got := patience(c.class, c.nth); got != c.want {
			t.Errorf("%s, %d: %v", c.class, c.nth, got)
		}
	}
}

func TestShare(t *testing.T) {
	for _, c := range []struct {
		cpus      int
		left      int64
		packs     int
		cpu, mibs int
	}{
		{1, 8 * gib, 1, 1, 1024}, {2, 2 * gib, 1, 2, 512}, {64, 32 * gib, 16, 4, 512}, {7, 0, 1, 7, 64},
	} {
		packs := packsAtOnce(c.cpus)
		cpu, mibs := share(c.cpus, packs, c.left)
		if packs != c.packs || cpu != c.cpu || mibs != c.mibs {
			t.Errorf("%d processors, %d bytes: %d packs of %d and %d MiB", c.cpus, c.left, packs, cpu, mibs)
		}
	}
}
