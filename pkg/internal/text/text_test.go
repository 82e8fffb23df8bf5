package text

import "testing"

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
