// Package registrytest is a registry within a test, that counts what it is
// asked and can be told to misbehave.
package registrytest

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Server is such a registry.
type Server struct {
	Host string // and port

	t     testing.TB
	http  *httptest.Server
	inner http.Handler

	mu    sync.Mutex
	count map[string]int
	fault Fault
}

// Fault answers a request in place of the registry, and says that it did. n
// counts the requests of its method and kind (manifests, blobs), from 1.
type Fault func(w http.ResponseWriter, r *http.Request, n int) bool

// Serve starts a registry that ends with the test.
func Serve(t testing.TB) *Server {
	s := &Server{t: t, inner: registry.New(registry.Logger(log.New(io.Discard, "", 0))), count: map[string]int{}}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.Close)
	s.Host = strings.TrimPrefix(s.http.URL, "http://")
	return s
}

// Inner is the registry itself, without faults and uncounted.
func (s *Server) Inner() http.Handler { return s.inner }

// Close takes the registry away. Calling it again does nothing.
func (s *Server) Close() { s.http.Close() }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// Reset forgets the counts and sets a fault; nil is none.
func (s *Server) Reset(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.fault = map[string]int{}, fault
}

// Count is how many requests there were of a method and kind, such as
// "GET manifests"; "GET" are those of neither kind.
func (s *Server) Count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[what]
}

// Counts are those that matter.
func (s *Server) Counts() string {
	return fmt.Sprintf("HEAD %d, manifests %d, blobs %d", s.Count("HEAD manifests"), s.Count("GET manifests"), s.Count("GET blobs"))
}

// Push stores an image or index as repo, forgets counts and faults, and returns
// its full name.
func (s *Server) Push(repo string, what remote.Taggable) string {
	s.t.Helper()
	s.Reset(nil)
	full := s.Host + "/" + repo
	ref, err := name.ParseReference(full)
	if err != nil {
		s.t.Fatal(err)
	}
	switch w := what.(type) {
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, w)
	case v1.Image:
		err = remote.Write(ref, w)
	default:
		s.t.Fatalf("%T is no image", what)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.Reset(nil)
	return full
}

// Status answers with a code, headers (name and value by turns), and a page
// that is of no use to a client.
func Status(code int, header ...string) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		io.WriteString(w, "<html>\nno\n</html>")
		return true
	}
}

// First is f for the first n requests of a method and kind.
func First(n int, what string, f Fault) Fault {
	method, kind, _ := strings.Cut(what, " ")
	return func(w http.ResponseWriter, r *http.Request, count int) bool {
		return r.Method == method && strings.Contains(r.URL.Path, "/"+kind+"/") && count <= n && f(w, r, count)
	}
}

// Spoiled answers with the right content changed by f.
func (s *Server) Spoiled(f func([]byte) []byte) Fault {
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

// HangUp ends the connection without an answer.
func HangUp(w http.ResponseWriter, _ *http.Request, _ int) bool {
	if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
		c.Close()
	}
	return true
}
