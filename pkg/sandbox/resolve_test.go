package sandbox

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/policy"
)

var update = flag.Bool("update", false, "write the golden files")

const devices = `
	/dev/null
	/dev/zero
	/dev/full
	/dev/random
	/dev/urandom
	/dev/tty
	/dev/ptmx
	/dev/pts/
	/dev/shm/`

const system = `
	/bin -> usr/bin
	/usr/bin/env
	/etc/passwd
	/proc/1/
	/sys/fs/` + devices

// bareDebian is a node with a home folder and a project by the network.
const bareDebian = system + `
	/home/ada/ 1000
	/home/bob/ 1001
	/project/team/wheels/
	/project/team/data
	/project/users/ada/ 1000
	/tmp/ssh-Xy/agent.1
	/tmp/mine 1000
	/var/tmp/
	/var/spool/slurmd/
	/var/lib/dpkg/
	/run/munge/munge.socket.2
	/run/dbus/
	/run/user/1000/bus
	/opt/tool/bin/
	/srv/
	/boot/efi/`

// image is what a container of Apptainer has.
const image = system + `
	/.singularity.d/env/90-environment.sh
	/.singularity.d/runscript
	/environment -> .singularity.d/env/90-environment.sh
	/singularity -> .singularity.d/runscript
	/.run -> .singularity.d/actions/run
	/.singularity.d/actions/run
	/job/
	/root/
	/tmp/ 2001
	/var/tmp/ 2001`

// site is what a default start adds to it.
const site = `
	/tmp/ 65534
	/tmp/krb5cc_1
	/var/tmp/ 65534
	/project/team/wheels/
	/project/users/ada/ 2001`

func debianNode(t *testing.T) Node {
	return parseTree(bareDebian).on(Node{
		Landlock: kernel(8), Mounts: recorded(t, "bare-debian.txt"), UID: 1000, Home: "/home/ada", Arch: "amd64", Workdir: "/home/ada",
		Namespaces: Namespaces{PrivateIPC: true},
		Env: []string{"HOME=/home/ada", "PATH=/usr/bin", "LC_ALL=C", "SHELL=/bin/sh", "GITHUB_TOKEN=x", "XDG_RUNTIME_DIR=/run/user/1000",
			"SSH_AUTH_SOCK=/tmp/ssh-Xy/agent.1"},
	})
}

// Another user's tmux does not take /tmp from a bare fence that may have it;
// one's own does, and so does what permissions do not close.
func TestResolve_OthersSockets(t *testing.T) {
	for _, tc := range []struct {
		file File
		want bool // /tmp as a whole
	}{
		{File{Exists: true, Dir: true, UID: 0, Shut: true}, true},
		{File{Exists: true, Dir: true, UID: 0}, false},
		{File{Exists: true, Dir: true, UID: 1000}, false},
	} {
		n := parseTree(bareDebian, "/tmp/tmux-0/").on(Node{
			Landlock: kernel(9), Mounts: recorded(t, "bare-debian.txt"), UID: 1000, Home: "/home/ada", Arch: "amd64", Workdir: "/",
			Namespaces: Namespaces{User: unix.ENOSPC, Mount: ErrNotTried, IPC: ErrNotTried, Net: ErrNotTried},
		})
		stat, list := n.Stat, n.ReadDir
		n.Stat = func(p string) File {
			if p == "/tmp/tmux-0" {
				return tc.file
			}
			return stat(p)
		}
		n.ReadDir = func(p string) []string {
			if p == "/tmp" {
				return []string{"tmux-0"}
			}
			return list(p)
		}
		rs, err := Resolve(builtin(t, "strict", accept("landlock-hide", "sockets", "host-tmp")), n)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(rs.Paths, func(p PathRule) bool { return p.Path == "/tmp" && p.Rights&ll.AccessFSMakeReg != 0 }); got != tc.want {
			t.Errorf("%+v: /tmp can be written as a whole: %v", tc.file, got)
		}
	}
}

// noScopes is what a kernel before Landlock's ABI 6 gives a policy with the
// node's network and processes of its own.
func noScopes(n *Node) {
	n.Landlock = kernel(5)
	n.Namespaces.PrivatePID, n.Namespaces.Net = true, ErrNotTried
}

