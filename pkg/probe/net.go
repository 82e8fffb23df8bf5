package probe

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// netChecks are the part of group D that sends nothing anywhere.
func netChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Worker = "net", classNet
		return c
	}
	// family makes a check that only asks for a socket.
	family := func(c Check, fam, kind, proto int, kernelName string) Check {
		c.try = func(s *site, _ string) Finding { return s.trySocket(fam, kind, proto, kernelName) }
		if c.What == "" {
			c.What = fmt.Sprintf("socket(%d, %d, %d)", fam, kind, proto)
		}
		if c.Severity == "" {
			c.Severity = "low"
		}
		return each(c)
	}
	return []Check{
		each(Check{
			ID: "net.ifaces", Severity: "low", Attack: []string{"T1016"}, try: netIfaces,
			What: "asks for the interfaces over netlink: absent/no_interface when none but lo is up, info when it could not tell",
			Why:  "with no interface there is no way out, which turns \"unreachable\" into proof",
		}),
		family(Check{
			ID: "net.udp.socket", Severity: "high", Attack: []string{"T1048.003", "T1071.004"},
			What: "socket(AF_INET, SOCK_DGRAM): a UDP socket, which sends nothing",
			Why:  "DNS and everything else that is not TCP; Landlock covers it only from ABI 10",
		}, unix.AF_INET, unix.SOCK_DGRAM, 0, "UDP"),
		each(Check{
			ID: "net.mptcp.bind", Severity: "medium", Attack: []string{"T1571"},
			try:  func(s *site, _ string) Finding { return s.tryListen(ipprotoMPTCP, false) },
			What: "binds an MPTCP socket to 127.0.0.1 and listens, for a moment",
			Why:  "Landlock's TCP rules do not see MPTCP",
		}),
		each(Check{
			ID: "net.bind", Severity: "medium", Attack: []string{"T1571"},
			try:  func(s *site, _ string) Finding { return s.tryListen(0, false) },
			What: "binds a TCP socket to a free port of 127.0.0.1 and listens, for a moment",
			Why:  "a listener on a shared node is open to everybody on it",
		}),
		each(Check{
			ID: "net.autobind", Severity: "medium", Attack: []string{"T1571"},
			try:  func(s *site, _ string) Finding { return s.tryListen(0, true) },
			What: "listens without bind: the kernel takes a free port of every address, for a moment",
			Why:  "Landlock checks bind, and here there is none",
		}),
		each(Check{
			ID: "net.loopback.own", Severity: "info", try: netLoopbackOwn,
			What: "listens on 127.0.0.1, connects to itself and passes one byte",
			Why:  "tasks with a server of their own need it; whether it must work is the policy's word",
		}),
		family(Check{
			ID: "net.icmp", Attack: []string{"T1095"}, What: "socket(AF_INET, SOCK_DGRAM, ICMP)", Why: "data leaves in echo requests where ping_group_range allows them",
		}, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP, ""),
		family(Check{
			ID: "net.raw", Severity: "medium", Attack: []string{"T1095"}, What: "socket(AF_INET, SOCK_RAW, ICMP)", Why: "packets of any making, past every port rule",
		}, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, ""),
		family(Check{
			ID: "net.packet", Severity: "medium", Attack: []string{"T1040"}, What: "socket(AF_PACKET, SOCK_RAW, 0), which receives nothing", Why: "reads other people's traffic",
		}, unix.AF_PACKET, unix.SOCK_RAW, 0, ""),
		each(Check{
			ID: "net.netlink", Severity: "low", Attack: []string{"T1016", "T1068"}, targets: to("0", "4", "6", "9", "12", "15", "16", "20", "21"), try: netNetlink,
			What: "socket(AF_NETLINK, SOCK_RAW, N): 0 route, 4 sock_diag, 6 xfrm, 9 audit, 12 netfilter, 15 uevent, 16 generic, 20 rdma, 21 crypto",
			Why:  "0 is what libraries ask for interfaces; the others are scouting and kernel attack surface",
		}),
		family(Check{
			ID: "net.vsock", Severity: "medium", Attack: []string{"T1095"}, What: "socket(AF_VSOCK, SOCK_STREAM); it connects to nothing",
			Why: "leads to services of the machine under this virtual one, past every address rule",
		}, unix.AF_VSOCK, unix.SOCK_STREAM, 0, "AF_VSOCK"),
		family(Check{ID: "net.sctp", Severity: "medium", Attack: []string{"T1095"}, Why: "a way out that TCP rules do not see"}, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, "SCTP"),
		family(Check{ID: "net.smc", Severity: "medium", Attack: []string{"T1095"}, Why: "TCP over RDMA that TCP rules do not see"}, 43, unix.SOCK_STREAM, 0, "SMC"),
		family(Check{ID: "net.dccp", Severity: "medium", Attack: []string{"T1095"}, Why: "a way out that TCP rules do not see"}, unix.AF_INET, 6, 33, "DCCP"),
		family(Check{ID: "net.udplite", Severity: "medium", Attack: []string{"T1095"}, Why: "a way out that UDP rules may not see"}, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, "UDP-Lite"),
		family(Check{ID: "net.alg", Attack: []string{"T1068"}, Why: "kernel crypto by socket: attack surface, with a root hole in 2026"}, unix.AF_ALG, unix.SOCK_SEQPACKET, 0, "ALG"),
		family(Check{ID: "net.rxrpc", Attack: []string{"T1068"}, Why: "attack surface, with a root hole in 2026"}, unix.AF_RXRPC, unix.SOCK_DGRAM, unix.AF_INET, "RXRPC"),
		family(Check{ID: "net.key", Attack: []string{"T1068"}, Why: "IPsec keys: attack surface"}, unix.AF_KEY, unix.SOCK_RAW, 2, "KEY"),
		family(Check{ID: "net.xdp", Attack: []string{"T1068"}, Why: "raw packets, past the stack"}, unix.AF_XDP, unix.SOCK_RAW, 0, ""),
		family(Check{ID: "net.tipc", Attack: []string{"T1068"}, Why: "cluster messaging: attack surface"}, unix.AF_TIPC, unix.SOCK_STREAM, 0, "TIPC"),
		family(Check{ID: "net.rds", Attack: []string{"T1068"}, Why: "datagrams over RDMA: attack surface"}, unix.AF_RDS, unix.SOCK_SEQPACKET, 0, "RDS"),
		family(Check{ID: "net.can", Attack: []string{"T1068"}, Why: "attack surface"}, unix.AF_CAN, unix.SOCK_RAW, 1, "CAN_RAW"),
		family(Check{ID: "net.kcm", Attack: []string{"T1068"}, Why: "attack surface"}, unix.AF_KCM, unix.SOCK_DGRAM, 0, "KCM"),
		family(Check{ID: "net.bt", Attack: []string{"T1068"}, Why: "attack surface"}, unix.AF_BLUETOOTH, unix.SOCK_RAW, 1, "HCI"),
		each(Check{
			ID: "net.uring", Severity: "high", Attack: []string{"T1068"}, try: netUring,
			What: "io_uring_setup(0, NULL)", Why: "opens and connects without the system calls that a filter sees",
		}),
		func() Check {
			c := each(Check{
				ID: "net.rdma", Severity: "high", Attack: []string{"T1095"}, targets: rdmaTargets, try: tryDevice,
				What: "opens the devices of InfiniBand, Slingshot and Omni-Path and the folder /sys/class/infiniband, and asks nothing of them",
				Why:  "traffic past the kernel: no socket, so neither filter, Landlock nor namespace sees it",
			})
			c.Worker = classDev
			return c
		}(),
		func() Check {
			c := each(Check{
				ID: "net.dns.daemon", Severity: "medium", Attack: []string{"T1071.004"}, try: ipcUnix,
				targets: to("/run/nscd/socket", "/var/run/nscd/socket", "/var/lib/sss/pipes/nss", "/run/systemd/resolve/io.systemd.Resolve"),
				What:    "connects to name service daemons by Unix socket and hangs up",
				Why:     "they look names up for whoever asks: DNS without a UDP socket",
			})
			c.Worker = classIPC
			return c
		}(),
	}
}

