package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"fence/pkg/internal/blobs"
	"fence/test/registrytest"
)

func client(t testing.TB, o Options) *Client {
	t.Helper()
	if o.Clock.Now == nil {
		o.Clock.Sleep = registrytest.NewClock(time.Unix(1<<30, 0)).Sleep
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func picture(t testing.TB, layers int64) v1.Image {
	t.Helper()
	img, err := random.Image(100, layers)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func tag(t testing.TB, s string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// pull is what a build does: the digest of what came of it.
func pull(ctx context.Context, c *Client, ref name.Reference) (v1.Hash, error) {
	h, data, err := c.Top(ctx, ref)
	if err != nil {
		return h, err
	}
	m, err := v1.ParseManifest(strings.NewReader(string(data)))
	if err != nil {
		return h, err
	}
	if _, err := c.Document(ctx, ref.Context(), m.Config); err != nil {
		return h, err
	}
	if err := c.Fetch(ctx, ref.Context(), m.Layers); err != nil {
		return h, err
	}
	for _, l := range m.Layers {
		r, err := c.Open(ctx, ref.Context(), l)
		if err != nil {
			return h, err
		}
		_, err = io.Copy(io.Discard, r)
		if err := errors.Join(err, r.Close()); err != nil {
			return h, err
		}
	}
	return h, nil
}

func mirrors(t testing.TB, all ...string) (out []Mirror) {
	t.Helper()
	for _, s := range all {
		m, err := ParseMirror(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

const (
	nothing = "HEAD 0, manifests 0, blobs 0"
	whole   = "HEAD 1, manifests 1, blobs 2" // of an image with one layer
)

// Two mirrors and the registry: who is asked, who answers, and what is said if
// nobody does.
func TestMirrors(t *testing.T) {
	one, two, origin := registrytest.Serve(t), registrytest.Serve(t), registrytest.Serve(t)
	img, old := picture(t, 1), picture(t, 1)
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	stale, err := old.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref := tag(t, origin.Push("some/image:1", img))
	one.Push("hub/some/image:1", img)
	two.Push("some/image:1", img)
	one.Push("hub/some/image:stale", old)
	origin.Push("some/image:stale", img)
	flip := func(s *registrytest.Server) registrytest.Fault {
		return s.Spoiled(func(b []byte) []byte {
			if len(b) > 0 {
				b = append([]byte{}, b...)
				b[len(b)/2] ^= 1
			}
			return b
		})
	}
	all := registrytest.Status
	for _, c := range []struct {
		name             string
		ref              name.Reference
		one, two, origin registrytest.Fault
		want             v1.Hash
		counts           [3]string
		from             []int  // who gave any of it
		err              string // in place of it
	}{
		{name: "the first has it", ref: ref, want: want, counts: [3]string{whole, nothing, nothing}, from: []int{0}},
		{name: "the first lacks it", ref: ref, one: all(404), want: want, counts: [3]string{"", whole, nothing}, from: []int{1}},
		{name: "the first gives it to others", ref: ref, one: all(403), want: want, counts: [3]string{"", whole, nothing}, from: []int{1}},
		{name: "the first is broken", ref: ref, one: all(500), want: want, counts: [3]string{"", whole, nothing}, from: []int{1}},
		{name: "the first gives no more", ref: ref, one: all(429, "Retry-After", "60"), want: want, counts: [3]string{"HEAD 0, manifests 0, blobs 0", whole, nothing}, from: []int{1}},
		{name: "the first hangs up", ref: ref, one: registrytest.HangUp, want: want, counts: [3]string{"", whole, nothing}, from: []int{1}},
		{name: "the first sends something else", ref: ref, one: registrytest.First(9, "GET manifests", flip(one)), want: want, counts: [3]string{"HEAD 1, manifests 1, blobs 2", "HEAD 0, manifests 1, blobs 0", nothing}, from: []int{0, 1}},
		{name: "the first lacks a layer", ref: ref, one: registrytest.First(9, "GET blobs", all(404)), want: want, counts: [3]string{"HEAD 1, manifests 1, blobs 2", "HEAD 0, manifests 0, blobs 2", nothing}, from: []int{0, 1}},
		{name: "both are broken", ref: ref, one: all(502), two: all(503), want: want, counts: [3]string{"", "", whole}, from: []int{2}},
		{name: "a mirror that is behind", ref: tag(t, ref.Context().Name()+":stale"), want: stale, counts: [3]string{whole, nothing, nothing}, from: []int{0}},
		{name: "nobody has it", ref: ref, one: all(404), two: all(502), origin: all(404), err: "the registry " + origin.Host + " has no such image or tag: check the name in the Dockerfile; its mirror " + one.Host + "/hub/" + ref.Context().RepositoryStr() + ": has no such image"},
		{name: "only the registry has a word of when", ref: ref, one: all(404), two: all(404), origin: all(429, "Retry-After", "90"), err: "the registry " + origin.Host + " takes no more requests for now; its mirror " + one.Host + "/hub/" + ref.Context().RepositoryStr() + ": has no such"},
		{name: "all are broken", ref: ref, one: all(500), two: all(500), origin: all(500), err: "the registry " + origin.Host + " cannot be asked, the last time because of: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			one.Reset(c.one)
			two.Reset(c.two)
			origin.Reset(c.origin)
			dir := t.TempDir()
			cl := client(t, Options{Dir: dir, Lock: filepath.Join(dir, "lock.json"), Mirrors: mirrors(t, origin.Host+"="+one.Host+"/hub", origin.Host+"=http://"+two.Host)})
			got, err := pull(t.Context(), cl, c.ref)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, not %q", err, c.err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("%v, %v", got, err)
			}
			for i, s := range []*registrytest.Server{one, two, origin} {
				if n := s.Counts(); c.counts[i] != "" && n != c.counts[i] {
					t.Errorf("%d was asked %s, not %s", i, n, c.counts[i])
				}
			}
			names := []string{one.Host + "/hub/some/image", two.Host + "/some/image", origin.Host + "/some/image"}
			var from []string
			for _, i := range c.from {
				from = append(from, names[i])
			}
			if f := cl.From(c.ref.Context()); !slices.Equal(f, from) {
				t.Errorf("from %q, not %q", f, from)
			}
			lock, err := os.ReadFile(filepath.Join(dir, "lock.json"))
			if err != nil || !strings.Contains(string(lock), `"from": "`+names[c.from[0]]+`"`) {
				t.Errorf("%s, %v", lock, err)
			}
		})
	}
}

// A mirror that is down is not asked by everybody who comes.
func TestMirrors_Down(t *testing.T) {
	one, origin := registrytest.Serve(t), registrytest.Serve(t)
	one.Reset(registrytest.Status(500))
	cl := client(t, Options{Dir: t.TempDir(), Mirrors: mirrors(t, origin.Host+"="+one.Host)})
	for n := range 20 {
		if _, err := pull(t.Context(), cl, tag(t, origin.Push(fmt.Sprintf("image%d:1", n), picture(t, 1)))); err != nil {
			t.Fatal(err)
		}
	}
	if n := one.Count("GET"); n != failuresMax {
		t.Errorf("it was asked %d times", n)
	}
	if s := cl.States(); len(s) != 2 || slices.IndexFunc(s, func(s State) bool { return s.Registry == one.Host && !s.Until.IsZero() && !s.Pulls }) < 0 {
		t.Errorf("%+v", s)
	}
}

func TestParseMirror(t *testing.T) {
	for s, want := range map[string]string{
		"docker.io=mirror.example.org":              "index.docker.io https mirror.example.org/library/x",
		"docker.io=mirror.example.org/hub":          "index.docker.io https mirror.example.org/hub/library/x",
		"docker.io=https://mirror.example.org/a/b/": "index.docker.io https mirror.example.org/a/b/library/x",
		"docker.io=http://mirror:5000":              "index.docker.io http mirror:5000/library/x",
		"ghcr.io=node1:5000/ghcr":                   "ghcr.io https node1:5000/ghcr/library/x",
		"docker.io":                                 `"docker.io" is not REGISTRY=HOST`,
		"docker.io=":                                `"docker.io=" is not REGISTRY=HOST`,
		"=x":                                        `"=x" is not REGISTRY=HOST`,
		"docker.io=me:secret@mirror.example.org":    "come from docker login",
		"docker.io=mirror.example.org/UPPER":        `"UPPER" cannot begin the name of an image`,
		"docker.io=mirror.example.org/hub?x=1":      `"hub?x=1" cannot begin`,
		"docker.io/library=mirror.example.org":      `"docker.io/library" is not the name of a registry`,
		"docker.io=ftp://mirror.example.org":        `is not a host`,
	} {
		m, err := ParseMirror(s)
		var got string
		if err != nil {
			got = err.Error()
		} else {
			got = m.Of.RegistryStr() + " " + m.At.Scheme() + " " + m.repo(m.Of.Repo("library/x")).Name()
		}
		if err == nil && got != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%q: %s, not %s", s, got, want)
		}
		if strings.Contains(got, "secret") {
			t.Errorf("%q: %s", s, got)
		}
	}
}

func TestParseLimit(t *testing.T) {
	for s, want := range map[string]string{
		"docker.io=80/6h": "index.docker.io 80 6h0m0s", "quay.io:443=1/90s": "quay.io:443 1 1m30s",
		"docker.io": "is not REGISTRY=N/TIME", "docker.io=80": "is not REGISTRY=N/TIME", "=80/6h": "is not REGISTRY=N/TIME", "docker.io=0/6h": "no number of pulls", "docker.io=x/6h": "no number of pulls",
		"docker.io=80/6": "is not a time", "docker.io=80/-6h": "is not a time", "a/b=80/6h": "is not the name of a registry",
	} {
		l, err := ParseLimit(s)
		got := fmt.Sprint(l.Registry.RegistryStr(), " ", l.Pulls, " ", l.In)
		if err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, not %s", s, got, err, want)
		}
	}
}

// A registry says toomanyrequests for an hour. Twenty builds that need it wait
// for as long as they are told, those of another registry are done before, and
// the first registry is hardly asked meanwhile. No time passes but the clock's.
func TestTooManyRequests_AnHour(t *testing.T) {
	for _, c := range []struct {
		name  string
		after string
		most  int           // how often it is asked within the hour
		late  time.Duration // when all is done at the latest
	}{
		{"with Retry-After", "3600", 1, time.Hour + 5*time.Second},
		{"with a date", "date", 1, time.Hour + 5*time.Second},
		{"without", "", 12, time.Hour + pauseMax + 5*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			busy, other := registrytest.Serve(t), registrytest.Serve(t)
			var refs []name.Reference
			for n := range 20 {
				refs = append(refs, tag(t, busy.Push(fmt.Sprintf("image%d:1", n), picture(t, 1))))
			}
			for n := range 5 {
				refs = append(refs, tag(t, other.Push(fmt.Sprintf("image%d:1", n), picture(t, 1))))
			}
			clk := registrytest.NewClock(time.Unix(1<<30, 0))
			begin := clk.Now()
			open := begin.Add(time.Hour)
			refused := 0
			busy.Reset(func(w http.ResponseWriter, r *http.Request, _ int) bool {
				if !clk.Now().Before(open) {
					return false
				}
				refused++
				switch c.after {
				case "date":
					w.Header().Set("Retry-After", open.UTC().Format(http.TimeFormat))
				case "":
				default:
					w.Header().Set("Retry-After", c.after)
				}
				w.WriteHeader(429)
				io.WriteString(w, `{"errors":[{"code":"TOOMANYREQUESTS","message":"toomanyrequests: You have reached your pull rate limit."}]}`)
				return true
			})
			cl := client(t, Options{Dir: t.TempDir(), Clock: Clock{clk.Now, clk.Sleep}})
			waits := map[name.Reference]time.Time{} // of those that are not done: until when
			for _, r := range refs {
				waits[r] = begin
			}
			for len(waits) > 0 {
				var next time.Time
				for r, until := range waits {
					if clk.Now().Before(until) {
						if next.IsZero() || until.Before(next) {
							next = until
						}
						continue
					}
					_, err := pull(t.Context(), cl, r)
					var limited *RateLimited
					switch {
					case err == nil:
						delete(waits, r)
						if busyOne := strings.HasPrefix(r.Name(), busy.Host); busyOne == clk.Now().Before(open) || !busyOne && clk.Now().After(begin.Add(time.Minute)) {
							t.Errorf("%s is done after %v", r, clk.Now().Sub(begin))
						}
					case errors.As(err, &limited) && limited.Registry == busy.Host && limited.Until.After(clk.Now()):
						waits[r] = limited.Until
						next = begin // others may be ready
					default:
						t.Fatal(err)
					}
				}
				if next.After(clk.Now()) && len(waits) > 0 {
					clk.Sleep(t.Context(), next.Sub(clk.Now()))
				}
			}
			if took := clk.Now().Sub(begin); took > c.late {
				t.Errorf("done after %v", took)
			}
			if refused > c.most {
				t.Errorf("it was asked %d times within the hour", refused)
			}
			t.Logf("asked %d times within the hour, done after %v", refused, clk.Now().Sub(begin))
		})
	}
}

// A limit on pulls that is used up stops no layer of an image whose manifest is
// there.
func TestTooManyRequests_LayersGoOn(t *testing.T) {
	reg := registrytest.Serve(t)
	one, two := tag(t, reg.Push("one:1", picture(t, 2))), tag(t, reg.Push("two:1", picture(t, 1)))
	pulls := 0
	reg.Reset(func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("ratelimit-limit", "1;w=21600")
			w.Header().Set("ratelimit-remaining", "0;w=21600")
			pulls++
		}
		return false
	})
	cl := client(t, Options{Dir: t.TempDir()})
	if _, err := pull(t.Context(), cl, one); err != nil {
		t.Fatal(err)
	}
	var limited *RateLimited
	if _, err := pull(t.Context(), cl, two); !errors.As(err, &limited) || limited.Limit != "1;w=21600" || pulls != 1 {
		t.Errorf("%d pulls, then %v", pulls, err)
	}
	s := cl.States()
	if len(s) != 1 || !s[0].Pulls || s[0].Remaining != "0;w=21600" || s[0].Until.IsZero() || !strings.Contains(s[0].Why, "takes no more requests") {
		t.Errorf("%+v", s)
	}
}

