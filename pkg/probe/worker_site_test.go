package probe

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A container on a cluster: a Lustre bind, an NFS home with a space in its
// name, an over-mounted folder, a mask over a Lustre mount.
const someMounts = `600 500 0:48 / / ro,relatime - overlay overlay ro,lowerdir=/x
601 600 0:21 / /proc rw - proc proc rw
602 600 0:55 / /dev rw,nosuid - tmpfs fence-dev rw
603 600 899:12 /project/p1 /lustre/p1 rw,nosuid,nodev - lustre 10.0.0.1@o2ib:/lus rw
604 600 0:77 /home/with\040space /home/u\040x rw - nfs4 filer:/home rw,addr=10.0.0.9
605 600 8:2 /data/site /opt/site ro - ext4 /dev/sda2 rw
606 600 0:48 /environment /environment ro - overlay overlay ro
607 600 8:2 /etc/hosts /etc/hosts rw - ext4 /dev/sda2 rw
608 603 0:90 / /lustre/p1 ro,nosuid - tmpfs fence-mask ro,size=4k,nr_inodes=2
609 600 0:62 / /tmp rw - tmpfs fence-tmp rw
610 600 0:63 / /misc rw - autofs auto.misc rw
611 600 0:64 / /cvmfs/soft ro - fuse.cvmfs2 cvmfs2 ro
612 600 0:65 / /img ro - fuse.squashfuse_ll squashfuse_ll ro
`

