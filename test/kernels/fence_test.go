package kernels_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"fence/test/kernels"
)

// A node is what fence finds: a kernel, real or claimed through abiwrap, and what its operators allow.
type node struct {
	name     string
	wrap     []string // abiwrap and its flags; nil: the kernel's own answers
	abi      int
	none     string   // the errno of every Landlock call, with abi 0
	lies     []string // rights that the number promises and the kernel refuses, by fence's names
	yama     int
	noUserNS string // the sysctl that is 0, so that an ordinary user gets no user namespace; "" if one does
	noMounts bool   // user.max_mnt_namespaces=0: a user namespace, and nothing to do in it
	noNetNS  bool   // user.max_net_namespaces=0
	pidns    bool   // in a user and pid namespace with its own /proc, as apptainer exec --pid leaves it
	accept   bool   // the person takes by name what only mounts can hide
}

func (n node) has(right string, since int) bool {
	return n.abi >= since && !slices.Contains(n.lies, right)
}

// bare: no namespace in which anything could be mounted.
func (n node) bare() bool { return n.noUserNS != "" || n.noMounts }

// refusals are the words that fence's sentence must have for each thing that is missing on the node; none means that strict can be
// enforced. This is the design's list (Landlock's own table and what namespaces stand in for), not fence's code.
func (n node) refusals() (missing []string) {
	if n.abi == 0 {
		return []string{"no Landlock (" + n.none + ")"}
	}
	if n.bare() && !n.has("truncate", 3) {
		missing = append(missing, fmt.Sprintf("Landlock (ABI %d) cannot stop files outside the policy from being truncated", n.abi))
	}
	if !n.has("scope_signal", 6) && !n.pidns {
		missing = append(missing, fmt.Sprintf("Landlock (ABI %d) cannot keep signals in", n.abi))
	}
	if !n.has("scope_abstract_unix", 6) && (n.noNetNS || n.noUserNS != "") {
		missing = append(missing, fmt.Sprintf("Landlock (ABI %d) cannot close the host's abstract Unix sockets", n.abi))
	}
	if n.bare() && !n.accept {
		missing = append(missing, "/home is visible here and must be hidden", "/tmp is the host's")
	}
	return missing
}

// The rights that fence check answers for, by the ABI that brought them.
var rightSince = map[string]int{
	"execute": 1, "write_file": 1, "read_file": 1, "read_dir": 1, "remove_dir": 1, "remove_file": 1, "make_char": 1, "make_dir": 1, "make_reg": 1,
	"make_sock": 1, "make_fifo": 1, "make_block": 1, "make_sym": 1, "refer": 2, "truncate": 3, "bind_tcp": 4, "connect_tcp": 4, "ioctl_dev": 5,
	"scope_abstract_unix": 6, "scope_signal": 6, "resolve_unix": 9, "bind_udp": 10, "connect_udp": 10,
}

// What each attempt may come to behind the fence. Without the fence each is "ok", or the attempt proves nothing.
var denied = map[string][]string{
	"read the home":     {"EACCES", "ENOENT"},
	"list the home":     {"EACCES", "ENOENT"},
	"TCP":               {"EAFNOSUPPORT"},
	"UDP":               {"EAFNOSUPPORT"},
	"MPTCP":             {"EAFNOSUPPORT"},
	"abstract socket":   {"EPERM", "ECONNREFUSED"}, // out of scope, or in another network
	"socket in /tmp":    {"ENOENT", "EACCES"},
	"signal":            {"EPERM", "ESRCH"},
	"environment":       {"EACCES", "ENOENT"},
	"priority":          {"EPERM"},
	"limits":            {"EPERM"},
	"shared memory":     {"ENOENT", "EPERM"},
	"user namespace":    {"EPERM"},
	"keyctl":            {"EPERM"},
	"io_uring":          {"EPERM"},
	"userfaultfd":       {"EPERM"},
	"memory of another": {"EPERM"},
}

