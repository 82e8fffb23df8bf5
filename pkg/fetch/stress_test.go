package fetch

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestNobodyTakesAWrongBody has builds of two proxies, which share a cache,
// ask for the same things of an upstream that fails in every way, and leave
// when they like. Whatever ends well must be right.
func TestNobodyTakesAWrongBody(t *testing.T) {
	content := func(path string) string {
		return strings.Repeat(path+"\n", 1+len(path)*rand.New(rand.NewPCG(uint64(len(path)), uint64(path[len(path)-5]))).IntN(4000))
	}
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(1, 2))
	roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return dice.IntN(n) }
	upstream := func(rw http.ResponseWriter, r *http.Request) {
		text := content(r.URL.Path)
		if roll(3) > 0 {
			rw.Header().Set("ETag", `"`+r.URL.Path+`"`)
		}
		switch roll(8) {
		case 0:
			rw.WriteHeader([]int{404, 429, 500, 503}[roll(4)])
		case 1: // breaks off
			rw.Header().Set("Content-Length", fmt.Sprint(len(text)))
			io.WriteString(rw, text[:len(text)/2])
			panic(http.ErrAbortHandler)
		case 2: // without a length
			io.WriteString(rw, text[:len(text)/3])
			rw.(http.Flusher).Flush()
			io.WriteString(rw, text[len(text)/3:])
		case 3: // stalls
			rw.Header().Set("Content-Length", fmt.Sprint(len(text)))
			io.WriteString(rw, text[:len(text)/2])
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			http.ServeContent(rw, r, "", time.Time{}, strings.NewReader(text))
		}
	}
	dir := t.TempDir()
	var all sync.WaitGroup
	var right, wrong int
	for range 2 {
		w := newWorldIn(t, dir)
		w.proxy.patience = 50 * time.Millisecond
		w.serve("deb.test", upstream)
		client := w.client()
		for range 12 {
			all.Go(func() {
				for range 25 {
					path := fmt.Sprintf("/pool/%c.deb", 'a'+roll(12))
					if roll(4) == 0 {
						path = fmt.Sprintf("/dists/%c.gz/", 'a'+roll(4))
					}
					if roll(40) == 0 {
						w.later(25 * time.Hour)
					}
					ctx, leave := context.WithCancel(t.Context())
					req, _ := http.NewRequestWithContext(ctx, "GET", "http://deb.test"+path, nil)
					if roll(8) == 0 {
						req.Header.Set("Range", "bytes=3-")
					}
					resp, err := client.Do(req)
					if err != nil {
						leave()
						continue
					}
					if roll(6) == 0 {
						leave()
					}
					b, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					leave()
					want := content(path)
					if resp.StatusCode == 206 {
						want = want[3:]
					}
					if err != nil || resp.StatusCode > 206 {
						mu.Lock()
						wrong++
						mu.Unlock()
						continue
					}
					if string(b) != want {
						t.Errorf("%s: %s, %d bytes, want %d", path, resp.Status, len(b), len(want))
					}
					mu.Lock()
					right++
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d downloads went well, %d did not", right, wrong)
	if right < 100 || wrong < 5 {
		t.Error("the upstream of this test fails too often, or too seldom")
	}
}
