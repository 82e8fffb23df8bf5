package policy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"fence/pkg/internal/suggest"
	"fence/pkg/internal/tomldoc"
)

// Protected are the places from which code runs before the fence does the
// next time a container starts. They are read-only under every policy, and no
// opening changes that.
var Protected = [...]string{"/.fence", "/.singularity.d", "/environment", "/apptainer", "/singularity", "/.run", "/.exec", "/.shell", "/.test"}

// What an Accept may name (docs/policy.md says what each means), the sets that
// may be opened and hidden, and the resources of setrlimit(2).
var (
	Weaknesses   = []string{"landlock-hide", "host-tmp", "sockets"}
	openSets     = []string{SetRoot, SetTmp, SetHome, SetShared}
	hideSets     = []string{SetTmp, SetShared, SetHome, SetSockets}
	networkModes = []string{"none", string(NetworkLoopback), string(NetworkProxy), string(NetworkHost)}
	accesses     = []Access{AccessRead, AccessWrite, AccessDevice}
	limitNames   = []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue",
		"nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"}
)

// capabilityNames is capabilities(7) up to Linux 7.
const capabilityNames = `CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND CAP_BPF CAP_CHECKPOINT_RESTORE CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER
	CAP_FSETID CAP_IPC_LOCK CAP_IPC_OWNER CAP_KILL CAP_LEASE CAP_LINUX_IMMUTABLE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_MKNOD CAP_NET_ADMIN CAP_NET_BIND_SERVICE
	CAP_NET_BROADCAST CAP_NET_RAW CAP_PERFMON CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYSLOG CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_CHROOT CAP_SYS_MODULE
	CAP_SYS_NICE CAP_SYS_PACCT CAP_SYS_PTRACE CAP_SYS_RAWIO CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM`

// check tells fail of everything in p that cannot be meant, with its key. All
// that a policy says is checked here, wherever it was written.
func (p Policy) check(opt Options, fail func(key string, bad *Error)) {
	each := func(key string, entries []string, check func(string) *Error) {
		for i, e := range entries {
			fail(key+"["+strconv.Itoa(i)+"]", check(e))
		}
	}
	why := func(key, why string, needed bool) {
		if needed || why != "" {
			fail(key+".why", checkWhy(why))
		}
	}
	fs, env := p.Filesystem, p.Environment
	opens := func(access Access) func(string) *Error {
		return func(e string) *Error {
			return cmp.Or(checkPath(e, access, openSets), refuse(fs.Why == "" && e != SetRoot && e != SetTmp,
				`write it as [[open]] with a why, or add why = "..." to [filesystem]`, "%s is opened without a reason", e))
		}
	}
	each("filesystem.read", fs.Read, opens(AccessRead))
	each("filesystem.write", fs.Write, opens(AccessWrite))
	each("filesystem.hide", fs.Hide, func(e string) *Error {
		return cmp.Or(checkPath(e, AccessNone, hideSets), refuse(e == "/", "", "hiding / leaves nothing to run"))
	})
	each("environment.keep", env.Keep, checkKeep)
	for _, v := range env.Set {
		fail("environment.set."+v.Name, checkVariable(v.Name, v.Value))
	}
	each("capabilities.keep", p.Capabilities, func(c string) *Error {
		return known(strings.Fields(capabilityNames), c, "capability %q is not known, see capabilities(7)")
	})
	why("filesystem", fs.Why, false)
	net := p.Network
	fail("network.socket", refuse(net.Socket != "" && (net.Mode != NetworkProxy || path.Clean(net.Socket) != net.Socket || !path.IsAbs(net.Socket)),
		"the socket of mode proxy is an absolute path", "%q cannot be the proxy's socket", net.Socket))
	why("network", net.Why, net.Mode == NetworkHost || net.Mode == NetworkProxy)
	why("environment", env.Why, false)
	why("capabilities", p.CapabilitiesWhy, len(p.Capabilities) > 0)
	for i, o := range p.Open {
		at := "open[" + strconv.Itoa(i) + "]"
		key := at + ".path"
		if o.Syscall != "" {
			key = at + ".syscall"
		}
		fail(key, checkOpen(o, opt))
		if o.Access != AccessNone {
			fail(at+".access", refuse(!slices.Contains(accesses, o.Access), "read is read and run, write is that and change, device is for files below /dev",
				"access %q is not known (read, write, device)", o.Access))
		}
		why(at, o.Why, true)
	}
	for i, a := range p.Accept {
		at := "accept[" + strconv.Itoa(i) + "]"
		fail(at+".name", known(Weaknesses, a.Name, "%q is not something that can be accepted"))
		why(at, a.Why, true)
	}
}

