// Package seccomp says which system calls a fenced command may make, and
// makes the kernel enforce it.
//
// The filter is an allow list: a call that the table (table.go) does not name
// fails with ENOSYS, as on a kernel that lacks it, so that libraries fall back
// to what they did before the call existed. What is refused on purpose fails
// with the errno that makes programs cope (EPERM, EAFNOSUPPORT, ...). Nothing
// is ever killed. Calls of another architecture (i386, x32) fail with ENOSYS.
//
// What it does not do: a filter sees numbers and register arguments, never
// paths or addresses. Files are Landlock's and the mounts' part; so is AF_UNIX
// by path.
//
// Rules is pure. Program returns a program compiled when this package was
// built, where there is one, so that fence starts without libseccomp's work.
package seccomp

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:generate go run ./gen numbers.go
//go:generate go test -run Embedded . -update
//go:generate go test -run Golden . -update

// Net says which sockets there may be. The zero value is NetNone.
type Net int

const (
	NetNone Net = iota // AF_UNIX, and AF_NETLINK route (interface names)
	NetHost            // NetNone's, and TCP and UDP over IPv4 and IPv6
	// NetLoopback is NetNone's, and TCP over IPv4 and IPv6 whose connect, bind
	// and listen a supervisor is asked about: see LoadListener.
	NetLoopback
)

// Spec is what a filter is made for. Its zero value names no architecture and
// is refused.
type Spec struct {
	Arch string // "amd64", "arm64"
	Net  Net

	// Allow names system calls that a policy opens: whatever the table says
	// of them, they are allowed with all arguments. An unknown name is an
	// error, and so is a call that Net governs. Warning says what an opening
	// gives away.
	Allow []string

	// DenyKillAll refuses kill(-1, ...). Ask for it where neither Landlock's
	// signal scope nor a private pid namespace keeps that call inside.
	DenyKillAll bool

	// DenySysV refuses System V IPC and opening POSIX message queues. Ask for
	// it where the IPC namespace is the host's.
	DenySysV bool

	// DenyUnix refuses AF_UNIX but for pairs that are connected to each other
	// for good. Ask for it where the host's abstract sockets could be reached:
	// neither Landlock's scope nor a network namespace keeps them out, and the
	// filter cannot see whose name an address is.
	DenyUnix bool
}

// Verdict is what the filter answers, in the kernel's encoding. The zero
// Verdict kills the thread; the table never says that.
type Verdict uint32

// Allow lets the kernel go on with the call.
const Allow Verdict = unix.SECCOMP_RET_ALLOW

// Ask lets a supervisor answer the call. Without one it fails with ENOSYS.
const Ask Verdict = unix.SECCOMP_RET_USER_NOTIF

// Fail is the verdict that makes a call fail with errno.
func Fail(errno unix.Errno) Verdict { return unix.SECCOMP_RET_ERRNO | Verdict(errno) }

// unlisted is the answer to what no rule names.
var unlisted = Fail(unix.ENOSYS)

// String is "allow", "ask", an errno's name, or the number.
func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case Ask:
		return "ask"
	}
	if v&^unix.SECCOMP_RET_DATA == unix.SECCOMP_RET_ERRNO {
		if name := unix.ErrnoName(unix.Errno(v & unix.SECCOMP_RET_DATA)); name != "" {
			return name
		}
	}
	return fmt.Sprintf("%#x", uint32(v))
}

// Tree decides about a call. Without branches it is its Verdict. Otherwise
// the branch decides whose Value the argument has, and the Verdict is for the
// values that no branch has.
//
// Only the low 32 bits of an argument are looked at, and of those only Mask:
// all arguments that the table tests are 32-bit in the kernel, and a test
// that saw more than the kernel does could be walked around.
type Tree struct {
	Verdict  Verdict
	Arg      int
	Mask     uint32
	Branches []Branch
}

// Branch is the Tree for one value of its parent's argument.
type Branch struct {
	Value uint32
	Tree
}

// Rule is the table's answer to one system call of one architecture.
type Rule struct {
	Name string
	Nr   int
	Tree
}

// Decide is what the tree says for a call with these arguments.
func (t Tree) Decide(args [6]uint64) Verdict {
	for _, b := range t.Branches {
		if uint32(args[t.Arg])&t.Mask == b.Value {
			return b.Decide(args)
		}
	}
	return t.Verdict
}

