package probe

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the golden files")

// samples are three reports of one node as they are on a cluster: the bare
// node, a container, and a fenced command in it.
func samples() (host, before, after Report) {
	const canary = "canary:10.0.0.5"
	mounts := func(o ...string) Finding { return saw("fs.mounts"+o[0], Info, "", "", o[1]) }
	host = aReport("host",
		mounts("[/proj]", "lustre rw dev 0:51 root /"), saw("fs.shared.list[/proj]", Reachable), saw("fs.shared.list[/home/ada]", Reachable), saw("fs.shared.write[/proj]", Reachable),
		saw("net.tcp.canary["+canary+"]", Reachable), saw("net.udp.socket", Reachable), saw("fs.task.write[/tmp]", Reachable))
	before = aReport("before",
		mounts("[/proj]", "lustre rw dev 0:51 root /"), saw("fs.shared.list[/proj]", Reachable), saw("fs.shared.list[/home/ada]", Absent, "", "ENOENT"), saw("fs.shared.write[/proj]", Reachable),
		saw("net.tcp.canary["+canary+"]", Reachable), saw("net.udp.socket", Reachable), saw("fs.task.write[/tmp]", Reachable), saw("fs.task.write[cwd]", Denied, "readonly_mount", "EROFS"),
		saw("net.mptcp["+canary+"]", Reachable), saw("net.netlink[0]", Reachable), saw("net.netlink[4]", Reachable), saw("net.netlink[6]", Reachable), saw("net.netlink[9]", Reachable),
		saw("net.netlink[12]", Reachable), saw("net.netlink[15]", Reachable), saw("net.netlink[16]", Reachable),
		saw("sys.mount", Denied, "nnp_caps", "EPERM"), saw("work.pty", Reachable), saw("cred.env[HF_TOKEN]", Reachable), saw("net.rdma[/dev/infiniband/uverbs0]", Reachable),
		saw("net.metadata[169.254.169.254]", Unreachable, "", "EHOSTUNREACH"), saw("ctl.user", Info, "", "", "uid 1003 umask 0002"), saw("net.proxy.allow", Skipped, "", "", "no proxy was given"))
	after = aReport("after",
		mounts("", "none of 31 mounts is of a network filesystem"), saw("fs.shared.list[/home/ada]", Absent, "", "ENOENT"), saw("fs.shared.write", Absent, "", "", "no network mount"),
		saw("net.tcp.canary["+canary+"]", Denied, "seccomp_errno", "EPERM"), saw("net.udp.socket", Denied, "seccomp_errno", "EPERM"), saw("fs.task.write[/tmp]", Reachable), saw("fs.task.write[cwd]", Denied, "readonly_mount", "EROFS"),
		saw("net.mptcp["+canary+"]", Denied, "seccomp_errno", "EPERM"), saw("net.netlink[0]", Reachable), saw("net.netlink[4]", Denied, "seccomp_errno", "EPERM"), saw("net.netlink[6]", Denied, "seccomp_errno", "EPERM"),
		saw("net.netlink[9]", Denied, "seccomp_errno", "EPERM"), saw("net.netlink[12]", Denied, "seccomp_errno", "EPERM"), saw("net.netlink[15]", Denied, "seccomp_errno", "EPERM"), saw("net.netlink[16]", Denied, "seccomp_errno", "EPERM"),
		saw("sys.mount", Denied, "seccomp_errno", "EPERM"), saw("work.pty", Denied, "seccomp_errno", "EPERM"), saw("cred.env", Absent), saw("net.rdma[/dev/infiniband/uverbs0]", Reachable),
		saw("net.metadata[169.254.169.254]", Unreachable, "", "EHOSTUNREACH"), saw("ctl.user", Info, "", "", "uid 1003 umask 0022"), saw("net.proxy.allow", Skipped, "", "", "no proxy was given"))
	return
}

