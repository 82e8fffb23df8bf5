package faults

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fence/pkg/host"
	"fence/test/faults/facts"
	"fence/test/faults/inject"
)

// judge lists what is wrong with a launch: the command ran, and a protection
// is not in force or the status line says what is not so; or the command did
// not run, and the exit code or the message does not say so.
func (sc *scene) judge(o *outcome, f *inject.Fault) []string {
	var bad []string
	wrong := func(format string, a ...any) { bad = append(bad, fmt.Sprintf(format, a...)) }
	if !o.Ran {
		if len(o.stdout) > 0 {
			wrong("there is output although nothing was executed: %.80q", o.stdout)
		}
		sc.judgeNotRun(o, f, wrong)
		return bad
	}
	if o.facts == nil {
		wrong("the command ran, and cannot say what it sees: %s, %s", o.exit(), o.message())
		return bad
	}
	if o.claims == nil && (f == nil || f.Name != "write") {
		wrong("the command ran without a whole status line: %.80q", o.status)
	}
	sc.judgeFacts(o.facts, wrong)
	sc.judgeClaims(o, wrong)
	return bad
}

// ended sorts the ends of launches in which nothing was executed.
func (o *outcome) ended() string {
	text := string(o.stderr)
	switch {
	case o.TimedOut:
		return "hung"
	case o.Status.Signaled():
		return "killed"
	case o.Status.ExitStatus() == 125:
		return "125"
	case len(o.status) > 0 && (o.Status.ExitStatus() == 126 || o.Status.ExitStatus() == 127):
		return "fenced, exec failed"
	case strings.Contains(text, "fatal error: ") || strings.HasPrefix(text, "cannot set %fs") || strings.HasPrefix(text, ": error while loading") || strings.HasPrefix(text, "runtime") || strings.Contains(text, "SIGSEGV: segmentation violation\nPC="):
		return "runtime died"
	case o.Status.ExitStatus() == 2 && strings.HasPrefix(text, "fence: "):
		return "usage"
	}
	return "other"
}

func (sc *scene) judgeNotRun(o *outcome, f *inject.Fault, wrong func(string, ...any)) {
	runtime := f != nil && isRuntime(f.Address)
	switch o.ended() {
	case "125", "fenced, exec failed":
		lines := strings.Split(strings.TrimSpace(string(o.stderr)), "\n")
		// Who waits for a child has given its stderr away.
		silent := o.mayBeSilent || f != nil && f.Name == "wait4"
		if !strings.HasPrefix(lines[0], "fence: ") && !silent {
			wrong("the message does not begin with 'fence: ': %.200q", o.stderr)
		}
		for _, l := range lines[1:] {
			if !strings.HasPrefix(l, "hint: ") {
				wrong("more than one line and hints: %.300q", o.stderr)
				break
			}
		}
	case "killed", "runtime died":
		// The runtime also looks at the standard descriptors.
		std := f != nil && f.Name == "fcntl(F_GETFD)" && strings.Contains(string(o.stderr), "cannot open standard fds")
		if !runtime && !std && !o.mayDie && (f == nil || f.Signal == 0) {
			wrong("died: %s, %.200q", o.exit(), o.stderr)
		}
	case "hung":
		if !runtime && !o.mayHang && !waits(f) {
			wrong("hung")
		}
	case "usage":
		// A flag names a descriptor, and asking whether it is open fails.
		// Or the runtime above a child, which says so.
		if !o.mayBeUsage && !runtime && (f == nil || f.Name != "fcntl(F_GETFD)") {
			wrong("not fenced, and the exit code is 2: %.200q", o.stderr)
		}
	default:
		if !runtime || o.Status.ExitStatus() == 0 {
			wrong("not run, %s: %.200q", o.exit(), o.stderr)
		}
	}
}

// waits says that a fault leaves somebody waiting for good: Go for the exec of
// its child, which both tell each other by closing a pipe, or the child for an
// answer to one of its calls.
func waits(f *inject.Fault) bool {
	return f != nil && (f.Thread == inject.Main && f.Path == "pipe" || f.Thread == inject.Above && f.Path == "anon_inode:seccomp notify")
}

// refused are the answers that say that something was refused, in any form.
var refused = []string{"EACCES", "EPERM", "EROFS", "ENOENT", "EBUSY"}

