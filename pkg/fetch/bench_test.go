package fetch

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkDownload compares a file of 16 MB from the cache, and from upstream
// for the first time, with the same file without a proxy.
func BenchmarkDownload(b *testing.B) {
	const size = 16 << 20
	text := strings.Repeat("x", size)
	w := newWorld(b)
	s := w.serve("deb.test", body200(text))
	get := func(b *testing.B, c *http.Client, url string) {
		resp, err := c.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size {
			b.Fatalf("%d bytes, %v", n, err)
		}
	}
	b.Run("direct", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			get(b, http.DefaultClient, s.URL)
		}
	})
	c := w.client()
	b.Run("cached", func(b *testing.B) {
		get(b, c, deb)
		b.SetBytes(size)
		for b.Loop() {
			get(b, c, deb)
		}
	})
	b.Run("first", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			w.later(2 * immutable) // there is no validator: it is fetched anew
			get(b, c, deb)
		}
	})
}

// BenchmarkSmall is the same for a body of 1 KB: what a request costs.
func BenchmarkSmall(b *testing.B) {
	w := newWorld(b)
	s := w.serve("deb.test", body200(strings.Repeat("x", 1024)))
	c := w.client()
	for name, f := range map[string]func() (*http.Response, error){
		"direct": func() (*http.Response, error) { return http.Get(s.URL) },
		"cached": func() (*http.Response, error) { return c.Get(deb) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				resp, err := f()
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}
