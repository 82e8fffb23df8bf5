package base

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// RateLimited is a registry's answer that there were too many requests. It is
// not tried again here: whoever waits should wait for all builds that need
// this registry.
type RateLimited struct {
	Registry  string
	After     time.Duration // until the registry wants to hear again; 0 if it does not say
	Limit     string        // as the registry writes it, such as 100;w=21600 (in seconds); may be ""
	Remaining string
}

func (e *RateLimited) Error() string {
	text := "the registry " + e.Registry + " takes no more requests for now"
	if e.Limit != "" {
		text += " (its limit is " + e.Limit + ")"
	}
	if e.After > 0 {
		text += ": try again in " + e.After.String()
	} else {
		text += ": try again later"
	}
	return text + ", log in with docker login, or give the image as a local base with --base"
}

// Unreachable is a registry to which there is no way from this node, or that
// failed again and again, in a way that may pass.
type Unreachable struct {
	Registry string
	Tries    int
	Err      error // the last
}

func (e *Unreachable) Error() string {
	text := fmt.Sprintf("the registry %s cannot be reached from this node", e.Registry)
	if e.Tries > 1 {
		text = fmt.Sprintf("the registry %s failed %d times, the last with", e.Registry, e.Tries)
	}
	return fmt.Sprintf("%s: %v: try again where it can be reached, or give the image as a local base with --base", text, e.Err)
}

func (e *Unreachable) Unwrap() error { return e.Err }

// tries is how often something transient is tried; patience is how long the
// first wait is at most, and doubles; stall is how long a transfer may stand still.
const (
	tries    = 3
	patience = 2 * time.Second
	stall    = time.Minute
)

// remotes are the registries in use.
type remotes struct {
	pause func(context.Context, time.Duration) error // waits
	mu    sync.Mutex
	known map[string]*remote.Puller // by registry; keeps the tokens
	wire  http.RoundTripper
}

func newRemotes() *remotes {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = stall
	t.MaxIdleConnsPerHost = 8
	return &remotes{known: map[string]*remote.Puller{}, wire: limits{t}, pause: func(ctx context.Context, d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}}
}

// limits makes an error of the answer 429, whose headers are lost further up.
type limits struct{ http.RoundTripper }

func (l limits) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests {
		return resp, err
	}
	resp.Body.Close()
	return nil, &RateLimited{Registry: req.URL.Host, After: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
		Limit: resp.Header.Get("Ratelimit-Limit"), Remaining: resp.Header.Get("Ratelimit-Remaining")}
}

// retryAfter reads the header of that name, RFC 9110 10.2.3: seconds or a date.
func retryAfter(s string, now time.Time) time.Duration {
	if sec, err := strconv.Atoi(s); err == nil && sec > 0 && sec < 1<<30 {
		return time.Duration(sec) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil && at.After(now) {
		return at.Sub(now).Round(time.Second)
	}
	return 0
}

// do asks a registry, again if what went wrong is likely to pass.
func (r *remotes) do(ctx context.Context, reg name.Registry, ask func(*remote.Puller) error) error {
	var err error
	for n := range tries {
		if n > 0 {
			// Full jitter: many builds that failed together do not come back together.
			if err := r.pause(ctx, rand.N(patience<<(n-1))); err != nil {
				return err
			}
		}
		var p *remote.Puller
		if p, err = r.puller(reg); err != nil {
			return err
		}
		if err = ask(p); err == nil || ctx.Err() != nil {
			return errCtx(ctx, err)
		}
		if !transient(err) {
			return plain(reg, err)
		}
		r.forget(reg, p)
	}
	return &Unreachable{reg.RegistryStr(), tries, short(err)}
}

func (r *remotes) puller(reg name.Registry) (*remote.Puller, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.known[reg.RegistryStr()]; ok {
		return p, nil
	}
	p, err := remote.NewPuller(remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithTransport(r.wire), remote.WithUserAgent("sifbuild"),
		// Tried again here, where a whole transfer can be, and not below it, one request at a time.
		remote.WithRetryPredicate(func(error) bool { return false }), remote.WithRetryStatusCodes(), remote.WithRetryBackoff(remote.Backoff{Steps: 1}))
	if err == nil {
		r.known[reg.RegistryStr()] = p
	}
	return p, err
}

// forget drops a connection's state after a failure.
func (r *remotes) forget(reg name.Registry, p *remote.Puller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[reg.RegistryStr()] == p {
		delete(r.known, reg.RegistryStr())
	}
}

// transient says whether trying again may help.
func transient(err error) bool {
	var limited *RateLimited
	var status *transport.Error
	var dns *net.DNSError
	var timeout net.Error
	var bad wrong
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &limited), errors.As(err, &cert), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return false
	case errors.As(err, &status):
		return status.StatusCode >= 500 || status.StatusCode == http.StatusRequestTimeout
	case errors.As(err, &dns):
		return dns.IsTemporary || dns.IsTimeout
	case errors.As(err, &bad), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, net.ErrClosed), errors.Is(err, errStalled):
		return true
	case errors.As(err, &timeout):
		return timeout.Timeout()
	}
	return false
}

// plain says what a registry's refusal means.
func plain(reg name.Registry, err error) error {
	var limited *RateLimited
	var status *transport.Error
	var dialed *net.OpError
	switch {
	case errors.As(err, &limited):
		return limited
	case errors.As(err, &dialed):
		return &Unreachable{reg.RegistryStr(), 1, short(err)}
	case errors.As(err, &status) && status.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the registry %s has no such image or tag: check the name in the Dockerfile", reg.RegistryStr())
	case errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden):
		return fmt.Errorf("the registry %s does not give it out (%d): check the name, or log in with docker login %[1]s", reg.RegistryStr(), status.StatusCode)
	}
	return fmt.Errorf("the registry %s: %w", reg.RegistryStr(), short(err))
}

// short is a registry's error on one line, without a page of HTML.
func short(err error) error {
	var status *transport.Error
	if !errors.As(err, &status) {
		return err
	}
	text := fmt.Sprintf("status %d", status.StatusCode)
	if len(status.Errors) > 0 {
		text += fmt.Sprintf(", %s", status.Errors[0].Code)
	}
	if status.Request != nil {
		text = fmt.Sprintf("%s of %s: %s", status.Request.Method, status.Request.URL.Path, text)
	}
	return errors.New(text)
}