// argv is the fence command on this node; what follows the flags is the shell's.
func (n node) argv(words string) []string {
	if n.pidns {
		words = "exec unshare -r -p -f --mount-proc " + words
	} else {
		words = "exec " + words
	}
	return append(slices.Clone(n.wrap), "/bin/sh", "-c", words)
}

func (n node) set() map[string]string {
	limit := func(off bool) string {
		if off {
			return "0"
		}
		return "1000"
	}
	return map[string]string{
		"kernel.yama.ptrace_scope":         fmt.Sprint(n.yama),
		"user.max_user_namespaces":         limit(n.noUserNS == "user.max_user_namespaces"),
		"kernel.unprivileged_userns_clone": map[bool]string{true: "0", false: "1"}[n.noUserNS == "kernel.unprivileged_userns_clone"],
		"user.max_mnt_namespaces":          limit(n.noMounts),
		"user.max_net_namespaces":          limit(n.noNetNS),
	}
}

// tmpOnly is strict, but for writing in the root.
const tmpOnly = `version = 1
[filesystem]
read = ["@root"]
write = ["@tmp"]
hide = ["@shared", "@home", "@sockets"]
[network]
mode = "none"
[environment]
keep = ["PATH"]
`

const attempt = "attempts try $(cat /tmp/victim.pid)"

// commands are what is run on the node: check, explain, a launch under strict, a launch that may write in /tmp only.
func (n node) commands() []kernels.Command {
	flags := ""
	if n.accept {
		flags = " --accept landlock-hide --accept host-tmp --accept sockets --why test"
	}
	var out []kernels.Command
	for _, words := range []string{
		"fence check --json",
		"fence explain --json --policy strict" + flags,
		"fence --policy strict" + flags + " --status-fd 1 -- " + attempt,
		"fence --policy /etc/tmponly.toml" + flags + " --status-fd 1 -- attempts truncate /srv/notes",
	} {
		out = append(out, kernels.Command{Argv: n.argv(words), Set: n.set()})
	}
	return out
}

func (n node) judge(t *testing.T, o []kernels.Outcome) {
	missing := n.refusals()
	plain := n
	plain.accept = false // check knows nothing of what a person accepts
	n.judgeCheck(t, o[0], len(plain.refusals()) == 0)
	if len(missing) > 0 {
		for i, what := range []string{"explain", "launch", "launch with a policy file"} {
			refused(t, what, o[1+i], missing)
		}
		return
	}
	if o[1].Exit != 0 || !json.Valid(o[1].Stdout) {
		t.Errorf("explain: %s", show(o[1]))
	}
	n.judgeLaunch(t, o[2])
	n.judgeTruncate(t, o[3])
}

func (n node) judgeCheck(t *testing.T, o kernels.Outcome, can bool) {
	var said struct {
		Node struct {
			Yama     int
			Landlock struct {
				ABI int
				Err string
			}
			Rights  map[string]bool   `json:"landlock_rights"`
			UserNS  struct{ OK bool } `json:"user_ns"`
			MountNS struct{ OK bool } `json:"mount_ns"`
			NetNS   struct{ OK bool } `json:"net_ns"`
		}
		Policies []struct {
			Policy string
			OK     bool
			Why    []string
		}
	}
	if err := json.Unmarshal(o.Stdout, &said); err != nil || o.Exit != map[bool]int{true: 0, false: 1}[can] {
		t.Errorf("check: %v, can run: %v, %s", err, can, show(o))
		return
	}
	if l := said.Node.Landlock; l.ABI != n.abi || l.Err != n.none {
		t.Errorf("check: Landlock ABI %d %q, want %d %q", l.ABI, l.Err, n.abi, n.none)
	}
	for right, since := range rightSince {
		if got, want := said.Node.Rights[right], n.has(right, since); got != want {
			t.Errorf("check: right %s: %v, want %v", right, got, want)
		}
	}
	for right := range said.Node.Rights {
		if rightSince[right] == 0 {
			t.Errorf("check: a right that this test does not know: %s", right)
		}
	}
	if said.Node.Yama != n.yama || said.Node.UserNS.OK == (n.noUserNS != "") || said.Node.MountNS.OK == n.bare() || said.Node.NetNS.OK == (n.noNetNS || n.noUserNS != "") {
		t.Errorf("check: %+v on %+v", said.Node, n)
	}
	for _, p := range said.Policies {
		if p.Policy == "strict" && p.OK != can || p.OK == (len(p.Why) > 0) {
			t.Errorf("check: %+v", p)
		}
	}
}

