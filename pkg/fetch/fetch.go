// Package fetch is the way of the downloads of image builds: a proxy in the
// builder's process that asks upstream itself, and keeps what it got in a
// folder for the other builds.
//
// Builds run what a stranger wrote. They are given no folder to share, only
// requests to make (docs/decisions/014-downloads-through-a-proxy.md), and the
// proxy promises that
//   - what a build sends beside the method and the URL changes nothing of what
//     is kept: no header and no body of it reaches upstream on that way, and
//     requests that need them are passed through and not kept;
//   - a body is kept under the whole URL it came from, and only if it came
//     whole and is what the index, where there is one, says it is;
//   - nothing is kept of servers on this machine, which may be a build's own;
//   - a client never takes a cut or wrong body for a good one: it gets
//     upstream's error, a 502, or a connection that breaks.
//
// It does not promise that upstream is honest: signatures and digests are
// checked by apt, pip and npm as ever. And it is no fence: a build reaches
// through it what this process reaches, the network of the node.
package fetch

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Options are what New needs. Only Dir must be set.
type Options struct {
	Dir       string            // the cache, made where it does not exist; processes of several nodes may share it
	PyPI      string            // index URL of pip's, "" for none: pip is then told nothing; credentials in it go to its host only
	NPM       string            // registry URL of npm's; likewise
	Log       *slog.Logger      // nil discards
	Transport http.RoundTripper // nil for one that honours http_proxy, https_proxy and no_proxy
}

// Proxy serves builds on this machine until it is closed.
type Proxy struct {
	pypi, npm upstream
	log       *slog.Logger
	transport http.RoundTripper
	site      func(*url.URL) (*url.URL, error) // the site's own proxy for a URL, nil for none
	store     *store
	token     string
	listener  net.Listener
	server    *http.Server
	through   *httputil.ReverseProxy

	pages    chan struct{} // one for each page that is read and made
	now      func() time.Time
	sleep    func(context.Context, time.Duration) error
	patience time.Duration
	isOwn    func(ctx context.Context, host string) (bool, error)

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	flights map[string]*flight // by key
	hosts   map[string]*Count
	own     map[string]bool // by host, see ownHost
}

// upstream is an index or a registry.
type upstream struct {
	base string // without credentials and a last slash
	auth *url.Userinfo
}

// New starts a proxy on a port of 127.0.0.1 that the kernel chooses.
func New(o Options) (*Proxy, error) {
	p := &Proxy{
		log: o.Log, transport: o.Transport, site: httpproxy.FromEnvironment().ProxyFunc(),
		token: rand.Text(), pages: make(chan struct{}, 4), now: time.Now, sleep: sleep, patience: patience, isOwn: isOwn,
		flights: map[string]*flight{}, hosts: map[string]*Count{}, own: map[string]bool{},
	}
	var err error
	if p.pypi, err = parseUpstream(o.PyPI); err != nil {
		return nil, fmt.Errorf("the Python index: %w", err)
	}
	if p.npm, err = parseUpstream(o.NPM); err != nil {
		return nil, fmt.Errorf("the npm registry: %w", err)
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = func(r *http.Request) (*url.URL, error) { return p.site(r.URL) }
		t.MaxResponseHeaderBytes = 256 << 10
		t.MaxIdleConnsPerHost = 16
		p.transport = t
	}
	if p.store, err = openStore(o.Dir); err != nil {
		return nil, err
	}
	if p.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listening for downloads: %w", err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.through = p.passThrough()
	p.server = &http.Server{
		Handler: http.HandlerFunc(p.handle), MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: 30 * time.Second,
		BaseContext: func(net.Listener) context.Context { return p.ctx },
		ErrorLog:    slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	p.running.Go(func() { _ = p.server.Serve(p.listener) }) // until Close
	return p, nil
}

func parseUpstream(s string) (upstream, error) {
	if s == "" {
		return upstream{}, nil
	}
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return upstream{}, fmt.Errorf("%q is not an http or https URL", show(s))
	}
	auth := u.User
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return upstream{strings.TrimRight(u.String(), "/"), auth}, nil
}

// authFor is up's credentials if the URL is of its host.
func (up upstream) authFor(raw string) *url.Userinfo {
	a, err1 := url.Parse(up.base)
	b, err2 := url.Parse(raw)
	if err1 != nil || err2 != nil || a.Scheme != b.Scheme || a.Host != b.Host {
		return nil
	}
	return up.auth
}

// Addr is where the proxy listens: "127.0.0.1:PORT".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// AptConfig is a file for /etc/apt/apt.conf.d. apt sends https through the
// http proxy as well, by CONNECT.
func (p *Proxy) AptConfig() []byte {
	return fmt.Appendf(nil, "Acquire::http::Proxy \"http://x:%s@%s/\";\n"+
		"Acquire::http::Proxy::localhost \"DIRECT\";\nAcquire::http::Proxy::127.0.0.1 \"DIRECT\";\n", p.token, p.Addr())
}

// PipConfig is a pip.conf, nil without an index. Of a step that has http_proxy set, for pip and npm
// alike, no_proxy must name 127.0.0.1.
func (p *Proxy) PipConfig() []byte {
	if p.pypi.base == "" {
		return nil
	}
	return fmt.Appendf(nil, "[global]\nindex-url = http://%s/%s/pypi/simple/\ntrusted-host = 127.0.0.1\n", p.Addr(), p.token)
}

// NpmConfig is a global npmrc, nil without a registry. npm must not write this proxy's URLs into lock
// files, and its audit sends a body, which the proxy takes none of. The token
// is there for the URLs of lock files: npm puts their path, without the
// registry's, behind the registry's host.
func (p *Proxy) NpmConfig() []byte {
	if p.npm.base == "" {
		return nil
	}
	return fmt.Appendf(nil, "registry=http://%[1]s/%[2]s/npm/\n//%[1]s/:_authToken=%[2]s\n"+
		"omit-lockfile-registry-resolved=true\naudit=false\n", p.Addr(), p.token)
}

// Count is what the proxy did.
type Count struct {
	Requests     int64 // of clients, that were let in
	Hits         int64 // of them, that had no body of their own fetched
	Upstream     int64 // requests made
	FromUpstream int64 // bytes of bodies; of compressed pages, when unpacked
	ToClients    int64 // bytes of bodies
}

// Stats is what the proxy did in all and for each upstream host. CONNECT
// counts as a request and its bytes not at all.
type Stats struct {
	Count
	Hosts map[string]Count
}

// Stats is what the proxy did so far.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Hosts: map[string]Count{}}
	for host, c := range p.hosts {
		s.Hosts[host] = *c
		s.Requests += c.Requests
		s.Hits += c.Hits
		s.Upstream += c.Upstream
		s.FromUpstream += c.FromUpstream
		s.ToClients += c.ToClients
	}
	return s
}

// most is how many hosts are remembered: builds can name any number.
const most = 500

func (p *Proxy) count(host string, add func(*Count)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.hosts[host]
	if c == nil {
		if len(p.hosts) >= most {
			host = "others"
		}
		c = p.hosts[host]
	}
	if c == nil {
		c = &Count{}
		p.hosts[host] = c
	}
	add(c)
}

// Close ends the proxy with all that is under way.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	err := p.server.Close()
	p.running.Wait()
	if t, ok := p.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
