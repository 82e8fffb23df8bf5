package base

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"fence/pkg/internal/blobs"
	"fence/pkg/registry"
	"fence/test/registrytest"
)

// quick is a Store of the cache dir that does not wait between tries.
func quick(t testing.TB, dir string, change ...func(*registry.Options)) *Store {
	t.Helper()
	o := registry.Options{Dir: dir, Clock: registry.Clock{Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() }}}
	if dir != "" {
		o.Lock = filepath.Join(dir, "lock.json")
	}
	for _, c := range change {
		c(&o)
	}
	c, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{Dir: dir, Registry: c, Node: amd64})
}

func offline(o *registry.Options) { o.Offline = true }

const whole = "0 a 640 3:4 x\n0 b 640 3:4 second"

func TestRegistry(t *testing.T) {
	reg := registrytest.Serve(t)
	img := image(t, amd64, "x")
	ref := reg.Push("some/image:1", index(t, map[string]v1.Image{"linux/amd64": img, "linux/arm64": image(t, arm64, "y")}))
	dir := t.TempDir()

	s := quick(t, dir)
	b := resolve(t, s, ref, amd64)
	if b.Digest != digest(t, img) || b.Config.Env[0] != "A=x" || b.Folder != "" {
		t.Errorf("%+v", b)
	}
	if got := reg.Counts(); got != "HEAD 1, manifests 2, blobs 1" {
		t.Errorf("to describe it: %s", got)
	}
	for range 2 {
		if got, err := contents(t, s, b); got != whole || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	}
	if got := reg.Counts(); got != "HEAD 1, manifests 2, blobs 3" {
		t.Errorf("to have it: %s", got)
	}

	if from := b.From(); len(from) != 1 || from[0] != strings.TrimSuffix(ref, ":1") {
		t.Errorf("from %q", from)
	}

	// Another run asks nothing, by whatever name.
	for _, n := range []string{ref, strings.TrimSuffix(ref, ":1") + "@" + b.Digest} {
		reg.Reset(nil)
		s := quick(t, dir)
		b := resolve(t, s, n, amd64)
		if got, err := contents(t, s, b); got != whole || err != nil || len(b.From()) > 0 {
			t.Errorf("%s, %v, from %q", got, err, b.From())
		}
		if got := reg.Counts(); got != "HEAD 0, manifests 0, blobs 0" {
			t.Errorf("%s again: %s", n, got)
		}
	}

	// And one without a network can ask nothing.
	reg.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
		t.Errorf("asked: %s %s", r.Method, r.URL)
		return false
	})
	s = quick(t, dir, offline)
	if got, err := contents(t, s, resolve(t, s, ref, amd64)); got != whole || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := s.Resolve(t.Context(), reg.Host+"/other:1", amd64); err == nil || !strings.Contains(err.Error(), "--offline allows no request") {
		t.Error(err)
	}
	clean(t, dir)
}

