// Package registry fetches images by their digests: from a folder of blobs that
// processes and nodes share, else from a registry's mirrors in order, else from
// the registry.
//
// A registry is asked as rarely as possible, since registries count: what a tag
// leads to is asked once, by HEAD, and written to a lock file; what the folder
// has is not fetched again, and what several want at a time is fetched once. A
// registry that takes no more requests is left alone until it wants to hear
// again; the error says so at once, and until when, so that whoever needs
// another registry goes on.
//
// All content is compared with its digest, wherever it comes from.
package registry

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"fence/pkg/internal/blobs"
)

// Options say where images come from.
type Options struct {
	// Dir is the folder that blobs are kept in, made when it is first needed;
	// "" keeps what describes an image in memory, and fetches no layer.
	Dir string
	// Lock is the file that says what tags lead to; "" keeps that in memory.
	// UpdateLock asks the registries again, once, for each tag that is wanted.
	Lock       string
	UpdateLock bool
	// LockMust: a lock file that cannot be written is an error. Else what a tag
	// leads to is asked again the next time.
	LockMust bool
	Mirrors  []Mirror // of one registry, in the order in which they are asked
	Limits   []Limit
	Offline  bool // no request is made
	Clock    Clock
}

// Clock is the time; the zero value is this machine's.
type Clock struct {
	Now   func() time.Time
	Sleep func(context.Context, time.Duration) error // returns early with ctx's error
}

// Client asks registries. It can be used by several goroutines.
type Client struct {
	o       Options
	clock   Clock
	blobs   *blobs.Store
	pins    *pins
	keys    *keychain
	wire    http.RoundTripper
	stall   time.Duration // how long a transfer may stand still
	flights *flights

	mu    sync.Mutex
	hosts map[string]*host
	seen  map[string][]byte   // documents that could not be kept, by digest
	from  map[string][]string // who gave what of an image's repository, by its name
}

// tries is how often something transient is tried; patience is how long the
// first wait is at most, and doubles.
const (
	tries    = 3
	patience = 2 * time.Second
)

// New is a Client. It is an error if there is a lock file that cannot be read.
func New(o Options) (*Client, error) {
	if o.Clock.Now == nil {
		o.Clock.Now = time.Now
	}
	if o.Clock.Sleep == nil {
		o.Clock.Sleep = sleep
	}
	p, err := readPins(o)
	if err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	t.MaxIdleConnsPerHost = 8
	return &Client{o: o, clock: o.Clock, blobs: blobs.New(o.Dir), pins: p, keys: &keychain{failed: map[string]string{}}, wire: t, stall: time.Minute,
		flights: &flights{busy: map[string]chan struct{}{}}, hosts: map[string]*host{}, seen: map[string][]byte{}, from: map[string][]string{}}, nil
}

// Now is the time by the Client's clock.
func (c *Client) Now() time.Time { return c.clock.Now() }

// Sleep waits by the Client's clock.
func (c *Client) Sleep(ctx context.Context, d time.Duration) error { return c.clock.Sleep(ctx, d) }

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// host is the registry or mirror reg.
func (c *Client) host(reg name.Registry) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := reg.RegistryStr()
	h := c.hosts[key]
	if h == nil {
		var pulls bucket
		for _, l := range c.o.Limits {
			if l.Registry.RegistryStr() == key {
				pulls = l.bucket()
			}
		}
		// Asked again now and then: a helper's answer can be a token that ends.
		auth, err := authn.RefreshingKeychain(c.keys, 10*time.Minute).Resolve(reg)
		if err != nil {
			panic("BUG: " + err.Error()) // a keychain has no error
		}
		h = &host{c: c, reg: reg, auth: auth, conns: map[string]*http.Client{}, gate: newGate(pulls, func(d time.Duration) time.Duration { return rand.N(d + 1) })}
		c.hosts[key] = h
	}
	return h
}

// State is what is known of a registry or mirror that has been asked.
type State struct {
	Registry string
	// Until is when it is asked again; the zero time is now. Pulls says that
	// only pulls wait, which it counts.
	Until time.Time
	Pulls bool
	Why   string // of Until, one line
	// Limit and Remaining are what it last said of its limit on pulls, such as
	// 100;w=21600; "" for nothing.
	Limit, Remaining string
}

// States are those of all that have been asked, by name.
func (c *Client) States() []State {
	c.mu.Lock()
	hosts := make([]*host, 0, len(c.hosts))
	for _, h := range c.hosts {
		hosts = append(hosts, h)
	}
	c.mu.Unlock()
	now := c.clock.Now()
	var all []State
	for _, h := range hosts {
		h.mu.Lock()
		s := State{Registry: show(h.reg), Limit: h.gate.limit, Remaining: h.gate.remaining}
		for _, b := range []*breaker{&h.gate.counted, &h.gate.all} {
			if now.Before(b.until) {
				s.Until, s.Pulls, s.Why = b.until, b == &h.gate.counted, h.closed(b).Error()
			}
		}
		h.mu.Unlock()
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Registry, b.Registry) })
	return all
}

// A source is one place that may have what a repository has.
type source struct {
	*host
	repo name.Repository
}

// sources are where a repository's images may be: mirrors in order, then the
// registry itself.
func (c *Client) sources(repo name.Repository) []source {
	var all []source
	for _, m := range c.o.Mirrors {
		if m.Of.RegistryStr() == repo.RegistryStr() {
			all = append(all, source{c.host(m.At), m.repo(repo)})
		}
	}
	return append(all, source{c.host(repo.Registry), repo})
}

// ask asks the sources of a repository, one after the other, until one gives
// what use wants; and all again, after a while, if what went wrong is likely to
// pass. It says which one it was.
func (c *Client) ask(ctx context.Context, repo name.Repository, use func(source) error) (string, error) {
	all := c.sources(repo)
	failed := make([]error, len(all))
	for n := range tries {
		if n > 0 {
			// Full jitter: many builds that failed together do not come back together.
			if err := c.clock.Sleep(ctx, rand.N(patience<<(n-1))); err != nil {
				return "", err
			}
		}
		again := false
		for i, s := range all {
			if failed[i] != nil && !transient(failed[i]) {
				continue // a refusal, or a gate that is closed
			}
			err := use(s)
			switch {
			case err == nil:
				c.answered(repo, s.repo)
				return Show(s.repo.Name()), nil
			case ctx.Err() != nil:
				return "", ctx.Err()
			case tooMany(err):
				err = s.limited()
			case transient(err):
				s.failed(err)
				s.forget(s.repo)
				again = true
			}
			failed[i] = err
		}
		if !again {
			break
		}
	}
	return "", c.verdict(all, failed)
}

// answered notes who gave something of a repository.
func (c *Client) answered(repo, by name.Repository) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := Show(by.Name()); !slices.Contains(c.from[repo.Name()], at) {
		c.from[repo.Name()] = append(c.from[repo.Name()], at)
	}
}

// From are the places that gave this Client something of a repository, the
// first first; none if all of it was there.
func (c *Client) From(repo name.Repository) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.from[repo.Name()])
}
