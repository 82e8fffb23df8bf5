// Package index reads the pages of package indexes, of Python's and of npm's,
// and writes them again with links that lead through a proxy. Pages are text
// of strangers: what is not understood is left out, and nothing is fetched.
package index

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Corgi is the media type of the packument that installing needs, and no more
// (npm's registry, "package metadata").
const Corgi = "application/vnd.npm.install-v1+json"

var (
	// npmPath is [@SCOPE/]NAME, and with /-/FILE.tgz a tarball's. Names of
	// before 2017 may have capitals.
	npmPath    = regexp.MustCompile(`^((?:@[A-Za-z0-9~_-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]*)(?:/-/([^/]+)\.tgz)?$`)
	npmVersion = regexp.MustCompile(`^[0-9][0-9A-Za-z.+-]*$`)
)

// ParsePath splits a path of a registry: a package's, or the tarball's of one
// of its versions.
func ParsePath(path string) (name, version string, ok bool) {
	m := npmPath.FindStringSubmatch(path)
	if m == nil || len(path) > 400 {
		return "", "", false
	}
	if m[2] != "" {
		version, ok = strings.CutPrefix(m[2], unscoped(m[1])+"-")
		return m[1], version, ok && npmVersion.MatchString(version)
	}
	return m[1], "", true
}

func tarballPath(name, version string) string {
	return name + "/-/" + url.PathEscape(unscoped(name)+"-"+version) + ".tgz"
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

// RewritePackument puts paths that ParsePath knows, behind the URL registry, in
// place of the tarballs' URLs of the package name. Versions without one are
// left out.
func RewritePackument(text []byte, registry, name string) ([]byte, error) {
	kept := map[string]object{}
	doc, err := versions(text, func(version string, body, dist object) {
		dist["tarball"] = encode(registry + tarballPath(name, version))
		body["dist"] = encode(dist)
		kept[version] = body
	})
	if err != nil {
		return nil, err
	}
	doc["versions"] = encode(kept)
	return encode(doc), nil
}

// FindTarball is where the tarball of a version of the packument at base is.
func FindTarball(base string, text []byte, version string) (Source, bool) {
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
		return Source{}, false
	}
	d := ParseIntegrity(found.Integrity)
	if d.IsNone() {
		d = NewDigest("sha1", found.Shasum)
	}
	u, ok := link(at, found.Tarball, d)
	return Source{u, d}, ok
}

// link resolves a file's URL in the page at base, without its fragment. Without
// a digest a file of an https page must be of https too.
func link(base *url.URL, ref string, d Digest) (string, bool) {
	u, err := base.Parse(ref)
	if err != nil || u.Host == "" || u.User != nil {
		return "", false
	}
	u.Fragment, u.RawFragment = "", ""
	return u.String(), u.Scheme == "https" || (u.Scheme == "http" && (base.Scheme == "http" || !d.IsNone()))
}

// encode is for what came out of a decoder.
func encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return text
}
