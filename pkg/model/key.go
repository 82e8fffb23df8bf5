package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"fence/pkg/internal/readfile"
)

// Key is what a server asks its users for. It prints as [key], wherever it
// stands, and is sent as a bearer token.
type Key struct {
	// A function, because fmt looks into the strings of unexported fields.
	get func() string
}

// KeyFile reads the key from a file; blanks and newlines around it are not of it.
func KeyFile(path string) (Key, error) {
	data, err := readfile.Regular(path, 64<<10)
	if err != nil {
		return Key{}, fmt.Errorf("reading the model server's key: %w", err)
	}
	return newKey(string(data), path)
}

// KeyEnv reads the key from a variable of the environment.
func KeyEnv(name string) (Key, error) {
	v, ok := os.LookupEnv(name)
	if !ok {
		return Key{}, fmt.Errorf("the model server's key: no variable %s in the environment", name)
	}
	return newKey(v, "$"+name)
}

func newKey(s, from string) (Key, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return Key{}, fmt.Errorf("the model server's key: %s is empty", from)
	case strings.ContainsFunc(s, func(r rune) bool { return r < '!' || r > '~' }):
		return Key{}, fmt.Errorf("the model server's key: %s holds more than one word of printable ASCII", from)
	}
	return Key{func() string { return s }}, nil
}

func (k Key) value() string {
	if k.get == nil {
		return ""
	}
	return k.get()
}

func (k Key) String() string   { return "[key]" }
func (k Key) GoString() string { return "[key]" }

// secret says that the key is worth hiding. Servers without keys are given
// words, such as EMPTY or ollama, which a model may have to write.
func (k Key) secret() bool {
	v := k.value()
	return len(v) >= 20 || len(v) >= 6 && strings.ContainsAny(v, "0123456789")
}

// hide takes the key out of what a server or a library said.
func (k Key) hide(s string) string {
	if k.secret() {
		return strings.ReplaceAll(s, k.value(), "[key]")
	}
	return s
}

// hideIn takes the key out of a body: in whatever way a string of JSON spells
// it.
func (k Key) hideIn(body []byte) []byte {
	if !k.secret() {
		return body
	}
	var whole any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if !json.Valid(body) || d.Decode(&whole) != nil {
		return []byte(k.hide(string(body)))
	}
	clean, err := json.Marshal(k.hideAll(whole))
	if err != nil {
		panic("BUG: JSON that is none: " + err.Error())
	}
	return clean
}

func (k Key) hideAll(v any) any {
	switch v := v.(type) {
	case string:
		return k.hide(v)
	case []any:
		for i := range v {
			v[i] = k.hideAll(v[i])
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, of := range v {
			clean[k.hide(name)] = k.hideAll(of)
		}
		return clean
	}
	return v
}
