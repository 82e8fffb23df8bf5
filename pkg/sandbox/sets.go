package sandbox

import (
	"path"
	"slices"
	"strings"

	"fence/pkg/host"
	"fence/pkg/policy"
)

// protected are the places whose code runs before the fence the next time:
// Apptainer's scripts, and the tools themselves. They are read-only and
// cannot be renamed under every policy.
var protected = policy.Protected[:]

var tmpDirs = []string{"/tmp", "/var/tmp", "/dev/shm"}

// kernelsOwn show the kernel and its devices.
var kernelsOwn = []string{"/proc", "/sys", "/dev"}

// runtimesOwn are what a container runtime mounts for itself.
var runtimesOwn = []string{
	"/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/passwd", "/etc/group",
	"/etc/localtime", "/.fence", "/.singularity.d",
}

// hostsOwn are folders of a bare host that may be mounts of their own.
var hostsOwn = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/var", "/run", "/boot", "/nix", "/gnu", "/snap"}

// sockets are where a daemon takes orders from whoever can connect: munge and
// Slurm (identity, jobs), D-Bus and systemd, container engines, agents, name
// services (which reach the network), terminal multiplexers. A folder and the
// names in it; a name may end in "*". Of a host's /run nothing is needed, and
// what a daemon makes there anew would not have the mask of the old.
var sockets = []struct {
	dir   string
	names []string
}{
	{"/run", strings.Fields(`munge slurm* dbus systemd user udev docker* containerd podman crio buildkit libvirt lxd*
		nscd nslcd gssproxy.sock .heim_org.h5l.kcm-socket screen screens tmux rpcbind.sock acpid.socket apptheus
		nvidia-persistenced nvidia-fabricmanager*`)},
	{"/var/spool", []string{"slurm*"}},
	{"/var/lib", []string{"slurm*", "gssproxy"}},
	{"/var/lib/sss", []string{"pipes"}},
	{"/tmp", []string{"tmux-*", "ssh-*", ".X11-unix", ".ICE-unix", "nvidia-mps"}},
}

// socketVars are variables that name such a socket.
var socketVars = []string{"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "SLURM_SACK_SOCKET", "TMUX", "XDG_RUNTIME_DIR", "CUDA_MPS_PIPE_DIRECTORY"}

// within reports whether p is dir or below it. Both are clean and absolute.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

func withinAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return within(p, d) })
}

// hiddenSet lists the paths a set stands for on this node, whether or not
// they exist.
func (n Node) hiddenSet(set string) []string {
	switch set {
	case policy.SetShared:
		return n.shared()
	case policy.SetHome:
		return n.homes()
	case policy.SetSockets:
		return n.socketPaths()
	case policy.SetTmp:
		return tmpDirs
	}
	return nil
}

// shared is every network mount, and every mount that is neither the root,
// nor the kernel's, nor one that the runtime (on a host: the system) made for
// itself. What is not known is shared.
func (n Node) shared() []string {
	own := hostsOwn
	if n.Container != "" {
		own = runtimesOwn
	}
	root, _ := n.top("/")
	var out []string
	for _, m := range n.Mounts {
		switch {
		case n.masked(m.Path):
			// By the fence that this one runs inside of.
		case m.Dev == root.Dev && m.Root == path.Join(root.Root, m.Path):
			// The root itself, once more where it is: by an outer fence, that it stays.
		case m.Path == "/" || within(m.Path, "/.fence") || slices.Contains(tmpDirs[:2], m.Path) && !host.IsNetworkFS(m.FSType):
			// /.fence itself may lie on shared storage; /tmp has a rule of its own.
		case host.IsNetworkFS(m.FSType):
			out = append(out, m.Path)
		case !withinAny(m.Path, own) && !withinAny(m.Path, kernelsOwn):
			out = append(out, m.Path)
		}
	}
	return out
}