// clean holds that nothing half done is left in a cache.
func clean(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".") {
			t.Errorf("left behind: %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Without a way to a registry a person is told what to do, once.
func TestRegistry_NoWayThere(t *testing.T) {
	_, err := quick(t, t.TempDir()).Resolve(t.Context(), "nosuch.invalid/image:1", amd64)
	if err == nil || !strings.Contains(err.Error(), "the registry nosuch.invalid ") || !strings.Contains(err.Error(), "--base") {
		t.Error(err)
	}
}

// A layer that another image has too is not fetched again.
func TestRegistry_SharedLayer(t *testing.T) {
	reg := registrytest.Serve(t)
	one, two := reg.Push("one:1", image(t, amd64, "x")), reg.Push("two:1", image(t, amd64, "z"))
	s := quick(t, t.TempDir())
	if _, err := contents(t, s, resolve(t, s, one, amd64)); err != nil {
		t.Fatal(err)
	}
	reg.Reset(nil)
	if got, err := contents(t, s, resolve(t, s, two, amd64)); !strings.Contains(got, "second") || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if got := reg.Counts(); got != "HEAD 1, manifests 1, blobs 2" { // the configuration and the layer that differs
		t.Errorf("%s", got)
	}
}

// An image that lost content is whole again with only that fetched.
func TestRegistry_Mended(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := reg.Push("image:1", image(t, amd64, "x"))
	for name, harm := range map[string]func(blob string) error{
		"gone":  os.Remove,
		"short": func(blob string) error { return os.Truncate(blob, 5) },
		"other bytes, as many": func(blob string) error {
			data, err := os.ReadFile(blob)
			if err == nil {
				data[len(data)/2] ^= 1
				err = os.WriteFile(blob, data, 0o644)
			}
			return err
		},
	} {
		for _, of := range []string{"a layer", "the manifest"} {
			dir := t.TempDir()
			s := quick(t, dir)
			b := resolve(t, s, ref, amd64)
			if _, err := s.Layers(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			h, want := layerDigest(t, reg, ref), "HEAD 0, manifests 0, blobs 1"
			if of == "the manifest" {
				h, want = v1.Hash{Algorithm: "sha256", Hex: strings.TrimPrefix(b.Digest, "sha256:")}, "HEAD 0, manifests 1, blobs 0"
			}
			if err := harm(filepath.Join(dir, blobs.Path(h))); err != nil {
				t.Fatal(err)
			}
			reg.Reset(nil)
			s = quick(t, dir)
			if got, err := contents(t, s, resolve(t, s, ref, amd64)); got != whole || err != nil {
				t.Errorf("%s, %s: %s, %v", of, name, got, err)
			}
			if got := reg.Counts(); got != want {
				t.Errorf("%s, %s: %s", of, name, got)
			}
			clean(t, dir)
		}
	}
}

// A layer that is collected while its image is built is fetched again.
func TestRegistry_CollectedMeanwhile(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := reg.Push("image:1", image(t, amd64, "x"))
	dir := t.TempDir()
	s := quick(t, dir)
	layers, err := s.Layers(t.Context(), resolve(t, s, ref, amd64))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	r, err := layers[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

// layerDigest is the last layer of an image.
func layerDigest(t *testing.T, reg *registrytest.Server, ref string) v1.Hash {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(r)
	if err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return m.Layers[len(m.Layers)-1].Digest
}

func TestRegistry_Platforms(t *testing.T) {
	reg := registrytest.Serve(t)
	both := reg.Push("both:1", index(t, map[string]v1.Image{"linux/amd64": image(t, amd64, "x"), "linux/arm64": image(t, arm64, "y")}))
	alone := reg.Push("alone:1", image(t, arm64, "y"))
	s := quick(t, t.TempDir())
	if b := resolve(t, s, both, arm64); b.Config.Env[0] != "A=y" {
		t.Errorf("%+v", b)
	}
	for ref, p := range map[string]v1.Platform{both: {OS: "linux", Architecture: "s390x"}, alone: amd64} {
		if _, err := s.Resolve(t.Context(), ref, p); err == nil || !strings.Contains(err.Error(), "base image "+ref+": it is for linux/") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestRegistry_Faults(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := reg.Push("image:1", image(t, amd64, "x"))
	cut := reg.Spoiled(func(b []byte) []byte { return b[:len(b)/2] })
	flip := reg.Spoiled(func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b })
	for _, c := range []struct {
		name  string
		fault registrytest.Fault
		want  string // of the error; "" for none
		count string // of requests
	}{
		{"nothing", nil, "", "HEAD 1, manifests 1, blobs 3"},
		{"404", registrytest.Status(404), "the registry " + reg.Host + " has no such image or tag: check the name", ""},
		{"401", registrytest.First(9, "HEAD manifests", registrytest.Status(401)), "does not give it out (401): check the name, or log in with docker login " + reg.Host, "HEAD 1, manifests 0, blobs 0"},
		{"403", registrytest.First(9, "GET manifests", registrytest.Status(403)), "does not give it out (403)", "HEAD 1, manifests 1, blobs 0"},
		{"429", registrytest.First(9, "GET manifests", registrytest.Status(429, "Retry-After", "90", "Ratelimit-Limit", "100;w=21600")), "takes no more requests for now (its limit is 100;w=21600): it is asked again after ", "HEAD 1, manifests 1, blobs 0"},
		{"429 of a blob", registrytest.First(9, "GET blobs", registrytest.Status(429)), "takes no more requests for now: it is asked again after ", "HEAD 1, manifests 1, blobs 1"},
		{"500 once", registrytest.First(1, "HEAD manifests", registrytest.Status(500)), "", "HEAD 2, manifests 1, blobs 3"},
		{"503 twice", registrytest.First(2, "GET manifests", registrytest.Status(503)), "", "HEAD 1, manifests 3, blobs 3"},
		{"502 for ever", registrytest.First(99, "GET manifests", registrytest.Status(502)), "cannot be asked, the last time because of: GET of /v2/image/manifests/", "HEAD 1, manifests 3, blobs 0"},
		{"a connection that ends", registrytest.First(1, "GET blobs", registrytest.HangUp), "", "HEAD 1, manifests 1, blobs 4"},
		{"a manifest that is another", registrytest.First(1, "GET manifests", flip), "", "HEAD 1, manifests 2, blobs 3"},
		{"a blob cut off", registrytest.First(2, "GET blobs", cut), "", "HEAD 1, manifests 1, blobs 5"},
		{"a blob of other bytes", registrytest.First(2, "GET blobs", flip), "", "HEAD 1, manifests 1, blobs 5"},
		{"always other bytes", registrytest.First(99, "GET blobs", flip), "cannot be asked, the last time because of: the content of sha256:", "HEAD 1, manifests 1, blobs 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg.Reset(c.fault)
			s := quick(t, t.TempDir())
			b, err := s.Resolve(t.Context(), ref, amd64)
			var got string
			if err == nil {
				got, err = contents(t, s, b)
			}
			switch {
			case c.want == "" && (err != nil || got != whole):
				t.Errorf("%s, %v", got, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("%v, not %q", err, c.want)
			}
			if n := reg.Counts(); c.count != "" && n != c.count {
				t.Errorf("requests: %s, not %s", n, c.count)
			}
			var limited *registry.RateLimited
			if errors.As(err, &limited) != strings.HasPrefix(c.name, "429") {
				t.Errorf("%v", err)
			}
		})
	}
}

// What may pass is looked into again after a while, and not before: one HEAD
// for however many builds.
func TestRegistry_AfterAnError(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := reg.Push("image:1", image(t, amd64, "x"))
	for _, c := range []struct {
		name  string
		fault registrytest.Fault
		wait  time.Duration // when it is asked again; 0 for never
		asks  string
	}{
		{"429 that says when", registrytest.First(99, "HEAD manifests", registrytest.Status(429, "Retry-After", "300")), 5 * time.Minute, "HEAD 1"},
		{"503", registrytest.First(99, "HEAD manifests", registrytest.Status(503)), time.Minute, "HEAD 3"},
		{"404", registrytest.First(99, "HEAD manifests", registrytest.Status(404)), 0, "HEAD 1"},
	} {
		now := time.Unix(0, 0)
		s := quick(t, t.TempDir(), func(o *registry.Options) { o.Clock.Now = func() time.Time { return now } })
		reg.Reset(c.fault)
		for range 3 {
			if _, err := s.Resolve(t.Context(), ref, amd64); err == nil {
				t.Errorf("%s: resolved", c.name)
			}
		}
		if got := reg.Counts(); !strings.HasPrefix(got, c.asks) {
			t.Errorf("%s: %s", c.name, got)
		}
		reg.Reset(nil)
		if c.wait > 0 {
			now = now.Add(c.wait - 1)
		} else {
			now = now.Add(24 * time.Hour)
		}
		if _, err := s.Resolve(t.Context(), ref, amd64); err == nil || reg.Counts() != "HEAD 0, manifests 0, blobs 0" {
			t.Errorf("%s: asked again too soon (%v)", c.name, err)
		}
		now = now.Add(1)
		if _, err := s.Resolve(t.Context(), ref, amd64); (err == nil) != (c.wait > 0) {
			t.Errorf("%s: later: %v", c.name, err)
		}
	}
	// A caller that gave up says nothing about the image.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := quick(t, t.TempDir())
	if _, err := s.Resolve(ctx, ref, amd64); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	resolve(t, s, ref, amd64)
}

// TestMain: the test binary is also another process that wants an image, for
// several builds at a time.
func TestMain(m *testing.M) {
	ref := os.Getenv("BASE_PULL")
	if ref == "" {
		os.Exit(m.Run())
	}
	c, err := registry.New(registry.Options{Dir: os.Getenv("BASE_DIR")})
	if err == nil {
		err = many(New(Options{Registry: c, Node: amd64}), ref)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// tasks is how many builds want the image: as many as the reference's
// measurement of Apptainer, which asked twice for each.
const tasks = 36

func many(s *Store, ref string) error {
	var g errgroup.Group
	for range tasks {
		g.Go(func() error {
			b, err := s.Resolve(context.Background(), ref, amd64)
			if err == nil {
				_, err = s.Layers(context.Background(), b)
			}
			return err
		})
	}
	return g.Wait()
}

func other(t *testing.T, ref, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BASE_PULL="+ref, "BASE_DIR="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// 36 builds in each of two processes want one image of an index, with nothing
// in the cache: the registry counts two pulls (the index and the manifest).
// With a warm cache it hears only what the tag leads to, since these two have no
// lock file, which would keep them apart.
func TestRegistry_ManyBuildsOfTwoProcesses(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := reg.Push("some/image:1", index(t, map[string]v1.Image{"linux/amd64": image(t, amd64, "x"), "linux/arm64": image(t, arm64, "y")}))
	dir := t.TempDir()
	for _, c := range []struct {
		cache string
		want  string
	}{{"cold", "HEAD 2, manifests 2, blobs 3"}, {"warm", "HEAD 2, manifests 0, blobs 0"}} {
		var first sync.Once
		reg.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
				first.Do(func() { <-time.After(300 * time.Millisecond) }) // so that the other one could come, too
			}
			return false
		})
		both := []*exec.Cmd{other(t, ref, dir), other(t, ref, dir)}
		for _, cmd := range both {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
		if got := reg.Counts(); got != c.want {
			t.Errorf("%s: %s", c.cache, got)
		}
	}
	clean(t, dir)
}

func TestRegistry_KilledPuller(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := reg.Push("image:1", image(t, amd64, "x"))
	dir := t.TempDir()
	begun := make(chan struct{})
	reg.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || n != 3 {
			return false
		}
		w.Header().Set("Content-Length", "1000000")
		w.Write(make([]byte, 1000))
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done() // the puller is dead
		return true
	})
	cmd := other(t, ref, dir)
	<-begun
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	reg.Reset(nil)
	s := quick(t, dir)
	if got, err := contents(t, s, resolve(t, s, ref, amd64)); got != whole || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if n := reg.Counts(); n != "HEAD 1, manifests 0, blobs 1" && n != "HEAD 1, manifests 0, blobs 2" {
		t.Errorf("what was whole was fetched again: %s", n)
	}
	var left []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".") && !strings.HasSuffix(p, ".lock") {
			left = append(left, p)
		}
		return err
	})
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestRegistry_Names(t *testing.T) {
	s := quick(t, t.TempDir())
	for n, want := range map[string]string{"UPPER/case": "it is not the name of an image", "a b": "it is not the name of an image", "localhost:1/x": "cannot be asked, the last time because of: "} {
		if _, err := s.Resolve(t.Context(), n, amd64); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", n, err)
		}
	}
	reg := registrytest.Serve(t)
	ref := reg.Push("image:1", image(t, amd64, "x"))
	s = quick(t, "")
	if _, err := contents(t, s, resolve(t, s, ref, amd64)); err == nil || !strings.Contains(err.Error(), "needs a folder to be kept in") {
		t.Error(err)
	}
}
