package sandbox

import (
	"errors"
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/relay"
)

// proxyPort is where the proxy is found inside, on 127.0.0.1.
const proxyPort = 3128

// proxyEnv makes clients use the proxy. Both cases: curl reads http_proxy in
// lower case only, others in upper. Loopback addresses stay the command's own.
func proxyEnv() []string {
	const url = "http://127.0.0.1:3128"
	var out []string
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
		"CARGO_HTTP_PROXY", "npm_config_proxy", "npm_config_https_proxy", "PIP_PROXY"} {
		out = append(out, name+"="+url)
	}
	const java = "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128"
	return append(out, "no_proxy=localhost,127.0.0.1,::1", "NO_PROXY=localhost,127.0.0.1,::1", "NODE_USE_ENV_PROXY=1", "JAVA_TOOL_OPTIONS="+java)
}

// ownLoopback reports whether the command gets a working lo in a network
// namespace of its own.
func (rs Ruleset) ownLoopback() bool {
	return rs.Policy.Network.Mode.OnlyLoopback() && rs.Node.Namespaces.Net == nil
}

// Supervised reports whether the command's connections are made by a
// supervisor on lo of the node, for want of a network namespace.
func (rs Ruleset) Supervised() bool {
	return rs.Policy.Network.Mode.OnlyLoopback() && rs.Node.Namespaces.Net != nil && rs.Node.unsupervised() == nil
}

// unsupervised is why there can be no supervisor, nil if there can.
func (n Node) unsupervised() error {
	const tcp = ll.AccessNetBindTCP | ll.AccessNetConnectTCP
	switch {
	case n.Landlock.Net&tcp != tcp:
		return fmt.Errorf("this kernel's Landlock (ABI %d) does not deny TCP, which has to stand behind it", n.Landlock.ABI)
	case !n.Supervisor.OK && n.Supervisor.Why == nil:
		return errors.New("nobody asked for one")
	}
	return n.Supervisor.Why
}

// raiseLoopback sets lo up in our network namespace, which has nothing else.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return os.NewSyscallError("ioctl(SIOCGIFFLAGS, lo)", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return os.NewSyscallError("ioctl(SIOCSIFFLAGS, lo)", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}

// startRelay makes the proxy's socket reachable inside. It comes before the
// mounts: the socket may lie in what they hide.
func startRelay(socket string) error {
	fail := func(err error) error {
		return fmt.Errorf("leading 127.0.0.1:%d to the proxy at %s: %w", proxyPort, socket, err)
	}
	dir, name, err := relay.Open(socket)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(dir)
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(l)
	if err = unix.Bind(l, &unix.SockaddrInet4{Port: proxyPort, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = unix.Listen(l, 128)
	}
	if err == nil {
		err = relay.Start(l, dir, name)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// loopbackOnly tries both: that lo works, and that there is no way to anything
// else. Nothing is sent; 192.0.2.1 is nobody's (RFC 5737).
func loopbackOnly() error {
	for _, try := range []struct {
		addr [4]byte
		want error
	}{{[4]byte{127, 0, 0, 1}, nil}, {[4]byte{192, 0, 2, 1}, unix.ENETUNREACH}} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: try.addr})
		unix.Close(fd)
		if err != try.want {
			return fmt.Errorf("connecting to %v gave %v, not %v", try.addr, err, try.want)
		}
	}
	return nil
}

// supervised tries what the supervisor must refuse, beside what it must do.
func supervised(s Session) error {
	sock := func(family, kind int) (int, error) { return unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0) }
	localhost := [4]byte{127, 0, 0, 1}
	server, err := sock(unix.AF_INET, unix.SOCK_STREAM)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(server)
	var at *unix.SockaddrInet4
	if err = unix.Bind(server, &unix.SockaddrInet4{Addr: localhost}); err == nil {
		if err = unix.Listen(server, 1); err == nil {
			var sa unix.Sockaddr
			sa, err = unix.Getsockname(server)
			at, _ = sa.(*unix.SockaddrInet4)
		}
	}
	if err != nil || at == nil {
		return fmt.Errorf("a server on 127.0.0.1: %w", err)
	}
	if at.Addr != s.V4 {
		return fmt.Errorf("a server on 127.0.0.1 is on %v, not %v", at.Addr, s.V4)
	}
	for _, try := range []struct {
		addr [4]byte
		port int
		want error
	}{{localhost, at.Port, nil}, {localhost, int(s.Decoy), unix.ECONNREFUSED}, {[4]byte{192, 0, 2, 1}, 9, unix.ENETUNREACH}} {
		fd, err := sock(unix.AF_INET, unix.SOCK_STREAM)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: try.port, Addr: try.addr})
		unix.Close(fd)
		if err != try.want {
			return fmt.Errorf("connecting to %v port %d gave %v, not %v", try.addr, try.port, err, try.want)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := sock(family, unix.SOCK_DGRAM)
		if err == nil {
			unix.Close(fd)
		}
		if err != unix.ESOCKTNOSUPPORT {
			return fmt.Errorf("a UDP socket gave %v, not ESOCKTNOSUPPORT", err)
		}
	}
	return nil
}
