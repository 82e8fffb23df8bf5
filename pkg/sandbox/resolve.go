package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/policy"
	"fence/pkg/seccomp"
)

// Weaknesses that a person may take by name.
const (
	AcceptLandlockHide = "landlock-hide" // hidden paths can be stat'ed
	AcceptHostTmp      = "host-tmp"      // the host's /tmp, with what others left there
	AcceptSockets      = "sockets"       // sockets of @sockets can be connected to
)

// Resolve turns a policy into what has to be done on a node. It touches
// nothing. The error is a *Refusal when the policy cannot be enforced there.
func Resolve(p policy.Policy, n Node) (Ruleset, error) {
	// Asked once of each path: another command, still running, may change the
	// answer, and half of what follows would go by the one and half by the other.
	n.Stat, n.Lstat, n.Real, n.CanWrite = once(n.Stat), once(n.Lstat), once(n.Real), once(n.CanWrite)
	n.tops = map[string]host.Mount{}
	for _, m := range n.Mounts {
		n.tops[m.Path] = m
	}
	r := &resolver{rs: Ruleset{Policy: p, Node: n, Workdir: n.Workdir}}
	if n.Namespaces.User == nil && n.Namespaces.Mount == nil {
		r.rs.Form = Namespace
	}
	r.descriptors()
	r.kernel()
	r.hide()
	if r.rs.Form == Namespace {
		r.mounts()
	} else {
		r.bare()
	}
	r.paths()
	r.filter()
	r.environment()
	r.workdir()
	if n.Unsure != nil {
		for _, what := range n.Unsure() {
			r.refuse(Problem{What: "cannot tell what is at " + what + ", and what is not known cannot be hidden", Do: "look at it with ls -ld; a file server may not answer"})
		}
	}
	if len(r.problems) > 0 {
		return Ruleset{}, &Refusal{Problems: r.problems}
	}
	return r.rs, nil
}

func once[T any](ask func(string) T) func(string) T {
	known := map[string]T{}
	return func(p string) T {
		v, ok := known[p]
		if !ok {
			v = ask(p)
			known[p] = v
		}
		return v
	}
}

type resolver struct {
	rs       Ruleset
	private  []string // folders that the command gets one of its own of
	covered  []string // paths that a mask or a private folder will lie over
	writable []string // roots that may be changed
	readable []string
	split    []string // writable, and granted entry by entry
	pipes    []string // opened for reading, with pipes that can be written
	problems []Problem
}

func (r *resolver) refuse(p Problem) {
	if p.Accept != "" && r.accepted(p.Accept) {
		r.lost(cmp.Or(p.Taken, p.What) + " (accepted)")
		return
	}
	r.problems = append(r.problems, p)
}

func (r *resolver) lost(what string) { r.rs.Lost = append(r.rs.Lost, what) }

func (r *resolver) accepted(name string) bool {
	return slices.ContainsFunc(r.rs.Policy.Accept, func(a policy.Accept) bool { return a.Name == name })
}

// descriptors refuses what no rule can take back: an open folder reaches all
// that is below it.
func (r *resolver) descriptors() {
	for _, d := range r.rs.Node.Stdio {
		if d.Dir {
			r.refuse(Problem{
				What: fmt.Sprintf("descriptor %d is an open folder (%s), from which the command could reach what the policy hides", d.FD, d.Path),
				Do:   "give it a file, a pipe or /dev/null: </dev/null",
			})
		} else if d.PathOnly {
			r.refuse(Problem{
				What: fmt.Sprintf("descriptor %d only names %s (O_PATH), and the command could open it from there", d.FD, d.Path),
				Do:   "open it as the command shall have it, or give it /dev/null: </dev/null",
			})
		} else if d.Network && !d.KeptByRequest && r.rs.Policy.Network.Mode != policy.NetworkHost {
			r.refuse(Problem{
				What: fmt.Sprintf("descriptor %d is a network socket (%s), and the policy gives no network", d.FD, d.Path),
				Do:   "put a pipe between: cat | fence -- COMMAND | cat",
			})
		} else if d.UnixAnywhere && r.abstractReachable() {
			r.refuse(Problem{
				What: fmt.Sprintf("descriptor %d is a Unix socket (%s) that can reach the host's abstract ones, which this kernel's Landlock (ABI %d) cannot close", d.FD, d.Path, r.rs.Node.Landlock.ABI),
				Do:   "put a pipe between: cat | fence -- COMMAND | cat",
			})
		}
	}
}

