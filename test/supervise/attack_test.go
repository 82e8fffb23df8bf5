package supervise

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"fence/test/bed"
)

// node is a node without network namespaces, with fence and attack where no fence covers them.
type node struct {
	t             *testing.T
	fence, attack string
	form          string
}

var attackProgram = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "attack")
	if text, err := exec.Command("gcc", "-std=gnu17", "-O1", "-Wall", "-static", "-pthread", "-o", out, "attack/attack.c").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v\n%s", err, text)
	}
	return os.ReadFile(out)
})

// onNodes runs a test in both forms: on a node without network namespaces, and without any.
func onNodes(t *testing.T, f func(t *testing.T, n node)) {
	for _, form := range []string{"namespace", "bare"} {
		t.Run(form, func(t *testing.T) { f(t, newNode(t, form)) })
	}
}

func newNode(t *testing.T, form string) node {
	t.Helper()
	bed.Require(t, "users", "nonet")
	t.Setenv("TMPDIR", filepath.Join(bed.Dir(), "tmp", "fencer"))
	dir := bed.TempDir(t)
	n := node{t, filepath.Join(dir, "fence"), filepath.Join(dir, "attack"), form}
	fence, err := os.ReadFile(bed.Bin(t, "fence"))
	if err != nil {
		t.Fatal(err)
	}
	attack, err := attackProgram()
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{n.fence: fence, n.attack: attack} {
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// argv is a launch in the form of the node.
func (n node) argv(argv ...string) []string {
	out := []string{n.fence, "--net", "loopback"}
	if n.form == "bare" {
		out = append(out, "--accept", "landlock-hide", "--accept", "host-tmp", "--accept", "sockets", "--why", "a test")
	}
	return append(append(out, "--"), argv...)
}

// limited is a command on the node: the process becomes fence, so that its number is the supervisor's.
func (n node) limited(argv ...string) *exec.Cmd {
	limit := "max_net_namespaces=0"
	if n.form == "bare" {
		limit = "max_user_namespaces=0"
	}
	return bed.Limited(n.t, []string{limit}, argv[0], argv[1:]...)
}

func (n node) fenced(argv ...string) *exec.Cmd { return n.limited(n.argv(argv...)...) }

// says runs a command that must end with 0 and print just that.
func (n node) says(want string, cmd *exec.Cmd) {
	n.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stdout.String() != want {
		n.t.Errorf("%v: %v, %q, want %q\n%s", cmd.Args, err, stdout.String(), want, stderr.String())
	}
	n.t.Logf("%s", strings.TrimSpace(stderr.String()))
}

// A host is a server of the node's, of somebody else.
type host struct {
	net.Listener
	t        *testing.T
	port     int
	accepted atomic.Int64
	own      int64 // of reached
}

func newHost(t *testing.T, address string) *host {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Listener: l, t: t, port: l.Addr().(*net.TCPAddr).Port}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.accepted.Add(1)
			c.Write([]byte("host\n"))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return h
}

// reached is how often others were answered until now. It asks itself, and is
// answered after all that came before.
func (h *host) reached() int64 {
	h.t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", h.port))
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	if text, err := io.ReadAll(c); err != nil || string(text) != "host\n" {
		h.t.Fatalf("%q %v", text, err)
	}
	h.own++
	return h.accepted.Load() - h.own
}

func tries() string {
	if os.Getenv("TEST_FULL") != "" {
		return "1000000"
	}
	return "50000"
}

// A thread that changes the address between the check and the use gets nowhere else.
func TestRace(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		h := newHost(t, "0.0.0.0:0")
		n.says("OK\n", n.limited(n.attack, "reach", "127.0.0.1", strconv.Itoa(h.port))) // the control
		before := h.reached()
		n.says("raced, escaped 0\n", n.fenced(n.attack, "race", tries(), strconv.Itoa(h.port)))
		n.says("raced, connected away 0, on other addresses 0\n", n.fenced(n.attack, "swap", strconv.Itoa(h.port)))
		if got := h.reached() - before; before != 1 || got != 0 {
			t.Errorf("the host's server was reached %d times, and by the control %d times", got, before)
		}
	})
}