// refuse is an Error if bad, else nil. Checks are lists of them; the first
// that is not nil counts.
func refuse(bad bool, hint, format string, a ...any) *Error {
	if !bad {
		return nil
	}
	return tomldoc.Errorf(hint, format, a...)
}

// known refuses a word that is not in words.
func known(words []string, word, format string) *Error {
	if slices.Contains(words, word) {
		return nil
	}
	if len(words) > 0 && len(words) < 20 {
		format += " (" + strings.Join(words, ", ") + ")"
	}
	return tomldoc.Errorf(suggest.Hint(word, words), format, word)
}

func checkSet(set string, here []string) *Error {
	if set == SetImage || slices.Contains(openSets, set) || slices.Contains(hideSets, set) {
		return known(here, set, "set %q does not belong here")
	}
	return known(here, set, "set %q is not known")
}

// plain refuses control characters, which would break the one-line formats
// and can drive a terminal.
func plain(what, s, hint string) *Error {
	return cmp.Or(
		refuse(strings.IndexByte(s, 0) >= 0, hint, "%s has a NUL byte", what),
		refuse(!utf8.ValidString(s), hint, "%s has bytes that are not UTF-8", what),
		refuse(strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }), hint, "%s has a control character", what))
}

func checkWhy(why string) *Error {
	return cmp.Or(
		refuse(strings.TrimSpace(why) == "", `add why = "..."`, "no reason is given"),
		plain("the reason", why, "write the reason as one line"))
}

// checkOpen checks everything of an opening but its reason.
func checkOpen(o Open, opt Options) *Error {
	isPath, isCall := o.Path != "", o.Syscall != ""
	bad := cmp.Or(
		refuse(isPath && isCall, "write two", "one opening has both path and syscall"),
		refuse(!isPath && !isCall, "", "an opening needs a path or a syscall"),
		refuse(isCall && o.Access != AccessNone, "", "access belongs to a path, not to a syscall"),
		refuse(isCall && (opt.Syscall == nil || !opt.Syscall(o.Syscall)), "", "system call %q is not known", o.Syscall),
		refuse(isPath && o.Access == AccessNone, `add access = "read", "write" or "device"`, "the opening of %q does not say which access", o.Path))
	if isPath {
		bad = cmp.Or(bad, checkPath(o.Path, o.Access, nil))
	}
	return bad
}