// again lists the other paths at which what lies at p is seen: mounts of the
// same filesystem that show it, a part of it, or a folder it lies in. The root,
// and what lies below /tmp and /.fence, are such places only for what a person
// named: what a bind mount shows of the root is as readable there as the rest.
func (n Node) again(p string, named bool) []string {
	var base host.Mount
	for _, m := range n.Mounts {
		if within(p, m.Path) && len(m.Path) >= len(base.Path) {
			base = m
		}
	}
	inside := path.Join(base.Root, strings.TrimPrefix(p, base.Path)) // its place in the filesystem
	own := append([]string{"/.fence"}, tmpDirs...)
	var out []string
	for _, m := range n.Mounts {
		switch {
		case m.Dev != base.Dev || m.ID == base.ID || withinAny(m.Path, kernelsOwn) || !named && (m.Path == "/" || withinAny(m.Path, own)):
			// The kernel's are one filesystem wherever they are mounted.
		case within(m.Root, inside) && m.Path != "/":
			// The tools may lie on shared storage, and so may a /tmp of our own.
			if !slices.Contains(tmpDirs, m.Path) && !within(m.Path, "/.fence") {
				out = append(out, m.Path)
			}
		case within(inside, m.Root) && inside != "/":
			out = append(out, path.Join(m.Path, strings.TrimPrefix(inside, m.Root)))
		}
	}
	return out
}

// top is the mount seen at p, if p is a mount point.
func (n Node) top(p string) (host.Mount, bool) {
	m, ok := n.tops[p]
	return m, ok
}

// ours reports whether an outer fence covered p. Only who may mount could
// forge the name, and what it names holds nothing of the host's.
func (n Node) ours(p, source string) bool {
	m, ok := n.top(p)
	return ok && m.FSType == "tmpfs" && m.Source == source
}

// masked reports whether an outer fence hides p already.
func (n Node) masked(p string) bool {
	m, ok := n.top(p)
	return n.ours(p, maskName) && m.ReadOnly || ok && m.Root == "/null" && m.FSType == "devtmpfs"
}

// homes is the account's home. In a container only a mounted one: /root or
// /home/x of the image's own root filesystem belongs to the task.
func (n Node) homes() []string {
	var out []string
	for _, h := range []string{n.Home, env(n.Env, "HOME")} {
		h = path.Clean(h)
		// "/", a system folder or /tmp is nobody's home: hiding it hides everything.
		if !path.IsAbs(h) || h == "/" || h == "/nonexistent" || slices.Contains(hostsOwn, h) || slices.Contains(tmpDirs, h) || slices.Contains(out, h) {
			continue
		}
		if n.Container == "" || slices.ContainsFunc(n.Mounts, func(m host.Mount) bool {
			// HOME=/tmp/x in a /tmp of the container's own is the task's as well.
			return m.Path != "/" && within(h, m.Path) && !(slices.Contains(tmpDirs, m.Path) && int(n.Stat(m.Path).UID) == n.UID)
		}) {
			out = append(out, h)
			if real := n.Real(h); real != h {
				out = append(out, real)
			}
		}
	}
	// All of them, also where the account is known to a name service only.
	if n.Container == "" && (n.Home == "" || len(out) == 0 || within(out[0], "/home")) {
		out = append(out, "/home")
	}
	return out
}

func (n Node) socketPaths() []string {
	var out []string
	for _, s := range sockets {
		if _, mounted := n.top(s.dir); s.dir == "/run" && (mounted || n.Container == "") {
			out = append(out, s.dir)
			continue
		}
		// One listing is cheaper than asking for each name. A folder that
		// cannot be listed can still hold a name that can be connected to.
		have := n.ReadDir(s.dir)
		for _, name := range s.names {
			prefix, any := strings.CutSuffix(name, "*")
			switch {
			case have == nil && !any:
				out = append(out, s.dir+"/"+name)
			case any || slices.Contains(have, name):
				for _, h := range have {
					if h == name || any && strings.HasPrefix(h, prefix) {
						out = append(out, s.dir+"/"+h)
					}
				}
			}
		}
	}
	for _, name := range socketVars {
		v := env(n.Env, name)
		v, _, _ = strings.Cut(v, ",") // TMUX=/tmp/tmux-1000/default,123,0
		v = strings.TrimPrefix(v, "unix:path=")
		if v = path.Clean(v); path.IsAbs(v) && v != "/" && !slices.Contains(tmpDirs, v) {
			out = append(out, v)
		}
	}
	return out
}

func env(environ []string, name string) string {
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v
		}
	}
	return ""
}
