package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// corgi is the media type of the packument that installing needs.
const corgi = "application/vnd.npm.install-v1+json"

var (
	// npmName is [@SCOPE/]NAME, and with /-/FILE a tarball's. Names of before
	// 2017 may have capitals.
	npmName    = regexp.MustCompile(`^((?:@[A-Za-z0-9~_-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]*)(?:/-/([^/]+)\.tgz)?$`)
	npmVersion = regexp.MustCompile(`^[0-9][0-9A-Za-z.+-]*$`)
)

func (p *Proxy) npmPath(w http.ResponseWriter, r *http.Request, path string) {
	m := npmName.FindStringSubmatch(path)
	if m == nil || len(path) > 400 {
		http.NotFound(w, r) // search, audit, ping: a build does without
		return
	}
	name, version := m[1], ""
	if m[2] != "" {
		var ok bool
		if version, ok = strings.CutPrefix(m[2], unscoped(name)+"-"); !ok {
			http.NotFound(w, r)
			return
		}
	}
	short := version != "" || strings.Contains(r.Header.Get("Accept"), corgi)
	wt := p.packumentWant(name, short)
	if version == "" {
		text, header, err := p.page(r.Context(), wt, false)
		if err == nil {
			text, err = rewritePackument(text, "http://"+p.Addr()+"/"+p.token+"/npm/"+name+"/-/"+unscoped(name)+"-")
		}
		if err != nil {
			p.fail(w, wt, err)
			return
		}
		p.write(w, r, hostOf(wt.url), header["Content-Type"], text)
		return
	}
	found, ok, err := p.lookUp(r.Context(), wt, func(text []byte, header map[string]string) (want, bool) {
		u, d, ok := findTarball(header[contentLocation], text, version)
		return fileWant(p.npm, u, d), ok
	})
	switch {
	case err != nil:
		p.fail(w, wt, err)
	case !ok:
		http.Error(w, "the registry names no such version", http.StatusNotFound)
	default:
		p.serve(w, r, found)
	}
}

// packumentWant is all that the registry says of a package; short is what
// installing needs of it, by the form that registry.npmjs.org calls corgi.
func (p *Proxy) packumentWant(name string, short bool) want {
	u := p.npm.base + "/" + strings.Replace(name, "/", "%2f", 1)
	w := want{key: "packument " + u, url: u, auth: p.npm.auth, fresh: changeable, max: maxPage, page: true, follow: true, accept: "application/json"}
	if short {
		w.key, w.accept = "corgi "+u, corgi+", application/json;q=0.5"
	}
	return w
}

func unscoped(name string) string { return name[strings.LastIndex(name, "/")+1:] }

type object = map[string]json.RawMessage

// versions calls do with each version of a packument that has a tarball, and
// gives the packument without them.
func versions(text []byte, do func(version string, body, dist object)) (object, error) {
	var doc object
	var all map[string]object
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("the registry's answer is no packument: %w", err)
	}
	if doc == nil {
		return nil, errors.New("the registry's answer is no packument, but null")
	}
	if doc["versions"] != nil { // a package that was taken back has none
		if err := json.Unmarshal(doc["versions"], &all); err != nil {
			return nil, fmt.Errorf("the versions of the registry's packument: %w", err)
		}
	}
	delete(doc, "versions")
	for version, body := range all {
		var dist object
		if npmVersion.MatchString(version) && json.Unmarshal(body["dist"], &dist) == nil && dist != nil {
			do(version, body, dist)
		}
	}
	return doc, nil
}

// rewritePackument puts prefix VERSION.tgz in place of the tarballs' URLs.
func rewritePackument(text []byte, prefix string) ([]byte, error) {
	kept := map[string]object{}
	doc, err := versions(text, func(version string, body, dist object) {
		dist["tarball"] = encode(prefix + url.PathEscape(version) + ".tgz")
		body["dist"] = encode(dist)
		kept[version] = body
	})
	if err != nil {
		return nil, err
	}
	doc["versions"] = encode(kept)
	return encode(doc), nil
}

// findTarball is where the tarball of a version of the packument at base is.
func findTarball(base string, text []byte, version string) (string, digest, bool) {
	var found struct{ Tarball, Integrity, Shasum string }
	_, err := versions(text, func(v string, _, dist object) {
		if v == version {
			for key, into := range map[string]*string{"tarball": &found.Tarball, "integrity": &found.Integrity, "shasum": &found.Shasum} {
				_ = json.Unmarshal(dist[key], into) // what is no string is not there
			}
		}
	})
	at, err2 := url.Parse(base)
	if err != nil || err2 != nil || found.Tarball == "" {
		return "", digest{}, false
	}
	d := parseIntegrity(found.Integrity)
	if d == (digest{}) {
		d = newDigest("sha1", found.Shasum)
	}
	u, ok := link(at, found.Tarball, d)
	if !ok {
		return "", digest{}, false
	}
	u.Fragment, u.RawFragment = "", ""
	return u.String(), d, true
}

// encode is for what came out of a decoder.
func encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return text
}
