package sandbox

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/policy"
)

// What Resolve got wrong once: it opened or closed more than it should, or said
// it badly.
func TestKnownBugs(t *testing.T) {
	bare := func(n Node) Node { n.Namespaces = denied; return n }
	accepted := accept("landlock-hide", "sockets", "host-tmp")
	resolve := func(t *testing.T, p policy.Policy, n Node) Ruleset {
		t.Helper()
		rs, err := Resolve(p, n)
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		return rs
	}
	bug := func(t *testing.T, wrong bool, what string) {
		t.Helper()
		if wrong {
			t.Error(what)
		}
	}
	hidden := func(rs Ruleset, p string) bool {
		return slices.ContainsFunc(rs.Hidden, func(h Hidden) bool { return within(p, h.Path) })
	}

	t.Run("tmp-in-hidden-var", func(t *testing.T) {
		rs := resolve(t, builtin(t, "strict", hide("/var"), accepted), bare(debianNode(t)))
		bug(t, reach(rs, "/var/tmp") != 0, "the bare form grants @tmp's /var/tmp where /var is hidden, and the self-test looks at /var only")
	})
	t.Run("opened-tmp-has-sockets", func(t *testing.T) {
		n := parseTree(bareDebian, "/tmp/tmux-1000/default").on(debianNode(t))
		rs := resolve(t, builtin(t, "strict", open("read", "/tmp")), n)
		bug(t, !hidden(rs, "/tmp/tmux-1000/default"), "sockets in /tmp are not hidden where /tmp is opened: the @sockets of /tmp are left out because it would be private")
	})
	t.Run("home-is-a-link", func(t *testing.T) {
		n := parseTree(bareDebian, "/home/ada -> /srv/ada", "/srv/ada/.ssh/id").on(debianNode(t))
		for _, form := range []Node{n, bare(n)} {
			rs := resolve(t, builtin(t, "strict", accepted), form)
			bug(t, reach(rs, "/srv/ada/.ssh/id") != 0, "a home that is a link below /home is hidden with /home, and what it leads to is not")
		}
	})
	t.Run("account-unknown", func(t *testing.T) {
		n := debianNode(t)
		n.Home, n.Env, n.Mounts = "", nil, recorded(t, "nfsroot.txt") // no mount at /home
		rs := resolve(t, builtin(t, "strict"), n)
		bug(t, !hidden(rs, "/home/ada"), "where /etc/passwd lacks the account and HOME is not set, not even /home is hidden")
	})
	t.Run("tmp-is-a-link", func(t *testing.T) {
		n := bare(envNode(t))
		n.Mounts = slices.DeleteFunc(n.Mounts, func(m host.Mount) bool { return m.Path == "/var/tmp" }) // the image's own
		n = parseTree(image, "/dev/shm/ 2001", "/var/tmp -> /.singularity.d").on(n)
		for _, rule := range resolve(t, builtin(t, "strict"), n).Paths {
			bug(t, rule.Path == "/var/tmp" && !rule.Listed && rule.Rights&anyChange != 0,
				"a command that may change /var makes /var/tmp a link; in the bare form the rule for it follows links, into what is protected")
		}
	})
	t.Run("opened-link-into-hidden", func(t *testing.T) {
		n := bare(parseTree(bareDebian, "/srv/in -> /project/team").on(debianNode(t)))
		_, err := Resolve(builtin(t, "strict", open("write", "/srv/in"), accepted), n)
		bug(t, err == nil || !strings.Contains(err.Error(), "leads through a link to /project/team"), "an opened path that became a link opens the hidden folder it leads to")
	})
	t.Run("hidden-link-bare", func(t *testing.T) {
		n := parseTree(image, "/dev/shm/ 2001", "/data -> job").on(bare(envNode(t)))
		rs := resolve(t, builtin(t, "strict", hide("/data"), accepted), n)
		bug(t, reach(rs, "/job") != 0, "the bare form does not follow a hidden link; only the self-test notices, with no advice")
	})
	t.Run("workdir-opened-bare", func(t *testing.T) {
		n := bare(debianNode(t))
		p := builtin(t, "strict", open("write", "/home/ada"), accepted)
		bug(t, resolve(t, p, n).Workdir != "/home/ada", "the bare form leaves a working folder that is opened inside a hidden one")
		n.AskedDir = true
		_, err := Resolve(p, n)
		bug(t, err != nil, "the bare form refuses a --workdir that is opened, and says to open it")
	})
	t.Run("hide-in-dev", func(t *testing.T) {
		for _, p := range []string{"/dev", "/dev/urandom"} {
			_, err := Resolve(builtin(t, "strict", hide(p)), debianNode(t))
			bug(t, err == nil, "hiding "+p+" ends in a failed self-test (125), not in a refusal with advice")
		}
		rs := resolve(t, builtin(t, "strict", hide("/dev/shm")), debianNode(t))
		bug(t, hidden(rs, "/dev/shm"), "the host's /dev/shm is out of reach already, and the self-test looks for a mask there")
	})
	t.Run("hide-tmp-set", func(t *testing.T) {
		p := policy.Policy{Filesystem: policy.Filesystem{Read: []string{"@root"}, Hide: []string{"@tmp", "@shared"}}}
		rs := resolve(t, p, debianNode(t))
		bug(t, slices.ContainsFunc(rs.Hidden, func(h Hidden) bool { return h.Set == "@tmp" }), "@tmp can be hidden, and gets private folders that the self-test does not take for masks")
	})
	t.Run("open-in-proc", func(t *testing.T) {
		_, err := Resolve(builtin(t, "strict", open("write", "/sys/fs")), debianNode(t))
		bug(t, err == nil, "writing below /proc or /sys can be opened, is listed as opened, and is read-only in the namespace form")
	})
	t.Run("device-folder", func(t *testing.T) {
		_, err := Resolve(builtin(t, "strict", open("device", "/dev/pts")), debianNode(t))
		bug(t, err == nil, "a folder opened as a device is mounted on a file (EINVAL), not refused")
	})
	t.Run("no-list-above-read-only", func(t *testing.T) {
		p := policy.Policy{Filesystem: policy.Filesystem{Write: []string{"/job"}}}
		open("read", "/job/in")(&p)
		n := parseTree(image, "/dev/shm/ 2001", "/job/in/").on(bare(envNode(t)))
		bug(t, !strings.Contains(lettersOf(reach(resolve(t, p, n), "/job")), "l"), "a writable folder cannot be listed because something in it is read-only, although nothing is hidden")
	})
	t.Run("bound-below-tmp", func(t *testing.T) {
		n := parseTree(image, "/dev/shm/ 2001", "/tmp/data/").on(envNode(t))
		n.Mounts = append(n.Mounts, parseMounts(t, "900 1 8:9 /x /tmp/data rw - ext4 /dev/sdb rw")...)
		bug(t, !hidden(resolve(t, builtin(t, "strict"), n), "/tmp/data"), "what is bound below the container's own /tmp is not hidden as what is bound elsewhere")
	})
	t.Run("account-unknown-home-elsewhere", func(t *testing.T) {
		n := debianNode(t)
		n.Home, n.Env = "", []string{"HOME=/srv/ada"}
		n = parseTree(bareDebian, "/srv/ada/").on(n)
		n.Mounts = slices.DeleteFunc(n.Mounts, func(m host.Mount) bool { return m.Path == "/home" })
		bug(t, !hidden(resolve(t, builtin(t, "strict"), n), "/home/ada"), "where /etc/passwd lacks the account and HOME is elsewhere, /home is not hidden")
	})
	t.Run("own-launcher-in-a-folder-of-root", func(t *testing.T) {
		n := parseTree(bareDebian, "/usr/local/bin/fence 1000").on(debianNode(t))
		n.Exe = "/usr/local/bin/fence"
		rs := resolve(t, builtin(t, "strict"), n)
		bug(t, !slices.ContainsFunc(rs.Mounts, func(op MountOp) bool { return op.Kind == MountPin && op.Path == n.Exe }), "a launcher that belongs to the user can be written over where its folder cannot be changed")
	})
	t.Run("network-socket-as-stdin", func(t *testing.T) {
		n := debianNode(t)
		n.Stdio = []Descriptor{{FD: 0, Network: true, Path: "socket:[1]"}}
		_, err := Resolve(builtin(t, "strict"), n)
		bug(t, err == nil, "a network socket as standard input is a way out under network none")
		resolve(t, builtin(t, "strict", func(p *policy.Policy) { p.Network.Mode = policy.NetworkHost }), n)
	})
	t.Run("very-many-sockets", func(t *testing.T) {
		n, asked := debianNode(t), 0
		read, stat := n.ReadDir, n.Stat
		n.ReadDir = func(p string) []string {
			if p != "/tmp" {
				return read(p)
			}
			return strings.Fields(strings.Repeat("ssh-x ", 5000))
		}
		n.Stat = func(p string) File { asked++; return stat(p) }
		resolve(t, builtin(t, "strict"), n)
		bug(t, asked > 1000, "names that others put into /tmp are each looked at, although the command gets a /tmp of its own")
	})
	t.Run("swapped-while-looked-at", func(t *testing.T) {
		// The opened folder is exchanged for a link into what is hidden, and back, between any two looks.
		for first := range 2 {
			n, looks := parseTree(bareDebian, "/srv/in/f", "/srv/secret/f").on(debianNode(t)), first
			real := n.Real
			n.Real = func(p string) string {
				if p != "/srv/in" {
					return real(p)
				}
				if looks++; looks%2 == 0 {
					return "/srv/secret"
				}
				return p
			}
			rs, err := Resolve(builtin(t, "strict", open("read", "/srv/in"), hide("/srv/secret")), n)
			for _, op := range rs.Mounts {
				bug(t, op.Kind == MountShow && (op.Path != "/srv/in" || op.From != "/srv/in"), "a link that comes and goes shows what is hidden: "+op.Path+" from "+op.From)
			}
			bug(t, err == nil && len(rs.Mounts) == 0, "nothing was planned")
		}
	})
	t.Run("held-under-a-mask", func(t *testing.T) {
		n := parseTree(bareDebian, "/home/ada/proj/src/.env 1000").on(debianNode(t))
		rs := resolve(t, builtin(t, "strict", open("read", "/home/ada/proj/src"), hide("/home/ada/proj/src/.env")), n)
		bug(t, slices.ContainsFunc(rs.Mounts, func(op MountOp) bool { return op.Kind == MountHold && op.Path == "/home/ada/proj" }),
			"the folder above an opened one is held when the mask of /home lies over it already: it is not there, and fence ends with 125")
	})
	t.Run("cause-of-bare", func(t *testing.T) {
		n := debianNode(t)
		n.Namespaces = Namespaces{Mount: unix.EACCES, IPC: ErrNotTried, Net: ErrNotTried}
		_, err := Resolve(builtin(t, "strict"), n)
		bug(t, err == nil || strings.Contains(err.Error(), "user namespace: permission denied"), "a node that refuses the mount namespace is said to refuse the user namespace")
	})
}

// A container may have the kernel's files at a second place, which is hidden as
// any mount that nobody knows; /proc itself is not the same thing seen again.
func TestResolve_SecondProc(t *testing.T) {
	n := parseTree(image, "/dev/shm/ 2001", "/host/proc/").on(envNode(t))
	n.Mounts = append(n.Mounts, parseMounts(t, "900 1 0:900 / /host/proc rw - proc proc rw", "901 1 0:900 / /proc rw - proc proc rw")...)
	rs, err := Resolve(builtin(t, "strict"), n)
	if err != nil || len(rs.Hidden) != 1 || rs.Hidden[0].Path != "/host/proc" {
		t.Errorf("hidden %v, %v; want /host/proc alone", rs.Hidden, err)
	}
}