// kernel decides what Landlock handles and refuses where too little of it
// stands between the command and the rest of the node.
func (r *resolver) kernel() {
	n, l := r.rs.Node, r.rs.Node.Landlock
	r.rs.Handled.FS, r.rs.Handled.Net, r.rs.Handled.Scoped = l.FS, l.Net, l.Scoped
	switch mode := r.rs.Policy.Network.Mode; {
	case mode == policy.NetworkHost || r.rs.ownLoopback():
		r.rs.Handled.Net = 0
	case r.rs.Supervised():
		r.lost("its servers listen on an address of 127.0.0.0/8 to which all users of the node can connect, a port that the node has on all addresses is in use, and UDP and shared ports (SO_REUSEPORT) are closed: there is no network namespace (" + errText(n.Namespaces.Net) + "), only a supervisor of its connections")
		if mode == policy.NetworkProxy {
			r.lost("other users of the node see that there is a way to a proxy; what they connect to it is closed at once")
		}
	case mode != policy.NetworkNone:
		r.refuse(Problem{
			What: fmt.Sprintf("network mode %s needs a network namespace of its own, which this node does not give (%s), or a supervisor of its connections, which it cannot have (%v)",
				mode, errText(n.Namespaces.Net), n.unsupervised()),
			Do: "run on a node that allows network namespaces (fence check), or with --net none",
		})
	}
	if l.FS&rightsRead == 0 {
		r.refuse(Problem{
			What: "this kernel offers no Landlock (" + cmp.Or(l.Err, "unknown reason") + ")",
			Do:   "ask the operators for a kernel with Landlock (5.13 or later) that has landlock in its lsm= boot line",
		})
		return
	}
	if l.FS&ll.AccessFSRefer == 0 {
		r.lost("files cannot be moved between folders (Landlock before ABI 2)")
	}
	if l.FS&ll.AccessFSTruncate == 0 {
		if r.rs.Form == Bare {
			r.refuse(Problem{
				What: fmt.Sprintf("this kernel's Landlock (ABI %d) cannot stop files outside the policy from being truncated", l.ABI),
				Do:   "run on a node that allows user namespaces, or with Landlock ABI 3 (kernel 6.2)",
			})
		} else {
			r.lost("a file that is only readable can be truncated where its permissions allow it (Landlock before ABI 3)")
		}
	}
	if l.Scoped&ll.ScopeSignal == 0 && !n.Namespaces.PrivatePID {
		r.refuse(Problem{
			What: fmt.Sprintf("this kernel's Landlock (ABI %d) cannot keep signals in, and the processes of the host are visible", l.ABI),
			Do:   `start the container with its own processes: apptainer exec --pid (eval "$(fence env)" sets it)`,
		})
	}
	if r.abstractReachable() && r.rs.Policy.Network.Mode == policy.NetworkHost {
		r.lost(fmt.Sprintf("no Unix sockets can be made, but connected pairs: this kernel's Landlock (ABI %d) cannot close the host's abstract ones, nor can a network namespace with the host's network", l.ABI))
	} else if r.abstractReachable() {
		r.refuse(Problem{
			What: fmt.Sprintf("this kernel's Landlock (ABI %d) cannot close the host's abstract Unix sockets, and there is no own network namespace (%s)", l.ABI, errText(n.Namespaces.Net)),
			Do:   "run on a node with Landlock ABI 6 (kernel 6.12), or one that allows network namespaces (user.max_net_namespaces above 0), with network mode none",
		})
	}
}

// abstractReachable says that the host's abstract Unix sockets could be
// connected to: nothing but the filter keeps them out.
func (r *resolver) abstractReachable() bool {
	return r.rs.Node.Landlock.Scoped&ll.ScopeAbstractUnixSocket == 0 && r.rs.Node.Namespaces.Net != nil
}