// No port is shared with a server of the same user's on the node: a listener
// that the command closes while it connects would give the connection to that.
func TestPortOfAnother(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		const server = `
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("0.0.0.0", 0))
s.listen()
print(s.getsockname()[1], flush=True)
sys.stdin.read()`
		in, out, end := start(t, bed.Command(t, "python3", "-c", server))
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		port := strings.TrimSpace(line)
		beside := []string{"python3", "-c", `
import errno, socket, sys
for option in (), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    s = socket.socket()
    try:
        for o in option: s.setsockopt(socket.SOL_SOCKET, o, 1)
        s.bind(("127.0.0.1", int(sys.argv[1])))
        s.listen()
        print("beside it", end=" ")
    except OSError as e: print(errno.errorcode[e.errno], end=" ")
    s.close()
`, port}
		n.says("EADDRINUSE EADDRINUSE beside it beside it ", n.limited(beside...)) // the control
		n.says("EADDRINUSE EADDRINUSE ENOPROTOOPT ENOPROTOOPT ", n.fenced(beside...))
		in.Close()
		end()
	})
}

// The way to the proxy leads to no other socket, whatever a command that may
// write beside it puts in its place.
func TestProxyReplaced(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		dir := bed.TempDir(t)
		for _, name := range []string{"proxy", "other"} {
			l, err := net.Listen("unix", filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			os.Chmod(filepath.Join(dir, name), 0o777)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					c.Write([]byte(name))
					c.Close()
				}
			}()
		}
		const script = `
import os, socket, sys
def ask(family, to):
    s = socket.socket(family)
    try: s.connect(to); return s.recv(100).decode()
    except OSError as e: return "refused"
dir = sys.argv[1]
way = (socket.AF_UNIX, dir + "/proxy") if sys.argv[2:] else (socket.AF_INET, ("127.0.0.1", 3128))
print(ask(*way))
os.rename(dir + "/proxy", dir + "/away"); os.symlink(dir + "/other", dir + "/proxy")
print(ask(*way))
os.unlink(dir + "/proxy"); os.rename(dir + "/away", dir + "/proxy")
print(ask(*way))`
		n.says("proxy\nother\nproxy\n", n.limited("python3", "-c", script, dir, "by its name")) // the control
		argv := n.argv("python3", "-c", script, dir)
		argv[2] = "proxy=" + filepath.Join(dir, "proxy")
		n.says("proxy\n\nproxy\n", n.limited(slices.Insert(argv, 3, "--write", dir, "--why", "a test")...))
	})
}

// A flood, and callers that wait, stop nobody else; nothing is left of it.
func TestFlood(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		n.says("10000 connected, 0 failed\n", n.fenced(n.attack, "flood", "10000"))
		n.says("1000 connected, 0 failed\n", n.fenced(n.attack, "fill"))

		cmd := n.fenced("/bin/sh", "-c", `read x; "$0" flood 10000; echo flooded; read x; "$0" flood 20000; echo flooded; read x`, n.attack)
		in, out, end := start(t, cmd)
		in.Write([]byte("1\n"))
		expect(t, out, "10000 connected, 0 failed")
		expect(t, out, "flooded")
		first := descriptors(t, cmd.Process.Pid)
		in.Write([]byte("2\n"))
		expect(t, out, "20000 connected, 0 failed")
		expect(t, out, "flooded")
		// Descriptors are closed before a call is answered, but for those of threads that wait for the next.
		if second := descriptors(t, cmd.Process.Pid); second > first+8 {
			t.Errorf("the supervisor has %d descriptors open after 10000 connects, and %d after 20000 more", first, second)
		}
		in.Close()
		end()
	})
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// From inside the supervisor cannot be signalled, stopped or looked into.
func TestSupervisorIsOutside(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		try := func(say string) string {
			return `
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, r):
    print(name, "OK" if r >= 0 else errno.errorcode[ctypes.get_errno()])
def opens(name):
    try:
        os.open("/proc/%d/%s" % (parent, name), os.O_RDONLY); print(name, "OK")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
parent = os.getppid()
for s in ` + say + `:
    call("kill", libc.kill(parent, s))
fd = libc.syscall(434, parent, 0)
call("pidfd_send_signal", libc.syscall(424, fd, 0, None, 0))
call("pidfd_getfd", libc.syscall(438, fd, 3, 0) if "reach" not in sys.argv else 0)
for f in ("mem", "environ", "fd/0"):
    opens(f)
`
		}
		// The control asks with signal 0 only: the other two would end it.
		n.says("kill OK\npidfd_send_signal OK\npidfd_getfd OK\nmem OK\nenviron OK\nfd/0 OK\n",
			n.limited("/bin/sh", "-c", `python3 -c "$0" reach; exit`, try("(0,)")))
		n.says("kill EPERM\nkill EPERM\nkill EPERM\npidfd_send_signal EPERM\npidfd_getfd EPERM\nmem EACCES\nenviron EACCES\nfd/0 EACCES\n",
			n.fenced("python3", "-c", try("(0, 19, 9)")))
	})
}

