package fetch

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"fence/pkg/fetch/index"
)

const (
	fooSHA256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	fooSHA512 = "sha512-9/u6bgY2+JDlb7vzKD5STG+jIErimDgtYkdB0NxmODJuKCxBvl5CVNiCB3LFUYosWowMf37aGVlKfrU5RT4e1w=="
	fooSHA1   = "0beec7b5ea3f0fdbc95d0dd47f3c5bc275da8a33"
)

var jsonPage = `{"meta":{"api-version":"1.1"},"name":"foo","versions":["1"],"files":[
 {"filename":"foo-1-py3-none-any.whl","url":"http://files.test/ab/foo-1-py3-none-any.whl","size":3,"hashes":{"sha256":"` + fooSHA256 + `"},"requires-python":">=3.8","yanked":"broken","core-metadata":{"sha256":"` + fooSHA256 + `"},"upload-time":"2026-01-01T00:00:00Z"},
 {"filename":"foo-1.tar.gz","url":"../../rel/foo-1.tar.gz#x","hashes":{}},
 {"filename":"../evil","url":"http://files.test/evil","hashes":{}},
 {"filename":"evil.whl","url":"file:///etc/passwd","hashes":{}}]}`

var htmlPage = `<html><body><h1>Links</h1><script>evil()</script>
<a onclick="evil()" href="http://files.test/ab/foo-1-py3-none-any.whl#sha256=` + fooSHA256 + `" data-requires-python="&gt;=3.8" data-yanked="broken" data-core-metadata="sha256=` + fooSHA256 + `">foo-1-py3-none-any.whl</a>
<a href="../../rel/foo-1.tar.gz">other text</a>
<a href="javascript:evil()">evil</a><a href="http://files.test/%2e%2e">evil</a><a name="x">no link</a></body></html>`

func TestPythonPages(t *testing.T) {
	const wantHTML = "<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.0\"></head><body>\n" +
		"<a href=\"/TOKEN/pypi/files/foo-bar/foo-1-py3-none-any.whl#sha256=" + fooSHA256 + "\" data-requires-python=\"&gt;=3.8\" data-yanked=\"broken\"DIST data-core-metadata=\"sha256=" + fooSHA256 + "\">foo-1-py3-none-any.whl</a><br>\n" +
		"<a href=\"/TOKEN/pypi/files/foo-bar/foo-1.tar.gz\">foo-1.tar.gz</a><br>\n</body></html>\n"
	for _, c := range []struct{ name, upstream, kind, accept, wantKind string }{
		{"JSON to JSON", jsonPage, index.SimpleJSON, index.SimpleJSON + ", text/html;q=0.1", index.SimpleJSON},
		{"JSON to HTML", jsonPage, index.SimpleJSON, "text/html", "text/html; charset=utf-8"},
		{"HTML to HTML", htmlPage, "text/html; charset=UTF-8", "text/html", "text/html; charset=utf-8"},
		{"HTML to JSON", htmlPage, index.SimpleHTML, index.SimpleJSON + ", text/html;q=0.1", "text/html; charset=utf-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("pypi.test", body200(c.upstream, "Content-Type", c.kind))
			w.serve("files.test", body200("foo"))
			a := w.get(w.mirror("/pypi/simple/Foo._Bar/"), "Accept", c.accept)
			if a.Header.Get("Content-Type") != c.wantKind {
				t.Errorf("it is %q", a.Header.Get("Content-Type"))
			}
			if r := w.request("GET http://pypi.test/simple/foo-bar/"); r == nil || r.Header.Get("Authorization") != basic("user", "secret") {
				t.Fatalf("upstream was asked %v", w.seen)
			}
			body := strings.ReplaceAll(a.body, w.proxy.token, "TOKEN")
			if c.wantKind == index.SimpleJSON {
				for _, want := range []string{`"url":"/TOKEN/pypi/files/foo-bar/foo-1-py3-none-any.whl"`, `"upload-time":"2026-01-01T00:00:00Z"`, `"sha256":"` + fooSHA256 + `"`, `"versions":["1"]`, `"size":3`} {
					if !strings.Contains(body, want) {
						t.Errorf("%s is not in %s", want, body)
					}
				}
				if !json.Valid([]byte(body)) || strings.Contains(body, "evil") {
					t.Errorf("%s", body)
				}
			} else {
				dist := ""
				if c.kind == index.SimpleJSON {
					dist = ` data-dist-info-metadata="sha256=` + fooSHA256 + `"`
				}
				if want := strings.Replace(wantHTML, "DIST", dist, 1); body != want {
					t.Errorf("%s\nwant %s", body, want)
				}
			}
			for _, file := range []string{"foo-1-py3-none-any.whl", "foo-1-py3-none-any.whl.metadata"} {
				if a := w.get(w.mirror("/pypi/files/foo-bar/" + file)); a.body != "foo" {
					t.Errorf("%s: %q", file, a.body)
				}
				if r := w.request("GET http://files.test/ab/" + file); r == nil || r.Header.Get("Authorization") != "" {
					t.Errorf("%s: another host was asked with the index's credentials, or not at all: %v", file, w.seen)
				}
			}
			if a := do(t, http.DefaultClient, "GET", w.mirror("/pypi/files/foo-bar/foo-1.tar.gz.metadata")); a.StatusCode != 404 {
				t.Errorf("metadata that the index does not name: %s", a.Status)
			}
			w.get(w.mirror("/pypi/files/foo-bar/foo-1.tar.gz"))
			if r := w.request("GET http://pypi.test/rel/foo-1.tar.gz"); r == nil || r.Header.Get("Authorization") != basic("user", "secret") {
				t.Errorf("the index's own file: %v", w.seen)
			}
			if n := w.asked("GET http://pypi.test/simple/foo-bar/"); n != 2 && n != 1 {
				t.Errorf("the page was asked for %d times", n)
			}
		})
	}
}