// protocols are the names in /proc/net/protocols: what this kernel has
// loaded. A fence does not change it.
func protocols() []string {
	data, err := os.ReadFile("/proc/self/net/protocols")
	if err != nil {
		return nil
	}
	var out []string
	for _, l := range strings.Split(string(data), "\n") {
		if f := strings.Fields(l); len(f) > 0 {
			out = append(out, f[0])
		}
	}
	return out
}

// trySocket asks for a socket and closes it. kernelName is how the protocol
// is called in /proc/net/protocols, "" if that does not tell.
func (s *site) trySocket(family, kind, proto int, kernelName string) Finding {
	fd, e := newSocket(family, kind, proto)
	f := Finding{Errno: errnoName(e), Syscall: "socket", Evidence: sysErr(fmt.Sprintf("socket(%d, %d, %d)", family, kind, proto), e)}
	if e == 0 {
		unix.Close(fd)
		f.Evidence = fmt.Sprintf("socket(%d, %d, %d) works", family, kind, proto)
	}
	// Every kernel that runs this has IPv4's own.
	known := family == unix.AF_INET && proto == 0 || kernelName != "" && slices.Contains(protocols(), kernelName)
	f.Outcome, f.Mechanism = judgeSocket(s.facts, e, known)
	return f
}

func netIfaces(*site, string) Finding {
	ls, e := links()
	if e != 0 {
		f := info("could not tell: the netlink socket is refused (%s)", errnoName(e))
		f.Errno, f.Syscall = errnoName(e), "socket"
		return f
	}
	var names []string
	for _, l := range ls {
		if l.up {
			names = append(names, l.name)
		} else {
			names = append(names, l.name+"(down)")
		}
	}
	f := Finding{Outcome: Reachable, Evidence: "interfaces: " + strings.Join(names, " ")}
	if loOnly(ls) {
		f.Outcome, f.Mechanism = Absent, "no_interface"
	}
	return f
}