func TestDiff_Kinds(t *testing.T) {
	for _, tc := range []struct {
		before, after []Finding
		want          Kind
		answerless    bool // the change raises no doubt by itself
	}{
		{[]Finding{saw("x", Reachable)}, []Finding{saw("x", Denied)}, Closed, true},
		{[]Finding{saw("x", Reachable)}, []Finding{saw("x", Absent)}, Closed, true},
		{[]Finding{saw("x", Denied)}, []Finding{saw("x", Reachable)}, Opened, false},
		{[]Finding{saw("x", Reachable)}, []Finding{saw("x", Reachable)}, StillOpen, true},
		{[]Finding{saw("x", Denied)}, []Finding{saw("x", Denied)}, StillClosed, true},
		{[]Finding{saw("x", Denied, "dac")}, []Finding{saw("x", Denied, "seccomp_errno")}, MechanismChanged, true},
		{[]Finding{saw("x", Absent)}, []Finding{saw("x", Denied)}, MechanismChanged, true},
		{[]Finding{saw("x", Reachable)}, []Finding{saw("x", Unreachable)}, Closed, true},
		{[]Finding{saw("x", Unreachable)}, []Finding{saw("x", Unreachable)}, Inconclusive, true},
		{[]Finding{saw("x", Unreachable)}, []Finding{saw("x", Unreachable), saw("net.ifaces", Absent, "no_interface")}, Inconclusive, true},
		{[]Finding{saw("x", Unreachable)}, []Finding{saw("x", Denied)}, Inconclusive, true},
		{[]Finding{saw("x", Unreachable)}, []Finding{saw("x", Reachable)}, Inconclusive, false},
		{[]Finding{saw("x", Denied)}, []Finding{saw("x", Timeout)}, Inconclusive, false},
		{[]Finding{saw("x", Reachable)}, []Finding{saw("x", Timeout)}, Inconclusive, true},
		{[]Finding{saw("net.tcp.out", Absent), saw("x", Info)}, []Finding{saw("net.tcp.out", Denied), saw("x", Absent)}, Inconclusive, true},
		{[]Finding{saw("x", Error)}, []Finding{saw("x", Denied)}, Inconclusive, true},
		{[]Finding{saw("x", Skipped)}, []Finding{saw("x", Skipped)}, Inconclusive, true},
		{[]Finding{saw("x", Info)}, []Finding{saw("x", Denied)}, Inconclusive, true},
		{[]Finding{saw("x", Reachable)}, []Finding{saw("y", Denied)}, OnlyBefore, true},
		{[]Finding{saw("y", Reachable)}, []Finding{saw("x", Reachable)}, OnlyAfter, false},
		{[]Finding{saw("y", Reachable)}, []Finding{saw("x", Denied)}, OnlyAfter, true},
		{[]Finding{saw("x[a]", Reachable)}, []Finding{saw("x[b]", Denied), saw("x[a]", Denied)}, Closed, true},
	} {
		c := Diff(nil, aReport("before", tc.before...), aReport("after", tc.after...))
		i := slices.IndexFunc(c.Changes, func(ch Change) bool { return ch.ID == "x" && ch.Target != "b" })
		if i < 0 {
			t.Fatalf("%v -> %v: no change", tc.before, tc.after)
		}
		ch := c.Changes[i]
		if ch.Kind != tc.want || (ch.opening() == Yes) != tc.answerless {
			t.Errorf("%v -> %v: %s, opening %s; want %s", tc.before[0], tc.after[0], ch.Kind, ch.opening(), tc.want)
		}
		if ch.Kind == Inconclusive && ch.Note == "" {
			t.Errorf("%v -> %v: it does not say why", tc.before[0], tc.after[0])
		}
		n := 0
		for _, k := range Kinds {
			n += c.Counts[k]
		}
		if n != len(c.Changes) {
			t.Errorf("%d changes, %d counted", len(c.Changes), n)
		}
	}
}

// A door of low weight, or a function, that is open only after raises no
// doubt: a fence gives a task its own /tmp.
func TestDiff_OpenedWeighs(t *testing.T) {
	low := saw("x", Reachable)
	low.Severity = "low"
	if c := Diff(nil, aReport("before", saw("y", Denied)), aReport("after", low)); c.Changes[len(c.Changes)-1].opening() != Yes {
		t.Error("low")
	}
	c := Diff(nil, aReport("before", saw("work.pty", Denied)), aReport("after", saw("work.pty", Reachable)))
	if c.Changes[0].Kind != Opened || c.Changes[0].opening() != Yes {
		t.Errorf("%+v", c.Changes[0])
	}
}

