package sifbuild

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/bed"
)

// everyKind is a Dockerfile with something of everything: what a RUN line
// writes and says, files that are copied, hidden and made unreadable, and an
// image that takes a while to pack.
const everyKind = `FROM busybox AS first
RUN mkdir /out; i=0; while [ $i -lt 50 ]; do echo line $i; echo $i > /out/$i; i=$((i+1)); done
FROM busybox
ENV A=b
COPY many /many
RUN rm -r /many/1*; mkdir -p /secret/inner; echo s > /secret/inner/f; chmod 000 /secret/inner /secret; echo removed
COPY --from=first /out /out
COPY big /big
RUN cp /big /big2; ln /big2 /big3; ln -s big3 /big4; echo copied
WORKDIR /work
CMD ["cat", "/out/7"]
`

func (p *place) everyKind() {
	p.task("a", everyKind)
	for i := range 100 {
		p.write(fmt.Sprintf("%s/many/%d", context("a"), i), fmt.Sprintf("file %d\n", i), 0o644)
	}
	r := rand.NewChaCha8([32]byte{'b'})
	big := make([]byte, 1<<20)
	r.Read(big)
	p.write(context("a")+"/big", string(big), 0o640)
}

// empty makes the cache as it was in the beginning.
func (p *place) empty() {
	p.t.Helper()
	p.must(os.RemoveAll(p.path("cache")))
	p.mkdir("cache")
}

func start(t testing.TB, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	cmd.Stdout, cmd.Stderr = new(bytes.Buffer), new(bytes.Buffer)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// A build that is killed at any moment is finished by the same command, and
// nothing of it is left.
func TestKill(t *testing.T) { engines(t, testKill) }

func testKill(t *testing.T, p *place) {
	p.everyKind()
	stop := p.watch(0, nil)
	want := p.listing(p.build(nil)["a"].Image)
	total := stop()
	p.whole()
	if total < 100 {
		t.Fatalf("only %d moments were seen", total)
	}
	moments, killed := 4, 0
	if full() {
		moments = 30
	}
	random := rand.New(rand.NewPCG(4, 30))
	for i := range moments {
		// One in each part of the build.
		nth := 1 + (i*total+random.IntN(total))/moments
		t.Run(fmt.Sprintf("%d of %d", nth, total), func(t *testing.T) {
			p := *p
			p.t = t
			p.empty()
			cmd := p.command(nil)
			stop := p.watch(nth, func() { cmd.Process.Kill() })
			start(t, cmd)
			r := p.wait(cmd)
			stop()
			if r.code < 0 {
				killed++
			}
			p.gone()
			p.same(want, p.listing(p.build(nil)["a"].Image))
			p.whole()
		})
	}
	// The number of things that a build does is not always the same.
	if !t.Failed() && killed < moments*3/4 {
		t.Errorf("only %d of %d builds were killed before they had ended", killed, moments)
	}
}

// What a RUN line leaves running ends with it, whatever it does to go on.
func TestKill_ProcessLeftByRun(t *testing.T) { engines(t, testKillProcessLeftByRun) }

func testKillProcessLeftByRun(t *testing.T, p *place) {
	s := newServer(t)
	var stay sync.WaitGroup
	stay.Add(3)
	there := make(chan struct{})
	go func() { stay.Wait(); close(there) }()
	var during, left int
	s.on(func(path string) {
		switch path {
		case "/stay":
			stay.Done()
		case "/during":
			select {
			case <-there:
			case <-time.After(time.Minute):
			}
			during = len(p.staying())
		case "/then":
			left = len(p.staying())
		}
	})
	// PLACE is how the processes are known.
	p.task("a", "FROM busybox\nENV PLACE="+p.dir+" AT="+s.URL+"\nCOPY inside /inside\n"+
		"RUN /inside leave $AT/stay; (/inside stay $AT/stay &); /inside stay $AT/stay & /inside get $AT/during\n"+
		"RUN /inside get $AT/then\n")
	p.program("a", "inside")
	p.build(nil)
	if during != 3 {
		t.Errorf("the control: %d processes were there while the line ran", during)
	}
	if left != 0 {
		t.Errorf("%d processes of a RUN line live on in the next", left)
	}
}

// staying are the processes of "inside stay".
func (p *place) staying() (some []int) {
	for _, pid := range p.processes() {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(data), "\x00stay\x00") {
			some = append(some, pid)
		}
	}
	return some
}

