package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fence/pkg/internal/tomldoc"
)

// Error is one thing wrong with a policy: where it stands, and what to try.
// Its text is always one line and never holds a variable's value.
type Error = tomldoc.Error

// Options tell Parse what it cannot know itself. The zero Options knows no
// built-in policy and no system call: whatever names one is refused.
type Options struct {
	Base    func(name string) ([]byte, bool) // the text of a built-in policy
	Syscall func(name string) bool           // whether there is such a system call
}

// form is what can stand in a policy file, see docs/policy.md.
type form struct {
	Version     any
	Extends     *string
	Filesystem  Filesystem
	Network     *Network
	Environment struct {
		Keep []string
		Set  map[string]string
		Why  string
	}
	Capabilities struct {
		Keep []string
		Why  string
	}
	Limits map[string]any // a number, or "unlimited"
	Open   []Open
	Accept []Accept
}

// Parse reads the policy in data. name is the file's path or the built-in's
// name; errors begin with it. An error comes with the zero Policy, which
// allows nothing.
func Parse(name string, data []byte, opt Options) (Policy, error) {
	p, _, err := parse(name, data, opt, nil)
	return p, err
}

// parse also returns where an entry of a list in [filesystem] stands, "" for
// nowhere. above are the built-ins being read.
func parse(name string, data []byte, opt Options, above []string) (Policy, func(list, entry string) string, error) {
	var f form
	d, err := tomldoc.Read(name, data, &f)
	if err != nil {
		return Policy{}, nil, err
	}
	p := f.policy(d)
	p.check(opt, d.Fail)
	var base Policy
	below := func(string, string) string { return "" }
	if f.Extends != nil && d.Err() == nil {
		p.Extends = *f.Extends
		src, ok := []byte(nil), false
		if opt.Base != nil {
			src, ok = opt.Base(p.Extends)
		}
		if slices.Contains(above, p.Extends) {
			d.Fail("extends", tomldoc.Errorf("", "%s extends itself", strings.Join(append(above, p.Extends), " -> ")))
		} else if !ok {
			d.Fail("extends", tomldoc.Errorf("extends takes the name of a built-in policy, see 'fence policies'", "%q is not a built-in policy", p.Extends))
		} else if base, below, err = parse(p.Extends, src, opt, append(above, p.Extends)); err != nil {
			return Policy{}, nil, err
		}
	}
	if err := d.Err(); err != nil {
		return Policy{}, nil, err
	}
	p = p.over(base, f.Network != nil)
	where := func(list, entry string) string {
		own := map[string][]string{"read": f.Filesystem.Read, "write": f.Filesystem.Write, "hide": f.Filesystem.Hide}[list]
		if i := slices.Index(own, entry); i >= 0 {
			return d.At(fmt.Sprintf("filesystem.%s[%d]", list, i))
		}
		return below(list, entry)
	}
	if clash := p.clash(where); clash != nil {
		return Policy{}, nil, clash
	}
	return p, where, nil
}

// policy is what f says, apart from what it extends, and yet to be checked.
func (f form) policy(d *tomldoc.Doc) Policy {
	p := Policy{Name: d.File, Filesystem: f.Filesystem, Environment: Environment{Keep: f.Environment.Keep, Why: f.Environment.Why},
		Capabilities: f.Capabilities.Keep, CapabilitiesWhy: f.Capabilities.Why, Open: f.Open, Accept: f.Accept}
	for name, value := range f.Environment.Set {
		p.Environment.Set = append(p.Environment.Set, Variable{name, value})
	}
	if f.Network != nil {
		p.Network = *f.Network
		d.Fail("network.mode", known(networkModes, string(p.Network.Mode), "network mode %q is not known"))
	}
	for name, value := range f.Limits {
		l, bad := parseLimit(name + "=" + fmt.Sprint(value))
		d.Fail("limits."+name, bad)
		p.Limits = append(p.Limits, l)
	}
	for i := range p.Open {
		p.Open[i].From = d.At(fmt.Sprintf("open[%d]", i))
	}
	for i := range p.Accept {
		p.Accept[i].From = d.At(fmt.Sprintf("accept[%d]", i))
	}
	return p
}

// over is p laid over base: lists add up, limits and set variables replace
// those of the same name, the network is replaced where p has one.
func (p Policy) over(base Policy, network bool) Policy {
	p.Name, p.Extends = cmp.Or(p.Name, base.Name), cmp.Or(p.Extends, base.Extends)
	fs, low := &p.Filesystem, base.Filesystem
	fs.Read, fs.Write, fs.Hide, fs.Why = union(low.Read, fs.Read), union(low.Write, fs.Write), union(low.Hide, fs.Hide), joinWhy(low.Why, fs.Why)
	if !network {
		p.Network = base.Network
	} else if p.Network.Mode == "none" {
		p.Network.Mode = NetworkNone
	} else if p.Network.Mode == NetworkProxy {
		p.Network.Socket = cmp.Or(p.Network.Socket, ProxySocket)
	}
	env := &p.Environment
	env.Keep, env.Why = union(base.Environment.Keep, env.Keep), joinWhy(base.Environment.Why, env.Why)
	env.Set = replace(base.Environment.Set, env.Set, func(v Variable) string { return v.Name })
	p.Capabilities, p.CapabilitiesWhy = union(base.Capabilities, p.Capabilities), joinWhy(base.CapabilitiesWhy, p.CapabilitiesWhy)
	p.Limits = replace(base.Limits, p.Limits, func(l Limit) string { return l.Name })
	p.Open, p.Accept = slices.Concat(base.Open, p.Open), slices.Concat(base.Accept, p.Accept)
	return p
}

// union is a with what only b has, in a new slice.
func union(a, b []string) []string {
	var out []string
	for _, s := range slices.Concat(a, b) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// replace is a with b's values for the same name, sorted by name.
func replace[T any](a, b []T, name func(T) string) []T {
	byName := map[string]T{}
	for _, v := range slices.Concat(a, b) {
		byName[name(v)] = v
	}
	return slices.SortedFunc(maps.Values(byName), func(x, y T) int { return cmp.Compare(name(x), name(y)) })
}

func joinWhy(a, b string) string {
	if a == "" || b == "" || a == b {
		return cmp.Or(a, b)
	}
	return a + "; " + b
}

// ParseSite reads a site's own file, which may only add paths to hide.
func ParseSite(name string, data []byte) (hide []string, err error) {
	var f struct {
		Version    any
		Filesystem struct{ Hide []string }
	}
	d, err := tomldoc.Read(name, data, &f)
	if err == nil {
		Policy{Filesystem: Filesystem{Hide: f.Filesystem.Hide}}.check(Options{}, d.Fail)
		err = d.Err()
	}
	if err != nil {
		err.(*Error).Hint = "a site file may only add to hide in [filesystem]"
		return nil, err
	}
	return f.Filesystem.Hide, nil
}

// WithSite is p with the site's hidden paths. What p opens beneath one of
// them is an error: the person must learn that it stays closed.
func (p Policy) WithSite(hide []string) (Policy, error) {
	q, clash := p.with(Policy{Filesystem: Filesystem{Hide: hide}}, false, "the site's file")
	if clash != nil {
		clash.Hint = "the operators of this machine hide it"
		return Policy{}, clash
	}
	return q, nil
}

// with is p below up, which hides what source names.
func (p Policy) with(up Policy, network bool, source string) (Policy, *Error) {
	q := up.over(p, network)
	return q, q.clash(func(list, entry string) string {
		if list == "hide" && !slices.Contains(p.Filesystem.Hide, entry) {
			return source
		}
		return p.Name
	})
}
