package policy

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Protected are the places from which code runs before the fence does the
// next time a container starts. They are read-only under every policy, and no
// opening changes that.
var Protected = [...]string{"/.fence", "/.singularity.d", "/environment", "/singularity", "/.run", "/.exec", "/.shell"}

// Weakness is something that a person can accept by name.
type Weakness struct{ Name, Meaning string }

// Weaknesses lists what an Accept may name.
func Weaknesses() []Weakness {
	return []Weakness{
		{"landlock-hide", "hidden paths cannot be opened, listed, read or written, but stat still shows that they exist"},
		{"host-tmp", "the host's /tmp, /var/tmp and /dev/shm are visible and writable, with the files and sockets of others in them"},
		{"sockets", "sockets in hidden folders can be connected to, and their daemons take orders"},
	}
}

// Sets per list: what may be read or written, and what may be hidden.
var (
	openSets = []string{SetRoot, SetTmp, SetHome, SetShared}
	hideSets = []string{SetTmp, SetShared, SetHome, SetSockets}
)

// limitNames are the resources of setrlimit(2).
var limitNames = []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue",
	"nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"}

// capabilityNames is capabilities(7) up to Linux 7.
var capabilityNames = []string{"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND",
	"CAP_BPF", "CAP_CHECKPOINT_RESTORE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER",
	"CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN",
	"CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW",
	"CAP_PERFMON", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_PTRACE",
	"CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM"}

// badText says why s cannot stand in a path or a reason, or "". Control
// characters would break the one-line formats and can drive a terminal.
func badText(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		return "a NUL byte"
	}
	if !utf8.ValidString(s) {
		return "bytes that are not UTF-8"
	}
	for _, r := range s {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return "a control character"
		}
	}
	return ""
}

// checkPath refuses whatever could be read in two ways.
func checkPath(p string) *fault {
	switch bad := badText(p); {
	case p == "":
		return faultf("", "an empty path")
	case bad != "":
		return faultf("", "path %q has %s", p, bad)
	case strings.HasPrefix(p, "~"):
		return faultf("write the path out, ~ is not expanded", "%q is not an absolute path", p)
	case p[0] != '/':
		return faultf("a path begins with /", "%q is not an absolute path", p)
	case path.Clean(p) != p:
		return faultf("write "+path.Clean(p), "%q is not a clean path", p)
	case len(p) > 4095:
		return faultf("", "a path of %d bytes is longer than any can be", len(p))
	}
	return nil
}

