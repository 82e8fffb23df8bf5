package probe

import (
	"strings"
	"testing"
)

func req(s string) Requirement {
	var r Requirement
	for _, alt := range strings.Split(s, " | ") {
		p := Pattern{alt, "*"}
		if id, target, ok := strings.Cut(strings.TrimSuffix(alt, "]"), "["); ok {
			p = Pattern{id, target}
		}
		r = append(r, p)
	}
	return r
}

// noSocket is a refusal that comes before any address.
func noSocket(key string) Finding {
	f := saw(key, Denied, "seccomp_errno", "EPERM")
	f.Syscall = "socket"
	return f
}

func TestGate(t *testing.T) {
	canary := "net.tcp.canary[canary:10.0.0.5]"
	for _, tc := range []struct {
		name          string
		closed, open  string
		before, after []Finding
		noBefore      bool
		want          Answer
		reason        string // of the worst result
	}{
		{name: "denied beside a control", closed: "net.tcp.canary", before: []Finding{saw(canary, Reachable)}, after: []Finding{saw(canary, Denied)}, want: Yes},
		{name: "denied, and the canary was dead", closed: "net.tcp.canary", before: []Finding{saw(canary, Unreachable)}, after: []Finding{saw(canary, Denied)},
			want: CannotTell, reason: "nothing shows that it was there"},
		{name: "no canary, and no socket at all", closed: "net.tcp.canary", before: []Finding{saw("net.tcp.canary", Skipped), saw("net.loopback.own", Reachable)},
			after: []Finding{noSocket("net.tcp.canary")}, want: Yes},
		{name: "no canary, and no socket before either", closed: "net.tcp.canary", before: []Finding{saw("net.tcp.canary", Skipped), saw("net.loopback.own", Denied)},
			after: []Finding{noSocket("net.tcp.canary")}, want: CannotTell, reason: "nothing shows that it was there"},
		{name: "the canary was dead, and no socket at all", closed: "net.tcp.canary", before: []Finding{saw(canary, Unreachable), saw("net.loopback.own", Reachable)},
			after: []Finding{noSocket(canary)}, want: CannotTell, reason: "nothing shows that it was there"},
		{name: "a cluster without a way out, and no socket at all", closed: "net.tcp.out", before: []Finding{saw("net.tcp.out[a:1]", Unreachable), saw("net.loopback.own", Reachable)},
			after: []Finding{noSocket("net.tcp.out[a:1]")}, want: Yes},
		{name: "what it named before it no longer knows, and no socket at all", closed: "net.tcp.cluster", before: []Finding{saw("net.tcp.cluster[login:22]", Reachable), saw("net.loopback.own", Reachable)},
			after: []Finding{noSocket("net.tcp.cluster")}, want: Yes},
		{name: "denied without --before", closed: "net.tcp.canary", noBefore: true, after: []Finding{saw(canary, Denied)}, want: Yes},
		{name: "open", closed: "net.tcp.canary", before: []Finding{saw(canary, Reachable)}, after: []Finding{saw(canary, Reachable)}, want: No, reason: "reachable"},
		{name: "one of two targets open", closed: "net.netlink", after: []Finding{saw("net.netlink[0]", Denied), saw("net.netlink[4]", Reachable)},
			before: []Finding{saw("x", Info)}, want: No, reason: "reachable"},
		{name: "the glob leaves the open one out", closed: "net.netlink[1*]", after: []Finding{saw("net.netlink[15]", Denied), saw("net.netlink[4]", Reachable)},
			before: []Finding{saw("x", Info)}, want: Yes},
		{name: "timeout", closed: "fs.shared.list", after: []Finding{saw("fs.shared.list[/p]", Timeout)}, before: []Finding{saw("x", Info)}, want: CannotTell, reason: "no answer before the deadline"},
		{name: "error", closed: "fs.shared.list", after: []Finding{saw("fs.shared.list[/p]", Error, "", "", "fork failed")}, before: []Finding{saw("x", Info)}, want: CannotTell, reason: "the probe failed: fork failed"},
		{name: "skipped", closed: "net.tcp.canary", after: []Finding{saw("net.tcp.canary", Skipped, "", "", "no canary")}, before: []Finding{saw("x", Info)}, want: CannotTell, reason: "skipped: no canary"},
		{name: "missing", closed: "net.tcp.canary", after: []Finding{saw("x", Info)}, before: []Finding{saw("x", Info)}, want: CannotTell, reason: "not in the report"},
		{name: "missing and it was open", closed: "cred.files", after: []Finding{saw("cred.files[a]", Absent)}, before: []Finding{saw("cred.files[b]", Reachable)},
			want: CannotTell, reason: "not tried; before it was reachable"},
		{name: "another program's abstract socket ended meanwhile", closed: "ipc.abstract", after: []Finding{saw("ipc.abstract[@b]", Denied)},
			before: []Finding{saw("ipc.abstract[@a]", Reachable)}, want: Yes},
		{name: "the list of abstract sockets could not be read", closed: "ipc.abstract", after: []Finding{saw("ipc.abstract["+abstractList+"]", Error, "", "", "x")},
			before: []Finding{saw("ipc.abstract[@a]", Reachable)}, want: CannotTell, reason: "the probe failed"},
		{name: "a fact is no proof", closed: "x", after: []Finding{saw("x", Info)}, before: []Finding{saw("x", Info)}, want: CannotTell, reason: "a fact, not an attempt"},
		{name: "unreachable beside a control", closed: "net.metadata", before: []Finding{saw("net.metadata[a]", Reachable)}, after: []Finding{saw("net.metadata[a]", Unreachable)}, want: Yes},
		{name: "unreachable without one", closed: "net.metadata", before: []Finding{saw("net.metadata[a]", Unreachable)}, after: []Finding{saw("net.metadata[a]", Unreachable)},
			want: CannotTell, reason: "nothing shows that it was there"},
		{name: "an alternative shows it", closed: "net.tcp.canary | net.tcp.socket", after: []Finding{saw("net.tcp.canary", Skipped), saw("net.tcp.socket", Denied)},
			before: []Finding{saw("net.tcp.socket", Reachable)}, want: Yes},
		{name: "an alternative that is open", closed: "net.tcp.canary | net.tcp.socket", after: []Finding{saw(canary, Denied), saw("net.tcp.socket", Reachable)},
			before: []Finding{saw(canary, Reachable)}, want: No, reason: "reachable"},
		{name: "an alternative does not excuse a timeout", closed: "net.tcp.canary | net.tcp.socket", after: []Finding{saw(canary, Timeout), saw("net.tcp.socket", Denied)},
			before: []Finding{saw(canary, Reachable)}, want: CannotTell, reason: "no answer"},
		{name: "no alternative shows it", closed: "net.tcp.canary | net.tcp.socket", after: []Finding{saw("net.tcp.canary", Skipped)}, before: []Finding{saw("x", Info)},
			want: CannotTell, reason: "skipped"},
		{name: "a function works", open: "work.fork", after: []Finding{saw("work.fork", Reachable)}, before: []Finding{saw("x", Info)}, want: Yes},
		{name: "a function is broken", open: "work.fork", after: []Finding{saw("work.fork", Denied, "seccomp_errno", "EPERM")}, before: []Finding{saw("x", Info)},
			want: No, reason: "denied (seccomp)"},
		{name: "one of two places works", open: "fs.task.write[/tmp] | fs.task.write[cwd]", after: []Finding{saw("fs.task.write[/tmp]", Reachable), saw("fs.task.write[cwd]", Denied)},
			before: []Finding{saw("x", Info)}, want: Yes},
		{name: "neither place works", open: "fs.task.write[/tmp] | fs.task.write[cwd]", after: []Finding{saw("fs.task.write[/tmp]", Denied), saw("fs.task.write[cwd]", Denied)},
			before: []Finding{saw("x", Info)}, want: No, reason: "denied"},
		{name: "a function hung", open: "work.fork", after: []Finding{saw("work.fork", Timeout)}, before: []Finding{saw("x", Info)}, want: CannotTell, reason: "no answer"},
		{name: "no shared path, by the list of mounts", closed: "fs.shared.list", after: []Finding{saw("fs.shared.list", Absent), saw("fs.mounts", Info)}, before: []Finding{saw("x", Info)}, want: Yes},
		{name: "no shared path, and the mounts were not read", closed: "fs.shared.list", after: []Finding{saw("fs.shared.list", Absent), saw("fs.mounts", Error)},
			before: []Finding{saw("x", Info)}, want: CannotTell, reason: "the mounts could not be listed"},
		{name: "nothing is asked", after: []Finding{saw("x", Info)}, before: []Finding{saw("x", Info)}, want: CannotTell},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := Expectation{Name: "test"}
			if tc.closed != "" {
				e.Closed = []Requirement{req(tc.closed)}
			}
			if tc.open != "" {
				e.Open = []Requirement{req(tc.open)}
			}
			before := aReport("before", tc.before...)
			control := &before
			if tc.noBefore {
				control = nil
			}
			v := Gate(aReport("after", tc.after...), control, e)
			if v.Answer != tc.want {
				t.Fatalf("answer %q, want %q: %+v", v.Answer, tc.want, v.Results)
			}
			if tc.reason != "" && !strings.Contains(v.Results[0].Reason, tc.reason) {
				t.Errorf("reason %q, want %q", v.Results[0].Reason, tc.reason)
			}
			if tc.want != Yes && len(v.Results) > 0 && v.Results[0].Advice == "" {
				t.Error("it does not say what to do")
			}
			if tc.noBefore != (len(v.Notes) > 0 && strings.Contains(v.Notes[0], "no control")) {
				t.Errorf("notes %q", v.Notes)
			}
		})
	}
}