func siteNode(t *testing.T) Node {
	return parseTree(image, site).on(Node{
		Landlock: kernel(8), Mounts: recorded(t, "apptainer.txt"), Container: "apptainer", UID: 2001, Home: "/project/users/ada", Arch: "amd64",
		Workdir: "/project/users/ada", Namespaces: Namespaces{PrivateIPC: true}, Env: []string{"HOME=/project/users/ada", "PATH=/usr/bin", "MODEL=x", "FOO=y"},
		ImageEnv: map[string]bool{"MODEL": true},
	})
}

func containNode(t *testing.T) Node {
	return parseTree(image, "/dev/shm/ 2001\n/project/users/ada/ 2001").on(Node{
		Landlock: kernel(8), Mounts: recorded(t, "apptainer-contain.txt"), Container: "apptainer", UID: 2001, Home: "/project/users/ada", Arch: "amd64",
		Workdir: "/job", Namespaces: Namespaces{PrivateIPC: true, PrivatePID: true}, Env: []string{"HOME=/project/users/ada", "PATH=/usr/bin"},
	})
}

// envNode is started as `fence env` has it: nothing of the site, the tools.
func envNode(t *testing.T) Node {
	n := containNode(t)
	n.Mounts = nil
	for _, m := range recorded(t, "apptainer-contain.txt", "140 99 259:2 /project/tools/fence /.fence/fence ro,nosuid,nodev - ext4 /dev/nvme0n1p2 rw") {
		if m.Path != "/project/users/ada" {
			n.Mounts = append(n.Mounts, m)
		}
	}
	n.Env, n.Home = []string{"HOME=/root", "PATH=/usr/bin"}, ""
	return parseTree(image, "/dev/shm/ 2001\n/.fence/fence").on(n)
}

func nfsNode(t *testing.T) Node {
	return parseTree(system, `
		/scratch/x/
		/gpfs/proj/
		/misc/data/
		/cvmfs/software.eessi.io/
		/run/user/1000/mnt/
		/weka/
		/local/job/
		/home/ada/
		/tmp/
		/var/tmp/`).on(Node{
		Landlock: kernel(6), Mounts: recorded(t, "nfsroot.txt"), UID: 1000, Home: "/home/ada", Arch: "arm64", Workdir: "/scratch/x", Namespaces: Namespaces{PrivateIPC: true},
	})
}

