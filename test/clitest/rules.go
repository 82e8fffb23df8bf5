package clitest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

// Help checks the help page of a tool and of every subcommand: it fits 80
// columns, lists the exit codes, and is what "help" prints too.
func Help(t *testing.T, tool string, commands []*cli.Command) {
	page := func(args ...string) string {
		out, err := exec.Command(tool, args...).Output()
		if err != nil {
			t.Errorf("%s %q: %v", tool, args, err)
		}
		return string(out)
	}
	var walk func([]string, []*cli.Command)
	walk = func(path []string, commands []*cli.Command) {
		text := page(slices.Concat(path, []string{"--help"})...)
		if short := page(slices.Concat([]string{"help"}, path)...); short != text {
			t.Errorf("%s help %q prints\n%s", tool, path, short)
		}
		if !strings.Contains(text, "Exit codes") {
			t.Errorf("%s %q: no exit codes in\n%s", tool, path, text)
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s %q: %d columns: %s", tool, path, n, line)
			}
		}
		for _, c := range commands {
			walk(slices.Concat(path, []string{c.Name}), c.Subcommands)
		}
	}
	walk(nil, commands)
}
