package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Options tell Parse what it cannot know itself. The zero Options knows no
// built-in policy and no system call: whatever names one is refused.
type Options struct {
	Base    func(name string) ([]byte, bool) // the text of a built-in policy
	Syscall func(name string) bool           // whether there is such a system call
}

// maxSize is far more than a person writes.
const maxSize = 64 << 10

// Parse reads the policy in data. name is the file's path or the built-in's
// name; errors begin with it. An error comes with the zero Policy, which
// allows nothing.
func Parse(name string, data []byte, opt Options) (Policy, error) {
	p, _, err := parse(name, data, opt, nil)
	if err != nil {
		return Policy{}, err
	}
	return p, nil
}

// parse also returns the documents that the policy was made of, the nearest
// first, for messages about two places. above are the built-ins being read.
func parse(name string, data []byte, opt Options, above []string) (Policy, []*doc, error) {
	d, err := decode(name, data)
	if err != nil {
		return Policy{}, nil, err
	}
	p := d.policy(opt)
	if err := d.first(); err != nil {
		return Policy{}, nil, err
	}
	docs := []*doc{d}
	if ext := p.Extends; ext != "" {
		if slices.Contains(above, ext) {
			return Policy{}, nil, d.error("extends", faultf("", "%s extends itself", strings.Join(append(above, ext), " -> ")))
		}
		var src []byte
		ok := false
		if opt.Base != nil {
			src, ok = opt.Base(ext)
		}
		if !ok {
			return Policy{}, nil, d.error("extends", faultf("extends takes the name of a built-in policy, see 'fence policies'", "%q is not a built-in policy", ext))
		}
		base, more, err := parse(ext, src, opt, append(above, ext))
		if err != nil {
			return Policy{}, nil, err
		}
		_, network := d.root["network"]
		p = merge(base, p, network)
		docs = append(docs, more...)
	}
	if c, ok := p.clash(); ok {
		at := c.from
		if c.list != "open" {
			at = place(docs, c.list, c.opened)
		}
		i := strings.LastIndexByte(at, ':')
		line, _ := strconv.Atoi(at[i+1:])
		return Policy{}, nil, &Error{at[:max(i, 0)], line, c.msg(place(docs, "hide", c.hidden)), "remove one of the two"}
	}
	return p, docs, nil
}

// merge lays p over base: lists add up, limits and set variables replace
// those of the same name, the network is replaced where p has one.
func merge(base, p Policy, network bool) Policy {
	p.Filesystem = Filesystem{
		Read:  union(base.Filesystem.Read, p.Filesystem.Read),
		Write: union(base.Filesystem.Write, p.Filesystem.Write),
		Hide:  union(base.Filesystem.Hide, p.Filesystem.Hide),
		Why:   joinWhy(base.Filesystem.Why, p.Filesystem.Why),
	}
	if !network {
		p.Network = base.Network
	}
	p.Environment = Environment{
		Keep: union(base.Environment.Keep, p.Environment.Keep),
		Set:  replace(base.Environment.Set, p.Environment.Set, func(v Variable) string { return v.Name }),
		Why:  joinWhy(base.Environment.Why, p.Environment.Why),
	}
	p.Capabilities = union(base.Capabilities, p.Capabilities)
	p.CapabilitiesWhy = joinWhy(base.CapabilitiesWhy, p.CapabilitiesWhy)
	p.Limits = replace(base.Limits, p.Limits, func(l Limit) string { return l.Name })
	p.Open = slices.Concat(base.Open, p.Open)
	p.Accept = slices.Concat(base.Accept, p.Accept)
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
	var out []T
	for _, k := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[k])
	}
	return out
}

func joinWhy(a, b string) string {
	if a == "" || a == b {
		return b
	}
	if b == "" {
		return a
	}
	return a + "; " + b
}

