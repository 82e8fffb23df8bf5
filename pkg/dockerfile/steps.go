package dockerfile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/sys/signal"

	"fence/pkg/internal/text"
	"fence/pkg/tree"
)

// defaultPath is PATH where neither the base nor the Dockerfile sets it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// play goes through the instructions of a stage whose base was gone through.
func (b *builder) play(s *stage) error {
	s.declared = map[string]bool{}
	if s.base != nil {
		// the child also sees what ARG set in its parent, unless ENV says otherwise
		s.env, s.declared = s.base.env.clone(), maps.Clone(s.base.declared)
		s.Config, s.Author, s.StartInterval = cloneConfig(s.base.Config), s.base.Author, s.base.StartInterval
		s.Config.OnBuild = nil
	} else {
		s.Config = s.begin
	}
	if s.From.Context != "" {
		m, err := b.choose(s.From, tree.Selection{Sources: []string{"."}})
		if err != nil {
			return b.at(s.Line, "FROM", s.source, err)
		}
		s.Matches = m
	}
	if s.context != "" {
		return nil // the folder is the stage's result, PATH and all is up to who begins with it
	}
	if !slices.ContainsFunc(s.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }) {
		s.Config.Env = append(s.Config.Env, "PATH="+defaultPath)
	}
	for _, kv := range s.Config.Env {
		k, v, _ := strings.Cut(kv, "=")
		s.env.set(k, v)
	}
	if wd := s.Config.WorkingDir; wd != "" {
		s.Config.WorkingDir = resolvePath(wd, wd, false)
	}
	for _, c := range s.commands {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		if err := b.step(s, c); err != nil {
			return b.at(lineOf(c.Location()), c.name(), fmt.Sprint(c.Command), err)
		}
	}
	return nil
}

// cloneConfig is a copy of what BuildKit keeps of a configuration: what only a
// daemon reads (Hostname, Tty) is left out. What instructions change in place is
// the copy's own.
func cloneConfig(c v1.Config) v1.Config {
	return v1.Config{
		User: c.User, Env: slices.Clone(c.Env), Entrypoint: c.Entrypoint, Cmd: c.Cmd, WorkingDir: c.WorkingDir, StopSignal: c.StopSignal,
		Labels: maps.Clone(c.Labels), Volumes: maps.Clone(c.Volumes), ExposedPorts: maps.Clone(c.ExposedPorts),
		ArgsEscaped: c.ArgsEscaped, Healthcheck: c.Healthcheck, OnBuild: slices.Clone(c.OnBuild), Shell: c.Shell,
	}
}

// step is one instruction.
func (b *builder) step(s *stage, c instruction) error {
	line := lineOf(c.Location())
	word := func(w string) (string, error) { return b.expand(b.lex, line, w, &s.env, s.declared) }
	if e, ok := c.Command.(instructions.SupportsSingleWordExpansion); ok {
		if _, isArg := c.Command.(*instructions.ArgCommand); !isArg { // a value that is not used may be wrong
			if err := e.Expand(word); err != nil {
				return err
			}
		}
	}
	if e, ok := c.Command.(instructions.SupportsSingleWordExpansionRaw); ok {
		lex := shell.NewLex('\\')
		lex.SkipProcessQuotes = true
		if err := e.ExpandRaw(func(w string) (string, error) { return b.expand(lex, line, w, &s.env, s.declared) }); err != nil {
			return err
		}
	}
	switch i := c.Command.(type) {
	case *instructions.MaintainerCommand:
		s.Author = i.Maintainer
	case *instructions.EnvCommand:
		for _, e := range i.Env {
			if err := checkVariable(e.Key, e.Value); err != nil {
				return err
			}
			s.env.set(e.Key, e.Value)
			s.Config.Env = setEnv(s.Config.Env, e.Key, e.Value)
		}
	case *instructions.ArgCommand:
		return b.arg(s, i)
	case *instructions.RunCommand:
		return b.run(s, c, i)
	case *instructions.CopyCommand:
		return b.copy(s, c, copying{SourcesAndDest: i.SourcesAndDest, chown: i.Chown, chmod: i.Chmod, link: i.Link, parents: i.Parents, exclude: i.ExcludePatterns})
	case *instructions.AddCommand:
		return b.copy(s, c, copying{SourcesAndDest: i.SourcesAndDest, chown: i.Chown, chmod: i.Chmod, link: i.Link, exclude: i.ExcludePatterns, add: true, unpack: i.Unpack, checksum: i.Checksum})
	case *instructions.WorkdirCommand:
		s.Config.WorkingDir = resolvePath(s.Config.WorkingDir, i.Path, false)
		if s.Config.WorkingDir != "/" {
			s.add(c, Step{Workdir: &Workdir{Path: path.Clean(s.Config.WorkingDir), User: s.Config.User}})
		}
	case *instructions.UserCommand:
		s.Config.User = i.User
	case *instructions.ShellCommand:
		s.Config.Shell = i.Shell
	case *instructions.CmdCommand:
		s.Config.Cmd, s.Config.ArgsEscaped, s.cmdSet = s.shell(i.ShellDependantCmdLine), true, true
	case *instructions.EntrypointCommand:
		s.Config.Entrypoint = s.shell(i.ShellDependantCmdLine)
		if !s.cmdSet {
			s.Config.Cmd = nil
		}
	case *instructions.LabelCommand:
		for _, l := range i.Labels {
			if s.Config.Labels == nil {
				s.Config.Labels = map[string]string{}
			}
			s.Config.Labels[l.Key] = l.Value
		}
	case *instructions.ExposeCommand:
		return b.expose(s, i)
	case *instructions.VolumeCommand:
		for _, v := range i.Volumes {
			if v == "" {
				return errors.New("a volume is blank")
			}
			if s.Config.Volumes == nil {
				s.Config.Volumes = map[string]struct{}{}
			}
			s.Config.Volumes[v] = struct{}{}
		}
	case *instructions.StopSignalCommand:
		if _, err := signal.ParseSignal(i.Signal); err != nil {
			return advise("a number, or a name such as SIGTERM", "%q is not a signal", i.Signal)
		}
		s.Config.StopSignal = i.Signal
	case *instructions.HealthCheckCommand:
		h := i.Health
		s.Config.Healthcheck = &v1.HealthConfig{Test: h.Test, Interval: h.Interval, Timeout: h.Timeout, StartPeriod: h.StartPeriod, Retries: h.Retries}
		s.StartInterval = h.StartInterval
	case *instructions.OnbuildCommand:
		s.Config.OnBuild = append(s.Config.OnBuild, i.Expression)
	default:
		return fmt.Errorf("BUG: no rule for %T", i)
	}
	return nil
}

