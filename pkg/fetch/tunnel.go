package fetch

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// tunnel serves CONNECT (RFC 9110 9.3.6), through the site's proxy if there is
// one for https. What goes through is not looked at.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	if _, port, err := net.SplitHostPort(r.Host); err != nil || port == "" {
		http.Error(w, "CONNECT needs HOST:PORT", http.StatusBadRequest)
		return
	}
	p.count(r.Host, func(c *Count) { c.Requests++ })
	up, from, err := p.dial(r.Context(), r.Host)
	if err != nil {
		http.Error(w, fmt.Sprintf("sifbuild's download proxy: connecting to %s: %v", r.Host, err), http.StatusBadGateway)
		return
	}
	defer up.Close()
	down, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	defer context.AfterFunc(p.ctx, func() { up.Close(); down.Close() })()
	if _, err := io.WriteString(down, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(up, buf) // how a tunnel ends is no news to anybody
		closeWrite(up)
	}()
	_, _ = io.Copy(down, from)
	closeWrite(down)
	<-ended
}

func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
	}
}

// dial connects to addr. What comes from there is read from the reader.
func (p *Proxy) dial(ctx context.Context, addr string) (net.Conn, io.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	via, err := p.site(&url.URL{Scheme: "https", Host: addr})
	if err != nil {
		return nil, nil, err
	}
	if via == nil {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		return c, c, err
	}
	port := map[string]string{"http": "80", "https": "443"}[via.Scheme]
	if port == "" {
		return nil, nil, fmt.Errorf("https_proxy is of the kind %s, which is not known here; http and https are", via.Scheme)
	}
	if via.Port() != "" {
		port = via.Port()
	}
	site := net.JoinHostPort(via.Hostname(), port)
	var c net.Conn
	if via.Scheme == "https" {
		c, err = (&tls.Dialer{}).DialContext(ctx, "tcp", site)
	} else {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", site)
	}
	if err != nil {
		return nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if via.User != nil {
		password, _ := via.User.Password()
		auth := http.Request{Header: http.Header{}}
		auth.SetBasicAuth(via.User.Username(), password)
		req.Header.Set("Proxy-Authorization", auth.Header.Get("Authorization"))
	}
	from := bufio.NewReader(c)
	err = req.Write(c)
	if err == nil {
		var resp *http.Response
		if resp, err = http.ReadResponse(from, req); err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("the site's proxy answers %s", resp.Status)
		}
	}
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, from, nil
}