func TestGate_Proof(t *testing.T) {
	e := Expectation{Proof: proofs}
	bare := aReport("before", saw("x", Info))
	for name, tc := range map[string]struct {
		change func(after, before *Report)
		want   Answer
	}{
		"fenced":                  {func(*Report, *Report) {}, Yes},
		"no filter":               {func(a, _ *Report) { a.Controls.Seccomp = SeccompState{} }, No},
		"strict mode, not filter": {func(a, _ *Report) { a.Controls.Seccomp.Mode = 1 }, No},
		"no ruleset":              {func(a, _ *Report) { a.Controls.Landlock.Layers = 0 }, No},
		"rulesets not counted":    {func(a, _ *Report) { a.Controls.Landlock.Layers = -1 }, CannotTell},
		"no nnp":                  {func(a, _ *Report) { a.Controls.NoNewPrivs = false }, No},
		"before was fenced too":   {func(a, b *Report) { b.Controls = a.Controls }, CannotTell},
		"before had a filter, after has more": {func(a, b *Report) {
			b.Controls.Seccomp = SeccompState{Mode: 2, Filters: 1}
			a.Controls.Seccomp.Filters = 2
		}, Yes},
		"a kernel that does not count filters": {func(a, _ *Report) { a.Controls.Seccomp.Filters = 0 }, Yes},
	} {
		a, b := aReport("after", saw("x", Info)), bare
		tc.change(&a, &b)
		if v := Gate(a, &b, e); v.Answer != tc.want {
			t.Errorf("%s: %q, want %q: %+v", name, v.Answer, tc.want, v.Results)
		}
	}
}

