package dockerfile

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/suggest"
)

// builder is a Dockerfile on its way to a plan. What it does follows BuildKit's
// dockerfile2llb in order, so that the same file fails for the same reason.
type builder struct {
	ctx      context.Context
	o        Options
	lex      *shell.Lex
	global   environ         // platform variables and what ARG says above the first FROM
	declared map[string]bool // every ARG of the file, for build arguments that nothing asks for
	stages   []*stage
	byName   map[string]*stage
	bases    map[string]From // by platform and name
	contexts map[string]From // by name; "" is the context
	inputs   map[string]bool
	warnings []Warning
	expanded int // bytes of variables put in
	ports    int // named by EXPOSE
}

// New reads the Dockerfile in data. The context folders are read as far as
// COPY, ADD and RUN --mount take from them; o.Base is asked about the images
// that the target needs and no others. An error is an *Error, unless ctx ended,
// and comes with a nil Plan.
func New(ctx context.Context, data []byte, o Options) (*Plan, error) {
	b := &builder{ctx: ctx, o: o, declared: map[string]bool{}, byName: map[string]*stage{},
		bases: map[string]From{}, contexts: map[string]From{}, inputs: map[string]bool{}}
	b.o.Platform, b.o.Build = platformOr(o.Platform, o.Build), platformOr(o.Build, o.Platform)
	p, err := b.plan(data)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return p, err
}

func (b *builder) plan(data []byte) (*Plan, error) {
	if err := b.read(data); err != nil {
		return nil, err
	}
	target, err := b.target()
	if err != nil {
		return nil, err
	}
	if err := b.circle(); err != nil {
		return nil, err
	}
	needed, err := b.resolve(target)
	if err != nil {
		return nil, err
	}
	p := &Plan{File: cmp.Or(b.o.File, "Dockerfile")}
	for _, s := range b.stages {
		if !needed[s] {
			continue
		}
		if err := b.play(s); err != nil {
			return nil, err
		}
		p.Stages = append(p.Stages, s.Stage)
		if s == target {
			break
		}
	}
	b.warnUnused()
	p.Warnings, p.Inputs = b.warnings, slices.Sorted(maps.Keys(b.inputs))
	return p, nil
}

// warnUnused names build arguments that no ARG asks for.
func (b *builder) warnUnused() {
	declared := slices.Sorted(maps.Keys(b.declared))
	for _, name := range slices.Sorted(maps.Keys(b.o.Args)) {
		_, platform := b.global.Get(name)
		if b.declared[name] || platform || isProxy(name) || strings.HasPrefix(name, "BUILDKIT_") || name == "SOURCE_DATE_EPOCH" {
			continue // it means something without an ARG
		}
		hint := ""
		if near := suggest.Nearest(name, declared); near != "" {
			hint = fmt.Sprintf(" (did you mean %s?)", near)
		}
		b.warn(0, "build argument %s is not used: the file has no ARG of that name%s", name, hint)
	}
}

func platformOr(p, other v1.Platform) v1.Platform {
	if p.Architecture == "" {
		p = other
	}
	if p.Architecture == "" {
		p.Architecture = "amd64"
	}
	return NormalPlatform(p)
}