// A signal that ends a job ends a build cleanly: with a record, and nothing left.
func TestKill_Signals(t *testing.T) { engines(t, testKillSignals) }

func testKillSignals(t *testing.T, p *place) {
	s := newServer(t)
	p.task("a", "FROM busybox\nENV PLACE="+p.dir+"\nCOPY inside /inside\nRUN /inside leave "+s.URL+"/stay; /inside get "+s.URL+"/here; echo done > /done\n")
	p.program("a", "inside")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		cmd := p.command(nil)
		s.on(func(path string) {
			if path != "/here" {
				return
			}
			cmd.Process.Signal(sig)
			<-t.Context().Done() // the line does not end by itself
		})
		start(t, cmd)
		r := p.wait(cmd)
		one := r.records["a"]
		if r.code != 3 || one.Fault == nil || one.Fault.Class != "stopped" || one.Image != "" {
			t.Errorf("%v: exit code %d, %+v\n%s", sig, r.code, one, r.stderr)
		}
		p.clean()
		p.whole()
	}
	s.on(nil)
	p.built(p.run(p.command(nil)))
}

// When nobody reads the records any more, a build ends as by any other signal:
// it says so, and nothing is left on the node.
func TestKill_NobodyReads(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN echo done > /done\n")
	cmd := p.command(nil)
	r, w, err := os.Pipe()
	p.must(err)
	r.Close()
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	cmd.Run()
	w.Close()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(stderr.String(), "writing to standard output: broken pipe") {
		t.Errorf("exit code %d\n%s", code, &stderr)
	}
	p.clean()
	p.whole()
	p.built(p.run(p.command(nil)))
}

// ownMount marks the mounts that a test makes, in mountinfo(5).
const ownMount = "- tmpfs test-sifbuild "

// small makes one of the place's folders a file system of its own size.
func (p *place) small(name string, bytes int64) (grow func()) {
	p.t.Helper()
	if os.Geteuid() != 0 {
		bed.Missing(p.t, "root: only root can mount a small disk")
	}
	uid, gid, _ := bed.User(p.t)
	options := func(n int64) string { return fmt.Sprintf("size=%d,mode=755,uid=%d,gid=%d", n, uid, gid) }
	if err := unix.Mount("test-sifbuild", p.path(name), "tmpfs", 0, options(bytes)); err != nil {
		bed.Missing(p.t, "the right to mount a tmpfs (%v)", err)
	}
	p.t.Cleanup(func() { unix.Unmount(p.path(name), unix.MNT_DETACH) })
	return func() { p.must(unix.Mount("", p.path(name), "", unix.MS_REMOUNT, options(1<<30))) }
}

// A disk that is full at any moment is said to be, and the same command
// finishes when it no longer is.
func TestDiskFull(t *testing.T) { engines(t, testDiskFull) }

func testDiskFull(t *testing.T, p *place) {
	p.everyKind()
	want := p.listing(p.build(nil)["a"].Image)
	// KiB: each fills at another step, up to what is not quite enough.
	sizes := map[string][]int64{"cache": {8, 20, 500, 2000, 3000}, "scratch": {64, 2140, 3350, 4190, 6000}}
	for _, name := range []string{"cache", "scratch"} {
		for i, size := range sizes[name] {
			if !full() && i != 3 {
				continue
			}
			t.Run(fmt.Sprintf("%s of %d KiB", name, size), func(t *testing.T) {
				p := *p
				p.t = t
				p.empty()
				grow := p.small(name, size<<10)
				r := p.run(p.command(nil, "--min-disk", "0"))
				one := r.records["a"]
				if r.code != 3 || one.Fault == nil || one.Fault.Class != "disk" || one.Image != "" || strings.Contains(one.Fault.Message, "\n") {
					t.Errorf("exit code %d, %+v, %+v\n%s", r.code, one, one.Fault, r.stderr)
				}
				p.clean()
				p.whole()
				grow()
				p.same(want, p.listing(p.built(p.run(p.command(nil)))["a"].Image))
				p.whole()
			})
		}
	}
}
