package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// page is what a help page says, of an App or of a Command.
type page struct {
	name, usage, usageText, description string
	flags                               []cli.Flag
	commands                            []*cli.Command
}

// printHelp prints a help page in 80 columns. It is urfave/cli's HelpPrinter;
// there is no template.
func printHelp(w io.Writer, _ string, data any) {
	switch d := data.(type) {
	case *cli.App:
		page{d.HelpName, d.Usage, d.UsageText, d.Description, d.VisibleFlags(), d.VisibleCommands()}.print(w)
	case *cli.Command:
		usage := d.UsageText
		if usage == "" {
			usage = strings.TrimSpace(d.HelpName + " [flags] " + d.ArgsUsage)
		}
		page{d.HelpName, d.Usage, usage, d.Description, d.VisibleFlags(), d.VisibleCommands()}.print(w)
	}
}

func (p page) print(w io.Writer) {
	fmt.Fprintln(w, "NAME:")
	Wrap(w, "   "+p.name+" - ", p.usage)
	fmt.Fprintln(w, "\nUSAGE:")
	for line := range strings.Lines(p.usageText) {
		Wrap(w, "   ", line)
	}
	if p.description != "" {
		fmt.Fprintln(w, "\nDESCRIPTION:")
		printText(w, p.description)
	}
	var commands, flags [][2]string
	for _, c := range p.commands {
		commands = append(commands, [2]string{c.Name, c.Usage})
	}
	for _, f := range p.flags {
		flags = append(flags, flagEntry(f))
	}
	printList(w, "COMMANDS", commands)
	printList(w, "OPTIONS", flags)
}

// printText prints paragraphs that are broken anew, and, as they are, lines
// that begin with a space: examples and lists.
func printText(w io.Writer, text string) {
	var paragraph string
	flush := func() {
		if paragraph != "" {
			Wrap(w, "   ", paragraph)
		}
		paragraph = ""
	}
	for _, line := range strings.Split(text, "\n") {
		if line != "" && line[0] != ' ' {
			paragraph += line + " "
			continue
		}
		flush()
		fmt.Fprintln(w, strings.TrimRight("   "+line, " "))
	}
	flush()
}

// flagEntry is how a flag is typed, and what it does.
func flagEntry(f cli.Flag) [2]string {
	value, usage := describe(f)
	if value != "" {
		value = " " + value
	}
	if s, ok := f.(cli.DocGenerationSliceFlag); ok && s.IsSliceFlag() {
		value += " ..."
	}
	var names []string
	for _, n := range f.Names() {
		names = append(names, dashed(n))
	}
	b, isBool := f.(*cli.BoolFlag)
	// A descriptor that is not given is -1, which is nobody's business.
	if d, ok := f.(cli.DocGenerationFlag); ok && d.GetDefaultText() != "" && d.GetDefaultText() != "-1" && !(isBool && b.DisableDefaultText) {
		usage += " (default: " + d.GetDefaultText() + ")"
	}
	return [2]string{strings.Join(names, ", ") + value, usage}
}

// dashed is a flag as it is typed.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// maxLeft is the width from which on the left column stands on a line of its own.
const maxLeft = 24

// printList prints two columns under a heading, the right one wrapped.
func printList(w io.Writer, heading string, entries [][2]string) {
	if len(entries) == 0 {
		return
	}
	width := 0
	for _, e := range entries {
		if len(e[0]) <= maxLeft {
			width = max(width, len(e[0]))
		}
	}
	fmt.Fprintf(w, "\n%s:\n", heading)
	for _, e := range entries {
		if len(e[0]) > maxLeft {
			fmt.Fprintf(w, "   %s\n", e[0])
			e[0] = ""
		}
		Wrap(w, fmt.Sprintf("   %-*s  ", width, e[0]), e[1])
	}
}
