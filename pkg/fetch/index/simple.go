package index

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// Media types of the simple API's pages (PEP 691).
const (
	SimpleJSON = "application/vnd.pypi.simple.v1+json"
	SimpleHTML = "application/vnd.pypi.simple.v1+html"
)

// project is what may be one's name (core metadata specification, Name).
var project = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// IsProject reports whether s may be a project's name.
func IsProject(s string) bool { return len(s) <= 200 && project.MatchString(s) }

var runs = regexp.MustCompile(`[-_.]+`)

// Normalize is PEP 503's.
func Normalize(name string) string { return strings.ToLower(runs.ReplaceAllString(name, "-")) }

// Simple is a project's page of an index.
type Simple struct {
	files []simpleFile
	json  object // where upstream's was JSON: all of it but the files
}

// simpleFile is one file of a page.
type simpleFile struct {
	name     string
	url      string            // absolute, without the fragment
	fragment string            // "sha256=..." or ""
	digest   Digest            // the strongest that is known here, if any
	metadata string            // of PEP 658: "" for none, "true", "sha256=..."
	attrs    map[string]string // of HTML pages, as they are passed on: data-requires-python, data-yanked, ...
	json     object
}

// passedAttrs are the attributes of a link that pip knows (PEP 503, 592, 658, 714).
var passedAttrs = []string{"data-requires-python", "data-yanked", "data-dist-info-metadata", "data-core-metadata", "data-gpg-sig"}

// A Source is where a file comes from, and what the index says of it.
type Source struct {
	URL    string // http or https, without credentials and a fragment
	Digest Digest
}

// Find is where the page's file name, or NAME.metadata of one, comes from.
func (page *Simple) Find(name string) (Source, bool) {
	for _, f := range page.files {
		if f.name == name {
			return Source{f.url, f.digest}, true
		}
		if f.metadata != "" && f.name+".metadata" == name {
			algo, sum, _ := strings.Cut(f.metadata, "=")
			return Source{f.url + ".metadata", NewDigest(algo, sum)}, true
		}
	}
	return Source{}, false
}

// IsJSON reports whether the page can be written as JSON: upstream's was.
func (page *Simple) IsJSON() bool { return page.json != nil }

// IsFileName reports whether s can be the last part of a path that means
// itself.
func IsFileName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 255 && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || r == '\\' || unicode.IsControl(r)
	})
}

// ParseSimple reads the page at base. Links that nobody could fetch here are
// left out. A page without any is a page.
func ParseSimple(base, contentType string, text []byte) (*Simple, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	kind, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case SimpleJSON:
		return parseJSON(u, text)
	case SimpleHTML, "text/html", "application/xhtml+xml":
		return parseHTML(u, text)
	}
	return nil, fmt.Errorf("the index answers with %q, not with a page of the simple API", contentType)
}

func (page *Simple) add(base *url.URL, f simpleFile) {
	var ok bool
	if f.url, ok = link(base, f.url, f.digest); ok && IsFileName(f.name) {
		page.files = append(page.files, f)
	}
}

func parseJSON(base *url.URL, text []byte) (*Simple, error) {
	page := &Simple{}
	if err := json.Unmarshal(text, &page.json); err != nil {
		return nil, fmt.Errorf("the index's page is no JSON object: %w", err)
	}
	var files []object
	if err := json.Unmarshal(page.json["files"], &files); err != nil { // null has none
		return nil, fmt.Errorf("the files of the index's page: %w", err)
	}
	delete(page.json, "files")
	for _, raw := range files {
		var sums map[string]string
		f := simpleFile{json: raw, attrs: map[string]string{}}
		if json.Unmarshal(raw["filename"], &f.name) != nil || json.Unmarshal(raw["url"], &f.url) != nil || json.Unmarshal(raw["hashes"], &sums) != nil {
			continue
		}
		if f.digest = strongest(sums); !f.digest.IsNone() {
			f.fragment = f.digest.algo + "=" + f.digest.sum
		}
		for _, key := range []string{"core-metadata", "dist-info-metadata"} {
			var sums map[string]string
			var has bool
			if json.Unmarshal(raw[key], &sums) == nil && !strongest(sums).IsNone() {
				d := strongest(sums)
				f.metadata = d.algo + "=" + d.sum
			} else if json.Unmarshal(raw[key], &has) == nil && has {
				f.metadata = "true"
			}
			if f.metadata != "" {
				f.attrs["data-core-metadata"], f.attrs["data-dist-info-metadata"] = f.metadata, f.metadata
				break
			}
		}
		var s string
		if json.Unmarshal(raw["requires-python"], &s) == nil && s != "" {
			f.attrs["data-requires-python"] = s
		}
		var yanked bool
		if json.Unmarshal(raw["yanked"], &s) == nil && s != "" {
			f.attrs["data-yanked"] = s
		} else if json.Unmarshal(raw["yanked"], &yanked) == nil && yanked {
			f.attrs["data-yanked"] = ""
		}
		page.add(base, f)
	}
	return page, nil
}

