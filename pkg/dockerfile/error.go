package dockerfile

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/command"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"fence/pkg/internal/suggest"
	"fence/pkg/internal/text"
)

// Error is why a Dockerfile cannot be built, and where in it. Its text is one
// line, FILE:LINE: INSTRUCTION: what.
type Error struct {
	File        string // "Dockerfile" stands for a file without a name
	Line        int    // 0 if it is about the file
	Instruction string // in capitals, "ONBUILD X" for a trigger of the base; "" if it is about the line
	Err         error
	Hint        string // what a person can do, may be ""
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(cmp.Or(e.File, "Dockerfile"))
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Instruction != "" {
		b.WriteString(": " + e.Instruction)
	}
	what := strings.Join(strings.Fields(e.Err.Error()), " ")
	if e.Instruction != "" { // BuildKit's parser says it again
		what = strings.TrimPrefix(what, e.Instruction+" ")
	}
	b.WriteString(": " + what)
	return text.Printable(b.String())
}

func (e *Error) Unwrap() error { return e.Err }

// advice is an error with its hint, on the way to an Error.
type advice struct {
	error
	hint string
}

func (a *advice) Unwrap() error { return a.error }

func advise(hint, format string, a ...any) error {
	return &advice{fmt.Errorf(format, a...), hint}
}

// at is err as an Error of the instruction on that line, whose text is source.
// An Error stays as it is.
func (b *builder) at(line int, instruction, source string, err error) error {
	if done, ok := errors.AsType[*Error](err); ok {
		return done
	}
	e := &Error{File: b.o.File, Line: line, Instruction: strings.ToUpper(instruction), Err: err}
	if a, ok := errors.AsType[*advice](err); ok {
		e.Hint = a.hint
	}
	if unknown, ok := errors.AsType[*instructions.UnknownInstructionError](err); ok {
		source = unknown.Instruction
		e.Instruction, e.Err = unknown.Instruction, errors.New("unknown instruction")
		if near := suggest.Nearest(strings.ToUpper(unknown.Instruction), instructionNames()); near != "" {
			e.Err = fmt.Errorf("unknown instruction (did you mean %s?)", near)
		} else {
			e.Hint = `if it goes on from the line above, that line must end with \`
		}
	}
	if hole := hole(e.Instruction, source); hole != "" {
		e.Err = fmt.Errorf("the file is a template, not yet a Dockerfile: %s is not filled in (%w)", hole, e.Err)
		e.Hint = "build the file that the template makes"
	}
	return e
}

func instructionNames() []string {
	names := make([]string, 0, len(command.Commands))
	for name := range command.Commands {
		names = append(names, strings.ToUpper(name))
	}
	return names
}

var (
	holes      = regexp.MustCompile(`\{\{.*?\}\}|\{%.*?%\}|<%.*?%>|@@\w+@@`)
	namedHoles = regexp.MustCompile(`(?:^|[^$\\{])(\{[A-Za-z_][\w.]*\})`)
	unclosed   = regexp.MustCompile(`^(?:\{[{%]?|<%|\$|@@)\S*`)
)

// hole is the place in an instruction's text that a template would fill in, ""
// if there is none. In a command that is run braces have other meanings.
func hole(instruction, source string) string {
	switch instruction {
	case "RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK", "SHELL":
		return ""
	}
	if h := holes.FindString(source); h != "" {
		return h
	}
	if m := namedHoles.FindStringSubmatch(source); m != nil {
		return m[1]
	}
	if instruction == source { // unknown: its first word is all there is
		return unclosed.FindString(source)
	}
	return ""
}

// syntaxError is what BuildKit's parser says of data.
func (b *builder) syntaxError(data []byte, err error) error {
	line, at := 0, (*parser.LocationError)(nil)
	if errors.As(err, &at) && len(at.Locations) > 0 && len(at.Locations[0]) > 0 {
		line = at.Locations[0][0].Start.Line
	}
	msg := err.Error()
	switch {
	case msg == "file with no instructions":
		return b.at(0, "", "", advise("a Dockerfile begins with FROM", "there is nothing but comments and empty lines"))
	case strings.HasPrefix(msg, "only one ") || strings.HasPrefix(msg, "invalid escape token"):
		return b.at(line+1, "", "", err) // of a directive: counted before the line is
	case strings.Contains(msg, "greater than max allowed size"):
		return b.at(line+1, "", "", advise("put the text into a file of the context and COPY it", "a line is longer than 65535 bytes, the most that docker build reads"))
	}
	source := sourceLine(data, line)
	word, _, _ := strings.Cut(strings.TrimSpace(source), " ")
	return b.at(line, word, source, err)
}

func sourceLine(data []byte, line int) string {
	n := 0
	for s := range strings.Lines(string(data)) {
		if n++; n == line {
			return s
		}
	}
	return ""
}
