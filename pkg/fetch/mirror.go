package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"fence/pkg/fetch/index"
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
	if strings.HasPrefix(path, "pypi/") && p.pypi.base == "" || strings.HasPrefix(path, "npm/") && p.npm.base == "" {
		http.NotFound(w, r)
	} else if project, ok := strings.CutPrefix(path, "pypi/simple/"); ok {
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

// page calls use with the text that w names. With anyAge a cached one will do
// that is not fresh any more. Few are used at a time: they may be large.
func (p *Proxy) page(ctx context.Context, w want, anyAge bool, use func(text []byte, header map[string]string) error) error {
	var from io.Reader
	var header map[string]string
	if e, f := p.store.open(w.key); anyAge && e != nil {
		defer f.Close()
		from, header = io.LimitReader(f, w.max), e.Header
	} else {
		if f != nil {
			f.Close()
		}
		host := hostOf(w.url)
		p.count(host, func(c *Count) { c.Requests++ })
		fl, first, leave := p.join(w)
		defer leave()
		if err := fl.wait(ctx, func() bool { return fl.done }); err != nil {
			return err
		}
		if !first || fl.cached {
			p.count(host, func(c *Count) { c.Hits++ })
		}
		from, header = fl.reader(ctx), fl.header
	}
	select {
	case p.pages <- struct{}{}:
		defer func() { <-p.pages }()
	case <-ctx.Done():
		return ctx.Err()
	}
	text, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	return use(text, header)
}

// pypiPage serves /TOKEN/pypi/simple/PROJECT/.
func (p *Proxy) pypiPage(w http.ResponseWriter, r *http.Request, project string) {
	if !index.IsProject(project) {
		http.NotFound(w, r)
		return
	}
	project = index.Normalize(project)
	wt := p.simpleWant(project)
	files := "/" + p.token + "/pypi/files/" + project + "/"
	kind, made := "text/html; charset=utf-8", []byte(nil)
	err := p.page(r.Context(), wt, false, func(text []byte, header map[string]string) error {
		page, err := index.ParseSimple(header[contentLocation], header["Content-Type"], text)
		switch {
		case err != nil:
			return err
		case page.IsJSON() && strings.Contains(r.Header.Get("Accept"), index.SimpleJSON):
			kind, made = index.SimpleJSON, page.JSON(files)
		default:
			made = page.HTML(files)
		}
		return nil
	})
	p.write(w, r, wt, kind, made, err)
}

// pypiFile serves /TOKEN/pypi/files/PROJECT/FILE.
func (p *Proxy) pypiFile(w http.ResponseWriter, r *http.Request, project, file string) {
	if !index.IsProject(project) || !index.IsFileName(file) {
		http.NotFound(w, r)
		return
	}
	p.file(w, r, p.pypi, p.simpleWant(project), func(text []byte, header map[string]string) (index.Source, bool) {
		page, err := index.ParseSimple(header[contentLocation], header["Content-Type"], text)
		if err != nil {
			return index.Source{}, false
		}
		return page.Find(file)
	})
}

func (p *Proxy) simpleWant(project string) want {
	u := p.pypi.base + "/" + index.Normalize(project) + "/"
	return want{key: "simple " + u, url: u, auth: p.pypi.auth, fresh: changeable, max: maxPage, page: true, follow: true,
		accept: index.SimpleJSON + ", " + index.SimpleHTML + ";q=0.2, text/html;q=0.1"}
}

// npmPath serves what is behind /TOKEN/npm/. Search, audit and ping are not
// there: a build does without.
func (p *Proxy) npmPath(w http.ResponseWriter, r *http.Request, path string) {
	name, version, ok := index.ParsePath(path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	wt := p.packumentWant(name, version != "" || strings.Contains(r.Header.Get("Accept"), index.Corgi))
	if version != "" {
		p.file(w, r, p.npm, wt, func(text []byte, header map[string]string) (index.Source, bool) {
			return index.FindTarball(header[contentLocation], text, version)
		})
		return
	}
	var kind string
	var made []byte
	err := p.page(r.Context(), wt, false, func(text []byte, header map[string]string) (err error) {
		kind = header["Content-Type"]
		made, err = index.RewritePackument(text, "http://"+p.Addr()+"/"+p.token+"/npm/", name)
		return err
	})
	p.write(w, r, wt, kind, made, err)
}

// packumentWant is all that the registry says of a package; short is what
// installing needs of it.
func (p *Proxy) packumentWant(name string, short bool) want {
	u := p.npm.base + "/" + strings.Replace(name, "/", "%2f", 1)
	w := want{key: "packument " + u, url: u, auth: p.npm.auth, fresh: changeable, max: maxPage, page: true, follow: true, accept: "application/json"}
	if short {
		w.key, w.accept = "corgi "+u, index.Corgi+", application/json;q=0.5"
	}
	return w
}

// file serves the file that find finds in the page. It looks in the cached page
// of whatever age, which is at least as new as the one that the client was
// shown, and then in a fresh one.
func (p *Proxy) file(w http.ResponseWriter, r *http.Request, up upstream, page want, find func(text []byte, header map[string]string) (index.Source, bool)) {
	for _, anyAge := range []bool{true, false} {
		var src index.Source
		var ok bool
		err := p.page(r.Context(), page, anyAge, func(text []byte, header map[string]string) error {
			src, ok = find(text, header)
			return nil
		})
		switch {
		case err != nil:
			p.fail(w, page, err)
			return
		case ok:
			p.serve(w, r, fileWant(up, src))
			return
		}
	}
	http.Error(w, "the index names no such file", http.StatusNotFound)
}

// fileWant is a file that an index names: compared with the index's digest,
// and without one asked for again like a page.
func fileWant(up upstream, src index.Source) want {
	w := want{key: "file " + src.Digest.String() + " " + src.URL, url: src.URL, auth: up.authFor(src.URL), digest: src.Digest, fresh: changeable, max: maxFile, follow: true}
	if !src.Digest.IsNone() {
		w.fresh = verified
	}
	return w
}

// write answers with a page that was made here of wt's, or why it was not.
func (p *Proxy) write(w http.ResponseWriter, r *http.Request, wt want, contentType string, text []byte, err error) {
	if err != nil {
		p.fail(w, wt, err)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	if r.Method != http.MethodHead {
		_, _ = p.counted(w, hostOf(wt.url)).Write(text)
	}
}
