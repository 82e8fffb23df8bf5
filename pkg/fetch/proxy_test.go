package fetch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A world has servers under made-up names, and a proxy that reaches them.
type world struct {
	t     testing.TB
	proxy *Proxy
	clock time.Time // what the proxy takes for now

	mu    sync.Mutex
	addrs map[string]string        // HOST:PORT to where it listens
	seen  map[string]int           // "METHOD http://HOST/PATH?QUERY" as it came
	last  map[string]*http.Request // by the same
	slept []time.Duration
}

func newWorld(t testing.TB) *world { return newWorldIn(t, t.TempDir()) }

func newWorldIn(t testing.TB, dir string) *world {
	t.Helper()
	w := &world{t: t, clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), addrs: map[string]string{}, seen: map[string]int{}, last: map[string]*http.Request{}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.mu.Lock()
		to, ok := w.addrs[addr]
		w.mu.Unlock()
		if !ok {
			return nil, fmt.Errorf("no such host %s", addr)
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}}
	p, err := New(Options{Dir: dir, PyPI: "http://user:secret@pypi.test/simple/", NPM: "http://npm.test", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	w.proxy = p
	p.site = func(*url.URL) (*url.URL, error) { return nil, nil }
	p.now = func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.clock }
	p.sleep = func(_ context.Context, d time.Duration) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.slept = append(w.slept, d)
		return nil
	}
	p.isOwn = func(_ context.Context, host string) (bool, error) { return host == "own.test", nil }
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "tmp", "*")); len(left) > 0 {
			t.Errorf("left in the cache: %v", left)
		}
	})
	return w
}

// serve makes a server of the name host, or HOST:PORT.
func (w *world) serve(host string, h http.HandlerFunc) *httptest.Server {
	w.t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		key := r.Method + " http://" + r.Host + r.RequestURI
		w.seen[key]++
		w.last[key] = r
		w.mu.Unlock()
		h(rw, r)
	}))
	w.t.Cleanup(s.Close)
	if !strings.Contains(host, ":") {
		host += ":80"
	}
	w.mu.Lock()
	w.addrs[host] = s.Listener.Addr().String()
	w.mu.Unlock()
	return s
}

func (w *world) later(d time.Duration) { w.mu.Lock(); w.clock = w.clock.Add(d); w.mu.Unlock() }

// asked is how often upstream was asked for the request line.
func (w *world) asked(line string) int { w.mu.Lock(); defer w.mu.Unlock(); return w.seen[line] }

func (w *world) request(line string) *http.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[line]
}

// client is a build's, which goes through the proxy as apt does.
func (w *world) client() *http.Client {
	u := &url.URL{Scheme: "http", Host: w.proxy.Addr(), User: url.UserPassword("x", w.proxy.token)}
	t := &http.Transport{Proxy: http.ProxyURL(u), DisableCompression: true}
	w.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// mirror is the URL of a path behind the token.
func (w *world) mirror(path string) string {
	return "http://" + w.proxy.Addr() + "/" + w.proxy.token + path
}

// answer is a response that was read to its end.
type answer struct {
	*http.Response
	body string
	err  error // of reading the body
}

func do(t testing.TB, c *http.Client, method, url string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp, string(b), err}
}

// get is do, and the answer must be 200 and whole.
func (w *world) get(url string, header ...string) answer {
	w.t.Helper()
	c := w.client()
	if strings.HasPrefix(url, "http://"+w.proxy.Addr()) {
		c = http.DefaultClient
	}
	a := do(w.t, c, "GET", url, header...)
	if a.StatusCode != 200 || a.err != nil {
		w.t.Fatalf("GET %s: %s, %v: %s", url, a.Status, a.err, a.body)
	}
	return a
}