func (sc *scene) judgeFacts(f *facts.Facts, wrong func(string, ...any)) {
	is := func(what, got string, want ...string) {
		if !slices.Contains(want, got) {
			wrong("%s: %q, want %s", what, got, strings.Join(want, " or "))
		}
	}
	tried := func(what string, want ...string) { is(what, f.Tried[what], want...) }
	container := sc.container()

	is("no_new_privs", f.NoNewPrivs, "1")
	is("seccomp mode", f.Seccomp, "2")
	is("seccomp filters", f.Filters, "1", "?")
	is("Landlock layers", strconv.Itoa(f.Layers), "1")
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		is(set, f.Caps[set], "")
	}
	if !sc.bare {
		// Only with CAP_SETPCAP, which a user namespace gives.
		is("CapBnd", f.Caps["CapBnd"], "")
		is("securebits", fmt.Sprintf("%#x", f.SecureBits), "0xcf")
	}

	kept := []string{"0", "1", "2"}
	if i := slices.Index(sc.flags, "--keep-fd"); i >= 0 {
		kept = append(kept, sc.flags[i+1])
	}
	for fd, target := range f.FDs {
		is("descriptor "+fd+" ("+target+")", fd, kept...)
	}
	tried("fd7.secret", "EBADF")
	for _, name := range f.Env {
		is("variable", name, "PATH", "LANG", "TERM", "HOME", "TZ", "SHLVL")
	}
	nofile := uint64(4096)
	if sc.policy == "model-server" {
		nofile = 65536
	}
	for _, l := range []struct {
		name string
		most uint64
	}{{"nofile", nofile}, {"core", 1}, {"cpu", 600}} {
		if got, ok := f.Limits[l.name]; !ok || got[1] > l.most || got[0] > got[1] {
			wrong("limit %s is %v, asked for %d", l.name, got, l.most)
		}
	}

	network := sc.policy == "build" || sc.policy == "model-server"
	inet, udp, mptcp, tcp := "EAFNOSUPPORT", "EAFNOSUPPORT", "EAFNOSUPPORT", []string{"EAFNOSUPPORT"}
	switch {
	case network:
		inet, udp, mptcp, tcp = "ok", "ok", "EPROTONOSUPPORT", []string{"ok"}
	case sc.supervised():
		inet, udp, mptcp, tcp = "ok", "ESOCKTNOSUPPORT", "EPROTONOSUPPORT", []string{"ECONNREFUSED", "EACCES", "ENOSYS"}
	}
	tried("socket.inet", inet)
	tried("socket.inet.udp", udp)
	tried("socket.inet6", inet)
	tried("socket.mptcp", mptcp)
	tried("tcp", tcp...)
	tried("tcp.mapped", tcp...)
	for _, what := range []string{"socket.vsock", "socket.packet", "socket.alg"} {
		tried(what, "EAFNOSUPPORT")
	}
	tried("socket.unix", "ok")
	for _, what := range []string{"unshare", "mount", "fsopen", "setns", "ptrace", "bpf", "keyctl", "io_uring_setup", "userfaultfd", "process_vm_readv", "prctl.securebits"} {
		tried(what, "EPERM")
	}
	tried("clone3", "ENOSYS")
	ownIPC := f.NS["ipc"] != own("ipc")
	if !ownIPC {
		tried("shmget", "EPERM")
	}

	tried("kill", "EPERM")
	tried("victim.environ", "EACCES", "EPERM", "ENOENT")
	if f.NS["net"] != own("net") {
		tried("abstract", "EPERM", "ECONNREFUSED")
	} else {
		tried("abstract", "EPERM")
	}
	// Landlock's ioctl right came with ABI 5, the same as with signals (6): on
	// this project's test machines both are there.
	tried("ioctl", "EACCES")

	hidden, stat := []string{"ENOENT", "EACCES"}, []string{"ENOENT", "EACCES"}
	if sc.bare {
		stat = append(stat, "ok") // what the scene accepts
	} else {
		hidden = []string{"ENOENT"}
		stat = hidden
	}
	for _, what := range []string{"decoy", "fake"} {
		tried(what+".read", hidden...)
		tried(what+".write", "ENOENT", "EACCES", "EROFS")
		tried(what+".create", "EACCES", "EROFS", "ENOENT")
		tried(what+".by-root", "ENOENT", "EACCES")
		tried(what+".by-dots", "ENOENT", "EACCES")
		tried(what+".stat", stat...)
	}
	tried("cwd.secret", "ENOENT", "EACCES")
	tried("cwd.up", "ENOENT", "EACCES")
	tried("shown.write", "EACCES", "EROFS", "ENOENT")
	if !sc.bare {
		tried("shown.chmod", "EROFS", "ENOENT")
		tried("agent", "ECONNREFUSED", "ENOENT", "EACCES") // /dev/null is no socket
	}
	tried("home.netrc", "ENOENT", "EACCES")
	tried("home.stat", stat...)
	for _, dir := range []string{"/dev/shm", "/tmp", "/var/tmp", filepath.Dir(sc.stage.config.Decoy)} {
		if container && within(dir, "/proj") {
			tried("mknod."+dir, "EACCES", "ENOENT", "EROFS") // hidden as a whole
		} else {
			tried("mknod."+dir, "EACCES")
		}
	}
	tried("device", "ENOENT", "EACCES")
	tried("proc.write", "EROFS", "EACCES")
	if container {
		for what, got := range f.Tried {
			if strings.HasPrefix(what, "protected.") {
				is(what, got, "EROFS", "EACCES", "EBUSY", "EXDEV")
			}
		}
	}
	is("working folder", f.Cwd, sc.workdir())

	if sc.bare {
		return
	}
	for i := range sc.config().Planted {
		tried(fmt.Sprintf("planted.%d", i), "ENOENT")
	}
	for _, ns := range []string{"user", "mnt"} {
		if f.NS[ns] == own(ns) {
			wrong("the %s namespace is the caller's", ns)
		}
	}
	for _, p := range []string{"/proc", "/sys"} {
		if !f.Places[p].ReadOnly {
			wrong("%s is not read-only", p)
		}
	}
	for _, name := range f.Dev {
		is("device", name, "null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "mqueue", "fd", "stdin", "stdout", "stderr")
	}
	for _, name := range f.Pts {
		is("terminal", name, "ptmx")
	}
	mounts, err := host.ParseMounts(strings.NewReader(f.Mounts))
	if err != nil {
		wrong("mountinfo: %v", err)
	}
	top := map[string]host.Mount{}
	for _, m := range mounts {
		top[m.Path] = m
	}
	if !container {
		for _, p := range []string{"/tmp", "/var/tmp"} {
			is("what is mounted on "+p, top[p].Source, "fence-tmp")
		}
	}
	is("what is mounted on /dev", top["/dev"].Source, "fence-dev")
	for line := range strings.Lines(f.Mounts) {
		before, _, _ := strings.Cut(line, " - ")
		for _, tag := range strings.Fields(before)[6:] {
			wrong("a mount is tied to the caller's: %s", strings.TrimSpace(before+" "+tag))
		}
	}
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// own is a namespace of the test process, which is the caller's.
func own(ns string) string {
	link, _ := os.Readlink("/proc/self/ns/" + ns)
	return link
}

// judgeClaims holds the status line against what the command saw.
func (sc *scene) judgeClaims(o *outcome, wrong func(string, ...any)) {
	st, f := o.claims, o.facts
	if st == nil {
		return
	}
	if form := map[bool]string{true: "bare", false: "namespace"}[sc.bare]; st.Form != form {
		wrong("claims the %s form, want %s", st.Form, form)
	}
	for _, ns := range st.Namespaces {
		if ns == "mount" {
			ns = "mnt"
		}
		if f.NS[ns] == own(ns) {
			wrong("claims its own %s namespace, and has the caller's", ns)
		}
	}
	if st.Network == "none" && f.Tried["socket.inet"] != "EAFNOSUPPORT" {
		wrong("claims network none, and socket() gives %s", f.Tried["socket.inet"])
	}
	if st.Workdir != f.Cwd {
		wrong("claims to start in %s, and starts in %s", st.Workdir, f.Cwd)
	}
	if st.Landlock.Rules == 0 || f.Layers != 1 {
		wrong("claims a Landlock layer with %d rules, and %d layers are in force", st.Landlock.Rules, f.Layers)
	}
	if len(o.Filters) > 0 { // else the tracer may not ask
		sum := sha256.Sum256(o.Filters[len(o.Filters)-1])
		if got := hex.EncodeToString(sum[:]); got != st.Seccomp.Digest {
			wrong("claims the filter %.12s, and %.12s is in force", st.Seccomp.Digest, got)
		}
	}
	for _, name := range st.DroppedEnv {
		if slices.Contains(f.Env, name) {
			wrong("claims to drop the variable %s, and it is there", name)
		}
	}
	// A mask holds the way to what is shown inside it.
	holds := func(h string) []string {
		way, _ := strings.CutPrefix(sc.stage.config.Shown, h+"/")
		first, _, _ := strings.Cut(way, "/")
		return []string{first}
	}
	for _, h := range st.Hidden {
		p, ok := f.Places[h.Path]
		switch {
		case !ok: // a launch with more hidden than the one without a fault
		case p.Open == "ENOENT" || p.Open == "EACCES" || p.Open == "ENXIO":
		case h.How == "masked" && h.Dir && p.Type == "dir" && p.Tmpfs && p.ReadOnly &&
			(len(p.Names) == 0 || within(sc.stage.config.Shown, h.Path) && slices.Equal(p.Names, holds(h.Path))):
		case h.How == "masked" && !h.Dir && p.Type == "char 1:3":
		default:
			wrong("claims %s hidden (%s), and it is %+v", h.Path, h.How, p)
		}
	}
	if sc.base == nil || sc.base.claims == nil {
		return
	}
	// What a launch without a fault has, and this one went without.
	for _, h := range sc.base.claims.Hidden {
		if !slices.Contains(st.Hidden, h) {
			wrong("does not hide %s, which a launch without a fault hides", h.Path)
		}
	}
	b := sc.base.claims.Landlock
	if b.FS&^st.Landlock.FS|b.Net&^st.Landlock.Net|b.Scoped&^st.Landlock.Scoped != 0 {
		wrong("Landlock handles less than without a fault: %+v", st.Landlock)
	}
}
