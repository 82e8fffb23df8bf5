package probe

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// netOutChecks are the part of group D that asks for an answer. Each makes
// one connection, or sends one datagram, per target.
func netOutChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Worker = "net", classNetOut
		return c
	}
	noCanary := "no canary was named: `probe listen --canary FILE` in the background, then --canary FILE"
	return []Check{
		each(Check{
			ID: "net.tcp.canary", Severity: "high", Attack: []string{"T1041"}, targets: canaryTCP, none: noTarget(unix.SOCK_STREAM, noCanary),
			try:  onCanary((*Canary).tcp, func(s *site, to netip.AddrPort) Finding { return s.tryConnect(0, to) }),
			What: "connects by TCP to the operator's canary listeners: loopback, and this node's own address",
			Why:  "a listener known to be there makes a refusal proof",
		}),
		each(Check{
			ID: "net.tcp.out", Severity: "high", Attack: []string{"T1041", "T1105"}, try: tcpOut,
			targets: func(s *site) []string { return s.TCP }, none: noTarget(unix.SOCK_STREAM, "no outside host was named: --tcp HOST:PORT"),
			What: "connects by TCP to the hosts that the operator named, sending nothing",
			Why:  "a way out for data and a way in for orders",
		}),
		each(Check{
			ID: "net.tcp.cluster", Severity: "high", Attack: []string{"T1021", "T1046"}, targets: clusterTargets, try: tcpOut,
			none: noTarget(unix.SOCK_STREAM, "neither slurm.conf, the job's variables nor a mount names another machine of the cluster"),
			What: "connects by TCP to the daemons and nodes that slurm.conf, the job's variables and NFS mounts name, sending nothing",
			Why:  "the scheduler, the file servers and every other node answer to this user",
		}),
		each(Check{
			ID: "net.tcp.fastopen", Severity: "high", Attack: []string{"T1041"}, targets: canaryTCP, none: noTarget(unix.SOCK_STREAM, noCanary),
			try: onCanary((*Canary).tcp, func(s *site, to netip.AddrPort) Finding {
				return s.connectFinding("sendto(MSG_FASTOPEN)", fastOpen(to), to, 0)
			}),
			What: "sendto with MSG_FASTOPEN of one byte to the canary: TCP without connect",
			Why:  "Landlock before 7.2 checks connect alone",
		}),
		each(Check{
			ID: "net.mptcp", Severity: "high", Attack: []string{"T1041"}, targets: canaryTCP, none: noMPTCP,
			try:  onCanary((*Canary).tcp, func(s *site, to netip.AddrPort) Finding { return s.tryConnect(ipprotoMPTCP, to) }),
			What: "connects an MPTCP socket to the canary; without one, to a listener of its own",
			Why:  "Landlock's TCP rules do not see MPTCP",
		}),
		each(Check{
			ID: "net.udp.canary", Severity: "high", Attack: []string{"T1048.003"}, targets: canaryUDP, none: noTarget(unix.SOCK_DGRAM, noCanary),
			try: onCanary((*Canary).udp, func(s *site, to netip.AddrPort) Finding {
				return s.connectFinding("a datagram", ping(to, []byte{0}, connectWait), to, 0)
			}),
			What: "sends one byte by UDP to the operator's canary and waits for it to come back",
			Why:  "a listener known to be there makes a refusal proof",
		}),
		each(Check{
			ID: "net.udp.out", Severity: "high", Attack: []string{"T1048.003"}, try: udpOut,
			targets: func(s *site) []string { return s.UDP }, none: noTarget(unix.SOCK_DGRAM, "no outside host was named: --udp HOST:PORT"),
			What: "sends one byte by UDP to the hosts that the operator named and waits for an answer",
			Why:  "a way out for data",
		}),
		each(Check{
			ID: "net.dns.udp", Severity: "high", Attack: []string{"T1071.004"}, targets: nameservers, none: noTarget(unix.SOCK_DGRAM, "resolv.conf names no server"),
			try: func(s *site, t string) Finding {
				to, err := netip.ParseAddrPort(t)
				if err != nil {
					return Finding{Outcome: Error, Evidence: err.Error()}
				}
				return s.connectFinding("one query for probe.invalid", ping(to, dnsQuery, connectWait), to, 0)
			},
			What: "asks each server in resolv.conf for the name probe.invalid, by UDP",
			Why:  "names carry data out even where connections are closed",
		}),
		each(Check{
			ID: "net.dns.tcp", Severity: "high", Attack: []string{"T1071.004"}, targets: nameservers, none: noTarget(unix.SOCK_STREAM, "resolv.conf names no server"), try: tcpOut,
			What: "connects by TCP to port 53 of each server in resolv.conf, sending nothing",
			Why:  "DNS where UDP is closed",
		}),
		each(Check{
			ID: "net.metadata", Severity: "high", Attack: []string{"T1552.005"}, targets: metadataTargets, try: tryMetadata,
			What: "connects by TCP to the addresses of cloud metadata services, sending nothing; unfenced only where the machine says that it is in a cloud",
			Why:  "on a cloud's cluster they hand out the machine's credentials",
		}),
		each(Check{
			ID: "net.proxy.socket", Severity: "info", try: func(s *site, t string) Finding { return s.unixFinding(t, false) },
			targets: proxySocket, none: nothing(Skipped, "no proxy socket was named"),
			What: "connects to the egress proxy's Unix socket and hangs up",
			Why:  "the one way out, where there is to be one",
		}),
		each(Check{
			ID: "net.proxy.allow", Severity: "info", try: tryProxy,
			targets: func(s *site) []string { return s.Allow }, none: nothing(Skipped, "no host was named that the proxy must let through"),
			What: "asks the proxy to CONNECT to the hosts that the operator named, and sends them nothing",
			Why:  "shows that the proxy works, so that its refusals mean something",
		}),
		each(Check{
			ID: "net.proxy.deny", Severity: "high", Attack: []string{"T1090"}, try: tryProxy,
			targets: proxyDeny, none: nothing(Skipped, "no proxy socket was named"),
			What: "asks the proxy to CONNECT to hosts that it must refuse: those named, and this node's loopback in two spellings",
			Why:  "proves the proxy's rules, not only its pipe",
		}),
	}
}

