package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"fence/pkg/policy"
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
	mode := rs.Policy.Network.Mode
	return (mode == policy.NetworkLoopback || mode == policy.NetworkProxy) && rs.Node.Namespaces.Net == nil
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
	dir, err := unix.Open(path.Dir(socket), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path.Base(socket), &st, 0); err != nil {
		return fail(err)
	} else if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fail(errors.New("it is not a socket"))
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(l)
	if err = unix.Bind(l, &unix.SockaddrInet4{Port: proxyPort, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = unix.Listen(l, 128)
	}
	if err == nil {
		err = relay.Start(l, dir, path.Base(socket))
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
