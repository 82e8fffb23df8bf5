package base

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// server is a registry that can be told to misbehave, and that counts.
type server struct {
	t     testing.TB
	host  string
	inner http.Handler

	mu    sync.Mutex
	count map[string]int // "GET manifests", "HEAD manifests", "GET blobs"
	// fault answers a request in place of the registry and says that it did.
	fault func(w http.ResponseWriter, r *http.Request, n int) bool
}

func serve(t testing.TB) *server {
	s := &server{t: t, inner: registry.New(registry.Logger(log.New(io.Discard, "", 0))), count: map[string]int{}}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	s.host = strings.TrimPrefix(h.URL, "http://")
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.Method
	for _, k := range []string{"manifests", "blobs"} {
		if strings.Contains(r.URL.Path, "/"+k+"/") {
			kind += " " + k
		}
	}
	s.mu.Lock()
	s.count[kind]++
	n, fault := s.count[kind], s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r, n) {
		return
	}
	s.inner.ServeHTTP(w, r)
}

// reset forgets the counts and sets a fault.
func (s *server) reset(fault func(w http.ResponseWriter, r *http.Request, n int) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.fault = map[string]int{}, fault
}

func (s *server) counts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("HEAD %d, manifests %d, blobs %d", s.count["HEAD manifests"], s.count["GET manifests"], s.count["GET blobs"])
}

func (s *server) push(repo string, what remote.Taggable) string {
	s.t.Helper()
	full := s.host + "/" + repo
	ref, err := name.ParseReference(full)
	if err != nil {
		s.t.Fatal(err)
	}
	switch w := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, w)
	case v1.Image:
		err = remote.Write(ref, w)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.reset(nil)
	return full
}

// quick is a Store that does not wait between tries.
func quick(opt Options) *Store {
	opt.Node = amd64
	s := New(opt)
	s.remote.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return s
}

const whole = "0 a 640 3:4 x\n0 b 640 3:4 second"

