package policy_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fence/pkg/policy"
	"fence/policies"
)

// options knows the built-ins, three system calls, and a few bases for tests.
func options() policy.Options {
	return policy.Options{
		Base: func(name string) ([]byte, bool) {
			switch name {
			case "loop-a":
				return []byte("version = 1\nextends = \"loop-b\"\n"), true
			case "loop-b":
				return []byte("version = 1\n\nextends = \"loop-a\"\n"), true
			case "broken":
				return []byte("version = 1\n[filesystem]\nread = [\"etc\"]\n"), true
			case "opens":
				return []byte("version = 1\n[[open]]\npath = \"/data/x\"\naccess = \"read\"\nwhy = \"w\"\n"), true
			case "hides":
				return []byte("version = 1\n[filesystem]\nhide = [\n  \"/data\",\n]\n"), true
			}
			return policies.Get(name)
		},
		Syscall: func(name string) bool { return slices.Contains([]string{"ptrace", "mbind", "keyctl"}, name) },
	}
}

func mustParse(t testing.TB, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse("p.toml", []byte(text), options())
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return p
}

func weaknesses() string {
	return strings.Join(policy.Weaknesses, ", ")
}

const v1 = "version = 1\n"

func TestParse_RefusesWithOneLine(t *testing.T) {
	open := func(body string) string { return v1 + "[[open]]\n" + body }
	tests := []struct{ text, want, hint string }{
		// The file as a whole.
		{"", "p.toml:1: version is missing", "begin the file with version = 1"},
		{"\nversion = 2\n", "p.toml:2: version 2 is not known here", "write version = 1"},
		{"version = 1.0\n", "p.toml:1: version must be a whole number", "write version = 1"},
		{"version = \"1\"\n", "p.toml:1: version must be a whole number", "write version = 1"},
		{"version = \"\\n\"\n", "p.toml:1: version must be a whole number", "write version = 1"},
		{"\ufeffversion = 1\n", "p.toml:1: the file begins with a byte order mark", "save it as plain UTF-8"},
		{"version = 1\nversion = 1\n", "p.toml:2: key version is already defined", ""},
		{"version = 1\n[limits]\n[limits]\n", "p.toml:3: table limits already exists", ""},
		{"version = 1\n\n[filesystem\n", "p.toml:3: expected ']' to close table name", ""},
		{"version = 1\nx\x00 = 1\n", "p.toml:2: expected '=' after key", ""},
		{"version = 1\n# \xff\n", "p.toml:2: invalid UTF-8 character in comment", ""},
		{"version = 1\n" + strings.Repeat("#\n", 1<<15), "p.toml:1: the file is larger than 64 KiB", ""},
		// Keys.
		{v1 + "[filesytem]\nread = []\n", "p.toml:2: key \"filesytem\" is not known (version, extends, filesystem, network, environment, capabilities, limits, open, accept)", "did you mean filesystem?"},
		{v1 + "[filesystem]\nread = []\nwrit = []\n", "p.toml:4: key \"writ\" is not known (read, write, hide, why)", "did you mean write?"},
		{v1 + "[filesystem]\nHide = [\"/x\"]\n", "p.toml:3: key \"Hide\" is not known (read, write, hide, why)", "did you mean hide?"},
		{v1 + "[Filesystem]\nhide = [\"/x\"]\n", "p.toml:2: key \"Filesystem\" is not known (version, extends, filesystem, network, environment, capabilities, limits, open, accept)", "did you mean filesystem?"},
		{v1 + "[network]\nmode = \"none\"\nport = \"/x\"\n", "p.toml:4: key \"port\" is not known (mode, socket, why)", ""},
		{open("path = \"/x\"\naccess = \"read\"\nwyh = \"w\"\n"), "p.toml:5: key \"wyh\" is not known (path, access, syscall, why)", "did you mean why?"},
		{v1 + "open = [\n  {path = \"/x\", access = \"read\", why = \"w\"},\n  {path = \"/y\", acces = \"read\", why = \"w\"},\n]\n", "p.toml:4: key \"acces\" is not known (path, access, syscall, why)", "did you mean access?"},
		{v1 + "filesystem.read = []\nfilesystem.foo = 1\n", "p.toml:3: key \"foo\" is not known (read, write, hide, why)", ""},
		// Types.
		{v1 + "filesystem = 3\n", "p.toml:2: filesystem must be a table", "write its name in [ ] on a line of its own"},
		{v1 + "[open]\npath = \"/x\"\n", "p.toml:2: open must be a list of tables", "write its name in [[ ]] on a line of its own, for each"},
		{v1 + "open = [1]\n", "p.toml:2: an entry of open must be a table", "write its name in [ ] on a line of its own"},
		{v1 + "[filesystem]\nread = \"/x\"\n", "p.toml:3: read must be a list", `write ["..."]`},
		{v1 + "[filesystem]\nread = [\n  \"@root\",\n  7,\n]\n", "p.toml:5: an entry of read must be text", "put it in quotes"},
		{v1 + "[network]\nmode = true\n", "p.toml:3: mode must be text", "put it in quotes"},
		{v1 + "[environment]\nset = [\"A=1\"]\n", "p.toml:3: set must be a table", `write { NAME = "..." }`},
		{v1 + "[environment]\nset = { A = 1 }\n", "p.toml:3: A must be text", "put it in quotes"},
		// Paths and sets.
		{v1 + "[filesystem]\nhide = [\"proj\"]\n", "p.toml:3: \"proj\" is not an absolute path", "a path begins with /"},
		{v1 + "[filesystem]\nhide = [\"~/.ssh\"]\n", "p.toml:3: \"~/.ssh\" is not an absolute path", "write the path out, ~ is not expanded"},
		{v1 + "[filesystem]\nhide = [\n  \"/a\",\n  \"/b/../c\",\n]\n", "p.toml:5: \"/b/../c\" is not a clean path", "write /c"},
		{v1 + "[filesystem]\nhide = [\"/a/\"]\n", "p.toml:3: \"/a/\" is not a clean path", "write /a"},
		{v1 + "[filesystem]\nhide = [\"\"]\n", `p.toml:3: "" is not an absolute path`, "a path begins with /"},
		{v1 + "[filesystem]\nhide = [\"/\"]\n", "p.toml:3: hiding / leaves nothing to run", ""},
		{v1 + "[filesystem]\nhide = [\"/a\\u0000b\"]\n", `p.toml:3: path "/a\x00b" has a NUL byte`, ""},
		{v1 + "[filesystem]\nhide = [\"/a\\u001bb\"]\n", `p.toml:3: path "/a\x1bb" has a control character`, ""},
		{v1 + "[filesystem]\nhide = [\"/proj/*\"]\n", "p.toml:3: \"/proj/*\": a pattern is only for access = \"device\" below /dev", "name the folder above instead"},
		{v1 + "[filesystem]\nhide = [\"@hoem\"]\n", "p.toml:3: set \"@hoem\" is not known (@tmp, @shared, @home, @sockets)", "did you mean @home?"},
		{v1 + "[filesystem]\nread = [\"@foo\"]\n", "p.toml:3: set \"@foo\" is not known (@root, @tmp, @home, @shared)", "did you mean @root?"},
		{v1 + "[filesystem]\nread = [\"@image\"]\n", "p.toml:3: set \"@image\" does not belong here (@root, @tmp, @home, @shared)", ""},
		{v1 + "[filesystem]\nread = [\"@sockets\"]\nwhy = \"w\"\n", "p.toml:3: set \"@sockets\" does not belong here (@root, @tmp, @home, @shared)", ""},
		{v1 + "[filesystem]\nhide = [\"@root\"]\n", "p.toml:3: set \"@root\" does not belong here (@tmp, @shared, @home, @sockets)", ""},
		{v1 + "[filesystem]\nread = [\"@root\", \"/etc\"]\n", "p.toml:3: /etc is opened without a reason", `write it as [[open]] with a why, or add why = "..." to [filesystem]`},
		{v1 + "[filesystem]\nwrite = [\"@home\"]\n", "p.toml:3: @home is opened without a reason", `write it as [[open]] with a why, or add why = "..." to [filesystem]`},
		{v1 + "[filesystem]\nwhy = \"w\"\nwrite = [\"/.singularity.d/env\"]\n", "p.toml:4: /.singularity.d/env is never writable: what lies there runs before the fence the next time", ""},
		// Network.
		{v1 + "[network]\nmode = \"proxy\"\n", "p.toml:2: no reason is given", `add why = "..."`},
		{v1 + "[network]\nmode = \"proxy\"\nsocket = \"run/proxy\"\nwhy = \"w\"\n", "p.toml:4: \"run/proxy\" cannot be the proxy's socket", "the socket of mode proxy is an absolute path"},
		{v1 + "[network]\nmode = \"hots\"\n", "p.toml:3: network mode \"hots\" is not known (none, loopback, proxy, host)", "did you mean host?"},
		{v1 + "[network]\n", "p.toml:2: network mode \"\" is not known (none, loopback, proxy, host)", ""},
		{v1 + "\n[network]\nmode = \"host\"\n", "p.toml:3: no reason is given", `add why = "..."`},
		{v1 + "[network]\nmode = \"host\"\nwhy = \" \"\n", "p.toml:4: no reason is given", `add why = "..."`},
		{v1 + "[network]\nmode = \"host\"\nwhy = \"\"\"a\nb\"\"\"\n", "p.toml:4: the reason has a control character", "write the reason as one line"},
		// Environment.
		{v1 + "[environment]\nkeep = [\"*\"]\n", "p.toml:3: * would keep every variable", "name them, or a prefix such as LC_*"},
		{v1 + "[environment]\nkeep = [\"A*B\"]\n", "p.toml:3: \"A*B\" is not the name of a variable", "letters, digits and _, with one * at the end at most"},
		{v1 + "[environment]\nkeep = [\"@root\"]\n", "p.toml:3: set \"@root\" does not belong here (@image)", ""},
		{v1 + "[environment]\nkeep = [\"HF_TOKEN\"]\n", "p.toml:3: HF_TOKEN looks like a credential", "let what needs it run outside the fence"},
		{v1 + "[environment]\nkeep = [\"AWS_*\"]\n", "p.toml:3: AWS_* looks like a credential", "let what needs it run outside the fence"},
		{v1 + "[environment]\nkeep = [\"A\"]\n[environment.set]\nB = \"1\"\nC_KEY = \"hunter2\"\n", "p.toml:6: C_KEY looks like a credential", "let what needs it run outside the fence"},
		{v1 + "[environment]\nset = { U = \"http://me:hunter2@h/\" }\n", "p.toml:3: U looks like a credential", "let what needs it run outside the fence"},
		{v1 + "[environment]\nset = { \"A B\" = \"1\" }\n", "p.toml:3: \"A B\" is not the name of a variable", "letters, digits and _"},
		{v1 + "[environment]\nset = { A = \"x\\u0000\" }\n", "p.toml:3: the value of A is not text", ""},
		// Capabilities and limits.
		{v1 + "[capabilities]\nkeep = [\"CAP_CHWON\"]\n", "p.toml:2: no reason is given", `add why = "..."`},
		{v1 + "[capabilities]\nwhy = \"w\"\nkeep = [\"CAP_CHWON\"]\n", "p.toml:4: capability \"CAP_CHWON\" is not known, see capabilities(7)", "did you mean CAP_CHOWN?"},
		{v1 + "[capabilities]\nkeep = [\"CAP_CHOWN\"]\n", "p.toml:2: no reason is given", `add why = "..."`},
		{v1 + "[limits]\ncore = 0\nnofiles = 1\n", "p.toml:4: limit \"nofiles\" is not known (as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack)", "did you mean nofile?"},
		{v1 + "[limits]\nnofile = -1\n", "p.toml:3: limit nofile is \"-1\", not a whole number or \"unlimited\"", ""},
		{v1 + "[limits]\nas = \"4G\"\n", "p.toml:3: limit as is \"4G\", not a whole number or \"unlimited\"", ""},
		{v1 + "[limits]\nas = 99999999999999999999\n", "p.toml:3: decimal number is too large to fit in a 64-bit signed integer", ""},
		// Openings.
		{open("path = \"/x\"\naccess = \"read\"\n"), "p.toml:2: no reason is given", `add why = "..."`},
		{open("path = \"/x\"\nwhy = \"w\"\n"), "p.toml:3: the opening of \"/x\" does not say which access", `add access = "read", "write" or "device"`},
		{open("path = \"/x\"\naccess = \"rw\"\nwhy = \"w\"\n"), "p.toml:4: access \"rw\" is not known (read, write, device)", "read is read and run, write is that and change, device is for files below /dev"},
		{open("path = \"x\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: \"x\" is not an absolute path", "a path begins with /"},
		{open("path = \"@home\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: set \"@home\" does not belong here", ""},
		{open("path = \"/x\"\nsyscall = \"ptrace\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:4: one opening has both path and syscall", "write two"},
		{open("access = \"read\"\nwhy = \"w\"\n"), "p.toml:2: an opening needs a path or a syscall", ""},
		{open("path = \"\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: an opening needs a path or a syscall", ""},
		{open("syscall = \"ptrace\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: access belongs to a path, not to a syscall", ""},
		{open("syscall = \"ptrac\"\nwhy = \"w\"\n"), "p.toml:3: system call \"ptrac\" is not known", ""},
		{open("path = \"/data/*\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: \"/data/*\": a pattern is only for access = \"device\" below /dev", "name the folder above instead"},
		{open("path = \"/data/x\"\naccess = \"device\"\nwhy = \"w\"\n"), "p.toml:3: \"/data/x\": access \"device\" is for files below /dev", ""},
		{open("path = \"/dev\"\naccess = \"device\"\nwhy = \"w\"\n"), "p.toml:3: \"/dev\": access \"device\" is for files below /dev", ""},
		{open("path = \"/dev/shm\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: /dev/shm: what lies below /dev cannot be opened for reading alone", `use access = "device", or a folder elsewhere`},
		{open("path = \"/dev\"\naccess = \"read\"\nwhy = \"w\"\n"), "p.toml:3: /dev: what lies below /dev cannot be opened for reading alone", `use access = "device", or a folder elsewhere`},
		{v1 + "[filesystem]\nread = [\"/dev/pts\"]\nwhy = \"w\"\n", "p.toml:3: /dev/pts: what lies below /dev cannot be opened for reading alone", `use access = "device", or a folder elsewhere`},
		{open("path = \"/dev/*\"\naccess = \"device\"\nwhy = \"w\"\n"), "p.toml:3: \"/dev/*\" would open nearly every device", "begin with the name, as in /dev/nvidia*"},
		{open("path = \"/dev/n[\"\naccess = \"device\"\nwhy = \"w\"\n"), "p.toml:3: \"/dev/n[\" is not a valid pattern", "a pattern may have *, ? and [a-z], in the last part only"},
		{open("path = \"/dev/n*/x\"\naccess = \"device\"\nwhy = \"w\"\n"), "p.toml:3: \"/dev/n*/x\" is not a valid pattern", "a pattern may have *, ? and [a-z], in the last part only"},
		{open("path = \"/.fence/x\"\naccess = \"write\"\nwhy = \"w\"\n"), "p.toml:3: /.fence/x is never writable: what lies there runs before the fence the next time", ""},
		{v1 + "[[accept]]\nname = \"landlock-hidden\"\nwhy = \"w\"\n", "p.toml:3: \"landlock-hidden\" is not something that can be accepted (" + weaknesses() + ")", "did you mean landlock-hide?"},
		{v1 + "[[accept]]\nname = \"landlock-hide\"\n", "p.toml:2: no reason is given", `add why = "..."`},
		// Two lines that contradict each other.
		{v1 + "[filesystem]\nhide = [\"/data\"]\n[[open]]\npath = \"/data/x\"\naccess = \"read\"\nwhy = \"w\"\n", "p.toml:4: /data/x is opened here, and is covered by /data, hidden at p.toml:3", "remove one of the two"},
		{v1 + "[filesystem]\nwhy = \"w\"\nread = [\"/data\"]\nhide = [\"/data\"]\n", "p.toml:4: /data is opened here, and is hidden at p.toml:5", "remove one of the two"},
		{v1 + "[filesystem]\nwhy = \"w\"\nwrite = [\"/data/x\"]\nhide = [\"/data\"]\n", "p.toml:4: /data/x is opened here, and is covered by /data, hidden at p.toml:5", "remove one of the two"},
		{v1 + "[filesystem]\nwhy = \"w\"\nread = [\"@home\"]\nhide = [\"@home\"]\n", "p.toml:4: @home is opened here, and is hidden at p.toml:5", "remove one of the two"},
		{v1 + "[filesystem]\nhide = [\"/dev/nvidia0\"]\n[[open]]\npath = \"/dev/nvidia*\"\naccess = \"device\"\nwhy = \"w\"\n", "p.toml:4: /dev/nvidia* is opened here, and is covered by /dev/nvidia0, hidden at p.toml:3", "remove one of the two"},
		{v1 + "extends = \"opens\"\n[filesystem]\nhide = [\"/data\"]\n", "opens:2: /data/x is opened here, and is covered by /data, hidden at p.toml:4", "remove one of the two"},
		{v1 + "extends = \"hides\"\n[[open]]\npath = \"/data/y\"\naccess = \"write\"\nwhy = \"w\"\n", "p.toml:3: /data/y is opened here, and is covered by /data, hidden at hides:4", "remove one of the two"},
		{v1 + "extends = \"strict\"\n[filesystem]\nread = [\"@shared\"]\nwhy = \"w\"\n", "p.toml:4: @shared is opened here, and is hidden at strict:12", "remove one of the two"},
		// Extending.
		{v1 + "extends = \"strikt\"\n", "p.toml:2: \"strikt\" is not a built-in policy", "extends takes the name of a built-in policy, see 'fence policies'"},
		{v1 + "extends = \"\"\n", "p.toml:2: \"\" is not a built-in policy", "extends takes the name of a built-in policy, see 'fence policies'"},
		{v1 + "extends = \"loop-a\"\n", "loop-b:3: loop-a -> loop-b -> loop-a extends itself", ""},
		{v1 + "extends = \"broken\"\n", "broken:3: \"etc\" is not an absolute path", "a path begins with /"},
	}
	for _, tt := range tests {
		p, err := policy.Parse("p.toml", []byte(tt.text), options())
		var e *policy.Error
		if !errors.As(err, &e) {
			t.Errorf("no error, want %s\n%.200s", tt.want, tt.text)
			continue
		}
		if err.Error() != tt.want || e.Hint != tt.hint {
			t.Errorf("got  %s (%s)\nwant %s (%s)", err, e.Hint, tt.want, tt.hint)
		}
		if !reflect.DeepEqual(p, policy.Policy{}) {
			t.Errorf("%s: the policy is not zero", tt.want)
		}
	}
}

// A hide inside an opened folder takes a piece away again, which is fine.
func TestParse_HideBeneathOpen(t *testing.T) {
	p := mustParse(t, v1+"[filesystem]\nhide = [\"/data/x\", \"@shared\"]\n[[open]]\npath = \"/data\"\naccess = \"read\"\nwhy = \"w\"\n")
	if got := p.Open[0].From; got != "p.toml:4" {
		t.Errorf("From = %q", got)
	}
}

// Without a table of system calls every name is refused, without built-ins
// every extends.
func TestParse_ZeroOptionsRefuse(t *testing.T) {
	for text, want := range map[string]string{
		v1 + "[[open]]\nsyscall = \"ptrace\"\nwhy = \"w\"\n": `p.toml:3: system call "ptrace" is not known`,
		v1 + "extends = \"strict\"\n":                        `p.toml:2: "strict" is not a built-in policy`,
	} {
		if _, err := policy.Parse("p.toml", []byte(text), policy.Options{}); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestParse_Extends(t *testing.T) {
	p := mustParse(t, v1+`extends = "model-server"
filesystem.hide = ["/secret", "@home"]
limits = { core = "unlimited", nproc = 7 }
environment = { keep = ["PATH", "X"], set = { B = "2", A = "1" }, why = "x" }
[[open]]
syscall = "ptrace"
why = "gdb"
`)
	want := policy.Policy{
		Name: "p.toml", Extends: "model-server",
		Filesystem: policy.Filesystem{Read: []string{"@root"}, Write: []string{"@root", "@tmp"}, Hide: []string{"@shared", "@home", "@sockets", "/secret"}},
		Network:    policy.Network{Mode: policy.NetworkHost, Why: p.Network.Why},
		Environment: policy.Environment{Keep: p.Environment.Keep, Why: "x",
			Set: []policy.Variable{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}},
		Limits: []policy.Limit{{Name: "core", Value: policy.Unlimited}, {Name: "nofile", Value: 65536}, {Name: "nproc", Value: 7}},
		Open:   append(slices.Clone(p.Open[:4]), policy.Open{Syscall: "ptrace", Why: "gdb", From: "p.toml:6"}),
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	if n := len(p.Environment.Keep); p.Environment.Keep[n-1] != "X" || slices.Index(p.Environment.Keep, "PATH") != 1 {
		t.Errorf("keep = %v", p.Environment.Keep)
	}
	if got := p.Open[0].From; got != "model-server:25" {
		t.Errorf("From = %q", got)
	}
	// A network table replaces the one below.
	if p := mustParse(t, v1+"extends = \"build\"\nnetwork = { mode = \"none\" }\n"); p.Network != (policy.Network{}) {
		t.Errorf("network = %+v", p.Network)
	}
}

func TestPolicy_Whys(t *testing.T) {
	p := mustParse(t, v1+`extends = "build"
[environment]
set = { A = "not shown" }
[capabilities]
keep = ["CAP_CHOWN"]
why = "c"
[[open]]
path = "/wheels"
access = "read"
why = "offline wheelhouse"
[[accept]]
name = "landlock-hide"
why = "no user namespaces"
`)
	whys := []policy.Loosening{
		{What: "network host", Why: "build steps download packages (apt, pip, npm)"},
		{What: "capabilities CAP_CHOWN", Why: "c"},
		{What: "read /wheels", Why: "offline wheelhouse", From: "p.toml:8"},
		{What: "accept landlock-hide", Why: "no user namespaces", From: "p.toml:12"},
	}
	if got := p.Whys(); !slices.Equal(got, whys) {
		t.Errorf("got  %v\nwant %v", got, whys)
	}
}

// Format loses nothing that counts, whatever the values hold.
func TestPolicy_FormatAndDigest(t *testing.T) {
	p := mustParse(t, v1+`extends = "model-server"
[filesystem]
read = ["/a b", "/ü\"q"]
why = "tab-free"
[environment.set]
A = "line\nnext\t\"\\ \u007f"
[limits]
as = "unlimited"
[[open]]
syscall = "mbind"
why = "numactl"
[[accept]]
name = "landlock-hide"
why = "w"
`)
	q := mustParse(t, format(p))
	if format(q) != format(p) || q.Digest() != p.Digest() {
		t.Errorf("got\n%s\nwant\n%s", format(q), format(p))
	}
	p.Name, p.Extends, q.Name = "", "", ""
	for i := range p.Open {
		p.Open[i].From, q.Open[i].From = "", ""
	}
	p.Accept[0].From, q.Accept[0].From = "", ""
	if !reflect.DeepEqual(p, q) {
		t.Errorf("got  %+v\nwant %+v", q, p)
	}
	if strict := mustParse(t, v1+"extends = \"strict\"\n"); strict.Digest() == p.Digest() || len(strict.Digest()) != 64 {
		t.Errorf("digest %s", strict.Digest())
	}
}

func TestParseSite(t *testing.T) {
	hide, err := policy.ParseSite("site.toml", []byte(v1+"[filesystem]\nhide = [\"/proj\", \"@home\"]\n"))
	if err != nil || !slices.Equal(hide, []string{"/proj", "@home"}) {
		t.Errorf("got %v, %v", hide, err)
	}
	for text, want := range map[string]string{
		"[filesystem]\nhide = []\n":                           "site.toml:1: version is missing",
		v1 + "[filesystem]\nread = [\"@root\"]\n":             `site.toml:3: key "read" is not known (hide)`,
		v1 + "extends = \"strict\"\n":                         `site.toml:2: key "extends" is not known (version, filesystem)`,
		v1 + "[[accept]]\nname = \"landlock-hide\"\n":         `site.toml:2: key "accept" is not known (version, filesystem)`,
		v1 + "[filesystem]\nhide = [\"proj\"]\n":              `site.toml:3: "proj" is not an absolute path`,
		v1 + "[filesystem]\nhide = [\"/p\"]\nhide = [\"/q\"]": "site.toml:4: key hide is already defined",
	} {
		if hide, err := policy.ParseSite("site.toml", []byte(text)); err == nil || err.Error() != want || hide != nil {
			t.Errorf("got %v, %v, want %s", hide, err, want)
		}
	}
	p := mustParse(t, v1+"extends = \"opens\"\n")
	q, err := p.WithSite([]string{"/proj"})
	if err != nil || !slices.Equal(q.Filesystem.Hide, []string{"/proj"}) {
		t.Errorf("got %v, %v", q, err)
	}
	if _, err := p.WithSite(hide); err != nil {
		t.Error(err)
	}
	if _, err := p.WithSite([]string{"/data"}); err == nil || err.Error() != "opens:2: /data/x is opened here, and is covered by /data, hidden at the site's file" {
		t.Errorf("got %v", err)
	}
}

func TestBuiltins(t *testing.T) {
	if !slices.Contains(policies.Names(), policies.Default) {
		t.Error("no default")
	}
	for _, name := range policies.Names() {
		data, ok := policies.Get(name)
		if !ok || !strings.HasPrefix(string(data), "# "+name+": ") {
			t.Fatalf("%s: does not begin with its name", name)
		}
		p, err := policy.Parse(name, data, options())
		if err != nil {
			t.Fatal(err)
		}
		if s := policies.Summary(name); s == "" || len(s) > 110 {
			t.Errorf("%s: summary %q", name, s)
		}
		for _, set := range []string{policy.SetShared, policy.SetHome, policy.SetSockets} {
			if !slices.Contains(p.Filesystem.Hide, set) {
				t.Errorf("%s does not hide %s", name, set)
			}
		}
		if (p.Network.Mode == policy.NetworkHost) != (name == "build" || name == "model-server") {
			t.Errorf("%s: network %v", name, p.Network)
		}
		if len(p.Accept)+len(p.Capabilities)+len(p.Environment.Set) > 0 {
			t.Errorf("%s: %v", name, p)
		}
		for _, secret := range []string{"HF_TOKEN", "SSH_AUTH_SOCK", "SLURM_JWT", "AWS_PROFILE", "VLLM_API_KEY", "UV_INDEX_PASSWORD"} {
			if p.Environment.Keeps(secret, func(string) bool { return true }) {
				t.Errorf("%s keeps %s", name, secret)
			}
		}
		image := func(n string) bool { return n == "FROM_IMAGE" }
		for n, want := range map[string]bool{"PATH": true, "LC_ALL": true, "LC": false, "FROM_IMAGE": true, "MANPATH": false, "SLURM_JOB_ID": false,
			"http_proxy": name == "build", "CUDA_VISIBLE_DEVICES": name == "model-server", "PIP_NO_INDEX": name == "verifier"} {
			if p.Environment.Keeps(n, image) != want {
				t.Errorf("%s: keeps %s: %v", name, n, !want)
			}
		}
	}
	if _, ok := policies.Get("../policies/strict"); ok || policies.Summary("x") != "" {
		t.Error("got a policy that is not there")
	}
	if (policy.Environment{Keep: []string{"*"}}).Keeps("PATH", nil) || (policy.Environment{}).Keeps("", nil) {
		t.Error("the zero environment keeps something")
	}
}

// fence runs before every command, so this is paid each time.
func BenchmarkParseStrict(b *testing.B) {
	data, _ := policies.Get("strict")
	opt := options()
	for b.Loop() {
		if _, err := policy.Parse("strict", data, opt); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseModelServer(b *testing.B) {
	data, _ := policies.Get("model-server")
	opt := options()
	for b.Loop() {
		if _, err := policy.Parse("model-server", data, opt); err != nil {
			b.Fatal(err)
		}
	}
}
