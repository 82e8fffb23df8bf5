// Package policy reads what a person allows a command to touch.
//
// A policy is TOML (docs/policy.md). Parse refuses what it does not know:
// an unknown key, an unknown set, an opening without a reason. The package
// knows nothing of kernels or of the node; pkg/sandbox resolves a Policy
// against what the node has.
package policy

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
	Capabilities []string
	Limits       []Limit
	Open         []Open
	Accept       []Accept
}

// Filesystem names paths. Entries are absolute paths or sets ("@root").
type Filesystem struct {
	Read  []string // may be read and executed
	Write []string // may be read, executed and changed
	Hide  []string // must be unreachable: not listed, read, written or stat'ed
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
	Set  []Variable // set whatever the caller had
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
	Path    string // absolute, cleaned
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