func TestGate_OtherPlace(t *testing.T) {
	e := Expectation{Proof: proofs}
	for name, change := range map[string]func(*Report){
		"boot":   func(r *Report) { r.Subject.BootID = "other" },
		"arch":   func(r *Report) { r.Subject.Arch = "aarch64" },
		"user":   func(r *Report) { r.Subject.UID = 0 },
		"schema": func(r *Report) { r.Schema = "probe.report/v2" },
	} {
		a, b := aReport("after", saw("x", Info)), aReport("before", saw("x", Info))
		change(&b)
		if v := Gate(a, &b, e); v.Answer != CannotTell || len(v.Differ) != 1 || len(v.Results) != 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
	a, b := aReport("after", saw("x", Info)), aReport("before", saw("x", Info))
	b.Subject.BootID = ""
	if v := Gate(a, &b, e); v.Answer != CannotTell || len(v.Differ) != 0 || len(v.Notes) != 1 {
		t.Errorf("a boot that is not named: %+v", v)
	}
	a, b = aReport("after", saw("x", Info)), aReport("before", saw("x", Info))
	b.Tool.Version = "0.0.9"
	if v := Gate(a, &b, e); v.Answer != Yes || len(v.Notes) != 1 {
		t.Errorf("another version of the tool: %+v", v)
	}
}

func TestGate_OtherMachineTypes(t *testing.T) {
	e := Expectation{Closed: []Requirement{req("sys.x32")}}
	a := aReport("after", saw("sys.x32", Skipped))
	if v := Gate(a, nil, e); v.Answer != CannotTell {
		t.Errorf("left out on x86-64: %+v", v)
	}
	a.Subject.Arch = "aarch64"
	if v := Gate(a, nil, e); v.Answer != Yes {
		t.Errorf("not to be had on aarch64: %+v", v)
	}
}

func TestGlob(t *testing.T) {
	for _, tc := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true}, {"*", "/a/b", true}, {"/a", "/a", true}, {"/a", "/a/b", false}, {"/a*", "/a/b/c", true},
		{"*:22", "login1:22", true}, {"*:22", "login1:222", false}, {"a*b*c", "a-b-c", true}, {"a*b*c", "a-c-b", false}, {"ab*ba", "aba", false},
	} {
		if got := glob(tc.pattern, tc.s); got != tc.want {
			t.Errorf("glob(%q, %q) = %v", tc.pattern, tc.s, got)
		}
	}
}

