package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// client is the program under the wrapper: it makes the Landlock calls and prints what they said.
func client(mode string) int {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) // landlock_restrict_self asks for it before it looks at anything else
	said := map[string]string{}
	switch mode {
	case "ask":
		ask(said)
	case "undumpable":
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		said["fs.read_file"] = create(rulesetAttr{handled: rights{fs: 1 << 2}}, 8)
	case "enforce", "control":
		enforce(said, mode == "enforce")
	case "tsync":
		said["tsync"] = restrictSelf(9999, 1<<3)
	case "exit":
		return 3
	case "signal":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	case "fd3":
		fmt.Fprintln(os.NewFile(3, "three"), "by descriptor 3")
	}
	out, err := json.Marshal(said)
	if err != nil {
		return 1
	}
	fmt.Println(string(out))
	return 0
}

func name(errno syscall.Errno) string {
	switch errno {
	case 0:
		return "ok"
	case unix.EOPNOTSUPP: // the same number as ENOTSUP
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(errno)
}

func create(a rulesetAttr, size int) string {
	b := append(a.encode(newestABI), make([]byte, 64)...)
	return createRaw(b, size)
}

func createRaw(b []byte, size int) string {
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&b[0])), uintptr(size), 0)
	if errno == 0 {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags != unix.FD_CLOEXEC {
			return "a ruleset that is not close-on-exec"
		}
		unix.Close(int(fd))
	}
	return name(errno)
}

func restrictSelf(fd int, flags uintptr) string {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), flags, 0)
	return name(errno)
}

func query(attr, size, flags uintptr) string {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, attr, size, flags)
	if errno != 0 {
		return name(errno)
	}
	return strconv.Itoa(int(v))
}

func ask(said map[string]string) {
	said["version"] = query(0, 0, createVersion)
	said["errata"] = query(0, 0, createErrata)
	said["flag 4"] = query(0, 0, 4)
	said["version with a size"] = query(0, 8, createVersion)
	said["no attr"] = query(0, 8, 0)
	said["bad attr"] = query(1, 8, 0)
	for right, r := range lies {
		said[right] = create(rulesetAttr{handled: r}, 24)
	}
	said["fs.execute"] = create(rulesetAttr{handled: rights{fs: 1}}, 8)
	said["fs.1<<63"] = create(rulesetAttr{handled: rights{fs: 1 << 63}}, 8)
	said["nothing"] = create(rulesetAttr{}, 8)
	said["size 7"] = create(rulesetAttr{handled: rights{fs: 1}}, 7)
	said["size 64, zeroes"] = create(rulesetAttr{handled: rights{fs: 1}}, 64)
	said["size 5000"] = createRaw(make([]byte, 5000), 5000)
	beyond := append(rulesetAttr{handled: rights{fs: 1}}.encode(newestABI), make([]byte, 16)...)
	beyond[60] = 1
	said["size 64, not zero"] = createRaw(beyond, 64)
	said["quiet"] = create(rulesetAttr{handled: rights{fs: 1}, quiet: rights{fs: 1}}, 48)
	said["quiet beyond handled"] = create(rulesetAttr{handled: rights{fs: 1}, quiet: rights{fs: 2}}, 48)
	for bit := range 3 { // each is EBADF when the flag is known; the others are not asked: see "tsync"
		said[fmt.Sprintf("restrict flag %d", bit)] = restrictSelf(9999, 1<<bit)
	}
	said["restrict"] = restrictSelf(9999, 0)
}

// enforce restricts itself with all that is claimed, but for reading and what is under the folder "open", and says what it still can
// do.
func enforce(said map[string]string, restrict bool) {
	parent := os.Getppid()
	dir, err := os.Getwd()
	if err != nil {
		said["fault"] = err.Error()
		return
	}
	if restrict {
		abi, err := strconv.Atoi(query(0, 0, createVersion))
		if err != nil {
			said["fault"] = "no Landlock: " + query(0, 0, createVersion)
			return
		}
		r := rightsOf(abi)
		attr := rulesetAttr{handled: r}.encode(abi)
		fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)), 0)
		said["ruleset"] = name(errno)
		said["rule /"] = addPath(int(fd), "/", 1<<2|1<<3|1)
		said["rule open"] = addPath(int(fd), filepath.Join(dir, "open"), r.fs)
		said["rule of nothing"] = addPath(int(fd), "/", 0)
		said["rule of an unknown right"] = addPath(int(fd), "/", 1<<40)
		said["rule port"] = addPort(int(fd), r.net&(netBindTCP|netBindUDP), 0)
		if abi >= 10 {
			said["rule udp port"] = addPort(int(fd), netBindUDP, 0)
		}
		said["restrict"] = restrictSelf(int(fd), 0)
	}
	attempt := func(what string, f func() error) {
		err := f()
		var errno syscall.Errno
		switch e := unwrap(err).(type) {
		case nil:
		case syscall.Errno:
			errno = e
		default:
			said[what] = err.Error()
			return
		}
		said[what] = name(errno)
	}
	attempt("read", func() error { _, err := os.ReadFile("closed/file"); return err })
	attempt("write", func() error { return os.WriteFile("closed/file", []byte("x"), 0o600) })
	attempt("write open", func() error { return os.WriteFile("open/file", []byte("x"), 0o600) })
	attempt("truncate", func() error { return os.Truncate("closed/other", 1) })
	attempt("rename", func() error {
		if err := os.Rename("open/file", "open/sub/file"); err != nil {
			return err
		}
		return os.Rename("open/sub/file", "open/file")
	})
	attempt("connect", func() error {
		c, err := net.Dial("tcp", os.Getenv("ABIWRAP_TCP"))
		if err == nil {
			c.Close()
		}
		return err
	})
	attempt("signal", func() error { return unix.Kill(parent, 0) })
}

func unwrap(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

func addPath(ruleset int, path string, access uint64) string {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	defer unix.Close(fd)
	attr := struct {
		access uint64
		fd     int32
	}{access, int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), rulePathBeneath, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	return name(errno)
}

func addPort(ruleset int, access, port uint64) string {
	attr := [2]uint64{access, port}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), ruleNetPort, uintptr(unsafe.Pointer(&attr[0])), 0, 0, 0)
	return name(errno)
}
