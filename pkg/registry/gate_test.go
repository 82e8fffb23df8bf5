package registry

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// A gate as a line of events and what it says to each. Times are after the
// beginning; the random part of a pause is the whole of it.
func TestGate(t *testing.T) {
	hub := header("Ratelimit-Limit", "100;w=21600", "Ratelimit-Remaining", "5;w=21600")
	last := header("Ratelimit-Limit", "100;w=21600", "Ratelimit-Remaining", "0;w=21600")
	type event struct {
		at   string // time
		what string // pull or ask: may it be made? else what came of one: ok, 429, fail, gone; and those of a pull: pull-ok, ...
		h    http.Header
		want string // "" is: yes; else until when not
	}
	for _, c := range []struct {
		name   string
		events []event
	}{
		{"Retry-After", []event{
			{"0s", "ask", nil, ""}, {"0s", "429", header("Retry-After", "3600"), "1h0m0s"},
			{"1s", "ask", nil, "1h0m0s"}, {"59m", "pull", nil, "1h0m0s"},
			{"1h", "ask", nil, ""}, {"1h", "ask", nil, "1h0m2s"}, {"1h", "pull", nil, "1h0m2s"}, // one finds out
			{"1h", "ok", nil, ""}, {"1h", "ask", nil, ""}, {"1h", "ask", nil, ""},
		}},
		{"a date", []event{{"0s", "429", header("Retry-After", "Thu, 01 Jan 1970 00:10:00 GMT"), "10m0s"}, {"9m", "ask", nil, "10m0s"}, {"10m", "ask", nil, ""}}},
		{"no word of when", []event{
			{"0s", "429", nil, "1m0s"}, {"1m", "ask", nil, ""}, {"1m", "429", nil, "3m0s"}, {"3m", "ask", nil, ""}, {"3m", "429", nil, "7m0s"},
			{"7m", "ask", nil, ""}, {"7m", "429", nil, "15m0s"}, {"15m", "ask", nil, ""}, {"15m", "429", nil, "30m0s"}, {"30m", "ask", nil, ""}, {"30m", "429", nil, "45m0s"},
		}},
		{"many that were refused together count as one", []event{{"0s", "429", nil, "1m0s"}, {"1s", "429", nil, "1m0s"}, {"2s", "429", nil, "1m0s"}, {"3s", "429", header("Retry-After", "90"), "1m33s"}}},
		{"an answer from before does not open it", []event{{"0s", "429", nil, "1m0s"}, {"1s", "ok", nil, ""}, {"2s", "ask", nil, "1m0s"}}},
		{"a limit on pulls stops pulls", []event{
			{"0s", "pull", nil, ""}, {"0s", "pull-429", header("Ratelimit-Limit", "100;w=21600", "Retry-After", "600"), "10m0s"},
			{"1s", "pull", nil, "10m0s"}, {"1s", "ask", nil, ""}, {"1s", "ok", nil, ""}, {"2s", "pull", nil, "10m0s"}, {"10m", "pull", nil, ""},
		}},
		{"another limit stops all", []event{{"0s", "pull-429", header("Retry-After", "600"), "10m0s"}, {"1s", "ask", nil, "10m0s"}}},
		{"the last pull of a limit", []event{{"0s", "pull-ok", hub, ""}, {"0s", "pull", nil, ""}, {"0s", "pull-ok", last, ""}, {"1s", "pull", nil, "1m0s"}, {"1s", "ask", nil, ""}, {"1m", "pull", nil, ""}}},
		{"failures", []event{
			{"0s", "fail", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "ask", nil, ""}, {"0s", "fail", nil, "20s"},
			{"1s", "fail", nil, "20s"}, {"20s", "ask", nil, ""}, {"20s", "fail", nil, "1m0s"}, {"1m", "ask", nil, ""}, {"1m", "ok", nil, ""},
			{"1m", "fail", nil, ""}, {"1m", "ask", nil, ""},
		}},
		{"failures with answers between", []event{
			{"0s", "fail", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "ok", nil, ""}, {"0s", "fail", nil, ""}, {"0s", "ask", nil, ""},
		}},
		{"whoever finds out gives up", []event{{"0s", "429", nil, "1m0s"}, {"1m", "ask", nil, ""}, {"1m", "gone", nil, ""}, {"1m", "ask", nil, ""}}},
		{"a year", []event{{"0s", "429", header("Retry-After", "31536000"), "24h0m0s"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate(bucket{}, func(d time.Duration) time.Duration { return d })
			begin := time.Unix(0, 0)
			for i, e := range c.events {
				at, err := time.ParseDuration(e.at)
				if err != nil {
					t.Fatal(err)
				}
				now := begin.Add(at)
				what, pull := strings.CutPrefix(e.what, "pull")
				what = strings.TrimPrefix(what, "-")
				var closed *breaker
				switch what {
				case "", "ask":
					_, closed = g.admit(now, pull)
				case "ok":
					g.answered(now, pull, e.h)
				case "429":
					closed = g.refused(now, pull, retryAfter(e.h.Get("Retry-After"), now), e.h)
				case "fail":
					closed = g.failed(now, pull, 0, errors.New("x"))
				case "gone":
					g.abandoned(pull)
				default:
					t.Fatalf("%q", what)
				}
				got := ""
				if closed != nil {
					got = closed.until.Sub(begin).String()
				}
				if got != e.want {
					t.Errorf("%d: at %s, %s: %q, not %q", i, e.at, e.what, got, e.want)
				}
			}
		})
	}
}

func TestGate_Bucket(t *testing.T) {
	g := newGate(bucket{}, func(d time.Duration) time.Duration { return d })
	now := time.Unix(0, 0)
	for range atOnce {
		if wait, closed := g.admit(now, false); wait != 0 || closed != nil {
			t.Fatalf("within what goes at once: %v, %v", wait, closed)
		}
	}
	for n := range 3 {
		if wait, _ := g.admit(now, false); wait != time.Duration(n+1)*time.Second/perSecond {
			t.Errorf("request %d too many waits %v", n+1, wait)
		}
	}
	if wait, _ := g.admit(now.Add(time.Hour), false); wait != 0 {
		t.Errorf("an hour later: %v", wait)
	}
}

// A limit that a person has set holds for pulls, and for nothing else.
func TestGate_Limit(t *testing.T) {
	l, err := ParseLimit("docker.io=3/6h")
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(l.bucket(), func(d time.Duration) time.Duration { return d })
	now := time.Unix(0, 0)
	for range 3 {
		if _, closed := g.admit(now, true); closed != nil {
			t.Fatal(closed)
		}
	}
	_, closed := g.admit(now, true)
	if closed == nil || closed.until.Sub(now) != 2*time.Hour || closed.limit != "3 pulls in 6h0m0s, as set by --registry-limit" {
		t.Fatalf("%+v", closed)
	}
	if _, closed := g.admit(now, false); closed != nil {
		t.Error("no pull, and stopped")
	}
	if _, closed := g.admit(now.Add(2*time.Hour), true); closed != nil {
		t.Errorf("two hours later: %+v", closed)
	}
	if _, closed := g.admit(now.Add(2*time.Hour), true); closed == nil {
		t.Error("two at a time, two hours later")
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Duration{"": 0, "90": 90 * time.Second, " 90 ": 90 * time.Second, "-1": 0, "x": 0, "99999999999999999": longest, "999999999999999999999999": 0,
		now.Add(time.Hour).Format(http.TimeFormat): time.Hour, now.Add(-time.Hour).Format(http.TimeFormat): 0, now.Add(999 * time.Hour).Format(http.TimeFormat): longest} {
		if got := retryAfter(s, now); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestAllowance(t *testing.T) {
	for s, want := range map[string]string{"100;w=21600": "100 true", "0": "0 true", " 7 ;x": "7 true", "": "0 false", "x;w=1": "0 false", "-1": "-1 false"} {
		n, ok := allowance(s)
		if got := fmt.Sprint(n, ok); got != want {
			t.Errorf("%q: %s", s, got)
		}
	}
}

// Whatever a registry says, nobody waits for ever or for less than nothing.
func FuzzHeaders(f *testing.F) {
	f.Add("90", "100;w=21600", "0;w=21600")
	f.Add("Thu, 01 Jan 2026 00:10:00 GMT", "", "")
	f.Add("-9223372036854775808", "9223372036854775808", ";")
	now := time.Unix(1<<30, 0)
	f.Fuzz(func(t *testing.T, after, limit, remaining string) {
		h := http.Header{"Retry-After": {after}, limitHeader: {limit}, remainingHeader: {remaining}}
		d := retryAfter(after, now)
		if d < 0 || d > longest {
			t.Fatalf("%q: %v", after, d)
		}
		g := newGate(bucket{}, func(d time.Duration) time.Duration { return d })
		g.answered(now, true, h)
		for _, pull := range []bool{true, false} {
			b := g.refused(now, pull, d, h)
			if until := b.until.Sub(now); until <= 0 || until > longest {
				t.Fatalf("%v: until %v", h, until)
			}
		}
		if _, closed := g.admit(now.Add(longest), true); closed != nil {
			t.Fatalf("%v: closed after a day", h)
		}
	})
}