// refused holds an exit against the contract: 125, the command has not run, one sentence with all that is missing, what to do.
func refused(t *testing.T, what string, o kernels.Outcome, missing []string) {
	t.Helper()
	sentence, hints, _ := strings.Cut(string(o.Stderr), "\n")
	if o.Exit != 125 || len(o.Stdout) > 0 || !strings.HasPrefix(sentence, "fence: not fenced, and the command was not run: ") || !strings.HasPrefix(hints, "hint: ") {
		t.Errorf("%s, to be refused for %q: %s", what, missing, show(o))
		return
	}
	for _, m := range missing {
		if !strings.Contains(sentence, m) {
			t.Errorf("%s: the refusal does not say %q:\n%s", what, m, o.Stderr)
		}
	}
	for line := range strings.Lines(hints) {
		if !strings.HasPrefix(line, "hint: ") {
			t.Errorf("%s: %q is neither the sentence nor a hint", what, line)
		}
	}
}

type status struct {
	Form     string
	Landlock struct{ ABI int }
	Lost     []string
	Opened   []map[string]any
}

// launched splits what came out of a launch: the status line, and the command's own.
func launched(t *testing.T, what string, o kernels.Outcome) (s status, rest []byte, ok bool) {
	t.Helper()
	line, rest, _ := bytes.Cut(o.Stdout, []byte("\n"))
	if err := json.Unmarshal(line, &s); err != nil || o.Exit != 0 || len(o.Stderr) > 0 {
		t.Errorf("%s: %v %s", what, err, show(o))
		return s, nil, false
	}
	return s, rest, true
}

func (n node) judgeLaunch(t *testing.T, o kernels.Outcome) {
	s, rest, ok := launched(t, "launch", o)
	if !ok {
		return
	}
	form := map[bool]string{true: "bare", false: "namespace"}[n.bare()]
	if s.Form != form || s.Landlock.ABI != n.abi {
		t.Errorf("launch: the status line says %+v, want form %s and ABI %d", s, form, n.abi)
	}
	said := map[string]string{}
	if err := json.Unmarshal(rest, &said); err != nil {
		t.Errorf("launch: %v: %s", err, show(o))
		return
	}
	lost := strings.Join(s.Lost, "\n")
	for what, errnos := range denied {
		if n.bare() && what == "socket in /tmp" && !n.has("resolve_unix", 9) && strings.Contains(lost, "/tmp is the host's") {
			continue // accepted by name, and said
		}
		if !slices.Contains(errnos, said[what]) {
			t.Errorf("launch: %s: %q, want one of %v", what, said[what], errnos)
		}
	}
	for what, came := range said {
		if !strings.HasPrefix(what, "own: ") {
			continue
		}
		switch {
		case came == "ok":
		case what == "own: move between folders" && !n.has("refer", 2) && came == "EXDEV" && strings.Contains(lost, "moved between folders"):
		case what == "own: a terminal" && n.bare() && came == "EACCES" && strings.Contains(lost, "no new terminals"):
		default:
			t.Errorf("launch: %s: %s, and nothing of it in %q", what, came, s.Lost)
		}
	}
}

