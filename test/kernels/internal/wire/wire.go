// Package wire is what the kernel tests and the program that runs inside the guest say to each other: one Plan on the way in
// (a file in the initramfs), Event lines on the way out (a serial port of their own, so that the kernel's messages cannot
// cut into them).
package wire

// A User is who runs a command in the guest. The zero value is an ordinary user.
type User string

const (
	Alice User = ""     // uid and gid 1000, home /home/alice
	Bob   User = "bob"  // uid and gid 1001, home /home/bob: the other account on the node
	Root  User = "root" // uid 0 with every capability: for preparing the node only
)

// A Command is one program to run in the guest. Commands run one after the other, in the order of the Plan.
type Command struct {
	Argv []string
	User User              `json:",omitempty"`
	Dir  string            `json:",omitempty"` // "" is the user's home
	Env  []string          `json:",omitempty"` // beside HOME, USER, PATH and TMPDIR
	In   string            `json:",omitempty"` // standard input
	Set  map[string]string `json:",omitempty"` // sysctls (dots or slashes) written as root before the command; they stay

	// Background leaves the command running once it has printed its first line on stdout, or ended; its Outcome is taken when
	// the other commands are done and it has been ended.
	Background bool `json:",omitempty"`

	// Seconds after which the command is killed and its Outcome says so; 0 is 60.
	Seconds int `json:",omitempty"`
}

// An Outcome is what became of a Command. Exactly one of the following holds: Err is not empty (it did not start), Killed, Signal
// is not 0, or Exit is its status.
type Outcome struct {
	Stdout, Stderr []byte
	Exit           int
	Signal         int
	Killed         bool   // ran past its time, or was a Background command ended with the guest
	Err            string // why it could not be started
	Millis         int64  // from start to end, by the guest's clock
}

// A Plan is all that the guest does before it powers off.
type Plan struct {
	Port     string            // the serial port for Events
	Set      map[string]string // sysctls, as in Command
	Disk     bool              // there is a disk with a filesystem for /disk
	Modules  []string          // kernel modules to load, paths, in order
	Commands []Command
}

// Facts is what the guest saw by trying, before the first command and without any tool of ours.
type Facts struct {
	Release       string   // uname -r
	Machine       string   // uname -m
	LandlockABI   int      // 0: no Landlock
	LandlockErr   string   // why not: ENOSYS (not built) or EOPNOTSUPP (not enabled at boot)
	Errata        int      // landlock errata that are fixed; -1: this kernel cannot say
	LSM           string   // /sys/kernel/security/lsm
	Yama          int      // kernel.yama.ptrace_scope; -1: no Yama
	Seccomp       string   // actions_avail
	UserNS        bool     // an ordinary user can make a user namespace ...
	MountNS       bool     // ... with a mount namespace, and mount a tmpfs in it
	NetNS         bool     // ... with a network namespace
	PidNS         bool     // ... with a pid namespace
	TmpfsXattr    bool     // files on tmpfs take attributes of users
	Overlay       bool     // overlay is among /proc/filesystems
	ModuleErrors  []string // modules that did not load
	SetupProblems []string // mounts and the like that failed: the guest goes on, the test says so
}

// An Event is one line of the guest's.
type Event struct {
	Facts   *Facts   `json:",omitempty"` // first
	Index   int      // of the command that Outcome is of
	Outcome *Outcome `json:",omitempty"`
	End     bool     `json:",omitempty"` // last: the guest did all that the Plan asked
	Fault   string   `json:",omitempty"` // the guest cannot go on
}