// checkLiteral is checkPath for a path that must not be a pattern.
func checkLiteral(p string) *fault {
	if f := checkPath(p); f != nil {
		return f
	}
	if strings.ContainsAny(p, `*?[\`) {
		return faultf("name the folder above instead", "%q: a pattern is only for access = \"device\" below /dev", p)
	}
	return nil
}

// checkEntry checks one entry of filesystem.read, write or hide.
func checkEntry(list, entry string) *fault {
	sets := openSets
	if list == "hide" {
		sets = hideSets
	}
	switch {
	case entry == SetImage:
		return faultf("", "%s is a set of variables, not of paths", entry)
	case strings.HasPrefix(entry, "@") && !slices.Contains(sets, entry):
		if slices.Contains(openSets, entry) || slices.Contains(hideSets, entry) {
			return faultf("", "%s does not belong in %s %s", entry, list, oneOf(sets))
		}
		return faultf(didYouMean(entry, sets), "set %q is not known %s", entry, oneOf(sets))
	case strings.HasPrefix(entry, "@"):
		return nil
	case list == "hide" && entry == "/":
		return faultf("", "hiding / leaves nothing to run")
	case list == "write":
		if f := checkLiteral(entry); f != nil {
			return f
		}
		return checkWritable(entry)
	}
	return checkLiteral(entry)
}

func checkWritable(p string) *fault {
	for _, q := range Protected {
		if beneath(p, q) {
			return faultf("", "%s is never writable: what lies there runs before the fence the next time", p)
		}
	}
	return nil
}

// checkOpen checks everything of an opening but its reason.
func checkOpen(o Open, opt Options) *fault {
	switch {
	case o.Path != "" && o.Syscall != "":
		return faultf("write two", "one opening has both path and syscall")
	case o.Syscall != "":
		if o.Access != AccessNone {
			return faultf("", "access belongs to a path, not to a syscall")
		}
		if opt.Syscall == nil || !opt.Syscall(o.Syscall) {
			return faultf("", "system call %q is not known", o.Syscall)
		}
		return nil
	case o.Access == AccessNone:
		return faultf(`add access = "read", "write" or "device"`, "the opening of %q does not say which access", o.Path)
	case o.Access == AccessDevice:
		return checkDevice(o.Path)
	case o.Access == AccessWrite:
		if f := checkLiteral(o.Path); f != nil {
			return f
		}
		return checkWritable(o.Path)
	}
	return checkLiteral(o.Path)
}

// checkDevice allows a file or a pattern below /dev. A pattern over all of
// /dev would open disks and other people's terminals with the GPUs.
func checkDevice(p string) *fault {
	if f := checkPath(p); f != nil {
		return f
	}
	rest, ok := strings.CutPrefix(p, "/dev/")
	if !ok {
		return faultf("", "%q: access \"device\" is for files below /dev", p)
	}
	dir, last := path.Split(p)
	if _, err := path.Match(last, ""); err != nil || strings.ContainsAny(dir, `*?[\`) || strings.Contains(last, `\`) {
		return faultf("a pattern may have *, ? and [a-z], in the last part only", "%q is not a valid pattern", p)
	}
	if strings.ContainsAny(rest[:1], `*?[\`) {
		return faultf("begin with the name, as in /dev/nvidia*", "%q would open nearly every device", p)
	}
	return nil
}

func checkWhy(why string) *fault {
	if strings.TrimSpace(why) == "" {
		return faultf(`add why = "..."`, "no reason is given")
	}
	if bad := badText(why); bad != "" {
		return faultf("write the reason as one line", "the reason has %s", bad)
	}
	return nil
}

func checkAccept(name string) *fault {
	var known []string
	for _, w := range Weaknesses() {
		known = append(known, w.Name)
	}
	if !slices.Contains(known, name) {
		return faultf(didYouMean(name, known), "%q is not something that can be accepted %s", name, oneOf(known))
	}
	return nil
}

// checkKeep checks one entry of environment.keep.
func checkKeep(k string) *fault {
	if k == SetImage {
		return nil
	}
	if strings.HasPrefix(k, "@") {
		return faultf(didYouMean(k, []string{SetImage}), "set %q is not known here (%s)", k, SetImage)
	}
	name, pattern := strings.CutSuffix(k, "*")
	switch {
	case pattern && name == "":
		return faultf("name them, or a prefix such as LC_*", "* would keep every variable")
	case !variableName(name):
		return faultf("letters, digits and _, with one * at the end at most", "%q is not the name of a variable", k)
	case pattern && LooksSecret(name+"X", ""), LooksSecret(strings.TrimSuffix(name, "_"), ""):
		return faultf("let what needs it run outside the fence", "%s looks like a credential", k)
	}
	return nil
}

func checkVariable(name, value string) *fault {
	switch {
	case !variableName(name):
		return faultf("letters, digits and _", "%q is not the name of a variable", name)
	case strings.IndexByte(value, 0) >= 0 || !utf8.ValidString(value):
		return faultf("", "the value of %s is not text", name)
	case LooksSecret(name, value):
		return faultf("let what needs it run outside the fence", "%s looks like a credential", name)
	}
	return nil
}

func variableName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// checkLimit reads the value of one limit: a whole number or "unlimited".
func checkLimit(name, value string) (Limit, *fault) {
	if !slices.Contains(limitNames, name) {
		return Limit{}, faultf(didYouMean(name, limitNames), "limit %q is not known %s", name, oneOf(limitNames))
	}
	if value == "unlimited" {
		return Limit{name, Unlimited}, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return Limit{}, faultf("", "limit %s is %q, not a whole number or \"unlimited\"", name, value)
	}
	return Limit{name, uint64(n)}, nil
}

// beneath reports whether p is dir or lies in it.
func beneath(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && len(p) > len(dir) && p[len(dir)] == '/'
}

// clash is an opened path that a literal hide also covers.
type clash struct {
	list, opened string // list: "read", "write", or "open"
	from         string // where the opening stands, for "open"
	hidden       string
}

// clash finds the first opened path or set that is hidden as well.
func (p Policy) clash() (clash, bool) {
	for _, h := range p.Filesystem.Hide {
		for _, l := range []struct {
			name    string
			entries []string
		}{{"read", p.Filesystem.Read}, {"write", p.Filesystem.Write}} {
			for _, e := range l.entries {
				if e == h || h[0] == '/' && beneath(e, h) {
					return clash{l.name, e, "", h}, true
				}
			}
		}
		for _, o := range p.Open {
			if o.Syscall == "" && h[0] == '/' && (beneath(o.Path, h) || matches(o, h)) {
				return clash{"open", o.Path, o.From, h}, true
			}
		}
	}
	return clash{}, false
}

func matches(o Open, p string) bool {
	ok, _ := path.Match(o.Path, p)
	return o.Access == AccessDevice && ok
}

func (c clash) msg(hiddenAt string) string {
	where := "is"
	if c.opened != c.hidden {
		where = "is covered by " + c.hidden + ","
	}
	return c.opened + " is opened here, and " + where + " hidden at " + hiddenAt
}
