package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRecords(t *testing.T) {
	const text = "a\x7fb\u009bc\u202ed <é日\U000e0001\U0001f600\n\x1b"
	var out strings.Builder
	for range 2 {
		if err := Records(&out).Encode(map[string]string{text: text}); err != nil {
			t.Fatal(err)
		}
	}
	const word = `"a\u007fb\u009bc\u202ed <é日\udb40\udc01😀\n\u001b"`
	if want := strings.Repeat("{"+word+":"+word+"}\n", 2); out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var back map[string]string
		if err := json.Unmarshal([]byte(line), &back); err != nil || back[text] != text {
			t.Errorf("%v: read again as %q", err, back)
		}
	}
}
