package index

import (
	"crypto/sha256"
	"strings"
	"testing"
)

const (
	fooSHA256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	fooSHA512 = "sha512-9/u6bgY2+JDlb7vzKD5STG+jIErimDgtYkdB0NxmODJuKCxBvl5CVNiCB3LFUYosWowMf37aGVlKfrU5RT4e1w=="
	fooSHA1   = "0beec7b5ea3f0fdbc95d0dd47f3c5bc275da8a33"
)

var jsonPage = `{"meta":{"api-version":"1.1"},"name":"foo","versions":["1"],"files":[
 {"filename":"foo-1-py3-none-any.whl","url":"http://files.test/ab/foo-1-py3-none-any.whl","size":3,"hashes":{"sha256":"` + fooSHA256 + `"},"requires-python":">=3.8","yanked":"broken","core-metadata":{"sha256":"` + fooSHA256 + `"},"upload-time":"2026-01-01T00:00:00Z"},
 {"filename":"foo-1.tar.gz","url":"../../rel/foo-1.tar.gz#x","hashes":{}},
 {"filename":"../evil","url":"http://files.test/evil","hashes":{}},
 {"filename":"evil.whl","url":"file:///etc/passwd","hashes":{}}]}`

var htmlPage = `<html><body><h1>Links</h1><script>evil()</script>
<a onclick="evil()" href="http://files.test/ab/foo-1-py3-none-any.whl#sha256=` + fooSHA256 + `" data-requires-python="&gt;=3.8" data-yanked="broken" data-core-metadata="sha256=` + fooSHA256 + `">foo-1-py3-none-any.whl</a>
<a href="../../rel/foo-1.tar.gz">other text</a>
<a href="javascript:evil()">evil</a><a href="http://files.test/%2e%2e">evil</a><a name="x">no link</a></body></html>`

func packument(dist string) string {
	return `{"name":"foo","dist-tags":{"latest":"1.0.0"},"_id":"foo","versions":{"1.0.0":{"name":"foo","version":"1.0.0","dependencies":{"x":"1"},"dist":` + dist + `},
 "../evil":{"dist":{"tarball":"http://npm.test/evil"}},"2.0.0":{"dist":null},"3.0.0":null}}`
}

