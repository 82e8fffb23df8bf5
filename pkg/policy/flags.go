package policy

import (
	"cmp"
	"strings"

	"fence/pkg/internal/tomldoc"
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

// WithFlags is p with each flag laid over it, as a policy of one line. Every
// flag that opens something needs a reason; all reasons together stand for
// each. Errors name the flag.
func (p Policy) WithFlags(f Flags, opt Options) (Policy, error) {
	var first *Error
	fail := func(flag string, bad *Error) {
		if bad != nil && first == nil {
			bad.At, first = flag, bad
		}
	}
	for _, w := range f.Why {
		fail("--why", checkWhy(w))
	}
	why := strings.Join(f.Why, "; ")
	var all Policy
	// add lays up over all. opens is what needs a reason, or "".
	add := func(flag, opens string, up Policy) {
		fail(flag, refuse(opens != "" && why == "", "add --why 'TEXT'", "%s is opened without a reason", tomldoc.OneLine(opens)))
		up.check(opt, func(_ string, bad *Error) { fail(flag, bad) })
		all = up.over(all, flag == "--net")
	}
	for _, path := range f.Read {
		add("--read", path, Policy{Open: []Open{{Path: path, Access: AccessRead, Why: why, From: "--read"}}})
	}
	for _, path := range f.Write {
		add("--write", path, Policy{Open: []Open{{Path: path, Access: AccessWrite, Why: why, From: "--write"}}})
	}
	for _, path := range f.Hide {
		add("--hide", "", Policy{Filesystem: Filesystem{Hide: []string{path}}})
	}
	for _, name := range f.Syscall {
		add("--syscall", name, Policy{Open: []Open{{Syscall: name, Why: why, From: "--syscall"}}})
	}
	if f.Net != "" {
		mode, socket, named := strings.Cut(f.Net, "=")
		fail("--net", known(networkModes, mode, "network mode %q is not known"))
		fail("--net", refuse(named && socket == "", "--net proxy=PATH", "the proxy's socket has no path"))
		opens := ""
		if mode == string(NetworkHost) || mode == string(NetworkProxy) {
			opens = "the network"
		}
		add("--net", opens, Policy{Network: Network{NetworkMode(mode), socket, why}})
	}
	for _, e := range f.Env {
		name, value, set := strings.Cut(e, "=")
		env := Environment{Keep: []string{name}, Why: why}
		if set {
			env = Environment{Set: []Variable{{name, value}}, Why: why}
		}
		add("--env", name, Policy{Environment: env})
	}
	for _, l := range f.Limit {
		limit, bad := parseLimit(l)
		fail("--limit", bad)
		add("--limit", "", Policy{Limits: []Limit{limit}})
	}
	for _, name := range f.Accept {
		add("--accept", name, Policy{Accept: []Accept{{name, why, "--accept"}}})
	}
	q, clash := p.with(all, f.Net != "", "--hide")
	if first = cmp.Or(first, clash); first != nil {
		return Policy{}, first
	}
	return q, nil
}