func isProxy(name string) bool {
	return slices.Contains([]string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"}, strings.ToLower(name))
}

func (b *builder) warn(line int, format string, a ...any) {
	w := Warning{File: cmp.Or(b.o.File, "Dockerfile"), Line: line, Text: fmt.Sprintf(format, a...)}
	if !slices.Contains(b.warnings, w) {
		b.warnings = append(b.warnings, w)
	}
}

// read fills in the stages and the global scope.
func (b *builder) read(data []byte) error {
	if err := b.directives(data); err != nil {
		return err
	}
	file, err := parser.Parse(bytes.NewReader(data))
	if err != nil {
		return b.syntaxError(data, err)
	}
	for _, w := range file.Warnings {
		b.warn(w.Location.Start.Line, "an empty line inside an instruction: docker build will refuse it some day")
	}
	b.lex = shell.NewLex(file.EscapeToken)
	stages, args, err := b.instructions(file.AST.Children)
	if err != nil {
		return err
	}
	name := cmp.Or(b.o.Target, stages[len(stages)-1].Name)
	b.global = platformArgs(b.o, name)
	for _, a := range args {
		if err := b.globalArg(a); err != nil {
			return err
		}
	}
	for i, st := range stages {
		if err := b.stage(i, st); err != nil {
			return b.at(lineOf(st.Location), st.OrigCmd, st.SourceCode, err)
		}
	}
	for _, s := range b.stages {
		for _, ic := range s.parsed {
			c, err := b.link(ic)
			if err != nil {
				return b.at(lineOf(ic.Location()), ic.Name(), fmt.Sprint(ic), err)
			}
			s.commands = append(s.commands, c)
		}
	}
	return nil
}

var standardFrontend = regexp.MustCompile(`^(docker\.io/)?docker/dockerfile(-upstream)?([:@]|$)`)

// directives looks at the lines that are to be read before the file is.
func (b *builder) directives(data []byte) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return b.at(0, "", "", advise("a Dockerfile begins with FROM", "the file is empty"))
	}
	if frontend, _, at, ok := parser.DetectSyntax(data); ok && !standardFrontend.MatchString(frontend) {
		b.warn(lineOf(at), "the frontend %s is not used: the file is read as docker/dockerfile:1", frontend)
	}
	if check, _, at, ok := parser.ParseDirective("check", data); ok {
		if _, err := linter.ParseLintOptions(check); err != nil {
			return b.at(lineOf(at), "", "", fmt.Errorf("# check=: %w", err))
		}
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++ // what looks like a heredoc is lexed as text
		if bytes.Contains(line, []byte("<<")) && (!utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0) {
			return b.at(n, "", "", advise("save the file as UTF-8", "the line holds bytes that are not UTF-8 text"))
		}
	}
	return nil
}

// instructions sorts what stands in the file into stages and what is above them.
func (b *builder) instructions(nodes []*parser.Node) ([]*instructions.Stage, []*instructions.ArgCommand, error) {
	var stages []*instructions.Stage
	var args []*instructions.ArgCommand
	for _, n := range nodes {
		ic, err := instructions.ParseInstructionWithLinter(n, noLint())
		if err != nil {
			return nil, nil, b.at(n.StartLine, n.Value, n.Original, err)
		}
		switch c := ic.(type) {
		case *instructions.Stage:
			stages = append(stages, c)
		case *instructions.ArgCommand:
			for _, a := range c.Args {
				b.declared[a.Key] = true
			}
			if len(stages) == 0 {
				args = append(args, c)
			} else {
				stages[len(stages)-1].AddCommand(c)
			}
		case instructions.Command:
			if len(stages) == 0 {
				return nil, nil, b.at(n.StartLine, n.Value, n.Original, advise("only ARG may stand above the first FROM", "there is no FROM above it"))
			}
			stages[len(stages)-1].AddCommand(c)
		}
	}
	if len(stages) == 0 {
		return nil, nil, b.at(0, "", "", advise("a Dockerfile begins with FROM; FROM scratch begins with nothing", "there is no FROM in the file"))
	}
	return stages, args, nil
}

// noLint is the linter that says nothing. Without one, BuildKit's parser panics
// at a comment # check= above an instruction.
func noLint() *linter.Linter { return linter.New(&linter.Config{SkipAll: true}) }

func (b *builder) globalArg(c *instructions.ArgCommand) error {
	for _, a := range c.Args {
		value, given := b.o.Args[a.Key]
		if !given {
			if a.Value == nil {
				continue
			}
			var err error
			if value, err = b.expand(b.lex, lineOf(c.Location()), *a.Value, &b.global, b.declared); err != nil {
				return b.at(lineOf(c.Location()), c.Name(), c.String(), err)
			}
		}
		b.global.set(a.Key, value)
	}
	return nil
}

func lineOf(ranges []parser.Range) int {
	if len(ranges) == 0 {
		return 0
	}
	return ranges[0].Start.Line
}

// target is the stage to build.
func (b *builder) target() (*stage, error) {
	if b.o.Target == "" {
		return b.stages[len(b.stages)-1], nil
	}
	if s, ok := b.byName[strings.ToLower(b.o.Target)]; ok {
		return s, nil
	}
	err := fmt.Errorf("there is no stage %q to build", b.o.Target)
	if _, number := strconv.Atoi(b.o.Target); number == nil {
		err = &advice{err, "a stage to build is meant by its name: FROM ... AS NAME"}
	} else if near := suggest.Nearest(b.o.Target, b.names()); near != "" {
		err = fmt.Errorf("%w (did you mean %s?)", err, near)
	}
	return nil, b.at(0, "", "", err)
}

func (b *builder) names() []string { return slices.Sorted(maps.Keys(b.byName)) }
