package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fence/pkg/fetch/index"
)

// A want is one thing to get from upstream.
type want struct {
	key    string        // of the cache; its first word keeps the kinds apart
	url    string        // http or https, without credentials
	accept string        // the Accept header, "" for none
	auth   *url.Userinfo // the index's own, for URLs at the index's host only
	digest index.Digest  // what an index says of it
	fresh  time.Duration // how long the cached body is served without asking upstream
	max    int64         // a longer body is an error
	page   bool          // text: may be compressed on its way
	follow bool          // redirects are followed, not passed on
}

const (
	changeable = time.Minute           // an index: builds side by side make one request
	immutable  = 24 * time.Hour        // what is never changed, says custom alone
	verified   = 100 * 365 * immutable // compared with a digest that was part of the key

	maxPage = 64 << 20 // bytes; npm's largest abbreviated packuments have some 10 MB
	maxFile = 16 << 30

	tries     = 3                // of a request that is answered 429 or 503
	patience  = 30 * time.Second // without a byte from upstream
	longest   = 15 * time.Second // that a Retry-After is obeyed here; a longer one is for the client, who would give up
	userAgent = "fence-fetch"    // the client's own says which image is built
)

var (
	errStalled = errors.New("upstream sends nothing any more")
	errStop    = errors.New("redirected to where it will not be fetched from")
)

// send makes one request of upstream, again when it is told to come later (429
// and 503, three times in all) or there is no answer (twice in all). The last
// answer is returned, whatever its status. more are headers to add.
func (p *Proxy) send(ctx context.Context, method string, w want, more map[string]string) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := p.once(ctx, method, w, more)
		switch {
		case ctx.Err() != nil || try == tries || (err != nil && try == 2) || errors.Is(err, errStop):
			return resp, err
		case err == nil && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable:
			return resp, nil
		}
		after := ""
		if resp != nil {
			after = resp.Header.Get("Retry-After")
		}
		wait := delay(after, p.now(), try, rand.Float64())
		if wait > longest {
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		p.log.Debug("asking again", "url", show(w.url), "wait", wait, "error", err)
		if err := p.sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// delay is how long to wait after the try'th request: what Retry-After says
// (seconds or a date, RFC 9110 10.2.3), else half a second, doubled each time;
// and up to half as much again, so that builds do not come back as one.
func delay(after string, now time.Time, try int, jitter float64) time.Duration {
	wait := 250 * time.Millisecond << try
	if s, err := strconv.Atoi(after); err == nil && s >= 0 && s < 1e9 {
		wait = time.Duration(s) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		wait = max(at.Sub(now), 0)
	}
	return wait + time.Duration(jitter*float64(wait)/2)
}

// once makes one request. Its context ends when upstream has sent nothing for
// p.patience, also while the body is read; the error is then errStalled.
func (p *Proxy) once(ctx context.Context, method string, w want, more map[string]string) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, method, w.url, nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	if w.accept != "" {
		req.Header.Set("Accept", w.accept)
	}
	if !w.page {
		req.Header.Set("Accept-Encoding", "identity") // lengths and digests are of what is sent
	}
	if w.auth != nil {
		password, _ := w.auth.Password()
		req.SetBasicAuth(w.auth.Username(), password)
	}
	for k, v := range more {
		req.Header.Set(k, v)
	}
	client := &http.Client{Transport: p.transport, CheckRedirect: checkRedirect}
	if !w.follow {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	timer := time.AfterFunc(p.patience, func() { cancel(errStalled) })
	resp, err := client.Do(req)
	host := req.URL.Host
	p.count(host, func(c *Count) { c.Upstream++ })
	if err != nil {
		timer.Stop()
		cancel(nil)
		if context.Cause(ctx) == errStalled {
			err = errStalled
		}
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the caller names the URL, without its query
		}
		return nil, err
	}
	resp.Body = &body{resp.Body, func(n int, err error) error {
		if n > 0 {
			timer.Reset(p.patience)
			p.count(host, func(c *Count) { c.FromUpstream += int64(n) })
		}
		if err != nil && context.Cause(ctx) == errStalled {
			return errStalled
		}
		return err
	}, func() { timer.Stop(); cancel(nil) }}
	return resp, nil
}

// checkRedirect follows five times, never from https to http, and takes no
// credentials to another host.
func checkRedirect(req *http.Request, via []*http.Request) error {
	last := via[len(via)-1]
	if len(via) > 5 || (last.URL.Scheme == "https" && req.URL.Scheme != "https") {
		return errStop
	}
	if req.URL.Scheme != via[0].URL.Scheme || req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	req.Header.Del("Referer")
	return nil
}

// body is a response's body that says what is read of it.
type body struct {
	io.ReadCloser
	read  func(int, error) error
	close func()
}

func (b *body) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf)
	return n, b.read(n, err)
}

func (b *body) Close() error {
	defer b.close()
	return b.ReadCloser.Close()
}

// framed reports whether the end of resp's body can be told from a connection
// that broke.
func framed(resp *http.Response) bool {
	return resp.ContentLength >= 0 || resp.ProtoMajor >= 2 || resp.Uncompressed || len(resp.TransferEncoding) > 0
}

// mayKeep reports whether resp's body, whole and right, may be kept: unless it
// says otherwise (RFC 9111 5.2.2), or is some gateway's page in place of a
// package. Vary is of no matter: requests for one key are all the same.
func mayKeep(w want, resp *http.Response) bool {
	switch {
	case !w.digest.IsNone():
		return true
	case w.fresh == immutable && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html"):
		return false
	}
	for _, line := range resp.Header.Values("Cache-Control") {
		for word := range strings.SplitSeq(strings.ToLower(line), ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(word), "=")
			if name == "no-store" || name == "private" {
				return false
			}
		}
	}
	return true
}

// continues checks that resp is the rest of a body of length bytes (-1 for
// unknown) from the offset on.
func continues(resp *http.Response, offset, length int64) error {
	var first, last, total int64
	n, _ := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &total)
	switch {
	case resp.StatusCode != http.StatusPartialContent:
		return fmt.Errorf("upstream answers %s to a request for the rest", resp.Status)
	case n != 3 || first != offset || last != total-1 || (length >= 0 && total != length):
		return fmt.Errorf("upstream sends another part than the rest: %q", resp.Header.Get("Content-Range"))
	}
	return nil
}

// show is a URL for people: without what may be secret.
func show(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "?"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
