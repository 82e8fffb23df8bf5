package supervise

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

var own = Addresses{V4: [4]byte{127, 20, 30, 40}, V6: [4]byte{127, 20, 30, 41}}

// raw4 and raw6 are struct sockaddr_in and sockaddr_in6 as a command has them.
func raw4(family int, ip [4]byte, port uint16) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(family))
	b = binary.BigEndian.AppendUint16(b, port)
	return append(append(b, ip[:]...), make([]byte, 8)...)
}

func raw6(ip [16]byte, port uint16) []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
	b = binary.BigEndian.AppendUint16(b, port)
	return append(append(append(b, 0, 0, 0, 0), ip[:]...), 0, 0, 0, 0)
}

func in6(ip ...byte) (out [16]byte) {
	copy(out[16-len(ip):], ip)
	return out
}

func asMapped(a, b, c, d byte) [16]byte { return in6(0xff, 0xff, a, b, c, d) }

var names = map[deed]string{goOn: "go on", connect: "connect", disconnect: "disconnect", bind: "bind", listen: "listen"}

func (a action) String() string {
	if a.do == refuse {
		return "refuse " + unix.ErrnoName(a.errno)
	}
	text := names[a.do]
	for _, ip := range a.at {
		text += " " + map[[4]byte]string{own.V4: "V4", own.V6: "V6"}[ip]
	}
	if a.port != 0 {
		text += fmt.Sprintf(" :%d", a.port)
	}
	return text
}

