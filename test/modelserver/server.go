// Package modelserver is a server with OpenAI's chat API within a test, that
// answers by a script and misbehaves as told. It is reached over real HTTP.
package modelserver

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// Message is one of a request's.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Request is one that came in.
type Request struct {
	Path     string
	Header   http.Header
	Body     map[string]json.RawMessage
	Messages []Message

	gone context.Context // ends with the connection or the server
}

// Answer writes the answer to one request.
type Answer func(http.ResponseWriter, Request)

// Server is such a server.
type Server struct {
	Base string // for a client: http://127.0.0.1:PORT/v1 or unix:PATH

	t             testing.TB
	network, addr string

	mu       sync.Mutex
	http     *http.Server
	script   []Answer
	models   string
	props    string
	requests []Request
}

// Start serves on 127.0.0.1 until the test ends. The answers are given in
// turn, the last one for ever.
func Start(t testing.TB, script ...Answer) *Server {
	s := &Server{t: t, network: "tcp", addr: "127.0.0.1:0", script: script}
	s.Resume()
	s.Base = "http://" + s.addr + "/v1"
	return s
}

// StartUnix serves on a Unix socket.
func StartUnix(t testing.TB, script ...Answer) *Server {
	s := &Server{t: t, network: "unix", addr: filepath.Join(t.TempDir(), "model.sock"), script: script}
	s.Resume()
	s.Base = "unix:" + s.addr
	return s
}

// Resume begins to listen, where the server was before.
func (s *Server) Resume() {
	s.t.Helper()
	l, err := net.Listen(s.network, s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	srv := &http.Server{Handler: http.HandlerFunc(s.serve), ErrorLog: log.New(io.Discard, "", 0)}
	ctx, stop := context.WithCancel(context.Background())
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.RegisterOnShutdown(stop)
	s.mu.Lock()
	s.http = srv
	s.mu.Unlock()
	go srv.Serve(l)
	s.t.Cleanup(func() { stop(); srv.Close() })
}

// Stop ends the server and all its connections.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.http.Close()
}

// Models sets the body of /v1/models; none is a server without one.
func (s *Server) Models(body string) { s.set(&s.models, body) }

// Props sets the body of llama.cpp's /props.
func (s *Server) Props(body string) { s.set(&s.props, body) }

func (s *Server) set(field *string, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = body
}

// Requests are those for a chat so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	models, props := s.models, s.props
	s.mu.Unlock()
	switch r.URL.Path {
	case "/v1/chat/completions":
		s.chat(w, r)
	case "/v1/models":
		page(w, models)
	case "/props":
		page(w, props)
	default:
		http.NotFound(w, r)
	}
}

func page(w http.ResponseWriter, body string) {
	if body == "" {
		Status(http.StatusNotFound, `{"detail":"Not Found"}`)(w, Request{})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, body)
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	req := Request{Path: r.URL.Path, Header: r.Header, gone: r.Context()}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &req.Body)
	}
	if err == nil {
		err = json.Unmarshal(req.Body["messages"], &req.Messages)
	}
	if err != nil {
		s.t.Errorf("the model server was sent what is no request: %v", err)
		return
	}
	s.mu.Lock()
	n := min(len(s.requests), len(s.script)-1)
	answer := s.script[n]
	s.requests = append(s.requests, req)
	s.mu.Unlock()
	answer(w, req)
}