// ParseSite reads a site's own file, which may only add paths to hide.
func ParseSite(name string, data []byte) (hide []string, err error) {
	d, err := decode(name, data)
	if err != nil {
		return nil, err
	}
	d.known(d.root, "", "version", "filesystem")
	d.version()
	fs := d.table("filesystem")
	d.known(fs, "filesystem", "hide")
	hide = d.entries(fs, "hide")
	if err := d.first(); err != nil {
		err.Hint = "a site file may only add to hide in [filesystem]"
		return nil, err
	}
	return hide, nil
}

// WithSite is p with the site's hidden paths. What p opens beneath one of
// them is an error: the person must learn that it stays closed.
func (p Policy) WithSite(hide []string) (Policy, error) {
	p.Filesystem.Hide = union(p.Filesystem.Hide, hide)
	if c, ok := p.clash(); ok {
		file := c.from
		if file == "" {
			file = p.Name
		}
		return Policy{}, &Error{file, 0, c.msg("the site's file"), "the operators of this machine hide it"}
	}
	return p, nil
}

// policy makes a Policy of this document alone. Problems are in d.bad.
func (d *doc) policy(opt Options) Policy {
	d.known(d.root, "", "version", "extends", "filesystem", "network", "environment", "capabilities", "limits", "open", "accept")
	d.version()
	p := Policy{Name: d.file, Extends: d.text(d.root, "", "extends")}
	if _, given := d.root["extends"]; given && p.Extends == "" {
		d.fail("extends", faultf("", "extends names no policy"))
	}

	fs := d.table("filesystem")
	d.known(fs, "filesystem", "read", "write", "hide", "why")
	p.Filesystem = Filesystem{d.entries(fs, "read"), d.entries(fs, "write"), d.entries(fs, "hide"), d.why(fs, "filesystem", false)}
	if p.Filesystem.Why == "" {
		d.needWhy("read", p.Filesystem.Read)
		d.needWhy("write", p.Filesystem.Write)
	}

	if _, given := d.root["network"]; given {
		nw := d.table("network")
		d.known(nw, "network", "mode", "why")
		mode := d.text(nw, "network", "mode")
		i := slices.Index(networkModes, mode)
		if i < 0 {
			d.fail("network.mode", faultf(didYouMean(mode, networkModes), "network mode %q is not known %s", mode, oneOf(networkModes)))
			i = 0
		}
		p.Network = Network{NetworkMode(i), d.why(nw, "network", NetworkMode(i) != NetworkNone)}
	}

	env := d.table("environment")
	d.known(env, "environment", "keep", "set", "why")
	p.Environment.Keep = d.list(env, "environment", "keep", checkKeep)
	p.Environment.Set = d.variables(env)
	p.Environment.Why = d.why(env, "environment", false)

	caps := d.table("capabilities")
	d.known(caps, "capabilities", "keep", "why")
	p.Capabilities = d.list(caps, "capabilities", "keep", func(c string) *fault {
		if !slices.Contains(capabilityNames, c) {
			return faultf(didYouMean(c, capabilityNames), "capability %q is not known, see capabilities(7)", c)
		}
		return nil
	})
	p.CapabilitiesWhy = d.why(caps, "capabilities", len(p.Capabilities) > 0)

	p.Limits = d.limits()
	for i, m := range d.tables("open") {
		at := "open[" + strconv.Itoa(i) + "]"
		d.known(m, at, "path", "access", "syscall", "why")
		p.Open = append(p.Open, d.open(m, at, opt))
	}
	for i, m := range d.tables("accept") {
		at := "accept[" + strconv.Itoa(i) + "]"
		d.known(m, at, "name", "why")
		a := Accept{Name: d.text(m, at, "name"), Why: d.why(m, at, true), From: d.from(at)}
		d.fail(at+".name", checkAccept(a.Name))
		p.Accept = append(p.Accept, a)
	}
	return p
}

