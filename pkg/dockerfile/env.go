package dockerfile

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"fence/pkg/internal/suggest"
)

// environ are variables in the order in which they were last set, as BuildKit
// gives them to a process. The zero environ is empty.
type environ struct {
	keys   []string
	values map[string]string
}

func (e *environ) set(key, value string) {
	if _, ok := e.values[key]; ok {
		i := slices.Index(e.keys, key)
		e.keys = append(slices.Delete(e.keys, i, i+1), key)
	} else {
		e.keys = append(e.keys, key)
	}
	if e.values == nil {
		e.values = map[string]string{}
	}
	e.values[key] = value
}

func (e *environ) Get(key string) (string, bool) {
	v, ok := e.values[key]
	return v, ok
}

func (e *environ) Keys() []string { return e.keys }

func (e *environ) list() []string {
	list := make([]string, len(e.keys))
	for i, k := range e.keys {
		list[i] = k + "=" + e.values[k]
	}
	return list
}

func (e *environ) clone() environ {
	return environ{slices.Clone(e.keys), maps.Clone(e.values)}
}

// maxValue is what execve(2) takes as one string (MAX_ARG_STRLEN): with a
// longer variable no process could be started.
const maxValue = 128 << 10

// What a hostile file can make of itself by variables within variables.
const (
	maxExpansion = 64 << 20  // bytes of all values put in, per Dockerfile
	maxReplace   = 256 << 20 // length of a value times length of a word with ${v//a/b}
)

// meter hands out variables and counts what it handed out.
type meter struct {
	shell.EnvGetter
	word string
	used *int
	over bool
}

var replaces = regexp.MustCompile(`\$\{\w+//`)

func (m *meter) Get(key string) (string, bool) {
	v, ok := m.EnvGetter.Get(key)
	*m.used += len(v)
	if *m.used > maxExpansion || len(v)*len(m.word) > maxReplace && replaces.MatchString(m.word) {
		m.over = true
		return "", ok
	}
	return v, ok
}

// expand replaces the variables in word. declared are ARGs that may have no
// value; any other unknown variable is a warning.
func (b *builder) expand(lex *shell.Lex, line int, word string, env shell.EnvGetter, declared map[string]bool) (string, error) {
	word, err := b.lexable(line, word)
	if err != nil {
		return "", err
	}
	if !strings.ContainsAny(word, `$\'"`+"`") {
		return word, nil
	}
	m := &meter{EnvGetter: env, word: word, used: &b.expanded}
	out, unknown, err := lex.ProcessWord(word, m)
	if m.over {
		return "", fmt.Errorf("variables within variables come to more than %d MiB", maxExpansion>>20)
	}
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		if !declared[name] && (strings.Contains(word, "${"+name+"}") || strings.Contains(word, "$"+name)) {
			b.warnUnknown(line, name, env.Keys())
		}
	}
	return out, nil
}

// lexable is word without what the lexer would print a message of its own about.
func (b *builder) lexable(line int, word string) (string, error) {
	if strings.ContainsRune(word, 0) {
		return "", errors.New("it holds a NUL byte")
	}
	if !utf8.ValidString(word) {
		b.warn(line, "bytes that are not UTF-8 become U+FFFD, as in docker build")
		word = strings.Map(func(r rune) rune { return r }, word)
	}
	return word, nil
}

func (b *builder) warnUnknown(line int, name string, known []string) {
	advice := ""
	if near := suggest.Nearest(name, known); near != "" {
		advice = fmt.Sprintf(" (did you mean $%s?)", near)
	}
	b.warn(line, "$%s is not set here and reads as empty%s", name, advice)
}