func TestDecide(t *testing.T) {
	const tcp, v4, v6 = unix.IPPROTO_TCP, unix.AF_INET, unix.AF_INET6
	lo := [4]byte{127, 0, 0, 1}
	for _, c := range []struct {
		what             string
		domain, protocol int
		addr             []byte
		connect, bind    string
	}{
		{"127.0.0.1", v4, tcp, raw4(v4, lo, 80), "connect V4 V6 :80", "bind V4 V6 :80"},
		{"0.0.0.0", v4, tcp, raw4(v4, [4]byte{}, 80), "connect V4 V6 :80", "bind V4 V6 :80"},
		{"0.0.0.0 port 0", v4, tcp, raw4(v4, [4]byte{}, 0), "connect V4 V6", "bind V4 V6"},
		{"another loopback address", v4, tcp, raw4(v4, [4]byte{127, 9, 8, 7}, 80), "connect V4 V6 :80", "bind V4 V6 :80"},
		{"what getsockname says", v4, tcp, raw4(v4, own.V4, 80), "connect V4 :80", "bind V4 :80"},
		{"the other one", v4, tcp, raw4(v4, own.V6, 80), "connect V6 :80", "bind V6 :80"},
		{"outside", v4, tcp, raw4(v4, [4]byte{192, 0, 2, 1}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"128.0.0.1", v4, tcp, raw4(v4, [4]byte{128, 0, 0, 1}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"126.255.255.255", v4, tcp, raw4(v4, [4]byte{126, 255, 255, 255}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"0.0.0.1", v4, tcp, raw4(v4, [4]byte{0, 0, 0, 1}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"broadcast", v4, tcp, raw4(v4, [4]byte{255, 255, 255, 255}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"no address", v4, tcp, nil, "refuse EINVAL", "refuse EINVAL"},
		{"a byte", v4, tcp, []byte{2}, "refuse EINVAL", "refuse EINVAL"},
		{"a family alone", v4, tcp, raw4(v4, lo, 80)[:2], "refuse EINVAL", "refuse EINVAL"},
		{"one byte short", v4, tcp, raw4(v4, lo, 80)[:15], "refuse EINVAL", "refuse EINVAL"},
		{"longer", v4, tcp, append(raw4(v4, lo, 80), 1, 2, 3), "connect V4 V6 :80", "bind V4 V6 :80"},
		{"AF_UNSPEC", v4, tcp, raw4(unix.AF_UNSPEC, lo, 80), "disconnect", "refuse EAFNOSUPPORT"},
		{"AF_UNSPEC, wildcard", v4, tcp, raw4(unix.AF_UNSPEC, [4]byte{}, 80), "disconnect", "bind V4 V6 :80"},
		{"AF_UNIX's address", v4, tcp, raw4(unix.AF_UNIX, lo, 80), "refuse EAFNOSUPPORT", "refuse EAFNOSUPPORT"},
		{"an IPv6 address on IPv4", v4, tcp, raw6(in6(1), 80), "refuse EAFNOSUPPORT", "refuse EAFNOSUPPORT"},

		{"::1", v6, tcp, raw6(in6(1), 80), "connect V6 V4 :80", "bind V6 V4 :80"},
		{"::", v6, tcp, raw6(in6(), 80), "connect V6 V4 :80", "bind V6 V4 :80"},
		{"::1 without a scope", v6, tcp, raw6(in6(1), 80)[:24], "connect V6 V4 :80", "bind V6 V4 :80"},
		{"::1 too short", v6, tcp, raw6(in6(1), 80)[:23], "refuse EINVAL", "refuse EINVAL"},
		{"::ffff:127.0.0.1", v6, tcp, raw6(asMapped(127, 0, 0, 1), 80), "connect V4 V6 :80", "bind V4 V6 :80"},
		{"::ffff:0.0.0.0", v6, tcp, raw6(asMapped(0, 0, 0, 0), 80), "connect V4 V6 :80", "bind V4 V6 :80"},
		{"::ffff:V6", v6, tcp, raw6(asMapped(127, 20, 30, 41), 80), "connect V6 :80", "bind V6 :80"},
		{"::ffff:192.0.2.1", v6, tcp, raw6(asMapped(192, 0, 2, 1), 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"::2", v6, tcp, raw6(in6(2), 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"::127.0.0.1", v6, tcp, raw6(in6(127, 0, 0, 1), 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"2001:db8::1", v6, tcp, raw6([16]byte{0x20, 1, 0xd, 0xb8, 15: 1}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"fe80::1", v6, tcp, raw6([16]byte{0xfe, 0x80, 15: 1}, 80), "refuse ENETUNREACH", "refuse EADDRNOTAVAIL"},
		{"an IPv4 address on IPv6", v6, tcp, append(raw4(v4, lo, 80), make([]byte, 12)...), "refuse EAFNOSUPPORT", "refuse EAFNOSUPPORT"},
		{"AF_UNSPEC on IPv6", v6, tcp, raw4(unix.AF_UNSPEC, lo, 80), "disconnect", "refuse EINVAL"},

		// Of these the address is not even copied.
		{"AF_UNIX", unix.AF_UNIX, 0, nil, "go on", "go on"},
		{"AF_NETLINK", unix.AF_NETLINK, 0, nil, "go on", "go on"},
		{"no domain", 0, 0, raw4(v4, lo, 80), "refuse EAFNOSUPPORT", "refuse EAFNOSUPPORT"},
		{"AF_VSOCK", unix.AF_VSOCK, 0, raw4(unix.AF_VSOCK, lo, 80), "refuse EAFNOSUPPORT", "refuse EAFNOSUPPORT"},
		{"UDP", v4, unix.IPPROTO_UDP, raw4(v4, lo, 53), "refuse EACCES", "refuse EACCES"},
		{"UDP over IPv6", v6, unix.IPPROTO_UDP, raw6(in6(1), 53), "refuse EACCES", "refuse EACCES"},
		{"MPTCP", v4, unix.IPPROTO_MPTCP, raw4(v4, lo, 80), "refuse EACCES", "refuse EACCES"},
		{"SCTP", v4, unix.IPPROTO_SCTP, raw4(v4, lo, 80), "refuse EACCES", "refuse EACCES"},
		{"raw", v4, 0, raw4(v4, lo, 80), "refuse EACCES", "refuse EACCES"},
	} {
		r := request{op: opConnect, domain: c.domain, protocol: c.protocol, addr: c.addr}
		if got := own.decide(r).String(); got != c.connect {
			t.Errorf("connect to %s: %s, want %s", c.what, got, c.connect)
		}
		r.op = opBind
		if got := own.decide(r).String(); got != c.bind {
			t.Errorf("bind to %s: %s, want %s", c.what, got, c.bind)
		}
		if got := own.decide(request{domain: c.domain, protocol: c.protocol, addr: c.addr}); got.do != refuse {
			t.Errorf("no call at all, %s: %s", c.what, got)
		}
	}
}

// listen is never the kernel's to do, of any socket.
func TestDecide_Listen(t *testing.T) {
	for _, c := range []struct {
		domain, protocol int
		want             string
	}{
		{unix.AF_INET, unix.IPPROTO_TCP, "listen V4 V6"},
		{unix.AF_INET6, unix.IPPROTO_TCP, "listen V6 V4"},
		{unix.AF_INET, unix.IPPROTO_MPTCP, "refuse EACCES"},
		{unix.AF_UNIX, 0, "listen"},
		{unix.AF_NETLINK, 0, "listen"},
		{0, 0, "refuse EAFNOSUPPORT"},
	} {
		if got := own.decide(request{op: opListen, domain: c.domain, protocol: c.protocol}).String(); got != c.want {
			t.Errorf("listen on domain %d protocol %d: %s, want %s", c.domain, c.protocol, got, c.want)
		}
	}
	if a := (action{}); a.do != refuse {
		t.Error("the zero action does something")
	}
}

// Whatever the bytes are: nothing but the session's addresses, and what is gone
// on with is no Internet socket.
func FuzzDecide(f *testing.F) {
	f.Add(1, unix.AF_INET, unix.IPPROTO_TCP, raw4(unix.AF_INET, [4]byte{127, 0, 0, 1}, 80))
	f.Add(2, unix.AF_INET6, unix.IPPROTO_TCP, raw6(in6(1), 80))
	f.Add(3, unix.AF_UNIX, 0, []byte{1, 0, 'x'})
	f.Fuzz(func(t *testing.T, o, domain, protocol int, addr []byte) {
		a := own.decide(request{op(o), domain, protocol, addr})
		if a.do == goOn && (op(o) == opListen || domain != unix.AF_UNIX && domain != unix.AF_NETLINK) {
			t.Errorf("goes on")
		}
		for _, ip := range a.at {
			if !own.has(ip) {
				t.Errorf("to %v", ip)
			}
		}
		if (a.do == connect || a.do == bind) && (len(a.at) == 0 || protocol != unix.IPPROTO_TCP) {
			t.Errorf("%+v", a)
		}
	})
}

// The lines are Linux's own, on a little-endian machine.
func TestParseSocket(t *testing.T) {
	for line, want := range map[string]socket{
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 100 0 0 10 0":                 {local: endpoint{[4]byte{127, 0, 0, 1}, 8080}, state: stateListen, inode: 4711},
		"   1: 0000000000000000FFFF0000291E147F:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  2001        0 42 1": {local: endpoint{[4]byte{127, 20, 30, 41}, 8080}, state: stateListen, inode: 42},
		"   2: 281E147F:0C38 0100007F:D431 01 00000000:00000000 00:00000000 00000000  2001        0 7 1":                                                  {local: endpoint{[4]byte{127, 20, 30, 40}, 3128}, remote: endpoint{[4]byte{127, 0, 0, 1}, 54321}, state: 1, inode: 7},
	} {
		if got, ok := parseSocket(line); !ok || got != want {
			t.Errorf("%s: %+v, %v", line, got, ok)
		}
	}
	for _, line := range []string{
		"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
		"", "   0: 0100007F:1F90", "   0: 0100007G:1F90 00000000:0000 0A 0 0 0 1000 0 4711 1",
		"   3: B80D0120000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0 0 0 1000 0 4711 1", // IPv6 proper
	} {
		if s, ok := parseSocket(line); ok {
			t.Errorf("%q is %+v", line, s)
		}
	}
}

// Both ways to ask find a listener at exactly an address, a connection, and
// nothing else.
func TestDiag(t *testing.T) {
	fd, at, inode, err := listenAt(endpoint{ip: [4]byte{127, 0, 0, 1}}, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	wild, wildAt, wildInode, err := listenAt(endpoint{}, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(wild)
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	if err := connectTo(client, unix.AF_INET, at); err != nil {
		t.Fatal(err)
	}
	clientInode, err := inodeOf(client)
	if err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(client)
	if err != nil {
		t.Fatal(err)
	}
	ip, port := ipOf(sa)
	fast, err := newDiag(at, inode)
	if err != nil {
		t.Fatal(err)
	}
	defer fast.close()
	if fast.fd < 0 {
		t.Log("no sock_diag here: only /proc/net is tried")
	}
	six, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(six)
	onlyV4(six, unix.AF_INET6)
	sixAt := endpoint{[4]byte{127, 0, 0, 2}, at.port}
	if err := unix.Bind(six, sockaddr(unix.AF_INET6, sixAt.ip, sixAt.port)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(six, 1); err != nil {
		t.Fatal(err)
	}
	sixInode, _ := inodeOf(six)
	for _, d := range []*diag{fast, {fd: -1}} {
		for _, c := range []struct {
			what          string
			local, remote endpoint
			want          uint32
		}{
			{"the listener", at, endpoint{}, inode},
			{"a listener of IPv6 on a mapped address", sixAt, endpoint{}, sixInode},
			{"another address", endpoint{[4]byte{127, 0, 0, 3}, at.port}, endpoint{}, 0},
			{"another port", endpoint{at.ip, at.port ^ 1}, endpoint{}, 0},
			{"one that a wildcard answers on", endpoint{[4]byte{127, 0, 0, 1}, wildAt.port}, endpoint{}, 0},
			{"the connection", endpoint{ip, port}, at, clientInode},
			{"a connection that is not there", endpoint{ip, port ^ 1}, at, 0},
			{"the connection, as a listener", endpoint{ip, port}, endpoint{}, 0},
		} {
			if got, err := d.find(c.local, c.remote); err != nil || got != c.want {
				t.Errorf("descriptor %d: %s: %d, %v, want %d", d.fd, c.what, got, err, c.want)
			}
		}
	}
	_ = wildInode
	if _, err := newDiag(at, inode+1); err == nil {
		t.Error("a diag that does not see the known listener")
	}
}

func TestChoose(t *testing.T) {
	seen := map[Addresses]bool{}
	for range 20 {
		a, err := choose()
		if err != nil {
			t.Fatal(err)
		}
		if a.V4[0] != 127 || a.V4[1] < 16 || a.V4[3]%2 != 0 || a.V4[3] < 2 || a.V6 != [4]byte{127, a.V4[1], a.V4[2], a.V4[3] + 1} || a.V6[3] == 255 {
			t.Errorf("%v", a)
		}
		if seen[a] {
			t.Errorf("%v again", a)
		}
		seen[a] = true
	}
}