// raw sends bytes to the proxy and reads the answer.
func (w *world) raw(text string) *http.Response {
	w.t.Helper()
	c, err := net.Dial("tcp", w.proxy.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil && !errors.Is(err, os.ErrClosed) {
		w.t.Logf("writing: %v", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatalf("the answer to %.60q: %v", text, err)
	}
	return resp
}

// body is a handler of one body.
func body200(text string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	}
}

func TestWhoMayUseTheProxy(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", body200("a package"))
	w.serve("npm.test", body200(`{"versions":{}}`))
	good := w.proxy.token
	for _, c := range []struct {
		name, request string
		want          int
	}{
		{"forward, token", "GET http://deb.test/a HTTP/1.1\r\nHost: deb.test\r\nProxy-Authorization: " + basic("x", good) + "\r\n\r\n", 200},
		{"forward, none", "GET http://deb.test/a HTTP/1.1\r\nHost: deb.test\r\n\r\n", 407},
		{"forward, wrong", "GET http://deb.test/a HTTP/1.1\r\nHost: deb.test\r\nProxy-Authorization: " + basic("x", good+"0") + "\r\n\r\n", 407},
		{"forward, as another header", "GET http://deb.test/a HTTP/1.1\r\nHost: deb.test\r\nAuthorization: " + basic("x", good) + "\r\n\r\n", 407},
		{"forward, empty", "GET http://deb.test/a HTTP/1.1\r\nHost: deb.test\r\nProxy-Authorization: " + basic("x", "") + "\r\n\r\n", 407},
		{"connect, none", "CONNECT deb.test:80 HTTP/1.1\r\nHost: deb.test:80\r\n\r\n", 407},
		{"mirror, token", "GET /" + good + "/npm/left-pad HTTP/1.1\r\nHost: x\r\n\r\n", 200},
		{"mirror, none", "GET /npm/left-pad HTTP/1.1\r\nHost: x\r\n\r\n", 403},
		{"mirror, empty", "GET //npm/left-pad HTTP/1.1\r\nHost: x\r\n\r\n", 403},
		{"mirror, wrong", "GET /" + good[1:] + "/npm/left-pad HTTP/1.1\r\nHost: x\r\n\r\n", 403},
		{"mirror, bearer", "GET /left-pad HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + good + "\r\n\r\n", 200},
		{"mirror, wrong bearer", "GET /left-pad HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n", 403},
		{"nothing", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 403},
	} {
		if got := w.raw(c.request); got.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.name, got.Status, c.want)
		}
	}
	other := newWorld(t)
	if other.proxy.token == w.proxy.token {
		t.Error("two builders have one token")
	}
}

func basic(user, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, password)
	return r.Header.Get("Authorization")
}

func TestWhatIsKeptOfPlainHTTP(t *testing.T) {
	const sum = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae" // of "foo"
	for _, c := range []struct {
		name, path string
		header     []string
		after      time.Duration
		want       int // requests of upstream in all
	}{
		{"a package", "/debian/pool/main/f/foo_1_all.deb", nil, 23 * time.Hour, 1},
		{"a package a day later", "/debian/pool/main/f/foo_1_all.deb", nil, 25 * time.Hour, 2},
		{"an rpm", "/el9/Packages/f/foo.rpm", nil, time.Hour, 1},
		{"a deb at no archive's place", "/latest/foo.deb", nil, time.Hour, 2},
		{"a package with a query", "/pool/foo.deb?v=1", nil, time.Hour, 2},
		{"an index by its digest", "/dists/x/main/by-hash/SHA256/" + sum, nil, 9000 * time.Hour, 1},
		{"an index, at once", "/dists/x/InRelease", nil, 59 * time.Second, 1},
		{"an index, later", "/dists/x/InRelease", nil, 61 * time.Second, 2},
		{"no-store", "/pool/x.deb", []string{"Cache-Control", "max-age=5, No-Store"}, 0, 2},
		{"private", "/pool/x.deb", []string{"Cache-Control", "private"}, 0, 2},
		{"a gateway's page", "/pool/x.deb", []string{"Content-Type", "text/html"}, 0, 2},
		{"a cookie is of no matter", "/pool/x.deb", []string{"Set-Cookie", "a=b"}, 0, 1},
	} {
		w := newWorld(t)
		w.serve("deb.test", body200("foo", c.header...))
		for range 2 {
			a := w.get("http://deb.test" + c.path)
			if a.body != "foo" || a.Header.Get("Set-Cookie") != "" {
				t.Errorf("%s: %q, %v", c.name, a.body, a.Header)
			}
			w.later(c.after)
		}
		if got := w.asked("GET http://deb.test" + c.path); got != c.want {
			t.Errorf("%s: upstream was asked %d times, not %d", c.name, got, c.want)
		}
	}
}

