// Package facts is what the checker, run inside a fence, tells the test about
// what it can reach.
package facts

// Config says what to try. It is the checker's only argument, as JSON.
type Config struct {
	Decoy    string   // a folder hidden by --hide, with a file "secret" in it
	Fake     string   // a folder that $HOME names, with a file "secret" in it
	Home     string   // the account's own, with a file ".netrc" in it
	Shown    string   // a folder in Fake that the policy opens for reading, with a file "data" in it
	Agent    string   // a listening socket that $SSH_AUTH_SOCK names
	Planted  []string // files in the host's /tmp, /var/tmp and /dev/shm
	Device   string   // a device that the person may open and no policy opens
	Victim   int      // a process of the person's outside the fence
	Port     int      // a server on 127.0.0.1 outside the fence
	Abstract string   // an abstract Unix socket outside the fence
	Hidden   []string // what a launch without a fault said that it hides
	Places   bool     // the protected places of a container exist here
	Out      string   // an existing file for the answer, instead of stdout
}

// Facts is everything the checker saw, as JSON on its stdout.
type Facts struct {
	// Tried is what came of each attempt: "ok", an errno's name, or what the
	// attempt found.
	Tried map[string]string

	NoNewPrivs, Seccomp, Filters string // as /proc/self/status has them
	Caps                         map[string]string
	SecureBits                   int

	Layers int // of Landlock, -1 if they could not be counted
	FDs    map[string]string
	Env    []string // names
	Limits map[string][2]uint64
	NS     map[string]string
	Cwd    string
	Places map[string]Place // by path: Config.Hidden, /proc, /sys, /dev, /tmp, ...
	Dev    []string         // names in /dev
	Pts    []string         // names in /dev/pts
	Mounts string           // /proc/self/mountinfo
}

// Place is what a path is, seen from inside.
type Place struct {
	Open     string // "ok" or an errno's name
	Type     string // "dir", "file", "char 1:3", ...
	Tmpfs    bool
	ReadOnly bool
	Names    []string // in a folder
}
