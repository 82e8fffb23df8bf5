package sifbuild

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The same again is the same image and no work: nothing in the cache is written.
func TestAgain_SameImageAndNoWork(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN echo a > /a\nCOPY f /f\n")
	p.write(context("a")+"/f", "f", 0o644)
	first := p.build(nil)["a"]
	if first.Cached || first.Built != 2 {
		t.Errorf("the first time: %+v", first)
	}
	before := stamps(t, p.path("cache"))
	again := p.build(nil)["a"]
	if !again.Cached || again.Built != 0 || again.Key != first.Key || again.Image != first.Image {
		t.Errorf("the second time: %+v", again)
	}
	after := stamps(t, p.path("cache"))
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] != after[name] {
			t.Errorf("%s: %s, and was %s", name, after[name], before[name])
		}
	}
}

// stamps is what changes when a file does.
func stamps(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		all[name] = fmt.Sprint(st.Ino, st.Size, st.Mtim, st.Ctim)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each RUN line leaves a number that no other run of it would: so an image says
// which of them were run for it.
const numbered = `FROM busybox
ARG USED=1
RUN cat /proc/sys/kernel/random/uuid > /n1
COPY dir /dir
RUN cat /proc/sys/kernel/random/uuid > /n2
COPY late /late
RUN cat /proc/sys/kernel/random/uuid > /n3
ARG LATE=1
RUN cat /proc/sys/kernel/random/uuid > /n4
ENV LAST=1
`

// A change rebuilds what depends on it, and nothing else.
func TestAgain_RebuildsWhatDependsOnAChange(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	base := p.mutableBase()
	at := time.Unix(1_700_000_000, 0)
	write := func(name, text string, mode fs.FileMode) {
		p.write(context("a")+"/"+name, text, mode)
		p.must(os.Chtimes(p.path(context("a")+"/"+name), at, at))
	}
	reset := func() {
		p.task("a", numbered)
		write("dir/f", "one", 0o644)
		write("dir/g", "one", 0o644)
		write("late", "one", 0o644)
		write(".dockerignore", "dir/ignored\n", 0o644)
		write("dir/ignored", "one", 0o644)
		base("one")
	}
	reset()
	first := p.build(nil, "--no-smoke")["a"]
	numbers := func(image string) (n [4]string) {
		for i := range n {
			n[i] = p.file(image, fmt.Sprintf("n%d", i+1))
		}
		return n
	}
	was := numbers(first.Image)
	for _, c := range []struct {
		name   string
		change func()
		flags  []string
		ran    []int // lines whose number is new
		cached bool
		reused int // steps, of seven
	}{
		{name: "nothing", cached: true},
		{name: "a time", change: func() { p.must(os.Chtimes(p.path(context("a")+"/dir/f"), at, at.Add(time.Hour))) }, cached: true},
		{name: "a byte, with equal size and time", change: func() { write("dir/f", "two", 0o644) }, ran: []int{2, 3, 4}, reused: 1},
		{name: "a mode", change: func() { write("dir/f", "one", 0o755) }, ran: []int{2, 3, 4}, reused: 1},
		{name: "a byte that a later step takes", change: func() { write("late", "two", 0o644) }, ran: []int{3, 4}, reused: 2},
		{name: "the base", change: func() { base("two") }, ran: []int{1, 2, 3, 4}},
		{name: ".dockerignore takes a file away", change: func() { write(".dockerignore", "dir/ignored\ndir/g\n", 0o644) }, ran: []int{2, 3, 4}, reused: 1},
		{name: ".dockerignore lets a file in", change: func() { write(".dockerignore", "# nothing\n", 0o644) }, ran: []int{2, 3, 4}, reused: 1},
		{name: ".dockerignore says the same in other words", change: func() { write(".dockerignore", "*/ignored\n", 0o644) }, cached: true},
		{name: "an ignored file", change: func() { write("dir/ignored", "two", 0o644) }, cached: true},
		{name: "a build argument", flags: []string{"--build-arg", "USED=2"}, ran: []int{1, 2, 3, 4}},
		{name: "a build argument of a later line", flags: []string{"--build-arg", "LATE=2"}, ran: []int{4}, reused: 3},
		{name: "a build argument that no line declares", flags: []string{"--build-arg", "OTHER=2"}, cached: true},
		{name: "the configuration alone", change: func() { p.task("a", strings.Replace(numbered, "LAST=1", "LAST=2", 1)) }, ran: []int{}, reused: 4},
		{name: "a comment", change: func() { p.task("a", "# why\n"+numbered) }, cached: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			reset()
			if c.change != nil {
				c.change()
			}
			r := p.build(nil, append(c.flags, "--no-smoke")...)["a"]
			if r.Cached != c.cached || (r.Key == first.Key) != c.cached {
				t.Fatalf("cached is %v, and the key %s; first it was %s", r.Cached, r.Key, first.Key)
			}
			if c.cached {
				return
			}
			var ran []int
			for i, n := range numbers(r.Image) {
				if n != was[i] {
					ran = append(ran, i+1)
				}
			}
			if !slices.Equal(ran, c.ran) {
				t.Errorf("the lines %v were run, want %v", ran, c.ran)
			}
			// The two COPY steps are not kept between runs.
			if r.Reused != c.reused || r.Built != 6-c.reused {
				t.Errorf("%d steps were reused and %d built, want %d and %d", r.Reused, r.Built, c.reused, 6-c.reused)
			}
		})
	}
}

