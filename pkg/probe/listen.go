package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/strictjson"
)

// CanarySchema names the format of Canary.
const CanarySchema = "probe.canary/v1"

// Canary says where the canary listeners are: what a command can reach
// before it is fenced, so that a refusal afterwards is proof.
type Canary struct {
	Schema   string   `json:"schema"` // CanarySchema
	TCP      []string `json:"tcp"`    // HOST:PORT; each sends back the first byte it gets
	UDP      []string `json:"udp"`    // HOST:PORT; each sends back a datagram of one byte
	Unix     string   `json:"unix"`   // path of a stream socket
	Abstract string   `json:"abstract"`
	PID      int      `json:"pid"`    // a process to ask whether it may be signalled
	PIDNS    uint64   `json:"pid_ns"` // where that number is its own
	Time     string   `json:"time"`
}

// ListenOptions say where the canary listeners put their files.
type ListenOptions struct {
	Canary  string        // the file to write; required
	Scratch string        // folder for the Unix socket, on this node; "" for $TMPDIR or /tmp
	Ready   func(*Canary) // called once the file is in place; may be nil
}

// ScratchError says that the Unix socket cannot lie in that folder.
type ScratchError struct {
	Dir string
	Err error
}

func (e *ScratchError) Error() string {
	return fmt.Sprintf("making the canary's Unix socket in %s: %v", e.Dir, e.Err)
}

func (e *ScratchError) Unwrap() error { return e.Err }

// Listen answers on TCP, UDP and Unix sockets until ctx ends. When all of
// them answer it writes the canary file, whole or not at all; at the end it
// removes the file and the sockets.
func Listen(ctx context.Context, o ListenOptions) (err error) {
	if o.Canary == "" {
		return errors.New("no canary file was named")
	}
	file, err := filepath.Abs(o.Canary)
	if err != nil {
		return fmt.Errorf("canary file %q: %w", o.Canary, err)
	}
	l := &canaryListeners{}
	defer func() { err = errors.Join(err, l.close()) }()
	c, err := l.open(o.Scratch)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(o.Canary, func(w io.Writer) error { return writeJSON(w, c) }); err != nil {
		return fmt.Errorf("writing the canary file: %w", err)
	}
	defer func() {
		if st, e := os.Lstat(file); e == nil && st.Mode().IsRegular() { // not /dev/stdout
			err = errors.Join(err, os.Remove(file))
		}
	}()
	if o.Ready != nil {
		o.Ready(c)
	}
	<-ctx.Done()
	return nil
}

// canaryListeners are open sockets and the folder of one of them.
type canaryListeners struct {
	closers []func() error
	dir     string
	wg      sync.WaitGroup
}

func (l *canaryListeners) open(scratch string) (*Canary, error) {
	c := &Canary{Schema: CanarySchema, PID: os.Getpid(), Time: time.Now().UTC().Format(time.RFC3339)}
	c.PIDNS, _ = namespaceInode("/proc/self/ns/pid")
	own, err := ownAddresses()
	if err != nil {
		return nil, fmt.Errorf("canary: this node's addresses: %w", err)
	}
	// Plain TCP: Go listens with MPTCP unless told not to.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	for i, a := range append([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, own...) {
		at := netip.AddrPortFrom(a, 0).String()
		tcp, err := lc.Listen(context.Background(), "tcp", at)
		if err != nil {
			if i > 0 { // a node may have no IPv6, or an address that is just going away
				continue
			}
			return nil, fmt.Errorf("canary: %w", err)
		}
		l.closers = append(l.closers, tcp.Close)
		l.serve(tcp)
		c.TCP = append(c.TCP, tcp.Addr().String())

		udp, err := lc.ListenPacket(context.Background(), "udp", at)
		if err != nil {
			return nil, fmt.Errorf("canary: %w", err)
		}
		l.closers = append(l.closers, udp.Close)
		l.echo(udp)
		c.UDP = append(c.UDP, udp.LocalAddr().String())
	}
	if scratch == "" {
		scratch = os.TempDir()
	}
	if l.dir, err = os.MkdirTemp(scratch, "probe-canary-"); err != nil {
		return nil, &ScratchError{scratch, errnoOf(err)}
	}
	c.Unix = filepath.Join(l.dir, "s")
	c.Abstract = "probe-canary-" + rand.Text()
	for _, name := range []string{c.Unix, "@" + c.Abstract} {
		u, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil && name == c.Unix {
			return nil, &ScratchError{scratch, errnoOf(err)}
		}
		if err != nil {
			return nil, fmt.Errorf("canary: %w", err)
		}
		l.closers = append(l.closers, u.Close)
		l.serve(u)
	}
	return c, nil
}

// maxCanaryPeers bounds the connections that are open at a time: the sockets
// are open to the whole node.
const maxCanaryPeers = 64

// serve sends back the first byte of each connection and hangs up.
func (l *canaryListeners) serve(ln net.Listener) {
	slots := make(chan struct{}, maxCanaryPeers)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		for {
			conn, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(10 * time.Millisecond) // out of descriptors: others must close theirs first
				continue
			}
			slots <- struct{}{}
			go func() {
				defer func() { conn.Close(); <-slots }()
				conn.SetDeadline(time.Now().Add(2 * time.Second))
				var b [1]byte
				if n, _ := conn.Read(b[:]); n == 1 {
					conn.Write(b[:])
				}
			}()
		}
	}()
}

// echo sends back datagrams of one byte. It is no amplifier: what comes out
// is what went in.
func (l *canaryListeners) echo(pc net.PacketConn) {
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		var b [2]byte
		for {
			n, from, err := pc.ReadFrom(b[:])
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n == 1 {
				pc.WriteTo(b[:1], from)
			}
		}
	}()
}

func (l *canaryListeners) close() error {
	var errs []error
	for _, c := range l.closers {
		if err := c(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	l.wg.Wait()
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// ownAddresses are addresses by which other nodes reach this one: the first
// of IPv4 and the first of IPv6.
func ownAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var v4, v6 []netip.Addr
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); !ok || !ip.IsGlobalUnicast() {
			continue
		}
		if ip.Is4() {
			v4 = append(v4, ip)
		} else {
			v6 = append(v6, ip)
		}
	}
	var out []netip.Addr
	if len(v4) > 0 {
		out = append(out, v4[0])
	}
	if len(v6) > 0 {
		out = append(out, v6[0])
	}
	return out, nil
}

// readCanary reads what Listen wrote.
func readCanary(file string) (*Canary, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("canary file: %w", err)
	}
	if s := schemaOf(data); s != "" && s != CanarySchema {
		return nil, &SchemaError{"canary file " + file, s, CanarySchema}
	}
	var c Canary
	if _, err := strictjson.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("canary file %s: %w", file, err)
	}
	if c.Schema != CanarySchema {
		return nil, &SchemaError{"canary file " + file, c.Schema, CanarySchema}
	}
	for _, hp := range append(append([]string{}, c.TCP...), c.UDP...) {
		if _, err := netip.ParseAddrPort(hp); err != nil {
			return nil, fmt.Errorf("canary file %s: %w", file, err)
		}
	}
	return &c, nil
}
