package wanted

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"fence/pkg/wheel"
)

// command is one command of a script.
type command struct {
	*walker
	where string
	text  string
	cwd   string
	env   map[string]string
	stdin string          // a heredoc of its own
	read  map[string]bool // requirement files, each once
}

func (c command) skip(format string, a ...any) { c.result.skip(c.where, c.text, format, a...) }

// wrappers run the command that follows, after the flags that take a value.
var wrappers = map[string][]string{
	"sudo": {"-u", "-g", "-h", "-p", "-C", "-D"}, "env": {"-u", "-C", "-S"}, "command": nil, "exec": {"-a"}, "nohup": nil, "builtin": nil,
	"nice": {"-n"}, "timeout": {"-s", "-k"}, "stdbuf": {"-i", "-o", "-e"}, "setsid": nil, "time": {"-o", "-f"}, "doas": {"-u"}, "gosu": nil, "chronic": nil,
}

// others are tools that install by a file of their own.
var others = map[string]string{
	"poetry": "install add update", "pipenv": "install sync", "conda": "install create env", "mamba": "install create env",
	"micromamba": "install create env", "pdm": "install add sync", "hatch": "env run", "easy_install": "", "rye": "sync add",
}

func (c command) run(args []argument) {
	for len(args) > 0 && args[0].err == nil {
		name := path.Base(args[0].text)
		valued, ok := wrappers[name]
		if !ok {
			break
		}
		args = args[1:]
		for len(args) > 0 && args[0].err == nil && (strings.HasPrefix(args[0].text, "-") || name == "env" && strings.Contains(args[0].text, "=")) {
			n := 1
			if slices.Contains(valued, args[0].text) && len(args) > 1 {
				n = 2
			}
			if k, v, ok := strings.Cut(args[0].text, "="); ok && name == "env" {
				c.env[k] = v
			}
			args = args[n:]
		}
		if (name == "timeout" || name == "gosu") && len(args) > 0 {
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return
	}
	if args[0].err != nil {
		if mentions(append([]argument{{text: "pip"}}, args[1:]...)) {
			c.skip("which command it is: %v", args[0].err)
		}
		return
	}
	name, args := path.Base(args[0].text), args[1:]
	word := func(i int) string {
		if i < len(args) {
			return args[i].text
		}
		return ""
	}
	switch {
	case slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh"}, name):
		c.shell(args)
	case pipName.MatchString(name):
		c.pip(strings.TrimPrefix(name, "pip"), args)
	case pythonName.MatchString(name):
		for len(args) > 0 && len(word(0)) == 2 && strings.HasPrefix(word(0), "-") && strings.Contains("IEsSuBO", word(0)[1:]) {
			args = args[1:]
		}
		if word(0) == "-m" && pipName.MatchString(word(1)) {
			c.pip(strings.TrimPrefix(name, "python"), args[2:])
		} else if word(0) == "-m" && word(1) == "uv" {
			c.uv(args[2:])
		} else if word(0) == "-m" && word(1) == "pipx" {
			c.pipx(args[2:])
		}
	case name == "uv":
		c.uv(args)
	case name == "uvx":
		c.tool(args)
	case name == "pipx":
		c.pipx(args)
	case others[name] != "" && slices.Contains(strings.Fields(others[name]), word(0)) || name == "easy_install":
		c.skip("%s takes packages from elsewhere: what it needs is not known here", name)
	case name != "echo" && name != "printf" && name != "grep" && name != "which" && mentions(args):
		c.skip("%s is not a command whose arguments are known here", name)
	}
}

// shell follows sh -c TEXT and sh <<EOF.
func (c command) shell(args []argument) {
	inner := c.script
	inner.env, inner.cwd = c.env, c.cwd
	for i, a := range args {
		switch {
		case a.err != nil:
			return
		case strings.HasPrefix(a.text, "-") && !strings.HasPrefix(a.text, "--") && strings.HasSuffix(a.text, "c"):
			if i+1 == len(args) {
				return
			}
			if next := args[i+1]; next.err != nil {
				if mention.MatchString(c.text) {
					c.skip("%v", next.err)
				}
			} else {
				c.nested(inner, next.text)
			}
			return
		case strings.HasPrefix(a.text, "-") || strings.HasPrefix(a.text, "+"):
		case a.text == "pipefail": // of -o
		default:
			return // a file
		}
	}
	if c.stdin != "" {
		c.nested(inner, c.stdin)
	}
}

func (c command) nested(inner script, text string) {
	// Its lines are not those of the file: all of it stands at this one.
	found := &result{}
	inner.read(found, text, c.depth+1)
	for _, s := range found.sets {
		s.From = []string{c.where}
		c.sets = append(c.sets, s)
	}
	for _, u := range found.unread {
		u.Where = c.where
		c.unread = append(c.unread, u)
	}
}

// pip reads pip's arguments; python is the end of its name, such as 3.11.
func (c command) pip(python string, args []argument) {
	p := c.options(args, pipFlags, 1)
	if len(p.words) == 0 || !slices.Contains([]string{"install", "download", "wheel"}, p.words[0].text) {
		if p.err != nil && mentions(append([]argument{{text: "pip"}}, args...)) {
			c.skip("%v", p.err)
		}
		return
	}
	general := p.set
	p = c.options(p.rest, pipFlags, -1)
	if p.set.Index == "" {
		p.set.Index = general.Index
	}
	p.set.ExtraIndexes = append(general.ExtraIndexes, p.set.ExtraIndexes...)
	if v, err := wheel.ParsePython(python); err == nil {
		p.set.Python = v
	}
	c.add(p)
}

func (c command) uv(args []argument) {
	top := c.options(args, uvFlags, 1)
	if len(top.words) == 0 {
		return
	}
	verb := top.words[0].text
	rest := top.rest
	sub := ""
	if len(rest) > 0 {
		sub = rest[0].text
	}
	switch {
	case verb == "pip" && sub == "install":
		c.add(c.options(rest[1:], uvFlags, -1))
	case verb == "add":
		p := c.options(rest, uvFlags, -1)
		p.set.Universal = true
		c.add(p)
	case verb == "pip" && sub == "sync":
		p := c.options(rest[1:], uvFlags, -1)
		p.files, p.words = append(p.files, p.words...), nil
		p.set.NoDeps = true
		c.add(p)
	case verb == "tool" && sub == "install":
		c.tool(rest[1:])
	case verb == "tool" && sub == "run":
		c.tool(rest[1:])
	case verb == "run":
		p := c.options(rest, uvFlags, 0)
		p.words = nil
		if len(p.with) > 0 || len(p.files) > 0 || p.err != nil {
			c.add(p)
		}
	case verb == "sync":
		c.skip("uv sync takes packages from a project's lock: what it needs is not known here")
	}
}

// tool reads what follows uvx, uv tool run and uv tool install: options, the
// tool, and what is the tool's.
func (c command) tool(args []argument) {
	p := c.options(args, uvFlags, 1)
	if len(p.words) == 0 {
		if p.err != nil {
			c.skip("%v", p.err)
		}
		return
	}
	name, version, ok := strings.Cut(p.words[0].text, "@")
	if ok && version != "latest" {
		name += "==" + version
	}
	p.words[0].text = name
	if len(p.from) > 0 {
		p.words = p.from
	}
	c.add(p)
}

// pipx install NAME... and pipx run [--spec SPEC] NAME ARGS...
func (c command) pipx(args []argument) {
	p := c.options(args, pipxFlags, 1)
	if len(p.words) == 0 {
		return
	}
	rest := p.rest
	switch p.words[0].text {
	case "install":
		c.add(c.options(rest, pipxFlags, -1))
	case "run":
		p = c.options(rest, pipxFlags, 1)
		if len(p.from) > 0 {
			p.words = p.from
		}
		c.add(p)
	}
}

// add makes a set of what a command was told.
func (c command) add(p parsed) {
	if p.err != nil {
		c.skip("%v", p.err)
		return
	}
	s := p.set
	s.From = []string{c.where}
	for _, name := range []string{"PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"} {
		s.ExtraIndexes = append(s.ExtraIndexes, strings.Fields(c.env[name])...)
	}
	for _, name := range []string{"PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"} {
		if s.Index == "" {
			s.Index = c.env[name]
		}
	}
	if p.noIndex {
		s.Index, s.ExtraIndexes = "", nil // it has folders of its own: those are what a wheelhouse stands for
	}
	for _, list := range []*[]string{&s.FindLinks, &s.ExtraIndexes} {
		*list = slices.DeleteFunc(*list, func(u string) bool { return !isWeb(u) })
	}
	if s.Index != "" && !isWeb(s.Index) {
		s.Index = ""
	}
	c.read = map[string]bool{}
	for _, f := range p.files {
		c.file(f, &s, &s.Requirements)
	}
	c.read = map[string]bool{}
	for _, f := range p.constraints {
		c.file(f, &s, &s.Constraints)
	}
	for _, a := range slices.Concat(p.words, p.with) {
		if a.err != nil {
			c.skip("%v", a.err)
			continue
		}
		c.requirement(c.where, a.text, &s.Requirements)
	}
	if len(s.Requirements) > 0 {
		c.sets = append(c.sets, s)
	}
}

// requirement reads what stands where a requirement may: also folders, files
// and addresses, which are not of an index.
func (c command) requirement(where, text string, into *[]wheel.Requirement) {
	if reason := elsewhere(text); reason != "" {
		c.result.skip(where, text, "%s", reason)
		return
	}
	r, err := wheel.ParseRequirement(text)
	if err != nil {
		c.result.skip(where, text, "%v", err)
		return
	}
	*into = append(*into, r)
}

// elsewhere says that text names something that is no version of an index.
func elsewhere(text string) string {
	bare, _, _ := strings.Cut(text, "[")
	switch {
	case strings.Contains(text, "://"):
		return "it is fetched from an address, not from an index"
	case bare == "." || bare == ".." || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../") || strings.HasPrefix(text, "/") || strings.HasPrefix(text, "~"):
		return "it is a folder or file of the container: what it needs is not known here"
	case strings.HasSuffix(text, ".whl") || strings.HasSuffix(text, ".tar.gz") || strings.HasSuffix(text, ".zip") || strings.Contains(bare, "/") && !strings.ContainsAny(bare, "=<>!~ ;@"):
		return "it is a folder or file of the container: what it needs is not known here"
	case strings.ContainsAny(text, "*?") && !strings.ContainsAny(text, "=<>!~"):
		return "it is a pattern of files"
	}
	return ""
}

func isWeb(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// file reads a requirements file of the container.
func (c command) file(a argument, s *wheel.Set, into *[]wheel.Requirement) {
	if a.err != nil {
		c.skip("%v", a.err)
		return
	}
	c.open(a.text, c.cwd, s, into, 0)
}

func (c command) open(name, dir string, s *wheel.Set, into *[]wheel.Requirement, depth int) {
	abs := name
	if strings.HasPrefix(name, "~") {
		c.skip("%s is not a file of the task: what is in it is not known here", name)
		return
	}
	if strings.Contains(name, "://") {
		c.skip("%s is fetched from an address: what is in it is not known here", name)
		return
	}
	if !path.IsAbs(name) {
		if dir == "" {
			c.skip("the folder of %s is not known before it runs", name)
			return
		}
		abs = path.Join(dir, name)
	}
	if c.read[abs] {
		return
	}
	c.read[abs] = true
	if depth > deepest {
		c.skip("%s: requirement files within requirement files are not followed further", abs)
		return
	}
	shown, text, err := c.script.file(path.Clean(abs))
	if err != nil {
		c.skip("%v", err)
		return
	}
	c.requirements(shown, text, s, into, func(name string, into *[]wheel.Requirement) {
		c.open(name, path.Dir(abs), s, into, depth+1)
	})
}

func (p *parsed) fail(format string, a ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, a...)
	}
}