// tryListen listens for a moment on a loopback port of the kernel's choice.
func (s *site) tryListen(proto int, autobind bool) Finding {
	fd, at, st := bindListen(proto, autobind)
	f := Finding{Errno: errnoName(st.e), Syscall: st.call, Evidence: sysErr(st.call, st.e)}
	if st.e == 0 {
		unix.Close(fd)
		f.Evidence = fmt.Sprintf("listened on port %d", at.Port())
	}
	if st.call == "socket" {
		f.Outcome, f.Mechanism = judgeSocket(s.facts, st.e, proto == 0 || slices.Contains(protocols(), "MPTCP"))
	} else {
		f.Outcome, f.Mechanism = judgeConnect(s.facts, st.e, true)
	}
	return f
}

func netLoopbackOwn(s *site, _ string) Finding {
	fd, at, st := bindListen(0, false)
	if st.e == 0 {
		defer unix.Close(fd)
		family, sa := sockaddr(at)
		c, e := newSocket(family, unix.SOCK_STREAM, 0)
		if e != 0 {
			st = step{"socket", e}
		} else {
			defer unix.Close(c)
			st = step{"connect", finishConnect(c, errnoOf(unix.Connect(c, sa)))}
		}
		if st.e == 0 {
			st = passByte(fd, c)
		}
	}
	f := Finding{Errno: errnoName(st.e), Syscall: st.call, Evidence: sysErr(st.call, st.e)}
	if st.e == 0 {
		f.Evidence = "listened, connected and passed a byte on " + at.String()
	}
	if st.call == "socket" {
		f.Outcome, f.Mechanism = judgeSocket(s.facts, st.e, true)
	} else {
		f.Outcome, f.Mechanism = judgeConnect(s.facts, st.e, true)
	}
	return f
}

// passByte accepts the connection of c on a listener and sends a byte over.
func passByte(listener, c int) step {
	if !pollFor(listener, unix.POLLIN, connectWait) {
		return step{"accept", unix.ETIMEDOUT}
	}
	got, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return step{"accept", errnoOf(err)}
	}
	defer unix.Close(got)
	if _, err := unix.Write(c, []byte{'p'}); err != nil {
		return step{"write", errnoOf(err)}
	}
	if !pollFor(got, unix.POLLIN, connectWait) {
		return step{"read", unix.ETIMEDOUT}
	}
	var b [1]byte
	_, err = unix.Read(got, b[:])
	return step{"read", errnoOf(err)}
}

func netNetlink(s *site, target string) Finding {
	proto, _ := strconv.Atoi(target)
	fd, e := newSocket(unix.AF_NETLINK, unix.SOCK_RAW, proto)
	f := Finding{Errno: errnoName(e), Syscall: "socket", Evidence: sysErr(fmt.Sprintf("socket(AF_NETLINK, SOCK_RAW, %d)", proto), e)}
	if e == 0 {
		unix.Close(fd)
		f.Evidence = fmt.Sprintf("socket(AF_NETLINK, SOCK_RAW, %d) works", proto)
	}
	// These are part of every kernel with a network; the others are modules.
	f.Outcome, f.Mechanism = judgeSocket(s.facts, e, slices.Contains([]int{0, 15, 16}, proto))
	switch target {
	case "0":
		f.Severity = "info" // what libraries ask for interfaces
	}
	return f
}

func netUring(s *site, _ string) Finding {
	_, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 0, 0, 0)
	f := Finding{Errno: errnoName(e), Syscall: "io_uring_setup", Evidence: sysErr("io_uring_setup(0, NULL)", e)}
	f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	if f.Mechanism == "lsm" {
		f.Mechanism = "sysctl"
	}
	return f
}