// add appends a step with its place in the file.
func (s *stage) add(c instruction, step Step) {
	step.Line, step.Text = lineOf(c.Location()), shorten(fmt.Sprint(c.Command))
	if c.trigger {
		step.Text = "ONBUILD " + step.Text
	}
	s.Steps = append(s.Steps, step)
}

const textLimit = 160 // bytes of Step.Text

// shorten makes one line for people.
func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > textLimit {
		cut := textLimit
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	return text.Printable(s)
}

// shell is a command line in the form that is executed.
func (s *stage) shell(c instructions.ShellDependantCmdLine) []string {
	if !c.PrependShell {
		return c.CmdLine
	}
	with := s.Config.Shell
	if len(with) == 0 {
		with = []string{"/bin/sh", "-c"}
	}
	return append(slices.Clone(with), strings.Join(c.CmdLine, " "))
}

func (b *builder) arg(s *stage, c *instructions.ArgCommand) error {
	line := lineOf(c.Location())
	for _, a := range c.Args {
		value, given := b.o.Args[a.Key]
		switch {
		case given:
		case a.Value != nil:
			var err error
			if value, err = b.expand(b.lex, line, *a.Value, &s.env, s.declared); err != nil {
				return err
			}
			given = true
		default:
			value, given = b.global.Get(a.Key)
		}
		s.declared[a.Key] = true
		if !given || strings.HasPrefix(a.Key, "BUILDKIT_SBOM_SCAN_") {
			continue
		}
		if err := checkVariable(a.Key, value); err != nil {
			return err
		}
		if old, ok := s.env.Get(a.Key); ok && old != value && slices.Contains(s.Config.Env, a.Key+"="+old) {
			b.warn(line, "ARG %s hides the ENV of that name from here on; the image keeps the value of ENV", a.Key)
		}
		s.env.set(a.Key, value)
	}
	return nil
}

// checkVariable refuses what no process could be given.
func checkVariable(key, value string) error {
	switch {
	case strings.ContainsRune(key+value, 0):
		return fmt.Errorf("%s holds a NUL byte", key)
	case len(key)+1+len(value) >= maxValue:
		return advise("put it into a file", "%s is longer than %d KiB: no program could be started with it", key, maxValue>>10)
	}
	return nil
}

// setEnv replaces key where it stands, or appends it.
func setEnv(env []string, key, value string) []string {
	for i, kv := range env {
		if k, _, _ := strings.Cut(kv, "="); k == key {
			env[i] = key + "=" + value
			return env
		}
	}
	return append(env, key+"="+value)
}

// resolvePath is p, seen from folder dir. An absolute p is left as it is
// written, as BuildKit does. With slash, a slash at the end is kept.
func resolvePath(dir, p string, slash bool) string {
	out := cmp.Or(p, dir)
	if !path.IsAbs(out) {
		out = path.Join("/", dir, p)
	}
	if slash && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.")) && !strings.HasSuffix(out, "/") {
		out += "/"
	}
	return out
}