// hide lists what exists and must not be reachable. An opening with a reason
// beats a set for exactly its path; a hide that a person wrote always stands.
func (r *resolver) hide() {
	n := r.rs.Node
	opened := map[string]bool{}
	for _, o := range r.rs.Policy.Open {
		opened[o.Path] = true
	}
	if r.rs.Form == Namespace {
		r.private = []string{"/dev/shm"}
		for _, dir := range tmpDirs[:2] {
			if r.hostsTmp(dir) {
				r.private = append(r.private, dir)
			}
		}
	}
	var all []Hidden
	for _, h := range r.rs.Policy.Filesystem.Hide {
		if !strings.HasPrefix(h, "@") {
			all = append(all, Hidden{Path: n.Real(h)}) // a link hides what it leads to
			continue
		}
		for _, p := range n.hiddenSet(h) {
			if !opened[p] && !r.goneAny(p, r.private) {
				all = append(all, Hidden{Path: p, Set: h})
			}
		}
	}
	for _, h := range all {
		for _, p := range n.again(h.Path, h.Set == "") {
			if !opened[p] {
				all = append(all, Hidden{Path: p, Set: h.Set})
			}
		}
	}
	// A path below a hidden one is hidden with it.
	slices.SortStableFunc(all, func(a, b Hidden) int { return cmp.Compare(a.Path, b.Path) })
	hidden := map[string]bool{}
	above := func(p string) bool { // there may be very many
		for up := p; up != "/"; up = path.Dir(up) {
			if hidden[up] && r.gone(p, up) {
				return true
			}
		}
		return false
	}
	for _, h := range all {
		f := n.Stat(h.Path)
		if !f.Exists || n.masked(h.Path) || above(h.Path) {
			continue
		}
		// Others' sockets, which permissions close: to hide them by Landlock
		// alone would keep the command from making anything beside them.
		if r.rs.Form == Bare && h.Set == policy.SetSockets && f.Shut {
			continue
		}
		switch {
		case slices.Contains(r.private, h.Path):
			continue // the command gets one of its own
		case h.Path == "/" || h.Path == "/proc" || within(h.Path, "/dev") && h.Path != "/dev/shm":
			r.refuse(Problem{What: "the policy hides " + h.Path + ", without which little can run", Do: "hide the folders that matter; the namespace form shows no devices but harmless ones and those that are opened"})
			continue
		}
		h.Dir, hidden[h.Path] = f.Dir, true
		r.rs.Hidden = append(r.rs.Hidden, h)
	}
}

// gone reports whether p disappears when cover is covered: it lies below, and
// in nothing that is shown again.
func (r *resolver) gone(p, cover string) bool {
	return within(p, cover) && !slices.ContainsFunc(r.rs.Policy.Open, func(o policy.Open) bool {
		return o.Path != "" && o.Path != cover && within(o.Path, cover) && within(p, o.Path)
	})
}

func (r *resolver) goneAny(p string, covers []string) bool {
	return slices.ContainsFunc(covers, func(c string) bool { return r.gone(p, c) })
}

// mounts plans the namespace form.
func (r *resolver) mounts() {
	n := r.rs.Node
	var ops []MountOp
	cover := func(op MountOp) {
		ops = append(ops, op)
		r.covered = append(r.covered, op.Path)
	}
	cover(MountOp{Kind: MountDev, Path: "/dev", Devices: r.devices()})
	for _, dir := range r.private[1:] {
		cover(MountOp{Kind: MountTmp, Path: dir})
	}
	for i, h := range r.rs.Hidden {
		r.rs.Hidden[i].How = "masked"
		if r.goneAny(h.Path, r.covered) {
			continue
		}
		kind := MountMaskFile
		if h.Dir {
			kind = MountMaskDir
		}
		op := MountOp{Kind: kind, Path: h.Path}
		for _, o := range r.rs.Policy.Open {
			if h.Dir && o.Path != "" && within(o.Path, h.Path) {
				op.Holds += 1 + strings.Count(o.Path[len(h.Path):], "/")
			}
		}
		cover(op)
	}
	// What is opened for reading lies on itself, read-only: the rule that lets
	// "/" be changed holds for all that is mounted in it.
	show := r.onlyRead()
	over := slices.Concat(r.covered, show)
	for _, o := range r.rs.Policy.Open {
		if o.Path != "" && o.Access != policy.AccessDevice {
			show = append(show, o.Path)
		}
	}
	for _, p := range show {
		at := r.at(p)
		if !withinAny(at, over) || slices.Contains(r.covered, at) || slices.ContainsFunc(ops, func(op MountOp) bool { return op.Path == at }) {
			continue
		}
		if f := n.Stat(p); f.Exists {
			ops = append(ops, MountOp{Kind: MountShow, Path: at, From: n.Real(p), ReadOnly: slices.Contains(over, at), Dir: f.Dir})
		}
	}
	// A folder that is moved away takes the mask along, and the next fence
	// would find nothing to hide where the name was; or what is only to be read,
	// and another can be put in its place.
	for _, op := range slices.Clone(ops) {
		if op.Kind == MountMaskDir || op.Kind == MountMaskFile || op.Kind == MountShow && op.ReadOnly {
			ops = append(ops, r.hold(op.Path, ops)...)
		}
	}
	for _, p := range n.Hold {
		ops = append(ops, r.hold(p, ops)...)
		ops = append(ops, MountOp{Kind: MountHold, Path: p, Dir: true})
	}
	if n.Exe != "" && (n.CanWrite(path.Dir(n.Exe)) || n.CanWrite(n.Exe)) && n.Stat(n.Exe).Exists && !r.goneAny(n.Exe, r.covered) && !withinAny(n.Exe, protected) {
		ops = append(ops, r.hold(n.Exe, ops)...)
		ops = append(ops, MountOp{Kind: MountPin, Path: n.Exe})
	}
	// What is shown inside a cover may have something hidden inside it again.
	slices.SortStableFunc(ops, func(a, b MountOp) int { return cmp.Compare(a.Path, b.Path) })
	if n.Namespaces.OwnPID {
		ops = append(ops, MountOp{Kind: MountProc, Path: "/proc"})
	}
	for _, dir := range []string{"/proc", "/sys"} {
		if n.Stat(dir).Dir {
			ops = append(ops, MountOp{Kind: MountReadOnly, Path: dir})
		}
	}
	// A root of Apptainer's own making has what the runtime runs. In another,
	// whatever of it the command makes would be run.
	complete := n.Container == "" || n.Stat("/.singularity.d/env").Dir && n.Stat("/.singularity.d/runscript").Exists
	for _, p := range protected {
		if n.rootReadOnly() && !n.mountsIn(p) {
			continue // nothing there can be changed
		}
		if n.Container == "sifbuild" && p != "/.fence" {
			continue // not run before the image is made, which begins by writing them
		}
		if f := n.Lstat(p); f.Exists || !complete {
			ops = append(ops, MountOp{Kind: MountPin, Path: p, Absent: !f.Exists, Dir: p == "/.fence" || p == "/.singularity.d"})
		}
	}
	r.rs.Mounts = ops
}