// noTarget is the finding of a check with nothing to connect to: refused if
// the kernel gives no socket for it at all, unreachable if there is no interface
// but lo, else left out.
func noTarget(kind int, evidence string) func(*site) Finding {
	return func(s *site) Finding {
		fd, e := newSocket(unix.AF_INET, kind, 0)
		if e == 0 {
			defer unix.Close(fd)
			if !s.network().LoOnly {
				return Finding{Outcome: Skipped, Evidence: evidence}
			}
			e := errnoOf(unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{192, 0, 2, 1}})) // nobody's, RFC 5737
			f := Finding{Errno: errnoName(e), Syscall: "connect", Evidence: evidence + "; no interface but lo is up, and to 192.0.2.1 " + sysErr("connect", e)}
			f.Outcome, f.Mechanism = judgeConnect(s.network(), e, false)
			return f
		}
		f := Finding{Errno: errnoName(e), Syscall: "socket", Evidence: sysErr(fmt.Sprintf("socket(AF_INET, %d)", kind), e) + ", whatever the address"}
		f.Outcome, f.Mechanism = judgeSocket(s.facts, e, true)
		return f
	}
}

// canary targets are called by their address alone: a canary that was
// started again has other ports, and the same door is meant.
func canaryNames(list []string) []string {
	var out []string
	for _, hp := range list {
		if a, err := netip.ParseAddrPort(hp); err == nil {
			out = append(out, "canary:"+a.Addr().String())
		}
	}
	return out
}

func (c *Canary) tcp() []string { return c.TCP }
func (c *Canary) udp() []string { return c.UDP }

func canaryTCP(s *site) []string {
	if s.Canary == nil {
		return nil
	}
	return canaryNames(s.Canary.TCP)
}

func canaryUDP(s *site) []string {
	if s.Canary == nil {
		return nil
	}
	return canaryNames(s.Canary.UDP)
}

