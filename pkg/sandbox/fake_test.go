package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/policy"
	"fence/policies"
)

// tree is a filesystem that exists only in a test. Its text has one entry a
// line: "/dir/ [UID]", "/file [UID]", "/link -> TARGET". Folders above an
// entry need no line of their own.
type tree map[string]entry

type entry struct {
	dir    bool
	target string // of a link
	uid    uint32
}

func parseTree(texts ...string) tree {
	t := tree{"/": {dir: true}}
	for line := range strings.Lines(strings.Join(texts, "\n")) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		p := path.Clean(f[0])
		e := entry{dir: strings.HasSuffix(f[0], "/")}
		switch len(f) {
		case 2:
			n, err := strconv.ParseUint(f[1], 10, 32)
			if err != nil {
				panic(line)
			}
			e.uid = uint32(n)
		case 3:
			e.target = f[2]
		}
		t[p] = e
		for up := path.Dir(p); up != "/"; up = path.Dir(up) {
			if _, ok := t[up]; !ok {
				t[up] = entry{dir: true}
			}
		}
	}
	return t
}

// resolve follows every link in p, the last part's too if follow says so.
func (t tree) resolve(p string, follow bool) (string, bool) {
	for range 40 {
		at, done := "/", true
		parts := strings.Split(strings.Trim(p, "/"), "/")
		for i, part := range parts {
			if part == "" {
				continue
			}
			at = path.Join(at, part)
			e, ok := t[at]
			if !ok {
				return "", false
			}
			if last := i == len(parts)-1; e.target != "" && (follow || !last) {
				to := e.target
				if !path.IsAbs(to) {
					to = path.Join(path.Dir(at), to)
				}
				p, done = path.Join(append([]string{to}, parts[i+1:]...)...), false
				break
			} else if !last && !e.dir {
				return "", false
			}
		}
		if done {
			return at, true
		}
	}
	return "", false
}

func (t tree) look(p string, follow bool) File {
	real, ok := t.resolve(p, follow)
	if !ok {
		return File{}
	}
	e := t[real]
	return File{Exists: true, Dir: e.dir, Symlink: e.target != "", UID: e.uid}
}

func (t tree) readDir(p string) []string {
	real, ok := t.resolve(p, true)
	if !ok || !t[real].dir {
		return nil
	}
	names := []string{}
	for q := range t {
		if q != "/" && path.Dir(q) == real {
			names = append(names, path.Base(q))
		}
	}
	slices.Sort(names)
	return names
}

func (t tree) glob(pattern string) []string {
	var out []string
	for _, q := range slices.Sorted(maps.Keys(t)) {
		if ok, _ := path.Match(pattern, q); ok {
			out = append(out, q)
		}
	}
	return out
}

// on makes n see t.
func (t tree) on(n Node) Node {
	n.Stat = func(p string) File { return t.look(p, true) }
	n.Lstat = func(p string) File { return t.look(p, false) }
	n.ReadDir, n.Glob = t.readDir, t.glob
	n.CanWrite = func(p string) bool { f := t.look(p, true); return f.Exists && int(f.UID) == n.UID } // mode 0755
	n.Real = func(p string) string {
		if real, ok := t.resolve(p, true); ok {
			return real
		}
		return p
	}
	return n
}

