package text

import (
	"slices"
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		`/data/"x"\y é`:   `/data/"x"\y é`,
		"a\nfence: ok":    `a\nfence: ok`,
		"\x1b]0;x\a":      `\x1b]0;x\a`,
		"\x9b31m\xff":     `\x9b31m\xff`,
		"\u202egpj.exe":   `\u202egpj.exe`,
		"say \"x\"\tthen": `say "x"\tthen`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for _, c := range []struct {
		s       string
		columns int
		want    string
	}{
		{"short", 20, "short"}, {"exactly-twenty-long-", 20, "exactly-twenty-long-"},
		{"a-name-that-is-longer-01", 20, "a-name-that-..ger-01"}, {"a-name", 3, "a-n"}, {"a", 0, ""},
	} {
		if got := Short(c.s, c.columns); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.s, c.columns, got, c.want)
		}
	}
}

func TestFold(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                 {""},
		"a few words that go on and on":    {"a few words that go", "on and on"},
		"a " + strings.Repeat("b", 45):     {"a", strings.Repeat("b", 20), strings.Repeat("b", 20), strings.Repeat("b", 5)},
		"exactly twenty long. and another": {"exactly twenty long.", "and another"},
	} {
		if got := Fold(text, 20); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