func TestRevalidation(t *testing.T) {
	text := "one"
	for _, validator := range []string{"ETag", "Last-Modified"} {
		w := newWorld(t)
		sent := 0
		w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
			tag := `"` + text + `"`
			date := "Mon, 02 Jan 2006 15:04:05 GMT"
			if text == "two" {
				date = "Tue, 03 Jan 2006 15:04:05 GMT"
			}
			if validator == "ETag" {
				rw.Header().Set("ETag", tag)
			} else {
				rw.Header().Set("Last-Modified", date)
			}
			if r.Header.Get("If-None-Match") == tag || r.Header.Get("If-Modified-Since") == date {
				rw.WriteHeader(304)
				return
			}
			sent++
			io.WriteString(rw, text)
		})
		for i, c := range []struct {
			text string
			sent int
		}{{"one", 1}, {"one", 1}, {"two", 2}} {
			text = c.text
			if a := w.get("http://deb.test/InRelease"); a.body != c.text || sent != c.sent {
				t.Errorf("%s, %d: %q after %d bodies, want %q after %d", validator, i, a.body, sent, c.text, c.sent)
			}
			w.later(2 * time.Minute)
		}
		text = "one"
		if s := w.proxy.Stats(); s.Hits != 1 || s.Requests != 3 || s.FromUpstream != 6 || s.ToClients != 9 || s.Hosts["deb.test"].Upstream != 3 {
			t.Errorf("%s: %+v", validator, s)
		}
	}
}

func TestClientsConditionsAndRanges(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", body200("0123456789", "ETag", `"v1"`, "Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT"))
	url := "http://deb.test/pool/a.deb"
	// Before the file is whole a range is answered with all of it, which is allowed.
	if a := do(t, w.client(), "GET", url, "Range", "bytes=4-"); a.body != "0123456789" && a.body != "456789" {
		t.Errorf("first: %s %q", a.Status, a.body)
	}
	for _, c := range []struct {
		header []string
		status int
		body   string
	}{
		{nil, 200, "0123456789"},
		{[]string{"Range", "bytes=4-"}, 206, "456789"},
		{[]string{"Range", "bytes=4-", "If-Range", `"v1"`}, 206, "456789"},
		{[]string{"Range", "bytes=4-", "If-Range", "Mon, 02 Jan 2006 15:04:05 GMT"}, 206, "456789"},
		{[]string{"Range", "bytes=4-", "If-Range", `"v0"`}, 200, "0123456789"},
		{[]string{"Range", "bytes=20-"}, 416, "invalid range: failed to overlap\n"},
		{[]string{"If-None-Match", `"v1"`}, 304, ""},
		{[]string{"If-None-Match", `"v0"`}, 200, "0123456789"},
		{[]string{"If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"}, 304, ""},
	} {
		if a := do(t, w.client(), "GET", url, c.header...); a.StatusCode != c.status || a.body != c.body {
			t.Errorf("%v: %s %q, want %d %q", c.header, a.Status, a.body, c.status, c.body)
		}
	}
	if n := w.asked("GET " + url); n != 1 {
		t.Errorf("upstream was asked %d times", n)
	}
	if r := w.request("GET " + url); r.Header.Get("Range") != "" {
		t.Error("upstream was asked for a part")
	}
}

func TestRefusalsArePassedOn(t *testing.T) {
	w := newWorld(t)
	answers := map[string]func(http.ResponseWriter){
		"/missing":  func(rw http.ResponseWriter) { http.Error(rw, "gone", 404) },
		"/moved":    func(rw http.ResponseWriter) { rw.Header().Set("Location", "http://else.test/"); rw.WriteHeader(302) },
		"/busy":     func(rw http.ResponseWriter) { rw.Header().Set("Retry-After", "7"); rw.WriteHeader(429) },
		"/busier":   func(rw http.ResponseWriter) { rw.Header().Set("Retry-After", "3600"); rw.WriteHeader(503) },
		"/broken":   func(rw http.ResponseWriter) { rw.WriteHeader(500) },
		"/teapot":   func(rw http.ResponseWriter) { rw.WriteHeader(206) },
		"/untimely": func(rw http.ResponseWriter) { rw.WriteHeader(503) },
	}
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) { answers[r.URL.Path](rw) })
	for _, c := range []struct {
		path   string
		status int
		asked  int
		header string
	}{
		{"/missing", 404, 1, "Content-Type: text/plain; charset=utf-8"},
		{"/moved", 302, 1, "Location: http://else.test/"},
		{"/busy", 429, 3, "Retry-After: 7"},
		{"/busier", 503, 1, "Retry-After: 3600"},
		{"/broken", 500, 1, ""},
		{"/teapot", 206, 1, ""},
		{"/untimely", 503, 3, ""},
	} {
		a := do(t, w.client(), "GET", "http://deb.test"+c.path)
		key, want, _ := strings.Cut(c.header, ": ")
		if a.StatusCode != c.status || a.Header.Get(key) != want {
			t.Errorf("%s: %s %v", c.path, a.Status, a.Header)
		}
		if n := w.asked("GET http://deb.test" + c.path); n != c.asked {
			t.Errorf("%s: upstream was asked %d times, not %d", c.path, n, c.asked)
		}
	}
	answers["/busy"] = func(rw http.ResponseWriter) { io.WriteString(rw, "well again") }
	if a := w.get("http://deb.test/busy"); a.body != "well again" {
		t.Errorf("a refusal was kept: %q", a.body)
	}
	for i, d := range w.slept[:2] {
		if d < 7*time.Second || d > 11*time.Second {
			t.Errorf("wait %d was %v, and Retry-After 7 s", i, d)
		}
	}
}

