package probe

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// task is what a worker is told: the parent's findings so far and the
// operator's options.
type task struct {
	Class     string      `json:"class"`
	Serial    bool        `json:"serial,omitempty"` // one attempt at a time
	Done      []Key       `json:"done,omitempty"`   // attempts that need no repeating
	DoneIDs   []string    `json:"done_ids,omitempty"`
	Shared    []string    `json:"shared,omitempty"`
	TCP       []string    `json:"tcp,omitempty"`
	UDP       []string    `json:"udp,omitempty"`
	Proxy     string      `json:"proxy,omitempty"`
	Allow     []string    `json:"allow,omitempty"`
	Deny      []string    `json:"deny,omitempty"`
	WriteTest bool        `json:"write_test,omitempty"`
	Canary    *Canary     `json:"canary,omitempty"`
	Controls  Controls    `json:"controls"`
	Inherited []inherited `json:"inherited,omitempty"`
	Parent    int         `json:"parent"` // the probe itself
}

// site is the place a worker looks at: its task and what it has read of
// /proc so far, read once.
type site struct {
	task
	facts
	say func(line) // to the parent

	mountsOnce sync.Once
	mountList  []mount
	mountsErr  error

	procsOnce sync.Once
	procList  []process
	procsErr  error

	dirsMu sync.Mutex
	dirs   map[string]*listing

	confOnce sync.Once
	confVal  slurmConf

	linksOnce sync.Once
	lo        bool // no interface but lo is up
}

func newSite(t task, say func(line)) *site {
	return &site{task: t, facts: factsOf(t.Controls), say: say}
}

// mount is one line of mountinfo(5).
type mount struct {
	ID, Parent int
	Dev        string // major:minor
	Root       string // what of the filesystem is mounted
	Point      string
	Options    string
	FS         string
	Source     string
	Super      string
}

// mounts are the mounts of this process. Nothing is touched to find them.
func (s *site) mounts() ([]mount, error) {
	s.mountsOnce.Do(func() {
		data, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			s.mountsErr = err
			return
		}
		s.mountList = parseMounts(string(data))
	})
	return s.mountList, s.mountsErr
}

func parseMounts(text string) []mount {
	var ms []mount
	for _, l := range strings.Split(text, "\n") {
		left, right, ok := strings.Cut(l, " - ")
		a, b := strings.Fields(left), strings.Fields(right)
		if !ok || len(a) < 6 || len(b) < 2 {
			continue
		}
		m := mount{Dev: a[2], Root: unescape(a[3]), Point: unescape(a[4]), Options: a[5], FS: b[0], Source: unescape(b[1])}
		m.ID, _ = strconv.Atoi(a[0])
		m.Parent, _ = strconv.Atoi(a[1])
		if len(b) > 2 {
			m.Super = b[2]
		}
		ms = append(ms, m)
	}
	return ms
}

// unescape undoes the octal escapes of mountinfo(5).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountAt is the mount that a path leads to, found by walking the tree of
// mounts the way the kernel walks the path. It does not follow symbolic
// links, and touches nothing.
func mountAt(ms []mount, p string) (mount, bool) {
	ids := make(map[int]bool, len(ms))
	for _, m := range ms {
		ids[m.ID] = true
	}
	cur, ok := mount{}, false
	for _, m := range ms { // the first mount of "/" that hangs on nothing we see
		if m.Point == "/" && (!ids[m.Parent] || m.Parent == m.ID) {
			cur, ok = m, true
			break
		}
	}
	if !ok {
		return cur, false
	}
	descend := func(at string) {
		for again := true; again; {
			again = false
			for _, m := range ms {
				if m.Parent == cur.ID && m.Point == at && m.ID != cur.ID {
					cur, again = m, true
					break
				}
			}
		}
	}
	descend("/")
	at := ""
	for _, part := range strings.Split(strings.Trim(path.Clean(p), "/"), "/") {
		if part == "" {
			continue
		}
		at += "/" + part
		descend(at)
	}
	return cur, true
}

