// Package sandbox resolves a policy against a node and enforces the result
// on this process, which then becomes the command.
//
// Resolve decides and touches nothing; Enforce acts, in one order, and either
// all of it is in force when the command starts or the command does not
// start. What it is not: a virtual machine. The kernel is shared.
package sandbox

import (
	"slices"
	"strings"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"fence/pkg/policy"
	"fence/pkg/seccomp"
)

// Form is how hiding is done. The zero value is the weaker form, chosen only
// where the stronger one cannot be had.
type Form int

const (
	Bare      Form = iota // Landlock and seccomp alone
	Namespace             // and own user, mount, IPC and network namespaces
)

func (f Form) String() string {
	if f == Namespace {
		return "namespace"
	}
	return "bare"
}

// Landlock rights, grouped as rules use them. A rule is cut down to what the
// kernel handles; what it does not handle is in Ruleset.Lost or refused.
const (
	rightsRead      = ll.AccessFSExecute | ll.AccessFSReadFile | ll.AccessFSReadDir
	rightsReadFile  = ll.AccessFSExecute | ll.AccessFSReadFile
	rightsWriteFile = ll.AccessFSWriteFile | ll.AccessFSTruncate
	// Device nodes are never made (MAKE_CHAR, MAKE_BLOCK), and every layer
	// denies moving files between folders unless it grants REFER.
	rightsChange = rightsWriteFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym | ll.AccessFSRefer
	rightsTTY = ll.AccessFSReadFile | ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSIoctlDev
	// rightsOfFile are those that a rule on something not a folder may have.
	rightsOfFile = ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSTruncate |
		ll.AccessFSIoctlDev | ll.AccessFSResolveUnix
)

// PathRule grants rights on a path and all below it.
type PathRule struct {
	Path   string `json:"path"`   // without links
	Rights uint64 `json:"rights"` // of landlock(7), LANDLOCK_ACCESS_FS_*
	Dir    bool   `json:"dir"`

	// Listed: found by listing a folder, in which others may put something
	// else before the rule is made.
	Listed bool `json:"-"`
	// Open: of a descriptor. The path is the kernel's link to its file.
	Open bool `json:"-"`
}

// Hidden is one path that the command must not reach, and how that is done.
type Hidden struct {
	Path string `json:"path"`
	Set  string `json:"set,omitempty"` // the set that named it; "" if a person did
	How  string `json:"how"`           // "masked", "landlock"; what is absent is not listed
	Dir  bool   `json:"dir"`
}

// Ruleset is a Policy resolved against a Node: what Enforce will do, printable
// before it is done.
type Ruleset struct {
	Policy policy.Policy
	Form   Form
	Node   Node

	Mounts  []MountOp
	Paths   []PathRule
	Hidden  []Hidden
	Handled struct{ FS, Net, Scoped uint64 }
	Filter  seccomp.Spec
	Env     []string
	Dropped []string // names of variables that look like credentials
	Workdir string
	Lost    []string // what this form or kernel cannot do, one sentence each

	// HandOver gives the supervisor the filter's listener, where Supervised
	// says that there is to be one, and returns when it answers.
	HandOver func(listener int) (Session, error)

	Below  []Below // fences to be made below this one
	joined *joined // this one was made for us, below another
}

// Session is the network of a supervised command.
type Session struct {
	V4, V6 [4]byte // of 127.0.0.0/8: what it calls 127.0.0.1, and ::1
	Decoy  uint16  // a port of 127.0.0.1 on which somebody else listens
}

// Problem is one reason why a policy cannot be enforced on a node.
type Problem struct {
	What   string // one sentence
	Do     string // what the person can do
	Accept string // the name under which it may be accepted, "" if never
	Taken  string // what is lost where it was accepted; "": What
}

// Refusal is why a policy cannot be enforced here. Nothing has run.
type Refusal struct{ Problems []Problem }

func (r *Refusal) Error() string {
	var whats []string
	for _, p := range r.Problems {
		whats = append(whats, p.What)
	}
	return strings.Join(whats, "; ")
}

// Hint is what to do about it: one line for each different advice, and the
// risks that can be taken instead, where that would be enough.
func (r *Refusal) Hint() string {
	var lines, risks []string
	for _, p := range r.Problems {
		for line := range strings.SplitSeq(p.Do, "\n") {
			if line != "" && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
		if risk := "--accept " + p.Accept; !slices.Contains(risks, risk) {
			risks = append(risks, risk)
		}
	}
	if !slices.Contains(risks, "--accept ") {
		lines = append(lines, "or take the risk by name: "+strings.Join(risks, " ")+` --why "..."`)
	}
	return strings.Join(lines, "\n")
}
