package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// mirror serves the paths of the https indexes:
//
//	/TOKEN/pypi/simple/PROJECT/       the project's page, HTML (PEP 503) or JSON (PEP 691)
//	/TOKEN/pypi/files/PROJECT/FILE    a file of that page, or its metadata (PEP 658)
//	/TOKEN/npm/[@SCOPE/]NAME          the packument
//	/TOKEN/npm/[@SCOPE/]NAME/-/FILE   a version's tarball
//
// npm's may come without /TOKEN/npm and with the token as its bearer. A path
// never carries a URL: files are looked up in the page that names them.
func (p *Proxy) mirror(w http.ResponseWriter, r *http.Request) {
	var parts []string
	for _, part := range strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/") {
		part, err := url.PathUnescape(part)
		if err != nil {
			http.Error(w, "not a path", http.StatusBadRequest)
			return
		}
		parts = append(parts, part)
	}
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case p.isToken(parts[0]):
		parts = parts[1:]
	case p.isToken(bearer):
		parts = append([]string{"npm"}, parts...)
	default:
		http.Error(w, "this proxy serves the image builds of the process that started it", http.StatusForbidden)
		return
	}
	if !plain(w, r) {
		return
	}
	path := strings.Join(parts, "/")
	if project, ok := strings.CutPrefix(path, "pypi/simple/"); ok {
		p.pypiPage(w, r, strings.TrimSuffix(project, "/"))
	} else if file, ok := strings.CutPrefix(path, "pypi/files/"); ok {
		project, name, _ := strings.Cut(file, "/")
		p.pypiFile(w, r, project, name)
	} else if name, ok := strings.CutPrefix(path, "npm/"); ok {
		p.npmPath(w, r, name)
	} else {
		http.NotFound(w, r)
	}
}

// page is the text that w names. With anyAge a cached one will do that is not
// fresh any more.
func (p *Proxy) page(ctx context.Context, w want, anyAge bool) (text []byte, header map[string]string, err error) {
	if anyAge {
		if e, f := p.store.open(w.key); e != nil {
			defer f.Close()
			text, err := io.ReadAll(io.LimitReader(f, w.max))
			return text, e.Header, err
		}
	}
	host := hostOf(w.url)
	p.count(host, func(c *Count) { c.Requests++ })
	fl, first, leave := p.join(w)
	defer leave()
	if text, err = io.ReadAll(fl.reader(ctx)); err != nil {
		return nil, nil, err
	}
	if !first || fl.cached {
		p.count(host, func(c *Count) { c.Hits++ })
	}
	return text, fl.header, nil
}

// lookUp finds what find looks for in the cached page of whatever age, which
// is at least as new as the one that the client was shown, or in a fresh one.
func (p *Proxy) lookUp(ctx context.Context, w want, find func(text []byte, header map[string]string) (want, bool)) (found want, ok bool, err error) {
	for _, anyAge := range []bool{true, false} {
		text, header, err := p.page(ctx, w, anyAge)
		if err != nil {
			return want{}, false, err
		}
		if found, ok := find(text, header); ok {
			return found, true, nil
		}
	}
	return want{}, false, nil
}

// fileWant is a file that an index names: compared with the index's digest,
// and without one asked for again like a page.
func fileWant(up upstream, url string, d digest) want {
	w := want{key: "file " + d.String() + " " + url, url: url, auth: up.authFor(url), digest: d, fresh: changeable, max: maxFile, follow: true}
	if d != (digest{}) {
		w.fresh = verified
	}
	return w
}

// link resolves a file's URL in the page base. Without a digest a file of an
// https page must be of https too.
func link(base *url.URL, ref string, d digest) (*url.URL, bool) {
	u, err := base.Parse(ref)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, false
	}
	safe := u.Scheme == "https" || (u.Scheme == "http" && (base.Scheme == "http" || d != (digest{})))
	return u, safe
}

// write answers with a page that was made here.
func (p *Proxy) write(w http.ResponseWriter, r *http.Request, host, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	if r.Method != http.MethodHead {
		_, _ = p.counted(w, host).Write(text)
	}
}