// A registry can say it in the text of another answer, or say that it is closed.
func TestClosed(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := tag(t, reg.Push("image:1", picture(t, 1)))
	for name, c := range map[string]struct {
		fault registrytest.Fault
		want  func(error) bool
	}{
		"403 toomanyrequests": {func(w http.ResponseWriter, r *http.Request, _ int) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.WriteHeader(403)
			io.WriteString(w, `{"errors":[{"code":"TOOMANYREQUESTS"}]}`)
			return true
		}, func(err error) bool { var e *RateLimited; return errors.As(err, &e) }},
		"503 and when": {registrytest.Status(503, "Retry-After", "600"), func(err error) bool {
			var e *Unreachable
			return errors.As(err, &e) && time.Until(e.Until) > 9*time.Minute
		}},
	} {
		reg.Reset(c.fault)
		cl := client(t, Options{Dir: t.TempDir()})
		if _, err := pull(t.Context(), cl, ref); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
		before := reg.Count("GET") + reg.Count("GET manifests")
		if _, err := pull(t.Context(), cl, ref); !c.want(err) || reg.Count("GET")+reg.Count("GET manifests") != before {
			t.Errorf("%s: asked again at once: %v", name, err)
		}
	}
}

// A transfer that stands still is given up, and made again.
func TestSlow(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := tag(t, reg.Push("image:1", picture(t, 1)))
	for _, stuck := range []int{2, 99} {
		reg.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || n > stuck {
				return false
			}
			w.Header().Set("Content-Length", "1000")
			w.Write([]byte("begun"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		})
		cl := client(t, Options{Dir: t.TempDir()})
		cl.stall = 20 * time.Millisecond
		_, err := pull(t.Context(), cl, ref)
		var away *Unreachable
		if (err == nil) != (stuck == 2) || err != nil && (!errors.As(err, &away) || !errors.Is(err, errStalled)) {
			t.Errorf("%d times: %v", stuck, err)
		}
	}
}

