package cli

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func testApp(run func(*cli.Context) error) *cli.App {
	return &cli.App{
		Name:  "t",
		Flags: []cli.Flag{&cli.StringFlag{Name: "out", Aliases: []string{"o"}}},
		Commands: []*cli.Command{
			{Name: "gate", Action: run, Flags: []cli.Flag{
				&cli.StringFlag{Name: "before"}, &cli.StringFlag{Name: "expect"}, &cli.BoolFlag{Name: "json"}}},
			{Name: "run", ArgsUsage: "-- CMD [ARG...]", Action: run, Flags: []cli.Flag{
				&cli.StringFlag{Name: "domain"}, &cli.BoolFlag{Name: "tty"}}},
			{Name: "exec", UsageText: "t exec [--tty] -- CMD", Action: run, Flags: []cli.Flag{&cli.BoolFlag{Name: "tty"}}},
			{Name: "show", UsageText: "t show X [--json]", Action: run, Flags: []cli.Flag{&cli.BoolFlag{Name: "json"}}},
			{Name: "raw", SkipFlagParsing: true, Action: run},
		},
		Action: run,
	}
}

func TestReorder(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"gate after.json --before b.json --expect strict", "gate --before b.json --expect strict after.json"},
		{"gate --json a --expect=strict b", "gate --json --expect=strict a b"},
		{"gate a -json b", "gate -json a b"},
		{"gate - --expect -", "gate --expect - -"},
		{"gate a --expect", "gate --expect"}, // and so the parser says that a value is missing
		{"gate a --before --expect strict", "gate --before"},
		{"gate a --before -json", "gate --before"},
		{"gate a --before --nonsense", "gate --before"},
		{"gate a --before -- x", "gate --before"},
		{"gate a --before=--expect --expect -5", "gate --before=--expect --expect -5 a"},
		{"gate a --nonsense b", "gate --nonsense a b"},
		{"gate a -- --before x", "gate -- a --before x"},
		{"gate -- a --before", "gate -- a --before"},
		{"run x --tty", "run x --tty"},
		{"run --tty x --domain", "run --tty x --domain"},
		{"run --domain -- x", "run --domain"},
		{"run --domain gate -- x --tty", "run --domain gate -- x --tty"},
		{"gate after.json --help", "gate --help"},
		{"nosuch --help", "nosuch"},
		{"exec x --help", "exec x --help"},
		{"exec x --tty", "exec x --tty"},
		{"show x --json", "show --json x"},
		{"raw a --json", "raw a --json"},
		{"-o f gate a --json", "-o f gate --json a"},
		{"-o gate gate a --json", "-o gate gate --json a"},
		{"nosuch --out f", "--out f nosuch"},
		{"", ""},
	} {
		got := strings.Join(Reorder(testApp(nil), append([]string{"t"}, strings.Fields(tc.in)...)), " ")
		if want := strings.TrimSpace("t " + tc.want); got != want {
			t.Errorf("Reorder(%q) = %q, want %q", tc.in, got, want)
		}
	}
	if got := Reorder(testApp(nil), nil); got != nil {
		t.Errorf("Reorder(nil) = %q", got)
	}
}

func TestHelp(t *testing.T) {
	for in, want := range map[string]string{
		"t":                "t",
		"t help":           "t --help",
		"t help gate":      "t gate --help",
		"t help help":      "t help --help",
		"t help --":        "t --help",
		"t help -- rm x":   "t --help",
		"t help gate -j":   "t gate --help",
		"t gate help":      "t gate help",
		"t -- help":        "t -- help",
		"t --tty -- help":  "t --tty -- help",
		"t --domain help":  "t --domain help",
		"t help --help":    "t --help",
		"t helpful advice": "t helpful advice",
	} {
		if got := strings.Join(Help(strings.Fields(in)), " "); got != want {
			t.Errorf("Help(%q) = %q, want %q", in, got, want)
		}
	}
}