// checkPath refuses whatever could be read in two ways, writing where the
// fence starts from, and patterns. Only devices may be patterns; one over all
// of /dev would open disks and other people's terminals with the GPUs.
func checkPath(p string, access Access, sets []string) *Error {
	if strings.HasPrefix(p, "@") {
		return checkSet(p, sets)
	}
	const wildcards = `*?[\`
	device, dir, last := access == AccessDevice, path.Dir(p), path.Base(p)
	_, noPattern := path.Match(last, "")
	return cmp.Or(
		plain("path "+strconv.Quote(p), p, ""),
		refuse(strings.HasPrefix(p, "~"), "write the path out, ~ is not expanded", "%q is not an absolute path", p),
		refuse(!strings.HasPrefix(p, "/"), "a path begins with /", "%q is not an absolute path", p),
		refuse(path.Clean(p) != p, "write "+path.Clean(p), "%q is not a clean path", p),
		refuse(len(p) > 4095, "", "a path is longer than any can be"),
		refuse(access == AccessWrite && slices.ContainsFunc(Protected[:], func(q string) bool { return beneath(p, q) }),
			"", "%s is never writable: what lies there runs before the fence the next time", p),
		refuse(!device && strings.ContainsAny(p, wildcards), "name the folder above instead", `%q: a pattern is only for access = "device" below /dev`, p),
		refuse(access == AccessRead && beneath(p, "/dev"), `use access = "device", or a folder elsewhere`, "%s: what lies below /dev cannot be opened for reading alone", p),
		refuse(device && !beneath(dir, "/dev"), "", `%q: access "device" is for files below /dev`, p),
		refuse(device && (noPattern != nil || strings.ContainsAny(dir, wildcards) || strings.Contains(last, `\`)),
			"a pattern may have *, ? and [a-z], in the last part only", "%q is not a valid pattern", p),
		refuse(device && dir == "/dev" && strings.IndexAny(last, wildcards) == 0, "begin with the name, as in /dev/nvidia*", "%q would open nearly every device", p))
}

// checkKeep checks one entry of environment.keep.
func checkKeep(k string) *Error {
	if strings.HasPrefix(k, "@") {
		return checkSet(k, []string{SetImage})
	}
	name, pattern := strings.CutSuffix(k, "*")
	return cmp.Or(
		refuse(k == "*", "name them, or a prefix such as LC_*", "* would keep every variable"),
		refuse(!variableName(name), "letters, digits and _, with one * at the end at most", "%q is not the name of a variable", k),
		refuse(pattern && secretName(name+"X") || secretName(strings.TrimSuffix(name, "_")), "let what needs it run outside the fence", "%s looks like a credential", k))
}

func checkVariable(name, value string) *Error {
	return cmp.Or(
		refuse(!variableName(name), "letters, digits and _", "%q is not the name of a variable", name),
		refuse(strings.IndexByte(value, 0) >= 0 || !utf8.ValidString(value), "", "the value of %s is not text", name),
		refuse(LooksSecret(name, value), "let what needs it run outside the fence", "%s looks like a credential", name))
}

func variableName(s string) bool {
	const letters = "_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return s != "" && strings.IndexByte(letters, s[0]) >= 0 && strings.Trim(s, letters+"0123456789") == ""
}

// parseLimit reads NAME=VALUE; the value is a whole number or "unlimited".
func parseLimit(s string) (Limit, *Error) {
	name, value, ok := strings.Cut(s, "=")
	n, err := strconv.ParseUint(value, 10, 63)
	if value == "unlimited" {
		n, err = Unlimited, nil
	}
	return Limit{name, n}, cmp.Or(
		refuse(!ok, "write NAME=NUMBER", "%q has no value", s),
		known(limitNames, name, "limit %q is not known"),
		refuse(err != nil, "", `limit %s is %q, not a whole number or "unlimited"`, name, value))
}

// beneath reports whether p is dir or lies in it.
func beneath(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && len(p) > len(dir) && p[len(dir)] == '/'
}

// clash finds an opened path or set that is hidden by its name as well. where
// says where an entry of a list of [filesystem] stands, "" for nowhere.
func (p Policy) clash(where func(list, entry string) string) *Error {
	opened := slices.Clone(p.Open)
	for _, e := range slices.Concat(p.Filesystem.Read, p.Filesystem.Write) {
		opened = append(opened, Open{Path: e})
	}
	for _, h := range p.Filesystem.Hide {
		for _, o := range opened {
			device, _ := path.Match(o.Path, h)
			if !beneath(o.Path, h) && !(device && o.Access == AccessDevice) {
				continue
			}
			covered := "is"
			if o.Path != h {
				covered = "is covered by " + h + ","
			}
			msg := fmt.Sprintf("%s is opened here, and %s hidden at %s", o.Path, covered, where("hide", h))
			return &Error{At: cmp.Or(o.From, where("read", o.Path), where("write", o.Path)), Msg: msg, Hint: "remove one of the two"}
		}
	}
	return nil
}
