package policy_test

import (
	"fmt"
	"strconv"
	"strings"

	"fence/pkg/policy"
)

// format is p as a policy file that extends nothing. Parsing it gives p again,
// but for Name, Extends and From.
func format(p policy.Policy) string {
	var b strings.Builder
	b.WriteString("version = 1\n")
	list := func(key string, items []string) {
		if len(items) == 0 {
			return
		}
		quoted := make([]string, len(items))
		for i, s := range items {
			quoted[i] = quote(s)
		}
		fmt.Fprintf(&b, "%s = [%s]\n", key, strings.Join(quoted, ", "))
	}
	text := func(key, s string) {
		if s != "" {
			fmt.Fprintf(&b, "%s = %s\n", key, quote(s))
		}
	}
	b.WriteString("\n[filesystem]\n")
	list("read", p.Filesystem.Read)
	list("write", p.Filesystem.Write)
	list("hide", p.Filesystem.Hide)
	text("why", p.Filesystem.Why)
	b.WriteString("\n[network]\n")
	text("mode", p.Network.Mode.String())
	text("why", p.Network.Why)
	b.WriteString("\n[environment]\n")
	list("keep", p.Environment.Keep)
	text("why", p.Environment.Why)
	if len(p.Environment.Set) > 0 {
		b.WriteString("\n[environment.set]\n")
		for _, v := range p.Environment.Set {
			fmt.Fprintf(&b, "%s = %s\n", v.Name, quote(v.Value))
		}
	}
	if len(p.Capabilities) > 0 {
		b.WriteString("\n[capabilities]\n")
		list("keep", p.Capabilities)
		text("why", p.CapabilitiesWhy)
	}
	if len(p.Limits) > 0 {
		b.WriteString("\n[limits]\n")
	}
	for _, l := range p.Limits {
		if l.Value == policy.Unlimited {
			text(l.Name, "unlimited")
		} else {
			b.WriteString(l.Name + " = " + strconv.FormatUint(l.Value, 10) + "\n")
		}
	}
	for _, o := range p.Open {
		b.WriteString("\n[[open]]\n")
		text("path", o.Path)
		text("access", string(o.Access))
		text("syscall", o.Syscall)
		text("why", o.Why)
	}
	for _, a := range p.Accept {
		b.WriteString("\n[[accept]]\n")
		text("name", a.Name)
		text("why", a.Why)
	}
	return b.String()
}

// quote is s as a TOML basic string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}