// hold lists the folders that p lies in and the command could rename.
func (r *resolver) hold(p string, have []MountOp) []MountOp {
	var out []MountOp
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		_, mounted := r.rs.Node.top(dir)
		if mounted || r.goneAny(dir, r.covered) || !r.rs.Node.CanWrite(path.Dir(dir)) || slices.ContainsFunc(have, func(op MountOp) bool { return op.Path == dir }) {
			continue
		}
		out = append(out, MountOp{Kind: MountHold, Path: dir, Dir: true})
	}
	return out
}

// mountsIn reports whether something is mounted on p or below: it may be
// writable where the root is not.
func (n Node) mountsIn(p string) bool {
	return slices.ContainsFunc(n.Mounts, func(m host.Mount) bool { return within(m.Path, p) })
}

// onlyRead are the paths that the policy names for reading and no more.
func (r *resolver) onlyRead() []string {
	fs := r.rs.Policy.Filesystem
	read, write := slices.Clone(fs.Read), slices.Clone(fs.Write)
	for _, o := range r.rs.Policy.Open {
		switch o.Access {
		case policy.AccessRead:
			read = append(read, o.Path)
		case policy.AccessWrite:
			write = append(write, o.Path)
		}
	}
	var out []string
	for _, p := range read {
		if path.IsAbs(p) && p != "/" && !withinAny(p, kernelsOwn) && !slices.Contains(write, p) {
			out = append(out, r.at(p))
		}
	}
	return out
}

// at is where the command finds an opened path: where a link leads to, unless
// what is opened has to be shown in a cover, where nothing leads anywhere.
func (r *resolver) at(p string) string {
	if withinAny(p, r.covered) {
		return p
	}
	return r.rs.Node.Real(p)
}

func (n Node) rootReadOnly() bool {
	root, ok := n.top("/")
	return ok && (root.ReadOnly || strings.HasPrefix(root.Super+",", "ro,"))
}

// hostsTmp reports whether dir is the host's, with what other users and
// programs keep there. A container's own is made by the user who started it;
// the host's belongs to root, who is another user inside.
func (r *resolver) hostsTmp(dir string) bool {
	n := r.rs.Node
	f := n.Stat(dir)
	if !f.Exists || n.ours(dir, "fence-tmp") || dir == "/dev/shm" && n.ours("/dev", "fence-dev") || slices.ContainsFunc(r.rs.Policy.Open, func(o policy.Open) bool { return o.Path == dir }) {
		return false
	}
	if n.Container == "" {
		return true
	}
	_, mounted := n.top(dir)
	return mounted && int(f.UID) != n.UID
}

