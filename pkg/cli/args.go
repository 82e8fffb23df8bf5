package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// Reorder moves the flags of a command in front of its arguments, because
// urfave/cli stops at the first argument and takes what follows for more of
// them: "probe gate after.json --expect strict" must mean what it says.
//
// A command line that belongs to another command is left alone: nothing
// moves behind "--", nor in a command whose ArgsUsage or UsageText has a "--"
// of its own ("fence run -- CMD"). Flags before a subcommand's name stay the
// parent's.
func Reorder(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return nil
	}
	root := &cli.Command{Flags: app.Flags, Subcommands: app.Commands, ArgsUsage: app.ArgsUsage, UsageText: app.UsageText}
	return append([]string{args[0]}, reorder(root, args[1:])...)
}

// Help makes of "TOOL help [COMMAND]" what it is short for, "TOOL [COMMAND]
// --help". What stands behind flags or "--" is somebody else's.
func Help(args []string) []string {
	if len(args) < 2 || args[1] != "help" {
		return args
	}
	line := []string{args[0]}
	for _, a := range args[2:] {
		if strings.HasPrefix(a, "-") {
			break
		}
		line = append(line, a)
	}
	return append(line, "--help")
}

func reorder(c *cli.Command, args []string) []string {
	if c.SkipFlagParsing {
		return args
	}
	var flags, rest []string
	runsAnother := slices.Contains(strings.Fields(c.ArgsUsage+" "+c.UsageText), "--")
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			return append(append(flags, args[i]), append(rest, args[i+1:]...)...)
		case a == "--help" || a == "-h":
			if len(rest) > 0 && len(c.Subcommands) > 0 {
				return rest // no subcommand: for the command to refuse
			}
			return []string{a} // the parser takes an argument beside it for a topic
		case len(a) > 1 && a[0] == '-':
			flags = append(flags, a)
			if !takesNext(c.Flags, a) {
				continue
			}
			if i++; i == len(args) || isFlag(c.Flags, args[i]) {
				return flags // the parser's to refuse: no argument may stand where the value is missing
			}
			flags = append(flags, args[i])
		case len(rest) == 0 && subcommand(c, a) != nil:
			return append(append(flags, a), reorder(subcommand(c, a), args[i+1:])...)
		case runsAnother:
			return append(append(flags, rest...), args[i:]...)
		default:
			rest = append(rest, a)
		}
	}
	return append(flags, rest...)
}

func subcommand(c *cli.Command, name string) *cli.Command {
	for _, s := range c.Subcommands {
		if s.HasName(name) {
			return s
		}
	}
	return nil
}

// takesNext says whether the word after arg is the value of arg. A flag that
// nobody declared takes none: the parser will refuse it by name.
func takesNext(flags []cli.Flag, arg string) bool {
	d, ok := declared(flags, strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")).(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// isFlag says that a word is no value of the flag before it, as the parser
// would take it: "--before --expect strict" lacks one. --before=--expect
// means it.
func isFlag(flags []cli.Flag, word string) bool {
	return strings.HasPrefix(word, "--") || strings.HasPrefix(word, "-") && declared(flags, word[1:]) != nil
}

// declared is the flag of that name, nil if there is none.
func declared(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// describe is what a flag's usage says: the word for its value, "" if it
// takes none, and the text.
func describe(f cli.Flag) (value, text string) {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return "", ""
	}
	text = d.GetUsage()
	if before, rest, ok := strings.Cut(text, "`"); ok {
		if word, after, ok := strings.Cut(rest, "`"); ok {
			return word, before + word + after
		}
	}
	if d.TakesValue() {
		value = "VALUE"
	}
	return value, text
}

// flagNames lists the long names of c's flags, for Suggest.
func flagNames(c *cli.Command) []string {
	var names []string
	for _, f := range c.Flags {
		for _, n := range f.Names() {
			if len(n) > 1 {
				names = append(names, n)
			}
		}
	}
	return names
}

// usageError turns the flag parser's error into ours: it names the flag as it
// is typed, and an unknown flag gets the nearest known one as a hint.
func usageError(ctx *cli.Context, err error, _ bool) error {
	if ctx.Command == nil {
		return err
	}
	hint := "run '" + ctx.Command.HelpName + " --help' for the flags"
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		name = strings.TrimPrefix(name, "-")
		value, _ := describe(declared(ctx.Command.Flags, name))
		return Usagef(hint, "%s needs a value: %[1]s %s", dashed(name), value)
	}
	// The standard library's flag package: invalid value "x" for flag -n: WHY
	if rest, ok := strings.CutPrefix(err.Error(), "invalid value "); ok {
		if value, rest, ok := strings.Cut(rest, " for flag -"); ok {
			name, _, _ := strings.Cut(rest, ": ")
			name = strings.TrimPrefix(name, "-")
			if _, ok := declared(ctx.Command.Flags, name).(*cli.DurationFlag); ok {
				example := "30s"
				if n, err := strconv.Unquote(value); err == nil {
					if _, err := time.ParseDuration(n + "s"); err == nil {
						example = n + "s"
					}
				}
				hint = "a time has a unit: " + dashed(name) + " " + example
				if days, ok := inDays(value); ok { // time.ParseDuration knows no days
					hint = fmt.Sprintf("a time has a unit, h at most: %s %dh", dashed(name), 24*days)
				}
			}
			return Usagef(hint, "%s: %s is not a value that it takes", dashed(name), value)
		}
	}
	what, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return err
	}
	what = strings.TrimPrefix(what, "-")
	if near := Suggest(what, flagNames(ctx.Command)); near != "" {
		hint = "did you mean --" + near + "?\n" + hint
	}
	return Usagef(hint, "unknown flag %s", dashed(what))
}

// inDays is a quoted time such as "30d".
func inDays(quoted string) (days int, ok bool) {
	s, err := strconv.Unquote(quoted)
	if s, ok = strings.CutSuffix(s, "d"); err != nil || !ok {
		return 0, false
	}
	days, err = strconv.Atoi(s)
	return days, err == nil && days > 0 && days < 100_000
}

// IsTerminal says whether w is a terminal, so that a person reads it.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Columns is the width to lay text out for: the terminal's, else 80.
func Columns(w io.Writer) int {
	if f, ok := w.(interface{ Fd() uintptr }); ok {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col >= 40 {
			return int(ws.Col)
		}
	}
	return 80
}
