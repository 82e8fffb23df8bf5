// Package cli is the one voice the four tools speak with: flags, exit codes,
// and errors that say what to do next. It holds no logic of its own.
package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"fence/pkg/internal/suggest"
	"fence/pkg/internal/text"
	"fence/pkg/internal/version"
)

// Exit codes, the same in every tool. fence alone adds NotFenced and the
// shell's two for a command that cannot be run.
const (
	OK        = 0   // every item has an answer; for gate, diff, validate, check: and it is yes
	No        = 1   // the answer is no
	Usage     = 2   // wrong flags or unreadable input; nothing was done
	Unknown   = 3   // could not tell, or an item ended in a fault
	NotFenced = 125 // fence only: not fenced and not run
	CannotRun = 126 // fence only: the command was found but cannot be executed
	NotFound  = 127 // fence only: there is no such command
)

// Error is an error with the exit code it ends the tool with and the next
// thing to try. A nil Err prints nothing and only sets the code.
type Error struct {
	Code int
	Err  error
	Hint string // one or more lines, each printed as a hint of its own
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an Error with code Usage.
func Usagef(hint, format string, a ...any) error {
	return &Error{Code: Usage, Err: fmt.Errorf(format, a...), Hint: hint}
}

// Exit returns an Error that ends the tool with code and prints nothing.
func Exit(code int) error { return &Error{Code: code} }

// Main runs app and returns the exit code, after printing an error in the
// form "TOOL: what went wrong" with its hints below. Flags may stand after
// arguments, see Reorder.
//
// Whatever app prints as its result goes to its Writer, which is standard
// output: if not all of it could be written, that is the error, whatever else
// came of the command.
func Main(app *cli.App, args []string) int {
	prepare(app)
	out := &output{file: os.Stdout}
	app.Writer = out
	err := app.Run(Reorder(app, Help(args)))
	if out.err != nil {
		err = &Error{Code: Unknown, Err: fmt.Errorf("writing to standard output: %w", out.err), Hint: "what is there is cut short; make room, or let it go elsewhere"}
	}
	return Report(os.Stderr, app.Name, err)
}

// output keeps the first error of writing to a file, so that nobody who
// prints needs to.
type output struct {
	file *os.File
	err  error
}

func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.file.Write(p)
	o.err = err
	var pe *fs.PathError
	if errors.As(err, &pe) {
		o.err = pe.Err
	}
	return n, o.err
}

// Fd lets IsTerminal and Columns ask the file.
func (o *output) Fd() uintptr { return o.file.Fd() }

// Report prints err for a person and returns the exit code that it means.
// An error that is not an *Error came from the flag parser: code Usage.
func Report(w io.Writer, tool string, err error) int {
	if err == nil {
		return OK
	}
	code, hint := Usage, "run '"+tool+" --help' for the flags"
	var e *Error
	if errors.As(err, &e) {
		code, hint = e.Code, e.Hint
		if e.Err == nil {
			return code
		}
	}
	fmt.Fprintf(w, "%s: %s\n", tool, text.Printable(strings.TrimSuffix(err.Error(), ".")))
	for _, line := range strings.Split(strings.TrimSpace(hint), "\n") {
		if line != "" {
			fmt.Fprintf(w, "hint: %s\n", text.Printable(line))
		}
	}
	return code
}

// prepare sets what urfave/cli gets wrong for us: it splits list flags at
// commas, exits by itself, prints the whole help after a typing error, and
// lines of any width.
func prepare(app *cli.App) {
	app.Version = version.String()
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version", DisableDefaultText: true}
	cli.VersionPrinter = func(c *cli.Context) { fmt.Fprintln(c.App.Writer, c.App.Name, c.App.Version) }
	cli.HelpPrinter = printHelp
	app.DisableSliceFlagSeparator = true
	app.HideHelpCommand = true
	app.ExitErrHandler = func(*cli.Context, error) {}
	app.OnUsageError = usageError
	plainFlags(app.Flags)
	var each func([]*cli.Command)
	each = func(cs []*cli.Command) {
		for _, c := range cs {
			c.OnUsageError = usageError
			c.HideHelpCommand = true
			plainFlags(c.Flags)
			each(c.Subcommands)
		}
	}
	each(app.Commands)
}

// plainFlags keeps "(default: false)" out of the help, and blanks in values.
func plainFlags(flags []cli.Flag) {
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.BoolFlag:
			f.DisableDefaultText = true
		case *cli.StringSliceFlag:
			f.KeepSpace = true // a path may end in a blank
		}
	}
}

// Suggest returns the word of known that is nearest to got, or "" when none
// is near enough to be meant.
func Suggest(got string, known []string) string { return suggest.Nearest(got, known) }

// Wrap prints text in 80 columns: prefix before the first line, its width in
// spaces before the others.
func Wrap(w io.Writer, prefix, text string) {
	line := prefix
	indent := strings.Repeat(" ", len(prefix))
	for _, word := range strings.Fields(text) {
		if len(line)+len(word) > 80 && strings.TrimSpace(line) != "" && line != prefix {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// Printable is s in one line that does nothing to a terminal.
func Printable(s string) string { return text.Printable(s) }

// Fold breaks a text into lines of at most that many columns, between words
// where it can.
func Fold(s string, columns int) []string { return text.Fold(s, columns) }

// Short is s in that many columns, without its middle where it is longer.
func Short(s string, columns int) string { return text.Short(s, columns) }

// Size is a number of bytes for people.
func Size(n int64) string { return text.Size(n) }