func TestAPythonFileIsWhatTheIndexSays(t *testing.T) {
	w := newWorld(t)
	text := "bar"
	w.serve("pypi.test", body200(jsonPage, "Content-Type", index.SimpleJSON))
	w.serve("files.test", func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, text) })
	url := w.mirror("/pypi/files/foo/foo-1-py3-none-any.whl")
	if a := do(t, http.DefaultClient, "GET", url); a.StatusCode == 200 && a.err == nil {
		t.Errorf("a wrong file was served: %q", a.body)
	}
	text = "foo"
	victim(t, w, url, "foo")
	w.later(1000 * time.Hour)
	victim(t, w, url, "foo")
	if n := w.asked("GET http://files.test/ab/foo-1-py3-none-any.whl"); n != 2 {
		t.Errorf("a file with a digest was asked for %d times", n)
	}
}

// TestAnIndexThatChangesItsMind: a file that is replaced is fetched anew, as
// soon as the page that a client sees says so.
func TestAnIndexThatChangesItsMind(t *testing.T) {
	w := newWorld(t)
	text, name := "bar", "a.whl"
	w.serve("pypi.test", func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".whl") {
			io.WriteString(rw, text)
			return
		}
		rw.Header().Set("Content-Type", index.SimpleJSON)
		fmt.Fprintf(rw, `{"files":[{"filename":"%s","url":"/%s","hashes":{"sha256":"%x"}}]}`, name, name, sum256(text))
	})
	for _, text = range []string{"bar", "foo"} {
		w.get(w.mirror("/pypi/simple/a/"))
		victim(t, w, w.mirror("/pypi/files/a/a.whl"), text)
		w.later(2 * time.Minute)
	}
	// A file that was not in the page is looked for in a fresh one.
	name = "b.whl"
	victim(t, w, w.mirror("/pypi/files/a/b.whl"), "foo")
	name = "c.whl"
	if a := do(t, http.DefaultClient, "GET", w.mirror("/pypi/files/a/c.whl")); a.StatusCode != 404 {
		t.Errorf("within the minute: %s", a.Status)
	}
}

// TestPagesAreBounded: an endless page is not read to its end.
func TestPagesAreBounded(t *testing.T) {
	w := newWorld(t)
	w.serve("pypi.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		for {
			if _, err := io.WriteString(rw, strings.Repeat(" ", 1<<20)); err != nil {
				return
			}
		}
	})
	w.serve("npm.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", fmt.Sprint(maxPage+1))
		rw.WriteHeader(200)
	})
	for path, want := range map[string]string{"/pypi/simple/a/": "more than is taken", "/npm/a": "67108865 bytes, more than"} {
		if a := do(t, http.DefaultClient, "GET", w.mirror(path)); a.StatusCode != 502 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %s %q", path, a.Status, a.body)
		}
	}
}

func packument(dist string) string {
	return `{"name":"foo","dist-tags":{"latest":"1.0.0"},"_id":"foo","versions":{"1.0.0":{"name":"foo","version":"1.0.0","dependencies":{"x":"1"},"dist":` + dist + `},
 "../evil":{"dist":{"tarball":"http://npm.test/evil"}},"2.0.0":{"dist":null},"3.0.0":null}}`
}

