// Package policy reads what a person allows a command to touch.
//
// A policy is TOML (docs/policy.md). Parse refuses what it does not know:
// an unknown key, an unknown set, an opening without a reason. The package
// knows nothing of kernels or of the node; pkg/sandbox resolves a Policy
// against what the node has.
package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Policy is what a command may touch, as a person wrote it. The zero Policy
// allows nothing: no file, no socket, no variable.
type Policy struct {
	Name            string `json:"-"` // of the built-in, or the file's path
	Extends         string `json:"-"` // the policy this one started from, "" for none
	Filesystem      Filesystem
	Network         Network
	Environment     Environment
	Capabilities    []string // kept in the command's own user namespace, by name ("CAP_CHOWN"), usually none
	CapabilitiesWhy string   // required when Capabilities is not empty
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
type NetworkMode string

const (
	NetworkNone     NetworkMode = ""         // AF_UNIX and netlink route only; a file says "none"
	NetworkLoopback NetworkMode = "loopback" // and servers of the command's own, which it alone reaches
	NetworkProxy    NetworkMode = "proxy"    // and 127.0.0.1:3128, which leads to the Unix socket of a proxy
	NetworkHost     NetworkMode = "host"     // the host's network
)

// ProxySocket is the proxy's socket where a policy names none.
const ProxySocket = "/.fence/proxy.sock"

func (m NetworkMode) String() string { return cmp.Or(string(m), "none") }

// OnlyLoopback reports whether the command's network is its own servers.
func (m NetworkMode) OnlyLoopback() bool { return m == NetworkLoopback || m == NetworkProxy }

// Network is the [network] table.
type Network struct {
	Mode   NetworkMode
	Socket string `json:",omitempty"` // of NetworkProxy: an absolute path
	Why    string // required for NetworkHost and NetworkProxy
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
type Access string

const (
	AccessNone   Access = ""
	AccessRead   Access = "read"   // read and execute
	AccessWrite  Access = "write"  // read, execute and change
	AccessDevice Access = "device" // read, write and ioctl on device files (GPUs)
)

// Open loosens one thing and says why; an Open without a reason does not
// parse. Exactly one of Path and Syscall is set.
type Open struct {
	Path    string // absolute, clean; with AccessDevice a pattern as in path.Match
	Access  Access // with Path
	Syscall string // a system call's name
	Why     string
	From    string `json:"-" toml:"-"` // where it was written: "FILE:LINE", or the flag
}

// Accept names a weakness that a person takes knowingly ("landlock-hide").
type Accept struct {
	Name string
	Why  string
	From string `json:"-" toml:"-"`
}

// Loosening is one thing that a policy opens, and the reason given for it.
type Loosening struct {
	What string `json:"what"` // "read /wheels", "network host", "accept landlock-hide"
	Why  string `json:"why"`
	From string `json:"from,omitempty"` // "FILE:LINE" or the flag, where known
}

// Whys lists every loosening that has a reason, in the policy's order.
// Reports print it whole; of set variables they print the names only.
func (p Policy) Whys() []Loosening {
	fs, kept := p.Filesystem, slices.Clone(p.Environment.Keep)
	for _, v := range p.Environment.Set {
		kept = append(kept, v.Name+"=...")
	}
	ws := []Loosening{
		{"files " + strings.Join(slices.Concat(fs.Read, fs.Write), " "), fs.Why, ""},
		{strings.TrimSpace("network " + p.Network.Mode.String() + " " + p.Network.Socket), p.Network.Why, ""},
		{"environment " + strings.Join(kept, " "), p.Environment.Why, ""},
		{"capabilities " + strings.Join(p.Capabilities, " "), p.CapabilitiesWhy, ""},
	}
	for _, o := range p.Open {
		ws = append(ws, Loosening{o.String(), o.Why, o.From})
	}
	for _, a := range p.Accept {
		ws = append(ws, Loosening{"accept " + a.Name, a.Why, a.From})
	}
	return slices.DeleteFunc(ws, func(l Loosening) bool { return l.Why == "" || l.What == "network none" })
}

// Digest names what p allows, with its reasons: equal digests, equal policies.
// The policy's name and where its lines stood do not count.
func (p Policy) Digest() string {
	data, err := json.Marshal(p)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

func (o Open) String() string {
	if o.Syscall != "" {
		return "syscall " + o.Syscall
	}
	return string(o.Access) + " " + o.Path
}

func (l Limit) String() string {
	if l.Value == Unlimited {
		return l.Name + "=unlimited"
	}
	return l.Name + "=" + strconv.FormatUint(l.Value, 10)
}
