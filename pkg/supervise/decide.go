package supervise

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Addresses are a session's own. The kernel knows no other loopback address
// for it: what a command calls 127.0.0.1 or 0.0.0.0 is V4, and ::1 or :: is V6,
// of 127.0.0.0/8 too. They are two because a program may bind the same port on
// 127.0.0.1 and on ::1, as many do for "localhost".
type Addresses struct{ V4, V6 [4]byte }

func (a Addresses) has(ip [4]byte) bool { return ip == a.V4 || ip == a.V6 }

// op is what a command asks for. The zero op is none, and is refused.
type op int

const (
	opNone op = iota
	opConnect
	opBind
	opListen
)

// request is one call, as far as it decides about it: our own copy of the
// address, and what the kernel says of our own duplicate of the socket.
type request struct {
	op       op
	domain   int // SO_DOMAIN
	protocol int // SO_PROTOCOL
	addr     []byte
}

// action is what to do about a request. The zero action refuses it with
// ENOSYS, as the kernel does without a supervisor.
type action struct {
	do    deed
	errno unix.Errno // of refuse
	port  uint16
	at    [][4]byte // addresses of the session, the first that will do
}

type deed int

const (
	refuse     deed = iota
	goOn            // the kernel does it itself: Landlock denies it TCP
	connect         // to a listener of the session's at one of the addresses
	disconnect      // connect with AF_UNSPEC
	bind            // to the first address
	listen          // bound to the first address, if it is not bound yet
)

func no(errno unix.Errno) action { return action{errno: errno} }

// decide is what a kernel would do that has no network but lo.
func (a Addresses) decide(r request) action {
	switch r.domain {
	case unix.AF_UNIX, unix.AF_NETLINK:
		// A thread may put another socket in the descriptor's place before the
		// kernel looks. Landlock then refuses to connect and to bind it, and
		// does not look at listen.
		if r.op == opConnect || r.op == opBind {
			return action{do: goOn}
		}
		if r.op == opListen {
			return action{do: listen}
		}
		return no(unix.ENOSYS)
	case unix.AF_INET, unix.AF_INET6:
		if r.protocol != unix.IPPROTO_TCP {
			return no(unix.EACCES) // inherited; the filter lets none be made
		}
	default:
		return no(unix.EAFNOSUPPORT)
	}
	own := [][4]byte{a.V4, a.V6}
	if r.domain == unix.AF_INET6 {
		own = [][4]byte{a.V6, a.V4}
	}
	switch r.op {
	case opListen:
		return action{do: listen, at: own}
	case opConnect, opBind:
	default:
		return no(unix.ENOSYS)
	}

	if len(r.addr) < 2 {
		return no(unix.EINVAL)
	}
	family := int(binary.NativeEndian.Uint16(r.addr))
	if r.op == opConnect && family == unix.AF_UNSPEC {
		return action{do: disconnect}
	}
	least := 16 // struct sockaddr_in
	if r.domain == unix.AF_INET6 {
		least = 24 // struct sockaddr_in6 without its scope
	}
	if len(r.addr) < least {
		return no(unix.EINVAL)
	}
	port := binary.BigEndian.Uint16(r.addr[2:])
	var ip [4]byte
	switch {
	case family == unix.AF_INET && r.domain == unix.AF_INET,
		// The kernel takes this for the wildcard address of IPv4.
		family == unix.AF_UNSPEC && r.domain == unix.AF_INET && binary.NativeEndian.Uint32(r.addr[4:]) == 0:
		ip = [4]byte(r.addr[4:8])
	case family == unix.AF_INET6 && r.domain == unix.AF_INET6:
		switch v6 := [16]byte(r.addr[8:24]); v6 {
		case [16]byte{}, [16]byte{15: 1}:
			return action{do: deeds[r.op], port: port, at: own}
		default:
			if [12]byte(v6[:12]) != mapped {
				return nowhere(r.op)
			}
			ip = [4]byte(v6[12:])
		}
	default:
		return no(unix.EAFNOSUPPORT)
	}
	switch {
	case a.has(ip): // what getsockname says, and a server may print
		return action{do: deeds[r.op], port: port, at: [][4]byte{ip}}
	case ip[0] == 127 || ip == [4]byte{}:
		return action{do: deeds[r.op], port: port, at: [][4]byte{a.V4, a.V6}}
	}
	return nowhere(r.op)
}

var deeds = map[op]deed{opConnect: connect, opBind: bind}

// nowhere is what a kernel says of an address that is not lo's.
func nowhere(o op) action {
	if o == opBind {
		return no(unix.EADDRNOTAVAIL)
	}
	return no(unix.ENETUNREACH)
}

// mapped is the prefix of an IPv4 address in IPv6.
var mapped = [12]byte{10: 0xff, 11: 0xff}

// sockaddr is an address of the session for a socket of a domain.
func sockaddr(domain int, ip [4]byte, port uint16) unix.Sockaddr {
	if domain == unix.AF_INET6 {
		sa := &unix.SockaddrInet6{Port: int(port)}
		copy(sa.Addr[:], mapped[:])
		copy(sa.Addr[12:], ip[:])
		return sa
	}
	return &unix.SockaddrInet4{Port: int(port), Addr: ip}
}

// ipOf is a socket's address, in IPv4's form; the zero address of others.
func ipOf(sa unix.Sockaddr) (ip [4]byte, port uint16) {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return sa.Addr, uint16(sa.Port)
	case *unix.SockaddrInet6:
		if [12]byte(sa.Addr[:12]) == mapped {
			return [4]byte(sa.Addr[12:]), uint16(sa.Port)
		}
	}
	return ip, 0
}
