package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ipprotoMPTCP = 262
	msgFastOpen  = 0x20000000
)

// connectWait is how long a far address has to answer; it leaves room before
// the attempt's own deadline, so that no answer is "unreachable".
const connectWait = 1500 * time.Millisecond

func checkHostPort(hp string) error {
	host, port, err := net.SplitHostPort(hp)
	if err != nil {
		return fmt.Errorf("%q: must be HOST:PORT", hp)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return fmt.Errorf("%q: must be HOST:PORT, the port a number", hp)
	}
	return nil
}

// step is one system call on the way, and how it ended.
type step struct {
	call string
	e    syscall.Errno
}

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if ip := a.Addr().Unmap(); ip.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// newSocket makes a socket that never waits and that no child inherits.
func newSocket(family, kind, proto int) (int, syscall.Errno) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	return fd, errnoOf(err)
}

// connectStream connects a stream socket of the given protocol, waiting at
// most connectWait, and hangs up.
func connectStream(proto int, to netip.AddrPort) step {
	family, sa := sockaddr(to)
	fd, e := newSocket(family, unix.SOCK_STREAM, proto)
	if e != 0 {
		return step{"socket", e}
	}
	defer unix.Close(fd)
	return step{"connect", finishConnect(fd, errnoOf(unix.Connect(fd, sa)))}
}

func finishConnect(fd int, e syscall.Errno) syscall.Errno {
	if e != unix.EINPROGRESS {
		return e
	}
	if !pollFor(fd, unix.POLLOUT, connectWait) {
		return unix.ETIMEDOUT
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return errnoOf(err)
	}
	return syscall.Errno(n)
}

// pollFor waits for an event on a descriptor.
func pollFor(fd int, events int16, wait time.Duration) bool {
	end := time.Now().Add(wait)
	for {
		left := max(0, time.Until(end).Milliseconds())
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(left))
		if err == unix.EINTR && left > 0 {
			continue
		}
		return err == nil && n > 0
	}
}

// fastOpen sends one byte to a listener in the first packet.
func fastOpen(to netip.AddrPort) step {
	family, sa := sockaddr(to)
	fd, e := newSocket(family, unix.SOCK_STREAM, 0)
	if e != 0 {
		return step{"socket", e}
	}
	defer unix.Close(fd)
	return step{"sendto", finishConnect(fd, errnoOf(unix.Sendto(fd, []byte{0}, msgFastOpen, sa)))}
}

// ping sends a datagram and waits for one back.
func ping(to netip.AddrPort, data []byte, wait time.Duration) step {
	family, sa := sockaddr(to)
	fd, e := newSocket(family, unix.SOCK_DGRAM, 0)
	if e != 0 {
		return step{"socket", e}
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sa); err != nil {
		return step{"connect", errnoOf(err)}
	}
	if _, err := unix.Write(fd, data); err != nil {
		return step{"sendto", errnoOf(err)}
	}
	if !pollFor(fd, unix.POLLIN, wait) {
		return step{"recvfrom", unix.ETIMEDOUT}
	}
	var b [512]byte
	_, err := unix.Read(fd, b[:])
	return step{"recvfrom", errnoOf(err)}
}

// bindListen binds a stream socket to a free port of 127.0.0.1, unless
// autobind leaves that to listen(2), and listens.
func bindListen(proto int, autobind bool) (fd int, at netip.AddrPort, s step) {
	fd, e := newSocket(unix.AF_INET, unix.SOCK_STREAM, proto)
	if e != 0 {
		return -1, at, step{"socket", e}
	}
	lo := netip.MustParseAddrPort("127.0.0.1:0")
	if !autobind {
		_, sa := sockaddr(lo)
		if err := unix.Bind(fd, sa); err != nil {
			unix.Close(fd)
			return -1, at, step{"bind", errnoOf(err)}
		}
	}
	if err := unix.Listen(fd, 1); err != nil {
		unix.Close(fd)
		return -1, at, step{"listen", errnoOf(err)}
	}
	sa, err := unix.Getsockname(fd)
	in4, ok := sa.(*unix.SockaddrInet4)
	if err != nil || !ok {
		unix.Close(fd)
		return -1, at, step{"getsockname", errnoOf(err)}
	}
	return fd, netip.AddrPortFrom(lo.Addr(), uint16(in4.Port)), step{"listen", 0}
}

// resolve finds an address for HOST:PORT, by files and then by DNS.
func resolve(hp string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(hp); err == nil {
		return a, nil
	}
	host, port, err := net.SplitHostPort(hp)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	ips, err := (&net.Resolver{PreferGo: true}).LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(ips) == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s has no address", host)
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(n)), nil
}

// isLocal says whether an address is one of this node's, where a refused
// connection means only that nothing listens.
func isLocal(a netip.Addr) bool {
	if a.Unmap().IsLoopback() || a.IsUnspecified() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, n := range addrs {
		if p, err := netip.ParsePrefix(n.String()); err == nil && p.Addr().Unmap() == a.Unmap() {
			return true
		}
	}
	return false
}

// link is a network interface.
type link struct {
	name string
	up   bool
	lo   bool
}

// links asks the kernel for the interfaces of this network namespace: /sys
// may show those of another.
func links() ([]link, syscall.Errno) {
	data, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return nil, errnoOf(err)
	}
	msgs, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return nil, errnoOf(err)
	}
	var out []link
	for _, m := range msgs {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		flags := hostOrder.Uint32(m.Data[8:])
		l := link{up: flags&unix.IFF_UP != 0, lo: flags&unix.IFF_LOOPBACK != 0}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			continue
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_IFNAME {
				l.name = strings.TrimRight(string(a.Value), "\x00")
			}
		}
		out = append(out, l)
	}
	return out, 0
}

// loOnly says whether no interface but lo is up.
func loOnly(ls []link) bool {
	for _, l := range ls {
		if !l.lo && l.up {
			return false
		}
	}
	return len(ls) > 0
}
