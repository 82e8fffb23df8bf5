package tomldoc

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// form has one field of each kind that Read fills.
type form struct {
	Version any
	Text    string
	Maybe   *string
	List    []string
	Table   struct{ A, B string }
	Also    *struct{ A string }
	Names   map[string]string
	Free    map[string]any
	Items   []struct {
		Path string
		Tags []string
	}
}

const v1 = "version = 1\n"

func TestRead(t *testing.T) {
	var f form
	d, err := Read("f.toml", []byte(v1+`
text = "x"
maybe = ""
list = ["a", "b"]
names = { N = "1", "b c" = "2" }
free.n = 1
free.s = "s"
[table]
b = "y"
[[items]]
path = "/p"
[[items]]
tags = []
`), &f)
	if err != nil {
		t.Fatal(err)
	}
	want := form{Version: int64(1), Text: "x", Maybe: new(string), List: []string{"a", "b"}, Names: map[string]string{"N": "1", "b c": "2"}, Free: map[string]any{"n": int64(1), "s": "s"}}
	want.Table.B = "y"
	want.Items = append(want.Items, struct {
		Path string
		Tags []string
	}{Path: "/p"}, struct {
		Path string
		Tags []string
	}{Tags: []string{}})
	if !reflect.DeepEqual(f, want) {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
	for key, want := range map[string]string{"text": "f.toml:3", "list[1]": "f.toml:5", "names.N": "f.toml:6", "items": "f.toml:11", "items[1]": "f.toml:13",
		"items[1].path": "f.toml:13", "items[1].tags": "f.toml:14", "table.a": "f.toml:9", "nosuch.thing[3]": "f.toml:1", "": "f.toml:1"} {
		if got := d.At(key); got != want {
			t.Errorf("%s is at %s, want %s", key, got, want)
		}
	}
	// What the reader finds wrong: the first in the file, whatever the order.
	d.Fail("items[1].path", Errorf("h", "second"))
	d.Fail("list[0]", Errorf("", "first: %q", "x"))
	d.Fail("text", nil)
	if err := d.Err(); err.Error() != `f.toml:5: first: "x"` || *err.(*Error) != (Error{"f.toml:5", `first: "x"`, ""}) {
		t.Errorf("got %v", err)
	}
	if err := d.Err(); err.Error() != `f.toml:5: first: "x"` {
		t.Errorf("asked again: %v", err)
	}
}

func TestRead_Refuses(t *testing.T) {
	for _, tt := range []struct{ text, want, hint string }{
		{"", "f:1: version is missing", "begin the file with version = 1"},
		{"text = 1\nnosuch = 2\n", "f:1: version is missing", "begin the file with version = 1"},
		{"\nversion = 2\nnew = 1\n", "f:2: version 2 is not known here", "write version = 1"},
		{"version = \"1\"\n", "f:1: version must be a whole number", "write version = 1"},
		{"\ufeff" + v1, "f:1: the file begins with a byte order mark", "save it as plain UTF-8"},
		{v1 + strings.Repeat("#\n", 1<<15), "f:1: the file is larger than 64 KiB", ""},
		{v1 + "text = strict\n", "f:2: unexpected character U+0073 's' at start of value", `put text in quotes: "..."`},
		{v1 + "[table\n", "f:2: expected ']' to close table name", ""},
		{v1 + "table.a = \"\"\n[table]\nb = \"\"\n", "f:3: table table already exists as defined by a dotted key", ""},
		{v1 + "text = \"a\"\ntext = \"b\"\n", "f:3: key text is already defined", ""},
		{v1 + "[[items]]\n[items]\n", "f:3: table items already exists as an array of tables", ""},
		// Keys.
		{v1 + "tex = \"x\"\n", "f:2: key \"tex\" is not known (version, text, maybe, list, table, also, names, free, items)", "did you mean text?"},
		{v1 + "[table]\nA = \"x\"\n", "f:3: key \"A\" is not known (a, b)", "did you mean a?"},
		{v1 + "Text = \"x\"\ntext = \"y\"\n", "f:2: key \"Text\" is not known (version, text, maybe, list, table, also, names, free, items)", "did you mean text?"},
		{v1 + "[[items]]\npath = \"\"\n[[items]]\npaht = \"\"\n", "f:5: key \"paht\" is not known (path, tags)", "did you mean path?"},
		{v1 + "items = [\n{},\n{\"p\\n\" = 1}]\n", "f:4: key \"p\\n\" is not known (path, tags)", ""},
		{v1 + "also.version = 1\n", "f:2: key \"version\" is not known (a)", ""},
		// Kinds.
		{v1 + "text = 1\n", "f:2: text must be text", "put it in quotes"},
		{v1 + "maybe = 1979-05-27\n", "f:2: maybe must be text", "put it in quotes"},
		{v1 + "list = \"x\"\n", "f:2: list must be a list", `write ["..."]`},
		{v1 + "list = [\n\"x\",\n7]\n", "f:4: an entry of list must be text", "put it in quotes"},
		{v1 + "table = 1\n", "f:2: table must be a table", "write its name in [ ] on a line of its own"},
		{v1 + "[[also]]\n", "f:2: also must be a table", "write its name in [ ] on a line of its own"},
		{v1 + "names = []\n", "f:2: names must be a table", `write { NAME = "..." }`},
		{v1 + "[names]\nA = 1\n", "f:3: A must be text", "put it in quotes"},
		{v1 + "[names]\n\"\\u001b\" = 1\n", `f:3: "\x1b" must be text`, "put it in quotes"},
		{v1 + "[items]\n", "f:2: items must be a list of tables", "write its name in [[ ]] on a line of its own, for each"},
		{v1 + "items = [1]\n", "f:2: an entry of items must be a table", "write its name in [ ] on a line of its own"},
		{v1 + "[[items]]\ntags = [\"x\", []]\n", "f:3: an entry of tags must be text", "put it in quotes"},
	} {
		d, err := Read("f", []byte(tt.text), new(form))
		e, ok := err.(*Error)
		if !ok || d != nil || err.Error() != tt.want || e.Hint != tt.hint {
			t.Errorf("got  %v (%v)\nwant %s (%s)", err, e, tt.want, tt.hint)
		}
	}
	if _, err := Read("a\nb", nil, new(form)); err == nil || err.Error() != `"a\nb":1: version is missing` {
		t.Errorf("got %v", err)
	}
}

// Whatever stands in a file, there is an error of one line that the file has,
// or the same values as the decoder's.
func FuzzRead(f *testing.F) {
	f.Add(v1 + "text = \"x\"\nlist = [\"a\"]\n[[items]]\npath = '''\nx'''\n")
	f.Add(v1 + "names = {A.b = \"1\"}\n\"\" = 1\n")
	f.Add(v1 + "[[items]]\n[items.tags]\n[[also]]\n\"\\u001b\\n\" = 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		var got, want form
		_, err := Read("f", []byte(text), &got)
		if err != nil {
			line, msg, ok := strings.Cut(strings.TrimPrefix(err.Error(), "f:"), ": ")
			n, _ := strconv.Atoi(line)
			if !ok || msg == "" || n < 1 || n > 1+strings.Count(text, "\n") || strings.ContainsFunc(err.Error(), func(r rune) bool { return !strconv.IsPrint(r) }) {
				t.Fatalf("not one line of the file: %q", err)
			}
			return
		}
		if err := toml.Unmarshal([]byte(text), &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v (%v)", got, want, err)
		}
	})
}