func TestParseMounts(t *testing.T) {
	ms := parseMounts(someMounts + "rubbish\n1 2 3 - x\n")
	if len(ms) != 13 {
		t.Fatalf("%d mounts", len(ms))
	}
	if m := ms[4]; m.Point != "/home/u x" || m.Root != "/home/with space" || m.FS != "nfs4" || m.Source != "filer:/home" || m.Dev != "0:77" {
		t.Errorf("%+v", m)
	}
	for in, want := range map[string]string{`a\040b`: "a b", `\134`: `\`, `\04`: `\04`, `\999`: `\999`, "plain": "plain"} {
		if got := unescape(in); got != want {
			t.Errorf("unescape(%q) = %q", in, got)
		}
	}
}

func TestMountAt(t *testing.T) {
	ms := parseMounts(someMounts)
	for p, want := range map[string]int{
		"/": 600, "/usr/bin": 600, "/proc/self": 601, "/lustre": 600, "/lustre/p1": 608, "/lustre/p1/x": 608, "/lustre/p12": 600,
		"/home/u x/file": 604, "/tmp/../tmp/y": 609, "relative": 600,
	} {
		if m, ok := mountAt(ms, p); !ok || m.ID != want {
			t.Errorf("%s: %d, want %d", p, m.ID, want)
		}
	}
	if _, ok := mountAt(nil, "/"); ok {
		t.Error("a mount in an empty list")
	}
	// A root mounted over, and a loop that a damaged list may hold.
	ms = parseMounts("1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / / rw - ext4 b rw\n3 3 8:3 / /x rw - ext4 c rw\n")
	if m, _ := mountAt(ms, "/x"); m.ID != 2 {
		t.Errorf("%+v", m)
	}
}

func TestSharedPaths(t *testing.T) {
	env := map[string]string{"HOME": "/home/u x/", "SCRATCH": "/scratch/u", "WORK": "relative", "PROJECT": "/", "SLURM_SUBMIT_DIR": "/tmp/u/job"}
	getenv := func(k string) string { return env[k] }
	ms := parseMounts(someMounts)
	got := strings.Join(sharedPaths([]string{"/named"}, getenv, ms, "apptainer"), "|")
	if want := "/named|/lustre/p1|/home/u x|/opt/site|/scratch/u"; got != want {
		t.Errorf("in a container: %s\nwant %s", got, want)
	}
	got = strings.Join(sharedPaths(nil, getenv, ms, ""), "|")
	if want := "/lustre/p1|/home/u x|/scratch/u"; got != want {
		t.Errorf("on a node: %s\nwant %s", got, want)
	}
}

func TestIsNetworkFS(t *testing.T) {
	for fs, want := range map[string]bool{
		"lustre": true, "gpfs": true, "nfs4": true, "fuse.sshfs": true, "fuse.bindfs": true, "fuse": true, "autofs": true, "9p": true,
		"ext4": false, "overlay": false, "tmpfs": false, "fuse.squashfuse_ll": false, "fuse.fuse-overlayfs": false,
	} {
		if isNetworkFS(fs) != want {
			t.Errorf("%s: %v", fs, !want)
		}
	}
}

func TestRuntimeOf_AMachineIsNoContainer(t *testing.T) {
	if got := runtimeOf(parseMounts("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")); got != "" {
		t.Errorf("a root on a disk: %q", got)
	}
}

func TestParseDirents(t *testing.T) {
	rec := func(name string, kind byte) []byte {
		n := (19 + len(name) + 1 + 7) &^ 7
		b := make([]byte, n)
		hostOrder.PutUint16(b[16:], uint16(n))
		b[18] = kind
		copy(b[19:], name)
		return b
	}
	data := append(append(append(rec(".", unix.DT_DIR), rec("..", unix.DT_DIR)...), rec("a", unix.DT_REG)...), rec("sock", unix.DT_SOCK)...)
	got := parseDirents(append(data, 1, 2, 3))
	if len(got) != 2 || got[0] != (entry{"a", unix.DT_REG}) || got[1] != (entry{"sock", unix.DT_SOCK}) {
		t.Errorf("%+v", got)
	}
	bad := rec("x", unix.DT_REG)
	hostOrder.PutUint16(bad[16:], 4000)
	if got := parseDirents(bad); len(got) != 0 {
		t.Errorf("a record longer than the buffer: %+v", got)
	}
}

func TestOutsiders(t *testing.T) {
	const me = 1000
	ps := []process{
		{pid: 1, uid: 0}, {pid: 2, uid: 0}, {pid: 9, ppid: 2, uid: me}, // the kernel's, whatever it says
		{pid: 50, ppid: 1, uid: me, name: "harness"},
		{pid: 60, ppid: 50, uid: me, filters: 1, name: "earlier command"},
		{pid: 70, ppid: 50, uid: me, filters: 1, name: "probe"}, {pid: 71, ppid: 70, uid: me, filters: 1, name: "worker"}, {pid: 72, ppid: 71, uid: me, filters: 1},
		{pid: 80, ppid: 1, uid: 2000},
	}
	outside, beside := outsiders(ps, 71, 70, me, 1)
	if len(outside) != 1 || outside[0].pid != 50 || len(beside) != 1 || beside[0].pid != 60 {
		t.Errorf("behind a filter: %+v, %+v", outside, beside)
	}
	outside, beside = outsiders(ps, 71, 70, me, 0)
	if len(outside) != 2 || len(beside) != 0 {
		t.Errorf("without: %+v, %+v", outside, beside)
	}
}

func TestParseStatus(t *testing.T) {
	p := parseStatus(7, "Name:\tbash\nPPid:\t3\nUid:\t1000\t1001\t1000\t1000\nSeccomp:\t2\nSeccomp_filters:\t3\n")
	if p != (process{pid: 7, ppid: 3, uid: 1001, filters: 3, name: "bash"}) {
		t.Errorf("%+v", p)
	}
	if p := parseStatus(7, ""); p.uid != -1 {
		t.Errorf("an unreadable one is nobody's: %+v", p)
	}
}

func TestAbstractNames(t *testing.T) {
	const text = `Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000002 00000000 00010000 0001 01 1 @/tmp/.X11-unix/X0
0000: 00000003 00000000 00000000 0001 03 2 @/tmp/.X11-unix/X0
0000: 00000002 00000000 00000000 0002 01 3 @dgram
0000: 00000003 00000000 00000000 0001 03 4 @client
0000: 00000002 00000000 00010000 0005 01 5 /run/path
0000: 00000003 00000000 00000000 0001 03 6
`
	if got := strings.Join(abstractNames(text), " "); got != "@/tmp/.X11-unix/X0 @dgram" {
		t.Errorf("%q", got)
	}
}

func TestCgroupDirs(t *testing.T) {
	ms := parseMounts("1 0 0:1 / / rw - overlay o rw\n2 1 0:2 /slurm /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n3 1 0:3 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
	got := strings.Join(cgroupDirs("0::/slurm/job1\n4:memory:/m\n5:pids:/p\nx\n", ms), " ")
	if got != "/sys/fs/cgroup/job1 /sys/fs/cgroup/memory/m" {
		t.Errorf("%q", got)
	}
}

func TestIsCredential(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        bool
	}{
		{"HF_TOKEN", "x", true}, {"AWS_SECRET_ACCESS_KEY", "x", true}, {"WANDB_API_KEY", "x", true}, {"MY_APIKEY", "x", true}, {"DB_PASSWORD", "x", true},
		{"APPTAINERENV_GITHUB_TOKEN", "x", true}, {"SSH_AUTH_SOCK", "/x", true}, {"SLURM_SACK_KEY", "x", true}, {"SLURM_JWT", "x", true},
		{"HTTPS_PROXY", "http://user:pw@proxy:3128", true}, {"HTTPS_PROXY", "http://proxy:3128", false}, {"DATABASE", "postgres://u:p@db/x", true},
		{"PATH", "/bin", false}, {"HOME", "/root", false}, {"HF_TOKEN", "", false}, {"KEYBOARD", "x", false}, {"HF_HOME", "/x", false},
	} {
		if got := isCredential(c.name, c.value); got != c.want {
			t.Errorf("%s=%s: %v", c.name, c.value, got)
		}
	}
}

func TestParseSlurmConf(t *testing.T) {
	c := parseSlurmConf("# SlurmctldHost=no\nClusterName=x\nSlurmctldHost=ctl1(10.0.0.1)\nSlurmctldHost=ctl2 # second\nSlurmctldPort=6820-6830\nAccountingStorageHost=dbd\nAccountingStoragePort=7000\nSlurmdSpoolDir=/var/spool/slurm/%n\nAuthInfo=socket=/run/munge/other,ttl=9\nNodeName=n1 CPUs=4\nSlurmctldHost=bad name\n")
	if strings.Join(c.controllers, " ") != "10.0.0.1 ctl2" || c.ctldPort != "6820" || c.storage != "dbd" || c.storagePort != "7000" || c.spool != "/var/spool/slurmd" || c.munge != "/run/munge/other" {
		t.Errorf("%+v", c)
	}
	env := map[string]string{"SLURM_SUBMIT_HOST": "login1", "SLURM_JOB_NODELIST": "n[01-03,7],gpu2,me"}
	ms := parseMounts("1 0 0:1 / / rw - nfs4 filer:/root rw\n2 1 0:2 / /x rw - nfs [fd00::1]:/x rw\n3 1 0:3 / /l rw - lustre 10.0.0.5@tcp:/l rw\n")
	got := strings.Join(clusterList(c, func(k string) string { return env[k] }, ms, "me"), " ")
	if want := "login1:22 n01:22 n7:22 gpu2:22 10.0.0.1:22 ctl2:22 dbd:7000 me:6818 filer:2049 [fd00::1]:2049"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestExpandHosts(t *testing.T) {
	for in, want := range map[string]string{"": "", "a": "a", "a,b": "a b", "n[1-2]": "n1", "n[01,03-05]x,b": "n01x n03x b", "[": "", "a[1": "a1"} {
		if got := strings.Join(expandHosts(in), " "); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestParseResolv(t *testing.T) {
	got := strings.Join(parseResolv("search x\nnameserver 10.0.0.1\nnameserver fd00::1\nnameserver name\nnameserver 10.0.0.1\n"), " ")
	if got != "10.0.0.1:53 [fd00::1]:53" {
		t.Errorf("%q", got)
	}
}

func TestProxyFinding(t *testing.T) {
	for status, want := range map[string]Outcome{
		"HTTP/1.1 200 OK\r\n": Reachable, "HTTP/1.0 204 x\n": Reachable, "HTTP/1.1 403 Forbidden\r\n": Denied, "HTTP/1.1 502 x\r\n": Unreachable,
		"HTTP/1.1 407 x\r\n": Error, "SSH-2.0\r\n": Error, "": Error, "HTTP/1.1\n": Error, "HTTP/2 403 x\n": Error,
	} {
		if f := proxyFinding(status); f.Outcome != want {
			t.Errorf("%q: %s", status, f.Outcome)
		}
	}
}

func TestTTYFinding(t *testing.T) {
	for _, c := range []judged{
		{bare, unix.EFAULT, Reachable, ""}, {bare, unix.EIO, Denied, "sysctl"}, {filtered, unix.EPERM, Denied, "seccomp_errno"},
		{bare, unix.ENOTTY, Absent, ""}, {locked, unix.EACCES, Denied, "landlock_scope"},
	} {
		if f := ttyFinding(c.f, c.e); f.Outcome != c.want || f.Mechanism != c.mech {
			t.Errorf("%s: %s %s", errnoName(c.e), f.Outcome, f.Mechanism)
		}
	}
}

func TestLoOnly(t *testing.T) {
	lo, eth, down := link{"lo", true, true}, link{"eth0", true, false}, link{"sit0", false, false}
	for _, c := range []struct {
		ls   []link
		want bool
	}{{[]link{lo}, true}, {[]link{lo, down}, true}, {[]link{lo, eth}, false}, {nil, false}} {
		if loOnly(c.ls) != c.want {
			t.Errorf("%v: %v", c.ls, !c.want)
		}
	}
}

func TestCoveringMask_TakesNoOrdinaryFolder(t *testing.T) {
	ms, err := newSite(task{}, nil).mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{t.TempDir(), "/", "/proc", "/dev/shm"} {
		var stx unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_BASIC_STATS, &stx); err != nil {
			continue
		}
		if why, ok := coveringMask(p, stx, ms); ok {
			t.Errorf("%s: %s", p, why)
		}
	}
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/dev/null", 0, unix.STATX_BASIC_STATS, &stx); err != nil {
		t.Skip(err)
	}
	if _, ok := coveringMask("/dev/null", stx, ms); !ok {
		t.Error("the null device masks a file")
	}
}