func TestRegistry(t *testing.T) {
	reg := serve(t)
	img := image(t, amd64, "x")
	ref := reg.push("some/image:1", index(t, map[string]v1.Image{"linux/amd64": img, "linux/arm64": image(t, arm64, "y")}))
	dir := t.TempDir()

	s := quick(Options{Dir: dir})
	b := resolve(t, s, ref, amd64)
	if b.Digest != digest(t, img) || b.Config.Env[0] != "A=x" || b.Folder != "" {
		t.Errorf("%+v", b)
	}
	if got := reg.counts(); got != "HEAD 1, manifests 2, blobs 1" {
		t.Errorf("to describe it: %s", got)
	}
	for range 2 {
		if got, err := contents(t, s, b); got != whole || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	}
	if got := reg.counts(); got != "HEAD 1, manifests 2, blobs 3" {
		t.Errorf("to have it: %s", got)
	}

	// Another run asks only what the tag leads to; one by digest asks nothing.
	reg.reset(nil)
	for n, want := range map[string]string{ref: "HEAD 1, manifests 0, blobs 0", strings.TrimSuffix(ref, ":1") + "@" + b.Digest: "HEAD 0, manifests 0, blobs 0"} {
		reg.reset(nil)
		s := quick(Options{Dir: dir})
		if got, err := contents(t, s, resolve(t, s, n, amd64)); got != whole || err != nil {
			t.Errorf("%s, %v", got, err)
		}
		resolve(t, s, n, amd64)
		if got := reg.counts(); got != want {
			t.Errorf("%s again: %s", n, got)
		}
	}

	// And one without a network nothing.
	reg.reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
		t.Errorf("asked: %s %s", r.Method, r.URL)
		return false
	})
	s = quick(Options{Dir: dir, Offline: true})
	if got, err := contents(t, s, resolve(t, s, ref, amd64)); got != whole || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := s.Resolve(t.Context(), reg.host+"/other:1", amd64); err == nil || !strings.Contains(err.Error(), "--offline allows no request") {
		t.Error(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Without a way to a registry a person is told what to do, once.
func TestRegistry_NoWayThere(t *testing.T) {
	_, err := quick(Options{Dir: t.TempDir()}).Resolve(t.Context(), "nosuch.invalid/image:1", amd64)
	var away *Unreachable
	if !errors.As(err, &away) || !strings.Contains(err.Error(), "the registry nosuch.invalid ") || !strings.HasSuffix(err.Error(), "give the image as a local base with --base") {
		t.Error(err)
	}
}

// A layer that another image has too is not fetched again.
func TestRegistry_SharedLayer(t *testing.T) {
	reg := serve(t)
	one, two := reg.push("one:1", image(t, amd64, "x")), reg.push("two:1", image(t, amd64, "z"))
	s := quick(Options{Dir: t.TempDir()})
	if _, err := contents(t, s, resolve(t, s, one, amd64)); err != nil {
		t.Fatal(err)
	}
	reg.reset(nil)
	if got, err := contents(t, s, resolve(t, s, two, amd64)); !strings.Contains(got, "second") || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if got := reg.counts(); got != "HEAD 1, manifests 1, blobs 2" { // the configuration and the layer that differs
		t.Errorf("%s", got)
	}
}

// An image that lost files is whole again with only these fetched.
func TestRegistry_Mended(t *testing.T) {
	reg := serve(t)
	ref := reg.push("image:1", image(t, amd64, "x"))
	for name, harm := range map[string]func(dir, blob string) error{
		"a layer is gone":      func(_, blob string) error { return os.Remove(blob) },
		"a layer is short":     func(_, blob string) error { return os.Truncate(blob, 5) },
		"the index is gone":    func(dir, _ string) error { return os.Remove(filepath.Join(dir, "index.json")) },
		"the folder is a husk": func(dir, _ string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)) },
		"a killed mender": func(dir, blob string) error {
			return errors.Join(os.Remove(blob), os.MkdirAll(filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir), "blobs"), 0o755))
		},
	} {
		cache := t.TempDir()
		s := quick(Options{Dir: cache})
		b := resolve(t, s, ref, amd64)
		layers, err := s.Layers(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(cache, strings.Replace(b.Digest, ":", "-", 1))
		if err := harm(dir, filepath.Join(dir, blobPath(layerDigest(t, reg, ref)))); err != nil {
			t.Fatal(err)
		}
		if got, err := contents(t, quick(Options{Dir: cache}), resolve(t, quick(Options{Dir: cache}), ref, amd64)); got != whole || err != nil || len(layers) != 2 {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if left, _ := filepath.Glob(filepath.Join(cache, ".*")); len(left) > 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

// layerDigest is the last layer of an image.
func layerDigest(t *testing.T, reg *server, ref string) v1.Hash {
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
	reg := serve(t)
	both := reg.push("both:1", index(t, map[string]v1.Image{"linux/amd64": image(t, amd64, "x"), "linux/arm64": image(t, arm64, "y")}))
	alone := reg.push("alone:1", image(t, arm64, "y"))
	s := quick(Options{Dir: t.TempDir()})
	if b := resolve(t, s, both, arm64); b.Config.Env[0] != "A=y" {
		t.Errorf("%+v", b)
	}
	for ref, p := range map[string]v1.Platform{both: {OS: "linux", Architecture: "s390x"}, alone: amd64} {
		if _, err := s.Resolve(t.Context(), ref, p); err == nil || !strings.Contains(err.Error(), "base image "+ref+": it is for linux/") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func status(code int, header ...string) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		io.WriteString(w, "<html>\nno\n</html>")
		return true
	}
}

// first lets only the first n requests of a kind fail.
func first(n int, kind string, f func(http.ResponseWriter, *http.Request, int) bool) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, count int) bool {
		method, part, _ := strings.Cut(kind, " ")
		return r.Method == method && strings.Contains(r.URL.Path, "/"+part+"/") && count <= n && f(w, r, count)
	}
}

// spoiled answers with the right content changed by f.
func (s *server) spoiled(f func([]byte) []byte) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		rec := httptest.NewRecorder()
		s.inner.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		w.Write(f(rec.Body.Bytes()))
		return true
	}
}