// Without the supervisor everything is closed; what it leaves is the command's end.
func TestSupervisorKilled(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		// A daemon of the command's, which nobody ends with it.
		cmd := n.fenced("/bin/sh", "-c", `exec 3<&0; setsid "$0" alone <&3 & wait`, n.attack)
		in, out, end := start(t, cmd)
		expect(t, out, "before: connect OK")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if state := end(); state.Signal() != syscall.SIGKILL {
			t.Errorf("it ended with %v", state)
		}
		in.Write([]byte("1"))
		expect(t, out, "after: connect ENOSYS, bind ENOSYS, listen ENOSYS, unix ENOSYS")
	})
}

// The same where the command ends first: its supervisor does, too.
func TestCommandEnds(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		cmd := n.fenced("/bin/sh", "-c", `exec 3<&0; setsid "$0" alone <&3 & wait`, n.attack)
		in, out, end := start(t, cmd)
		expect(t, out, "before: connect OK")
		if err := syscall.Kill(childOf(t, cmd.Process.Pid), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if state := end(); state.Signal() != syscall.SIGTERM {
			t.Errorf("it ended with %v", state)
		}
		in.Write([]byte("1"))
		expect(t, out, "after: connect ENOSYS, bind ENOSYS, listen ENOSYS, unix ENOSYS")
		if text, err := out.ReadString('\n'); err != io.EOF {
			t.Errorf("%q, %v: something of it is left", text, err)
		}
	})
}

// A neighbour who listens on the session's own address is not reached, although nothing but the
// address tells his server from one of the session's; he can connect to the session's, which is said.
func TestNeighbour(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		cmd := n.fenced("python3", "-c", `
import socket, sys
def reach(to):
    try:
        return socket.create_connection(to).recv(99).decode()
    except OSError as e:
        return e.strerror + "\n"
own = socket.socket(); own.bind(("127.0.0.1", 0)); own.listen(); print(*own.getsockname(), flush=True)
for line in sys.stdin:
    ip, port = line.split()
    print(reach((ip, int(port))), end="", flush=True)
`)
		in, out, end := start(t, cmd)
		ip, port, _ := strings.Cut(strings.TrimSpace(line(t, out)), " ")
		if !strings.HasPrefix(ip, "127.") || ip == "127.0.0.1" {
			t.Fatalf("the session's address is %s", ip)
		}
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			t.Fatal(err)
		}
		hosts := map[string]string{ip: "Connection refused\n", "127.0.0.1": "Connection refused\n"}
		for _, a := range addrs {
			if a, ok := a.(*net.IPNet); ok && a.IP.To4() != nil && !a.IP.IsLoopback() {
				hosts[a.IP.String()] = "Network is unreachable\n"
			}
		}
		for at, want := range hosts {
			h := newHost(t, at+":0")
			c, err := net.Dial("tcp", h.Addr().String())
			if err != nil {
				t.Fatalf("the control: %v", err)
			}
			if word, err := bufio.NewReader(c).ReadString('\n'); word != "host\n" {
				t.Fatalf("the control: %q, %v", word, err)
			}
			fmt.Fprintln(in, at, h.port)
			if got := line(t, out); got != want {
				t.Errorf("a server on %s: %q, want %q", at, got, want)
			}
			wild := newHost(t, "0.0.0.0:0")
			fmt.Fprintln(in, at, wild.port)
			if got := line(t, out); got != want {
				t.Errorf("a server on 0.0.0.0, as %s: %q, want %q", at, got, want)
			}
		}
		c, err := net.Dial("tcp", net.JoinHostPort(ip, port))
		if err != nil {
			t.Errorf("from outside: %v, and the documentation says that it can be reached", err)
		} else {
			c.Close()
		}
		in.Close()
		end()
	})
}

