// Package tomldoc reads the TOML files that people write. It refuses keys that
// its reader does not know, also with other capitals, and values of another
// kind. Whatever is wrong with a file has its line, and what to try.
package tomldoc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"fence/pkg/internal/suggest"
)

// Error is one thing wrong with what a person wrote. Its text is one line.
type Error struct {
	At   string // "FILE:LINE", or a flag
	Msg  string
	Hint string // what to type instead, may be ""
}

func (e *Error) Error() string { return e.At + ": " + e.Msg }

// Errorf is an Error of a check that does not know where its input stands.
func Errorf(hint, format string, a ...any) *Error {
	return &Error{Msg: fmt.Sprintf(format, a...), Hint: hint}
}

// Doc is one file, with what was found wrong in it so far. Values are named by
// keys such as "filesystem.read[2]" or "open[0].path".
type Doc struct {
	File  string
	data  []byte
	bad   []*Error       // with the key in At
	lines map[string]int // line of every key, made when first asked for
}

// Read fills the struct v points to and checks that version is 1. A field takes
// the key of its name in small letters, unless its tag is toml:"-": text, a
// list, a table (struct or map), or whatever is there (any); a pointer stays nil
// where the key is missing. An error is an *Error.
func Read(file string, data []byte, v any) (*Doc, error) {
	d := &Doc{File: file, data: data}
	var root map[string]any
	switch err := toml.Unmarshal(data[:min(len(data), 64<<10)], &root); {
	case len(data) > 64<<10:
		return nil, &Error{d.at(1), "the file is larger than 64 KiB", ""}
	case bytes.HasPrefix(data, []byte("\ufeff")):
		return nil, &Error{d.at(1), "the file begins with a byte order mark", "save it as plain UTF-8"}
	case err != nil:
		line, hint := 1, ""
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ = at.Position()
		}
		if strings.Contains(err.Error(), "at start of value") {
			hint = `put text in quotes: "..."`
		}
		return nil, &Error{d.at(line), OneLine(strings.TrimPrefix(err.Error(), "toml: ")), hint}
	}
	version, given := root["version"]
	switch _, number := version.(int64); {
	case !given:
		d.Fail("", Errorf("begin the file with version = 1", "version is missing"))
	case !number:
		d.Fail("version", Errorf("write version = 1", "version must be a whole number"))
	case version != int64(1):
		d.Fail("version", Errorf("write version = 1", "version %s is not known here", OneLine(fmt.Sprint(version))))
	default:
		d.fill(reflect.ValueOf(v).Elem(), root, "", "the file")
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// fill sets v to x, the value of key, which messages call name.
func (d *Doc) fill(v reflect.Value, x any, key, name string) {
	must := func(ok bool, kind, hint string) {
		if !ok {
			d.Fail(key, Errorf(hint, "%s must be %s", name, kind))
		}
	}
	table, isTable := x.(map[string]any)
	switch t := v.Type(); t.Kind() {
	case reflect.Interface:
		v.Set(reflect.ValueOf(x))
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		d.fill(v.Elem(), x, key, name)
	case reflect.String:
		s, ok := x.(string)
		must(ok, "text", "put it in quotes")
		v.SetString(s)
	case reflect.Slice:
		list, ok := x.([]any)
		if t.Elem().Kind() == reflect.Struct {
			must(ok, "a list of tables", "write its name in [[ ]] on a line of its own, for each")
		} else {
			must(ok, "a list", `write ["..."]`)
		}
		v.Set(reflect.MakeSlice(t, len(list), len(list)))
		name = "an entry of " + name
		for i, x := range list {
			d.fill(v.Index(i), x, entry(key, i), name)
		}
	case reflect.Map:
		must(isTable, "a table", `write { NAME = "..." }`)
		v.Set(reflect.MakeMap(t))
		for k, x := range table {
			e := reflect.New(t.Elem()).Elem()
			d.fill(e, x, join(key, k), OneLine(k))
			v.SetMapIndex(reflect.ValueOf(k), e)
		}
	case reflect.Struct:
		must(isTable, "a table", "write its name in [ ] on a line of its own")
		var known []string
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("toml") == "-" {
				continue
			}
			k := strings.ToLower(t.Field(i).Name)
			known = append(known, k)
			if x, given := table[k]; given {
				d.fill(v.Field(i), x, join(key, k), k)
			}
		}
		for k := range table {
			if !slices.Contains(known, k) {
				d.Fail(join(key, k), Errorf(suggest.Hint(strings.ToLower(k), known), "key %q is not known (%s)", k, strings.Join(known, ", ")))
			}
		}
	default:
		panic("BUG: tomldoc does not fill a " + t.String())
	}
}

