package registry

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A gate decides when a registry may be asked. It holds three things: a token
// bucket for all requests, one for pulls where a person has set a limit, and
// two breakers. What is asked is either a pull, which registries count (the GET
// of a manifest; Docker Hub counts nothing else), or another request: a
// registry that gives no more manifests still gives the layers of one.
//
// It knows no clock and does not wait: the time is an argument, and so tests of
// hours take none.
type gate struct {
	requests bucket
	pulls    bucket // of pulls; the zero value knows no limit
	// all is closed to every request, counted only to pulls.
	all, counted breaker
	failures     int // requests in a row that came to nothing
	// What the registry last said of its limit on pulls, such as 100;w=21600.
	limit, remaining string
	jitter           func(time.Duration) time.Duration // a part of it, at random
}

const (
	// A registry is asked this often a second, after as many at once: less than
	// any takes for abuse, and more than a run needs for long.
	perSecond, atOnce = 20, 40
	// failuresMax requests in a row that come to nothing close the gate.
	failuresMax = 5
	// The first pause after a limit whose end is not said, and after failures;
	// each doubles, up to pauseMax.
	pauseLimited, pauseFailed, pauseMax = time.Minute, 20 * time.Second, 15 * time.Minute
	// probing is when to come again while somebody finds out whether a
	// registry is back.
	probing = 2 * time.Second
	// longest is what a registry can ask for.
	longest = 24 * time.Hour
)

func newGate(pulls bucket, jitter func(time.Duration) time.Duration) *gate {
	return &gate{requests: bucket{rate: perSecond, size: atOnce, tokens: atOnce}, pulls: pulls, jitter: jitter}
}

// breaker is closed to requests until a time, then to all but one, until that
// one has an answer.
type breaker struct {
	strikes int // 0: open
	until   time.Time
	probe   bool   // one is on its way
	limited bool   // by a limit, not a failure
	limit   string // as the registry says it
	err     error  // the last failure
}

// bucket holds tokens, one for a request, and fills at rate a second up to size.
type bucket struct {
	rate, size, tokens float64
	at                 time.Time
	text               string // the limit as a person gave it
}

// take takes a token, also one that is not there yet: wait says when it will be.
func (b *bucket) take(now time.Time) (wait time.Duration) {
	if b.rate == 0 {
		return 0
	}
	b.fill(now)
	b.tokens--
	return b.missing(0)
}

func (b *bucket) fill(now time.Time) {
	if !b.at.IsZero() {
		b.tokens = min(b.size, b.tokens+b.rate*now.Sub(b.at).Seconds())
	}
	b.at = now
}

// missing is how long it takes until there are n tokens.
func (b *bucket) missing(n float64) time.Duration {
	if b.rate == 0 || b.tokens >= n {
		return 0
	}
	return time.Duration((n - b.tokens) / b.rate * float64(time.Second))
}

// admit says how long a request has to wait for its turn, or what is closed to
// it. Whoever is admitted says what came of it: answered, refused, failed or
// abandoned.
func (g *gate) admit(now time.Time, pull bool) (wait time.Duration, closed *breaker) {
	for _, b := range g.breakers(pull) {
		switch {
		case now.Before(b.until):
			return 0, b
		case b.probe:
			later := *b
			later.until = now.Add(probing)
			return 0, &later
		}
	}
	if pull {
		g.pulls.fill(now)
		if wait := g.pulls.missing(1); wait > 0 {
			return 0, &breaker{until: now.Add(wait), limited: true, limit: g.pulls.text}
		}
		g.pulls.take(now)
	}
	for _, b := range g.breakers(pull) {
		b.probe = b.strikes > 0
	}
	return g.requests.take(now), nil
}

func (g *gate) breakers(pull bool) []*breaker {
	if pull {
		return []*breaker{&g.all, &g.counted}
	}
	return []*breaker{&g.all}
}

// answered: the registry took the request. A pull that was the last of its
// limit closes the gate to the next.
func (g *gate) answered(now time.Time, pull bool, h http.Header) {
	g.failures = 0
	for _, b := range g.breakers(pull) {
		b.open(now)
	}
	g.noted(h)
	if n, ok := allowance(h.Get(remainingHeader)); pull && ok && n == 0 {
		g.counted.close(now, 0, g.pause(pauseLimited, 1), breaker{limited: true, limit: g.limit})
	}
}

// refused: the registry takes no more requests, or no more pulls, until after
// has passed; 0 is that it does not say.
func (g *gate) refused(now time.Time, pull bool, after time.Duration, h http.Header) *breaker {
	g.noted(h)
	b := &g.all
	if pull && h.Get(limitHeader) != "" {
		b.open(now)
		b = &g.counted
	}
	b.close(now, after, g.pause(pauseLimited, b.strikes+1), breaker{limited: true, limit: h.Get(limitHeader)})
	return b
}

// failed: the request came to nothing, by the network or by a registry that is
// broken. closed is not nil where the registry is not to be asked for a while,
// which it may have asked for itself (after).
func (g *gate) failed(now time.Time, pull bool, after time.Duration, err error) (closed *breaker) {
	g.failures++
	first := g.all.strikes == 0
	g.abandoned(pull)
	if after <= 0 && first && g.failures < failuresMax {
		return nil
	}
	g.all.close(now, after, g.pause(pauseFailed, g.all.strikes+1), breaker{err: err})
	return &g.all
}

// abandoned: nobody knows what the registry would have said.
func (g *gate) abandoned(pull bool) {
	for _, b := range g.breakers(pull) {
		b.probe = false
	}
}

// close closes b for as long as it was asked for, else for pause. Requests that
// were on their way when it was closed are no reason to wait longer, unless the
// registry says so.
func (b *breaker) close(now time.Time, asked, pause time.Duration, why breaker) {
	strikes, until := b.strikes+1, now.Add(pause)
	if asked > 0 {
		until = now.Add(min(asked, longest))
	}
	if now.Before(b.until) {
		if strikes = b.strikes; asked <= 0 || until.Before(b.until) {
			return
		}
	}
	*b = why
	b.strikes, b.until = strikes, until
}

// open opens b, unless what was answered had been asked before it was closed.
func (b *breaker) open(now time.Time) {
	if !now.Before(b.until) {
		*b = breaker{}
	}
}

// pause is a time that doubles with each strike, half of it at random: many
// that were refused together do not come back together.
func (g *gate) pause(first time.Duration, strikes int) time.Duration {
	d := min(first<<min(strikes-1, 20), pauseMax)
	return d/2 + g.jitter(d/2)
}

// The headers in which Docker Hub and others say what is left of a limit
// (draft-ietf-httpapi-ratelimit-headers, as Docker Hub writes it: 76;w=21600 is
// 76 pulls in a window of 21600 seconds).
const (
	limitHeader     = "Ratelimit-Limit"
	remainingHeader = "Ratelimit-Remaining"
)

func (g *gate) noted(h http.Header) {
	if l := h.Get(limitHeader); l != "" {
		g.limit = l
	}
	if r := h.Get(remainingHeader); r != "" {
		g.remaining = r
	}
}

// allowance reads one of these headers: a number, and more behind a semicolon.
func allowance(s string) (n int, ok bool) {
	number, _, _ := strings.Cut(s, ";")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	return n, err == nil && n >= 0
}

// retryAfter reads the header of that name, RFC 9110 10.2.3: seconds or a
// date. What it cannot read is 0.
func retryAfter(s string, now time.Time) time.Duration {
	if sec, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
		return time.Duration(min(max(sec, 0), int64(longest/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil && at.After(now) {
		return min(at.Sub(now), longest).Round(time.Second)
	}
	return 0
}