func TestNpmPackages(t *testing.T) {
	for _, name := range []string{"foo", "@scope/foo"} {
		for kind, c := range map[string]struct {
			dist string
			kept bool // for good
		}{
			"sha512":  {`{"tarball":"http://npm.test/t/foo.tgz","integrity":"` + fooSHA512 + `","fileCount":3}`, true},
			"sha1":    {`{"tarball":"/t/foo.tgz","shasum":"` + fooSHA1 + `"}`, true},
			"nothing": {`{"tarball":"/t/foo.tgz"}`, false},
			"wrong":   {`{"tarball":"/t/foo.tgz","integrity":"` + strings.Replace(fooSHA512, "9", "8", 1) + `"}`, false},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				w := newWorld(t)
				w.serve("npm.test", func(rw http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/t/foo.tgz" {
						io.WriteString(rw, "foo")
						return
					}
					rw.Header().Set("Content-Type", strings.Split(r.Header.Get("Accept"), ",")[0])
					io.WriteString(rw, packument(c.dist))
				})
				a := w.get(w.mirror("/npm/"+strings.Replace(name, "/", "%2f", 1)), "Accept", index.Corgi+"; q=1.0, application/json; q=0.8")
				if a.Header.Get("Content-Type") != index.Corgi || w.asked("GET http://npm.test/"+strings.Replace(name, "/", "%2f", 1)) != 1 {
					t.Errorf("%v, %v", a.Header, w.seen)
				}
				tarball := regexp.MustCompile(`"tarball":"([^"]*)"`).FindAllStringSubmatch(a.body, -1)
				want := w.mirror("/npm/" + name + "/-/foo-1.0.0.tgz")
				if len(tarball) != 1 || tarball[0][1] != want || strings.Contains(a.body, "evil") {
					t.Fatalf("%v, want %s", tarball, want)
				}
				if !strings.Contains(a.body, `"dependencies":{"x":"1"}`) || !strings.Contains(a.body, `"latest":"1.0.0"`) {
					t.Errorf("%s", a.body)
				}
				// The whole packument is another thing than the short one.
				if a := w.get(w.mirror("/npm/"+name), "Accept", "application/json"); a.Header.Get("Content-Type") != "application/json" {
					t.Errorf("%v", a.Header)
				}
				got := do(t, http.DefaultClient, "GET", want)
				if whole := got.StatusCode == 200 && got.err == nil && got.body == "foo"; whole == (kind == "wrong") {
					t.Errorf("%s %q %v", got.Status, got.body, got.err)
				}
				w.later(1000 * time.Hour)
				do(t, http.DefaultClient, "GET", want)
				if n := w.asked("GET http://npm.test/t/foo.tgz"); (n == 1) != c.kept {
					t.Errorf("the tarball was asked for %d times", n)
				}
				if n := w.asked("GET http://npm.test/" + strings.Replace(name, "/", "%2f", 1)); n != 2 {
					t.Errorf("the packument was asked for %d times", n)
				}
				if a := do(t, http.DefaultClient, "GET", w.mirror("/npm/"+name+"/-/foo-9.9.9.tgz")); a.StatusCode != 404 {
					t.Errorf("no such version: %s", a.Status)
				}
			})
		}
	}
}

// TestRedirectsOfAnIndex: links are relative to where the page was found, and
// the index's credentials stay at its host.
func TestRedirectsOfAnIndex(t *testing.T) {
	w := newWorld(t)
	w.serve("pypi.test", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, map[string]string{"/simple/a/": "http://else.test/x/a/", "/simple/loop/": "/simple/loop/", "/simple/port/": "http://pypi.test:81/x/"}[r.URL.Path], 302)
	})
	w.serve("else.test", body200(`<a href="a-1.whl">`, "Content-Type", "text/html"))
	w.serve("pypi.test:81", body200("", "Content-Type", "text/html"))
	w.get(w.mirror("/pypi/simple/a/"))
	w.get(w.mirror("/pypi/files/a/a-1.whl"))
	w.get(w.mirror("/pypi/simple/port/"))
	for _, line := range []string{"GET http://pypi.test:81/x/", "GET http://else.test/x/a/", "GET http://else.test/x/a/a-1.whl"} {
		if r := w.request(line); r == nil || r.Header.Get("Authorization")+r.Header.Get("Referer") != "" {
			t.Errorf("%s: %v, %v", line, r, w.seen)
		}
	}
	if a := do(t, http.DefaultClient, "GET", w.mirror("/pypi/simple/loop/")); a.StatusCode != 502 || !strings.Contains(a.body, "redirected") {
		t.Errorf("%s %q", a.Status, a.body)
	}
	down := &http.Request{URL: &url.URL{Scheme: "http", Host: "x"}, Header: http.Header{}}
	from := &http.Request{URL: &url.URL{Scheme: "https", Host: "x"}}
	if err := checkRedirect(down, []*http.Request{from}); err == nil {
		t.Error("from https to http")
	}
	if err := checkRedirect(from.Clone(t.Context()), []*http.Request{down}); err != nil {
		t.Error(err)
	}
}
