package dockerfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// stage is a Stage that is being worked out.
type stage struct {
	Stage
	source   string // the FROM line
	image    string // what FROM names, variables replaced
	context  string // of Options.Contexts, if the stage is taken from there whole
	platform *v1.Platform
	base     *stage // what FROM names, if that is a stage
	parsed   []instructions.Command
	commands []instruction
	ready    bool // the base is known, and its triggers are in commands

	env      environ         // what the next instruction sees
	declared map[string]bool // ARGs so far
	cmdSet   bool
	begin    v1.Config // what the configuration begins with if there is no base
}

// instruction is one command with what it takes from elsewhere.
type instruction struct {
	instructions.Command
	from    []*origin // COPY: one or none; RUN: one per mount, nil for those without from
	trigger bool      // from ONBUILD of the base
}

func (c instruction) name() string {
	if c.trigger {
		return "ONBUILD " + c.Name()
	}
	return c.Name()
}

// origin is what --from names.
type origin struct {
	stage *stage
	image string // if it is no stage
	From  From
}

// stage adds the stage that begins with st.
func (b *builder) stage(i int, st *instructions.Stage) error {
	line := lineOf(st.Location)
	s := &stage{Stage: Stage{Index: i, Name: st.Name, Line: line}, source: st.SourceCode, parsed: st.Commands}
	var err error
	if s.image, err = b.expand(b.lex, line, st.BaseName, &b.global, nil); err != nil {
		return err
	}
	if s.image == "" {
		return advise("variables of FROM come from ARG above the first FROM, with a default or from --build-arg", "the name of the base (%s) is blank", st.BaseName)
	}
	if st.Platform != "" {
		platform, err := b.expand(b.lex, line, st.Platform, &b.global, nil)
		if err == nil && platform == "" {
			err = fmt.Errorf("--platform=%s is blank", st.Platform)
		}
		if err != nil {
			return err
		}
		p, err := parsePlatform(platform, b.o.Build)
		if err != nil {
			return err
		}
		s.platform = &p
	}
	if st.Name != "" {
		if _, ok := b.o.Contexts[st.Name]; ok && st.Name != "scratch" && st.Name != "context" {
			s.context, s.parsed = st.Name, nil
		}
		if b.byName[st.Name] != nil {
			b.warn(line, "another stage has the name %s: later instructions mean this one", st.Name)
		}
	}
	if s.context == "" {
		if s.base = b.byName[s.image]; s.base == nil {
			if err := b.checkImage(s.image); err != nil {
				return err
			}
		}
	}
	b.stages = append(b.stages, s)
	if st.Name != "" {
		b.byName[st.Name] = s
	}
	return nil
}

