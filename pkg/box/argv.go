package box

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/apptainer"
	"fence/pkg/result"
)

const inFence = "/.fence/"

// Empty is a command that removes what is in folders, which stay. It needs
// nothing of the image's, whose programs an agent may have changed or removed,
// and ends with 0 only if they are empty, or not there.
func Empty(dirs ...string) []string { return append([]string{inFence + "probe", "__empty"}, dirs...) }

// networks are the modes; of both domains.
var networks = []string{"none", "loopback", "host"}

// check refuses what could not be started, or not as it is meant.
func (o Options) check() error {
	bad := func(format string, args ...any) error {
		return &Error{Class: "start_failed", Cause: "infra", Message: fmt.Sprintf(format, args...)}
	}
	paths := []string{o.Apptainer, o.Fence, o.Probe, o.Image, o.Scratch}
	for _, b := range o.Binds {
		paths = append(paths, b.Source, b.Target)
	}
	for _, p := range slices.Concat(paths, o.Private) {
		if !filepath.IsAbs(p) {
			return bad("%q is not an absolute path", p)
		}
	}
	// Of all but the image: it stands for itself.
	for _, p := range slices.Delete(paths, 3, 4) {
		if strings.ContainsAny(p, ",:") {
			return bad("a path with a comma or colon cannot be handed to Apptainer: %s", p)
		}
	}
	switch {
	case !slices.Contains(networks, o.Network):
		return bad("the network mode %q is not known (%s)", o.Network, strings.Join(networks, ", "))
	case o.Network == "host" && o.Why == "":
		return bad("the host's network is opened without a reason")
	case o.Workdir != "" && !path.IsAbs(o.Workdir):
		return &Error{Class: "start_failed", Cause: "task", Message: fmt.Sprintf("workdir %q is not an absolute path", o.Workdir)}
	}
	for _, w := range o.Opens {
		if flag, value := w.flag(); w.Why == "" || value == "" {
			return bad("%s %q is opened without a path, a system call or a reason", flag, value)
		}
	}
	if _, err := os.Stat(o.Apptainer); err != nil {
		return &Error{Class: "apptainer_missing", Cause: "infra", Message: fmt.Sprintf("Apptainer: %v", err), Hint: "install it, or name it: --apptainer PATH"}
	}
	switch names, err := os.ReadDir(o.Scratch); {
	case err != nil:
		return &Error{Class: "scratch_gone", Cause: "infra", Message: fmt.Sprintf("the folder for a container: %v", err)}
	case len(names) > 0:
		return bad("the folder for a container, %s, is not empty", o.Scratch)
	}
	return nil
}

// hosts is the container's /etc/hosts, as docker run makes it.
const hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n"

// hostname is the container's: the node's own says where this runs.
const hostname = "task"

func (o Options) in(name string) string { return filepath.Join(o.Scratch, name) }

// prepare makes what a container needs in Scratch; own is Apptainer's folder.
func (o Options) prepare() (own string, err error) {
	for _, name := range []string{"overlay", "tmp", "own"} {
		if err := os.Mkdir(o.in(name), 0o700); err != nil {
			return "", fmt.Errorf("a folder for a container: %w", err)
		}
	}
	// Of the image's own /etc/hosts nothing counts in Docker either, and without
	// a localhost there servers are not found.
	err = os.WriteFile(o.in("hosts"), []byte(hosts), 0o644)
	if err == nil {
		err = os.WriteFile(o.in("resolv.conf"), nil, 0o644)
	}
	if err == nil {
		err = os.Chmod(o.in("hosts"), 0o644) // whatever the umask
	}
	if err != nil {
		return "", fmt.Errorf("a file for a container: %w", err)
	}
	return o.in("own"), nil
}

// container are Apptainer's arguments, up to the image.
func (o Options) container(ownNet bool) []string {
	argv := apptainer.Exec(o.in("overlay"), o.in("tmp"))
	argv = append(argv, "--hostname", hostname, "--bind", o.in("hosts")+":/etc/hosts")
	if o.Network != "host" { // the node's names its servers
		argv = append(argv, "--bind", o.in("resolv.conf")+":/etc/resolv.conf")
	}
	if ownNet {
		argv = append(argv, "--net", "--network", "none")
	}
	argv = append(argv, "--bind", o.Fence+":"+inFence+"fence:ro", "--bind", o.Probe+":"+inFence+"probe:ro")
	for _, b := range o.Binds {
		argv = append(argv, "--bind", b.Source+":"+b.Target+":ro")
	}
	return append(argv, o.Image)
}

// serve is the container's command: the session with its domains.
func (o Options) serve(users people) []string {
	argv := []string{inFence + "fence", "serve", "--stdio", "--domain", Verifier + "=verifier"}
	for _, d := range users.low() {
		argv = append(argv, "--domain", d+"=strict", "--below", d+"="+Verifier)
	}
	for _, p := range o.Private {
		argv = append(argv, "--private", Verifier+"="+p)
	}
	for _, d := range append(users.low(), Verifier) {
		flag := func(name, value string) { argv = append(argv, "--flag", d+":"+name+"="+value) }
		flag("net", o.Network)
		if o.Network == "host" {
			flag("why", o.Why)
		}
		for _, b := range o.Binds {
			flag("read", b.Target)
			flag("why", b.why())
		}
		for _, w := range o.Opens {
			flag(w.flag())
			flag("why", w.Why)
		}
		if u := users.in[d]; users.pretended() {
			flag("user", fmt.Sprintf("%d:%d", u.UID, u.GID))
		}
		if n := o.Limits.tasks(); n > 0 {
			if d == Verifier {
				n *= len(users.in) // those below count here, too
			}
			flag("limit", fmt.Sprintf("nproc=%d", n))
		}
	}
	return argv
}

// pretended says that somebody is not root. Then all domains are told who they
// are: one that lies below another, and is not told, is who that one is.
func (p people) pretended() bool {
	for _, u := range p.in {
		if u.UID != 0 || u.GID != 0 {
			return true
		}
	}
	return false
}

// tasks is the number of threads that the kernel lets a domain have: room for
// programs with many, and a bound for what a fork bomb makes until it is seen.
func (l Limits) tasks() int {
	if l.Processes == 0 {
		return 0
	}
	return l.Processes + 1024
}

// flag is the one of a launch of fence.
func (w Open) flag() (name, value string) {
	switch {
	case w.Syscall != "":
		return "syscall", w.Syscall
	case w.Access == "write":
		return "write", w.Path
	}
	return "read", w.Path
}

func (b Bind) why() string {
	if b.Why != "" {
		return b.Why
	}
	return "bound read-only by whoever runs the trial"
}

// opened is everything that the domains have over their policies.
func (o Options) opened() []result.Opened {
	all := []result.Opened{}
	if o.Network == "host" {
		all = append(all, result.Opened{What: "network host", Why: o.Why})
	}
	for _, b := range o.Binds {
		all = append(all, result.Opened{What: "read " + b.Target, Why: b.why()})
	}
	for _, w := range o.Opens {
		flag, value := w.flag()
		all = append(all, result.Opened{What: flag + " " + value, Why: w.Why})
	}
	return all
}

var errClosed = errors.New("closed")
