package model

import (
	"fmt"
	"os"
	"strings"
)

// Key is what a server asks its users for. It prints as [key], wherever it
// stands, and is sent as a bearer token.
type Key struct {
	// A function, because fmt looks into the strings of unexported fields.
	get func() string
}

// KeyFile reads the key from a file; blanks and newlines around it are not of it.
func KeyFile(path string) (Key, error) {
	data, err := os.ReadFile(path)
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

// hide takes the key out of what a server or a library said. Words as short as
// the "EMPTY" that people give to servers without keys hide nothing.
func (k Key) hide(s string) string {
	if v := k.value(); len(v) >= 6 {
		return strings.ReplaceAll(s, v, "[key]")
	}
	return s
}