func TestLinksOfAPage(t *testing.T) {
	sum := "#sha256=" + fooSHA256
	for _, c := range []struct{ base, text, want string }{
		{"https://i.test/simple/a/", `<a href="a-1.whl">`, "https://i.test/simple/a/a-1.whl"},
		{"https://i.test/simple/a/", `<a href="//f.test/a-1.whl">`, "https://f.test/a-1.whl"},
		{"https://i.test/simple/a/", `<A HREF='https://f.test/a-1.whl?sig=1&amp;x=2` + sum + `'>`, "https://f.test/a-1.whl?sig=1&x=2"},
		{"https://i.test/simple/a/", `<base href="https://f.test/x/"><a href="a-1.whl">`, "https://f.test/x/a-1.whl"},
		{"https://i.test/simple/a/", `<base href="http://f.test/x/"><a href="a-1.whl">`, "https://i.test/simple/a/a-1.whl"},
		{"https://i.test/simple/a/", `<a href="http://f.test/a-1.whl">`, ""},
		{"https://i.test/simple/a/", `<a href="http://f.test/a-1.whl` + sum + `">`, "http://f.test/a-1.whl"},
		{"http://i.test/simple/a/", `<a href="http://f.test/a-1.whl">`, "http://f.test/a-1.whl"},
		{"http://i.test/simple/a/", `<a href="http://u:p@f.test/a-1.whl">`, ""},
		{"http://i.test/simple/a/", `<a href="ftp://f.test/a-1.whl">`, ""},
		{"http://i.test/simple/a/", `<a href="http:a-1.whl">`, ""},
		{"http://i.test/simple/a/", `<a href="/x/..">`, ""},
		{"http://i.test/simple/a/", `<a href="/x%0a">`, ""},
		{"http://i.test/simple/a/", `<a>`, ""},
		{"http://i.test/simple/a/", `<!-- <a href="/a-1.whl"> -->`, ""},
	} {
		page, err := ParseSimple(c.base, "text/html", []byte(c.text))
		got := ""
		if err == nil && len(page.files) > 0 {
			got = page.files[0].url
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
	for _, c := range []struct{ kind, text, want string }{
		{"text/plain", "x", `the index answers with "text/plain", not with a page`},
		{"", "x", `the index answers with ""`},
		{SimpleJSON, "x", "the index's page is no JSON object"},
		{SimpleJSON, "null", "the files of the index's page"},
		{SimpleJSON, `{"files":{}}`, "the files of the index's page"},
		{"text/html", `<a href="` + strings.Repeat("x", 2<<20) + `">`, "max buffer exceeded"},
	} {
		if page, err := ParseSimple("http://i.test/", c.kind, []byte(c.text)); err == nil || page != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.20q: %v", c.kind, c.text, err)
		}
	}
}

func TestPackumentsThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "no packument: unexpected end",
		"null":                          "no packument, but null",
		"[]":                            "no packument: json",
		`{"versions":[]}`:               "the versions of",
		`{"name":"unpublished"}`:        "",
		`{"versions":{"1.0.0":{}}}`:     "",
		`{"versions":{"1.0.0":null}}`:   "",
		`{"versions":null,"name":null}`: "",
	} {
		_, err := RewritePackument([]byte(text), "http://p/", "p")
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDigests(t *testing.T) {
	for s, want := range map[string]string{
		fooSHA512:                           "sha512:f7fbba6e",
		"sha1-C+7Hteo/D9vJXQ3UfzxbwnXaijM=": "sha1:0beec7b5",
		"sha1-C+7Hteo/D9vJXQ3UfzxbwnXaijM= " + fooSHA512 + "?opt": "sha512:f7fbba6e",
		"sha512-short=": "", "md5-rL0Y20zC+Fzt72VPzMSk2A==": "", "": "", "sha512": "",
	} {
		if got := ParseIntegrity(s).String(); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	if !NewDigest("SHA256", strings.ToUpper(fooSHA256)).Is(sum256("foo")) {
		t.Error("an upper-case digest does not compare")
	}
	if NewDigest("sha256", fooSHA256).Is(sum256("bar")) || NewDigest("sha256", "") != (Digest{}) {
		t.Error("a wrong digest compares")
	}
}

func sum256(s string) []byte { h := sha256.Sum256([]byte(s)); return h[:] }

func TestParsePath(t *testing.T) {
	for path, want := range map[string][2]string{
		"foo": {"foo"}, "@scope/foo": {"@scope/foo"}, "JSONStream": {"JSONStream"},
		"foo/-/foo-1.0.0.tgz":           {"foo", "1.0.0"},
		"foo/-/foo-1.0.0-rc.1+b.tgz":    {"foo", "1.0.0-rc.1+b"},
		"@scope/foo/-/foo-1.0.0.tgz":    {"@scope/foo", "1.0.0"},
		"@scope/foo/-/@scope/foo-1.tgz": {},
		"foo/-/bar-1.0.0.tgz":           {},
		"foo/-/foo-../x.tgz":            {},
		"foo/-/foo-x.tgz":               {},
		"foo/-/.tgz":                    {},
		"foo/1.0.0":                     {},
		"../foo":                        {},
		"@../foo":                       {},
		"@scope/..":                     {},
		"foo?x":                         {},
		"-/v1/search":                   {},
		"":                              {},
		strings.Repeat("a", 401):        {},
	} {
		name, version, ok := ParsePath(path)
		if ok != (want[0] != "") || (ok && (name != want[0] || version != want[1])) {
			t.Errorf("%s: %q, %q, %v", path, name, version, ok)
		}
		if ok && version != "" {
			if n, v, ok := ParsePath(tarballPath(name, version)); !ok || n != name || v != version {
				t.Errorf("%s: there and back: %q, %q", path, n, v)
			}
		}
	}
}
