package sandbox

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/policy"
	"fence/pkg/seccomp"
	"fence/policies"
)

// The rights to change something, as linux/landlock.h has them: all but
// execute, read, list, ioctl and connect.
const anyChange = 1<<1 | (1<<13-1)&^(1<<4-1) | 1<<13 | 1<<14

const propertyTree = image + `
	/.fence/fence
	/usr/lib/x/y
	/data/a/x
	/data/a/y/z
	/data/b/x
	/data/f
	/data-2/f
	/home/ada/.ssh/id 1000
	/home/bob/f
	/project/team/w/x
	/tmp/a/b
	/tmp/f
	/var/tmp/a
	/run/munge/s
	/run/other
	/dev/nvidia0
	/dev/nvidia-caps/cap1
	/dev/sda`

// choices makes decisions out of bytes; when they end, all are the first.
type choices []byte

func (c *choices) upTo(n int) int {
	if len(*c) == 0 {
		return 0
	}
	v := int((*c)[0]) % n
	*c = (*c)[1:]
	return v
}

func (c *choices) yes() bool { return c.upTo(2) == 1 }

func pick[T any](c *choices, from ...T) T { return from[c.upTo(len(from))] }

// made is a node and a policy that c chose, with a reason and an acceptance
// for everything, so that few are refused. No path of the tree is a link
// but the protected ones.
func made(c *choices) (tree, Node, policy.Policy) {
	fs := parseTree(propertyTree)
	paths := slices.DeleteFunc(slices.Sorted(maps.Keys(fs)), func(p string) bool { return fs[p].target != "" || p == "/" })
	n := Node{
		Landlock: kernel(3 + c.upTo(9)), UID: 1000, Arch: "amd64", Home: pick(c, "/home/ada", "", "/", "/root", "/data/a"), Workdir: pick(c, paths...),
		Container:  pick(c, "", "apptainer", "docker"),
		Namespaces: Namespaces{PrivatePID: true, PrivateIPC: c.yes()},
		Mounts:     []host.Mount{{ID: 1, Dev: "8:1", Root: "/", Path: "/", FSType: "ext4", Opts: pick(c, "rw", "ro")}},
	}
	if c.yes() {
		n.Exe = pick(c, paths...)
	}
	n.Mounts[0].ReadOnly = n.Mounts[0].Opts == "ro"
	for range c.upTo(5) {
		id := len(n.Mounts) + 1
		n.Mounts = append(n.Mounts, host.Mount{ID: id, Parent: 1, Dev: fmt.Sprint("0:", id), Root: "/", Path: pick(c, paths...), Opts: "rw", FSType: pick(c, "ext4", "nfs4", "tmpfs")})
	}
	if c.yes() {
		n.Namespaces.User = unix.EPERM
	}
	writable := pick(c, "/", "/data", "/nowhere")
	fs["/tmp"] = entry{dir: true, uid: pick[uint32](c, 0, 1000)}

	p := policy.Policy{Name: "made", Filesystem: policy.Filesystem{Why: "a test"}}
	list := func(to *[]string, sets ...string) {
		for _, s := range sets {
			if c.yes() {
				*to = append(*to, s)
			}
		}
		for range c.upTo(3) {
			*to = append(*to, pick(c, paths...))
		}
	}
	list(&p.Filesystem.Read, policy.SetRoot)
	list(&p.Filesystem.Write, policy.SetRoot, policy.SetTmp)
	list(&p.Filesystem.Hide, policy.SetHome, policy.SetSockets)
	if c.upTo(4) != 3 { // else @root is mostly refused
		p.Filesystem.Hide = append(p.Filesystem.Hide, policy.SetShared)
	}
	for range c.upTo(4) {
		o := policy.Open{Path: pick(c, paths...), Access: pick(c, policy.AccessRead, policy.AccessWrite), Why: "a test"}
		switch c.upTo(8) {
		case 6:
			o.Path, o.Access = pick(c, "/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/sda"), policy.AccessDevice
		case 7:
			o.Path, o.Access, o.Syscall = "", "", pick(c, "ptrace", "io_uring_setup")
		}
		p.Open = append(p.Open, o)
	}
	// What the parser refuses: writing what is protected; opened and hidden,
	// both by name.
	p.Filesystem.Write = slices.DeleteFunc(p.Filesystem.Write, func(w string) bool { return withinAny(w, protected) })
	p.Filesystem.Hide = slices.DeleteFunc(p.Filesystem.Hide, func(h string) bool {
		for _, o := range p.Open {
			if within(o.Path, h) || o.Access == policy.AccessDevice && within(h, "/dev") {
				return true
			}
		}
		return slices.ContainsFunc(slices.Concat(p.Filesystem.Read, p.Filesystem.Write), func(e string) bool { return within(e, h) })
	})
	accept("landlock-hide", "sockets", "host-tmp")(&p)
	n = fs.on(n)
	n.CanWrite = func(p string) bool { return within(p, writable) }
	return fs, n, p
}

