package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fence/pkg/cli"
)

func TestNeeds(t *testing.T) {
	list := strings.Split("abcdefghijk", "")
	for _, c := range []struct {
		really, want string
	}{
		{"a", "a"}, {"k", "k"}, {"f", "f"},
		{"ab", "ab"},
		{"x", ""}, // nothing of the list helps
	} {
		asked := 0
		got, err := needs(list, func(some []string) (bool, error) {
			asked++
			for _, one := range strings.Split(c.really, "") {
				if !slices.Contains(some, one) {
					return false, nil
				}
			}
			return true, nil
		})
		if text := strings.Join(got, ""); err != nil || text != c.want {
			t.Errorf("needs %q: found %q, %v", c.really, text, err)
		}
		if asked > 9 {
			t.Errorf("needs %q: asked %d times", c.really, asked)
		}
	}
}

// Each line is what a policy file or a command line takes.
func TestPropose(t *testing.T) {
	var out strings.Builder
	propose(&out, "gdb", []string{"ptrace kcmp"})
	want := `rollout: gdb: its solution passes with this
    [[open]]
    syscall = "ptrace"
    why = "gdb: its solution calls it"
    [[open]]
    syscall = "kcmp"
    why = "gdb: its solution calls it"
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	propose(&out, "a\x1bb", []string{network})
	if !strings.Contains(out.String(), "--net host --why '"+cli.Printable("a\x1bb")) {
		t.Error(fmt.Sprintf("%q", out.String()))
	}
}
