package probe

import (
	"path"
	"slices"
	"strings"
)

// loopbackOnly says whether the report shows that no interface but lo is up,
// which makes "unreachable" a fact about the door and not about the target.
func (v *view) loopbackOnly() bool {
	s := v.seen(Key{ID: "net.ifaces"})
	return s != nil && s.Outcome == Absent
}

// gone says whether an attempt that was not made behind the fence needed no
// making: the list that its target was on was read again there, and either
// has it no more, or whatever is on it is refused alike.
func (v views) gone(k Key) bool {
	switch {
	case k.Target == "":
		return false
	case strings.HasPrefix(k.ID, "fs.shared."), k.ID == "fs.meta", k.ID == "fs.writable":
		return v.unmounted(k)
	case k.ID == "cred.env", k.ID == "cred.env.loader":
		return v.after.listed(k.ID) // the environment is listed whole
	case k.ID == "ipc.unix" && v.walked(k.Target), k.ID == "ipc.abstract" && v.ownNetwork():
		return true
	case k.ID == "ipc.abstract" && v.after.list(k.ID).count < maxAbstract:
		return v.after.listed(k.ID) // the kernel names all of a network namespace
	}
	l := v.after.list(k.ID)
	return l.closed || slices.ContainsFunc(l.patterns, func(p string) bool {
		ok, err := path.Match(p, k.Target) // probe names the pattern itself where nothing is of that name
		return ok && err == nil
	})
}

// listed says whether every attempt of that id came to something.
func (v *view) listed(id string) bool {
	l := v.list(id)
	return l.count > 0 && !l.doubt
}

// ownNetwork says whether the fenced command has a network namespace of its
// own: abstract sockets are known by name within one only.
func (v views) ownNetwork() bool {
	b, a := v.before.rep.Controls.Namespaces["net"], v.after.rep.Controls.Namespaces["net"]
	return b != 0 && a != 0 && b != a
}

// walked says whether the folder of a socket was searched behind the fence,
// so that a socket that was not tried is not there.
func (v views) walked(socket string) bool {
	s := v.after.seen(Key{ID: "ipc.walk"})
	return s != nil && s.Outcome == Info && slices.ContainsFunc([]string{"/run/", "/tmp/", "/var/tmp/"}, func(dir string) bool {
		return strings.HasPrefix(socket, dir)
	})
}

// unmounted says whether k, a path that a control report found shared, is
// shown to be no mount behind the fence: the kernel's list of mounts was read
// there, in a container, and neither the path nor anything above it was on
// it. A path above it that is not there, or has something else in its place,
// leaves no room for k. Outside a container a path needs no mount of its own,
// so only an attempt counts.
func (v views) unmounted(k Key) bool {
	if !v.after.mountsListed() {
		return false
	}
	if l := v.after.list(k.ID); l.doubt || l.count == 0 || l.count >= maxListed {
		return false
	}
	for i := range len(k.Target) + 1 {
		if i == 0 || i < len(k.Target) && k.Target[i] != '/' {
			continue
		}
		above := k.Target[:i]
		// Mounts that are no shared storage, and what every container has as its own, were tried by these.
		if v.after.there[Key{k.ID, above}] || v.after.there[Key{"fs.tmp", above}] || v.after.there[Key{"fs.writable", above}] && !slices.Contains(usualDirs, above) {
			return false
		}
	}
	return true
}

// maxListed is less than the number of paths at which probe stops listing.
const maxListed = 60

// mountsListed says whether the report shows every mount of a container.
func (v *view) mountsListed() bool { return v.mountsRead() && v.rep.Subject.Runtime != "" }

// mountsRead says whether the kernel's list of mounts could be read.
func (v *view) mountsRead() bool {
	l := v.list("fs.mounts")
	return l.count > 0 && l.facts == l.count
}

// unlisted says that k means "there is no shared path", in a report that
// could not know.
func (v *view) unlisted(k Key) bool {
	return k.Target == "" && (strings.HasPrefix(k.ID, "fs.shared.") || k.ID == "fs.meta") && !v.mountsRead()
}

// needsControl says whether k is an attempt to reach the operator's canary
// or another machine: refused means little unless it could be reached.
func needsControl(k Key) bool {
	return strings.HasPrefix(k.Target, "canary:") || slices.Contains([]string{
		"net.tcp.canary", "net.tcp.fastopen", "net.mptcp", "net.udp.canary", "net.tcp.out", "net.udp.out", "net.tcp.cluster", "net.dns.udp", "net.dns.tcp",
		"slurm.ctld", "slurm.restd",
	}, k.ID)
}

// controlled says whether control shows that without the fence k was there
// to be reached. The canary must have answered. Of any other address it is
// enough, where after got no socket at all, that control had working ones.
func controlled(k Key, after, control *view) bool {
	c, s := control.seen(k), after.seen(k)
	switch {
	case c != nil && c.Outcome == Reachable:
		return true
	case s != nil && s.Outcome != Denied && after.loopbackOnly():
		return true // nothing leads out, whatever is there
	case c != nil && c.Outcome == Absent && c.Errno == "EPROTONOSUPPORT": // the kernel has no such protocol
		return true
	case strings.HasPrefix(k.Target, "canary:") || s == nil || s.Syscall != "socket":
		return false
	}
	w := control.seen(Key{ID: socketControl(k.ID)})
	return w != nil && w.Outcome == Reachable
}

// socketControl is the check that shows that sockets of a kind work at all.
func socketControl(id string) string {
	switch id {
	case "net.udp.canary", "net.udp.out", "net.dns.udp":
		return "net.udp.socket"
	case "net.mptcp":
		return "net.mptcp.bind"
	}
	return "net.loopback.own"
}