// devices are the opened device nodes that exist.
func (r *resolver) devices() []string {
	var out []string
	for _, o := range r.rs.Policy.Open {
		if o.Access == policy.AccessDevice {
			for _, p := range r.rs.Node.Glob(o.Path) {
				if p == o.Path || !r.rs.Node.Stat(p).Dir { // /dev/nvidia* has /dev/nvidia-caps, whose nodes are opened by name
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// bare refuses what only mounts can hide, or takes Landlock's weaker hiding
// where a person accepted it.
func (r *resolver) bare() {
	n := r.rs.Node
	by, why := "this node does not let fence", " (user namespace: "+errText(n.Namespaces.User)+")"
	switch {
	case n.Namespaces.User == nil:
		why = " (mount namespace: " + errText(n.Namespaces.Mount) + ")"
	case errors.Is(n.Namespaces.User, ErrNotTried):
		by, why = "the bare form, which was asked for, does not", ""
	}
	accept, connect := AcceptLandlockHide, ""
	if n.Landlock.FS&ll.AccessFSResolveUnix == 0 {
		accept, connect = AcceptSockets, "sockets connected to (Landlock before ABI 9), "
	}
	hidden := map[string][]string{} // by the name under which it may be accepted
	for i, h := range r.rs.Hidden {
		r.rs.Hidden[i].How = "landlock"
		as := AcceptLandlockHide
		if h.Set == policy.SetSockets {
			as = accept
		}
		hidden[as] = append(hidden[as], h.Path)
	}
	var tmp []string
	for _, dir := range tmpDirs {
		write := r.rs.Policy.Filesystem.Write
		if (slices.Contains(write, policy.SetTmp) || slices.Contains(write, policy.SetRoot) && dir != "/dev/shm") && r.hostsTmp(dir) && !r.goneAny(dir, r.hiddenPaths()) {
			tmp = append(tmp, dir)
		}
	}
	without, cannot := r.without(), ", and "+by+" cover it"+why
	for _, accept := range []struct{ name, taken string }{
		{AcceptLandlockHide, "closed by Landlock alone, to opening, listing, reading and writing: names can still be seen (stat, inotify), " + connect + "and modes and times of your own files changed, in "},
		{AcceptSockets, "sockets can be connected to, and their daemons take orders: "},
	} {
		if paths := hidden[accept.name]; len(paths) > 0 {
			r.refuse(Problem{
				What: paths[0] + " is visible here and must be hidden" + cannot + andSo(paths[1:]),
				Do:   without, Accept: accept.name, Taken: accept.taken + strings.Join(paths, ", "),
			})
			if !r.accepted(accept.name) {
				cannot = " too" // said once
			}
		}
	}
	if len(tmp) > 0 {
		r.refuse(Problem{
			What: tmp[0] + " is the host's, with the files and sockets of others, and " + by + " give the command its own" + andSo(tmp[1:]),
			Do:   without, Accept: AcceptHostTmp,
		})
	}
	if len(r.rs.Hidden) > 0 {
		r.lost("folders that contain a hidden path cannot be listed")
	}
	if !n.Namespaces.PrivatePID {
		r.lost("the command lines of the host's processes can be read")
	}
}

// paths lists the Landlock rules.
func (r *resolver) paths() {
	fs := r.rs.Policy.Filesystem
	r.writable = r.entries(fs.Write)
	r.readable = r.entries(fs.Read)
	r.onRoot()
	for _, o := range r.rs.Policy.Open {
		switch {
		case o.Path == "":
		case o.Access == policy.AccessDevice:
			if r.rs.Node.Stat(o.Path).Dir {
				r.refuse(Problem{What: o.Path + " is opened as a device and is a folder (" + o.From + ")", Do: "name the devices in it, or a pattern: " + o.Path + "/*"})
			}
		case o.Access == policy.AccessWrite && withinAny(o.Path, []string{"/proc", "/sys"}):
			r.refuse(Problem{What: o.Path + " cannot be opened for writing: the kernel's own settings are read-only in every fence (" + o.From + ")", Do: "take the entry out; reading needs none"})
		case r.ledAway(o.Path, o.Access != policy.AccessRead):
			r.refuse(Problem{What: fmt.Sprintf("%s is opened by the policy and leads through a link to %s, which is closed (%s)", o.Path, r.rs.Node.Real(o.Path), o.From), Do: "open that path itself, with a reason"})
		case withinAny(o.Path, protected) && o.Access != policy.AccessRead:
			r.refuse(Problem{What: o.Path + " holds code that runs before the fence the next time; no policy can open it for writing (" + o.From + ")", Do: "choose another folder"})
		case !r.rs.Node.Stat(o.Path).Exists:
			r.refuse(Problem{What: o.Path + " is opened by the policy and does not exist (" + o.From + ")", Do: r.bring()})
		case o.Access == policy.AccessWrite:
			r.spread(r.at(o.Path), rightsRead|rightsChange|ll.AccessFSResolveUnix)
		default:
			r.spread(r.at(o.Path), rightsRead)
		}
	}
	for _, p := range r.readable {
		r.spread(p, rightsRead)
	}
	for _, p := range r.writable {
		r.spread(p, rightsRead|rightsChange)
	}
	if len(r.pipes) > 0 {
		r.lost("named pipes can be written, although it is opened for reading, in " + strings.Join(r.pipes, ", "))
	}
	if len(r.split) > 0 {
		r.lost("nothing new can be made directly in " + strings.Join(r.split, ", ") + ", and a folder there that is removed cannot be made again")
	}
	// /dev has no rights from "/" that matter in the bare form, where it is
	// the host's: only these.
	for _, name := range devNodes {
		r.rule("/dev/"+name, rightsReadFile|rightsWriteFile)
	}
	for _, p := range r.devices() {
		r.rule(r.at(p), rightsTTY)
	}
	if r.rs.Form == Namespace || r.privatePts() {
		r.rule("/dev/pts", rightsTTY|ll.AccessFSReadDir)
		r.rule("/dev/tty", rightsTTY)
		if r.rs.Form == Bare { // ours is a link into /dev/pts
			r.rule("/dev/ptmx", rightsTTY)
		}
	} else {
		r.lost("no new terminals (tmux, script, pty): /dev/pts is the host's, with the user's other terminals")
	}
	if r.rs.Form == Namespace {
		r.rule("/dev/shm", rightsRead|rightsChange)
		r.rule("/dev/mqueue", rightsRead|rightsChange)
	}
	for _, d := range r.rs.Node.Stdio {
		if !d.File {
			continue
		}
		var rights uint64
		if d.Readable {
			rights |= ll.AccessFSReadFile
		}
		if d.Writable {
			rights |= rightsWriteFile
		}
		if d.TTY {
			rights |= ll.AccessFSIoctlDev
		}
		r.add(PathRule{Path: fmt.Sprintf("/proc/self/fd/%d", d.FD), Rights: rights, Open: true})
	}
}

// ledAway reports whether a path is, by a link that an earlier command may
// have made, another one that is hidden or protected, or no file of a folder.
func (r *resolver) ledAway(p string, change bool) bool {
	real := r.rs.Node.Real(p)
	return real != p && (r.goneAny(real, slices.Concat(r.hiddenPaths(), r.private, []string{"/dev"})) || change && withinAny(real, protected))
}

// bring says what to do about a path that the policy names and that is not here.
func (r *resolver) bring() string {
	if r.rs.Node.Container == "" {
		return "make it, or take the entry out"
	}
	return "mount it into the container (apptainer exec --bind), or take the entry out"
}

// entries are the paths that a read or write list stands for.
func (r *resolver) entries(list []string) []string {
	var out []string
	for _, e := range list {
		switch e {
		case policy.SetRoot:
			out = append(out, "/")
		case policy.SetTmp:
			for _, dir := range tmpDirs {
				if r.rs.Node.Stat(dir).Dir {
					out = append(out, dir)
				}
			}
		default:
			if f := r.rs.Node.Stat(e); !f.Exists {
				r.refuse(Problem{What: e + " is named by the policy and does not exist", Do: r.bring()})
				continue
			}
			by := ""
			if h := r.hiddenBy(e); h != nil {
				by = cmp.Or(h.Set, h.Path)
			}
			for _, dir := range r.private {
				if e != dir && within(e, dir) {
					by = "the command's own " + dir
				}
			}
			if r.ledAway(e, false) {
				by = "what it leads to"
			}
			if by != "" {
				r.refuse(Problem{What: fmt.Sprintf("%s is named by the policy and hidden by %s", e, by), Do: `open it with a reason: --read ` + e + ` --why "..."`})
				continue
			}
			out = append(out, r.at(e))
		}
	}
	return out
}

// onRoot refuses to open by @root what is mounted on it, and not the root's own.
func (r *resolver) onRoot() {
	fs := r.rs.Policy.Filesystem
	named := slices.Concat(fs.Read, fs.Write)
	if !slices.Contains(named, policy.SetRoot) {
		return
	}
	for _, o := range r.rs.Policy.Open {
		named = append(named, o.Path)
	}
	var left []string
	for _, p := range r.rs.Node.shared() {
		if r.hiddenBy(p) == nil && !r.goneAny(p, r.private) && r.rs.Node.Stat(p).Exists && !slices.ContainsFunc(named, func(e string) bool { return e != "" && within(p, e) }) {
			left = append(left, p)
		}
	}
	if len(left) > 0 {
		r.refuse(Problem{What: left[0] + " is mounted here, and the policy neither hides nor opens it" + andSo(left[1:]),
			Do: `hide what is mounted: hide = ["@shared"]` + "\nor open it with a reason: --read " + left[0] + ` --why "..."`})
	}
}

func (r *resolver) hiddenBy(p string) *Hidden {
	for i, h := range r.rs.Hidden {
		if within(p, h.Path) {
			return &r.rs.Hidden[i]
		}
	}
	return nil
}

func (r *resolver) hiddenPaths() []string {
	var out []string
	for _, h := range r.rs.Hidden {
		out = append(out, h.Path)
	}
	return out
}

// spread grants rights below p. Landlock has no "but not below": in the bare
// form a folder that contains something ungranted is granted entry by entry.
func (r *resolver) spread(p string, rights uint64) {
	if r.rs.Form == Namespace {
		var not []string
		if rights&rightsChange != 0 { // a read-only mount does not stop a named pipe from being written
			not = r.shut(p)
		}
		r.rule(p, rights&rightsRead)
		if rights &^= rightsRead; len(not) > 0 {
			r.except(p, rights, not, false)
		} else {
			r.rule(p, rights)
		}
		return
	}
	not := r.hiddenPaths()
	if r.goneAny(p, not) || r.rs.Node.Lstat(p).Symlink {
		return // hidden with what it lies in; what a link leads to is granted, or not, where it is
	}
	if rights&rightsChange != 0 {
		not = slices.Concat(not, protected, []string{"/proc", "/sys"}, r.onlyRead())
		if exe := r.rs.Node.Exe; exe != "" && (r.rs.Node.CanWrite(path.Dir(exe)) || r.rs.Node.CanWrite(exe)) {
			not = append(not, exe)
		}
	}
	not = append(not, "/dev")
	r.except(p, rights, not, false)
}

// shut are the paths below p that are opened for reading, or the masks that
// these lie in, where granting the rest entry by entry takes nothing away: the
// command could make nothing in the folders to them.
func (r *resolver) shut(p string) []string {
	var out []string
	for _, only := range r.onlyRead() {
		if only == p || !within(only, p) {
			continue
		}
		top := only
		for _, h := range slices.Backward(r.rs.Hidden) {
			if within(only, h.Path) && within(h.Path, p) {
				top = h.Path
			}
		}
		free := true
		for dir := top; dir != p && free; {
			dir = path.Dir(dir)
			free = !r.rs.Node.CanWrite(dir) && r.rs.Node.ReadDir(dir) != nil
		}
		if free {
			out = append(out, top)
		} else if !slices.Contains(r.pipes, only) {
			r.pipes = append(r.pipes, only)
		}
	}
	return out
}

func (r *resolver) except(p string, rights uint64, not []string, listed bool) {
	if slices.Contains(not, p) {
		return
	}
	if !slices.ContainsFunc(not, func(q string) bool { return within(q, p) }) {
		if f := r.rs.Node.Stat(p); f.Exists {
			r.add(PathRule{Path: p, Rights: rights, Dir: f.Dir, Listed: listed})
		}
		return
	}
	if r.rs.Form == Bare && rights&rightsChange != 0 && !slices.Contains(r.split, p) {
		r.split = append(r.split, p)
	}
	// To look up what is below needs no right. Listing is inherited by all
	// below, so a folder with something hidden in it cannot be listed; with
	// something merely unwritable it can.
	hides := slices.ContainsFunc(r.rs.Hidden, func(h Hidden) bool { return within(h.Path, p) })
	if !hides {
		r.rule(p, rights&ll.AccessFSReadDir)
	}
	for _, name := range r.rs.Node.ReadDir(p) {
		child := path.Join(p, name)
		// A link's target is granted, or not, where it is.
		if !r.rs.Node.Lstat(child).Symlink {
			r.except(child, rights, not, true)
		}
	}
}

func (r *resolver) privatePts() bool {
	if r.rs.Node.ours("/dev", "fence-dev") {
		return true
	}
	if r.rs.Node.Container == "" {
		return false
	}
	pts, ok := r.rs.Node.top("/dev/pts")
	return ok && strings.Contains(pts.Super, "ptmxmode=666")
}

func (r *resolver) rule(p string, rights uint64) {
	n := r.rs.Node
	f := n.Lstat(p)
	if r.rs.Form == Namespace && withinAny(p, []string{"/dev"}) {
		// /dev will be ours: these exist, and are what their names say.
		f = File{Exists: true, Dir: slices.Contains([]string{"/dev", "/dev/pts", "/dev/shm", "/dev/mqueue"}, p)}
		if slices.Contains(devNodes, path.Base(p)) && !n.Stat(p).Exists {
			return
		}
	}
	if f.Exists && !f.Symlink { // what a link leads to is granted, or not, where it is
		r.add(PathRule{Path: p, Rights: rights, Dir: f.Dir})
	}
}

func (r *resolver) add(rule PathRule) {
	if !rule.Dir {
		rule.Rights &= rightsOfFile
	}
	if rule.Rights &= r.rs.Handled.FS; rule.Rights == 0 {
		return
	}
	for i, p := range r.rs.Paths {
		if p.Path == rule.Path {
			r.rs.Paths[i].Rights |= rule.Rights
			r.rs.Paths[i].Listed = p.Listed || rule.Listed
			return
		}
	}
	r.rs.Paths = append(r.rs.Paths, rule)
}

func (r *resolver) filter() {
	n := r.rs.Node
	spec := seccomp.Spec{
		Arch:        n.Arch,
		DenyKillAll: r.rs.Handled.Scoped&ll.ScopeSignal == 0 && !n.Namespaces.PrivatePID,
		DenySysV:    !n.Namespaces.PrivateIPC,
		DenyUnix:    r.abstractReachable() && r.rs.Policy.Network.Mode == policy.NetworkHost,
	}
	switch {
	case r.rs.Supervised():
		spec.Net = seccomp.NetLoopback
	case r.rs.Policy.Network.Mode != policy.NetworkNone:
		spec.Net = seccomp.NetHost
	}
	for _, o := range r.rs.Policy.Open {
		if o.Syscall != "" {
			spec.Allow = append(spec.Allow, o.Syscall)
		}
	}
	if spec.DenySysV {
		r.lost("System V shared memory, queues and semaphores are closed: the IPC namespace is the host's")
	}
	r.rs.Filter = spec
}

func (r *resolver) environment() {
	n, e := r.rs.Node, r.rs.Policy.Environment
	image := func(name string) bool { return n.ImageEnv[name] }
	for _, kv := range n.Env {
		name, value, ok := strings.Cut(kv, "=")
		if ok && policy.LooksSecret(name, value) {
			r.rs.Dropped = append(r.rs.Dropped, name) // said, although most would not be kept anyway
			continue
		}
		if !ok || !e.Keeps(name, image) {
			continue
		}
		if !slices.ContainsFunc(e.Set, func(v policy.Variable) bool { return v.Name == name }) {
			r.rs.Env = append(r.rs.Env, kv)
		}
	}
	for _, v := range e.Set {
		r.rs.Env = append(r.rs.Env, v.Name+"="+v.Value)
	}
	if r.rs.Policy.Network.Mode == policy.NetworkProxy {
		proxy := proxyEnv()
		r.rs.Env = slices.DeleteFunc(r.rs.Env, func(kv string) bool {
			return slices.ContainsFunc(proxy, func(p string) bool { return sameName(p, kv) })
		})
		r.rs.Env = append(r.rs.Env, proxy...)
	}
	slices.Sort(r.rs.Dropped)
}

// sameName reports whether two NAME=VALUE have the same name.
func sameName(a, b string) bool {
	name, _, _ := strings.Cut(a, "=")
	return strings.HasPrefix(b, name+"=")
}

// workdir leaves a folder that the command must not reach: from inside, a
// path walk goes up under the mask.
func (r *resolver) workdir() {
	dir := r.rs.Workdir
	gone := dir == "" || r.rs.Form == Bare && r.goneAny(dir, r.hiddenPaths()) || withinAny(dir, r.covered) && !slices.ContainsFunc(r.rs.Mounts, func(op MountOp) bool {
		return op.Kind == MountShow && within(dir, op.Path) || op.Kind == MountTmp && dir == op.Path
	})
	switch {
	case !gone && (!r.rs.Node.AskedDir || r.rs.Node.Stat(dir).Dir):
	case r.rs.Node.AskedDir:
		r.refuse(Problem{What: "the working folder " + dir + " does not exist inside the fence", Do: "choose another --workdir, or open it: --read " + dir + ` --why "..."`})
	default:
		r.rs.Workdir = "/"
	}
}

func errText(err error) string {
	if err == nil {
		return "in force"
	}
	if errors.Is(err, unix.ENOSPC) {
		return "ENOSPC, no more are allowed here: user.max_*_namespaces"
	}
	return err.Error()
}
