// Package workloads holds the fence against what people's tasks run: each workload of the table
// does under the policy strict, in both forms, what it does without, down to the last byte of its
// output, and breaks in a known way when the one right that it needs is taken away.
//
// table.go is the table. The tests run it in a real Apptainer container, as an ordinary user and
// as the user 0 that --fakeroot makes of one; inside/ is the program that does so there.
// docs/workloads.md is written from the table, and a test keeps it so.
package workloads

import (
	"embed"
	"io/fs"
)

// A Workload is a script and what comes of it.
type Workload struct {
	Name  string // of the test, and of its folder
	About string // what a person calls it
	Run   string // for bash, after Prelude, in an empty folder of its own

	// What comes of it without the fence, and so with it. Nothing is normalised: a script that
	// prints a number of a process or a time cuts it out itself, in sight.
	Want   string // on stdout
	Stderr string
	Status int

	// Less is the right whose removal breaks it. Breaks, a regular expression, is found in what
	// it then prints.
	Less, Breaks string

	// Idle says why no right breaks it, of a workload without Less.
	Idle string

	// Denied is for what strict does not allow by design: it fails there and says this. With the
	// flags Open it works as without.
	Denied string
	Open   []string

	// DeniedBare is for what works under strict in the namespace form only: what it says in the other.
	DeniedBare string

	As   Who
	Slow bool // more than a second of work: only in the full tests
}

// Who is who runs a workload: by default both. What is slow, one of them.
type Who string

const (
	User Who = "user" // the ordinary user
	Root Who = "root" // the same, as user 0 of --fakeroot
)

// RunsAs reports whether who runs the workload.
func (w Workload) RunsAs(who Who) bool { return w.As == "" || w.As == who }

// The arms: ways to run a workload.
const (
	Without = "without" // the fence
	Strict  = "strict"  // under fence -- ...
	Bare    = "bare"    // the same, as on a node that allows no namespaces
	Opened  = "opened"  // under fence with the workload's flags
	LessArm = "less"    // under strict less its right
	Whole   = "whole"   // the same, less nothing: what breaks without a right works with it
)

// Arms is all of them.
var Arms = []string{Without, Strict, Bare, Opened, Whole, LessArm}

// launcher is fence in the container.
const launcher = "/.fence/fence"

// Prefix is what stands before the command in an arm.
func (w Workload) Prefix(arm, inside string) []string {
	switch arm {
	case Strict:
		return []string{launcher, "--"}
	case Bare:
		return []string{launcher, "--form", "bare", "--"}
	case Opened:
		return append(append([]string{launcher}, w.Open...), "--why", "a test", "--")
	case Whole:
		return []string{inside, "--less", Nothing, "--"}
	case LessArm:
		return []string{inside, "--less", w.Less, "--"}
	case Without:
		return nil
	}
	return []string{"/no/such/arm/" + arm}
}

// Result is what came of a workload in an arm.
type Result struct {
	Name, Arm      string
	Stdout, Stderr []byte
	Status         int    // 128 and the signal, as in a shell
	Broken         string `json:",omitempty"` // why nothing can be said
	Seconds, CPU   float64
}

const (
	// Dir is where workloads run, in a /tmp of the container's own.
	Dir = "/tmp/w"
	// Prelude stands before every script. HOME is an empty folder: what lies in it may differ.
	Prelude = `set -eu -o pipefail
export HOME=$PWD programs=/tmp/w/programs TMPDIR=$PWD/.tmp
`
)

//go:embed testdata/programs
var programs embed.FS

// Programs are the sources and scripts that are too long for the table.
func Programs() fs.FS {
	sub, err := fs.Sub(programs, "testdata/programs")
	if err != nil {
		panic(err) // the folder is embedded
	}
	return sub
}

// Find returns the workload of that name.
func Find(name string) (Workload, bool) {
	for _, w := range Table {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}

// Rights of the policy strict, one of which a workload may need. In capitals: Landlock's name.
const (
	Nothing        = "nothing"
	ExecuteMade    = "execute what was made in /tmp"
	ReadDir        = "list folders (READ_DIR)"
	WriteRoot      = "write to the container's own folders"
	WriteFile      = "write to files (WRITE_FILE)"
	Truncate       = "shorten files (TRUNCATE)"
	RemoveDir      = "remove folders (REMOVE_DIR)"
	RemoveFile     = "remove files (REMOVE_FILE)"
	MakeReg        = "make files (MAKE_REG)"
	MakeDir        = "make folders (MAKE_DIR)"
	MakeSock       = "make sockets (MAKE_SOCK)"
	MakeFifo       = "make FIFOs (MAKE_FIFO)"
	MakeSym        = "make symbolic links (MAKE_SYM)"
	Refer          = "move and link between folders (REFER)"
	IoctlDev       = "control terminals (IOCTL_DEV)"
	DevShm         = "write to /dev/shm"
	Meminfo        = "read /proc/meminfo"
	Sys            = "read /sys"
	Lang           = "keep the variable LANG"
	SysV           = "System V IPC, in a namespace of its own"
	Clone3         = "clone3 absent (ENOSYS), so that libc falls back"
	UnixSocket     = "Unix sockets"
	Socketpair     = "socketpair"
	Netlink        = "netlink route sockets"
	Affinity       = "sched_setaffinity"
	MemoryPolicy   = "mbind, set_mempolicy"
	Personality    = "personality(ADDR_NO_RANDOMIZE)"
	Priority       = "setpriority on itself"
	Scheduler      = "sched_setscheduler on itself"
	Limits         = "prlimit on itself"
	Flock          = "flock"
	ProcessGroups  = "setpgid"
	ExecutableHeap = "memory to write to and to execute"
)