// onCanary makes a try of one on a canary's address.
func onCanary(list func(*Canary) []string, try func(*site, netip.AddrPort) Finding) func(*site, string) Finding {
	return func(s *site, target string) Finding {
		hps := list(s.Canary)
		if i := slices.Index(canaryNames(hps), target); i >= 0 {
			return try(s, netip.MustParseAddrPort(hps[i])) // readCanary has parsed them all
		}
		return Finding{Outcome: Error, Evidence: "BUG: no such canary"}
	}
}

// network is s.facts with the interfaces known.
func (s *site) network() facts {
	s.linksOnce.Do(func() {
		ls, e := links()
		s.lo = e == 0 && loOnly(ls)
	})
	f := s.facts
	f.LoOnly = s.lo
	return f
}

func (s *site) tryConnect(proto int, to netip.AddrPort) Finding {
	return s.connectFinding("connect", connectStream(proto, to), to, proto)
}

// connectFinding reads the end of an attempt to reach an address.
func (s *site) connectFinding(what string, st step, to netip.AddrPort, proto int) Finding {
	f := Finding{Errno: errnoName(st.e), Syscall: st.call}
	if st.call == "socket" {
		known := proto == 0 && to.Addr().Unmap().Is4() || proto == ipprotoMPTCP && slices.Contains(protocols(), "MPTCP")
		if to.Addr().Unmap().Is6() {
			known = slices.Contains(protocols(), "TCPv6")
		}
		f.Outcome, f.Mechanism = judgeSocket(s.facts, st.e, known)
		f.Evidence = sysErr("socket", st.e) + ", whatever the address"
		return f
	}
	f.Outcome, f.Mechanism = judgeConnect(s.network(), st.e, st.e != 0 && isLocal(to.Addr()))
	switch {
	case st.e == 0:
		f.Evidence = fmt.Sprintf("%s: %s answered", what, to)
	case f.Outcome == Reachable:
		f.Evidence = fmt.Sprintf("%s: %s answered with %s", what, to, errnoName(st.e))
	default:
		f.Evidence = fmt.Sprintf("%s to %s", sysErr(st.call, st.e), to)
		if what != st.call {
			f.Evidence = what + ": " + f.Evidence
		}
	}
	return f
}

// refused is the finding for a target when no such socket is to be had.
func (s *site) refused(kind int) (Finding, bool) {
	f := noTarget(kind, "")(s)
	return f, f.Outcome != Skipped
}

func tcpOut(s *site, target string) Finding {
	if f, ok := s.refused(unix.SOCK_STREAM); ok {
		return f
	}
	to, err := resolve(target)
	if err != nil {
		return Finding{Outcome: Unreachable, Mechanism: loMechanism(s.network(), ""), Evidence: "the name could not be resolved: " + err.Error()}
	}
	return s.tryConnect(0, to)
}

func udpOut(s *site, target string) Finding {
	if f, ok := s.refused(unix.SOCK_DGRAM); ok {
		return f
	}
	to, err := resolve(target)
	if err != nil {
		return Finding{Outcome: Unreachable, Mechanism: loMechanism(s.network(), ""), Evidence: "the name could not be resolved: " + err.Error()}
	}
	return s.connectFinding("a datagram", ping(to, []byte{0}, connectWait), to, 0)
}

// noMPTCP tries MPTCP on a listener of its own: Landlock stops a TCP connect
// there and lets this one through.
func noMPTCP(s *site) Finding {
	fd, at, st := bindListen(ipprotoMPTCP, false)
	if st.e == 0 {
		defer unix.Close(fd)
		f := s.tryConnect(ipprotoMPTCP, at)
		f.Evidence += ", a listener of its own; no canary was named"
		return f
	}
	f := Finding{Errno: errnoName(st.e), Syscall: st.call, Evidence: sysErr(st.call, st.e)}
	if st.call == "socket" {
		f.Outcome, f.Mechanism = judgeSocket(s.facts, st.e, slices.Contains(protocols(), "MPTCP"))
	} else {
		f.Outcome, f.Mechanism = judgeConnect(s.facts, st.e, true)
	}
	return f
}

// dnsQuery asks for the address of a name that no server may know (RFC 6761).
var dnsQuery = []byte("\x70\x72\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05probe\x07invalid\x00\x00\x01\x00\x01")