func TestDiff_Answer(t *testing.T) {
	row := func(c Comparison, name string) Row {
		for _, r := range c.Rows {
			if strings.HasPrefix(r.Name, name) {
				return r
			}
		}
		t.Fatalf("no row %q", name)
		return Row{}
	}
	set := func(r *Report, key string, o Outcome, more ...string) {
		f := saw(key, o, more...)
		for i := range r.Checks {
			if r.Checks[i].Key() == f.Key() {
				r.Checks[i] = f
				return
			}
		}
		r.Checks = append(r.Checks, f)
	}
	drop := func(r *Report, id string) {
		r.Checks = slices.DeleteFunc(r.Checks, func(f Finding) bool { return f.ID == id })
	}
	const canary = "net.tcp.canary[canary:10.0.0.5]"
	for _, tc := range []struct {
		name   string
		change func(h, b, a *Report)
		noHost bool
		want   Answer
		row    string
		words  string // host, before, after
		says   string
	}{
		{name: "as it should be", change: func(h, b, a *Report) {}, want: Yes, row: "Shared", words: "visible visible not mounted"},
		{name: "only the node itself to connect to", change: func(h, b, a *Report) {
			for _, r := range []*Report{h, b, a} {
				drop(r, "net.tcp.canary")
				drop(r, "net.mptcp")
				set(r, "net.tcp.cluster["+r.Subject.Hostname+":6818]", Reachable)
			}
			set(a, "net.tcp.cluster["+a.Subject.Hostname+":6818]", Denied, "seccomp_errno", "EPERM")
		}, want: CannotTell, row: "TCP", words: "could not tell could not tell denied"},
		{name: "without a host report", change: func(h, b, a *Report) {}, noHost: true, want: Yes, row: "TCP", words: " open denied"},
		{name: "the site's mount is still there", change: func(h, b, a *Report) { set(a, "fs.shared.list[/proj]", Reachable) }, want: No, row: "Shared", words: "visible visible visible"},
		{name: "hidden by Landlock alone", change: func(h, b, a *Report) {
			set(a, "fs.shared.list[/proj]", Denied, "landlock_fs", "EACCES")
			set(a, "fs.shared.write[/proj]", Denied, "landlock_fs", "EACCES")
			set(b, "fs.shared.stat[/proj]", Reachable)
			set(a, "fs.shared.stat[/proj]", Reachable)
		}, row: "Shared", words: "visible visible denied", says: "names and sizes", want: Yes},
		{name: "masked", change: func(h, b, a *Report) {
			set(a, "fs.shared.list[/proj]", Absent, "masked")
			set(a, "fs.shared.write[/proj]", Absent, "masked")
		}, want: Yes, row: "Shared", words: "visible visible masked"},
		{name: "one of two shared paths was not tried, outside a container", change: func(h, b, a *Report) { a.Subject.Runtime = "" }, want: CannotTell, row: "Shared", words: "visible visible could not tell", says: "/proj]: not tried; give probe the same flags in both runs"},
		{name: "below a home that is not there", change: func(h, b, a *Report) { set(b, "fs.shared.list[/home/ada/sub]", Reachable) }, want: Yes, row: "Shared", words: "visible visible not mounted"},
		{name: "below a path that is there", change: func(h, b, a *Report) {
			set(a, "fs.shared.list[/home/ada]", Denied, "landlock_fs", "EACCES")
			set(b, "fs.shared.list[/home/ada/sub]", Reachable)
		}, want: CannotTell, row: "Shared", words: "visible visible could not tell", says: "/home/ada/sub]: not tried"},
		{name: "below a mount that is no shared storage there", change: func(h, b, a *Report) {
			set(b, "fs.shared.list[/scratch/ada]", Reachable)
			set(a, "fs.writable[/scratch]", Denied)
		}, want: CannotTell, row: "Shared", words: "visible visible could not tell", says: "/scratch/ada]: not tried"},
		{name: "below a folder that every container has", change: func(h, b, a *Report) {
			set(b, "fs.shared.list[/tmp/ada]", Reachable)
			set(a, "fs.tmp[/tmp]", Reachable)
		}, want: CannotTell, row: "Shared", words: "visible visible could not tell", says: "/tmp/ada]: not tried"},
		{name: "a folder of the image's own is no mount", change: func(h, b, a *Report) { set(a, "fs.writable[/home]", Denied) }, want: Yes, row: "Shared", words: "visible visible not mounted"},
		{name: "the mounts could not be listed", change: func(h, b, a *Report) { set(a, "fs.mounts", Error) }, want: CannotTell, row: "Shared", words: "visible visible could not tell"},
		{name: "a shared path hung", change: func(h, b, a *Report) { set(a, "fs.shared.list[/proj]", Timeout) }, want: CannotTell, row: "Shared", words: "visible visible could not tell", says: "deadline"},
		{name: "nothing was mounted before either", noHost: true, change: func(h, b, a *Report) {
			for _, r := range []*Report{b, a} {
				drop(r, "fs.shared.list")
				drop(r, "fs.shared.write")
				drop(r, "fs.mounts")
				set(r, "fs.mounts", Info)
				set(r, "fs.shared.list", Absent)
				set(r, "fs.shared.write", Absent)
			}
		}, want: Yes, row: "Shared", words: " not mounted not mounted", says: "list of mounts"},
		{name: "nothing was mounted, and the mounts were not read", noHost: true, change: func(h, b, a *Report) {
			for _, r := range []*Report{b, a} {
				drop(r, "fs.shared.list")
				drop(r, "fs.shared.write")
				set(r, "fs.mounts", Error)
				set(r, "fs.shared.list", Absent)
			}
		}, want: CannotTell, row: "Shared", words: " could not tell could not tell"},
		{name: "a path that no report ever saw", noHost: true, change: func(h, b, a *Report) {
			for _, r := range []*Report{b, a} {
				r.Subject.Runtime = ""
				drop(r, "fs.shared.list")
				drop(r, "fs.shared.write")
				set(r, "fs.shared.list[/porj]", Absent)
			}
		}, want: CannotTell, row: "Shared", words: " not mounted not mounted", says: "HOST"},
		{name: "no canary", change: func(h, b, a *Report) {
			for _, r := range []*Report{h, b, a} {
				drop(r, "net.tcp.canary")
				drop(r, "net.mptcp")
				set(r, "net.tcp.canary", Skipped)
			}
		}, want: CannotTell, row: "TCP", words: "could not tell could not tell could not tell", says: "no canary was given; start `probe listen`"},
		{name: "MPTCP is left open", change: func(h, b, a *Report) { set(a, "net.mptcp[canary:10.0.0.5]", Reachable) }, want: No, row: "TCP", words: "open open open"},
		{name: "a namespace without interfaces", change: func(h, b, a *Report) { set(a, canary, Unreachable) }, want: Yes, row: "TCP", words: "open open denied"},
		{name: "the canary was dead", change: func(h, b, a *Report) {
			drop(h, "net.tcp.canary")
			set(b, canary, Unreachable)
			drop(b, "net.mptcp")
			drop(a, "net.mptcp")
		}, want: CannotTell, row: "TCP", words: "could not tell could not tell denied", says: "not open before either"},
		{name: "UDP is open", change: func(h, b, a *Report) { set(a, "net.udp.socket", Reachable) }, want: No, row: "UDP", words: "allowed allowed allowed"},
		{name: "no filter", change: func(h, b, a *Report) { a.Controls.Seccomp = SeccompState{} }, want: No, row: "System", words: "none none none"},
		{name: "the runtime's filter only", change: func(h, b, a *Report) { b.Controls.Seccomp = a.Controls.Seccomp }, want: No, row: "System", words: "none active active", says: "the fence added none"},
		{name: "an old kernel does not count filters", change: func(h, b, a *Report) { a.Controls.Seccomp.Filters = 0 }, want: Yes, row: "System", words: "none none active"},
		{name: "the fence broke /tmp", change: func(h, b, a *Report) { set(a, "fs.task.write[/tmp]", Denied, "landlock_fs", "EACCES") }, want: No, row: "Writing", words: "works works denied", says: "fs.task.write[/tmp] worked before"},
		{name: "nothing could be written before either", change: func(h, b, a *Report) {
			drop(h, "fs.task.write")
			set(b, "fs.task.write[/tmp]", Denied)
			set(a, "fs.task.write[/tmp]", Denied)
		}, want: CannotTell, row: "Writing", words: "could not tell denied denied", says: "did not work before either"},
		{name: "something else opened", change: func(h, b, a *Report) { set(b, "sys.bpf", Denied); set(a, "sys.bpf", Reachable) }, want: No, row: "UDP", words: "allowed allowed denied"},
		{name: "no boot id", change: func(h, b, a *Report) { h.Subject.BootID, b.Subject.BootID, a.Subject.BootID = "", "", "" }, want: CannotTell, row: "UDP", words: "allowed allowed denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, b, a := samples()
			tc.change(&h, &b, &a)
			host := &h
			if tc.noHost {
				host = nil
			}
			c := Diff(host, b, a)
			r := row(c, tc.row)
			words := r.Before.Word + " " + r.After.Word
			if r.Host != nil {
				words = r.Host.Word + " " + words
			}
			if words != strings.TrimSpace(tc.words) {
				t.Errorf("%s: %q, want %q", r.Name, words, tc.words)
			}
			if said := r.Note + r.Before.Why + r.After.Why; !strings.Contains(said, tc.says) {
				t.Errorf("it says %q, want %q", said, tc.says)
			}
			if c.Answer != tc.want {
				t.Errorf("answer %q because %q, want %q", c.Answer, c.Reasons, tc.want)
			}
			if (c.Answer == Yes) != (len(c.Reasons) == 0) {
				t.Errorf("answer %q, reasons %q", c.Answer, c.Reasons)
			}
		})
	}
}

