package fetch

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestThirtySixClientsMakeOneRequest(t *testing.T) {
	w := newWorld(t)
	text := strings.Repeat("0123456789", 200_000)
	half := make(chan struct{})
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "2000000")
		io.WriteString(rw, text[:1_000_000])
		rw.(http.Flusher).Flush()
		<-half
		io.WriteString(rw, text[1_000_000:])
	})
	const n = 36
	var reading, all sync.WaitGroup
	reading.Add(n)
	for i := range n {
		all.Go(func() {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://deb.test/pool/a.deb", nil)
			resp, err := w.client().Do(req)
			if err != nil {
				t.Error(err)
				reading.Done()
				return
			}
			defer resp.Body.Close()
			// They read while upstream is still in the middle of it.
			if _, err := io.CopyN(io.Discard, resp.Body, 999_000); err != nil {
				t.Error(err)
			}
			reading.Done()
			if i < 5 {
				leave() // the first, too, whose request began it
				return
			}
			rest, err := io.ReadAll(resp.Body)
			if err != nil || string(rest) != text[999_000:] {
				t.Errorf("client %d: %d bytes, %v", i, len(rest), err)
			}
		})
	}
	reading.Wait()
	close(half)
	all.Wait()
	w.get("http://deb.test/pool/a.deb")
	if got := w.asked("GET http://deb.test/pool/a.deb"); got != 1 {
		t.Errorf("upstream was asked %d times", got)
	}
	if s := w.proxy.Stats(); s.FromUpstream != 2_000_000 || s.Requests != n+1 || s.Hits != n {
		t.Errorf("%+v", s)
	}
}

func TestADownloadThatNobodyWantsEnds(t *testing.T) {
	w := newWorld(t)
	w.proxy.patience = time.Hour // it is not this that ends it
	gone := make(chan struct{})
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "1000")
		io.WriteString(rw, "begun")
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	})
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://deb.test/pool/a.deb", nil)
	resp, err := w.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	<-gone
	resp.Body.Close()
}

// TestOneThatComesAfterTheLast begins anew: what nobody wanted any more is
// about to end.
func TestOneThatComesAfterTheLast(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	u, _ := url.Parse(deb)
	for range 2 {
		_, first, leave := w.proxy.join(forwardWant(*u))
		if !first {
			t.Error("it is to wait for what was given up")
		}
		leave()
	}
}

// TestBodiesThatBreakOff has upstreams that stop in the middle, one way or
// another. What comes whole in the end is kept; else the client sees an error,
// and nothing is kept.
func TestBodiesThatBreakOff(t *testing.T) {
	const text = "0123456789"
	cut := func(rw http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }
	stall := func(rw http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for _, c := range []struct {
		name   string
		header []string // of the first answer
		stop   http.HandlerFunc
		second http.HandlerFunc
		want   string // the second request's Range; "-" for no second request
		whole  bool
	}{
		{"resumed by ETag", []string{"ETag", `"a"`}, cut, body200(text, "ETag", `"a"`), "bytes=5-", true},
		{"resumed by date", []string{"Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT"}, cut, func(rw http.ResponseWriter, r *http.Request) {
			http.ServeContent(rw, r, "", time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC), strings.NewReader(text))
		}, "bytes=5-", true},
		{"stalled, resumed", []string{"ETag", `"a"`}, stall, body200(text, "ETag", `"a"`), "bytes=5-", true},
		{"changed meanwhile", []string{"ETag", `"a"`}, cut, body200(text, "ETag", `"b"`), "bytes=5-", false},
		{"not a part", []string{"ETag", `"a"`}, cut, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Range", "bytes 5-9/10")
			io.WriteString(rw, text[:5])
		}, "bytes=5-", false},
		{"a weak ETag", []string{"ETag", `W/"a"`}, cut, body200(text), "-", false},
		{"nothing to know it by", nil, cut, body200(text), "-", false},
		{"another part", []string{"ETag", `"a"`}, cut, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Range", "bytes 4-9/10")
			rw.WriteHeader(206)
			io.WriteString(rw, text[4:])
		}, "bytes=5-", false},
		{"another length", []string{"ETag", `"a"`}, cut, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Range", "bytes 5-10/11")
			rw.WriteHeader(206)
			io.WriteString(rw, text[4:])
		}, "bytes=5-", false},
		{"broken twice", []string{"ETag", `"a"`}, cut, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Range", "bytes 5-9/10")
			rw.WriteHeader(206)
			io.WriteString(rw, text[5:7])
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "bytes=5-", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			if strings.HasPrefix(c.name, "stalled") {
				w.proxy.patience = 2 * time.Second
			}
			first := true
			second := ""
			w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
				if !first {
					second = r.Header.Get("Range")
					c.second(rw, r)
					return
				}
				first = false
				for i := 0; i < len(c.header); i += 2 {
					rw.Header().Set(c.header[i], c.header[i+1])
				}
				rw.Header().Set("Content-Length", "10")
				io.WriteString(rw, text[:5])
				rw.(http.Flusher).Flush()
				c.stop(rw, r)
			})
			a := do(t, w.client(), "GET", "http://deb.test/pool/a.deb")
			if whole := a.err == nil && a.body == text; whole != c.whole {
				t.Errorf("%s %q, %v", a.Status, a.body, a.err)
			}
			if !c.whole && a.err == nil && a.StatusCode == 200 {
				t.Errorf("a cut body was taken for a whole one: %s %q", a.Status, a.body)
			}
			if got := second; got != c.want && (c.want != "-" || got != "") {
				t.Errorf("the second request was for %q, not %q", got, c.want)
			}
			if e, f := w.proxy.store.open("get http://deb.test/pool/a.deb"); (e != nil) != c.whole {
				t.Errorf("kept: %v", e)
			} else if f != nil {
				f.Close()
			}
		})
	}
}

