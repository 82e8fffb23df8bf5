package sifbuild

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"fence/test/bed"
)

// A cluster is two nodes that share a cache, each of which sees what the other
// does half a minute late. They have scratch folders of their own, and neither
// sees the other's processes.
type cluster struct {
	*place
	cache string // on the shared storage, seen from either side
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	bed.Require(t, "stale")
	c := &cluster{place: newPlace(t)}
	uid, gid, _ := bed.User(t)
	real, err := os.MkdirTemp(filepath.Join(bed.Dir(), "stale", "real"), "test-")
	c.must(err)
	t.Cleanup(func() { os.RemoveAll(real) })
	c.must(os.Chown(real, uid, gid))
	c.cache = filepath.Base(real)
	for _, side := range []string{"a", "b"} {
		c.mkdir("scratch-" + side)
	}
	return c
}

// on is sifbuild build on a node: with a PID namespace of its own, so that only
// the heartbeat says to the other whether it lives.
func (c *cluster) on(side string, tasks []string, flags ...string) *exec.Cmd {
	c.t.Helper()
	flags = append([]string{"--cache", filepath.Join(bed.StaleDir(side), c.cache), "--scratch", c.path("scratch-" + side), "--no-smoke"}, flags...)
	inner := c.command(tasks, flags...)
	cmd := bed.Command(c.t, "unshare", append([]string{"--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--", inner.Path}, inner.Args[1:]...)...)
	cmd.Env = inner.Env
	return cmd
}

// whole says that all that is in the cache is, as it really is.
func (c *cluster) whole() {
	c.t.Helper()
	c.wholeCache(filepath.Join(bed.Dir(), "stale", "real", c.cache))
	for _, side := range []string{"a", "b"} {
		if left, _ := os.ReadDir(c.path("scratch-" + side)); len(left) > 0 {
			c.t.Errorf("left in the scratch folder of %s: %v", side, left)
		}
	}
}

// Two builders with separate scratch folders on one cache that each sees late:
// every image is built once or twice, and never wrong.
func TestShared_TwoNodes(t *testing.T) {
	t.Parallel()
	c, s := newCluster(t), newServer(t)
	var names []string
	for i := range 6 {
		name := fmt.Sprintf("task%d", i)
		names = append(names, name)
		c.task(name, "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/shared > /shared\nRUN /inside get "+s.URL+"/"+name+" > /own\nRUN i=0; while [ $i -lt 100 ]; do echo $i > /f$i; i=$((i+1)); done\n")
		c.program(name, "inside")
	}
	for round, want := range []string{"cold", "warm"} {
		var runs []*exec.Cmd
		for _, side := range []string{"a", "b"} {
			runs = append(runs, start(t, c.on(side, nil, "-j", "3")))
		}
		for i, cmd := range runs {
			r := c.wait(cmd)
			if r.code != 0 || len(r.records) != len(names) {
				t.Fatalf("%s, node %d: exit code %d\n%s", want, i, r.code, r.stderr)
			}
			for name, one := range r.records {
				if got := c.file(one.Image, "/own"); got != "/"+name+"\n" {
					t.Errorf("%s: the image of %s has %q", want, name, got)
				}
				if round == 1 && !one.Cached {
					t.Errorf("%s: %s was built again: %+v", want, name, one)
				}
			}
		}
		c.whole()
		for _, path := range append([]string{"shared"}, names...) {
			if n := s.asked("/" + path); n < 1 || n > 2 {
				t.Errorf("%s: the step of %s was run %d times", want, path, n)
			}
		}
	}
}