func TestRegistry_Faults(t *testing.T) {
	reg := serve(t)
	ref := reg.push("image:1", image(t, amd64, "x"))
	cut := reg.spoiled(func(b []byte) []byte { return b[:len(b)/2] })
	flip := reg.spoiled(func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b })
	hang := func(w http.ResponseWriter, r *http.Request, _ int) bool {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			c.Close()
		}
		return true
	}
	for _, c := range []struct {
		name  string
		fault func(http.ResponseWriter, *http.Request, int) bool
		want  string // of the error; "" for none
		count string // of requests
	}{
		{"nothing", nil, "", "HEAD 1, manifests 1, blobs 3"},
		{"404", status(404), "the registry " + reg.host + " has no such image or tag: check the name", ""},
		{"401", first(9, "HEAD manifests", status(401)), "does not give it out (401): check the name, or log in with docker login " + reg.host, "HEAD 1, manifests 0, blobs 0"},
		{"403", first(9, "GET manifests", status(403)), "does not give it out (403)", "HEAD 1, manifests 1, blobs 0"},
		{"429", first(9, "GET manifests", status(429, "Retry-After", "90", "Ratelimit-Limit", "100;w=21600")), "takes no more requests for now (its limit is 100;w=21600): try again in 1m30s", "HEAD 1, manifests 1, blobs 0"},
		{"429 of a blob", first(9, "GET blobs", status(429)), "takes no more requests for now: try again later", "HEAD 1, manifests 1, blobs 1"},
		{"500 once", first(1, "HEAD manifests", status(500)), "", "HEAD 2, manifests 1, blobs 3"},
		{"503 twice", first(2, "GET manifests", status(503)), "", "HEAD 1, manifests 3, blobs 3"},
		{"502 for ever", first(99, "GET manifests", status(502)), "failed 3 times, the last with: GET of /v2/image/manifests/", "HEAD 1, manifests 3, blobs 0"},
		{"a connection that ends", first(1, "GET blobs", hang), "", "HEAD 1, manifests 1, blobs 4"},
		{"a manifest that is another", first(1, "GET manifests", flip), "", "HEAD 1, manifests 2, blobs 3"},
		{"a blob cut off", first(2, "GET blobs", cut), "", "HEAD 1, manifests 1, blobs 5"},
		{"a blob of other bytes", first(2, "GET blobs", flip), "", "HEAD 1, manifests 1, blobs 5"},
		{"always other bytes", first(99, "GET blobs", flip), "failed 3 times, the last with: the content of sha256:", "HEAD 1, manifests 1, blobs 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg.reset(c.fault)
			s := quick(Options{Dir: t.TempDir()})
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
			if n := reg.counts(); c.count != "" && n != c.count {
				t.Errorf("requests: %s, not %s", n, c.count)
			}
			var limited *RateLimited
			if errors.As(err, &limited) != strings.HasPrefix(c.name, "429") {
				t.Errorf("%v", err)
			}
		})
	}
}

