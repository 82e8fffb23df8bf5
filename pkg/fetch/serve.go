package fetch

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"

	"fence/pkg/fetch/index"
)

func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	closed := p.ctx.Err() != nil
	if !closed {
		p.running.Add(1)
	}
	p.mu.Unlock()
	if closed {
		panic(http.ErrAbortHandler)
	}
	defer p.running.Done()
	switch {
	case r.Method != http.MethodConnect && !r.URL.IsAbs():
		p.mirror(w, r)
	case !p.mayProxy(r.Header.Get("Proxy-Authorization")):
		w.Header().Set("Proxy-Authenticate", `Basic realm="sifbuild"`)
		http.Error(w, "this proxy serves the image builds of the process that started it", http.StatusProxyAuthRequired)
	case r.Method == http.MethodConnect:
		p.tunnel(w, r)
	default:
		p.forward(w, r)
	}
}

func (p *Proxy) isToken(s string) bool {
	return subtle.ConstantTimeCompare([]byte(s), []byte(p.token)) == 1
}

func (p *Proxy) mayProxy(header string) bool {
	r := http.Request{Header: http.Header{"Authorization": {header}}}
	_, password, ok := r.BasicAuth()
	return ok && p.isToken(password)
}

// plain refuses requests that ask for more than to be given something.
func plain(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		http.Error(w, "this proxy only gets: GET and HEAD", http.StatusMethodNotAllowed)
	case r.ContentLength != 0:
		http.Error(w, "this proxy takes no request with a body", http.StatusBadRequest)
	default:
		return true
	}
	return false
}

// forward serves a request in absolute form (RFC 9112 3.2.2), which is apt's.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) {
	if !plain(w, r) {
		return
	}
	if r.URL.Scheme != "http" || r.URL.Host == "" || r.URL.User != nil {
		http.Error(w, "this proxy gets http URLs without credentials in them; for https use CONNECT", http.StatusBadRequest)
		return
	}
	if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || p.ownHost(r.URL.Hostname()) {
		p.count(r.URL.Host, func(c *Count) { c.Requests++; c.Upstream++ })
		p.through.ServeHTTP(p.counted(w, r.URL.Host), r)
		return
	}
	p.serve(w, r, forwardWant(*r.URL))
}

var (
	byHash   = regexp.MustCompile(`/by-hash/(SHA1|SHA256|SHA512)/([0-9a-f]+)$`)
	packages = regexp.MustCompile(`/(pool|Packages)/.*\.(deb|udeb|rpm)$`)
)

// forwardWant says how a URL of a forward request is fetched and kept: what
// apt's archives name by its digest (DebianRepository/Format, "by-hash") is
// compared with it, packages are never changed, all else may be.
func forwardWant(u url.URL) want {
	u.Fragment = ""
	u.Host = strings.TrimSuffix(strings.ToLower(u.Host), ":80")
	w := want{key: "get " + u.String(), url: u.String(), fresh: changeable, max: maxFile}
	if m := byHash.FindStringSubmatch(u.Path); m != nil {
		w.digest = index.NewDigest(m[1], m[2])
	}
	switch {
	case !w.digest.IsNone():
		w.fresh = verified
	case u.RawQuery == "" && packages.MatchString(u.Path):
		w.fresh = immutable
	}
	return w
}

// serve answers with what w names.
func (p *Proxy) serve(rw http.ResponseWriter, r *http.Request, w want) {
	host := hostOf(w.url)
	p.count(host, func(c *Count) { c.Requests++ })
	rw = p.counted(rw, host)
	if r.Method == http.MethodHead {
		p.head(rw, r, w)
		return
	}
	fl, first, leave := p.join(w)
	defer leave()
	err := fl.wait(r.Context(), func() bool {
		atOnce := !fl.cached && (fl.length >= 0 || r.ProtoAtLeast(1, 1)) // else the end could not be told from a break
		return fl.done || (fl.begun && atOnce)
	})
	if err != nil {
		return // the client has gone
	}
	fl.mu.Lock()
	header, length, cached, done, file, err := fl.header, fl.length, fl.cached, fl.done, fl.file, fl.err
	fl.mu.Unlock()
	if err != nil {
		p.fail(rw, w, err)
		return
	}
	if !first || cached {
		p.count(host, func(c *Count) { c.Hits++ })
	}
	if done {
		serveWhole(rw, r, header, io.NewSectionReader(file, 0, fl.size))
		return
	}
	give(rw, header)
	if length >= 0 {
		rw.Header().Set("Content-Length", fmt.Sprint(length))
	}
	rw.WriteHeader(http.StatusOK)
	if err := along(r.Context(), rw, fl); err != nil {
		p.log.Debug("a download broke off", "url", show(w.url), "error", err)
		panic(http.ErrAbortHandler) // closes the connection before the body's end
	}
}