// networkFS are the types of mount that lead to other machines.
var networkFS = []string{
	"lustre", "gpfs", "mmfs", "beegfs", "nfs", "nfs4", "ceph", "cifs", "smb3", "smbfs", "wekafs", "panfs", "orangefs", "pvfs2",
	"9p", "virtiofs", "afs", "autofs", "cvmfs", "glusterfs", "ocfs2", "gfs2", "daos", "yas3fs", "vastfs",
}

// localFUSE are the FUSE filesystems that container runtimes and desktops
// serve from the node itself.
var localFUSE = []string{"squashfuse", "squashfuse_ll", "fuse-overlayfs", "fuse2fs", "lxcfs", "portal", "gvfsd-fuse", "gocryptfs"}

func isNetworkFS(fs string) bool {
	if kind, ok := strings.CutPrefix(fs, "fuse."); ok {
		return !slices.Contains(localFUSE, kind)
	}
	return slices.Contains(networkFS, fs) || fs == "fuse"
}

// pseudoFS hold no files of anybody's.
var pseudoFS = []string{
	"proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "pstore", "bpf",
	"efivarfs", "configfs", "fusectl", "hugetlbfs", "binfmt_misc", "rpc_pipefs", "nsfs", "selinuxfs",
}

// runtimeOf names the container runtime around this process by the marks it
// leaves in the root, "" for none. Variables are no mark: a fence drops them.
//
// A machine may boot from what was once a container image, marks and all: a
// root that is a whole disk is a machine's.
func runtimeOf(ms []mount) string {
	if m, ok := mountAt(ms, "/"); ok && m.Root == "/" && strings.HasPrefix(m.Source, "/dev/") && !strings.HasPrefix(m.Source, "/dev/loop") && m.FS != "overlay" && !strings.HasPrefix(m.FS, "fuse") {
		return ""
	}
	if m, ok := mountAt(ms, "/"); ok && m.FS == "overlay" && m.Source == "sifbuild" {
		return "sifbuild" // a RUN step of an image build, before there is an image
	}
	for _, m := range []struct{ path, name string }{
		{"/.singularity.d", "apptainer"}, {"/.dockerenv", "docker"}, {"/run/.containerenv", "podman"}, {"/.enroot", "enroot"},
	} {
		var st unix.Stat_t
		if unix.Lstat(m.path, &st) == nil {
			return m.name
		}
	}
	return ""
}

// container is the runtime around this process, "" for none.
func (s *site) container() string {
	ms, _ := s.mounts()
	return runtimeOf(ms)
}

// place says what a path is in words that two reports can be compared by.
func place(st *unix.Stat_t, fs string) string {
	s := fmt.Sprintf("dev %d:%d ino %d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	if fs != "" {
		s += " fs " + fs
	}
	return s
}

// fsAt is the filesystem type under a path, by mountinfo.
func (s *site) fsAt(p string) string {
	ms, _ := s.mounts()
	m, ok := mountAt(ms, p)
	if !ok {
		return ""
	}
	return m.FS
}

// dacAllows says whether the ordinary permissions allow mode on a path.
func dacAllows(p string, mode uint32) bool {
	return unix.Faccessat(unix.AT_FDCWD, p, mode, unix.AT_EACCESS) == nil
}

// pathFinding is the finding of an attempt to open p for mode that ended in e.
func (s *site) pathFinding(p string, mode uint32, call string, e syscall.Errno) Finding {
	dac := e != unix.EACCES || dacAllows(p, mode)
	f := Finding{Errno: errnoName(e), Syscall: call}
	f.Outcome, f.Mechanism = judgePath(s.facts, e, dac)
	if e != 0 {
		f.Evidence = fmt.Sprintf("%s = -1 %s", call, errnoName(e))
	}
	return f
}

// openFlags never wait, never take a terminal and never reach a child.
const openFlags = unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK

// statusField is one field of the text of /proc/PID/status.
func statusField(text, name string) string {
	for _, l := range strings.Split(text, "\n") {
		if v, ok := strings.CutPrefix(l, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// oneLine makes text from outside fit for a line of evidence.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return clip(strings.TrimSpace(s), 300)
}

func dedupe(list []string) []string {
	var out []string
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		if s != "" && !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
