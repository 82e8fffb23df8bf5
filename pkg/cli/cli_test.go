package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
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

// The page of a command of which every line would be too wide.
func TestPrintHelp(t *testing.T) {
	long := strings.Repeat("word ", 30)
	c := &cli.Command{
		HelpName: "t gate", Usage: long, ArgsUsage: "AFTER",
		Description: "A paragraph.\nIts second line, " + long + "\n\nExamples:\n  t gate   as it is\n\n" + long,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "read", Usage: "let it read `PATH`, " + long},
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "a file", Value: "-"},
			&cli.StringFlag{Name: "a-name-that-leaves-no-room-for-text", Usage: long},
			&cli.BoolFlag{Name: "json", Usage: "JSON", DisableDefaultText: true},
		},
	}
	var b bytes.Buffer
	printHelp(&b, "", c)
	for _, want := range []string{
		"NAME:\n   t gate - word word", "\n            word ", "\nUSAGE:\n   t gate [flags] AFTER\n", "\n   A paragraph. Its second line, word",
		"\n   Examples:\n     t gate   as it is\n\n   word", "\n   --read PATH ...  let it read PATH, word", "\n   --a-name-that-leaves-no-room-for-text VALUE\n                    word",
		"\n   --out, -o VALUE  a file (default: \"-\")\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	if t.Failed() {
		t.Log(b.String())
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