// Every key and list entry that the decoder sees has a line, and a line of
// this file.
func FuzzLineOfKeys(f *testing.F) {
	f.Add("a = 1\nb.c = \"x\"\nb.d = '''y\nz'''\n[e]\nf = [1, [2, \"3\"], {g = true, h.i = 0x1F}]\n[[j]]\nk = 1\n[[j]]\nk = 2_0\n[j.l]\nm = -7\n[[j.n]]\n[[j.n]]\no = 1\n")
	f.Add("[a.b.c]\nx = 1\n[a]\ny = 2\n[a.b]\nz = \"\\u00fc\\n\"\n\"\" = 1\n\"q r\".s = 1e3\nt = 1979-05-27\n")
	f.Add("open = [\n # c\n {path = \"/x\"}, # d\n {path = \"/y\", # e\n why = \"w\"},\n]\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		var root map[string]any
		if len(text) > 1<<10 || toml.Unmarshal([]byte(text), &root) != nil {
			return
		}
		lines, last := lineOfKeys([]byte(text)), 1+strings.Count(text, "\n")
		var check func(key string, v any)
		check = func(key string, v any) {
			if n, ok := lines[key]; key != "" && (!ok || n < 1 || n > last) {
				t.Fatalf("%q is at line %d of %d (%v)", key, n, last, lines)
			}
			switch v := v.(type) {
			case map[string]any:
				for k := range v {
					if k != "" { // "" cannot be told from its table; it is unknown anyway
						check(join(key, k), v[k])
					}
				}
			case []any:
				for i := range v {
					check(entry(key, i), v[i])
				}
			}
		}
		check("", root)
	})
}

func TestLineOfKeys(t *testing.T) {
	got := lineOfKeys([]byte("a.b = [\n1, [\n2]]\n[c.d]\n[[e]]\nf = {\ng = 1 }\n[[e]]\n[e.h]\ni = 1\n[[e.j]]\n"))
	want := map[string]int{"a": 1, "a.b": 1, "a.b[0]": 2, "a.b[1]": 2, "a.b[1][0]": 3, "c": 4, "c.d": 4, "e": 5, "e[0]": 5, "e[0].f": 6, "e[0].f.g": 7,
		"e[1]": 8, "e[1].h": 9, "e[1].h.i": 10, "e[1].j": 11, "e[1].j[0]": 11}
	if !maps.Equal(got, want) {
		for _, k := range slices.Sorted(maps.Keys(got)) {
			t.Logf("%s: %d, want %d", k, got[k], want[k])
		}
		t.Errorf("got %v", got)
	}
}

// The largest file is answered in reasonable time, whatever is in it.
func TestRead_LargeFiles(t *testing.T) {
	const most = 64<<10 - 100
	for name, text := range map[string]string{
		"keys":    numbered("k%=1\n", most/8),
		"lists":   strings.Repeat("[[items]]\nx=1\n", most/16),
		"entries": "list = [\n" + strings.Repeat("1,\n", most/3) + "]\n",
		"depth":   "a = " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "\n",
		"dots":    strings.Repeat("a.", most/2) + "b = 1\n",
		"long":    "\"" + strings.Repeat("x", most-20) + "\" = 1\n",
	} {
		start := cpu()
		if _, err := Read("f", []byte(v1+text), new(form)); err == nil || !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("%s: %v", name, err)
		}
		if d := cpu() - start; d > 2*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

// cpu is the time that this process has been running, however busy the
// machine is.
func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func numbered(line string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Replace(line, "%", strconv.Itoa(i), 1))
	}
	return b.String()
}
