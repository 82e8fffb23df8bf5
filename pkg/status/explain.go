package status

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"fence/pkg/internal/text"
	"fence/pkg/policy"
	"fence/pkg/sandbox"
	"fence/pkg/seccomp"
)

// Leg is one leg of the lethal trifecta (Simon Willison, 2025): private data,
// untrusted content, and a way to communicate externally. A command that has
// all three can be talked into giving away what it sees.
type Leg struct {
	Name string `json:"name"`
	Open string `json:"open"` // "yes", "no" or "by policy": what opens it
	Why  string `json:"why"`
}

// Trifecta says which legs the command has. "No" is said of what was hidden,
// never of what nobody knows.
func Trifecta(rs sandbox.Ruleset) []Leg {
	p, granted := rs.Policy, slices.Concat(rs.Policy.Filesystem.Read, rs.Policy.Filesystem.Write)
	hides := func(set string) bool { return slices.Contains(p.Filesystem.Hide, set) }
	byLandlock := func(h sandbox.Hidden) bool { return h.How == "landlock" }
	opened := slices.DeleteFunc(slices.Clone(granted), func(e string) bool { return e == policy.SetRoot || e == policy.SetTmp })
	for _, o := range p.Open {
		if o.Path != "" && o.Access != policy.AccessDevice {
			opened = append(opened, o.Path)
		}
	}
	var seen []string // what may be private
	note := func(so bool, what string) {
		if so {
			seen = append(seen, what)
		}
	}
	note(len(opened) > 0, "what lies in "+strings.Join(opened, ", "))
	note(!hides(policy.SetShared), "the policy does not hide @shared")
	note(!hides(policy.SetHome), "the policy does not hide @home")
	note(rs.Node.Container == "" && slices.Contains(granted, policy.SetRoot), "the node's own disk, but for what is hidden; --hide PATH and /etc/fence/site.toml hide more")
	note(slices.ContainsFunc(rs.Hidden, byLandlock), "hidden paths are closed by Landlock alone: names and sizes can be seen")
	private := Leg{"private data", "no", "shared storage and home are out of reach"}
	if len(seen) > 0 {
		private = Leg{"private data", "by policy", strings.Join(seen, "; ")}
	}
	external := Leg{"a way out", "no", "no Internet sockets, no sockets of daemons"}
	switch {
	case p.Network.Mode == policy.NetworkProxy:
		external = Leg{"a way out", "by policy", "what the proxy at " + p.Network.Socket + " lets through: " + p.Network.Why}
	case p.Network.Mode == policy.NetworkHost:
		external = Leg{"a way out", "yes", "the host's network: " + p.Network.Why}
	case !hides(policy.SetSockets):
		external = Leg{"a way out", "by policy", "the policy does not hide @sockets"}
	case rs.Handled.FS&ll.AccessFSResolveUnix == 0 && slices.ContainsFunc(rs.Hidden, byLandlock):
		external = Leg{"a way out", "by policy", "sockets in what is hidden can be connected to"}
	}
	return []Leg{private, {"untrusted content", "yes", "the command itself, and what it reads"}, external}
}

// Explain prints rs for a person: what is granted, hidden, closed and lost.
func Explain(rs sandbox.Ruleset, w io.Writer) error {
	var b strings.Builder
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, text.Printable(fmt.Sprintf(format, a...)))
	}
	row("policy", "%s (%s)", rs.Policy.Name, rs.Policy.Digest())
	row("form", "%s", rs.Form)
	row("namespaces", "%s", strings.Join(names(rs.Node.Namespaces), " "))
	row("landlock", "ABI %d, %v", rs.Node.Landlock.ABI, landlock.Config{
		HandledAccessFS:  landlock.AccessFSSet(rs.Handled.FS),
		HandledAccessNet: landlock.AccessNetSet(rs.Handled.Net),
		Scoped:           landlock.ScopedSet(rs.Handled.Scoped),
	})
	by := ""
	if rs.Supervised() {
		by = ", by a supervisor"
	}
	row("network", "%s%s", rs.Policy.Network.Mode, by)
	row("workdir", "%s", rs.Workdir)
	hidden := hidden(rs)
	for i, h := range hidden {
		by := h.Set
		if by == "" {
			by = "named"
		}
		row(first(i, "hidden"), "%s (%s, %s)", h.Path, by, h.How)
	}
	if len(hidden) == 0 {
		row("hidden", "nothing that the policy hides exists here")
	}
	for i, p := range rs.Paths {
		row(first(i, "paths"), "%s %s%s", short(p.Rights), p.Path, under(rs.Mounts, p.Path))
	}
	row("", "(r read, w change, x run, t the device's own requests, all for what is below too; a mount named behind a path has the last word)")
	for i, m := range rs.Mounts {
		row(first(i, "mounts"), "%s: %s", m.Kind, m.Path)
	}
	if len(rs.Mounts) > 0 {
		row("", "(masked: empty in its place; shown: as before, within such; private: empty, its own; pinned: read-only and not to be renamed; held: not to be renamed)")
	}
	for i, l := range rs.Policy.Limits {
		row(first(i, "limits"), "%s", l)
	}
	if len(rs.Dropped) > 0 {
		row("dropped", "%s (look like credentials)", strings.Join(rs.Dropped, " "))
	}
	for i, o := range rs.Policy.Whys() {
		row(first(i, "opened"), "%s: %s", o.What, o.Why)
		if name, ok := strings.CutPrefix(o.What, "syscall "); ok && seccomp.Warning(name) != "" {
			row("", "  with it, %s", seccomp.Warning(name))
		}
	}
	for i, l := range slices.Concat(rs.Lost, Moved(rs)) {
		row(first(i, "lost"), "%s", l)
	}
	for i, leg := range Trifecta(rs) {
		row(first(i, "risk"), "%s: %s (%s)", leg.Name, leg.Open, leg.Why)
	}
	row("", "(with all three, a command can be talked into giving away what it sees)")
	_, err := io.WriteString(w, b.String())
	return err
}

func first(i int, name string) string {
	if i == 0 {
		return name
	}
	return ""
}

// under says which mount has the last word on a path. A root that Landlock
// grants entry by entry is granted with what the mounts close in it.
func under(mounts []sandbox.MountOp, path string) string {
	for _, m := range slices.Backward(mounts) {
		switch m.Kind {
		case sandbox.MountMaskDir, sandbox.MountMaskFile, sandbox.MountReadOnly, sandbox.MountPin:
			if m.Path == path {
				return " (" + m.Kind.String() + ")"
			}
		}
	}
	return ""
}

// short is rights in the letters of ls: r read, w change, x run, t the
// terminal's and device's own requests.
func short(rights uint64) string {
	s := []byte("----")
	for i, set := range []uint64{ll.AccessFSReadFile | ll.AccessFSReadDir, ll.AccessFSWriteFile, ll.AccessFSExecute, ll.AccessFSIoctlDev} {
		if rights&set != 0 {
			s[i] = "rwxt"[i]
		}
	}
	return string(s)
}
