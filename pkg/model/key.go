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
	switch {
	case !k.secret():
		return body
	case !json.Valid(body):
		return []byte(k.hide(string(body)))
	}
	clean := make([]byte, 0, len(body))
	for {
		begin := bytes.IndexByte(body, '"')
		if begin < 0 {
			return append(clean, body...)
		}
		end := begin + 1
		for ; body[end] != '"'; end++ {
			if body[end] == '\\' {
				end++
			}
		}
		clean = append(clean, body[:begin]...)
		clean = append(clean, k.hideQuoted(body[begin:end+1])...)
		body = body[end+1:]
	}
}

// hideQuoted is hide of a string of JSON.
func (k Key) hideQuoted(quoted []byte) []byte {
	var said string
	if json.Unmarshal(quoted, &said) != nil {
		return quoted
	}
	clean := k.hide(said)
	if clean == said {
		return quoted
	}
	quoted, _ = json.Marshal(clean) // a string
	return quoted
}