// judgeTruncate: what Landlock before ABI 3 cannot do is said, and what is not said is done.
func (n node) judgeTruncate(t *testing.T, o kernels.Outcome) {
	s, rest, ok := launched(t, "truncate", o)
	if !ok {
		return
	}
	came, want := strings.TrimSpace(string(rest)), "EACCES"
	if !n.has("truncate", 3) {
		want = "ok"
	}
	if said := strings.Contains(strings.Join(s.Lost, "\n"), "can be truncated"); came != want || said != (want == "ok") {
		t.Errorf("truncating a file that the policy lets be read: %s, want %s; lost: %q", came, want, s.Lost)
	}
}

// files are fence and probe, what they are tried with, and what fence must keep a command from.
func files(t *testing.T, k kernels.Kernel) []kernels.File {
	bin := "../../bin/"
	if dir := os.Getenv("KERNELS_BIN"); dir != "" { // others than make build's
		bin = dir + "/"
	}
	if k.Arch != runtime.GOARCH {
		bin = cross(t, k) + "/"
	}
	for _, f := range []string{"fence", "probe"} {
		if _, err := os.Stat(bin + f); err != nil {
			kernels.SkipOrFail(t, "%v: make build", err)
		}
	}
	return []kernels.File{
		{Path: "/usr/bin/fence", From: bin + "fence"},
		{Path: "/usr/bin/probe", From: bin + "probe"},
		{Path: "/usr/bin/abiwrap", From: build(t, k.Arch, "fence/test/abiwrap")},
		{Path: "/usr/bin/attempts", From: build(t, k.Arch, "fence/test/kernels/attempts")},
		{Path: "/home/alice/secret", Data: []byte("of alice"), UID: 1000, Mode: 0o600},
		{Path: "/srv/notes", Data: []byte("of alice"), UID: 1000, Mode: 0o644},
		{Path: "/etc/tmponly.toml", Data: []byte(tmpOnly), Mode: 0o644},
	}
}

var (
	seen   = map[string]kernels.Facts{}
	seeing sync.Mutex
)

// factsOf boots a kernel only to ask it, once.
func factsOf(t *testing.T, k kernels.Kernel, cmdline string) kernels.Facts {
	key := k.Name + " " + cmdline
	seeing.Lock()
	defer seeing.Unlock()
	if _, ok := seen[key]; !ok {
		seen[key] = kernels.Boot(t, kernels.Spec{Kernel: k, Append: cmdline}).Facts
	}
	return seen[key]
}

// matrix boots one kernel and judges fence on each node. The control, the same attempts with no fence, comes before and after.
func matrix(t *testing.T, k kernels.Kernel, cmdline string, nodes func(kernels.Facts) []node) {
	facts := factsOf(t, k, cmdline)
	list := nodes(facts)
	control := func(yama int) kernels.Command {
		return kernels.Command{Argv: []string{"/bin/sh", "-c", attempt}, Set: node{yama: yama}.set()}
	}
	spec := kernels.Spec{Kernel: k, Append: cmdline, Files: files(t, k)}
	spec.Commands = []kernels.Command{{Argv: []string{"/usr/bin/attempts", "victim"}, Background: true}, control(0)}
	for _, n := range list {
		spec.Commands = append(spec.Commands, n.commands()...)
	}
	spec.Commands = append(spec.Commands, control(1), control(2), kernels.Command{Argv: []string{"/usr/bin/attempts", "truncate", "/srv/notes"}})
	r := kernels.Boot(t, spec)
	t.Logf("%s: Landlock ABI %d %s, errata %#x, Yama %d; %d nodes in %v", k.Release, facts.LandlockABI, facts.LandlockErr, facts.Errata, facts.Yama, len(list), r.Took.Round(1e8))

	if o := r.Outcomes[0]; !o.Killed || string(o.Stdout) != "up\n" {
		t.Errorf("the victim did not live to the end: %s", show(o))
	}
	last := len(r.Outcomes) - 3
	for i, o := range []kernels.Outcome{r.Outcomes[1], r.Outcomes[last], r.Outcomes[last+1]} {
		said := map[string]string{}
		if err := json.Unmarshal(o.Stdout, &said); err != nil || len(said) < len(denied) {
			t.Errorf("the control under Yama %d: %v %s", i, err, show(o))
		}
		for what, came := range said {
			want := "ok"
			if what == "memory of another" && i > 0 {
				want = "EPERM" // Yama's own
			}
			if came != want {
				t.Errorf("the control under Yama %d: %s: %s, want %s: the attempt proves nothing", i, what, came, want)
			}
		}
	}
	if o := r.Outcomes[last+2]; string(o.Stdout) != "ok\n" {
		t.Errorf("the control of truncate: %s", show(o))
	}
	for i, n := range list {
		t.Run(n.name, func(t *testing.T) { n.judge(t, r.Outcomes[2+4*i:6+4*i]) })
	}
}