// reach is what the command can do with what the node has at u. It knows
// mounting and Landlock, and nothing of how rs came about.
func reach(rs Ruleset, u string) uint64 {
	visible, readOnly := true, false
	for _, op := range rs.Mounts {
		if !within(u, op.Path) {
			continue
		}
		switch op.Kind {
		case MountDev:
			visible = slices.Contains(op.Devices, u) || slices.Contains(devNodes, strings.TrimPrefix(u, "/dev/"))
		case MountTmp, MountMaskDir, MountMaskFile:
			visible = false
		case MountShow:
			visible, readOnly = true, op.ReadOnly
		case MountReadOnly, MountPin:
			readOnly = true
		}
	}
	var rights uint64
	for _, rule := range rs.Paths {
		if within(u, rule.Path) {
			rights |= rule.Rights
		}
	}
	if !rs.Node.Stat(u).Dir {
		rights &= rightsOfFile
	}
	switch {
	case !visible:
		return 0
	case readOnly:
		return rights &^ anyChange
	}
	return rights
}

// mustHide says whether p hides u on n: of the entries that u lies in, the
// deepest counts, and an opening beats a set for its own path.
func mustHide(n Node, p policy.Policy, u string) bool {
	hide, open := -1, -1
	for _, h := range p.Filesystem.Hide {
		each := []string{h}
		if strings.HasPrefix(h, "@") {
			each = n.hiddenSet(h)
		}
		for _, q := range each {
			if within(u, q) && n.Stat(q).Exists {
				hide = max(hide, len(q))
			}
		}
	}
	for _, o := range p.Open {
		for _, q := range append(n.Glob(o.Path), o.Path) {
			if o.Path != "" && within(u, q) {
				open = max(open, len(q))
			}
		}
	}
	return hide > open
}

// onlyReadable says whether the deepest entry that u lies in is for reading,
// and nothing that p names for writing lies in that opening.
func onlyReadable(p policy.Policy, u string) bool {
	deepest := policy.Open{}
	named := slices.Clone(p.Open)
	for _, e := range p.Filesystem.Read {
		if e != policy.SetRoot {
			named = append(named, policy.Open{Path: e, Access: policy.AccessRead})
		}
	}
	for _, o := range named {
		if o.Path != "" && within(u, o.Path) && (len(o.Path) > len(deepest.Path) || o.Path == deepest.Path && o.Access != policy.AccessRead) {
			deepest = o
		}
	}
	return deepest.Access == policy.AccessRead && !withinAny(u, []string{"/dev", "/proc", "/sys"}) && !withinAny(u, tmpDirs) &&
		!slices.ContainsFunc(p.Filesystem.Write, func(w string) bool { return within(w, deepest.Path) })
}

