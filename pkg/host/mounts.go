// Package host says what this node is: what its kernel's Landlock enforces, what
// is mounted, whether it is a container. A protection counts as there because
// it was tried, never because a version number promises it; trying changes
// nothing and leaves nothing behind.
package host

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Mount is one line of /proc/self/mountinfo, see proc(5).
type Mount struct {
	ID       int    `json:"id"`
	Parent   int    `json:"parent"`
	Dev      string `json:"dev"`  // "MAJOR:MINOR"
	Root     string `json:"root"` // the folder of the filesystem that is mounted; not "/" for a bind
	Path     string `json:"path"` // where
	Opts     string `json:"opts"` // of this mount
	FSType   string `json:"fstype"`
	Source   string `json:"source"`
	Super    string `json:"super"` // options of the filesystem
	ReadOnly bool   `json:"read_only"`
}

// Mounts lists what is mounted in this process's mount namespace, in the order
// in which it was mounted. Where two have one path, the later is seen.
func Mounts() ([]Mount, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return ParseMounts(strings.NewReader(string(data)))
}

// ParseMounts reads the format of /proc/self/mountinfo. A line that it does
// not understand is an error: a mount that is not seen would not be hidden.
func ParseMounts(r io.Reader) ([]Mount, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading mountinfo: %w", err)
	}
	var ms []Mount
	for line := range strings.Lines(string(data)) {
		m, ok := parseMount(line)
		if !ok {
			return nil, fmt.Errorf("mountinfo line %d is not understood: %q", len(ms)+1, line)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// parseMount reads ID PARENT DEV ROOT PATH OPTS [TAG...] - FSTYPE SOURCE SUPER.
func parseMount(line string) (m Mount, ok bool) {
	f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
	dash := slices.Index(f, "-")
	if dash < 6 || len(f) < dash+3 {
		return Mount{}, false
	}
	var err1, err2 error
	m.ID, err1 = strconv.Atoi(f[0])
	m.Parent, err2 = strconv.Atoi(f[1])
	m.Dev, m.Root, m.Path, m.Opts = f[2], unescape(f[3]), unescape(f[4]), f[5]
	m.FSType, m.Source = unescape(f[dash+1]), unescape(f[dash+2])
	if len(f) > dash+3 { // an empty source shifts nothing, but may end the line
		m.Super = unescape(strings.Join(f[dash+3:], " "))
	}
	m.ReadOnly = slices.Contains(strings.Split(m.Opts+","+m.Super, ","), "ro")
	return m, err1 == nil && err2 == nil && strings.HasPrefix(m.Path, "/") && m.FSType != ""
}

// unescape undoes what the kernel does to blanks and backslashes: \ooo.
func unescape(s string) string {
	before, rest, found := strings.Cut(s, `\`)
	if !found {
		return s
	}
	if n, err := strconv.ParseUint(rest[:min(3, len(rest))], 8, 8); err == nil && len(rest) >= 3 {
		return before + string([]byte{byte(n)}) + unescape(rest[3:])
	}
	return before + `\` + unescape(rest)
}

// networkTypes are filesystems whose files lie on other machines, or are
// shared with them. autofs mounts one of them when it is looked into.
var networkTypes = []string{"9p", "acfs", "afs", "auristorfs", "autofs", "beegfs", "beegfs_nodev", "bwfs", "ceph", "cifs", "coda", "cvfs", "cvmfs", "dvs",
	"gfs", "gfs2", "glusterfs", "gpfs", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2",
	"smb3", "smbfs", "snfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs"}

// localFuse are FUSE filesystems that show what is on this node: the parts of
// a container's root, and the system's own.
var localFuse = []string{"squashfuse", "squashfuse_ll", "fuse-overlayfs", "fuse2fs", "snapfuse", "lxcfs", "portal", "erofsfuse", "gocryptfs"}

// IsNetworkFS reports whether files of this type lie on, or are shared with,
// other machines. A FUSE filesystem counts as one unless it is known to be
// local: sshfs, glusterfs, s3fs, cvmfs2, juicefs and many more are not.
func IsNetworkFS(fstype string) bool {
	t := strings.ToLower(fstype)
	if sub, ok := strings.CutPrefix(t, "fuse."); ok {
		return !slices.Contains(localFuse, sub)
	}
	return t == "fuse" || slices.Contains(networkTypes, t)
}
