package supervise

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// endpoint is a TCP address, in IPv4's form: those of IPv6 sockets are mapped.
type endpoint struct {
	ip   [4]byte
	port uint16
}

const stateListen = 10 // TCP_LISTEN, include/net/tcp_states.h

// diag asks the kernel about TCP sockets of this network namespace. It is for
// one thread at a time.
type diag struct {
	fd int // of NETLINK_SOCK_DIAG, -1: reads /proc/net
}

// newDiag tries what it is to answer with: the socket known listens at that
// address. A kernel without tcp_diag, or one that may not load it here, says
// of every socket that it is not there.
func newDiag(known endpoint, inode uint32) (*diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err == nil {
		d := &diag{fd}
		if got, err := d.ask(known, endpoint{}); err == nil && got == inode {
			return d, nil
		}
		unix.Close(fd)
	}
	d := &diag{-1}
	got, err := d.find(known, endpoint{})
	if err == nil && got != inode {
		err = errors.New("neither sock_diag nor /proc/net/tcp show a listener that is there")
	}
	return d, err
}

// again is a diag for another thread.
func (d *diag) again() (*diag, error) {
	if d.fd < 0 {
		return d, nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	return &diag{fd}, os.NewSyscallError("socket(NETLINK_SOCK_DIAG)", err)
}

func (d *diag) close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
}

// find is the inode of the socket at local that is connected to remote or, if
// that is zero, listens at exactly that address: 0 if there is none. A listener
// at the wildcard address is another socket.
func (d *diag) find(local, remote endpoint) (inode uint32, err error) {
	if d.fd >= 0 {
		return d.ask(local, remote)
	}
	all, err := sockets()
	return pick(all, local, remote), err
}

// The layout of struct nlmsghdr, inet_diag_req_v2 and inet_diag_msg, with
// struct inet_diag_sockid in both.
const (
	headerLen = 16
	reqLen    = headerLen + 56
	msgLen    = headerLen + 72
	reqID     = headerLen + 8 // in a request
	msgID     = headerLen + 4 // in an answer
)

func (d *diag) ask(local, remote endpoint) (uint32, error) {
	var b [reqLen]byte
	ne, be := binary.NativeEndian, binary.BigEndian
	ne.PutUint32(b[0:], reqLen)
	ne.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b[headerLen], b[headerLen+1] = unix.AF_INET, unix.IPPROTO_TCP
	ne.PutUint32(b[headerLen+4:], ^uint32(0)) // any state
	id := b[reqID:]
	be.PutUint16(id[0:], local.port)
	be.PutUint16(id[2:], remote.port)
	copy(id[4:], local.ip[:])
	copy(id[20:], remote.ip[:])
	ne.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	if err := unix.Sendto(d.fd, b[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	var answer [512]byte
	n, _, err := unix.Recvfrom(d.fd, answer[:], 0)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	m := answer[:n]
	switch {
	case n >= headerLen+4 && ne.Uint16(m[4:]) == unix.NLMSG_ERROR:
		if errno := unix.Errno(-int32(ne.Uint32(m[headerLen:]))); errno != unix.ENOENT {
			return 0, fmt.Errorf("sock_diag: %w", errno)
		}
		return 0, nil
	case n < msgLen || ne.Uint16(m[4:]) != unix.SOCK_DIAG_BY_FAMILY:
		return 0, fmt.Errorf("sock_diag: an answer of %d bytes", n)
	}
	family, state, id := m[headerLen], m[headerLen+1], m[msgID:]
	at := func(addr []byte) [4]byte {
		if family == unix.AF_INET6 && [12]byte(addr[:12]) == mapped {
			return [4]byte(addr[12:16])
		} else if family == unix.AF_INET6 {
			return [4]byte{} // of IPv6 proper, or the wildcard
		}
		return [4]byte(addr[:4])
	}
	src := endpoint{at(id[4:]), be.Uint16(id[0:])}
	dst := endpoint{at(id[20:]), be.Uint16(id[2:])}
	if src != local || dst != remote || (remote == endpoint{}) != (state == stateListen) {
		return 0, nil
	}
	return ne.Uint32(m[headerLen+68:]), nil
}

// A socket is a line of /proc/net/tcp or tcp6.
type socket struct {
	local, remote endpoint
	state         int
	inode         uint32
}

func pick(all []socket, local, remote endpoint) uint32 {
	i := slices.IndexFunc(all, func(s socket) bool {
		return s.local == local && s.remote == remote && (remote == endpoint{}) == (s.state == stateListen)
	})
	if i < 0 {
		return 0
	}
	return all[i].inode
}

// sockets are all of this network namespace that have an IPv4 address.
func sockets() ([]socket, error) {
	var all []socket
	for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) && strings.HasSuffix(file, "6") {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			if s, ok := parseSocket(line); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

func parseSocket(line string) (s socket, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || !strings.HasSuffix(f[0], ":") {
		return s, false
	}
	var okLocal, okRemote bool
	s.local, okLocal = parseEndpoint(f[1])
	s.remote, okRemote = parseEndpoint(f[2])
	state, err := strconv.ParseUint(f[3], 16, 8)
	inode, err2 := strconv.ParseUint(f[9], 10, 32)
	s.state, s.inode = int(state), uint32(inode)
	return s, okLocal && okRemote && err == nil && err2 == nil
}

// parseEndpoint reads "0100007F:1F90": words of the machine's byte order.
func parseEndpoint(text string) (e endpoint, ok bool) {
	addr, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(addr)
	p, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw) != 4 && len(raw) != 16 {
		return e, false
	}
	e.port = uint16(p)
	for w := 0; w < len(raw); w += 4 {
		binary.BigEndian.PutUint32(raw[w:], binary.NativeEndian.Uint32(raw[w:]))
	}
	switch {
	case len(raw) == 4:
		e.ip = [4]byte(raw)
	case [12]byte(raw[:12]) == mapped:
		e.ip = [4]byte(raw[12:])
	case [16]byte(raw) == [16]byte{}: // the wildcard
	default:
		return e, false
	}
	return e, true
}