func FuzzResolve(f *testing.F) {
	for seed := range uint64(600) {
		r, data := rand.New(rand.NewPCG(seed, 1)), make([]byte, 60)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := choices(data)
		fs, n, p := made(&c)
		rs, err := Resolve(p, n)
		if err != nil {
			if rs.Paths != nil || rs.Mounts != nil || rs.Env != nil {
				t.Errorf("a refusal comes with a ruleset: %+v", rs)
			}
			return
		}
		wrong := func(format string, a ...any) {
			t.Helper()
			t.Errorf(format+"\n%s\nread %v, write %v, hide %v\nopen %v\nmounts %v\n%s", append(a, describeNode(n), p.Filesystem.Read, p.Filesystem.Write, p.Filesystem.Hide, p.Open, n.Mounts, dump(rs, nil))...)
		}
		for u := range fs {
			if fs[u].target != "" {
				continue
			}
			got := reach(rs, u)
			// See TestKnownBugs: /dev, and a temporary folder in a hidden one.
			known := within(u, "/dev") || within(u, "/var/tmp") && rs.Form == Bare
			if mustHide(n, p, u) && !known && got != 0 {
				wrong("%s is hidden and can be reached (%s)", u, lettersOf(got))
			}
			if onlyReadable(p, u) && got&anyChange != 0 {
				wrong("%s is opened for reading and can be changed (%s)", u, lettersOf(got))
			}
			// A named pipe is written on a read-only mount too.
			bare := rs
			bare.Mounts = nil
			said := slices.ContainsFunc(rs.Lost, func(l string) bool { return strings.HasPrefix(l, "named pipes") })
			if onlyReadable(p, u) && !said && reach(bare, u)&anyChange != 0 {
				wrong("%s is opened for reading, and a pipe there can be written", u)
			}
			// In the namespace form they are pinned, or on a root that is read-only.
			if withinAny(u, protected) && got&anyChange != 0 && (rs.Form == Bare || !rs.Node.rootReadOnly()) {
				wrong("%s is protected and can be changed (%s)", u, lettersOf(got))
			}
		}
		root := slices.Contains(slices.Concat(p.Filesystem.Read, p.Filesystem.Write), policy.SetRoot)
		for _, m := range n.Mounts[1:] {
			named := func(e string) bool { return !strings.HasPrefix(e, "@") && within(m.Path, e) }
			meant := withinAny(m.Path, append(kernelsOwn, tmpDirs[:2]...)) || withinAny(m.Path, protected) || slices.ContainsFunc(slices.Concat(p.Filesystem.Read, p.Filesystem.Write), named) ||
				slices.ContainsFunc(p.Open, func(o policy.Open) bool { return named(o.Path) })
			own := n.Container == "" && withinAny(m.Path, hostsOwn) && m.FSType != "nfs4" || n.Container != "" && withinAny(m.Path, runtimesOwn) && m.FSType != "nfs4"
			if root && !meant && !own && reach(rs, m.Path) != 0 {
				wrong("%s is mounted there, and nobody opened it", m.Path)
			}
		}
		for _, rule := range rs.Paths {
			if rule.Rights&^rs.Handled.FS != 0 || rule.Rights == 0 || !rule.Dir && rule.Rights&^rightsOfFile != 0 {
				wrong("the kernel refuses the rule %s %s", lettersOf(rule.Rights), rule.Path)
			}
			if rule.Rights&(1<<6|1<<11) != 0 {
				wrong("%s can get device nodes", rule.Path)
			}
		}
		for i, op := range rs.Mounts { // what is bound on itself is there by then
			before := Ruleset{Node: n, Mounts: slices.DeleteFunc(slices.Clone(rs.Mounts[:i]), func(b MountOp) bool { return b.Path == op.Path }), Paths: []PathRule{{Path: "/", Rights: 1}}}
			if (op.Kind == MountHold || op.Kind == MountPin && !op.Absent) && reach(before, op.Path) == 0 {
				wrong("%v %s: a step before it covers it", op.Kind, op.Path)
			}
		}
		for i, op := range rs.Mounts { // what lies in a cover comes after it
			for _, later := range rs.Mounts[i+1:] {
				if op.Path != later.Path && within(op.Path, later.Path) && later.Kind < MountReadOnly && op.Kind < MountReadOnly {
					wrong("%v %s lies under %v %s, which is mounted later", op.Kind, op.Path, later.Kind, later.Path)
				}
			}
		}
		for i, o := range p.Open {
			less := p
			less.Open = slices.Delete(slices.Clone(p.Open), i, i+1)
			if rs2, err := Resolve(less, n); err == nil {
				for _, more := range moreWithout(fs, rs, rs2, o) {
					wrong("without %v, %s", o, more)
				}
			}
		}
	})
}

// moreWithout lists what less allows and rs does not, where less is the same
// without o.
func moreWithout(fs tree, rs, less Ruleset, o policy.Open) (list []string) {
	more := func(format string, a ...any) { list = append(list, fmt.Sprintf(format, a...)) }
	for _, call := range less.Filter.Allow {
		if !slices.Contains(rs.Filter.Allow, call) {
			more("%s is allowed", call)
		}
	}
	if less.Filter.Net != rs.Filter.Net || rs.Filter.DenySysV && !less.Filter.DenySysV || rs.Filter.DenyUnix && !less.Filter.DenyUnix || rs.Filter.DenyKillAll && !less.Filter.DenyKillAll {
		more("the filter is %+v, and was %+v", less.Filter, rs.Filter)
	}
	if a, b := less.Handled, rs.Handled; b.FS&^a.FS|b.Net&^a.Net|b.Scoped&^a.Scoped != 0 {
		more("Landlock handles %+v, and did %+v", a, b)
	}
	for _, kv := range less.Env {
		if !slices.Contains(rs.Env, kv) {
			more("%s is there", kv)
		}
	}
	for u := range fs {
		rights := reach(less, u) &^ reach(rs, u)
		// What is opened for reading is read-only, whatever it lies in;
		// that takes apart the folders above it.
		if o.Access == policy.AccessRead && within(u, o.Path) {
			rights &^= anyChange | 1<<16 // and its sockets are not those of a folder to write in
		} else if o.Access == policy.AccessRead && within(o.Path, u) {
			if rights &^= anyChange; rs.Form == Bare {
				rights = 0
			}
		}
		if fs[u].target == "" && rights != 0 {
			more("%s gets %s", u, lettersOf(rights))
		}
	}
	return list
}