// A step that comes out of the cache does what it did when it was run, also to
// what is below it.
func TestAgain_StepOutOfTheCache(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{"file", "dir/in", "again/old", "swap/in", "moved", "kept/a", "kept/b"} {
		p.write(context("a")+"/files/"+name, name+"\n", 0o644)
	}
	const before = `FROM busybox
COPY files /files
RUN mkfifo /files/fifo 2>/dev/null; mknod /files/null c 1 3; mknod /files/pipe p; ln /files/kept/a /files/kept/hard; chmod 4711 /files/kept/b; chown 7:8 /files/kept
RUN cd /files; rm file kept/hard; rm -r dir again swap; mkdir again; echo new > again/new; echo now a file > swap; mv moved elsewhere; ln -s again link
RUN cd /files; mkdir dir; ln -s nowhere file; rm null; mkdir -p shut/in; echo x > shut/in/f; chmod 0 shut/in shut; chown 9 link
`
	p.task("a", before+"RUN echo one > /last\n")
	p.build(nil)
	p.task("a", before+"RUN echo two > /last\n")
	r := p.build(nil)["a"]
	if r.Reused != 3 {
		t.Errorf("%d steps came out of the cache", r.Reused)
	}
	continued := p.listing(r.Image)
	p.empty()
	r = p.build(nil)["a"]
	if r.Reused != 0 {
		t.Errorf("the control: %d steps came out of an empty cache", r.Reused)
	}
	p.same(p.listing(r.Image), continued)
}

// mutableBase is a base of the person's own in place of the bed's, and what
// changes a byte of it.
func (p *place) mutableBase() func(text string) {
	p.mkdir("base/bin")
	p.mkdir("base/proc")
	p.mkdir("base/etc")
	data, err := os.ReadFile(p.bases[0][strings.Index(p.bases[0], "=")+1:] + "/bin/busybox")
	p.must(err)
	p.write("base/bin/busybox", string(data), 0o755)
	for _, name := range []string{"sh", "cat"} {
		p.must(os.Symlink("busybox", p.path("base/bin/"+name)))
	}
	p.bases = []string{"busybox=" + p.path("base")}
	return func(text string) {
		at := time.Unix(1_700_000_000, 0)
		p.write("base/etc/which", text, 0o644)
		p.must(os.Chtimes(p.path("base/etc/which"), at, at))
	}
}