func TestDiff_OtherPlace(t *testing.T) {
	for name, change := range map[string]func(*Report){
		"boots": func(r *Report) { r.Subject.BootID, r.Subject.Hostname = "other", "node18" },
		"types": func(r *Report) { r.Subject.Arch = "aarch64" },
		"users": func(r *Report) { r.Subject.UID = 0 },
	} {
		h, b, a := samples()
		change(&b)
		c := Diff(&h, b, a)
		if c.Answer != CannotTell || len(c.Differ) != 1 || !strings.Contains(c.Differ[0], name) || len(c.Rows)+len(c.Changes) > 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	// In a user namespace of its own a container may call the caller root.
	h, b, a := samples()
	b.Subject.UID, a.Subject.UID = 0, 0
	if c := Diff(&h, b, a); len(c.Differ) != 0 {
		t.Error(c.Differ)
	}
	h.Controls.Namespaces["user"] = a.Controls.Namespaces["user"]
	if c := Diff(&h, b, a); len(c.Differ) != 1 {
		t.Error(c.Differ)
	}
}

func TestDiff_Notes(t *testing.T) {
	_, _, a := samples()
	if c := Diff(nil, a, a); !strings.Contains(strings.Join(c.Notes, "\n"), "same run") || c.Answer == Yes {
		t.Errorf("%s, %q", c.Answer, c.Notes)
	}
	if c := Diff(&a, a, a); !strings.Contains(strings.Join(c.Notes, "\n"), "bare node") {
		t.Error(c.Notes)
	}
}

// The order is read off the fence, the label and the place, in this order.
func TestWrongOrder(t *testing.T) {
	h, b, a := samples()
	mine := func(r Report) Report { r.Run.Label = "mine"; return r }
	labelled := func(r Report, l string) Report { r.Run.Label = l; return r }
	for _, tc := range []struct {
		name    string
		reports []Report
		want    string
	}{
		{"as they should be", []Report{h, b, a}, ""},
		{"labelled otherwise", []Report{mine(h), mine(b), mine(a)}, ""},
		{"a fence on the bare node", []Report{h, a}, ""},
		{"two containers", []Report{b, b, a}, ""},
		{"a fence in a fence", []Report{a, a, a}, ""},
		{"a fence that failed", []Report{h, b, b}, ""},
		{"host and before", []Report{b, h, a}, `HOST is of kind "before", BEFORE of kind "host"`},
		{"host and before, labelled otherwise", []Report{mine(b), mine(h), mine(a)}, `HOST is of kind "before", BEFORE of kind "host"`},
		{"before and after", []Report{h, a, b}, `BEFORE is of kind "after", AFTER of kind "before"`},
		{"before and after alone", []Report{a, b}, `BEFORE is of kind "after", AFTER of kind "before"`},
		{"a fenced host", []Report{a, b, a}, `HOST is of kind "after", BEFORE of kind "before"`},
		{"no fence makes a label true", []Report{labelled(a, "before"), b}, `BEFORE is of kind "after", AFTER of kind "before"`},
		{"a container that is all of the node", []Report{labelled(b, "host"), h, a}, ""},
	} {
		got := WrongOrder(tc.reports...)
		if tc.want == "" && got != "" || tc.want != "" && got != "the reports are in the wrong order: "+tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	for name, answer := range map[string]struct {
		a Answer
		d []string
	}{
		"diff": {Diff(&b, h, a).Answer, Diff(&b, h, a).Differ},
		"gate": {Gate(b, &a, Expectation{Proof: proofs}).Answer, Gate(b, &a, Expectation{Proof: proofs}).Differ},
	} {
		if answer.a != CannotTell || len(answer.d) != 1 {
			t.Errorf("%s: %s, %q", name, answer.a, answer.d)
		}
	}
}

func TestGuessLabel(t *testing.T) {
	for want, change := range map[string]func(*Report){
		"host":   func(r *Report) { r.Subject.Runtime = "" },
		"before": func(r *Report) { r.Controls.Seccomp.Mode = 2 }, // the runtime's own filter is no fence
		"after":  func(r *Report) { r.Controls.Seccomp.Mode, r.Controls.Landlock.Layers = 2, 1 },
	} {
		r := aReport("before", saw("x", Info))
		change(&r)
		if got := GuessLabel(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDiff_Golden(t *testing.T) {
	h, b, a := samples()
	b.Checks = append(b.Checks, saw("ipc.unix[/tmp/\x1b[2Jx|`y`]", Reachable)) // what a container may put in our way
	a.Checks = append(a.Checks, saw("ipc.unix[/tmp/\x1b[2Jx|`y`]", Reachable), saw("sys.bpf", Reachable))
	b.Checks = append(b.Checks, saw("sys.bpf", Denied))
	for name, print := range map[string]func(*bytes.Buffer) error{
		"diff-host.txt": func(w *bytes.Buffer) error { return Diff(&h, b, a).Table(w, 80) },
		"diff.txt":      func(w *bytes.Buffer) error { return Diff(nil, b, a).Table(w, 80) },
		"diff-60.txt":   func(w *bytes.Buffer) error { return Diff(nil, b, a).Table(w, 60) },
		"diff.md":       func(w *bytes.Buffer) error { return Diff(&h, b, a).Markdown(w) },
		"diff.json":     func(w *bytes.Buffer) error { return Diff(&h, b, a).Write(w) },
		"report.txt":    func(w *bytes.Buffer) error { return b.Table(w, 80) },
		"brief.txt":     func(w *bytes.Buffer) error { return h.Brief(w, 80) },
	} {
		var got bytes.Buffer
		if err := print(&got); err != nil {
			t.Fatal(err)
		}
		golden(t, name, got.Bytes())
		if strings.HasSuffix(name, ".txt") {
			fits(t, name, got.String(), 80)
		}
		if bytes.ContainsRune(got.Bytes(), 0x1b) {
			t.Errorf("%s holds a control character of the report's", name)
		}
	}
}

// A summary claims nothing of checks that got no answer.
func TestReport_Brief(t *testing.T) {
	high := func(key string, o Outcome) Finding { f := saw(key, o); f.Severity = "high"; return f }
	for want, checks := range map[string][]Finding{
		"nothing of high weight was reached":                                      {high("x", Denied), saw("y", Reachable), saw("z", Timeout)},
		"could not tell what is reached: none of the 2 checks of high weight got": {high("x", Timeout), high("y", Error), high("z", Skipped)},
		"could not tell, of high weight: y":                                       {high("x", Denied), high("y", Timeout)},
		"reached, of high weight: x\nprobe: could not tell, of high weight: y":    {high("x", Reachable), high("y", Timeout)},
		"no check of high weight was made":                                        {high("x", Skipped), saw("y", Reachable)},
	} {
		var got bytes.Buffer
		if err := aReport("before", checks...).Brief(&got, 200); err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitN(got.String(), "\n", 2)[1]
		if !strings.HasPrefix(lines, "probe: "+want) || strings.Count(lines, "\n") != strings.Count(want, "\n")+1 {
			t.Errorf("%v:\n%swant %s", checks, lines, want)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs from its golden file (%v); -update writes it. Got:\n%s", name, err, got)
	}
}

func fits(t *testing.T, name, text string, columns int) {
	t.Helper()
	for _, l := range strings.Split(text, "\n") {
		if utf8.RuneCountInString(l) > columns {
			t.Errorf("%s: %d columns: %s", name, utf8.RuneCountInString(l), l)
		}
	}
}

// Whatever two reports hold: every attempt has one kind, swapping the reports
// swaps closed and opened, a yes has no reason against it, and what is
// printed fits the page and holds no control character.
func FuzzDiff(f *testing.F) {
	f.Add("net.tcp.canary[canary:a]", "/proj", uint64(0x1234567), uint64(0x7654321), "evidence")
	f.Add("work.pty", "\x1b[2J", uint64(0), uint64(0xffffffff), "|`")
	f.Fuzz(func(t *testing.T, key, target string, was, is uint64, evidence string) {
		make := func(label string, pick uint64) Report {
			var fs []Finding
			for _, k := range []string{"x[" + key + "]", "fs.shared.list[" + target + "]", "fs.mounts", "net.tcp.canary[canary:" + target + "]", "net.tcp.canary", "net.udp.socket", "fs.task.write[cwd]", "net.ifaces", "net.loopback.own", "cred.env[" + key + "]"} {
				o := pick % 9
				pick /= 9
				if o < 8 {
					fd := saw(k, outcomes[o], "", "", evidence)
					fd.Severity = severities[o%4]
					fs = append(fs, fd)
				}
			}
			r := aReport(label, append(fs, saw("ctl.user", Info))...)
			r.Subject.Hostname, r.Run.Argv = evidence, []string{target}
			return r
		}
		b, a := make("before", was), make("after", is)
		c, back := Diff(nil, b, a), Diff(nil, make("after", is), make("after", was))
		seen := map[Key]bool{}
		for _, ch := range c.Changes {
			if seen[ch.Key] || !slices.Contains(Kinds, ch.Kind) {
				t.Fatalf("%s is there twice, or has the kind %q", ch.Key, ch.Kind)
			}
			seen[ch.Key] = true
			weighty := ch.Severity == "high" || ch.Severity == "medium"
			if c.Answer == Yes && ch.Open && weighty && !ch.Function && !ch.fresh() && (ch.Before == nil || ch.Before.Outcome != Reachable) {
				t.Errorf("yes, and %s: %s", ch.Key, ch.story())
			}
		}
		if n, m := c.Counts[OnlyAfter], back.Counts[OnlyBefore]; n != m {
			t.Errorf("%d only after, and the other way round %d only before", n, m)
		}
		for _, r := range c.Rows {
			if c.Answer == Yes && r.Answer != Yes {
				t.Errorf("yes, and %s is %s", r.Name, r.Answer)
			}
		}
		if (c.Answer == Yes) != (len(c.Reasons) == 0) {
			t.Errorf("%s because %q", c.Answer, c.Reasons)
		}
		var text, page bytes.Buffer
		v := Gate(a, &b, Expectation{Name: key, Closed: []Requirement{req("x"), req("net.tcp.canary | net.udp.socket")}, Open: []Requirement{req("fs.task.write")}})
		for _, err := range []error{c.Table(&text, 80), v.Table(&text, 80, true), a.Table(&text, 80), a.Brief(&text, 80), c.Markdown(&page)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		fits(t, "table", text.String(), 80)
		for _, r := range text.String() + page.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("prints %q", r)
			}
		}
	})
}
