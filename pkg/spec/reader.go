package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"fence/pkg/internal/suggest"
	"fence/pkg/internal/text"
)

// reader takes values out of the tables of a task.toml. It keeps the first
// thing that is wrong; what is read after that does not count.
type reader struct {
	getenv   func(string) (string, bool)
	bad      *Refused
	warnings []string
}

func (r *reader) refuse(advice, format string, args ...any) {
	if r.bad == nil {
		r.bad = &Refused{text.Printable(fmt.Sprintf(format, args...)), advice}
	}
}

func (r *reader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, text.Printable(fmt.Sprintf(format, args...)))
}

// table is one table and what messages call it: "" is the top.
type table struct {
	*reader
	at string
	of map[string]any
}

func (t table) name(key string) string { return strings.TrimPrefix(t.at+"."+key, ".") }

// wrong says that the value of key must be something else.
func (t table) wrong(key, must string) { t.refuse("", "task.toml: %s must be %s", t.name(key), must) }

func (t table) has(key string) bool { return t.of[key] != nil }

func (t table) text(key string) string {
	s, ok := t.of[key].(string)
	if t.has(key) && !ok {
		t.wrong(key, `text: put it in quotes`)
	}
	if strings.ContainsRune(s, 0) {
		t.wrong(key, "without NUL characters")
	}
	return s
}

// word is one of some words, or "" if the key is not there.
func (t table) word(key string, of ...string) string {
	s := t.text(key)
	if t.has(key) && !slices.Contains(of, s) {
		advice := suggest.Hint(s, of)
		t.refuse(advice, "task.toml: %s must be one of %s, not %q", t.name(key), strings.Join(of, ", "), s)
	}
	return s
}

// number is a finite number, 0 or more; 0 if the key is not there.
func (t table) number(key, must string) float64 {
	f, ok := number(t.of[key])
	if t.has(key) && !(ok && f >= 0) {
		t.wrong(key, must)
		return 0
	}
	return f
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, !math.IsNaN(n) && !math.IsInf(n, 0)
	}
	return 0, false
}

// whole is a whole number, 0 or more; 2.0 is one.
func (t table) whole(key, must string) int {
	f := t.number(key, must)
	if f != math.Trunc(f) || f > math.MaxInt32 {
		t.wrong(key, must)
		return 0
	}
	return int(f)
}

// seconds is a time above 0, or unset if the key is not there.
func (t table) seconds(key string, unset time.Duration) time.Duration {
	const must = "a number of seconds above 0"
	sec := t.number(key, must)
	switch d := time.Duration(sec * float64(time.Second)); {
	case !t.has(key):
		return unset
	case sec > math.MaxInt32 || d <= 0:
		t.wrong(key, must)
		return unset
	default:
		return d
	}
}

// yes is nil if the key is not there.
func (t table) yes(key string) *bool {
	b, ok := t.of[key].(bool)
	if !t.has(key) {
		return nil
	}
	if !ok {
		t.wrong(key, "true or false")
	}
	return &b
}

// user is a name or a number, "" if the key is not there.
func (t table) user(key string) string {
	switch v := t.of[key].(type) {
	case nil:
		return ""
	case int64:
		if v >= 0 && v < math.MaxUint32 {
			return strconv.FormatInt(v, 10)
		}
	case string:
		if text.Printable(v) == v && !strings.ContainsAny(v, ": \t/") {
			return v
		}
	}
	t.wrong(key, "the name or the number of a user, without a group")
	return ""
}

// table is the table below key, empty if there is none.
func (t table) table(key string) table {
	m, ok := t.of[key].(map[string]any)
	if t.has(key) && !ok {
		t.wrong(key, fmt.Sprintf("a table: [%s] on a line of its own", t.name(key)))
	}
	return table{t.reader, t.name(key), m}
}

// Steps have what is the task's too, so a short task.toml could otherwise ask
// for a great deal of memory.
const (
	mostEntries = 1000 // of a list or of variables
	mostSteps   = 100
)

func (t table) list(key string) []any {
	l, ok := t.of[key].([]any)
	if t.has(key) && !ok {
		t.wrong(key, "a list")
	}
	if len(l) > mostEntries {
		t.wrong(key, fmt.Sprintf("a list of at most %d", mostEntries))
		return nil
	}
	return l
}

// tables are those of a list of tables.
func (t table) tables(key string) []table {
	var all []table
	for i, x := range t.list(key) {
		m, ok := x.(map[string]any)
		if !ok {
			t.wrong(key, fmt.Sprintf("a list of tables: [[%s]] on a line of its own, for each", t.name(key)))
			return nil
		}
		all = append(all, table{t.reader, fmt.Sprintf("%s[%d]", t.name(key), i), m})
	}
	return all
}

func (t table) texts(key string) []string {
	var all []string
	for _, x := range t.list(key) {
		s, ok := x.(string)
		if !ok || strings.ContainsRune(s, 0) {
			t.wrong(key, `a list of text: ["...", "..."]`)
			return nil
		}
		all = append(all, s)
	}
	return all
}

// env are variables with their templates filled in. What a template needs and
// is not there is missing.
func (t table) env(key string) (env map[string]string, missing string) {
	of := t.table(key)
	env = map[string]string{}
	if len(of.of) > mostEntries {
		t.wrong(key, fmt.Sprintf("at most %d variables", mostEntries))
		return env, ""
	}
	for _, name := range slices.Sorted(maps.Keys(of.of)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			t.refuse("", "task.toml: %s has %q, which cannot be the name of a variable", t.name(key), name)
		}
		value := of.text(name)
		if m := template.FindStringSubmatchIndex(value); m != nil {
			variable := value[m[2]:m[3]]
			got, ok := t.getenv(variable)
			if !ok && m[4] >= 0 {
				got, ok = value[m[4]:m[5]], true
			}
			if !ok && missing == "" {
				missing = fmt.Sprintf("%s needs the variable %s, which is not set", of.name(name), text.Printable(variable))
			}
			value = got
		}
		env[name] = value
	}
	return env, missing
}

const missingAdvice = "set it and name it with --pass-env, or give it a value in task.toml for when it is not there: ${NAME:-value}"

// filled is env of what cannot do without.
func (t table) filled(key string) map[string]string {
	env, missing := t.env(key)
	if missing != "" {
		t.refuse(missingAdvice, "task.toml: %s", missing)
	}
	return env
}