func TestResolve(t *testing.T) {
	with := func(n Node, change ...func(*Node)) Node {
		for _, c := range change {
			c(&n)
		}
		return n
	}
	refused := func(n *Node) { n.Namespaces = denied }
	noNet := func(n *Node) { n.Namespaces.Net = unix.ENOSPC }
	canSupervise := func(n *Node) { n.Supervisor.OK = true }
	abi := func(abi int) func(*Node) { return func(n *Node) { n.Landlock = kernel(abi) } }
	mount := func(lines ...string) func(*Node) {
		return func(n *Node) { n.Mounts = append(n.Mounts, parseMounts(t, lines...)...) }
	}
	files := func(texts ...string) func(*Node) { return func(n *Node) { *n = parseTree(texts...).on(*n) } }
	at := func(dir string) func(*Node) { return func(n *Node) { n.Workdir = dir } }
	asked := func(dir string) func(*Node) { return func(n *Node) { n.Workdir, n.AskedDir = dir, true } }
	strict := func(more ...func(*policy.Policy)) policy.Policy { return builtin(t, "strict", more...) }
	only := func(fs policy.Filesystem, more ...func(*policy.Policy)) policy.Policy {
		p := policy.Policy{Name: "only", Filesystem: fs}
		for _, m := range more {
			m(&p)
		}
		return p
	}
	fenced := []string{"300 28 0:90 / /dev rw,nosuid - tmpfs fence-dev rw", "301 300 0:91 / /dev/pts rw - devpts devpts rw,mode=620,ptmxmode=666",
		"302 28 0:92 / /tmp rw - tmpfs fence-tmp rw", "303 28 0:93 / /var/tmp rw - tmpfs fence-tmp rw",
		"304 28 0:94 / /home ro - tmpfs fence-mask rw", "305 28 0:95 / /project ro - tmpfs fence-mask rw",
		"306 28 0:96 / /run ro - tmpfs fence-mask rw", "309 28 0:99 / /var/spool/slurmd ro - tmpfs fence-mask rw"}

	for _, tt := range []struct {
		name   string
		node   Node
		policy policy.Policy
	}{
		// Nodes.
		{"debian", debianNode(t), strict()},
		{"debian-bare", with(debianNode(t), refused), strict()},
		{"debian-bare-accepted", with(debianNode(t), refused), strict(accept("landlock-hide", "sockets", "host-tmp"))},
		{"debian-bare-accepted-abi9", with(debianNode(t), refused, abi(9)), strict(accept("landlock-hide", "host-tmp"))},
		{"debian-no-account", with(debianNode(t), func(n *Node) { n.Home, n.Env = "", nil }), strict()},
		{"debian-home-is-root", with(debianNode(t), func(n *Node) { n.Home, n.Env = "/", []string{"HOME=/"} }), strict()},
		{"debian-home-is-usr", with(debianNode(t), func(n *Node) { n.Home, n.Env = "/var", []string{"HOME=/usr"} }), strict()},
		{"debian-home-is-tmp", with(debianNode(t), func(n *Node) { n.Home, n.Env = "/home/ada", []string{"HOME=/tmp"} }), strict()},
		{"debian-home-elsewhere", with(debianNode(t), func(n *Node) { n.Home, n.Env = "/srv", []string{"HOME=/nonexistent"} }), strict()},
		{"debian-autofs-home", with(debianNode(t), func(n *Node) { n.Mounts = recorded(t, "nfsroot.txt") },
			mount("200 21 0:80 / /home rw,relatime - autofs auto.home rw,indirect")), strict()},
		{"apptainer", siteNode(t), strict()},
		{"apptainer-bare", with(siteNode(t), refused), strict()},
		{"apptainer-bare-accepted", with(siteNode(t), refused), strict(accept("landlock-hide", "host-tmp"))},
		{"apptainer-contain", containNode(t), strict()},
		{"apptainer-contain-bare", with(containNode(t), refused), strict()},
		{"apptainer-env", envNode(t), strict()},
		{"apptainer-home-in-own-tmp", with(envNode(t), at("/tmp/task"), func(n *Node) { n.Env = []string{"HOME=/tmp/task"} }, files(image, "/dev/shm/ 2001\n/.fence/fence\n/tmp/task/ 2001")), strict()},
		{"apptainer-home-is-own-tmp-bare", with(envNode(t), refused, at("/tmp"), func(n *Node) { n.Env = []string{"HOME=/tmp"} }), strict()},
		{"apptainer-home-in-hosts-tmp", with(siteNode(t), func(n *Node) { n.Env = []string{"HOME=/tmp/ada"} }, files(image, site, "/tmp/ada/ 2001")), strict()},
		{"apptainer-env-bare", with(envNode(t), refused), strict()},
		{"apptainer-env-bare-host-dev", with(envNode(t), refused, func(n *Node) { n.Namespaces.PrivateIPC, n.Namespaces.PrivatePID = false, true },
			mount("170 109 0:24 / /dev/pts rw - devpts devpts rw,ptmxmode=000")), strict()},
		{"nfs-root", nfsNode(t), strict()},
		{"job-tmp-of-the-user", with(siteNode(t), mount("180 98 259:2 /local/job.7 /tmp rw - xfs /dev/sdb rw"), files(image, site, "/tmp/ 2001")), strict()},
		{"nested", with(debianNode(t), at("/"), mount(fenced...), files(system, "/home/", "/project/", "/tmp/", "/var/tmp/", "/run/", "/var/spool/slurmd/")), strict()},
		{"nested-bare", with(debianNode(t), at("/"), refused, mount(fenced...), files(system, "/home/", "/project/", "/tmp/", "/var/tmp/", "/run/", "/var/spool/slurmd/")), strict()},
		{"docker-incomplete-root", parseTree(system, "/tmp/", "/var/tmp/").on(Node{Landlock: kernel(8), Container: "docker", Arch: "amd64",
			Mounts: parseMounts(t, "1 0 0:1 / / rw - overlay overlay rw", "2 1 0:2 / /proc rw - proc proc rw")}), strict()},
		{"root-read-only", parseTree(image, "/.fence/fence").on(Node{Landlock: kernel(8), Container: "apptainer", Arch: "amd64",
			Mounts: parseMounts(t, "1 0 0:1 / / ro - overlay overlay ro", "2 1 8:2 /t/fence /.fence/fence ro - ext4 /dev/sda1 rw")}), strict()},

		// Kernels; RHEL 9 claims ABI 6 and has no scopes.
		{"rhel9-host-pid", with(siteNode(t), func(n *Node) { n.Landlock = kernel(5); n.Landlock.ABI = 6 }), strict()},
		{"rhel9-own-pid", with(envNode(t), func(n *Node) { n.Landlock = kernel(5); n.Landlock.ABI = 6 }), strict()},
		{"rhel9-no-netns", with(envNode(t), func(n *Node) {
			n.Landlock = kernel(5)
			n.Landlock.ABI = 6
			n.Namespaces.Net = fmt.Errorf("unshare: %w", unix.ENOSPC)
		}), strict()},
		{"no-netns", with(envNode(t), func(n *Node) { n.Namespaces.Net = unix.EPERM }), strict()},
		{"loopback", envNode(t), builtin(t, "loopback")},
		{"loopback-supervised", with(envNode(t), noNet, canSupervise), builtin(t, "loopback")},
		{"loopback-supervised-bare", with(envNode(t), refused, canSupervise), builtin(t, "loopback")},
		{"loopback-neither", with(envNode(t), noNet, func(n *Node) { n.Supervisor.Why = errors.New("kernel.yama.ptrace_scope is 3") }), builtin(t, "loopback")},
		{"loopback-nobody-asked", with(envNode(t), noNet), builtin(t, "loopback")},
		{"loopback-no-tcp-rules", with(envNode(t), noNet, canSupervise, func(n *Node) { n.Landlock.Net = 0 }), builtin(t, "loopback")},
		{"proxy-supervised", with(envNode(t), noNet, canSupervise), builtin(t, "proxy")},
		{"host-ipc", with(envNode(t), func(n *Node) { n.Namespaces.PrivateIPC = false }), strict()},
		{"unsure", with(envNode(t), func(n *Node) { n.Unsure = func() []string { return []string{"/nfs (EIO)"} } }), strict()},

		// Openings.
		{"open-beneath-hidden", debianNode(t), strict(open("read", "/project/team/wheels"), open("write", "/home/ada"))},
		{"open-beneath-hidden-bare", with(debianNode(t), refused), strict(open("read", "/project/team/wheels"), open("write", "/home/ada"), accept("landlock-hide", "sockets", "host-tmp"))},
		{"hide-beneath-open", debianNode(t), strict(open("write", "/project/team"), hide("/project/team/data", "/project/team/wheels"))},
		{"hide-beneath-open-bare", with(debianNode(t), refused), strict(open("write", "/project/team"), hide("/project/team/data"), accept("landlock-hide", "sockets", "host-tmp"))},
		{"open-hidden-exactly", debianNode(t), strict(open("read", "/project"))},
		{"open-read-in-root", envNode(t), strict(open("read", "/job"))},
		{"open-read-in-root-bare", with(envNode(t), refused), strict(open("read", "/job"))},
		{"open-read-in-writable", with(envNode(t), files(image, "/job/ 2001", "/job/in/")), strict(open("read", "/job/in"))},
		{"open-file", debianNode(t), strict(open("read", "/project/team/data"))},
		{"open-tmp", debianNode(t), strict(open("write", "/tmp"))},
		{"open-missing", envNode(t), strict(open("read", "/wheels"), func(p *policy.Policy) { p.Filesystem.Read = append(p.Filesystem.Read[:1:1], "/gone") })},
		{"open-missing-bare", debianNode(t), strict(open("read", "/wheels"))},
		{"open-protected", envNode(t), strict(open("write", "/.singularity.d/env"), open("read", "/.fence"))},
		{"open-device", with(debianNode(t), files(bareDebian, "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1", "/dev/kfd", "/dev/sda")), builtin(t, "model-server")},
		{"open-device-bare", with(envNode(t), refused, files(image, "/dev/shm/ 2001\n/.fence/fence", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/sda")), builtin(t, "model-server")},
		{"open-syscall", envNode(t), strict(func(p *policy.Policy) { p.Open = append(p.Open, policy.Open{Syscall: "ptrace", Why: "gdb"}) })},
		{"open-link", with(debianNode(t), files(bareDebian, "/data -> project/team")), strict(open("read", "/data"))},
		{"open-link-to-dev", with(envNode(t), files(image, "/.fence/fence", "/job/pts -> ../dev/pts", "/job/shm -> ../dev/shm")), strict(open("read", "/job/pts"), open("write", "/job/shm"))},
		{"open-link-to-tmp", with(siteNode(t), files(image, site, "/job/tmp -> ../tmp/krb5cc_1")), strict(open("read", "/job/tmp"))},
		{"read-link-to-hidden", with(debianNode(t), files(bareDebian, "/data -> home/ada")), only(policy.Filesystem{Read: []string{"/data"}, Hide: []string{"@home"}})},
		{"hide-link", with(envNode(t), files(image, "/dev/shm/ 2001\n/.fence/fence", "/data -> job", "/dangling -> nowhere")), strict(hide("/data", "/dangling"))},
		{"hide-at-second-path", with(envNode(t), mount("900 1 8:9 /d /data rw - ext4 /dev/sdb rw", "901 1 8:9 /d /tmp/d rw - ext4 /dev/sdb rw", "902 1 8:9 /d/answers /tmp/answers rw - ext4 /dev/sdb rw",
			"903 1 8:9 /d /.fence/d rw - ext4 /dev/sdb rw", "904 1 8:9 /d/answers/fence /.fence/probe rw - ext4 /dev/sdb rw", "905 1 8:9 /d/answers/tmp /var/tmp rw - ext4 /dev/sdb rw"),
			files(image, "/dev/shm/ 2001\n/.fence/fence\n/.fence/probe\n/.fence/d/answers/\n/data/answers/\n/tmp/d/answers/\n/tmp/answers/")), strict(open("read", "/data"), open("read", "/tmp/d"), hide("/data/answers"))},
		{"hide-root", envNode(t), only(policy.Filesystem{Read: []string{"@root"}, Hide: []string{"/proc/1"}})},
		{"hide-missing", envNode(t), strict(hide("/nothing/here"))},
		{"write-one-folder", debianNode(t), only(policy.Filesystem{Read: []string{"@root"}, Write: []string{"/srv"}, Hide: []string{"@shared", "@home"}})},
		{"write-one-folder-bare", with(envNode(t), refused), only(policy.Filesystem{Read: []string{"@root"}, Write: []string{"/job"}})},
		{"root-and-mounts", debianNode(t), only(policy.Filesystem{Read: []string{"@root"}, Write: []string{"@root", "@tmp"}})},
		{"root-and-mounts-bare", with(siteNode(t), refused), only(policy.Filesystem{Read: []string{"@root"}, Write: []string{"@root"}}, accept("host-tmp"))},
		{"root-and-mounts-named", siteNode(t), only(policy.Filesystem{Read: []string{"@root", "/project", "/job"}, Write: []string{"@root"}})},
		{"root-and-mounts-hidden", siteNode(t), only(policy.Filesystem{Read: []string{"@root", "/job"}, Write: []string{"@root"}, Hide: []string{"@shared"}})},
		{"read-in-own-tmp", siteNode(t), only(policy.Filesystem{Read: []string{"/tmp/krb5cc_1"}})},
		{"write-root-hosts-tmp-bare", with(debianNode(t), refused), only(policy.Filesystem{Write: []string{"@root"}, Hide: []string{"@shared"}}, accept("landlock-hide"))},
		{"write-hidden", debianNode(t), only(policy.Filesystem{Read: []string{"@root"}, Write: []string{"/project/team"}, Hide: []string{"@shared"}})},
		{"network-host", debianNode(t), builtin(t, "build")},
		{"network-host-no-scopes", with(debianNode(t), noScopes), builtin(t, "build")},
		{"network-host-no-scopes-stdio", with(debianNode(t), noScopes, func(n *Node) {
			n.Stdio = []Descriptor{{FD: 0, UnixAnywhere: true, Path: "socket:[1]"}, {FD: 1, Path: "socket:[2]"}}
		}), builtin(t, "build")},
		{"zero-policy", debianNode(t), policy.Policy{}},
		{"zero-policy-bare", with(envNode(t), refused), policy.Policy{}},

		// Where it starts, and with what open.
		{"workdir-asked-hidden", with(debianNode(t), asked("/project/team")), strict()},
		{"workdir-asked-opened", with(debianNode(t), asked("/project/team/wheels")), strict(open("read", "/project/team/wheels"))},
		{"workdir-asked-tmp", with(debianNode(t), asked("/tmp")), strict()},
		{"workdir-below-tmp", with(debianNode(t), at("/tmp/sub")), strict()},
		{"workdir-unnamed", with(envNode(t), at("")), strict()},
		{"stdio", with(envNode(t), func(n *Node) {
			n.Stdio = []Descriptor{{FD: 0, File: true, Readable: true, TTY: true, Writable: true, Path: "/dev/pts/3"}, {FD: 1, File: true, Writable: true, Path: "/out"}, {FD: 2, Path: "pipe:[1]", Writable: true}}
		}), strict()},
		{"stdio-folder", with(envNode(t), func(n *Node) {
			n.Stdio = []Descriptor{{FD: 0, Dir: true, Readable: true, Path: "/project"}, {FD: 1, PathOnly: true, File: true, Path: "/etc/shadow"}}
		}), strict()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			golden(t, "resolve/"+tt.name+".txt", dump(Resolve(tt.policy, tt.node)))
		})
	}
}

// Every ABI in one place, in both forms: what is handled, lost or refused.
func TestResolve_EveryABI(t *testing.T) {
	var b strings.Builder
	for i := range 4 * 12 {
		form, own, abi := Namespace, i/12%2 == 1, i%12
		n := envNode(t)
		n.Landlock = kernel(abi)
		if i >= 24 {
			form, n.Namespaces = Bare, denied
		}
		n.Namespaces.PrivatePID = own
		rs, err := Resolve(builtin(t, "strict"), n)
		fmt.Fprintf(&b, "# %v, own processes %v, ABI %d\n", form, own, abi)
		for line := range strings.Lines(dump(rs, err)) {
			word, _, _ := strings.Cut(line, " ")
			if word == "handled" || word == "filter" || word == "lost:" || word == "refused:" || strings.HasSuffix(line, " /tmp dir\n") {
				b.WriteString(line)
			}
		}
	}
	golden(t, "resolve/every-abi.txt", b.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Errorf("not what %s says (%v); -update writes it anew. Got:\n%s", file, err, got)
	}
}

// The hint is one line for each advice, with what may be accepted; all of it
// together, and only where accepting is enough.
func TestRefusal_Hint(t *testing.T) {
	r := &Refusal{Problems: []Problem{
		{What: "a", Do: "do this", Accept: "sockets"}, {What: "b", Do: "do that\ndo this", Accept: "host-tmp"}, {What: "c", Accept: "sockets"},
	}}
	if got, want := r.Hint(), "do this\ndo that\n"+`or take the risk by name: --accept sockets --accept host-tmp --why "..."`; got != want {
		t.Errorf("hint:\n%s\nwant:\n%s", got, want)
	}
	never := &Refusal{Problems: append(r.Problems, Problem{What: "d"})}
	if got, want := never.Hint(), "do this\ndo that"; got != want {
		t.Errorf("hint where one cannot be accepted:\n%s\nwant:\n%s", got, want)
	}
	if got := r.Error(); got != "a; b; c" {
		t.Errorf("error: %s", got)
	}
	if rs, err := Resolve(policy.Policy{}, parseTree().on(Node{Landlock: host.Landlock{}})); !errors.As(err, &r) || rs.Paths != nil || rs.Form != Bare {
		t.Errorf("a refusal comes with %+v, %v", rs, err)
	}
}
