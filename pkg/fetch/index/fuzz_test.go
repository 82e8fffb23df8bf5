package index

import (
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

const fuzzFiles = "/TOKEN/pypi/files/p/"

// FuzzSimplePage: whatever an index says, a page that is made of it leads to
// the proxy's own paths only, and is read again as what it was made of.
func FuzzSimplePage(f *testing.F) {
	for _, kind := range []string{"text/html", SimpleJSON} {
		for _, text := range []string{htmlPage, jsonPage, "", "null", `{"files":[null,{"filename":"a"}]}`, `<base href="//x/"><a href="y#sha256=00">`,
			`<a href="http://x/%3Cscript%3E#sha256=&quot;&gt;">`, `<a href='"><script>' data-yanked='"><a href="http://evil/">'>`, "<a href=\"http://x/\xff\">", `<a href="https://x/a%23b%3Fc%25.whl">`} {
			f.Add(kind, text)
		}
	}
	f.Fuzz(func(t *testing.T, kind, text string) {
		page, err := ParseSimple("https://index.test/simple/p/", kind, []byte(text))
		if err != nil {
			if page != nil {
				t.Fatal("a page and an error")
			}
			return
		}
		for _, file := range page.files {
			if u, err := url.Parse(file.url); err != nil || u.User != nil || u.Host == "" || (u.Scheme != "https" && (u.Scheme != "http" || file.digest == (Digest{}))) {
				t.Errorf("a file comes from %q", file.url)
			}
			if _, ok := page.Find(file.name); !ok {
				t.Errorf("%q is in the page and is not found", file.name)
			}
		}
		made := page.HTML(fuzzFiles)
		again, err := ParseSimple("https://proxy.test/simple/p/", "text/html", made)
		if err != nil {
			t.Fatalf("the page that was made: %v", err)
		}
		checkAgain(t, page, again)
		for _, tag := range []string{"<script", "<base", "<img", "<form"} {
			if strings.Contains(string(made), tag) {
				t.Errorf("%s is left in the page", tag)
			}
		}
		if page.json != nil {
			made := page.JSON(fuzzFiles)
			if !json.Valid(made) {
				t.Fatalf("no JSON: %s", made)
			}
			again, err := ParseSimple("https://proxy.test/simple/p/", SimpleJSON, made)
			if err != nil {
				t.Fatalf("the page that was made: %v", err)
			}
			checkAgain(t, page, again)
		}
	})
}

func checkAgain(t *testing.T, page, again *Simple) {
	t.Helper()
	if len(again.files) != len(page.files) {
		t.Fatalf("%d files of %d", len(again.files), len(page.files))
	}
	for i, f := range again.files {
		was := page.files[i]
		if f.name != was.name || f.fragment != was.fragment || f.metadata != was.metadata || !reflect.DeepEqual(f.attrs, was.attrs) {
			t.Errorf("%+v was %+v", f, was)
		}
		if u, err := url.Parse(f.url); err != nil || u.Host != "proxy.test" || u.EscapedPath() != fuzzFiles+url.PathEscape(f.name) || u.RawQuery != "" {
			t.Errorf("%q leads elsewhere", f.url)
		}
	}
}

// FuzzPackument: likewise for npm's.
func FuzzPackument(f *testing.F) {
	for _, text := range []string{packument(`{"tarball":"http://x/y.tgz","integrity":"` + fooSHA512 + `"}`), "null", `{"versions":{"1.0.0":{"dist":{"tarball":1}}}}`, `{"versions":{"1":{"dist":{}}},"versions":null}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const registry, prefix = "http://proxy.test/npm/", "http://proxy.test/npm/p/-/p-"
		made, err := RewritePackument([]byte(text), registry, "p")
		if err != nil {
			if made != nil {
				t.Fatal("a packument and an error")
			}
			return
		}
		var doc struct {
			Versions map[string]struct{ Dist struct{ Tarball any } }
		}
		if err := json.Unmarshal(made, &doc); err != nil {
			if !json.Valid(made) {
				t.Fatalf("%v: %s", err, made)
			}
			return // another key that Go takes for versions
		}
		for version, v := range doc.Versions {
			if v.Dist.Tarball != prefix+url.PathEscape(version)+".tgz" {
				t.Errorf("%q: %v", version, v.Dist.Tarball)
			}
			if src, ok := FindTarball("https://npm.test/p", []byte(text), version); ok && !strings.HasPrefix(src.URL, "https://") && src.Digest.IsNone() {
				t.Errorf("%q comes from %q", version, src.URL)
			}
		}
	})
}