// So is what comes before it: the first word of a registry, its tokens, its
// errors; whatever stands still, crawls, or has no end.
func TestSlow_Words(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := tag(t, reg.Push("image:1", picture(t, 1)))
	stuck := func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method != http.MethodHead {
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		return true
	}
	endless := func(w http.ResponseWriter, r *http.Request, _ int) bool {
		for r.Context().Err() == nil {
			w.Write(make([]byte, 32<<10))
		}
		return true
	}
	crawling := func(w http.ResponseWriter, r *http.Request, _ int) bool {
		for r.Context().Err() == nil {
			w.Write([]byte("x"))
			w.(http.Flusher).Flush()
		}
		return true
	}
	challenge := func(w http.ResponseWriter) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+reg.Host+`/token"`)
		w.WriteHeader(401)
	}
	for name, c := range map[string]struct {
		path  string
		fault registrytest.Fault
		ok    bool
	}{
		"the first word stands still": {"/v2/", stuck, true},
		"the first word has no end":   {"/v2/", endless, true},
		"a token stands still":        {"/token", stuck, false},
		"a token has no end":          {"/token", endless, false},
		"a manifest crawls":           {"/manifests/sha256:", crawling, false},
		"a redirect leads to what stuck": {"/manifests/1", func(w http.ResponseWriter, r *http.Request, n int) bool {
			http.Redirect(w, r, "/stuck", 307)
			return true
		}, false},
	} {
		reg.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
			switch {
			case r.URL.Path == "/stuck":
				return stuck(w, r, n)
			case !strings.HasSuffix(r.URL.Path, c.path) && !(strings.HasSuffix(c.path, ":") && strings.Contains(r.URL.Path, c.path)):
				if c.path == "/token" && r.URL.Path == "/v2/" {
					challenge(w)
					return true
				}
				return false
			}
			return c.fault(w, r, n)
		})
		cl := client(t, Options{Dir: t.TempDir()})
		cl.stall = 50 * time.Millisecond
		_, err := pull(t.Context(), cl, ref)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A manifest can name any layer that is there as its configuration.
