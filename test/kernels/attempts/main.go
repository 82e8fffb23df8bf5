// Command attempts does what a command behind the fence must not be able to do, and some of what it must, and says what came of
// each: "ok", or the errno. The same attempts without the fence are the control.
//
//	attempts victim          listen, keep a shared memory segment, write the pid to /tmp/victim.pid, say "up", wait
//	attempts try PID         try everything against that victim, print one JSON object
//	attempts truncate FILE   truncate(2) alone
//	attempts proxy SOCKET    greet whoever connects there, say "up"
//	attempts net             own servers, the victim's, and the way to the proxy; prints one JSON object
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	tcpPort, udpPort = 7001, 7002
	shmKey           = 0x7001
	socketPath       = "/tmp/victim.sock"
	abstract         = "@victim"
	secret           = "/home/alice/secret"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	switch os.Args[1] {
	case "victim":
		if err := victim(); err != nil {
			fmt.Fprintln(os.Stderr, "victim:", err)
			os.Exit(1)
		}
	case "try":
		pid, err := strconv.Atoi(os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, "attempts:", err)
			os.Exit(2)
		}
		said := map[string]string{}
		for name, f := range attempts(pid) {
			said[name] = outcome(f())
		}
		out, _ := json.Marshal(said)
		fmt.Println(string(out))
	case "proxy":
		if err := proxy(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "proxy:", err)
			os.Exit(1)
		}
	case "net":
		out, _ := json.Marshal(map[string]string{
			"own server":        outcome(ownServer("127.0.0.1:8080", "localhost:8080")),
			"own server, IPv6":  outcome(ownServer("[::1]:8080", "[::1]:8080")),
			"the host's server": outcome(greeted(fmt.Sprintf("127.0.0.1:%d", tcpPort))),
			"the proxy":         outcome(greeted("127.0.0.1:3128")),
		})
		fmt.Println(string(out))
	case "truncate":
		fmt.Println(outcome(unix.Truncate(os.Args[2], 0)))
	}
}

// outcome is "ok" or the name of the errno at the bottom of err.
func outcome(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &errno):
		return err.Error()
	case errno == unix.EOPNOTSUPP:
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(errno)
}

func victim() error {
	tcp, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", tcpPort))
	if err != nil {
		return err
	}
	go greet(tcp)
	if _, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", udpPort)); err != nil {
		return err
	}
	for _, at := range []string{abstract, socketPath} {
		if _, err := net.Listen("unix", at); err != nil {
			return err
		}
	}
	if _, err := unix.SysvShmGet(shmKey, 4096, unix.IPC_CREAT|0o600); err != nil {
		return fmt.Errorf("shmget: %w", err)
	}
	if err := os.WriteFile("/tmp/victim.pid", []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	fmt.Println("up")
	for {
		_ = unix.Pause()
	}
}

const greeting = "good day\n"

func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte(greeting))
		c.Close()
	}
}

// greeted is nil if somebody listens there who greets.
func greeted(at string) error {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	if said, err := io.ReadAll(c); err != nil || string(said) != greeting {
		return fmt.Errorf("%s said %q (%v)", at, said, err)
	}
	return nil
}

func ownServer(at, name string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	defer l.Close()
	go greet(l)
	return greeted(name)
}

func proxy(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	fmt.Println("up")
	greet(l)
	return nil
}

func connect(domain, kind, protocol int, to unix.Sockaddr) error {
	s, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if kind == unix.SOCK_DGRAM {
		return unix.Sendto(s, []byte("x"), 0, to)
	}
	return unix.Connect(s, to)
}

// reached is for calls with a bad pointer: EFAULT says that the kernel looked.
func reached(errno syscall.Errno) error {
	if errno == unix.EFAULT || errno == 0 {
		return nil
	}
	return errno
}

// child runs nothing in a child with these clone flags.
func child(flags uintptr) error {
	c := exec.Command("/proc/self/exe")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return nil // it ran, and had no argument
	}
	return err
}

func attempts(victim int) map[string]func() error {
	loop := [4]byte{127, 0, 0, 1}
	own := func(f func(dir string) error) func() error {
		return func() error {
			dir, err := os.MkdirTemp("/tmp", "own")
			if err != nil {
				return err
			}
			return f(dir)
		}
	}
	return map[string]func() error{
		"read the home": func() error { _, err := os.ReadFile(secret); return err },
		"list the home": func() error { return listed(filepath.Dir(secret), filepath.Base(secret)) },
		"TCP": func() error {
			return connect(unix.AF_INET, unix.SOCK_STREAM, 0, &unix.SockaddrInet4{Port: tcpPort, Addr: loop})
		},
		"UDP": func() error {
			return connect(unix.AF_INET, unix.SOCK_DGRAM, 0, &unix.SockaddrInet4{Port: udpPort, Addr: loop})
		},
		"MPTCP": func() error {
			return connect(unix.AF_INET, unix.SOCK_STREAM, 262, &unix.SockaddrInet4{Port: tcpPort, Addr: loop})
		},
		"abstract socket":   func() error { return connect(unix.AF_UNIX, unix.SOCK_STREAM, 0, &unix.SockaddrUnix{Name: abstract}) },
		"socket in /tmp":    func() error { return connect(unix.AF_UNIX, unix.SOCK_STREAM, 0, &unix.SockaddrUnix{Name: socketPath}) },
		"signal":            func() error { return unix.Kill(victim, 0) },
		"environment":       func() error { _, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", victim)); return err },
		"priority":          func() error { return unix.Setpriority(unix.PRIO_PROCESS, victim, 19) },
		"limits":            func() error { return unix.Prlimit(victim, unix.RLIMIT_CORE, nil, &unix.Rlimit{}) },
		"shared memory":     func() error { _, err := unix.SysvShmGet(shmKey, 4096, 0); return err },
		"user namespace":    func() error { return child(unix.CLONE_NEWUSER) },
		"keyctl":            func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); return err },
		"io_uring":          func() error { _, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 1, 0); return reached(e) },
		"userfaultfd":       func() error { _, _, e := unix.Syscall(unix.SYS_USERFAULTFD, 1, 0, 0); return reached(e) },
		"memory of another": func() error { return readMemory(victim) },

		"own: a file in /tmp": own(func(dir string) error { return os.WriteFile(dir+"/f", []byte("x"), 0o600) }),
		"own: move between folders": own(func(dir string) error {
			for _, d := range []string{"/a", "/b"} {
				if err := os.Mkdir(dir+d, 0o700); err != nil {
					return err
				}
			}
			if err := os.WriteFile(dir+"/a/f", nil, 0o600); err != nil {
				return err
			}
			return os.Rename(dir+"/a/f", dir+"/b/f")
		}),
		"own: a child":         func() error { return child(0) },
		"own: a terminal":      terminal,
		"own: abstract socket": func() error { l, err := net.Listen("unix", "@own"); closeIf(l, err); return err },
		"own: a signal":        func() error { return unix.Kill(os.Getpid(), 0) },
	}
}

// listed is nil only if the name is seen: an empty folder over the real one is as good as a refusal.
func listed(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == name {
			return nil
		}
	}
	return unix.ENOENT
}

func closeIf(l net.Listener, err error) {
	if err == nil {
		l.Close()
	}
}

func readMemory(pid int) error {
	var b [8]byte
	local := unix.Iovec{Base: &b[0], Len: 8}
	remote := unix.RemoteIovec{Base: 8, Len: 8}
	_, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	return reached(errno)
}

// terminal is what tmux and script do first.
func terminal() error {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(m)
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	s, err := unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	_, err = unix.IoctlGetTermios(s, unix.TCGETS)
	return err
}
