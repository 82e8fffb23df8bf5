package fetch

import (
	"net/http"
	"testing"
)

// Without an index or a registry pip and npm are told nothing, and nothing is
// served in their place; apt is.
func TestWithoutUpstreams(t *testing.T) {
	for _, with := range []bool{true, false} {
		o := Options{Dir: t.TempDir(), Transport: http.NewFileTransport(http.Dir(t.TempDir()))}
		if with {
			o.PyPI, o.NPM = "http://pypi.test/simple", "http://npm.test"
		}
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.PipConfig() != nil && p.NpmConfig() != nil; got != with || p.AptConfig() == nil {
			t.Errorf("upstreams are named %t: pip and npm are told %t", with, got)
		}
		for _, path := range []string{"pypi/simple/x/", "npm/x"} {
			resp, err := http.Get("http://" + p.Addr() + "/" + p.token + "/" + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if asked := p.Stats().Upstream > 0; asked != with {
				t.Errorf("upstreams are named %t: %s: %s, upstream was asked %t", with, path, resp.Status, asked)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
