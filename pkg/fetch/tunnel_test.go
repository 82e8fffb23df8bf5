package fetch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestConnect(t *testing.T) {
	w := newWorld(t)
	target := httptest.NewTLSServer(body200("through TLS"))
	defer target.Close()
	c := target.Client()
	c.Transport.(*http.Transport).Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy.Addr(), User: url.UserPassword("x", w.proxy.token)})
	if a := do(t, c, "GET", target.URL); a.body != "through TLS" {
		t.Errorf("%s %q", a.Status, a.body)
	}
	site := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != "CONNECT" || r.Host != "far.test:443" || r.Header.Get("Proxy-Authorization") != basic("me", "pw") {
			rw.WriteHeader(418)
			return
		}
		down, buf, _ := http.NewResponseController(rw).Hijack()
		defer down.Close()
		io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\nhello ") // a server that speaks first
		line, _ := buf.ReadString('\n')
		io.WriteString(down, line)
	}))
	defer site.Close()
	via, _ := url.Parse(site.URL)
	via.User = url.UserPassword("me", "pw")
	w.proxy.site = func(u *url.URL) (*url.URL, error) { return via, nil }
	connect := func(host string) *http.Response {
		return w.raw("CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\nProxy-Authorization: " + basic("x", w.proxy.token) + "\r\n\r\nworld\n")
	}
	resp := connect("far.test:443")
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(b) != "hello world\n" {
		t.Errorf("by the site's proxy: %s %q", resp.Status, b)
	}
	if resp := connect("other.test:443"); resp.StatusCode != 502 {
		t.Errorf("refused by the site's proxy: %s", resp.Status)
	}
	if resp := connect("other.test"); resp.StatusCode != 400 {
		t.Errorf("without a port: %s", resp.Status)
	}
}

// TestTheSitesProxy: upstream is reached as the person's own programs reach it.
func TestTheSitesProxy(t *testing.T) {
	asked := ""
	site := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.RequestURI + " " + r.Header.Get("Proxy-Authorization")
		io.WriteString(rw, "from afar")
	}))
	defer site.Close()
	for _, name := range []string{"HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
	t.Setenv("http_proxy", strings.Replace(site.URL, "http://", "http://me:pw@", 1))
	p, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.isOwn = func(context.Context, string) (bool, error) { return false, errors.New("names are the site's matter") }
	w := &world{t: t, proxy: p}
	if a := w.get("http://far.test/InRelease"); a.body != "from afar" || asked != "GET http://far.test/InRelease "+basic("me", "pw") {
		t.Errorf("%q, %q", a.body, asked)
	}
}