func TestAnUpstreamThatNeverAnswers(t *testing.T) {
	w := newWorld(t)
	w.proxy.patience = 50 * time.Millisecond
	w.serve("deb.test", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	a := do(t, w.client(), "GET", "http://deb.test/pool/a.deb")
	if a.StatusCode != 502 || a.body != "sifbuild's download proxy: getting http://deb.test/pool/a.deb: upstream sends nothing any more\n" {
		t.Errorf("%s %q", a.Status, a.body)
	}
	if n := w.asked("GET http://deb.test/pool/a.deb"); n != 2 {
		t.Errorf("asked %d times", n)
	}
	if a := do(t, w.client(), "GET", "http://nowhere.test/"); a.StatusCode != 502 || !strings.Contains(a.body, "no such host") {
		t.Errorf("%s %q", a.Status, a.body)
	}
}

// TestBodiesWithoutALength: an end that cannot be told from a break is none.
func TestBodiesWithoutALength(t *testing.T) {
	w := newWorld(t)
	raw := func(text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			c, _, _ := http.NewResponseController(rw).Hijack()
			io.WriteString(c, text)
			c.Close()
		}
	}
	w.serve("open.test", raw("HTTP/1.0 200 OK\r\n\r\nhalf of it"))
	if a := do(t, w.client(), "GET", "http://open.test/pool/a.deb"); a.StatusCode != 502 || !strings.Contains(a.body, "unknown length") {
		t.Errorf("%s %q", a.Status, a.body)
	}
	w.serve("short.test", raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"))
	if a := do(t, w.client(), "GET", "http://short.test/pool/a.deb"); a.err == nil && a.StatusCode == 200 {
		t.Errorf("%s %q", a.Status, a.body)
	}
	w.serve("chunked.test", raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n"))
	if a := w.get("http://chunked.test/pool/a.deb"); a.body != "whole" {
		t.Errorf("%q", a.body)
	}
	// A client of HTTP/1.0 is sent nothing before the length is known.
	resp := w.raw("GET http://chunked.test/other HTTP/1.0\r\nProxy-Authorization: " + basic("x", w.proxy.token) + "\r\n\r\n")
	if resp.ContentLength != 5 {
		t.Errorf("%d bytes, says the answer", resp.ContentLength)
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", "1000")
		io.WriteString(rw, "begun")
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://deb.test/pool/a.deb", nil)
	resp, err := w.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.proxy.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the body ended well")
	}
}