// Rules returns the rules of a filter, sorted by number. A call that has none
// fails with ENOSYS.
func Rules(s Spec) ([]Rule, error) {
	if _, ok := netNames[s.Net]; !ok {
		return nil, fmt.Errorf("seccomp: unknown network mode %d", s.Net)
	}
	if _, ok := auditArch[s.Arch]; !ok {
		return nil, fmt.Errorf("seccomp: no table for architecture %q", s.Arch)
	}
	trees := table(s)
	for _, name := range s.Allow {
		if !Known(name) {
			return nil, fmt.Errorf("seccomp: unknown system call %q", name)
		}
		if slices.Contains(governedByNet, name) {
			return nil, fmt.Errorf("seccomp: %s is governed by the network mode and cannot be opened by name", name)
		}
		trees[name] = Tree{Verdict: Allow}
	}
	var rules []Rule
	for _, n := range numbers {
		nr := n.amd64
		if s.Arch == "arm64" {
			nr = n.arm64
		}
		if t, ok := trees[n.name]; ok && nr >= 0 {
			rules = append(rules, Rule{n.name, int(nr), t})
		}
	}
	slices.SortFunc(rules, func(a, b Rule) int { return a.Nr - b.Nr })
	return rules, nil
}

// netNames are the modes that there are, as the files of filters have them.
var netNames = map[Net]string{NetNone: "none", NetHost: "host", NetLoopback: "loopback"}

// auditArch is the kernel's name for each architecture (linux/audit.h).
var auditArch = map[string]uint32{
	"amd64": unix.AUDIT_ARCH_X86_64,
	"arm64": unix.AUDIT_ARCH_AARCH64,
}

// Known says whether any architecture has a system call of that name.
func Known(name string) bool {
	return slices.ContainsFunc(numbers[:], func(n numbered) bool { return n.name == name })
}

// Names returns the names of all system calls, sorted.
func Names() []string {
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = n.name
	}
	return names
}

// filters has the programs of the standard specs: those without Allow and DenyUnix.
//
//go:embed filters/*.bpf
var filters embed.FS

// standardName is the name of a spec's program in filters, "" if the spec is
// not a standard one.
func standardName(s Spec) string {
	net, ok := netNames[s.Net]
	if len(s.Allow) > 0 || s.DenyUnix || s.Arch == "" || !ok {
		return ""
	}
	name := s.Arch + "-" + net
	if s.DenyKillAll {
		name += "-nokillall"
	}
	if s.DenySysV {
		name += "-nosysv"
	}
	return name + ".bpf"
}

// Program returns the spec's filter, as Compile does, but from those compiled
// beforehand if the spec is one of the standard ones.
func Program(s Spec) ([]byte, error) {
	if name := standardName(s); name != "" {
		if prog, err := filters.ReadFile("filters/" + name); err == nil {
			return prog, nil
		}
	}
	return Compile(s)
}

// Digest names a program in reports: its SHA-256.
func Digest(prog []byte) string {
	sum := sha256.Sum256(prog)
	return hex.EncodeToString(sum[:])
}

const insnSize = 8 // struct sock_filter

// Load makes the kernel apply prog to the calling thread and to all that it
// forks or executes from then on. It cannot be undone.
//
// The caller has locked the goroutine to its thread and set no_new_privs
// (without which the kernel says EACCES to an ordinary user), and executes the
// command from that same thread: other threads stay as they were.
func Load(prog []byte) error {
	_, err := load(prog, 0)
	return err
}

// LoadListener is Load for a program that answers Ask: whoever has the
// descriptor is the supervisor, and when none is left the calls fail with
// ENOSYS. A call that the supervisor has received is given up only by a thread
// that is killed, where the kernel can do that (Linux 5.19): another signal
// would make the thread ask again for what is done already.
func LoadListener(prog []byte) (listener int, err error) {
	const killable = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, err := load(prog, killable)
	if errors.Is(err, unix.EINVAL) {
		fd, err = load(prog, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	return fd, err
}

func load(prog []byte, flags uintptr) (int, error) {
	if len(prog) == 0 || len(prog)%insnSize != 0 || len(prog)/insnSize > 4096 {
		return -1, errors.New("seccomp: not a filter program")
	}
	fprog := unix.SockFprog{Len: uint16(len(prog) / insnSize), Filter: (*unix.SockFilter)(unsafe.Pointer(&prog[0]))}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return -1, fmt.Errorf("seccomp: loading the filter: %w", errno)
	}
	return int(fd), nil
}
