package host

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

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
	folder, nosuid := disk, overlay
	folder.Root, nosuid.Opts = "/images/x", "ro,nosuid,nodev"
	const allVars = "APPTAINER_CONTAINER SINGULARITY_CONTAINER APPTAINER_NAME SINGULARITY_NAME CH_RUNNING KUBERNETES_SERVICE_HOST container"
	layers := func(s string) Mount { m := overlay; m.Super = "rw,lowerdir=" + s; return m }
	tests := []struct {
		name, vars, files string
		root              Mount
		declared, want    string
	}{
		{"bare", "HOME", "/etc", disk, "", ""},
		{"live system", "", "", overlay, "", ""},
		{"node that boots from a folder named docker", "", "", parseFile(t, "nfsroot.txt")[0], "", ""},
		{"virtual machine made from an image", "", "/.dockerenv /.singularity.d /ch/metadata.json", disk, "", ""},
		{"job sent from a container, node with a disk", allVars, "", disk, "", ""},
		{"job sent from a container, node without", allVars, "", overlay, "", ""},
		{"apptainer by variable", "APPTAINER_CONTAINER", "", nosuid, "", "apptainer"},
		{"apptainer by older variable", "SINGULARITY_NAME", "", nosuid, "", "apptainer"},
		{"apptainer, variables unset", "", "/.singularity.d", folder, "", "apptainer"},
		{"apptainer, only the mount left", "", "", parseFile(t, "apptainer.txt")[0], "", "apptainer"},
		{"apptainer by FUSE", "", "", Mount{Root: "/", Path: "/", FSType: "fuse.squashfuse_ll"}, "", "apptainer"},
		{"apptainer in docker", "", "/.dockerenv /.singularity.d", layers("/var/lib/docker/x"), "", "apptainer"},
		{"docker", "", "/.dockerenv", overlay, "", "docker"},
		{"docker, file removed", "", "", layers("/var/lib/docker/overlay2/l/X"), "", "docker"},
		{"docker on a device", "", "/.dockerenv", Mount{Root: "/", Path: "/", FSType: "xfs", Source: "/dev/mapper/docker-8:1-x"}, "", "docker"},
		{"podman", "", "/run/.containerenv", overlay, "", "podman"},
		{"podman, file removed", "", "", layers("/home/a/.local/share/containers/storage/overlay/l/X"), "", "podman"},
		{"charliecloud", "CH_RUNNING", "/ch", folder, "", "charliecloud"},
		{"kubernetes", "", "/run/secrets/kubernetes.io", overlay, "", "kubernetes"},
		{"nspawn", "", "", overlay, "systemd-nspawn", "systemd-nspawn"},
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
		read := func(p string) string {
			if m := tt.root; p == "/proc/self/mountinfo" && m.Path != "" {
				return strings.Join([]string{"20 1 8:1", m.Root, "/", cmp.Or(m.Opts, "rw"), "-", m.FSType, m.Source, m.Super}, " ") + "\n21 20 0:5 / /proc rw - proc proc rw\n"
			} else if p == "/run/systemd/container" {
				return tt.declared + "\n"
			}
			return ""
		}
		if got := container(getenv, has(tt.files), read); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// kernel is a Landlock for tests: it claims an ABI and refuses some rights.
func kernel(abi int, refuse Rights, askErr error) (func(Rights) error, func(uintptr) (int, error)) {
	create := func(r Rights) error {
		var all Rights
		for a, brought := range Brought {
			for kind := range all {
				if a <= abi {
					all[kind] |= brought[kind]
				}
			}
		}
		for kind := range r {
			if r[kind]&(refuse[kind]|^all[kind]) != 0 {
				return unix.EINVAL
			}
		}
		if r == (Rights{}) {
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
	all := Rights{^uint64(0), ^uint64(0), ^uint64(0)}
	tests := []struct {
		name   string
		abi    int
		refuse Rights
		err    error
		want   Landlock
	}{
		{"not built", 0, Rights{}, unix.ENOSYS, Landlock{Err: "ENOSYS"}},
		{"not in lsm=", 0, Rights{}, unix.EOPNOTSUPP, Landlock{Err: "EOPNOTSUPP"}},
		{"filtered", 0, Rights{}, unix.EPERM, Landlock{Err: "EPERM"}},
		{"nonsense", 0, Rights{}, nil, Landlock{}},
		{"5.15", 1, Rights{}, nil, Landlock{ABI: 1, FS: 1<<13 - 1}},
		{"6.1", 2, Rights{}, nil, Landlock{ABI: 2, FS: 1<<14 - 1}},
		{"6.2", 3, Rights{}, nil, Landlock{ABI: 3, FS: 1<<15 - 1}},
		{"6.8", 4, Rights{}, nil, Landlock{ABI: 4, FS: 1<<15 - 1, Net: 3}},
		{"6.10", 5, Rights{}, nil, Landlock{ABI: 5, FS: 1<<16 - 1, Net: 3}},
		{"6.12", 6, Rights{}, nil, Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3, Scoped: 3}},
		{"6.18", 7, Rights{}, nil, Landlock{ABI: 7, Errata: 7, FS: 1<<16 - 1, Net: 3, Scoped: 3}},
		{"7.0", 8, Rights{}, nil, Landlock{ABI: 8, Errata: 7, FS: 1<<16 - 1, Net: 3, Scoped: 3}},
		{"7.1", 9, Rights{}, nil, Landlock{ABI: 9, Errata: 7, FS: 1<<17 - 1, Net: 3, Scoped: 3}},
		{"7.2", 10, Rights{}, nil, Landlock{ABI: 10, Errata: 7, FS: 1<<17 - 1, Net: 15, Scoped: 3}},
		{"7.3", 11, Rights{}, nil, Landlock{ABI: 11, Errata: 7, FS: 1<<17 - 1, Net: 15, Scoped: 3}},
		{"later", 40, Rights{}, nil, Landlock{ABI: 40, Errata: 7, FS: 1<<17 - 1, Net: 15, Scoped: 3}},
		{"RHEL 9.7", 6, Rights{2: 3}, nil, Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3}},
		{"Rocky 9.7", 6, Rights{0: unix.LANDLOCK_ACCESS_FS_IOCTL_DEV, 2: 3}, nil, Landlock{ABI: 6, FS: 1<<15 - 1, Net: 3}},
		{"one scope", 6, Rights{2: 2}, nil, Landlock{ABI: 6, FS: 1<<16 - 1, Net: 3, Scoped: 1}},
		{"refuses all", 6, all, nil, Landlock{ABI: 6, Err: "EINVAL"}},
	}
	for _, tt := range tests {
		if got := detectLandlock(kernel(tt.abi, tt.refuse, tt.err)); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
	// What is taken alone but not together is not believed.
	create, ask := kernel(6, Rights{}, nil)
	alone := func(r Rights) error {
		if r[0] != 0 && r[1] != 0 {
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
		if os.Getenv("TEST_REQUIRED") == "1" {
			t.Fatal("no Landlock here: " + l.Err)
		}
		t.Skip("no Landlock here: " + l.Err)
	}
	if l.FS&1 == 0 {
		t.Fatalf("got %+v", l)
	}
	have := Rights{l.FS, l.Net, l.Scoped}
	for abi, brought := range Brought {
		for kind, bits := range brought {
			for bit := uint64(1); bit <= bits; bit <<= 1 {
				var one Rights
				if one[kind] = bits & bit; one[kind] == 0 {
					continue
				}
				if err := createRuleset(one); (err == nil) != (have[kind]&bit != 0) {
					t.Errorf("ABI %d, right %#x of kind %d: %v, but have %#x", abi, bit, kind, err, have[kind])
				}
			}
		}
	}
	if l != DetectLandlock() {
		t.Error("a second look differs")
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