// recorded reads one of pkg/host's recordings of /proc/self/mountinfo, and
// adds lines to it.
func recorded(t *testing.T, name string, more ...string) []host.Mount {
	t.Helper()
	data, err := os.ReadFile("../host/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return append(parseMounts(t, string(data)), parseMounts(t, more...)...)
}

func parseMounts(t *testing.T, lines ...string) []host.Mount {
	t.Helper()
	var text strings.Builder
	for _, l := range lines {
		text.WriteString(strings.TrimSuffix(l, "\n") + "\n")
	}
	ms, err := host.ParseMounts(strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// kernel is what a kernel of this ABI has; the numbers are those of
// linux/landlock.h, written out.
func kernel(abi int) host.Landlock {
	l := host.Landlock{ABI: abi}
	for _, b := range []struct {
		abi             int
		fs, net, scoped uint64
	}{{1, 0x1fff, 0, 0}, {2, 1 << 13, 0, 0}, {3, 1 << 14, 0, 0}, {4, 0, 3, 0}, {5, 1 << 15, 0, 0}, {6, 0, 0, 3}, {9, 1 << 16, 0, 0}, {10, 0, 12, 0}} {
		if b.abi <= abi {
			l.FS, l.Net, l.Scoped = l.FS|b.fs, l.Net|b.net, l.Scoped|b.scoped
		}
	}
	if abi == 0 {
		l.Err = "EOPNOTSUPP"
	}
	return l
}

// denied is a node that refuses user namespaces, and with them all others.
var denied = Namespaces{User: unix.EPERM, Mount: ErrNotTried, IPC: ErrNotTried, Net: ErrNotTried}

// builtin is a built-in policy with more in it.
func builtin(t *testing.T, name string, more ...func(*policy.Policy)) policy.Policy {
	t.Helper()
	p, ok := policies.Parsed(name)
	if !ok {
		t.Fatalf("no policy %s", name)
	}
	for _, m := range more {
		m(&p)
	}
	return p
}

func open(access policy.Access, paths ...string) func(*policy.Policy) {
	return func(p *policy.Policy) {
		for _, q := range paths {
			p.Open = append(p.Open, policy.Open{Path: q, Access: access, Why: "a test", From: "test.toml:1"})
		}
	}
}

func hide(paths ...string) func(*policy.Policy) {
	return func(p *policy.Policy) { p.Filesystem.Hide = append(slices.Clone(p.Filesystem.Hide), paths...) }
}

func accept(names ...string) func(*policy.Policy) {
	return func(p *policy.Policy) {
		for _, n := range names {
			p.Accept = append(p.Accept, policy.Accept{Name: n, Why: "a test"})
		}
	}
}

// letters of the rights, from LANDLOCK_ACCESS_FS_EXECUTE on: execute, write,
// read, list, remove a folder and a file, make a character device, folder,
// file, socket, pipe, block device and link, move (refer), truncate, ioctl,
// connect (resolve_unix).
const letters = "xwrlDFCdfspBymtiu"

func lettersOf(rights uint64) string {
	var b strings.Builder
	for i := range 64 {
		if rights&(1<<i) == 0 {
		} else if i < len(letters) {
			b.WriteByte(letters[i])
		} else {
			fmt.Fprintf(&b, "?%d", i)
		}
	}
	return b.String()
}

// dump is all that Resolve decided, one thing a line.
func dump(rs Ruleset, err error) string {
	var b strings.Builder
	row := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	if err != nil {
		var refusal *Refusal
		if !errors.As(err, &refusal) {
			return "error " + err.Error() + "\n"
		}
		for _, p := range refusal.Problems {
			row("refused: %s", p.What)
			row("  do: %s", strings.ReplaceAll(p.Do, "\n", "\n      "))
			if p.Accept != "" {
				row("  or accept %s", p.Accept)
			}
			if p.Taken != "" {
				row("  taken: %s", p.Taken)
			}
		}
		return b.String()
	}
	row("form %v", rs.Form)
	row("handled fs %s net %#x scoped %#x", lettersOf(rs.Handled.FS), rs.Handled.Net, rs.Handled.Scoped)
	for _, h := range rs.Hidden {
		row("hidden %s %s by %s%s", h.Path, h.How, cmp.Or(h.Set, "name"), map[bool]string{true: " dir"}[h.Dir])
	}
	for _, m := range rs.Mounts {
		flags := ""
		for _, f := range []struct {
			on   bool
			name string
		}{{m.Dir, " dir"}, {m.ReadOnly, " ro"}, {m.Holds > 0, fmt.Sprintf(" holds %d", m.Holds)}, {m.Absent, " absent"}, {len(m.Devices) > 0, " " + strings.Join(m.Devices, " ")}} {
			if f.on {
				flags += f.name
			}
		}
		row("mount %d %v %s%s%s", m.Kind, m.Kind, m.Path, map[bool]string{true: " from " + m.From}[m.From != "" && m.From != m.Path], flags)
	}
	for _, p := range rs.Paths {
		row("rule %s %s%s%s", lettersOf(p.Rights), p.Path, map[bool]string{true: " dir"}[p.Dir], map[bool]string{true: " listed"}[p.Listed])
	}
	row("filter %s net %v allow %v killall %v sysv %v%s", rs.Filter.Arch, rs.Filter.Net, rs.Filter.Allow, !rs.Filter.DenyKillAll, !rs.Filter.DenySysV, map[bool]string{true: " unix false"}[rs.Filter.DenyUnix])
	row("env %q", rs.Env)
	if len(rs.Dropped) > 0 {
		row("dropped %s", strings.Join(rs.Dropped, " "))
	}
	row("workdir %s", rs.Workdir)
	for _, l := range rs.Lost {
		row("lost: %s", l)
	}
	return b.String()
}
