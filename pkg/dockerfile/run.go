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

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"fence/pkg/tree"
)

func (b *builder) run(s *stage, c instruction, i *instructions.RunCommand) error {
	if instructions.GetSecurity(i) != instructions.SecuritySandbox {
		return advise("the step would need root on this node, which sifbuild never has; leave the flag out", "--security=insecure is refused")
	}
	if len(instructions.GetDevices(i)) > 0 {
		return advise("images are built without the node's devices; use the device when the image runs", "--device is refused")
	}
	r := &Run{Env: s.env.list(), Proxy: b.proxy(), Cwd: path.Join("/", s.Config.WorkingDir), User: s.Config.User, Network: instructions.GetNetwork(i)}
	var err error
	agents := 0
	if r.Argv, r.Files, err = s.commandLine(i.ShellDependantCmdLine); err != nil {
		return err
	}
	for n, m := range instructions.GetMounts(i) {
		mount, err := b.mount(s, m, c.from[n])
		if err != nil {
			return fmt.Errorf("--mount: %w", err)
		}
		if mount.Type == string(instructions.MountTypeSSH) {
			if mount.Target == "" {
				mount.Target = fmt.Sprintf("/run/buildkit/ssh_agent.%d", agents)
			}
			if _, ok := s.env.Get("SSH_AUTH_SOCK"); !ok && agents == 0 {
				r.Env = append(r.Env, "SSH_AUTH_SOCK="+cmp.Or(m.Target, mount.Target))
			}
			agents++
		}
		r.Mounts = append(r.Mounts, mount)
	}
	s.add(c, Step{Run: r})
	return nil
}

// commandLine is what is executed. The bodies of heredocs stay as they are,
// byte for byte; there are three forms of them (see the Dockerfile reference).
func (s *stage) commandLine(c instructions.ShellDependantCmdLine) ([]string, []Inline, error) {
	var files []Inline
	switch {
	case len(c.Files) == 0:
	case len(c.CmdLine) != 1 || !c.PrependShell:
		return nil, nil, fmt.Errorf("BUG: a heredoc in %q", c.CmdLine)
	case parser.MustParseHeredoc(c.CmdLine[0]) != nil:
		data := c.Files[0].Data
		if c.Files[0].Chomp {
			data = parser.ChompHeredocContent(data)
		}
		c.CmdLine = []string{data}
		if strings.HasPrefix(data, "#!") {
			name := path.Join("/dev/pipes", c.Files[0].Name)
			files = []Inline{{Path: name, Data: []byte(data), Mode: 0o755}}
			c.CmdLine = []string{name}
		}
	default:
		all := c.CmdLine[0]
		for _, f := range c.Files {
			all += "\n" + f.Data + f.Name
		}
		c.CmdLine = []string{all}
	}
	argv := s.shell(c)
	if len(argv) == 0 {
		return nil, nil, errors.New("there is no command")
	}
	for _, a := range argv {
		switch {
		case strings.ContainsRune(a, 0):
			return nil, nil, errors.New("the command holds a NUL byte")
		case !utf8.ValidString(a):
			return nil, nil, advise("save the file as UTF-8", "the command holds bytes that are not UTF-8 text")
		case len(a) >= maxValue:
			return nil, nil, advise("COPY a script from the context and RUN that", "the command is longer than %d KiB: no shell could be started with it", maxValue>>10)
		}
	}
	return argv, files, nil
}

// proxy are the proxies given as build arguments, in both spellings. Several
// spellings of one are taken in the order of the alphabet, as BuildKit does.
func (b *builder) proxy() []string {
	values := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(b.o.Args)) {
		if isProxy(name) {
			values[strings.ToLower(name)] = b.o.Args[name]
		}
	}
	var list []string
	for _, name := range []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"} {
		if v := values[name]; v != "" {
			list = append(list, strings.ToUpper(name)+"="+v, name+"="+v)
		}
	}
	return list
}

// mount is one --mount; o is what from= names, nil if nothing does.
func (b *builder) mount(s *stage, m *instructions.Mount, o *origin) (Mount, error) {
	out := Mount{Type: string(m.Type), ReadOnly: m.ReadOnly, Size: m.SizeLimit, Required: m.Required}
	if m.Mode != nil {
		mode := uint32(*m.Mode)
		out.Mode = &mode
	}
	if m.UID != nil {
		out.UID = int(*m.UID)
	}
	if m.GID != nil {
		out.GID = int(*m.GID)
	}
	switch m.Type {
	case instructions.MountTypeSecret:
		return out, secret(&out, m)
	case instructions.MountTypeSSH:
		if m.Source != "" {
			return out, errors.New("type=ssh takes no source")
		}
		out.ID, out.Target = cmp.Or(m.CacheID, "default"), absolute(m.Target)
		return out, nil
	}
	out.Target = m.Target
	if !path.IsAbs(out.Target) {
		out.Target = path.Join("/", s.Config.WorkingDir, out.Target)
	}
	if out.Target = path.Clean(out.Target); out.Target == "/" {
		return out, advise("give target=FOLDER", "the target of a mount cannot be %q", "/")
	}
	if m.Type == instructions.MountTypeCache {
		out.ID, out.Sharing = cmp.Or(m.CacheID, path.Clean(m.Target)), cmp.Or(string(m.CacheSharing), string(instructions.MountSharingShared))
	}
	var from From
	var err error
	switch {
	case m.Type == instructions.MountTypeTmpfs:
		return out, nil
	case o != nil:
		from, err = o.of(s)
	case m.Type == instructions.MountTypeCache:
		return out, nil
	default:
		from, err = b.folder("")
	}
	if err != nil {
		return out, err
	}
	out.From, out.Source = &from, strings.TrimPrefix(path.Join("/", m.Source), "/")
	if from.Context != "" {
		if strings.ContainsAny(out.Source, `*?[\`) {
			return out, fmt.Errorf("source=%s: a mount has one source, no pattern", m.Source)
		}
		out.Matches, err = b.choose(from, tree.Selection{Sources: []string{cmp.Or(out.Source, ".")}})
	}
	return out, err
}

// absolute is the target of a secret or socket; "" stays.
func absolute(target string) string {
	if target == "" {
		return ""
	}
	return path.Join("/", target)
}

// secret fills in where a secret comes from and goes to.
func secret(out *Mount, m *instructions.Mount) error {
	out.Target = absolute(m.Target)
	if out.ID = cmp.Or(m.Source, m.CacheID); out.ID == "" {
		if m.Target == "" {
			return errors.New("type=secret needs an id or a target")
		}
		out.ID = path.Base(m.Target)
	}
	if m.Env != nil {
		out.Env = cmp.Or(*m.Env, out.ID)
	} else if out.Target == "" {
		out.Target = "/run/secrets/" + path.Base(out.ID)
	}
	return nil
}