// link finds what COPY --from and RUN --mount=from= mean. Here, later stages
// count: taking from one is found out when its turn has not come.
func (b *builder) link(ic instructions.Command) (instruction, error) {
	c := instruction{Command: ic}
	switch ic := ic.(type) {
	case *instructions.CopyCommand:
		if ic.From == "" {
			return c, nil
		}
		word, err := b.expand(b.lex, lineOf(ic.Location()), ic.From, shell.EnvsFromSlice(nil), nil)
		if err != nil {
			return c, err
		}
		if word != ic.From {
			return c, advise("begin a stage with FROM "+ic.From+" AS name and copy --from=name; variables of FROM are the ARGs above the first FROM", "--from=%s: no variable can stand here", ic.From)
		}
		if i, err := strconv.Atoi(ic.From); err == nil {
			if i < 0 || i >= len(b.stages) {
				return c, fmt.Errorf("--from=%d: there are %d stages, counted from 0", i, len(b.stages))
			}
			c.from = []*origin{{stage: b.stages[i]}}
			return c, nil
		}
		o, err := b.origin(ic.From)
		c.from = []*origin{o}
		return c, err
	case *instructions.RunCommand:
		mounts := instructions.GetMounts(ic)
		c.from = make([]*origin, len(mounts))
		for i, m := range mounts {
			if m.From == "" {
				continue
			}
			var err error
			if c.from[i], err = b.origin(m.From); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

func (b *builder) origin(from string) (*origin, error) {
	if s, ok := b.byName[strings.ToLower(from)]; ok {
		return &origin{stage: s}, nil
	}
	return &origin{image: from}, b.checkImage(from)
}

// circle finds stages that need each other; also those that nobody needs.
func (b *builder) circle() error {
	done := map[*stage]bool{}
	var path []*stage
	var visit func(s *stage) error
	visit = func(s *stage) error {
		if done[s] {
			return nil
		}
		path = append(path, s)
		defer func() { path, done[s] = path[:len(path)-1], true }()
		for _, c := range s.commands {
			for _, o := range c.from {
				if o == nil || o.stage == nil {
					continue
				}
				if i := slices.Index(path, o.stage); i >= 0 {
					names := ""
					for _, p := range path[i:] {
						names += p.label() + " -> "
					}
					return b.at(lineOf(c.Location()), c.name(), fmt.Sprint(c.Command), fmt.Errorf("the stage needs itself: %s%s", names, o.stage.label()))
				}
				if err := visit(o.stage); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, s := range b.stages {
		if err := visit(s); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) label() string {
	if s.Name != "" {
		return s.Name
	}
	return "stage " + strconv.Itoa(s.Index)
}

// reach are the stages that target needs, itself included.
func reach(target *stage, into map[*stage]bool) map[*stage]bool {
	if into == nil {
		into = map[*stage]bool{}
	}
	if into[target] {
		return into
	}
	into[target] = true
	if target.base != nil {
		reach(target.base, into)
	}
	for _, c := range target.commands {
		for _, o := range c.from {
			if o != nil && o.stage != nil {
				reach(o.stage, into)
			}
		}
	}
	return into
}

// resolve finds the bases of all that target needs. Triggers in a base can make
// it need more.
func (b *builder) resolve(target *stage) (map[*stage]bool, error) {
	for {
		needed, more := reach(target, nil), false
		for _, s := range b.stages {
			if !needed[s] || s.ready {
				continue
			}
			s.ready = true
			triggers, err := b.found(s)
			if err == nil {
				err = b.trigger(s, triggers)
			}
			if err != nil {
				return nil, b.at(s.Line, "FROM", s.source, err)
			}
			more = more || len(triggers) > 0
			for _, c := range s.commands {
				for _, o := range c.from {
					if o == nil || o.stage != nil {
						continue
					}
					if o.From, err = b.from(o.image, b.o.Platform); err != nil {
						return nil, b.at(lineOf(c.Location()), c.name(), fmt.Sprint(c.Command), err)
					}
				}
			}
		}
		if !more {
			return needed, nil
		}
	}
}

// found fills in what s begins with and returns the base's triggers.
func (b *builder) found(s *stage) ([]string, error) {
	s.Platform = b.o.Platform
	if s.platform != nil {
		s.Platform = *s.platform
	}
	if s.Platform.OS != "linux" {
		return nil, fmt.Errorf("platform %s: only images of Linux can be built here", platformName(s.Platform))
	}
	if s.base != nil {
		s.From.Stage, s.Platform = &s.base.Index, s.base.Platform
		var triggers []string
		for _, c := range s.base.commands {
			if on, ok := c.Command.(*instructions.OnbuildCommand); ok {
				triggers = append(triggers, on.Expression)
			}
		}
		return triggers, nil
	}
	var err error
	if s.context != "" {
		s.From, err = b.folder(s.context)
		return nil, err
	}
	if s.From, err = b.from(s.image, s.Platform); err != nil {
		return nil, err
	}
	s.begin = v1.Config{WorkingDir: "/", Env: []string{"PATH=" + defaultPath}}
	if base := s.From.Base; base != nil {
		s.begin = cloneConfig(base.Config)
		for _, text := range base.Warnings {
			b.warn(s.Line, "%s: %s", s.image, text)
		}
		if p := base.Platform; p.Architecture != "" && NormalPlatform(p).Architecture != s.Platform.Architecture {
			b.warn(s.Line, "%s is for %s, and %s was asked for", s.image, platformName(NormalPlatform(p)), platformName(s.Platform))
		}
	}
	if s.From.Scratch {
		s.Platform = b.o.Platform
	}
	triggers := s.begin.OnBuild
	s.begin.OnBuild = nil
	return triggers, nil
}

// trigger puts the base's ONBUILD instructions in front of the stage's own.
func (b *builder) trigger(s *stage, triggers []string) error {
	var first []instruction
	for _, text := range triggers {
		c, err := b.parseTrigger(text, s.Line)
		if err != nil {
			word, _, _ := strings.Cut(strings.TrimSpace(text), " ")
			return b.at(s.Line, "ONBUILD "+word, text, err)
		}
		first = append(first, c)
	}
	s.commands = append(first, s.commands...)
	return nil
}

func (b *builder) parseTrigger(text string, line int) (instruction, error) {
	file, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return instruction{}, err
	}
	if len(file.AST.Children) != 1 {
		return instruction{}, errors.New("a trigger is one instruction")
	}
	node := file.AST.Children[0]
	node.StartLine, node.EndLine = line, line
	parsed, err := instructions.ParseInstructionWithLinter(node, noLint())
	if err != nil {
		return instruction{}, err
	}
	ic, ok := parsed.(instructions.Command)
	if !ok {
		return instruction{}, errors.New("it cannot be a trigger")
	}
	c, err := b.link(ic)
	c.trigger = true
	return c, err
}