func TestDocument_Layer(t *testing.T) {
	long := make([]byte, DocumentLimit+1)
	h, n, err := v1.SHA256(bytes.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := blobs.New(dir).Save(v1.Descriptor{Digest: h, Size: n}, bytes.NewReader(long)); err != nil {
		t.Fatal(err)
	}
	var refused *Refused
	data, err := client(t, Options{Dir: dir, Offline: true}).Document(t.Context(), tag(t, "registry.test/a").Context(), v1.Descriptor{Digest: h, Size: n})
	if !errors.As(err, &refused) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// A registry that knows no HEAD, or answers it without a digest, is asked by GET.
func TestNoHead(t *testing.T) {
	reg := registrytest.Serve(t)
	img := picture(t, 1)
	ref := tag(t, reg.Push("image:1", img))
	for name, fault := range map[string]registrytest.Fault{"405": registrytest.Status(405), "no digest": registrytest.Status(200)} {
		reg.Reset(registrytest.First(9, "HEAD manifests", fault))
		h, err := client(t, Options{}).Resolve(t.Context(), ref)
		if want, _ := img.Digest(); err != nil || h != want || reg.Counts() != "HEAD 1, manifests 1, blobs 0" {
			t.Errorf("%s: %v, %v, %s", name, h, err, reg.Counts())
		}
	}
}

// Without a network, what is there serves.
func TestOffline(t *testing.T) {
	reg := registrytest.Serve(t)
	there, not := tag(t, reg.Push("there:1", picture(t, 1))), tag(t, reg.Push("not:1", picture(t, 1)))
	dir := t.TempDir()
	lock := filepath.Join(dir, "lock.json")
	if _, err := pull(t.Context(), client(t, Options{Dir: dir, Lock: lock}), there); err != nil {
		t.Fatal(err)
	}
	reg.Close()
	cl := client(t, Options{Dir: dir, Lock: lock, Offline: true})
	h, err := pull(t.Context(), cl, there)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t.Context(), cl, not); !errors.Is(err, ErrOffline) {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, blobs.Path(h))); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t.Context(), cl, there); !errors.Is(err, ErrOffline) {
		t.Error(err)
	}
}

// In a cache that only others may write to, what describes an image can be
// asked for all the same. /sys takes no folder from anybody.
func TestReadOnly(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := tag(t, reg.Push("image:1", picture(t, 1)))
	o := Options{Dir: "/sys/fence-test", Lock: "/sys/fence-test/lock.json"}
	cl := client(t, o)
	for range 2 {
		if _, _, err := cl.Top(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	if got := reg.Counts(); got != "HEAD 1, manifests 1, blobs 0" {
		t.Error(got)
	}
	if _, err := pull(t.Context(), cl, ref); err == nil || !strings.Contains(err.Error(), "fetching the layer") || !readOnly(err) {
		t.Error(err)
	}
	o.LockMust = true
	if _, err := client(t, o).Resolve(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "in the lock file") {
		t.Error(err)
	}
}
