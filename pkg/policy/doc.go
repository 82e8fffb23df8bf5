package policy

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// doc is one TOML file, with what was found wrong in it so far. Values are
// named by keys such as "filesystem.read[2]" or "open[0].path".
type doc struct {
	file  string
	data  []byte
	root  map[string]any
	bad   []problem
	lines map[string]int // line of every key, made when first asked for
}

type problem struct {
	key string
	*fault
	form bool // an unknown key or a wrong type: told before what follows from it
}

// fail notes f, if it is one, against key.
func (d *doc) fail(key string, f *fault) {
	if f != nil {
		d.bad = append(d.bad, problem{key, f, false})
	}
}

// failForm notes that the file does not have the form of a policy at key.
func (d *doc) failForm(key, hint, format string, a ...any) {
	d.bad = append(d.bad, problem{key, faultf(hint, format, a...), true})
}

// first is the problem that stands first in the file, or nil. (It returns the
// concrete type: compare it with nil before it becomes an error.)
func (d *doc) first() *Error {
	if len(d.bad) == 0 {
		return nil
	}
	p := slices.MinFunc(d.bad, func(a, b problem) int {
		if a.form != b.form {
			if a.form {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(d.line(a.key), d.line(b.key)), cmp.Compare(a.key, b.key))
	})
	return d.error(p.key, p.fault)
}

func (d *doc) error(key string, f *fault) *Error {
	return &Error{d.file, d.line(key), f.msg, f.hint}
}

func (d *doc) from(key string) string { return d.file + ":" + strconv.Itoa(d.line(key)) }

// line is where key stands, or the nearest thing around it.
func (d *doc) line(key string) int {
	if d.lines == nil {
		d.lines = lineOfKeys(d.data)
	}
	for key != "" {
		if n, ok := d.lines[key]; ok {
			return n
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return 1
}

// place is where the first of docs has entry in a list of [filesystem].
func place(docs []*doc, list, entry string) string {
	for _, d := range docs {
		fs, _ := d.root["filesystem"].(map[string]any)
		entries, _ := fs[list].([]any)
		if i := slices.Index(entries, any(entry)); i >= 0 {
			return d.from("filesystem." + list + "[" + strconv.Itoa(i) + "]")
		}
	}
	return "the policy"
}

// known refuses every key of m that is not in keys. TOML is case-sensitive.
func (d *doc) known(m map[string]any, at string, keys ...string) {
	for k := range m {
		if !slices.Contains(keys, k) {
			d.failForm(join(at, k), didYouMean(strings.ToLower(k), keys), "key %q is not known %s", k, oneOf(keys))
		}
	}
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func (d *doc) table(key string) map[string]any {
	v, given := d.root[key]
	m, ok := v.(map[string]any)
	if given && !ok {
		d.failForm(key, "write ["+key+"] on a line of its own", "%s is a table, not %s", key, kind(v))
	}
	return m
}

func (d *doc) tables(key string) []map[string]any {
	v, given := d.root[key]
	list, ok := v.([]any)
	if given && !ok {
		d.failForm(key, "write [["+key+"]] on a line of its own", "%s is a list of tables, not %s", key, kind(v))
	}
	var ms []map[string]any
	for i, e := range list {
		m, ok := e.(map[string]any)
		if !ok {
			d.failForm(key+"["+strconv.Itoa(i)+"]", "", "%s is a list of tables, not of %s", key, kind(e))
		}
		ms = append(ms, m)
	}
	return ms
}

func (d *doc) text(m map[string]any, at, key string) string {
	v, given := m[key]
	s, ok := v.(string)
	if given && !ok {
		d.failForm(join(at, key), "put it in quotes", "%s is text, not %s", key, kind(v))
	}
	return s
}

func (d *doc) list(m map[string]any, at, key string, check func(string) *fault) []string {
	at = join(at, key)
	v, given := m[key]
	list, ok := v.([]any)
	if given && !ok {
		d.failForm(at, "write "+key+` = ["..."]`, "%s is a list, not %s", key, kind(v))
	}
	var out []string
	for i, e := range list {
		ei := at + "[" + strconv.Itoa(i) + "]"
		s, ok := e.(string)
		if !ok {
			d.failForm(ei, "put it in quotes", "%s is a list of text, and has %s", key, kind(e))
			continue
		}
		d.fail(ei, check(s))
		out = append(out, s)
	}
	return union(out, nil)
}

// lineOfKeys finds the line of every key and list entry. The decoder keeps no
// lines, so the text is read once more; this happens for an error, and for a
// policy that opens something.
func lineOfKeys(data []byte) map[string]int {
	lines := map[string]int{}
	off, lineAt := 0, 1 // nodes come nearly in order: count on from the last
	lineOf := func(n *unstable.Node) int {
		to := int(n.Raw.Offset)
		if to < off {
			off, lineAt = 0, 1
		}
		lineAt += bytes.Count(data[off:to], []byte{'\n'})
		off = to
		return lineAt
	}
	note := func(key string, n *unstable.Node, around int) int {
		line := around
		if n.Raw.Length > 0 {
			line = lineOf(n)
		}
		if _, ok := lines[key]; !ok {
			lines[key] = line
		}
		return line
	}
	tables := map[string]int{} // how many [[KEY]] so far
	// name follows the parts of n's key from prefix.
	name := func(prefix string, n *unstable.Node) (string, int) {
		line := 0
		for it := n.Key(); it.Next(); {
			if c := tables[prefix]; c > 0 {
				prefix += "[" + strconv.Itoa(c-1) + "]"
			}
			prefix = join(prefix, string(it.Node().Data))
			if n.Kind != unstable.ArrayTable || it.Node().Next() != nil {
				line = note(prefix, it.Node(), line)
			} else {
				line = lineOf(it.Node())
			}
		}
		return prefix, line
	}
	var value func(key string, n *unstable.Node, line int)
	value = func(key string, n *unstable.Node, line int) {
		if n.Kind != unstable.Array && n.Kind != unstable.InlineTable {
			return
		}
		i := 0
		for it := n.Children(); it.Next(); i++ {
			c := it.Node()
			if n.Kind == unstable.InlineTable {
				k, l := name(key, c)
				value(k, c.Value(), l)
				continue
			}
			k := key + "[" + strconv.Itoa(i) + "]"
			value(k, c, note(k, c, line))
		}
	}
	var p unstable.Parser
	p.Reset(data)
	at := ""
	for p.NextExpression() {
		switch n := p.Expression(); n.Kind {
		case unstable.Table:
			at, _ = name("", n)
			if c := tables[at]; c > 0 {
				at += "[" + strconv.Itoa(c-1) + "]"
			}
		case unstable.ArrayTable:
			var line int
			at, line = name("", n)
			if _, ok := lines[at]; !ok {
				lines[at] = line
			}
			tables[at]++
			at += "[" + strconv.Itoa(tables[at]-1) + "]"
			lines[at] = line
		case unstable.KeyValue:
			k, line := name(at, n)
			value(k, n.Value(), line)
		}
	}
	return lines
}