func (d *doc) open(m map[string]any, at string, opt Options) Open {
	o := Open{Path: d.text(m, at, "path"), Syscall: d.text(m, at, "syscall"), Why: d.why(m, at, true), From: d.from(at)}
	if word := d.text(m, at, "access"); word != "" {
		i := slices.Index(accesses, word)
		if i < 0 {
			d.fail(at+".access", faultf(didYouMean(word, accesses[1:]), "access %q is not known %s", word, oneOf(accesses[1:])))
			return o
		}
		o.Access = Access(i)
	}
	key := at
	for _, k := range []string{"path", "syscall"} {
		if _, given := m[k]; given {
			key = at + "." + k
		}
	}
	if key == at {
		d.fail(at, faultf("", "an opening needs a path or a syscall"))
		return o
	}
	d.fail(key, checkOpen(o, opt))
	return o
}

// needWhy demands a reason for entries that open more than the container.
func (d *doc) needWhy(list string, entries []string) {
	for i, e := range entries {
		if e != SetRoot && e != SetTmp {
			d.fail("filesystem."+list+"["+strconv.Itoa(i)+"]", faultf(`write it as [[open]] with a why, or add why = "..." to [filesystem]`, "%s is opened without a reason", oneLine(e)))
		}
	}
}

func (d *doc) variables(env map[string]any) []Variable {
	m, ok := env["set"].(map[string]any)
	if env["set"] != nil && !ok {
		d.failForm("environment.set", "", "set is a table of variables, not %s", kind(env["set"]))
	}
	var vs []Variable
	for _, name := range slices.Sorted(maps.Keys(m)) {
		at := "environment.set." + name
		value, ok := m[name].(string)
		if !ok {
			d.failForm(at, "put it in quotes", "the value of %q is text, not %s", name, kind(m[name]))
			continue
		}
		d.fail(at, checkVariable(name, value))
		vs = append(vs, Variable{name, value})
	}
	return vs
}

func (d *doc) limits() []Limit {
	m := d.table("limits")
	var ls []Limit
	for _, name := range slices.Sorted(maps.Keys(m)) {
		word, ok := m[name].(string)
		if n, isInt := m[name].(int64); isInt {
			word, ok = strconv.FormatInt(n, 10), true
		}
		if !ok {
			word = kind(m[name])
		}
		l, f := checkLimit(name, word)
		d.fail("limits."+name, f)
		ls = append(ls, l)
	}
	return ls
}

func (d *doc) version() {
	v, given := d.root["version"]
	if !given {
		d.fail("", faultf("begin the file with version = 1", "version is missing"))
	} else if v != int64(1) {
		d.fail("version", faultf("write version = 1", "version %s is not known here", oneLine(fmt.Sprint(v))))
	}
}

// entries are the checked paths and sets of one filesystem list.
func (d *doc) entries(fs map[string]any, list string) []string {
	return d.list(fs, "filesystem", list, func(e string) *fault { return checkEntry(list, e) })
}

// why is the reason in m. An empty one is wrong even where none is required.
func (d *doc) why(m map[string]any, at string, required bool) string {
	w := d.text(m, at, "why")
	if _, given := m["why"]; given {
		d.fail(join(at, "why"), checkWhy(w))
	} else if required {
		d.fail(at, checkWhy(""))
	}
	return strings.TrimSpace(w)
}

// decode turns TOML into tables, before anything is said of their meaning.
func decode(file string, data []byte) (*doc, error) {
	if len(data) > maxSize {
		return nil, &Error{file, 1, "the file is larger than 64 KiB", ""}
	}
	if strings.HasPrefix(string(data[:min(3, len(data))]), "\ufeff") {
		return nil, &Error{file, 1, "the file begins with a byte order mark", "save it as plain UTF-8"}
	}
	d := &doc{file: file, data: data}
	if err := toml.Unmarshal(data, &d.root); err != nil {
		line := 1
		var at *toml.DecodeError
		if errors.As(err, &at) {
			line, _ = at.Position()
		}
		return nil, &Error{file, line, oneLine(strings.TrimPrefix(err.Error(), "toml: ")), ""}
	}
	return d, nil
}

func kind(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case int64, float64:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	case nil:
		return "nothing"
	}
	return fmt.Sprintf("a %T", v)
}
