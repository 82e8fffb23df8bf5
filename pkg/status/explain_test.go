package status

import (
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"fence/pkg/policy"
	"fence/pkg/sandbox"
	"fence/policies"
)

// resolved is strict as it comes to in a container, with what a test changes.
func resolved(t *testing.T, change func(*sandbox.Ruleset)) sandbox.Ruleset {
	t.Helper()
	p, ok := policies.Parsed("strict")
	if !ok {
		t.Fatal("no policy strict")
	}
	rs := sandbox.Ruleset{Policy: p, Form: sandbox.Namespace, Workdir: "/srv"}
	rs.Node.Container, rs.Node.Workdir = "apptainer", "/srv"
	rs.Node.Stat = func(string) sandbox.File { return sandbox.File{} }
	rs.Filter.Arch = "amd64"
	change(&rs)
	return rs
}

// "No" is said of a leg only where what it takes was hidden.
func TestTrifecta(t *testing.T) {
	sockets := sandbox.Hidden{Path: "/proj/team", Set: policy.SetShared, How: "landlock"}
	for name, tc := range map[string]struct {
		change       func(*sandbox.Ruleset)
		private, out string
	}{
		"a container": {func(*sandbox.Ruleset) {},
			"no (shared storage and home are out of reach)", "no (no Internet sockets, no sockets of daemons)"},
		"a bare node": {func(rs *sandbox.Ruleset) { rs.Node.Container = "" },
			"by policy (the node's own disk, but for what is hidden; --hide PATH and /etc/fence/site.toml hide more)", "no (no Internet sockets, no sockets of daemons)"},
		"an opened folder": {func(rs *sandbox.Ruleset) {
			rs.Policy.Open = []policy.Open{{Path: "/wheels", Access: policy.AccessRead}, {Path: "/dev/nvidia*", Access: policy.AccessDevice}}
		}, "by policy (what lies in /wheels)", "no (no Internet sockets, no sockets of daemons)"},
		"a set that is read": {func(rs *sandbox.Ruleset) { rs.Policy.Filesystem.Read = []string{"@root", "@home"} },
			"by policy (what lies in @home)", "no (no Internet sockets, no sockets of daemons)"},
		"a policy that hides nothing": {func(rs *sandbox.Ruleset) { rs.Policy.Filesystem.Hide = nil },
			"by policy (the policy does not hide @shared; the policy does not hide @home)", "by policy (the policy does not hide @sockets)"},
		"hidden by Landlock alone": {func(rs *sandbox.Ruleset) { rs.Hidden = []sandbox.Hidden{sockets} },
			"by policy (hidden paths are closed by Landlock alone: names and sizes can be seen)", "by policy (sockets in what is hidden can be connected to)"},
		"and sockets too": {func(rs *sandbox.Ruleset) { rs.Hidden, rs.Handled.FS = []sandbox.Hidden{sockets}, ^uint64(0) },
			"by policy (hidden paths are closed by Landlock alone: names and sizes can be seen)", "no (no Internet sockets, no sockets of daemons)"},
		"the host's network": {func(rs *sandbox.Ruleset) {
			rs.Policy.Network = policy.Network{Mode: policy.NetworkHost, Why: "downloads"}
		},
			"no (shared storage and home are out of reach)", "yes (the host's network: downloads)"},
	} {
		legs := Trifecta(resolved(t, tc.change))
		for i, want := range map[int]string{0: tc.private, 2: tc.out} {
			if got := legs[i].Open + " (" + legs[i].Why + ")"; got != want {
				t.Errorf("%s: %s: %s\nwant %s", name, legs[i].Name, got, want)
			}
		}
	}
}

// What a person should see and would else pass over in silence: a hidden path
// that is not there, a working folder that was left, what a system call opens.
func TestExplain_SaysWhatIsSilent(t *testing.T) {
	rs := resolved(t, func(rs *sandbox.Ruleset) {
		rs.Policy.Filesystem.Hide = append(slices.Clone(rs.Policy.Filesystem.Hide), "/mistyped", "/answers")
		rs.Node.Stat = func(p string) sandbox.File { return sandbox.File{Exists: p == "/answers"} }
		rs.Hidden = []sandbox.Hidden{{Path: "/answers", How: "masked"}}
		rs.Paths = []sandbox.PathRule{{Path: "/srv", Rights: ll.AccessFSReadFile}, {Path: "/answers", Rights: ll.AccessFSWriteFile}, {Path: "/.fence", Rights: ll.AccessFSWriteFile}}
		rs.Mounts = []sandbox.MountOp{{Kind: sandbox.MountMaskDir, Path: "/answers"}, {Kind: sandbox.MountPin, Path: "/.fence"}}
		rs.Workdir, rs.Node.Workdir = "/", "/home/ada/task"
		rs.Policy.Open = []policy.Open{{Syscall: "ptrace", Why: "gdb tasks"}, {Syscall: "getpid", Why: "no warning"}}
	})
	var b strings.Builder
	if err := Explain(rs, &b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nhidden       /answers (named, masked)\n             /mistyped (named, absent)\n",
		"\npaths        r--- /srv\n             -w-- /answers (masked)\n             -w-- /.fence (pinned)\n             (r read, w change, ",
		"\nmounts       masked: /answers\n             pinned: /.fence\n             (masked: empty in its place; ",
		"\nopened       syscall ptrace: gdb tasks\n               with it, only Landlock keeps it from processes outside\n             syscall getpid: no warning\n",
		"\nlost         the working folder is /: /home/ada/task is out of the command's reach\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
	s, err := Of(rs)
	if err != nil {
		t.Fatal(err)
	}
	if want := (sandbox.Hidden{Path: "/mistyped", How: "absent"}); len(s.Hidden) != 2 || s.Hidden[1] != want {
		t.Errorf("the status line has %+v, want %+v", s.Hidden, want)
	}
	if want := []string{"the working folder is /: /home/ada/task is out of the command's reach"}; !slices.Equal(s.Lost, want) {
		t.Errorf("the status line has lost %q, want %q", s.Lost, want)
	}
}
