// Package policy reads what a person allows a command to touch.
//
// A policy is TOML (docs/policy.md). Parse refuses what it does not know:
// an unknown key, an unknown set, an opening without a reason. The package
// knows nothing of kernels or of the node; pkg/sandbox resolves a Policy
// against what the node has.
package policy

import (
	"slices"
	"strconv"
	"strings"
)

// Policy is what a command may touch, as a person wrote it. The zero Policy
// allows nothing: no file, no socket, no variable.
type Policy struct {
	Name    string // of the built-in, or the file's path
	Extends string // the policy this one started from, "" for none

	Filesystem  Filesystem
	Network     Network
	Environment Environment
	// Capabilities kept in the command's own user namespace, by name
	// ("CAP_CHOWN"), see capabilities(7). Usually none.
	Capabilities    []string
	CapabilitiesWhy string // required when Capabilities is not empty
	Limits          []Limit
	Open            []Open
	Accept          []Accept
}

// Filesystem names paths. Entries are absolute, clean paths without a pattern,
// or sets ("@root"). No literal entry of Read or Write, and no Open, lies at or
// beneath a literal entry of Hide; an Open beats a set for exactly its path.
type Filesystem struct {
	Read  []string // may be read and executed
	Write []string // may be read, executed and changed
	Hide  []string // must be unreachable: not listed, read, written or stat'ed
	Why   string   // required when Read or Write names more than @root and @tmp
}

// Sets that Filesystem entries and Environment.Keep may name.
const (
	SetRoot    = "@root"    // the container's own root filesystem; on a bare host, the root mount
	SetTmp     = "@tmp"     // /tmp, /var/tmp, /dev/shm
	SetShared  = "@shared"  // network and cluster filesystems, and binds that are not the runtime's own
	SetHome    = "@home"    // the user's home folder
	SetSockets = "@sockets" // sockets of munge, Slurm, D-Bus, container engines, agents, terminal multiplexers
	SetImage   = "@image"   // environment only: the variables that the image sets
)

// NetworkMode says which sockets a command may have. The zero value is None.
type NetworkMode int

const (
	NetworkNone NetworkMode = iota // AF_UNIX and netlink route only
	NetworkHost                    // the host's network
)

// Network is the [network] table.
type Network struct {
	Mode NetworkMode
	Why  string // required for NetworkHost
}

// Environment is the [environment] table.
type Environment struct {
	Keep []string   // names, "LC_*" prefixes, or "@image"
	Set  []Variable // set whatever the caller had, sorted by name
	Why  string     // of the --env flags, or of the file where it says so
}

// Variable is one NAME=VALUE of the environment.
type Variable struct{ Name, Value string }

// Limit is one resource limit of setrlimit(2), soft and hard alike.
type Limit struct {
	Name  string // "nofile", "core", "nproc", "fsize", "as", "cpu", "memlock", "stack", ...
	Value uint64 // in the limit's own unit; Unlimited for none
}

// Unlimited is RLIM_INFINITY.
const Unlimited = ^uint64(0)

// Access says what an opening allows. The zero value allows nothing.
type Access int

const (
	AccessNone   Access = iota
	AccessRead          // read and execute
	AccessWrite         // read, execute and change
	AccessDevice        // read, write and ioctl on device files (GPUs)
)

// Open loosens one thing and says why; an Open without a reason does not
// parse. Exactly one of Path and Syscall is set.
type Open struct {
	Path    string // absolute, clean; with AccessDevice a pattern as in path.Match
	Access  Access // with Path
	Syscall string // a system call's name
	Why     string
	From    string // where it was written: "FILE:LINE", or the flag
}

// Accept names a weakness that a person takes knowingly ("landlock-hide").
type Accept struct {
	Name string
	Why  string
	From string
}

// Loosening is one thing that a policy opens, and the reason given for it.
type Loosening struct {
	What string `json:"what"` // "read /wheels", "network host", "accept landlock-hide"
	Why  string `json:"why"`
	From string `json:"from,omitempty"` // "FILE:LINE" or the flag, where known
}

// Whys lists every loosening that has a reason, in the policy's order.
// Reports print it whole.
func (p Policy) Whys() []Loosening {
	var ws []Loosening
	add := func(what, why, from string) {
		if why != "" {
			ws = append(ws, Loosening{what, why, from})
		}
	}
	fs := p.Filesystem
	add("files "+strings.Join(append(slices.Clone(fs.Read), fs.Write...), " "), fs.Why, "")
	if p.Network.Mode != NetworkNone {
		add("network "+p.Network.Mode.String(), p.Network.Why, "")
	}
	add("environment "+strings.Join(p.Environment.names(), " "), p.Environment.Why, "")
	add("capabilities "+strings.Join(p.Capabilities, " "), p.CapabilitiesWhy, "")
	for _, o := range p.Open {
		add(o.String(), o.Why, o.From)
	}
	for _, a := range p.Accept {
		add("accept "+a.Name, a.Why, a.From)
	}
	return ws
}

// String is the policy on one line, for a person. Values of variables are
// left out: names only.
func (p Policy) String() string {
	var b strings.Builder
	b.WriteString(p.Name)
	part := func(name string, words []string) {
		if len(words) > 0 {
			b.WriteString("; " + name + " " + strings.Join(words, " "))
		}
	}
	part("read", p.Filesystem.Read)
	part("write", p.Filesystem.Write)
	part("hide", p.Filesystem.Hide)
	part("network", []string{p.Network.Mode.String()})
	part("environment", p.Environment.names())
	part("capabilities", p.Capabilities)
	for _, l := range p.Limits {
		part("limit", []string{l.String()})
	}
	for _, o := range p.Open {
		part("open", []string{o.String()})
	}
	for _, a := range p.Accept {
		part("accept", []string{a.Name})
	}
	return b.String()
}

func (e Environment) names() []string {
	ns := slices.Clone(e.Keep)
	for _, v := range e.Set {
		ns = append(ns, v.Name+"=...")
	}
	return ns
}

func (m NetworkMode) String() string { return nameOf(networkModes, int(m)) }
func (a Access) String() string      { return nameOf(accesses, int(a)) }

func (o Open) String() string {
	if o.Syscall != "" {
		return "syscall " + o.Syscall
	}
	return o.Access.String() + " " + o.Path
}

func (l Limit) String() string {
	if l.Value == Unlimited {
		return l.Name + "=unlimited"
	}
	return l.Name + "=" + strconv.FormatUint(l.Value, 10)
}

// The words of the file format, each at the index of its constant.
var (
	networkModes = []string{"none", "host"}
	accesses     = []string{"", "read", "write", "device"}
)

func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return "unknown(" + strconv.Itoa(i) + ")"
	}
	return names[i]
}