// along sends a client fl's body, each part as soon as it is there.
func along(ctx context.Context, w http.ResponseWriter, fl *flight) error {
	flush := http.NewResponseController(w).Flush
	body, buf := fl.reader(ctx), make([]byte, 128<<10)
	for {
		if err := flush(); err != nil {
			return err
		}
		n, err := body.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			_, err = w.Write(buf[:n])
		}
		if err != nil {
			return err
		}
	}
}

func give(w http.ResponseWriter, header map[string]string) {
	w.Header().Set("Content-Type", "application/octet-stream") // else it would be guessed
	for k, v := range header {
		w.Header().Set(k, v)
	}
}

// serveWhole answers Range and conditional requests too.
func serveWhole(w http.ResponseWriter, r *http.Request, header map[string]string, body io.ReadSeeker) {
	give(w, header)
	changed, _ := http.ParseTime(header["Last-Modified"])
	http.ServeContent(w, r, "", changed, body)
}

// head answers from the cache, or asks upstream and keeps nothing.
func (p *Proxy) head(w http.ResponseWriter, r *http.Request, wt want) {
	if e, f := p.store.open(wt.key); e != nil {
		defer f.Close()
		if p.isFresh(e, wt) {
			p.count(hostOf(wt.url), func(c *Count) { c.Hits++ })
			serveWhole(w, r, e.Header, f)
			return
		}
	}
	resp, err := p.send(r.Context(), http.MethodHead, wt, nil)
	if err != nil {
		p.fail(w, wt, err)
		return
	}
	defer resp.Body.Close()
	give(w, pick(resp.Header))
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	w.WriteHeader(resp.StatusCode)
}

// fail answers with upstream's refusal, or says what went wrong.
func (p *Proxy) fail(w http.ResponseWriter, wt want, err error) {
	var no *refusal
	if errors.As(err, &no) {
		give(w, no.header)
		w.WriteHeader(no.status)
		_, _ = w.Write(no.body)
		return
	}
	http.Error(w, fmt.Sprintf("sifbuild's download proxy: getting %s: %v", show(wt.url), err), http.StatusBadGateway)
}

// passThrough serves what is not kept: the client's own headers go upstream.
func (p *Proxy) passThrough() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: p.transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Host = r.In.URL.Host
			r.Out.Header.Del("Upgrade")
			if r.Out.Header.Get("Accept-Encoding") == "" {
				r.Out.Header.Set("Accept-Encoding", "identity")
			}
		},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.fail(w, want{url: r.URL.String()}, err)
		},
	}
}

// ownHost is isOwn, remembered. Where it cannot be told, the host is this
// machine, unless the site's proxy connects to it and not this process.
func (p *Proxy) ownHost(host string) bool {
	p.mu.Lock()
	own, ok := p.own[host]
	p.mu.Unlock()
	if ok {
		return own
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.patience) // not the client's: it could end it
	defer cancel()
	own, err := p.isOwn(ctx, host)
	if err != nil {
		if via, err := p.site(&url.URL{Scheme: "http", Host: host}); err != nil || via == nil {
			return true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.own) >= most {
		clear(p.own)
	}
	p.own[host] = own
	return own
}

// isOwn reports whether host is this machine, where a build's own server may
// answer.
func isOwn(ctx context.Context, host string) (bool, error) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if name, err := os.Hostname(); host == "localhost" || strings.HasSuffix(host, ".localhost") || (err == nil && host == strings.ToLower(name)) {
		return true, nil
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = []netip.Addr{ip}
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return false, err
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	for _, ip := range ips {
		ip = ip.Unmap().WithZone("")
		if ip.IsLoopback() || ip.IsUnspecified() {
			return true, nil
		}
		for _, m := range mine {
			if n, ok := m.(*net.IPNet); ok && n.IP.Equal(ip.AsSlice()) {
				return true, nil
			}
		}
	}
	return false, nil
}

// counted counts what clients are sent.
func (p *Proxy) counted(w http.ResponseWriter, host string) http.ResponseWriter {
	return &countedWriter{w, func(n int) { p.count(host, func(c *Count) { c.ToClients += int64(n) }) }}
}

type countedWriter struct {
	http.ResponseWriter
	add func(int)
}

func (c *countedWriter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.add(n)
	return n, err
}

func (c *countedWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Host
}