// Taking an opening out of a policy's text allows nothing more: text without
// and with it are parsed and resolved on a node that seed chose.
func FuzzWithoutOpen(f *testing.F) {
	texts := []string{"filesystem = {read = [\"@root\", \"/data/b\"], write = [\"/data/a\"], hide = [\"@shared\", \"/home\"], why = \"w\"}\nnetwork = {mode = \"host\", why = \"w\"}\n",
		"environment = {keep = [\"LANG\"], set = {A = \"1\"}}\n[[open]]\nsyscall = \"mbind\"\nwhy = \"w\"\n"}
	for _, name := range policies.Names() {
		texts = append(texts, "extends = \""+name+"\"\n", "extends = \""+name+"\"\n[[open]]\npath = \"/data/b\"\naccess = \"write\"\nwhy = \"w\"\n")
	}
	opens := []policy.Open{{Path: "/data", Access: policy.AccessRead}, {Path: "/data/a", Access: policy.AccessWrite}, {Path: "/home/ada", Access: policy.AccessWrite},
		{Path: "/project/team/w", Access: policy.AccessRead}, {Path: "/run/munge", Access: policy.AccessRead}, {Path: "/dev/nvidia*", Access: policy.AccessDevice}, {Syscall: "ptrace"}}
	for i, text := range texts {
		for j, o := range opens {
			r, seed := rand.New(rand.NewPCG(uint64(i), uint64(j))), make([]byte, 40)
			for i := range seed {
				seed[i] = byte(r.Uint32())
			}
			f.Add(text, seed, o.Path, string(o.Access), o.Syscall)
		}
	}
	options := policy.Options{Base: policies.Get, Syscall: seccomp.Known}
	f.Fuzz(func(t *testing.T, text string, seed []byte, path, access, syscall string) {
		o := policy.Open{Path: path, Access: policy.Access(access), Syscall: syscall}
		with := "version = 1\n" + text
		for _, name := range []string{AcceptLandlockHide, AcceptHostTmp, AcceptSockets} {
			with += fmt.Sprintf("\n[[accept]]\nname = %q\nwhy = \"w\"\n", name)
		}
		without, err := policy.Parse("without", []byte(with), options)
		if err != nil {
			return
		}
		with += "[[open]]\nwhy = \"w\"\n"
		for key, value := range map[string]string{"path": path, "access": access, "syscall": syscall} {
			if value != "" {
				with += fmt.Sprintf("%s = %q\n", key, value)
			}
		}
		p, err := policy.Parse("with", []byte(with), options)
		if err != nil {
			return
		}
		c := choices(seed)
		fs, n, _ := made(&c)
		n.Env = []string{"PATH=/usr/bin", "LANG=C", "HF_TOKEN=canary", "TERM=dumb"}
		rs, err := Resolve(p, n)
		if err != nil {
			return
		}
		less, err := Resolve(without, n)
		if err != nil {
			return
		}
		for _, more := range moreWithout(fs, rs, less, o) {
			t.Errorf("without %v, %s\n%s\n%s\n%s", o, more, with, describeNode(n), dump(rs, nil))
		}
	})
}

func describeNode(n Node) string {
	return fmt.Sprintf("container %q, ABI %d, home %q, workdir %q", n.Container, n.Landlock.ABI, n.Home, n.Workdir)
}

// A policy that says nothing grants what every program needs, and its own
// open files.
func TestResolve_ZeroPolicyGrantsNothing(t *testing.T) {
	for name, n := range map[string]Node{"namespace": debianNode(t), "bare": func() Node { n := envNode(t); n.Namespaces = denied; return n }()} {
		n.Stdio = []Descriptor{{FD: 1, File: true, Writable: true, Path: "/out"}}
		rs, err := Resolve(policy.Policy{}, n)
		if err != nil || rs.Form.String() != name {
			t.Fatalf("%s: %v, %v", name, rs.Form, err)
		}
		for _, p := range rs.Paths {
			own := p.Path == "/proc/self/fd/1" || strings.HasPrefix(p.Path, "/dev/") && (p.Path != "/dev/shm" || rs.Form == Namespace)
			if !own {
				t.Errorf("%s: rule %s %s", name, lettersOf(p.Rights), p.Path)
			}
		}
		if len(rs.Env) > 0 || len(rs.Filter.Allow) > 0 || rs.Filter.Net != 0 || rs.Handled.Net == 0 {
			t.Errorf("%s: env %v, filter %+v", name, rs.Env, rs.Filter)
		}
	}
}
