package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// bars of so many parts under way.
func bars(n int, name string) (*Bars, time.Time) {
	at := time.Unix(1000, 0)
	b := NewBars(nil, "tool", "images", "are being built")
	b.total, b.ended, b.note, b.began = 40, 10, "2 failed, ", at
	for i := range n {
		b.running[fmt.Sprint("key", i)] = bar{fmt.Sprintf("%s%d", name, i), "RUN echo \x1b[31m" + strings.Repeat("word ", 50), 2, 4, at.Add(time.Duration(i) * time.Second)}
	}
	return b, at.Add(100 * time.Second)
}

// Whatever is being built, the bars fit the terminal and none wraps.
func TestBars_FitsTheTerminal(t *testing.T) {
	for _, columns := range []int{40, 80, 120} {
		for _, n := range []int{0, 1, 4, 20, 100} {
			for _, name := range []string{"a", "a-rather-long-name-of-a-task-from-some-dataset-number-", "世界"} {
				p, now := bars(n, name)
				lines := p.lines(columns, 24, now)
				if want := min(n, 21) + 1; len(lines) != want {
					t.Errorf("%d builds in %d columns: %d lines, want %d", n, columns, len(lines), want)
				}
				for _, l := range lines {
					if utf8.RuneCountInString(l) >= columns || strings.ContainsAny(l, "\x1b\n") {
						t.Errorf("%d columns: %q", columns, l)
					}
				}
			}
		}
	}
	p, now := bars(23, "task-")
	lines := p.lines(80, 24, now)
	if want := "task-0  [#####.....]  2/4   1m40s  RUN echo \\x1b[31mword word word word word wo"; lines[0] != want {
		t.Errorf("%q, want %q", lines[0], want)
	}
	if want := "[#####...............] 10 of 40 images, 2 failed, 1m40s; 2 more are being built"; lines[21] != want {
		t.Errorf("%q, want %q", lines[21], want)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0.0s", -time.Second: "0.0s", 3250 * time.Millisecond: "3.2s", 41 * time.Second: "41s", 723 * time.Second: "12m03s", 90 * time.Minute: "90m00s"} {
		if got := Span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