// Fail notes e, if it is not nil, against key.
func (d *Doc) Fail(key string, e *Error) {
	if e != nil {
		e.At = key
		d.bad = append(d.bad, e)
	}
}

// Err is the problem that stands first in the file, an *Error, or nil.
func (d *Doc) Err() error {
	if len(d.bad) == 0 {
		return nil
	}
	first := slices.MinFunc(d.bad, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(d.line(a.At), d.line(b.At)), cmp.Compare(a.At, b.At))
	})
	return &Error{d.At(first.At), first.Msg, first.Hint}
}

// At is "FILE:LINE" of key, or of the nearest thing around it.
func (d *Doc) At(key string) string { return d.at(d.line(key)) }

func (d *Doc) at(line int) string { return OneLine(d.File) + ":" + strconv.Itoa(line) }

// line is where key stands, or the nearest thing around it.
func (d *Doc) line(key string) int {
	if d.lines == nil {
		d.lines = lineOfKeys(d.data)
	}
	for ; key != ""; key = key[:max(strings.LastIndexAny(key, ".["), 0)] {
		if n, ok := d.lines[key]; ok {
			return n
		}
	}
	return 1
}

// lineOfKeys finds the line of every key and list entry. The decoder keeps no
// lines, so the text is read once more, when a line is first asked for. A key
// longer than any that is meant is not followed further.
func lineOfKeys(data []byte) map[string]int {
	lines := map[string]int{}
	note := func(key string, n *unstable.Node, around int) int {
		if n.Raw.Length > 0 {
			around = 1 + bytes.Count(data[:n.Raw.Offset], []byte{'\n'})
		}
		if _, ok := lines[key]; !ok {
			lines[key] = around
		}
		return around
	}
	tables := map[string]int{} // how many [[KEY]] so far
	// name follows the parts of n's key from at.
	name := func(at string, n *unstable.Node) (key string, line int) {
		for it := n.Key(); it.Next() && len(at) < 1<<10; {
			if tables[at] > 0 {
				at = entry(at, tables[at]-1)
			}
			at = join(at, string(it.Node().Data))
			line = note(at, it.Node(), line)
		}
		return at, line
	}
	var value func(at string, n *unstable.Node, line int)
	value = func(at string, n *unstable.Node, line int) {
		if n.Kind == unstable.KeyValue {
			at, line = name(at, n)
			n = n.Value()
		}
		i := 0
		for it := n.Children(); it.Next() && len(at) < 1<<10; i++ {
			key := at
			if n.Kind == unstable.Array {
				key = entry(at, i)
				line = note(key, it.Node(), line)
			}
			value(key, it.Node(), line)
		}
	}
	var p unstable.Parser
	p.Reset(data)
	for at := ""; p.NextExpression(); {
		n, line := p.Expression(), 0
		if n.Kind == unstable.KeyValue {
			value(at, n, 0)
			continue
		}
		at, line = name("", n)
		if n.Kind == unstable.ArrayTable {
			lines[entry(at, tables[at])] = line
			tables[at]++
		}
		if tables[at] > 0 {
			at = entry(at, tables[at]-1)
		}
	}
	return lines
}

// OneLine is s, in quotes where it holds what could break a line or drive a
// terminal.
func OneLine(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}

func join(at, key string) string { return strings.TrimPrefix(at+"."+key, ".") }

func entry(key string, i int) string { return key + "[" + strconv.Itoa(i) + "]" }
