package sifbuild

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"fence/pkg/build"
	"fence/test/bed"
	"fence/test/registrytest"
)

// image is the bed's busybox as an image of a registry.
func image(t *testing.T, arch string) v1.Image {
	t.Helper()
	tar, err := exec.Command("tar", "-C", bed.Root("busybox"), "--numeric-owner", "-cf", "-", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tar)), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: rootFS(t, img), Config: v1.Config{Env: []string{"PATH=/bin"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func rootFS(t *testing.T, img v1.Image) v1.RootFS {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c.RootFS
}

// index is an image for these architectures.
func index(t *testing.T, archs ...string) v1.ImageIndex {
	t.Helper()
	idx := v1.ImageIndex(empty.Index)
	for _, arch := range archs {
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: image(t, arch), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	return idx
}

// Many tasks on one base of a registry, by two processes that share a cache: it
// counts two pulls, of the index and of the manifest, and when the cache has the
// base, none. (Apptainer makes two for each build, whatever its cache has.)
func TestRegistry_Pulls(t *testing.T) {
	p := newPlace(t)
	reg := registrytest.Serve(t)
	ref := reg.Push("some/image:1", index(t, runtime.GOARCH, "s390x"))
	tasks := 12
	if full() {
		tasks = 36
	}
	p.tasks(tasks, func(i int) string { return fmt.Sprintf("FROM %s\nRUN echo %d > /n\n", ref, i) })
	both := func() {
		t.Helper()
		runs := []*exec.Cmd{start(t, p.command(nil, "-j", "4", "--no-smoke")), start(t, p.command(nil, "-j", "4", "--no-smoke"))}
		for _, cmd := range runs {
			r := p.wait(cmd)
			if r.code != 0 || len(r.records) != tasks {
				t.Fatalf("exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
			}
			for _, one := range r.records {
				if len(one.Bases) != 1 || one.Bases[0].Name != ref || !strings.HasPrefix(one.Bases[0].Digest, "sha256:") {
					t.Fatalf("bases: %+v", one.Bases)
				}
			}
		}
	}
	both()
	cold := reg.Counts()
	if reg.Count("GET manifests") != 2 || reg.Count("GET blobs") != 2 || reg.Count("HEAD manifests") > 2 {
		t.Errorf("cold: %s", cold)
	}
	for _, dir := range []string{"sif", "layers"} {
		p.must(os.RemoveAll(filepath.Join(p.path("cache"), dir)))
	}
	reg.Reset(nil)
	both()
	if got := reg.Counts(); got != "HEAD 0, manifests 0, blobs 0" {
		t.Errorf("warm: %s", got)
	}
	t.Logf("%d tasks, 2 processes: cold cache %s; warm cache %s", tasks, cold, reg.Counts())
	p.clean()
}

// A registry that takes no more requests keeps nobody from another one, and its
// tasks are done when it does again. A mirror would have helped: the record says
// who gave what.
func TestRegistry_Waits(t *testing.T) {
	p := newPlace(t)
	busy, mirror := registrytest.Serve(t), registrytest.Serve(t)
	img := image(t, runtime.GOARCH)
	ref := busy.Push("some/image:1", img)
	mirror.Push("hub/some/image:1", img)
	p.task("waits", "FROM "+ref+"\nRUN echo waits > /n\n")
	p.task("goes-on", "FROM busybox\nRUN echo goes on > /n\n")
	refused := registrytest.First(2, "HEAD manifests", registrytest.Status(429, "Retry-After", "1", "Ratelimit-Limit", "100;w=21600"))
	busy.Reset(refused)
	var order []string
	cmd := p.command(nil, "--no-smoke")
	r := p.run(cmd)
	if r.code != 0 || r.records["waits"].Bases[0].From[0] != strings.TrimSuffix(ref, ":1") {
		t.Fatalf("exit code %d, %+v\n%s", r.code, r.records, r.stderr)
	}
	for line := range strings.Lines(r.stderr) {
		for _, what := range []string{"1 task wait", "goes-on: built", "waits: built"} {
			if strings.Contains(line, what) {
				order = append(order, what)
			}
		}
	}
	if n := len(order); n < 3 || order[n-1] != "waits: built" {
		t.Errorf("in the order %q\n%s", order, r.stderr)
	}

	// The same with a mirror waits for nothing.
	p.must(os.RemoveAll(p.path("cache")))
	p.mkdir("cache")
	busy.Reset(registrytest.Status(429))
	one := p.build(nil, "--no-smoke", "--mirror", busy.Host+"="+mirror.Host+"/hub")["waits"]
	if len(one.Bases) != 1 || len(one.Bases[0].From) != 1 || one.Bases[0].From[0] != mirror.Host+"/hub/some/image" {
		t.Errorf("%+v", one.Bases)
	}

	// Who does not want to wait is told what to do.
	p.must(os.RemoveAll(p.path("cache")))
	p.mkdir("cache")
	r = p.run(p.command(nil, "--no-smoke", "--registry-wait", "0"))
	if f := r.records["waits"].Fault; r.code != 3 || f == nil || f.Class != "rate_limit" || !strings.Contains(f.Message, "--mirror") || r.records["goes-on"].Fault != nil {
		t.Errorf("exit code %d, %+v", r.code, f)
	}
}

// What was fetched on a node with a network serves those without.
func TestRegistry_FetchedBefore(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	reg := registrytest.Serve(t)
	p.task("one", "FROM "+reg.Push("some/image:1", index(t, runtime.GOARCH, "s390x"))+"\nRUN echo one > /n\n")
	plan := bed.Command(t, bed.Bin(t, "sifbuild"), "plan", "--fetch", "--cache", p.path("cache"), p.path("tasks"))
	if out, err := plan.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := reg.Counts(); got != "HEAD 1, manifests 2, blobs 2" {
		t.Error(got)
	}
	reg.Close()
	p.build(nil, "--no-smoke", "--offline")
}

// What will not pass is said at once, as what it is.
func TestRegistry_Refusals(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	reg := registrytest.Serve(t)
	for name, c := range map[string]struct{ ref, class, says string }{
		"others":  {reg.Push("others:1", index(t, "s390x", "riscv64")), "architecture", "it is for linux/riscv64, linux/s390x, this node is linux/" + runtime.GOARCH + ": name an image for linux/" + runtime.GOARCH + ", or build on a node of the image's architecture"},
		"missing": {reg.Host + "/missing:1", "not_found", "the registry " + reg.Host + " has no such image or tag: check the name in the Dockerfile"},
		"secret":  {reg.Host + "/secret:1", "not_found", "the registry " + reg.Host + " does not give it out (403): check the name, or log in with docker login " + reg.Host},
	} {
		p.task(name, "FROM "+c.ref+"\n")
		reg.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
			return strings.Contains(r.URL.Path, "/secret/") && registrytest.Status(403)(w, r, n)
		})
		r := p.run(p.command([]string{name}, "--no-smoke"))
		f := r.records[name].Fault
		if f == nil {
			f = &build.Fault{}
		}
		if r.code != 3 || f.Class != c.class || f.Retry || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s: exit code %d, %+v", name, r.code, *f)
		}
	}
}