// What may pass is looked into again after a while, and not before: one HEAD
// for however many builds.
func TestRegistry_AfterAnError(t *testing.T) {
	reg := serve(t)
	ref := reg.push("image:1", image(t, amd64, "x"))
	for _, c := range []struct {
		name  string
		fault func(http.ResponseWriter, *http.Request, int) bool
		after time.Duration // when it is worth another look; 0 for never
		asks  string
	}{
		{"429 that says when", status(429, "Retry-After", "300"), 5 * time.Minute, "HEAD 0"},
		{"429", status(429), again, "HEAD 0"},
		{"503", first(99, "HEAD manifests", status(503)), again, "HEAD 3"},
		{"404", first(99, "HEAD manifests", status(404)), 0, "HEAD 1"},
	} {
		now := time.Unix(0, 0)
		s := quick(Options{Dir: t.TempDir()})
		s.now = func() time.Time { return now }
		reg.reset(c.fault)
		for range 3 {
			if _, err := s.Resolve(t.Context(), ref, amd64); err == nil {
				t.Errorf("%s: resolved", c.name)
			}
		}
		if got := reg.counts(); !strings.HasPrefix(got, c.asks) {
			t.Errorf("%s: %s", c.name, got)
		}
		reg.reset(nil)
		if _, err := s.Resolve(t.Context(), ref, amd64); err == nil {
			t.Errorf("%s: asked again at once", c.name)
		}
		now = now.Add(max(c.after, time.Hour*24) + 1)
		if c.after > 0 {
			now = time.Unix(0, 0).Add(c.after)
		}
		if _, err := s.Resolve(t.Context(), ref, amd64); (err == nil) != (c.after > 0) {
			t.Errorf("%s: later: %v", c.name, err)
		}
	}
	// A caller that gave up says nothing about the image.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := quick(Options{Dir: t.TempDir()})
	if _, err := s.Resolve(ctx, ref, amd64); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	resolve(t, s, ref, amd64)
}

func TestRegistry_TwoAtOnce(t *testing.T) {
	reg := serve(t)
	ref := reg.push("image:1", image(t, amd64, "x"))
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		s := quick(Options{Dir: dir}) // as processes: nothing shared but the folder
		b := resolve(t, s, ref, amd64)
		wg.Go(func() {
			if got, err := contents(t, s, b); got != whole || err != nil {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := reg.count["GET blobs"]; n != 3 {
		t.Errorf("%d blobs fetched", n)
	}
}

// TestMain: the test binary is also the puller that is killed.
func TestMain(m *testing.M) {
	if ref := os.Getenv("BASE_PULL"); ref != "" {
		s := quick(Options{Dir: os.Getenv("BASE_DIR")})
		b, err := s.Resolve(context.Background(), ref, amd64)
		if err == nil {
			_, err = s.Layers(context.Background(), b)
		}
		fmt.Println("pulled", err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestRegistry_KilledPuller(t *testing.T) {
	reg := serve(t)
	ref := reg.push("image:1", image(t, amd64, "x"))
	dir := t.TempDir()
	begun := make(chan struct{})
	reg.reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || n < 3 {
			return false
		}
		w.Header().Set("Content-Length", "1000000")
		w.Write(make([]byte, 1000))
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done() // the puller is dead
		return true
	})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BASE_PULL="+ref, "BASE_DIR="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if there, _ := filepath.Glob(filepath.Join(dir, "sha256-*")); len(there) > 0 {
		t.Errorf("half an image: %v", there)
	}
	reg.reset(nil)
	s := quick(Options{Dir: dir})
	if got, err := contents(t, s, resolve(t, s, ref, amd64)); got != whole || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	if n := reg.counts(); n != "HEAD 1, manifests 0, blobs 1" && n != "HEAD 1, manifests 0, blobs 2" {
		t.Errorf("what was whole was fetched again: %s", n)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRegistry_Names(t *testing.T) {
	s := quick(Options{Dir: t.TempDir()})
	for n, want := range map[string]string{"UPPER/case": "it is not the name of an image", "a b": "it is not the name of an image", "localhost:1/x": "failed 3 times, the last with: "} {
		if _, err := s.Resolve(t.Context(), n, amd64); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", n, err)
		}
	}
	reg := serve(t)
	ref := reg.push("image:1", image(t, amd64, "x"))
	s = quick(Options{})
	if _, err := contents(t, s, resolve(t, s, ref, amd64)); err == nil || !strings.Contains(err.Error(), "needs a folder to be kept in") {
		t.Error(err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Duration{"": 0, "90": 90 * time.Second, "-1": 0, "x": 0, now.Add(time.Hour).Format(http.TimeFormat): time.Hour, now.Add(-time.Hour).Format(http.TimeFormat): 0} {
		if got := retryAfter(s, now); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
