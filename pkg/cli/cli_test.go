package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
		out  string
	}{
		{nil, 0, ""},
		{Exit(No), 1, ""},
		{errors.New("flag provided but not defined: -x"), 2, "t: flag provided but not defined: -x\nhint: run 't --help' for the flags\n"},
		{&Error{Code: NotFenced, Err: errors.New("no"), Hint: "a\nb"}, 125, "t: no\nhint: a\nhint: b\n"},
		{fmt.Errorf("while x: %w", &Error{Code: Unknown, Err: errors.New("y")}), 3, "t: while x: y\n"},
	} {
		var b bytes.Buffer
		if code := Report(&b, "t", tc.err); code != tc.code || b.String() != tc.out {
			t.Errorf("Report(%v) = %d, %q; want %d, %q", tc.err, code, b.String(), tc.code, tc.out)
		}
	}
}

func TestSuggest(t *testing.T) {
	for got, want := range map[string]string{"strickt": "strict", "built": "build", "xyzzy": ""} {
		if s := Suggest(got, []string{"strict", "build", "verifier"}); s != want {
			t.Errorf("Suggest(%q) = %q, want %q", got, s, want)
		}
	}
}

// What others named, a folder in /tmp for one, is in messages.
func TestReport_DoesNothingToATerminal(t *testing.T) {
	var b strings.Builder
	Report(&b, "fence", &Error{Code: Usage, Err: errors.New("/tmp/ssh-\x1b]0;x\a\nfence: all is well"), Hint: "one\ntwo \u009b31m"})
	if want := "fence: /tmp/ssh-\\x1b]0;x\\a\\nfence: all is well\nhint: one\nhint: two \\u009b31m\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