// Sockets that are no plain TCP, and options that would lead one elsewhere.
func TestOtherWays(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		h := newHost(t, "127.0.0.1:0")
		script := fmt.Sprintf(`
import errno, socket, struct
def what(f):
    try:
        f(); return "OK"
    except OSError as e:
        return errno.errorcode[e.errno]
S = socket.socket
host = ("127.0.0.1", %d)
tcp = lambda: S(socket.AF_INET, socket.SOCK_STREAM)
opt = lambda *a: tcp().setsockopt(*a)
def deferred():
    s = tcp(); s.setsockopt(6, 30, 1); s.connect(host)
print("udp", what(lambda: S(socket.AF_INET, socket.SOCK_DGRAM)))
print("udp6", what(lambda: S(socket.AF_INET6, socket.SOCK_DGRAM)))
print("mptcp", what(lambda: S(socket.AF_INET, socket.SOCK_STREAM, 262)))
print("sctp", what(lambda: S(socket.AF_INET, socket.SOCK_STREAM, 132)))
print("raw", what(lambda: S(socket.AF_INET, socket.SOCK_RAW, 1)))
print("sendto", what(lambda: tcp().sendto(b"x", 0x20000000, host)))
print("sendmsg", what(lambda: tcp().sendmsg([b"x"], [], 0x20000000, host)))
print("deferred", what(deferred))
print("route", what(lambda: opt(0, 4, bytes([131, 7, 4, 192, 0, 2, 1, 0]))))
print("device", what(lambda: opt(1, 25, b"lo")))
print("group", what(lambda: opt(0, 42, struct.pack("=I4xHH4s120x", 1, 2, 0, bytes([239, 1, 2, 3])))))
print("nodelay", what(lambda: opt(6, 1, 1)))
`, h.port)
		before := "udp OK\nudp6 OK\nmptcp OK\n"
		out, err := n.limited("python3", "-c", script).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), before) || !strings.Contains(string(out), "\ndevice OK\ngroup OK\nnodelay OK\n") {
			t.Errorf("the control: %v\n%s", err, out)
		}
		n.says(`udp ESOCKTNOSUPPORT
udp6 ESOCKTNOSUPPORT
mptcp EPROTONOSUPPORT
sctp EPROTONOSUPPORT
raw ESOCKTNOSUPPORT
sendto ENOTSUP
sendmsg ENOTSUP
deferred ENOTSUP
route ENOPROTOOPT
device EPERM
group ENOPROTOOPT
nodelay OK
`, n.fenced("python3", "-c", script))
	})
}

// Where there is no way to a supervisor either: in another fence.
func TestNeither(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		for _, outer := range [][]string{n.argv(n.argv("echo", "ran")...), append([]string{n.fence, "--net", "none"}, n.argv(n.argv("echo", "ran")...)[3:]...)} {
			out, err := n.limited(outer...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 125 {
				t.Errorf("%v: %v\n%s", outer, err, out)
			}
			for _, want := range []string{"network mode loopback needs a network namespace of its own", "or a supervisor of its connections, which it cannot have (pidfd_getfd: operation not permitted"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
		}
	})
}

// Whoever starts fence by the name that it gives its child gets one clear line.
func TestNameOfTheChild(t *testing.T) {
	n := newNode(t, "namespace")
	for _, name := range []string{"fence:", "fence:1:3:28", "fence:0:99:28", "fence:1:0:28", "fence:x"} {
		cmd := n.limited("bash", "-c", `exec -a "$0" "$@" </dev/null`, name, n.fence, "--net", "loopback", "--", "echo", "ran")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 125 || !strings.HasPrefix(string(out), "fence: not fenced, and the command was not run: ") || strings.Count(string(out), "\n") > 2 {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
