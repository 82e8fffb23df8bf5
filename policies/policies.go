// Package policies holds the built-in policies. Each is a TOML file here, which
// begins with a comment for the person who chooses one.
package policies

import (
	"embed"
	"strings"

	"fence/pkg/policy"
)

//go:embed *.toml
var files embed.FS

// Default is the policy of a fence that is told nothing else.
const Default = "strict"

// Names lists the built-in policies, the default first.
func Names() []string {
	return []string{"strict", "loopback", "proxy", "verifier", "build", "model-server"}
}

// Get returns the text of a built-in policy.
func Get(name string) ([]byte, bool) {
	for _, n := range Names() {
		if n == name {
			data, err := files.ReadFile(n + ".toml")
			return data, err == nil
		}
	}
	return nil, false
}

// Parsed is a built-in policy without the work of parsing it, which would be
// done before every command.
func Parsed(name string) (policy.Policy, bool) {
	f, ok := parsed[name]
	if !ok {
		return policy.Policy{}, false
	}
	return f(), true
}

// Summary is what a built-in policy is for, in one line; "" if there is none
// of that name.
func Summary(name string) string {
	data, _ := Get(name)
	first, _, _ := strings.Cut(string(data), "\n")
	_, text, _ := strings.Cut(first, ": ")
	return text
}