// Whatever the words, none may be lost or made up: each is an argument of
// somebody.
func FuzzReorder(f *testing.F) {
	f.Add("gate after.json --before b.json -- x")
	f.Add("run --tty -- --tty")
	f.Fuzz(func(t *testing.T, line string) {
		in := append([]string{"t"}, strings.Fields(line)...)
		out := Reorder(testApp(nil), in)
		if len(out) < len(in) { // help, or a value is missing at the end: refused by the parser
			if slices.Contains(in, "--help") || slices.Contains(in, "-h") {
				return
			}
			if app := testApp(func(*cli.Context) error { return nil }); Main(app, in) != Usage {
				t.Errorf("Reorder(%q) = %q, and the parser takes it", in, out)
			}
			return
		}
		a, b := slices.Sorted(slices.Values(in)), slices.Sorted(slices.Values(out))
		if !slices.Equal(a, b) {
			t.Errorf("Reorder(%q) = %q", in, out)
		}
	})
}

func TestMain_FlagsAfterArguments(t *testing.T) {
	var got []string
	app := testApp(func(c *cli.Context) error {
		got = []string{c.String("before"), c.String("expect"), strings.Join(c.Args().Slice(), "+")}
		return nil
	})
	code := Main(app, []string{"t", "gate", "after.json", "--before", "b.json", "--expect", "strict"})
	if want := []string{"b.json", "strict", "after.json"}; code != OK || !slices.Equal(got, want) {
		t.Errorf("code %d, got %q, want %q", code, got, want)
	}
}

func TestMain_UnknownFlag(t *testing.T) {
	app := testApp(nil)
	prepare(app)
	err := app.Run(Reorder(app, []string{"t", "gate", "a", "--exect", "strict"}))
	var e *Error
	if !errors.As(err, &e) || e.Code != Usage || e.Error() != "unknown flag --exect" || !strings.Contains(e.Hint, "did you mean --expect?") {
		t.Errorf("got %#v", err)
	}
}

func TestMain_BadValue(t *testing.T) {
	for line, want := range map[string]string{
		"t gate a --expect":             "--expect needs a value: --expect VALUE",
		"t gate a --file --expect nine": "--file needs a value: --file NAME",
		"t gate -n nine":                `-n: "nine" is not a value that it takes`,
		"t gate --n=9e9":                `-n: "9e9" is not a value that it takes`,
		"t gate --wait x":               `--wait: "x" is not a value that it takes; a time has a unit: --wait 30s`,
		"t gate --wait 30d":             `--wait: "30d" is not a value that it takes; a time has a unit, h at most: --wait 720h`,
		"t gate --wait -1d":             `--wait: "-1d" is not a value that it takes; a time has a unit: --wait 30s`,
		"t gate --wait 5":               `--wait: "5" is not a value that it takes; a time has a unit: --wait 5s`,
		"t gate --wait=1.5":             `--wait: "1.5" is not a value that it takes; a time has a unit: --wait 1.5s`,
	} {
		app := testApp(nil)
		app.Commands[0].Flags = append(app.Commands[0].Flags, &cli.IntSliceFlag{Name: "n"}, &cli.DurationFlag{Name: "wait"},
			&cli.StringFlag{Name: "file", Usage: "the `NAME` of it"})
		prepare(app)
		err := app.Run(Reorder(app, strings.Fields(line)))
		want, hint, ok := strings.Cut(want, "; ")
		if !ok {
			hint = "run 't gate --help' for the flags"
		}
		var e *Error
		if !errors.As(err, &e) || e.Code != Usage || e.Error() != want || e.Hint != hint {
			t.Errorf("%s: got %#v, want %s", line, err, want)
		}
	}
}

func TestIsTerminal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if IsTerminal(f) || IsTerminal(&bytes.Buffer{}) || Columns(f) != 80 {
		t.Error("/dev/null and a buffer are no terminals")
	}
}
