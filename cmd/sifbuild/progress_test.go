package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"fence/pkg/build"
	"fence/test/clitest"
)

// On a terminal the bars are gone in the end, and what is done stays.
func TestProgress_Terminal(t *testing.T) {
	screen, tty := clitest.Terminal(t, 80)
	p := newProgress(tty)
	list := []build.Want{{Key: "a", Names: []string{"first"}}, {Key: "b", Names: []string{"second"}}, {Key: "c", Names: []string{"third"}}}
	p.Start()
	p.more(list)
	p.event(build.Event{Image: "a", Step: 1, Of: 2, Text: "RUN x"})
	p.done(list[0], &build.Report{Bytes: 3 << 20})
	p.done(list[1], &build.Report{Cached: true})
	p.done(list[2], &build.Report{Fault: &build.Fault{Class: "step", Message: "Dockerfile:1: RUN y: exit status 1"}})
	p.End()
	tty.Close()
	said, _ := io.ReadAll(screen) // until the last of its other side is closed
	if !bytes.HasSuffix(said, []byte("\x1b[1A\x1b[J")) {
		t.Errorf("the bars are still there: %q", said)
	}
	for _, want := range []string{"sifbuild: 1/3 first: built, 3.0M, in 0.0s\r\n", "sifbuild: 3/3 third: failed, step: Dockerfile:1: RUN y: exit status 1\r\n"} {
		if !bytes.Contains(said, []byte(want)) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	if bytes.Contains(said, []byte("second:")) {
		t.Errorf("a line for what was there: %q", said)
	}
}

// The table is as wide as the terminal, whatever the texts are, and names no
// more tasks than a person reads.
func TestTable(t *testing.T) {
	var rows [][3]string
	for i := range 50 {
		rows = append(rows, [3]string{fmt.Sprintf("task-%d-%s", i, strings.Repeat("x", 40)), "dockerfile", "environment/Dockerfile:3: " + strings.Repeat("word ", 30) + strings.Repeat("y", 100)}, [3]string{"", "", "hint: do it"})
	}
	for _, columns := range []int{60, 80, 120} {
		var out bytes.Buffer
		table(&out, columns, "NO IMAGE", rows)
		for line := range strings.Lines(out.String()) {
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > columns {
				t.Errorf("%d columns: %q", columns, line)
			}
		}
		if n := strings.Count(out.String(), "task-"); n != most || !strings.Contains(out.String(), "and 30 more: the records have all\n") {
			t.Errorf("%d tasks\n%s", n, out.String())
		}
	}
	var out bytes.Buffer
	log := "/" + strings.Repeat("z", 90) + ".log"
	table(&out, 80, "NO IMAGE", [][3]string{{"a", "step", "text"}, {"", logRow, log}, {"", logRow, "/short.log"}})
	if want := "NO IMAGE\na         step  text\n  log: " + log + "\n                log: /short.log\n\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	table(&out, 80, "NO IMAGE", nil)
	if out.Len() > 0 {
		t.Errorf("%q", out.String())
	}
}

// Who has seen no records is told where the images are.
func TestSummary_SaysWhere(t *testing.T) {
	for printed, want := range map[bool]bool{true: false, false: true} {
		var out bytes.Buffer
		o := recorder{print: printed, reports: []build.Report{{Key: "k", Image: "/cache/sif/k.sif", Smoke: "ok"}}}
		o.summary(&out, 80)
		if bytes.Contains(out.Bytes(), []byte("\nin /cache/sif: ")) != want {
			t.Errorf("printed %t: %s", printed, out.String())
		}
	}
}

func TestOnce(t *testing.T) {
	got := once([][3]string{{"a", "", "base"}, {"b", "", "base"}, {"b", "copy", "leak"}, {"c", "", "base"}, {"d", "", "other"}})
	want := [][3]string{{"b", "copy", "leak"}, {"a", "", "base (and 2 tasks more)"}, {"d", "", "other"}}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The last words are the command's, not the log's.
func TestLastSaid(t *testing.T) {
	for detail, want := range map[string]string{
		"": "",
		"== Dockerfile:2: RUN x\nfirst\nsh: 1: pip: not found\n": "sh: 1: pip: not found",
		"said before\n-- 1.0 s\n== Dockerfile:3: RUN false":      "",
	} {
		if got := lastSaid(detail); got != want {
			t.Errorf("%q: %q, want %q", detail, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "500": 500, "1K": 1024, "1.5M": 3 << 19, "200G": 200 << 30, "2T": 2 << 40} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "lots", "-1", "1X", "1 G G", "1GB", "NaN", "Inf", "1e400G", "9999999T"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}
