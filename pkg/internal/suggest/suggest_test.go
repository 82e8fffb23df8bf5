package suggest

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"strict", "build", "verifier", "as", ""}
	for got, want := range map[string]string{
		"strict": "strict", "strickt": "strict", "srtict": "strict", "built": "build", "ax": "as", "xy": "", "": "", "xyzzy": "", "verify": "", "verifie": "verifier",
		strings.Repeat("strict", 1<<20): "",
	} {
		if s := Nearest(got, known); s != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", got, s, want)
		}
	}
	if Hint("built", known) != "did you mean build?" || Hint("xyzzy", known) != "" || Nearest("x", nil) != "" {
		t.Error("the hint is wrong")
	}
}
