package host

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func parseFile(t *testing.T, name string) []Mount {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ms, err := ParseMounts(f)
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

func TestParseMounts_Network(t *testing.T) {
	for name, want := range map[string]string{
		"bare-debian.txt":       "/home /project",
		"apptainer.txt":         "",
		"apptainer-contain.txt": "",
		"apptainer-fuse.txt":    "",
		"nfsroot.txt":           "/ /scratch /gpfs/proj /misc /misc/data /cvmfs /cvmfs/software.eessi.io /run/user/1000/mnt /weka",
	} {
		var got []string
		for _, m := range parseFile(t, name) {
			if IsNetworkFS(m.FSType) {
				got = append(got, m.Path)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestParseMounts_Fields(t *testing.T) {
	want := Mount{ID: 107, Parent: 98, Dev: "259:2", Root: "/project/team", Path: "/project/team", Opts: "rw,nosuid,nodev,relatime",
		FSType: "ext4", Source: "/dev/nvme0n1p2", Super: "rw"}
	ms := parseFile(t, "apptainer.txt")
	if !slices.Contains(ms, want) {
		t.Errorf("got %+v", ms)
	}
	if !ms[0].ReadOnly || ms[1].ReadOnly {
		t.Errorf("read only: %v, %v", ms[0].ReadOnly, ms[1].ReadOnly) // the overlay is, though its mount is not
	}
	want2 := []Mount{
		{50, 28, "0:50", "/a b", "/mnt/with blank", "rw,relatime", "tmpfs", "my source", "rw,size=4k", false},
		{51, 28, "0:51", "/", "/mnt/tab\tand\nnewline\\back", "ro,relatime", "tmpfs", "none", "rw", true},
		{52, 28, "0:52", "/", "/mnt/hash#", "rw", "fuse.bindfs", "", "ro,user_id=0", true},
		{53, 28, "0:53", "/", `/mnt/not\09octal\777`, "rw", "-", "-", "rw", false},
		{54, 28, "0:54", "/gone//deleted", "/mnt/gone", "rw,relatime", "ext4", "/dev/sda1", "rw", false},
	}
	if ms := parseFile(t, "escapes.txt"); !slices.Equal(ms, want2) {
		t.Errorf("got  %+v\nwant %+v", ms, want2)
	}
}

// A mount that is overlooked would not be hidden.
func TestParseMounts_RefusesOtherLines(t *testing.T) {
	good := "28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/sda rw\n"
	for _, bad := range []string{
		"\n", "28 1 259:2 / / rw\n", "28 1 259:2 / / rw - ext4\n", "x 1 259:2 / / rw - ext4 s rw\n", "1 x 259:2 / / rw - ext4 s rw\n",
		"28 1 259:2 / rel rw - ext4 s rw\n", "28 1 259:2 / - rw ext4 s rw\n", "28 1 259:2 / / rw -  s rw\n", "\x00",
	} {
		if ms, err := ParseMounts(strings.NewReader(good + bad)); err == nil || ms != nil {
			t.Errorf("%q: %v, %v", bad, ms, err)
		}
	}
	if ms, err := ParseMounts(strings.NewReader("")); err != nil || len(ms) != 0 {
		t.Errorf("%v, %v", ms, err)
	}
}

func TestMounts(t *testing.T) {
	ms, err := Mounts()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, m := range ms {
		paths = append(paths, m.Path)
	}
	if !slices.Contains(paths, "/") || !slices.Contains(paths, "/proc") {
		t.Errorf("got %v", paths)
	}
}

func FuzzParseMounts(f *testing.F) {
	for _, name := range []string{"bare-debian.txt", "nfsroot.txt", "escapes.txt"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		ms, err := ParseMounts(strings.NewReader(text))
		if err != nil && ms != nil {
			t.Fatal("an error with mounts")
		}
		for _, m := range ms {
			if !strings.HasPrefix(m.Path, "/") || m.FSType == "" {
				t.Fatalf("%+v", m)
			}
		}
	})
}

func TestIsNetworkFS(t *testing.T) {
	for _, fs := range strings.Fields("lustre gpfs beegfs nfs nfs4 ceph cifs smb3 wekafs panfs orangefs pvfs2 9p virtiofs afs autofs cvmfs dvs " +
		"fuse fuse.sshfs fuse.glusterfs fuse.bindfs fuse.juicefs fuse.JuiceFS fuse.cvmfs2 fuse.rclone fuse.s3fs fuse.unheard-of ocfs2 gfs2") {
		if !IsNetworkFS(fs) {
			t.Errorf("%s is not one", fs)
		}
	}
	for _, fs := range strings.Fields("ext4 xfs btrfs zfs tmpfs overlay squashfs erofs proc sysfs devtmpfs devpts cgroup2 mqueue fuseblk fusectl nfsd " +
		"rpc_pipefs vfat iso9660 fuse.fuse-overlayfs fuse.squashfuse fuse.squashfuse_ll fuse.fuse2fs") {
		if IsNetworkFS(fs) {
			t.Errorf("%s is one", fs)
		}
	}
}

func TestContainer_Pure(t *testing.T) {
	disk := Mount{Root: "/", Path: "/", FSType: "ext4", Source: "/dev/nvme0n1p2", Super: "rw"}
	overlay := Mount{Root: "/", Path: "/", FSType: "overlay", Source: "overlay", Super: "rw,lowerdir=/x"}
	layers := func(s string) Mount { m := overlay; m.Super = "rw,lowerdir=" + s; return m }
	tests := []struct {
		name, vars, files string
		root              Mount
		declared, want    string
	}{
		{"bare", "HOME", "/etc", disk, "", ""},
		{"live system", "", "", overlay, "", ""},
		{"node that boots from a folder named docker", "", "", parseFile(t, "nfsroot.txt")[0], "", ""},
		{"virtual machine made from an image", "container KUBERNETES_SERVICE_HOST", "/.dockerenv", disk, "", ""},
		{"apptainer by variable", "APPTAINER_CONTAINER", "", disk, "", "apptainer"},
		{"apptainer by older variable", "SINGULARITY_NAME", "", disk, "", "apptainer"},
		{"apptainer, variables unset", "", "/.singularity.d", disk, "", "apptainer"},
		{"apptainer, only the mount left", "", "", parseFile(t, "apptainer.txt")[0], "", "apptainer"},
		{"apptainer by FUSE", "", "", Mount{Root: "/", Path: "/", FSType: "fuse.squashfuse_ll"}, "", "apptainer"},
		{"apptainer in docker", "", "/.dockerenv /.singularity.d", layers("/var/lib/docker/x"), "", "apptainer"},
		{"docker", "", "/.dockerenv", overlay, "", "docker"},
		{"docker, file removed", "", "", layers("/var/lib/docker/overlay2/l/X"), "", "docker"},
		{"docker on a device", "", "/.dockerenv", Mount{Root: "/", Path: "/", FSType: "xfs", Source: "/dev/mapper/docker-8:1-x"}, "", "docker"},
		{"podman", "", "/run/.containerenv", overlay, "", "podman"},
		{"podman, file removed", "", "", layers("/home/a/.local/share/containers/storage/overlay/l/X"), "", "podman"},
		{"charliecloud", "CH_RUNNING", "", disk, "", "charliecloud"},
		{"kubernetes", "KUBERNETES_SERVICE_HOST", "", overlay, "", "kubernetes"},
		{"nspawn", "", "", overlay, "systemd-nspawn", "systemd-nspawn"},
		{"by variable", "container", "", overlay, "", "container-value"},
		{"nonsense", "", "", overlay, "a\x1b[2J", ""},
		{"no mounts seen", "", "/.dockerenv", Mount{}, "", "docker"},
	}
	for _, tt := range tests {
		has := func(list string) func(string) bool {
			return func(s string) bool { return slices.Contains(strings.Fields(list), s) }
		}
		getenv := func(v string) string {
			if has(tt.vars)(v) {
				return v + "-value"
			}
			return ""
		}
		if got := container(getenv, has(tt.files), func() Mount { return tt.root }, tt.declared); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if m, err := rootMount(); m.Path != "/" || err != nil {
		t.Errorf("root mount: %+v, %v", m, err)
	}
}

// kernel is a Landlock for tests: it claims an ABI and refuses some rights.
func kernel(abi int, refuse rights, askErr error) (func(rights) error, func(uintptr) (int, error)) {
	create := func(r rights) error {
		var all rights
		for _, k := range known {
			if k.abi <= abi {
				all.add(k.rights)
			}
		}
		if r.fs&^all.fs|r.net&^all.net|r.scoped&^all.scoped != 0 || r.fs&refuse.fs|r.net&refuse.net|r.scoped&refuse.scoped != 0 {
			return unix.EINVAL
		}
		if r == (rights{}) {
			return unix.ENOMSG
		}
		return nil
	}
	ask := func(flag uintptr) (int, error) {
		switch {
		case askErr != nil:
			return 0, askErr
		case flag == unix.LANDLOCK_CREATE_RULESET_VERSION:
			return abi, nil
		case abi >= 7:
			return 7, nil
		}
		return 0, unix.EINVAL
	}
	return create, ask
}

func TestDetectLandlock_EveryKernel(t *testing.T) {
	all := rights{^uint64(0), ^uint64(0), ^uint64(0)}
	tests := []struct {
		name   string
		abi    int
		refuse rights
		err    error
		want   Landlock
	}{
		{"not built", 0, rights{}, unix.ENOSYS, Landlock{Err: "ENOSYS"}},
		{"not in lsm=", 0, rights{}, unix.EOPNOTSUPP, Landlock{Err: "EOPNOTSUPP"}},
		{"filtered", 0, rights{}, unix.EPERM, Landlock{Err: "EPERM"}},
		{"nonsense", 0, rights{}, nil, Landlock{}},
		{"5.15", 1, rights{}, nil, Landlock{ABI: 1, FS: 1<<13 - 1}},
		{"6.1", 2, rights{}, nil, Landlock{ABI: 2, FS: 1<<14 - 1}},
		{"6.2", 3, rights{}, nil, Landlock{ABI: 3, FS: 1<<15 - 1}},
		{"6.8", 4, rights{}, nil, Landlock{ABI: 4, FS: 1<<15 - 1, Net: 3}},
		{"6.10", 5, rights{}, nil, Landlock{ABI: 5, FS: 1<<16 - 1, Net: 3}},
		{"6.12", 6, rights{}, nil, Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3, Scoped: 3}},
		{"6.18", 7, rights{}, nil, Landlock{ABI: 7, Errata: 7, FS: 1<<16 - 1, Net: 3, Scoped: 3}},
		{"7.0", 8, rights{}, nil, Landlock{ABI: 8, Errata: 7, FS: 1<<16 - 1, Net: 3, Scoped: 3}},
		{"7.1", 9, rights{}, nil, Landlock{ABI: 9, Errata: 7, FS: 1<<17 - 1, Net: 3, Scoped: 3}},
		{"7.2", 10, rights{}, nil, Landlock{ABI: 10, Errata: 7, FS: 1<<17 - 1, Net: 15, Scoped: 3}},
		{"7.3", 11, rights{}, nil, Landlock{ABI: 11, Errata: 7, FS: 1<<17 - 1, Net: 15, Scoped: 3}},
		{"later", 40, rights{}, nil, Landlock{ABI: 40, Errata: 7, FS: 1<<17 - 1, Net: 15, Scoped: 3}},
		{"RHEL 9.7", 6, rights{scoped: 3}, nil, Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3}},
		{"Rocky 9.7", 6, rights{fs: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, scoped: 3}, nil, Landlock{ABI: 6, FS: 1<<15 - 1, Net: 3}},
		{"one scope", 6, rights{scoped: 2}, nil, Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3, Scoped: 1}},
		{"refuses all", 6, all, nil, Landlock{ABI: 6, Err: "EINVAL"}},
	}
	for _, tt := range tests {
		if got := detectLandlock(kernel(tt.abi, tt.refuse, tt.err)); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	// What is taken alone but not together is not believed.
	create, ask := kernel(6, rights{}, nil)
	alone := func(r rights) error {
		if r.fs != 0 && r.net != 0 {
			return unix.EINVAL
		}
		return create(r)
	}
	if got := detectLandlock(alone, ask); got.FS|got.Net|got.Scoped != 0 || got.Err != "EINVAL" {
		t.Errorf("got %+v", got)
	}
}

// This kernel takes what DetectLandlock says, and no right more.
func TestDetectLandlock_Here(t *testing.T) {
	l := DetectLandlock()
	if l.Err != "" {
		need(t, "no Landlock here: "+l.why())
	}
	if l.FS == 0 || !l.Has("execute") || !l.Has("make_sym") || l.Has("no such right") {
		t.Fatalf("got %+v", l)
	}
	for _, k := range known {
		if err := createRuleset(k.rights); (err == nil) != l.Has(k.name) {
			t.Errorf("%s: %v, but Has says %v", k.name, err, l.Has(k.name))
		}
	}
	if l != DetectLandlock() {
		t.Error("a second look differs")
	}
}

func TestWhy(t *testing.T) {
	bare := func(sysctl, value string) *Host {
		return &Host{Sysctls: map[string]string{"user.max_user_namespaces": "100", "user.max_net_namespaces": "100", sysctl: value}}
	}
	docker := bare("", "")
	docker.Container = "docker"
	selinux := bare("", "")
	selinux.LSMs = []string{"capability", "selinux"}
	tests := []struct {
		host  *Host
		ns    namespace
		errno string
		want  string
	}{
		{bare("", ""), userNS, "", ""},
		{bare("user.max_user_namespaces", "0"), userNS, "ENOSPC", "user namespaces are switched off by user.max_user_namespaces=0; ask the operators to allow it"},
		{bare("user.max_user_namespaces", "0"), netNS, "ENOSPC", "user namespaces are switched off by user.max_user_namespaces=0; ask the operators to allow it"},
		{bare("user.max_net_namespaces", "0"), netNS, "ENOSPC", "network namespaces are switched off by user.max_net_namespaces=0; ask the operators to allow it"},
		{bare("", ""), netNS, "ENOSPC", "no more network namespaces for this user: user.max_net_namespaces is 100, or one of the other user.max_* is used up"},
		{bare("", ""), pidNS, "ENOSPC", "no more PID namespaces for this user: user.max_pid_namespaces is not known, or one of the other user.max_* is used up"},
		{bare("kernel.unprivileged_userns_clone", "0"), userNS, "EPERM", "user namespaces are for root only: kernel.unprivileged_userns_clone=0; ask the operators to allow it"},
		{bare("kernel.apparmor_restrict_unprivileged_userns", "1"), mountNS, "EACCES", "AppArmor gives rights in a user namespace only to programs with a profile: kernel.apparmor_restrict_unprivileged_userns=1; ask the operators for a profile for fence"},
		{bare("", ""), ipcNS, "EINVAL", "this kernel was built without IPC namespaces"},
		{bare("", ""), userNS, "ENOSYS", "a seccomp filter around this process, or a kernel without them"},
		{bare("", ""), userNS, "EUSERS", "user namespaces are nested too deeply here"},
		{bare("", ""), netNS, "ETIMEDOUT", "no answer within 5s"},
		{selinux, userNS, "EACCES", "a security module (capability, selinux) refuses it; ask the operators to allow it"},
		{docker, userNS, "EPERM", "the container's runtime (docker) forbids it, by a seccomp filter or by its root folder being a chroot"},
		{bare("", ""), userNS, "EPERM", "a seccomp filter around this process, a security module (not known), or a chroot"},
		{bare("", ""), userNS, "EIO", ""},
	}
	for _, tt := range tests {
		if got := tt.host.why(tt.ns, tt.errno); got != tt.want {
			t.Errorf("%s %s: %s\nwant %s", tt.ns.name, tt.errno, got, tt.want)
		}
	}
}

func TestDetect_Here(t *testing.T) {
	start := time.Now()
	h := Detect()
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
	if h.Kernel == "" || h.Arch == "" || h.UID != os.Getuid() || h.UIDMap == "" || len(h.Rights) != len(known) || h.Landlock != DetectLandlock() {
		t.Errorf("got %+v", h)
	}
	if !h.Seccomp.Filter || !slices.Contains(h.Seccomp.Actions, "allow") {
		t.Errorf("seccomp: %+v", h.Seccomp)
	}
	if h.UID != 0 && h.CapEff != 0 || h.CapBnd == 0 && h.UID == 0 {
		t.Errorf("capabilities: %#x %#x", h.CapEff, h.CapBnd)
	}
	if h.UserNS.OK && h.Sysctls["user.max_user_namespaces"] == "" {
		t.Errorf("sysctls: %v", h.Sysctls)
	}
	for _, n := range []Tried{h.UserNS, h.MountNS, h.NetNS, h.IPCNS, h.PIDNS} {
		if n.OK != (n.Errno == "") || n.OK && n.Why != "" {
			t.Errorf("got %+v", n)
		}
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	var back Host
	if err := d.Decode(&back); err != nil || back.String() != h.String() {
		t.Errorf("%v\n%s\n%s", err, back.String(), h.String())
	}
}

// The text for a person, whatever the node: golden.
func TestHost_String(t *testing.T) {
	h := Host{Kernel: "5.14.0-611.el9", Arch: "x86_64", UID: 1000, Landlock: Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3}, Rights: map[string]bool{},
		Seccomp: Seccomp{Filter: true}, UserNS: Tried{OK: true}, NetNS: Tried{Errno: "ENOSPC", Why: "switched off"}, Yama: 1, LSMs: []string{"capability", "landlock"}}
	for _, k := range known {
		h.Rights[k.name] = h.Landlock.Has(k.name)
	}
	want := `kernel          5.14.0-611.el9 x86_64, uid 1000
container       none
landlock        yes, ABI 6, errata 0x0
                without scope_abstract_unix, although ABI 6 has it
                without scope_signal, although ABI 6 has it
                without resolve_unix (ABI 9)
                without bind_udp (ABI 10)
                without connect_udp (ABI 10)
seccomp         yes, supervisor: no
user ns         yes
mount ns        no: 
network ns      no: ENOSPC switched off
IPC ns          no: 
PID ns          no: 
yama            ptrace_scope 1
modules         capability, landlock
capabilities    effective 0x0, bounding 0x0, no_new_privs no
runsc, kvm      none, no
`
	if got := h.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for errno, part := range map[string]string{"ENOSYS": "5.13", "EOPNOTSUPP": "lsm=", "EPERM": "seccomp", "EIO": "EIO", "": "not known"} {
		if got := (Host{Landlock: Landlock{Err: errno}}).String(); !strings.Contains(got, "landlock        no: "+errno) || !strings.Contains(got, part) {
			t.Errorf("%s: %s", errno, got)
		}
	}
}

func BenchmarkDetectLandlock(b *testing.B) {
	for b.Loop() {
		DetectLandlock()
	}
}

func BenchmarkMounts(b *testing.B) {
	for b.Loop() {
		_, _ = Mounts()
	}
}

func BenchmarkContainer(b *testing.B) {
	for b.Loop() {
		_, _ = Container()
	}
}
