package clitest

import (
	"bytes"
	"os"
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

// FullDisk runs a tool's subcommands, each with some lines of arguments,
// while standard output takes nothing: each must say so, and end with 3.
func FullDisk(t *testing.T, tool string, commands []*cli.Command, lines map[string][]string) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	names := []string{""}
	for _, c := range commands {
		names = append(names, c.Name)
	}
	for _, name := range names {
		if len(lines[name]) == 0 {
			t.Errorf("%s %s: not tried", tool, name)
		}
		for _, line := range lines[name] {
			var stderr bytes.Buffer
			cmd := exec.Command(tool, strings.Fields(name+" "+line)...)
			cmd.Stdout, cmd.Stderr = full, &stderr
			err := cmd.Run()
			want := "\n" + tool + ": writing to standard output: no space left on device\nhint: "
			if cmd.ProcessState.ExitCode() != 3 || !strings.Contains("\n"+stderr.String(), want) {
				t.Errorf("%s %s %s >/dev/full: %v\n%s", tool, name, line, err, stderr.String())
			}
		}
	}
}