func parseHTML(base *url.URL, text []byte) (*Simple, error) {
	page := &Simple{}
	z := html.NewTokenizer(bytes.NewReader(text))
	z.SetMaxBuf(1 << 20)
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); err != io.EOF {
				return nil, fmt.Errorf("the index's page: %w", err)
			}
			return page, nil
		case html.StartTagToken, html.SelfClosingTagToken:
			t := z.Token()
			attrs := map[string]string{}
			for _, a := range t.Attr {
				if _, twice := attrs[a.Key]; !twice {
					attrs[a.Key] = a.Val
				}
			}
			href, ok := attrs["href"]
			if t.Data == "base" && ok {
				if u, err := base.Parse(href); err == nil && u.Scheme == base.Scheme {
					base = u
				}
			}
			if t.Data == "a" && ok {
				page.add(base, htmlFile(href, attrs))
			}
		}
	}
}

func htmlFile(href string, attrs map[string]string) simpleFile {
	f := simpleFile{url: strings.TrimSpace(href), attrs: map[string]string{}}
	u, err := url.Parse(f.url)
	if err != nil {
		return f
	}
	f.name = path.Base(u.Path)
	if algo, sum, ok := strings.Cut(u.Fragment, "="); ok && isHex(sum, len(sum)/2) && project.MatchString(algo) {
		f.digest, f.fragment = NewDigest(algo, sum), algo+"="+sum
	}
	for _, key := range passedAttrs {
		if v, ok := attrs[key]; ok {
			f.attrs[key] = v
		}
	}
	for _, key := range []string{"data-core-metadata", "data-dist-info-metadata"} {
		if v := attrs[key]; f.metadata == "" && v != "" && v != "false" {
			f.metadata = v
		}
	}
	return f
}

func (f simpleFile) href(files string) string {
	s := files + url.PathEscape(f.name)
	if f.fragment != "" {
		s += "#" + f.fragment
	}
	return s
}

// JSON is the page with its links under the path files. It keeps what
// upstream says of the page and the files beside. The page must be of JSON.
func (page *Simple) JSON(files string) []byte {
	list := []object{}
	for _, f := range page.files {
		f.json["url"] = encode(files + url.PathEscape(f.name))
		list = append(list, f.json)
	}
	page.json["files"] = encode(list)
	return encode(page.json)
}

// HTML is the page likewise. Nothing of upstream's text is in it but what a link
// says.
func (page *Simple) HTML(files string) []byte {
	var b bytes.Buffer
	b.WriteString("<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.0\"></head><body>\n")
	for _, f := range page.files {
		fmt.Fprintf(&b, `<a href="%s"`, html.EscapeString(f.href(files)))
		for _, key := range passedAttrs {
			if v, ok := f.attrs[key]; ok {
				fmt.Fprintf(&b, ` %s="%s"`, key, html.EscapeString(v))
			}
		}
		fmt.Fprintf(&b, ">%s</a><br>\n", html.EscapeString(f.name))
	}
	b.WriteString("</body></html>\n")
	return b.Bytes()
}