// cross builds both programs for another architecture with what test/kernels/fetch laid beside its kernel.
func cross(t *testing.T, k kernels.Kernel) string {
	const gcc = "aarch64-linux-gnu-gcc"
	if _, err := exec.LookPath(gcc); err != nil || k.Arch != "arm64" || k.Sysroot == "" {
		kernels.SkipOrFail(t, "nothing to build for %s with (%v): test/kernels/fetch trixie:arm64", k.Arch, err)
	}
	dir := t.TempDir()
	for _, program := range []struct{ name, cgo, flags string }{
		{"fence", "1", "-s -w -linkmode external -extldflags -static"},
		{"probe", "0", "-s -w"},
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "osusergo,netgo,urfave_cli_no_docs",
			"-ldflags", program.flags, "-o", filepath.Join(dir, program.name), "fence/cmd/"+program.name)
		cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED="+program.cgo, "CC="+gcc,
			"CGO_CFLAGS=-O2 -I"+k.Sysroot+"/usr/include", "CGO_LDFLAGS=-L"+k.Sysroot+"/usr/lib/aarch64-linux-gnu")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", program.name, err, out)
		}
	}
	return dir
}

// Every kernel as it is, under each Yama, with what an operator may have switched off.
func TestFence(t *testing.T) {
	for _, k := range append(kernels.Fetched(t), kernels.One(t, "trixie", "arm64")) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel() // a guest has one CPU
			matrix(t, k, "", func(f kernels.Facts) []node {
				if !f.UserNS || !f.MountNS || !f.NetNS || f.Yama < 0 {
					t.Fatalf("this kernel is not what the test is about: %+v", f)
				}
				var list []node
				for yama := range 3 {
					n := node{name: fmt.Sprintf("yama %d", yama), abi: f.LandlockABI, none: f.LandlockErr, yama: yama}
					list = append(list, n)
					add := func(name string, change func(*node)) {
						m := n
						m.name += ", " + name
						change(&m)
						list = append(list, m)
					}
					const off = "user.max_user_namespaces"
					add("no user namespaces", func(m *node) { m.noUserNS = off })
					add("no user namespaces, accepted", func(m *node) { m.noUserNS, m.accept = off, true })
					if yama > 0 {
						continue // Yama is about processes: what follows is about other things
					}
					add("no user namespaces, Debian's switch", func(m *node) { m.noUserNS = "kernel.unprivileged_userns_clone" })
					add("no mount namespaces", func(m *node) { m.noMounts = true })
					add("no mount namespaces, accepted", func(m *node) { m.noMounts, m.accept = true, true })
					add("no network namespaces", func(m *node) { m.noNetNS = true })
					add("own processes", func(m *node) { m.pidns = true })
					add("own processes, no network namespaces", func(m *node) { m.pidns, m.noNetNS = true, true })
				}
				return list
			})
		})
	}
}

// A kernel with Landlock built in and not switched on: what an old lsm= line on a cluster's boot entry does.
func TestLandlockOff(t *testing.T) {
	list := kernels.Fetched(t)
	matrix(t, list[len(list)-1], "lsm=yama", func(f kernels.Facts) []node {
		if f.LandlockErr != "EOPNOTSUPP" {
			t.Fatalf("Landlock is on: %+v", f)
		}
		return []node{{name: "plain", none: "EOPNOTSUPP"}, {name: "own processes", none: "EOPNOTSUPP", pidns: true}}
	})
}

