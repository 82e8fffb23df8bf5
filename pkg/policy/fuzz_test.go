package policy_test

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"fence/pkg/policy"
	"fence/policies"
)

func FuzzParse(f *testing.F) {
	for _, name := range policies.Names() {
		data, _ := policies.Get(name)
		f.Add(data)
	}
	f.Add([]byte(v1 + "[filesystem]\nhide = [\"/a/b\"]\nread = [\"/a\"]\nwhy = \"w\"\n[[open]]\npath = \"/a/c\"\naccess = \"write\"\nwhy = \"x\"\n[[open]]\nsyscall = \"ptrace\"\nwhy = \"y\"\n"))
	f.Add([]byte(v1 + "extends = \"model-server\"\nopen = [{path = \"/x\", access = \"read\", why = \"w\"}]\nenvironment.set.A = \"\"\"x\ny\"\"\"\n[[accept]]\nname = \"landlock-hide\"\nwhy = \"w\"\n"))
	f.Add([]byte(v1 + "[open]\n[[open.x]]\n[a.b]\n[[a.c]]\nlimits.core = 1e3\n[\"\"]\n\"\" = [[{}]]\n"))
	f.Add([]byte("\ufeff\xff[limits]\nas = 0x7fffffffffffffff\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, zero := range []policy.Options{options(), {}} {
			p, err := policy.Parse("p.toml", data, zero)
			if err != nil {
				if !reflect.DeepEqual(p, policy.Policy{}) {
					t.Fatalf("an error with a policy: %v", p)
				}
				file, line, _ := strings.Cut(err.(*policy.Error).At, ":")
				if n, _ := strconv.Atoi(line); n < 1 || n > 1+strings.Count(string(data), "\n") && file == "p.toml" || strings.ContainsAny(err.Error(), "\n\r\x00\x1b") {
					t.Fatalf("not one line of the file: %q", err)
				}
				continue
			}
			q, err := policy.Parse("q.toml", []byte(format(p)), zero)
			if err != nil {
				t.Fatalf("%v\n%s", err, format(p))
			}
			if format(q) != format(p) {
				t.Fatalf("got\n%s\nwant\n%s", format(q), format(p))
			}
		}
	})
}

func FuzzParseSite(f *testing.F) {
	f.Add([]byte(v1 + "[filesystem]\nhide = [\"/proj\"]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if hide, err := policy.ParseSite("s", data); err != nil && hide != nil {
			t.Fatal("an error with paths")
		}
	})
}

func FuzzLooksSecret(f *testing.F) {
	f.Add("A_KEY", "http://u:p@h")
	f.Fuzz(func(t *testing.T, name, value string) { policy.LooksSecret(name, value) })
}
