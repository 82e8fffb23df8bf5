package fetch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// The tests here are a hostile build's: it may ask for anything, and a request
// of another build must then get what upstream says.

const deb = "http://deb.test/pool/a.deb"

// victim asks as another build does, and must get what an untouched proxy
// would give.
func victim(t *testing.T, w *world, url, want string) {
	t.Helper()
	if a := w.get(url); a.body != want {
		t.Errorf("the next build gets %q, not %q", a.body, want)
	}
}

func TestPoison_WhatAClientSends(t *testing.T) {
	auth := func(w *world) string { return "Proxy-Authorization: " + basic("x", w.proxy.token) + "\r\n" }
	for _, c := range []struct {
		name, request string // AUTH stands for the credentials
		status        int
	}{
		{"control", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 200},
		{"PUT", "PUT " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHContent-Length: 4\r\n\r\nevil", 405},
		{"POST", "POST " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHContent-Length: 4\r\n\r\nevil", 405},
		{"DELETE", "DELETE " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 405},
		{"GET with a body", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHContent-Length: 4\r\n\r\nevil", 400},
		{"GET with a chunked body", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n", 400},
		{"two lengths", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHContent-Length: 0\r\nContent-Length: 4\r\n\r\nevil", 400},
		{"length and chunks", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		{"another Host", "GET " + deb + " HTTP/1.1\r\nHost: evil.test\r\nAUTH\r\n", 200},
		{"forwarding headers", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHX-Forwarded-Host: evil.test\r\nX-Original-URL: /evil\r\nX-HTTP-Method-Override: PUT\r\nAccept: evil\r\nUser-Agent: evil\r\nAccept-Encoding: evil\r\n\r\n", 200},
		{"user in the URL", "GET http://deb.test@evil.test/pool/a.deb HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 400},
		{"https in the clear", "GET https://deb.test/pool/a.deb HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 400},
		{"a file", "GET file:///etc/passwd HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 400},
		{"no host", "GET http:///pool/a.deb HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 400},
		{"huge headers", "GET " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTHX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", 431},
		{"HEAD", "HEAD " + deb + " HTTP/1.1\r\nHost: deb.test\r\nAUTH\r\n", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				what := "good"
				for _, h := range []string{"Range", "X-Forwarded-Host", "X-Original-URL", "X-Http-Method-Override", "Accept", "X-Forwarded-For", "Cookie"} {
					what += r.Header.Get(h)
				}
				if len(body) > 0 || (r.Method != "GET" && r.Method != "HEAD") || r.Host != "deb.test" || r.UserAgent() == "evil" || r.Header.Get("Accept-Encoding") != "identity" {
					what = "evil"
				}
				io.WriteString(rw, what)
			})
			w.serve("evil.test", body200("evil"))
			resp := w.raw(strings.ReplaceAll(c.request, "AUTH", auth(w)))
			if resp.StatusCode != c.status {
				t.Errorf("%s, want %d", resp.Status, c.status)
			}
			victim(t, w, deb, "good")
		})
	}
}

func TestPoison_PathsOfTheMirror(t *testing.T) {
	w := newWorld(t)
	w.serve("pypi.test", body200(`<a href="/f/good-1.tar.gz">x</a>`, "Content-Type", "text/html"))
	w.serve("npm.test", body200(`{"versions":{}}`, "Content-Type", "application/json"))
	for path, want := range map[string]int{
		"/pypi/simple/good/":                        200,
		"/pypi/simple/good":                         200,
		"/pypi/simple/g%6Fod/":                      200,
		"/pypi/simple/../evil/":                     404,
		"/pypi/simple/%2e%2e/evil/":                 404,
		"/pypi/simple/..%2fevil/":                   404,
		"/pypi/simple/good%2f..%2fevil/":            404,
		"/pypi/simple/good%3fx/":                    404,
		"/pypi/simple/good%0d%0aX/":                 404,
		"/pypi/simple/http:%2f%2fevil.test/":        404,
		"/pypi/simple/":                             404,
		"/pypi/simple/" + strings.Repeat("a", 201):  404,
		"/pypi/files/good/../../../etc/passwd":      404,
		"/pypi/files/good/..%2f..%2fetc%2fpasswd":   404,
		"/pypi/files/..%2fgood/good-1.tar.gz":       404,
		"/pypi/files/good/http:%2f%2fevil.test%2fx": 404,
		"/pypi/files/good":                          404,
		"/npm/good":                                 200,
		"/npm/@scope/good":                          200,
		"/npm/@scope%2fgood":                        200,
		"/npm/@scope%2fgood%2f..%2fevil":            404,
		"/npm/../evil":                              404,
		"/npm/.evil":                                404,
		"/npm/good%3fwrite=true":                    404,
		"/npm/-/v1/search":                          404,
		"/npm/-/user/org.couchdb.user:x":            404,
		"/npm/good/-/..%2f..%2fevil.tgz":            404,
		"/npm/good/-/other-1.0.0.tgz":               404,
		"/other/good":                               404,
		"/npm":                                      404,
		"":                                          404,
	} {
		resp := w.raw("GET /" + w.proxy.token + path + " HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
	for line := range w.seen {
		if strings.Contains(line, "evil") || strings.Contains(line, "..") {
			t.Errorf("upstream was asked: %s", line)
		}
	}
	resp := w.raw("POST /" + w.proxy.token + "/npm/-/npm/v1/security/advisories/bulk HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	if resp.StatusCode != 405 {
		t.Errorf("a body: %s", resp.Status)
	}
}

// TestPoison_Keys asks for pairs of URLs that a careless cache takes for one.
func TestPoison_Keys(t *testing.T) {
	for _, c := range []struct {
		evil, good string
		same       bool
	}{
		{"http://deb.test/pool/a.deb", "http://deb.test:80/pool/a.deb", true},
		{"http://DEB.test/pool/a.deb", "http://deb.test/pool/a.deb", true},
		{"http://deb.test:81/pool/a.deb", "http://deb.test/pool/a.deb", false},
		{"http://evil.test/pool/a.deb", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/A.deb", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a.deb?", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a.deb?x", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a.deb%3Fx", "http://deb.test/pool/a.deb?x", false},
		{"http://deb.test/pool/x/../a.deb", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/x/%2e%2e/a.deb", "http://deb.test/pool/x/../a.deb", false},
		{"http://deb.test/pool//a.deb", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool%2Fa.deb", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a%2Edeb", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a.deb;x", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a.deb%0d%0aX:y", "http://deb.test/pool/a.deb", false},
		{"http://deb.test/pool/a.deb%00", "http://deb.test/pool/a.deb", false},
	} {
		w := newWorld(t)
		echo := func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Host+r.RequestURI) }
		for _, host := range []string{"deb.test", "deb.test:81", "evil.test"} {
			w.serve(host, echo)
		}
		first := ask(t, w, c.evil)
		second := ask(t, w, c.good)
		if (first == second) != c.same {
			t.Errorf("%s and %s: %q, %q", c.evil, c.good, first, second)
		}
		if u, _ := url.Parse(c.good); !strings.HasSuffix(second, u.EscapedPath()) && u.RawQuery == "" {
			t.Errorf("%s: upstream was asked for %q", c.good, second)
		}
		if total := len(w.seen); (total == 1) != c.same {
			t.Errorf("%s and %s: %v", c.evil, c.good, w.seen)
		}
	}
}

// ask sends the URL as it is written, which http.Client would not.
func ask(t *testing.T, w *world, url string) string {
	t.Helper()
	resp := w.raw("GET " + url + " HTTP/1.1\r\nHost: ignored.test\r\nProxy-Authorization: " + basic("x", w.proxy.token) + "\r\n\r\n")
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %s %q %v", url, resp.Status, b, err)
	}
	return string(b)
}

// TestPoison_AServerOfTheBuilds: a step shares the node's network, and with it
// the addresses where the next step's own server will be.
func TestPoison_AServerOfTheBuilds(t *testing.T) {
	w := newWorld(t)
	text := "evil"
	h := func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, text) }
	w.serve("own.test:8000", h)
	w.serve("far.test:8000", h)
	w.get("http://own.test:8000/pool/a.deb")
	w.get("http://far.test:8000/pool/a.deb")
	text = "good"
	victim(t, w, "http://own.test:8000/pool/a.deb", "good")
	victim(t, w, "http://far.test:8000/pool/a.deb", "evil") // the control: this one is kept
}

func TestIsOwn(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST.": true, "a.localhost": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true,
		"0.0.0.0": true, "::": true, "::ffff:127.0.0.1": true, "192.0.2.1": false, "2001:db8::1": false,
	} {
		if got, err := isOwn(t.Context(), host); got != want || err != nil {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
}

// TestOwnHostFailsClosed: what cannot be told now is not remembered, and not
// kept meanwhile.
func TestOwnHostFailsClosed(t *testing.T) {
	w := newWorld(t)
	dns := errors.New("no answer")
	w.proxy.isOwn = func(context.Context, string) (bool, error) { return false, dns }
	if !w.proxy.ownHost("deb.test") {
		t.Error("an unknown host is taken for another machine's")
	}
	via, _ := url.Parse("http://site.test:3128")
	w.proxy.site = func(*url.URL) (*url.URL, error) { return via, nil }
	if w.proxy.ownHost("deb.test") {
		t.Error("behind the site's proxy, whose matter names are, nothing would be kept")
	}
	w.proxy.site = func(*url.URL) (*url.URL, error) { return nil, nil }
	dns = nil
	if w.proxy.ownHost("other.test") {
		t.Error("a known host is taken for this machine")
	}
}

// TestPoison_CredentialsOfTheClient: what upstream says to one who logs in is
// not for the others.
func TestPoison_CredentialsOfTheClient(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization")+r.Header.Get("Cookie") != "" {
			io.WriteString(rw, "for members")
			return
		}
		io.WriteString(rw, "for all")
	})
	for _, h := range []string{"Authorization", "Cookie"} {
		if a := w.get(deb, h, "me=1"); a.body != "for members" {
			t.Errorf("%s: %q", h, a.body)
		}
		if r := w.request("GET " + deb); r.Header.Get("Proxy-Authorization") != "" || r.Header.Get("X-Forwarded-For") != "" {
			t.Errorf("upstream was told %v", r.Header)
		}
	}
	victim(t, w, deb, "for all")
	if a := w.get(deb, "Authorization", "me=1"); a.body != "for members" {
		t.Errorf("from the cache: %q", a.body)
	}
}

func TestPoison_HeadFillsNothing(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "4")
		io.WriteString(rw, "good")
	})
	for range 2 {
		if a := do(t, w.client(), "HEAD", deb); a.StatusCode != 200 || a.ContentLength != 4 {
			t.Errorf("%s, %d bytes", a.Status, a.ContentLength)
		}
	}
	victim(t, w, deb, "good")
	if n := w.asked("HEAD " + deb); n != 2 {
		t.Errorf("%d HEADs went upstream", n)
	}
	if a := do(t, w.client(), "HEAD", deb); a.ContentLength != 4 || w.asked("HEAD "+deb) != 2 {
		t.Errorf("a HEAD of what is kept: %s, %d bytes", a.Status, a.ContentLength)
	}
}

// TestPoison_UpstreamsHeaders: nothing of upstream's header but what is listed
// gets to a client.
func TestPoison_UpstreamsHeaders(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		c, _, _ := http.NewResponseController(rw).Hijack()
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nSet-Cookie: a=b\r\nX-Evil: 1\r\nProxy-Authenticate: Basic\r\nTrailer: Etag\r\nETag: \"a\"\r\n\r\ngood")
	})
	for range 2 {
		a := w.get(deb)
		for k := range a.Header {
			if !strings.Contains("Content-Type Content-Length Etag Date Accept-Ranges", k) {
				t.Errorf("the client sees %s", k)
			}
		}
	}
}

func TestPoison_ByHashOfSomethingElse(t *testing.T) {
	w := newWorld(t)
	const url = "http://deb.test/by-hash/SHA256/2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	text := "bar"
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, text) })
	if a := do(t, w.client(), "GET", url); a.StatusCode == 200 && a.err == nil {
		t.Errorf("a wrong body was served: %q", a.body)
	}
	text = "foo"
	victim(t, w, url, "foo")
}
