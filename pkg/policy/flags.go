package policy

import (
	"slices"
	"strings"
)

// Flags are the command line's changes to a policy, as they were typed.
type Flags struct {
	Read, Write, Hide []string // paths; Hide may name sets
	Env               []string // NAME, PREFIX_* or NAME=VALUE
	Syscall           []string
	Limit             []string // name=value
	Accept            []string
	Net               string // "" leaves the policy's
	Why               []string
}

// Any reports whether a flag was given.
func (f Flags) Any() bool {
	return len(f.Read)+len(f.Write)+len(f.Hide)+len(f.Env)+len(f.Syscall)+len(f.Limit)+len(f.Accept)+len(f.Net)+len(f.Why) > 0
}

// WithFlags is p changed by the flags. Every flag that opens something needs
// a reason; all reasons together stand for each. Errors name the flag.
func (p Policy) WithFlags(f Flags, opt Options) (Policy, error) {
	q, flag, bad := p.withFlags(f, opt)
	if bad != nil {
		return Policy{}, &Error{flag, 0, bad.msg, bad.hint}
	}
	return q, nil
}

func (p Policy) withFlags(f Flags, opt Options) (_ Policy, flag string, bad *fault) {
	var whys []string
	for _, w := range f.Why {
		if bad := checkWhy(w); bad != nil {
			return p, "--why", bad
		}
		whys = append(whys, strings.TrimSpace(w))
	}
	why := strings.Join(whys, "; ")
	needWhy := func(what string) *fault {
		if why == "" {
			return faultf("add --why 'TEXT'", "%s is opened without a reason", what)
		}
		return nil
	}
	first := func(fs ...*fault) *fault {
		for _, f := range fs {
			if f != nil {
				return f
			}
		}
		return nil
	}
	// The caller's slices stay as they are.
	p.Open, p.Accept = slices.Clone(p.Open), slices.Clone(p.Accept)

	for _, l := range []struct {
		flag   string
		access Access
		paths  []string
	}{{"--read", AccessRead, f.Read}, {"--write", AccessWrite, f.Write}} {
		for _, path := range l.paths {
			o := Open{Path: path, Access: l.access, Why: why, From: l.flag}
			bad := checkOpen(o, opt)
			if strings.HasPrefix(path, "@") {
				bad = faultf("name the path", "%s is a set", oneLine(path))
			}
			if bad = first(bad, needWhy(path)); bad != nil {
				return p, l.flag, bad
			}
			p.Open = append(p.Open, o)
		}
	}
	for _, h := range f.Hide {
		if bad := checkEntry("hide", h); bad != nil {
			return p, "--hide", bad
		}
	}
	p.Filesystem.Hide = union(p.Filesystem.Hide, f.Hide)
	for _, name := range f.Syscall {
		o := Open{Syscall: name, Why: why, From: "--syscall"}
		if name == "" {
			return p, o.From, faultf("", "no system call is named")
		}
		if bad := first(checkOpen(o, opt), needWhy(name)); bad != nil {
			return p, o.From, bad
		}
		p.Open = append(p.Open, o)
	}
	if f.Net != "" {
		i := slices.Index(networkModes, f.Net)
		if i < 0 {
			return p, "--net", faultf(didYouMean(f.Net, networkModes), "network mode %q is not known %s", f.Net, oneOf(networkModes))
		}
		p.Network = Network{Mode: NetworkMode(i)}
		if p.Network.Mode != NetworkNone {
			if bad := needWhy("the network"); bad != nil {
				return p, "--net", bad
			}
			p.Network.Why = why
		}
	}
	for _, e := range f.Env {
		name, value, set := strings.Cut(e, "=")
		bad := checkKeep(e)
		if set {
			bad = checkVariable(name, value)
		}
		if bad = first(bad, needWhy(name)); bad != nil {
			return p, "--env", bad
		}
		if set {
			p.Environment.Set = replace(p.Environment.Set, []Variable{{name, value}}, func(v Variable) string { return v.Name })
		} else {
			p.Environment.Keep = union(p.Environment.Keep, []string{name})
		}
		p.Environment.Why = joinWhy(p.Environment.Why, why)
	}
	for _, l := range f.Limit {
		name, value, ok := strings.Cut(l, "=")
		if !ok {
			return p, "--limit", faultf("write NAME=NUMBER", "%q has no value", l)
		}
		limit, bad := checkLimit(name, value)
		if bad != nil {
			return p, "--limit", bad
		}
		p.Limits = replace(p.Limits, []Limit{limit}, func(l Limit) string { return l.Name })
	}
	for _, name := range f.Accept {
		if bad := first(checkAccept(name), needWhy(name)); bad != nil {
			return p, "--accept", bad
		}
		p.Accept = append(p.Accept, Accept{name, why, "--accept"})
	}
	if c, ok := p.clash(); ok {
		flag, hiddenAt := c.from, "the policy"
		if slices.Contains(f.Hide, c.hidden) {
			hiddenAt = "--hide"
		}
		if flag != "--read" && flag != "--write" {
			return p, "--hide", faultf("remove one of the two", "%s covers %s, which the policy opens", c.hidden, c.opened)
		}
		return p, flag, faultf("remove one of the two", "%s", c.msg(hiddenAt))
	}
	return p, "", nil
}