// Each ABI there is, and numbers that promise more than there is, on the newest kernel: all up to its own are faithful.
func TestEachABI(t *testing.T) {
	list := kernels.Fetched(t)
	matrix(t, list[len(list)-1], "", func(f kernels.Facts) []node {
		var nodes []node
		add := func(n node, flags ...string) {
			n.wrap, n.yama = append([]string{"/usr/bin/abiwrap", "--abi", fmt.Sprint(n.abi)}, append(flags, "--")...), 1
			nodes = append(nodes, n)
			n.name, n.pidns = n.name+", own processes", true
			nodes = append(nodes, n)
		}
		add(node{name: "not built", none: "ENOSYS"})
		add(node{name: "not switched on", none: "EOPNOTSUPP"}, "--no-landlock", "eopnotsupp")
		for abi := 1; abi <= 11; abi++ {
			add(node{name: fmt.Sprintf("ABI %d", abi), abi: abi})
		}
		add(node{name: "RHEL 9.7", abi: 6, lies: []string{"scope_signal"}}, "--lie", "scope.signal")
		add(node{name: "Rocky 9.7", abi: 6, lies: []string{"scope_signal", "scope_abstract_unix", "ioctl_dev"}}, "--lie", "scope.signal,scope.abstract_unix,fs.ioctl_dev")
		return nodes
	})
}

// probe agrees: on each kernel the gate of strict is passed behind the fence and not without it. What did not answer in time is
// the emulation's doing, and says nothing either way; an open door, or a function broken, does.
func TestProbe(t *testing.T) {
	for _, k := range append(kernels.Fetched(t), kernels.One(t, "trixie", "arm64")) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel() // a guest has one CPU
			facts := factsOf(t, k, "")
			n := node{abi: facts.LandlockABI, yama: 1}
			n.pidns = len(n.refusals()) > 0
			var commands []kernels.Command
			for _, words := range []string{
				"probe --timeout 4m -o /tmp/before.json",
				"fence -- probe --timeout 4m >/tmp/after.json",
				"probe gate /tmp/before.json --expect strict --json",
				"probe gate /tmp/after.json --before /tmp/before.json --expect strict --json",
			} {
				commands = append(commands, kernels.Command{Argv: n.argv(words), Set: n.set(), Dir: "/tmp", Seconds: 300})
			}
			r := kernels.Boot(t, kernels.Spec{Kernel: k, Files: files(t, k), Commands: commands})
			for i, o := range r.Outcomes[:2] {
				if o.Exit != 0 && o.Exit != 3 || o.Killed {
					t.Fatalf("probe %d: %s", i, show(o))
				}
			}
			if o := r.Outcomes[2]; o.Exit != 1 {
				t.Errorf("the gate without the fence: %s", show(o))
			}
			var gate struct {
				Answer  string
				Results []struct{ ID, Target, Answer, Reason string }
			}
			if err := json.Unmarshal(r.Outcomes[3].Stdout, &gate); err != nil || len(gate.Results) < 100 {
				t.Fatalf("the gate: %v %s", err, show(r.Outcomes[3]))
			}
			late := 0
			for _, g := range gate.Results {
				switch {
				case g.Answer == "yes":
				case strings.Contains(g.Reason, "no answer before the deadline"):
					late++
				default:
					t.Errorf("%s[%s]: %s: %s", g.ID, g.Target, g.Answer, g.Reason)
				}
			}
			if late > len(gate.Results)/20 {
				t.Errorf("%d of %d checks were too late to say anything", late, len(gate.Results))
			}
			t.Logf("%s: the gate says %q to %d questions, %d too late; probe took %d and %d ms", k.Name, gate.Answer, len(gate.Results), late,
				r.Outcomes[0].Millis, r.Outcomes[1].Millis)
		})
	}
}
