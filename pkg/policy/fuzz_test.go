package policy_test

import (
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fence/pkg/policy"
	"fence/policies"
)

// allows is what a policy says of one path, read the way docs/policy.md puts
// it and without a kernel: sets stand for fixed folders.
func allows(p policy.Policy, file string) policy.Access {
	sets := map[string][]string{"@root": {"/"}, "@tmp": {"/tmp", "/var/tmp", "/dev/shm"}, "@shared": {"/proj"}, "@home": {"/home/me"}, "@sockets": {"/run"}}
	in := func(file, dir string) bool {
		return file == dir || dir == "/" || strings.HasPrefix(file, dir+"/")
	}
	covers := func(entries []string) (literal, set bool) {
		for _, e := range entries {
			for _, dir := range sets[e] {
				set = set || in(file, dir)
			}
			literal = literal || e[0] == '/' && in(file, e)
		}
		return literal, set
	}
	if hidden, _ := covers(p.Filesystem.Hide); hidden {
		return policy.AccessNone
	}
	got := policy.AccessNone
	for _, o := range p.Open {
		match, _ := path.Match(o.Path, file)
		if o.Syscall == "" && (in(file, o.Path) || o.Access == policy.AccessDevice && match) {
			got = most(got, o.Access)
		}
	}
	if _, hidden := covers(p.Filesystem.Hide); hidden {
		return got
	}
	if l, s := covers(p.Filesystem.Read); l || s {
		got = most(got, policy.AccessRead)
	}
	if l, s := covers(p.Filesystem.Write); l || s {
		got = most(got, policy.AccessWrite)
	}
	return got
}

// most is the one of two that allows more.
func most(a, b policy.Access) policy.Access {
	order := []policy.Access{policy.AccessNone, policy.AccessRead, policy.AccessWrite, policy.AccessDevice}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

func TestAllows(t *testing.T) {
	p := mustParse(t, v1+"extends = \"strict\"\nfilesystem.hide = [\"/wheels/old\"]\n[[open]]\npath = \"/wheels\"\naccess = \"read\"\nwhy = \"w\"\n[[open]]\npath = \"/proj/w\"\naccess = \"read\"\nwhy = \"w\"\n")
	for file, want := range map[string]policy.Access{"/etc/x": policy.AccessWrite, "/proj/x": "", "/proj/w/x": policy.AccessRead,
		"/home/me/.ssh": "", "/wheels/old/x": "", "/run/munge": ""} {
		if got := allows(p, file); got != want {
			t.Errorf("%s: %v, want %v", file, got, want)
		}
	}
	if allows(policy.Policy{}, "/etc") != policy.AccessNone {
		t.Error("the zero policy allows something")
	}
}

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
			for i := range p.Open {
				less := p
				less.Open = append(append([]policy.Open{}, p.Open[:i]...), p.Open[i+1:]...)
				for _, file := range []string{"/", "/a", "/a/b", "/a/b/c", "/x", "/proj", "/home/me/y", "/dev/nvidia0", p.Open[i].Path, p.Open[i].Path + "/x"} {
					if got := allows(less, file); got != allows(p, file) && most(got, allows(p, file)) == got {
						t.Fatalf("without %v more is allowed at %s", p.Open[i], file)
					}
				}
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