func nameservers(*site) []string {
	data, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	return parseResolv(string(data))
}

func parseResolv(text string) []string {
	var out []string
	for _, l := range strings.Split(text, "\n") {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil {
				out = append(out, netip.AddrPortFrom(a, 53).String())
			}
		}
	}
	return dedupe(out)
}

// metadataTargets are where clouds keep their metadata services.
func metadataTargets(*site) []string {
	return []string{
		"169.254.169.254:80", "100.100.100.200:80", "168.63.129.16:80", "192.0.0.192:80", "[fd00:ec2::254]:80", "[fd20:ce::254]:80",
	}
}

// clouds are vendor names in a machine's DMI data.
var clouds = []string{
	"Amazon", "Google", "Microsoft", "Alibaba", "Oracle", "OpenStack", "DigitalOcean", "Hetzner", "Scaleway", "Exoscale",
	"Tencent", "Huawei", "Vultr", "OVH", "UpCloud", "Linode", "IBM Cloud",
}

// cloud is the cloud that this machine says it is in, "" for none.
func cloud() string {
	for _, f := range []string{"sys_vendor", "chassis_vendor", "chassis_asset_tag", "product_name", "bios_vendor"} {
		data, err := os.ReadFile("/sys/class/dmi/id/" + f)
		if err != nil {
			continue
		}
		for _, c := range clouds {
			if strings.Contains(string(data), c) {
				return c
			}
		}
	}
	return ""
}

// tryMetadata knocks where that says something. On a machine of no cloud, an
// unfenced process would only make the site's intrusion detection look up.
func tryMetadata(s *site, target string) Finding {
	if f, ok := s.refused(unix.SOCK_STREAM); ok {
		return f
	}
	if !s.Filter && s.Layers <= 0 && cloud() == "" && !slices.Contains(s.TCP, target) {
		return Finding{Outcome: Skipped, Evidence: "this machine names no cloud, and there is no fence to test; --tcp " + target + " asks for it"}
	}
	return s.tryConnect(0, netip.MustParseAddrPort(target))
}

func proxySocket(s *site) []string {
	if s.Proxy == "" {
		return nil
	}
	return []string{s.Proxy}
}

func proxyDeny(s *site) []string {
	if s.Proxy == "" {
		return nil
	}
	return append(slices.Clone(s.Deny), "127.0.0.1:1", "[::ffff:127.0.0.1]:1")
}

// tryProxy asks the proxy to open a tunnel, and hangs up.
func tryProxy(s *site, target string) Finding {
	fd, e := newSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if e != 0 {
		return Finding{Outcome: Error, Errno: errnoName(e), Syscall: "socket", Evidence: sysErr("socket(AF_UNIX)", e)}
	}
	file := os.NewFile(uintptr(fd), "proxy")
	defer file.Close()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.Proxy}); err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Syscall: "connect", Evidence: "the proxy's socket: " + sysErr("connect", errnoOf(err))}
	}
	if _, err := unix.Write(fd, []byte("CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")); err != nil {
		return Finding{Outcome: Error, Errno: errnoName(errnoOf(err)), Syscall: "write", Evidence: "the proxy hung up"}
	}
	if !pollFor(fd, unix.POLLIN, connectWait) {
		return Finding{Outcome: Timeout, Evidence: "the proxy did not answer"}
	}
	text, err := bufio.NewReader(file).ReadString('\n')
	if err != nil {
		return Finding{Outcome: Error, Evidence: "the proxy's answer: " + err.Error()}
	}
	return proxyFinding(text)
}

// proxyFinding reads the status line of a proxy's answer.
func proxyFinding(status string) Finding {
	f := Finding{Outcome: Error, Evidence: "the proxy said: " + strings.TrimSpace(status)}
	p := strings.Fields(status)
	if len(p) < 2 || !strings.HasPrefix(p[0], "HTTP/1.") {
		return f
	}
	switch code, _ := strconv.Atoi(p[1]); {
	case code >= 200 && code < 300:
		f.Outcome = Reachable
	case code == 403:
		f.Outcome, f.Mechanism = Denied, "proxy_policy"
	case code == 502 || code == 504:
		f.Outcome = Unreachable
	}
	return f
}
