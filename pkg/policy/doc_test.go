package policy

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// Every key and list entry that the decoder sees has a line, and a line of
// this file.
func FuzzLineOfKeys(f *testing.F) {
	f.Add("a = 1\nb.c = \"x\"\nb.d = '''y\nz'''\n[e]\nf = [1, [2, \"3\"], {g = true, h.i = 0x1F}]\n[[j]]\nk = 1\n[[j]]\nk = 2_0\n[j.l]\nm = -7\n[[j.n]]\n[[j.n]]\no = 1\n")
	f.Add("[a.b.c]\nx = 1\n[a]\ny = 2\n[a.b]\nz = \"\\u00fc\\n\"\n\"\" = 1\n\"q r\".s = 1e3\nt = 1979-05-27\n")
	f.Add("open = [\n # c\n {path = \"/x\"}, # d\n {path = \"/y\", # e\n why = \"w\"},\n]\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := decode("f", []byte(text))
		if err != nil {
			return
		}
		lines, last := lineOfKeys(d.data), 1+strings.Count(text, "\n")
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
					check(key+"["+strconv.Itoa(i)+"]", v[i])
				}
			}
		}
		check("", d.root)
	})
}

// The largest file is answered in reasonable time, whatever is in it.
func TestParse_LargeFiles(t *testing.T) {
	const n = 4000
	for name, text := range map[string]string{
		"keys":    "version = 1\n" + numbered("k%=1\n", n),
		"lists":   "version = 1\n" + strings.Repeat("[[open]]\nx=1\n", n),
		"entries": "version = 1\n[filesystem]\nread = [\n" + strings.Repeat("1,\n", n) + "]\n",
		"depth":   "a = " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "\n",
		"dots":    strings.Repeat("a.", 9000) + "b = 1\n",
	} {
		start := time.Now()
		if _, err := Parse("f", []byte(text), Options{}); err == nil || !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

func numbered(line string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Replace(line, "%", strconv.Itoa(i), 1))
	}
	return b.String()
}
