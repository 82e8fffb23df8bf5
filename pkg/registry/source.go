package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// A host is a registry or a mirror, as one that is asked: every request to it,
// and every one that it leads to (tokens, redirects), goes through its gate.
type host struct {
	c    *Client
	reg  name.Registry
	auth authn.Authenticator

	mu    sync.Mutex
	gate  *gate
	conns map[string]*http.Client // by repository: with its token
}

// errRedirect is a redirect that is not followed.
var errRedirect = errors.New("it redirects from https to http")

// RoundTrip asks, if the gate is open. The answer 429 is an error.
func (h *host) RoundTrip(req *http.Request) (*http.Response, error) {
	pull := req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/manifests/")
	h.mu.Lock()
	wait, closed := h.gate.admit(h.c.clock.Now(), pull)
	err := h.closed(closed)
	h.mu.Unlock()
	if err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	if err = h.c.clock.Sleep(req.Context(), wait); err == nil {
		var resp *http.Response
		if resp, err = h.c.exchange(req); err == nil {
			return h.answer(resp, pull)
		}
	}
	h.mu.Lock()
	h.gate.abandoned(pull) // whether it failed, fail says
	h.mu.Unlock()
	return nil, err
}

// answer takes note of an answer.
func (h *host) answer(resp *http.Response, pull bool) (*http.Response, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.c.clock.Now()
	after := retryAfter(resp.Header.Get("Retry-After"), now)
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		resp.Body.Close()
		return nil, h.closed(h.gate.refused(now, pull, after, resp.Header))
	case resp.StatusCode == http.StatusServiceUnavailable && after > 0:
		resp.Body.Close()
		return nil, h.closed(h.gate.failed(now, pull, after, errors.New("it is closed for now (503)")))
	case resp.StatusCode < 500:
		h.gate.answered(now, pull, resp.Header)
	default:
		h.gate.abandoned(pull)
	}
	return resp, nil
}

// closed is the error of a closed breaker, nil for none.
func (h *host) closed(b *breaker) error {
	switch {
	case b == nil:
		return nil
	case b.limited:
		return &RateLimited{Registry: show(h.reg), Until: b.until, Limit: b.limit}
	}
	return &Unreachable{Registry: show(h.reg), Until: b.until, Err: b.err}
}

// failed takes note of a request that came to nothing.
func (h *host) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate.failed(h.c.clock.Now(), false, 0, short(err))
}

// limited takes note of a registry that means 429 and says so in the text of
// another answer.
func (h *host) limited() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed(h.gate.refused(h.c.clock.Now(), false, 0, nil))
}

// client is what a repository is asked with: it has a token for it.
func (h *host) client(ctx context.Context, repo name.Repository) (*http.Client, error) {
	key := repo.RepositoryStr()
	unlock, err := h.c.flights.lock(ctx, h.reg.RegistryStr()+"/"+key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	h.mu.Lock()
	cl := h.conns[key]
	h.mu.Unlock()
	if cl != nil {
		return cl, nil
	}
	t, err := transport.NewWithContext(ctx, h.reg, h.auth, transport.NewUserAgent(h, "sifbuild"), []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	cl = &http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		switch last := via[len(via)-1]; {
		case len(via) >= 10:
			return fmt.Errorf("%d redirects", len(via))
		case last.URL.Scheme == "https" && req.URL.Scheme != "https":
			return errRedirect
		}
		req.Header.Del("Referer")
		return nil
	}}
	h.mu.Lock()
	h.conns[key] = cl
	h.mu.Unlock()
	return cl, nil
}

// forget drops what a repository was asked with, after a failure.
func (h *host) forget(repo name.Repository) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, repo.RepositoryStr())
}

// manifestTypes are what is taken for a manifest or an index. The last is that
// of 2014, which is refused with a word about it.
var manifestTypes = strings.Join([]string{string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2), string(types.DockerManifestSchema1Signed)}, ", ")

// send makes one request of the OCI distribution specification: kind is
// manifests or blobs, what a digest or, of a manifest, a tag. The answer is 200.
func (h *host) send(ctx context.Context, method string, repo name.Repository, kind, what string) (*http.Response, error) {
	cl, err := h.client(ctx, repo)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: h.reg.Scheme(), Host: h.reg.RegistryStr(), Path: "/v2/" + repo.RepositoryStr() + "/" + kind + "/" + what}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if kind == "manifests" {
		req.Header.Set("Accept", manifestTypes)
	}
	req.Header.Set("Accept-Encoding", "identity") // the digest is of what is sent
	resp, err := cl.Do(req)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// receive makes a request and gives its body to use.
func (h *host) receive(ctx context.Context, repo name.Repository, kind, what string, use func(io.Reader) error) error {
	resp, err := h.send(ctx, http.MethodGet, repo, kind, what)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return use(resp.Body)
}

// errStalled is a transfer that was given up.
var errStalled = errors.New("nothing, or next to nothing, came for too long")

const (
	// crawl is how many bytes have to come before the time of a transfer begins
	// anew: one that brings a byte now and then would take for ever.
	crawl = 256 << 10
	// wordMax is how long an answer may be, in bytes, that is nothing wanted.
	wordMax = 1 << 20
)

// exchange makes a request of any kind, for tokens too, and ends it and its
// answer when nothing comes for long.
func (c *Client) exchange(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	t := time.AfterFunc(c.stall, func() { cancel(errStalled) })
	w := &watched{ctx: ctx, end: func() { t.Stop(); cancel(nil) }, came: func() { t.Reset(c.stall) }}
	resp, err := c.wire.RoundTrip(req.WithContext(ctx))
	if err != nil {
		err = w.why(err)
		w.end()
		return nil, err
	}
	w.Reader, w.Closer = resp.Body, resp.Body
	if resp.StatusCode != http.StatusOK || req.URL.Path == "/v2/" {
		w.Reader, w.came = io.LimitReader(resp.Body, wordMax), func() {}
	}
	resp.Body = w
	return resp, nil
}

// watched is the body of an answer; came is called as long as it comes.
type watched struct {
	io.Reader
	io.Closer
	ctx       context.Context
	came, end func()
	n         int
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if w.n += n; w.n >= crawl {
		w.n = 0
		w.came()
	}
	return n, w.why(err)
}

func (w *watched) Close() error {
	defer w.end()
	return w.Closer.Close()
}

// why is what ended a transfer.
func (w *watched) why(err error) error {
	if err != nil && err != io.EOF && errors.Is(context.Cause(w.ctx), errStalled) {
		return errStalled
	}
	return err
}