// One folder that a policy opens is not asked for, all others are.
func TestGate_ExceptOneTarget(t *testing.T) {
	e, err := ParseExpectation("wheels.toml", strings.NewReader(`
version = 1
[require]
closed = ["fs.shared.list", "net.udp.socket"]
[[except]]
id = "fs.shared.list[/wheels]"
why = "the wheelhouse"
`))
	if err != nil {
		t.Fatal(err)
	}
	udp := saw("net.udp.socket", Denied)
	before := aReport("before", saw("fs.shared.list[/wheels]", Reachable), saw("fs.shared.list[/proj]", Reachable), saw("net.udp.socket", Reachable))
	for _, tc := range []struct {
		name  string
		after []Finding
		want  Answer
	}{
		{"the folder, and nothing else", []Finding{udp, saw("fs.shared.list[/wheels]", Reachable), saw("fs.shared.list[/proj]", Absent)}, Yes},
		{"the folder alone", []Finding{udp, saw("fs.shared.list[/wheels]", Reachable)}, Yes},
		{"another too", []Finding{udp, saw("fs.shared.list[/wheels]", Reachable), saw("fs.shared.list[/proj]", Reachable)}, No},
		{"one below it", []Finding{udp, saw("fs.shared.list[/wheels/x]", Reachable)}, No},
		{"another, untold", []Finding{udp, saw("fs.shared.list[/wheels]", Reachable), saw("fs.shared.list[/proj]", Timeout)}, CannotTell},
	} {
		v := Gate(aReport("after", tc.after...), &before, e)
		if tc.name == "the folder alone" {
			v = Gate(aReport("after", tc.after...), nil, e)
		}
		if v.Answer != tc.want || len(v.Notes) == 0 || !strings.Contains(strings.Join(v.Notes, "\n"), "not asked: fs.shared.list[/wheels], because: the wheelhouse") {
			t.Errorf("%s: %s, want %s: %+v", tc.name, v.Answer, tc.want, v.Results)
		}
	}
}
