package probe

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Every id that an expectation names exists: ParseExpectation refuses the
// others. And none asks for what a fence is not there to give.
func TestBuiltIn(t *testing.T) {
	if got := Expectations(); !slices.Equal(got, []string{"build", "loopback", "proxy", "strict"}) {
		t.Errorf("built in are %q", got)
	}
	for _, name := range Expectations() {
		e, err := BuiltIn(name)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name != name || !slices.Equal(e.Proof, proofs) || len(e.Closed) < 20 || len(e.Open) < 4 {
			t.Errorf("%s: %+v", name, e)
		}
		for _, r := range e.Closed {
			for _, p := range r {
				if isFunction(p.ID) {
					t.Errorf("%s wants the function %s closed", name, p.ID)
				}
			}
		}
		for _, r := range e.Open {
			for _, p := range r {
				if !isFunction(p.ID) {
					t.Errorf("%s wants the door %s open", name, p.ID)
				}
			}
		}
	}
	if _, err := BuiltIn("../strict"); err == nil {
		t.Error("a path is no name")
	}
}

// Whatever is a way to the network or past it must be shut under strict; a
// check that somebody adds must be thought of.
func TestStrict_NamesEveryHighDoor(t *testing.T) {
	strict, err := BuiltIn("strict")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, r := range strict.Closed {
		for _, p := range r {
			named[p.ID] = true
		}
	}
	left := map[string]string{
		"proc.fd":        "the folder can be listed, not a descriptor opened: proc.mem and proc.root show that",
		"net.proxy.deny": "strict has no proxy",
	}
	for _, c := range Checks() {
		if c.Severity == "high" && !named[c.ID] && left[c.ID] == "" {
			t.Errorf("strict does not ask for %s, which is of high severity", c.ID)
		}
	}
}

func TestParseExpectation(t *testing.T) {
	e, err := ParseExpectation("mine", strings.NewReader(`
version = 1
extends = "strict"
[require]
closed = ["net.tcp.out[*:22]", "slurm.munge | slurm.sack[/run/*]"]
open = ["work.tmux"]
[[except]]
id = "fs.shared.stat"
why = "no mount namespaces here"
`))
	if err != nil {
		t.Fatal(err)
	}
	strict, _ := BuiltIn("strict")
	if n := len(e.Closed); n != len(strict.Closed)-1+2 || e.Closed[n-2].String() != "net.tcp.out[*:22]" || e.Closed[n-1].String() != "slurm.munge | slurm.sack[/run/*]" {
		t.Errorf("%v", e.Closed)
	}
	if len(e.Open) != len(strict.Open)+1 || len(e.Except) != 1 {
		t.Errorf("%v, %v", e.Open, e.Except)
	}
	for _, r := range e.Closed {
		if r[0].ID == "fs.shared.stat" {
			t.Error("the exception is still asked for")
		}
	}
}

func TestParseExpectation_Refuses(t *testing.T) {
	const head = "version = 1\n"
	for _, tc := range []struct{ in, want string }{
		{"", "x.toml:1: version is missing"},
		{"version = 2\n", "x.toml:1: version 2 is not known here"},
		{head, "x.toml:1: it requires nothing"},
		{head + "[require]\nclosed = []\n", "x.toml:2: it requires nothing"},
		{head + "[require]\nclose = [\"net.bind\"]\n", `x.toml:3: key "close" is not known (closed, open, proof)`},
		{head + "extend = \"strict\"\n", `x.toml:2: key "extend" is not known (version, extends, require, except)`},
		{head + "extends = \"strickt\"\n", `x.toml:2: extends: no expectation "strickt"`},
		{head + "[require]\nclosed = [\n \"net.bind\",\n \"net.bnd\"]\n", `x.toml:5: no check has the id "net.bnd"`},
		{head + "[require]\nclosed = [\"net.bind | net.bnd\"]\n", `x.toml:3: no check has the id "net.bnd"`},
		{head + "[require]\nclosed = [\"net.netlink[4\"]\n", `x.toml:3: "net.netlink[4" is not of the form id[target]`},
		{head + "[require]\nclosed = [\"\"]\n", `x.toml:3: no check has the id ""`},
		{head + "[require]\nproof = [\"ctl.user\"]\n", `x.toml:3: no check has the id "ctl.user"`},
		{head + "[require]\nclosed = \"net.bind\"\n", "x.toml:3: "},
		{head + "[require\n", "x.toml:2: "},
		{head + "extends = \"\"\n", `x.toml:2: extends: no expectation ""`},
		{head + "[require]\nClosed = [\"net.bind\"]\nclosed = []\n", `x.toml:3: key "Closed" is not known (closed, open, proof)`},
		{head + "[require]\n# \"net.bnd\"\nopen = [ # \"net.bnd\"\n\"net.bnd\"]\n", `x.toml:5: no check has the id "net.bnd"`},
		{head + "extends = \"strict\"\n[[except]]\nid = \"net.bind\"\n", `x.toml:4: except "net.bind": say why`},
		{head + "extends = \"strict\"\n[[except]]\nid = \"work.tmux\"\nwhy = \"x\"\n", `x.toml:4: except: nothing requires "work.tmux"`},
		{head + "extends = \"strict\"\n[[except]]\nid = \"work.tmux[x]\"\nwhy = \"x\"\n", `x.toml:4: except: nothing requires "work.tmux[x]"`},
		{head + "extends = \"strict\"\n[[except]]\nid = \"fs.shared.list[/wheels\"\nwhy = \"x\"\n", `x.toml:4: except: "fs.shared.list[/wheels" is not of the form id[target]`},
		{head + "extends = \"strict\"\n[[except]]\nid = \"fs.shared.list[]\"\nwhy = \"x\"\n", `x.toml:4: except: "fs.shared.list[]" is not of the form id[target]`},
	} {
		e, err := ParseExpectation("x.toml", strings.NewReader(tc.in))
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %s", tc.in, err, tc.want)
		}
		if !reflect.DeepEqual(e, Expectation{}) {
			t.Errorf("%q: half an expectation beside the error", tc.in)
		}
	}
	_, err := ParseExpectation("x", strings.NewReader(head+"[require]\nclosed = [\"net.bnd\"]\n"))
	var unknown *UnknownIDError
	if !errors.As(err, &unknown) || unknown.ID != "net.bnd" || !slices.Contains(unknown.Known, "net.bind") {
		t.Errorf("%#v", err)
	}
}

func FuzzParseExpectation(f *testing.F) {
	f.Add("version = 1\nextends = \"build\"\n[require]\nclosed = [\"net.bind | net.tcp.out[*:22]\"]\nproof = [\"ctl.nnp\"]\n")
	f.Fuzz(func(t *testing.T, in string) {
		e, err := ParseExpectation("x", strings.NewReader(in))
		if err != nil {
			if !reflect.DeepEqual(e, Expectation{}) {
				t.Fatal("half an expectation beside the error")
			}
			return
		}
		if len(e.Closed)+len(e.Open)+len(e.Proof) == 0 {
			t.Fatalf("%q requires nothing", in)
		}
		// An empty report never passes.
		if v := Gate(Report{}, nil, e); v.Answer == Yes {
			t.Fatalf("%q is met by nothing", in)
		}
	})
}