func TestDelay(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		after  string
		try    int
		jitter float64
		want   time.Duration
	}{
		{"", 1, 0, 500 * time.Millisecond},
		{"", 2, 1, 1500 * time.Millisecond},
		{"4", 1, 0.5, 5 * time.Second},
		{"0", 1, 1, 0},
		{now.Add(10 * time.Second).Format(http.TimeFormat), 2, 0, 10 * time.Second},
		{now.Add(-time.Hour).Format(http.TimeFormat), 2, 0, 0},
		{"soon", 1, 0, 500 * time.Millisecond},
		{"-1", 1, 0, 500 * time.Millisecond},
		{"99999999999999999999", 1, 0, 500 * time.Millisecond},
	} {
		if got := delay(c.after, now, c.try, c.jitter); got != c.want {
			t.Errorf("delay(%q, %d, %v) = %v, want %v", c.after, c.try, c.jitter, got, c.want)
		}
	}
}

func TestAStaleFileServesWhereUpstreamIsGone(t *testing.T) {
	w := newWorld(t)
	broken := false
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		if broken {
			rw.WriteHeader(502)
			return
		}
		io.WriteString(rw, "x")
	})
	w.get("http://deb.test/pool/a.deb")
	w.get("http://deb.test/InRelease")
	w.later(48 * time.Hour)
	broken = true
	if a := w.get("http://deb.test/pool/a.deb"); a.body != "x" {
		t.Errorf("%q", a.body)
	}
	if a := do(t, w.client(), "GET", "http://deb.test/InRelease"); a.StatusCode != 502 {
		t.Errorf("an old index was served: %s", a.Status)
	}
}

// TestClocksDiffer: what another node has checked an hour from now is no older
// than what it has checked an hour ago.
func TestClocksDiffer(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", body200("x"))
	w.get("http://deb.test/InRelease")
	w.later(-time.Hour)
	w.get("http://deb.test/InRelease")
	if n := w.asked("GET http://deb.test/InRelease"); n != 2 {
		t.Errorf("upstream was asked %d times", n)
	}
}

func TestConfigs(t *testing.T) {
	p := &Proxy{token: "TOKEN", listener: fakeListener{}, pypi: upstream{base: "http://pypi.test"}, npm: upstream{base: "http://npm.test"}}
	for name, c := range map[string]struct{ got, want string }{
		"apt": {string(p.AptConfig()), `Acquire::http::Proxy "http://x:TOKEN@127.0.0.1:1/";` + "\n" + `Acquire::http::Proxy::localhost "DIRECT";` + "\n" + `Acquire::http::Proxy::127.0.0.1 "DIRECT";` + "\n"},
		"pip": {string(p.PipConfig()), "[global]\nindex-url = http://127.0.0.1:1/TOKEN/pypi/simple/\ntrusted-host = 127.0.0.1\n"},
		"npm": {string(p.NpmConfig()), "registry=http://127.0.0.1:1/TOKEN/npm/\n//127.0.0.1:1/:_authToken=TOKEN\nomit-lockfile-registry-resolved=true\naudit=false\n"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q\nwant %q", name, c.got, c.want)
		}
	}
}

type fakeListener struct{ net.Listener }

func (fakeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func TestNewRefuses(t *testing.T) {
	full := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Dir: full}, "making the download cache"},
		{Options{Dir: t.TempDir(), PyPI: "ftp://x/"}, `the Python index: "ftp://x/" is not an http or https URL`},
		{Options{Dir: t.TempDir(), NPM: "http://u:pw@/"}, `the npm registry: "http:///" is not`},
	} {
		if p, err := New(c.o); err == nil || !strings.Contains(err.Error(), c.want) || p != nil {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