// A node that is killed while the other waits for what it does keeps that one
// from nothing, once its heart has not been heard for long enough.
func TestShared_ANodeIsKilled(t *testing.T) {
	t.Parallel()
	long(t) // lockfile.Stale
	c, s := newCluster(t), newServer(t)
	c.task("a", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/here > /here\n")
	c.task("b", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/other > /here\n")
	c.program("a", "inside")
	c.program("b", "inside")
	asked, other := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.on(func(path string) {
		switch {
		case path == "/here" && s.asked(path) == 1:
			close(asked)
			<-t.Context().Done() // no answer for the first
		case path == "/other":
			once.Do(func() { close(other) })
		}
	})
	first := start(t, c.on("a", []string{"a"}))
	<-asked
	second := start(t, c.on("b", nil, "-j", "1"))
	select {
	case <-other: // what waits for the other node keeps nothing else from being built
	case <-time.After(time.Minute):
		t.Error("with one place to build, the image that the other node builds keeps the next from being built")
	}
	c.must(first.Process.Kill())
	c.wait(first)
	r := c.wait(second)
	if r.code != 0 || s.asked("/here") != 2 {
		t.Fatalf("exit code %d, the step was run %d times\n%s", r.code, s.asked("/here"), r.stderr)
	}
	if got := c.file(r.records["a"].Image, "/here"); got != "/here\n" {
		t.Errorf("the image has %q", got)
	}
	again := c.run(c.on("a", nil)) // which removes what the killed one left
	if again.code != 0 || !again.records["a"].Cached || !again.records["b"].Cached {
		t.Errorf("exit code %d, %+v\n%s", again.code, again.records, again.stderr)
	}
	c.whole()
}

// A hub is a registry with one image, busybox, and says what it is called there.
type hub struct {
	image string
	layer string // digest
	mu    sync.Mutex
	asked map[string]int // by the last part of the path
	hook  func(path string)
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{asked: map[string]int{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if r.Method == http.MethodGet {
			h.asked[path.Base(r.URL.Path)]++
		}
		hook := h.hook
		h.mu.Unlock()
		if hook != nil {
			hook(r.URL.Path)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	root, err := exec.Command("tar", "-C", bed.Root("busybox"), "-c", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH})
	if err == nil {
		image, err = mutate.AppendLayers(image, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	h.layer = digest.String()
	h.image = strings.TrimPrefix(server.URL, "http://") + "/busybox:1"
	ref, err := name.ParseReference(h.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
	return h
}

// A registry that does not answer keeps no image of another base from being
// built, even with one place to build.
func TestShared_ARegistryThatWaits(t *testing.T) {
	t.Parallel()
	p, s, h := newPlace(t), newServer(t), newHub(t)
	p.task("a", "FROM "+h.image+"\nRUN echo a > /own\n")
	p.task("b", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/b > /own\n")
	p.program("b", "inside")
	other := make(chan struct{})
	s.on(func(string) { close(other) })
	h.hook = func(path string) {
		if strings.HasSuffix(path, "/blobs/"+h.layer) {
			select {
			case <-other:
			case <-time.After(time.Minute):
				t.Error("a registry that waits keeps the others from being built")
			}
		}
	}
	all := p.build(nil, "-j", "1", "--no-smoke")
	if got := p.file(all["a"].Image, "/own"); got != "a\n" {
		t.Errorf("the image has %q", got)
	}
}

// Many builds at once on a cache that is empty, and again when it is not, of a
// base that a registry has: no error, and nothing done twice on one node.
func TestShared_ManyProcesses(t *testing.T) {
	t.Parallel()
	p, s, h := newPlace(t), newServer(t), newHub(t)
	const n = 36
	for i := range n {
		name := fmt.Sprintf("task%02d", i)
		p.task(name, "FROM "+h.image+"\nCOPY inside /inside\nRUN /inside get "+s.URL+"/shared > /shared\n"+fmt.Sprintf("RUN echo %d > /own\n", i%12))
		p.program(name, "inside")
	}
	for _, round := range []string{"cold", "warm"} {
		var runs []*exec.Cmd
		for i := range n {
			runs = append(runs, start(t, p.command([]string{fmt.Sprintf("task%02d", i)}, "--no-smoke", "-j", "1")))
		}
		built := 0
		for i, cmd := range runs {
			r := p.wait(cmd)
			one := r.records[fmt.Sprintf("task%02d", i)]
			if r.code != 0 {
				t.Errorf("%s, %d: exit code %d\n%s", round, i, r.code, r.stderr)
				continue
			}
			if got := p.file(one.Image, "/own"); got != fmt.Sprintf("%d\n", i%12) {
				t.Errorf("%s: the image of %d has %q", round, i, got)
			}
			if !one.Cached {
				built++
			}
			if strings.Contains(r.stderr, "JSON") {
				t.Errorf("%s: %s", round, r.stderr)
			}
		}
		if want := map[string]int{"cold": 12}[round]; built != want {
			t.Errorf("%s: %d images were built, not %d", round, built, want)
		}
		if got := s.asked("/shared"); got != 1 {
			t.Errorf("%s: the step that all share was run %d times", round, got)
		}
		h.mu.Lock()
		if got := h.asked[h.layer]; got != 1 {
			t.Errorf("%s: the base's layer was fetched %d times", round, got)
		}
		h.mu.Unlock()
		p.clean()
		p.whole()
	}
}
