package seccomp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	high  = 1 << 32              // a bit that the kernel does not see in an int
	minus = 0xffffffff_ffffffff  // -1 as a 64-bit register
	neg1  = 0xffffffff           // -1 with a clear upper half
	none  = unix.EAFNOSUPPORT    // the errnos, for short rows
	proto = unix.EPROTONOSUPPORT //
	stype = unix.ESOCKTNOSUPPORT //
	perm  = unix.EPERM           //
	flags = unix.EOPNOTSUPP      //
	ok    = unix.Errno(0)        // allowed
	cloex = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
)

// What the filter answers by argument, written down apart from the table. Where
// the kernel takes 32 bits, what stands above them must not open anything: each
// row is also tried with rubbish in the upper half of every argument.
func TestProgram_Arguments(t *testing.T) {
	type row struct {
		call string
		args []uint64
		none unix.Errno // with NetNone
		host unix.Errno // with NetHost
	}
	rows := []row{
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, ok, ok},
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_DGRAM | cloex, 0}, ok, ok},
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET, 0}, ok, ok},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE}, ok, ok},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_DGRAM, unix.NETLINK_INET_DIAG}, proto, proto},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM}, proto, proto},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, proto, proto},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT}, proto, proto},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, neg1}, proto, proto},

		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, none, ok},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM | cloex, unix.IPPROTO_TCP}, none, ok},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, none, ok},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.IPPROTO_UDP}, none, ok},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, none, ok},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, none, ok},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, none, proto},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_STREAM | cloex, unix.IPPROTO_MPTCP}, none, proto},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, none, proto},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP}, none, stype},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_UDP}, none, proto},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, 256}, none, proto}, // SMC
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, none, proto},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}, none, proto},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, none, proto},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, none, stype},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6}, none, stype},
		{"socket", []uint64{unix.AF_INET, 10, 0}, none, stype}, // SOCK_PACKET
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DCCP, 0}, none, stype},
		{"socket", []uint64{unix.AF_INET, 0, 0}, none, stype},
		{"socket", []uint64{unix.AF_INET, 0xf, 0}, none, stype},

		{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, ok, ok},
		{"socketpair", []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, none, none},
		{"socketpair", []uint64{unix.AF_TIPC, unix.SOCK_SEQPACKET, 0}, none, none},

		{"sendto", []uint64{3, 0, 0, unix.MSG_FASTOPEN, 0, 0}, ok, flags},
		{"sendto", []uint64{3, 0, 0, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL, 0, 0}, ok, flags},
		{"sendto", []uint64{3, 0, 0, unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT, 0, 0}, ok, ok},
		{"sendto", []uint64{unix.MSG_FASTOPEN, unix.MSG_FASTOPEN, unix.MSG_FASTOPEN, 0, unix.MSG_FASTOPEN, unix.MSG_FASTOPEN}, ok, ok},
		{"sendto", []uint64{3, 0, 0, neg1, 0, 0}, ok, flags},
		{"sendmsg", []uint64{3, 0, unix.MSG_FASTOPEN}, ok, flags},
		{"sendmsg", []uint64{3, 0, 0, unix.MSG_FASTOPEN}, ok, ok},
		{"sendmmsg", []uint64{3, 0, 1, unix.MSG_FASTOPEN}, ok, flags},
		{"sendmmsg", []uint64{3, 0, unix.MSG_FASTOPEN, 0}, ok, ok},

		{"clone", []uint64{uint64(unix.SIGCHLD)}, ok, ok},
		{"clone", []uint64{0x3d0f00}, ok, ok},                              // pthread_create
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_VFORK | 17}, ok, ok}, // posix_spawn
		{"clone", []uint64{unix.CLONE_NEWUSER | 17}, perm, perm},
		{"clone", []uint64{unix.CLONE_PARENT | 17}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWNS}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWNET}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWPID}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWIPC}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWUTS}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWCGROUP}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWTIME}, perm, perm},
		{"clone", []uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWPID | 17}, perm, perm},
		{"clone", []uint64{0x7e020080}, perm, perm},

		{"ioctl", []uint64{0, unix.TCGETS}, ok, ok},
		{"ioctl", []uint64{0, unix.TIOCGWINSZ}, ok, ok},
		{"ioctl", []uint64{0, 0x541b}, ok, ok},
		{"ioctl", []uint64{0, unix.TIOCGPTN}, ok, ok},
		{"ioctl", []uint64{0, unix.TIOCSTI}, perm, perm},
		{"ioctl", []uint64{0, 0x541c}, perm, perm},
		{"ioctl", []uint64{0, unix.TIOCCONS}, perm, perm},
		{"ioctl", []uint64{unix.TIOCSTI, 0, unix.TIOCSTI}, ok, ok},

		{"prctl", []uint64{unix.PR_SET_NAME}, ok, ok},
		{"prctl", []uint64{unix.PR_SET_NO_NEW_PRIVS, 1}, ok, ok},
		{"prctl", []uint64{unix.PR_SET_PDEATHSIG, 9}, ok, ok},
		{"prctl", []uint64{unix.PR_SET_VMA}, ok, ok},
		{"prctl", []uint64{unix.PR_SET_PTRACER, minus}, perm, perm},
		{"prctl", []uint64{unix.PR_SET_MM}, perm, perm},
		{"prctl", []uint64{unix.PR_SET_SECUREBITS}, perm, perm},
		{"prctl", []uint64{unix.PR_GET_SECUREBITS}, ok, ok},

		{"personality", []uint64{0}, ok, ok},
		{"personality", []uint64{8}, ok, ok},
		{"personality", []uint64{0x20000}, ok, ok},
		{"personality", []uint64{0x20008}, ok, ok},
		{"personality", []uint64{neg1}, ok, ok},
		{"personality", []uint64{0x40000}, ok, ok},      // ADDR_NO_RANDOMIZE
		{"personality", []uint64{0x400000}, perm, perm}, // READ_IMPLIES_EXEC
		{"personality", []uint64{0x440000}, perm, perm},
		{"personality", []uint64{0x100000}, perm, perm}, // MMAP_PAGE_ZERO
		{"personality", []uint64{0x60000}, perm, perm},
		{"personality", []uint64{1}, perm, perm},

		{"prlimit64", []uint64{0, unix.RLIMIT_NOFILE}, ok, ok},
		{"prlimit64", []uint64{1, unix.RLIMIT_NOFILE}, perm, perm},
		{"prlimit64", []uint64{4242, unix.RLIMIT_NOFILE}, perm, perm},
		{"prlimit64", []uint64{neg1, unix.RLIMIT_NOFILE}, perm, perm},
		{"prlimit64", []uint64{0x80000000, 0}, perm, perm},
		{"sched_setscheduler", []uint64{0, 3}, ok, ok},
		{"sched_setscheduler", []uint64{4242, 3}, perm, perm},
		{"sched_setparam", []uint64{0}, ok, ok},
		{"sched_setparam", []uint64{4242}, perm, perm},
		{"sched_setattr", []uint64{0}, ok, ok},
		{"sched_setattr", []uint64{4242}, perm, perm},
		{"sched_setaffinity", []uint64{4242}, ok, ok},
		{"setpriority", []uint64{unix.PRIO_PROCESS, 0, 10}, ok, ok},
		{"setpriority", []uint64{unix.PRIO_PROCESS, 4242, 10}, perm, perm},
		{"setpriority", []uint64{unix.PRIO_PGRP, 0, 10}, perm, perm},
		{"setpriority", []uint64{unix.PRIO_USER, 0, 10}, perm, perm},
		{"setpriority", []uint64{unix.PRIO_USER, 1000, 10}, perm, perm},
		{"setpriority", []uint64{neg1, 0, 10}, perm, perm},
		{"ioprio_set", []uint64{1, 0, 0x4007}, ok, ok},
		{"ioprio_set", []uint64{1, 4242, 0x4007}, perm, perm},
		{"ioprio_set", []uint64{2, 0, 0x4007}, perm, perm},
		{"ioprio_set", []uint64{3, 0, 0x4007}, perm, perm},
		{"ioprio_set", []uint64{0, 0, 0x4007}, perm, perm},

		{"kill", []uint64{4242, 9}, ok, ok},
		{"kill", []uint64{0, 9}, ok, ok},
		{"kill", []uint64{neg1, 9}, ok, ok},
		{"kill", []uint64{minus, 9}, ok, ok},
		{"shmget", []uint64{1, 4096, 0o1600}, ok, ok},
		{"clone3", nil, unix.ENOSYS, unix.ENOSYS},
		{"perf_event_open", nil, unix.EACCES, unix.EACCES},
		{"io_uring_setup", nil, perm, perm},
		{"open_tree_attr", nil, perm, perm},
		{"mbind", nil, ok, ok},
		{"get_mempolicy", nil, ok, ok},
		{"file_setattr", nil, unix.ENOSYS, unix.ENOSYS},
	}
	// No other domain, at all.
	for domain := range uint64(64) {
		if !slices.Contains([]uint64{unix.AF_UNIX, unix.AF_NETLINK, unix.AF_INET, unix.AF_INET6}, domain) {
			rows = append(rows, row{"socket", []uint64{domain, unix.SOCK_STREAM, 0}, none, none},
				row{"socket", []uint64{domain, unix.SOCK_RAW, neg1}, none, none})
		}
		if domain != unix.AF_UNIX {
			rows = append(rows, row{"socketpair", []uint64{domain, unix.SOCK_STREAM, 0}, none, none})
		}
	}
	for _, domain := range []uint64{neg1, 0x80000001, 0x10001, 0x101, 0x10010} {
		rows = append(rows, row{"socket", []uint64{domain, unix.SOCK_STREAM, 0}, none, none})
	}

	// With NetLoopback as with NetHost, but for datagrams and these.
	const asked = unix.Errno(Ask)
	loopback := []row{
		{"connect", []uint64{3, 1, 16}, ok, asked},
		{"bind", []uint64{3, 1, 16}, ok, asked},
		{"listen", []uint64{3, 1}, ok, asked},
		{"setsockopt", []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}, ok, ok},
		{"setsockopt", []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEPORT}, ok, unix.ENOPROTOOPT},
		{"setsockopt", []uint64{3, unix.SOL_SOCKET, unix.SO_BINDTODEVICE}, ok, perm},
		{"setsockopt", []uint64{3, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX}, ok, perm},
		{"setsockopt", []uint64{3, unix.IPPROTO_TCP, unix.TCP_NODELAY}, ok, ok},
		{"setsockopt", []uint64{3, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT}, ok, flags},
		{"setsockopt", []uint64{3, unix.IPPROTO_TCP, unix.TCP_REPAIR}, ok, flags},
		{"setsockopt", []uint64{3, unix.IPPROTO_IP, unix.IP_TOS}, ok, ok},
		{"setsockopt", []uint64{3, unix.IPPROTO_IP, unix.IP_OPTIONS}, ok, unix.ENOPROTOOPT}, // a source route
		{"setsockopt", []uint64{3, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP}, ok, unix.ENOPROTOOPT},
		{"setsockopt", []uint64{3, unix.IPPROTO_IP, unix.MCAST_JOIN_GROUP}, ok, unix.ENOPROTOOPT},
		{"setsockopt", []uint64{3, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}, ok, ok},
		{"setsockopt", []uint64{3, unix.IPPROTO_IPV6, unix.IPV6_RTHDR}, ok, unix.ENOPROTOOPT},
		{"setsockopt", []uint64{3, unix.IPPROTO_IPV6, unix.MCAST_JOIN_GROUP}, ok, unix.ENOPROTOOPT},
		{"setsockopt", []uint64{3, unix.IPPROTO_MPTCP, 1}, ok, unix.ENOPROTOOPT},
		{"setsockopt", []uint64{3, unix.SOL_NETLINK, 1}, ok, ok},
	}
	datagram := func(r row) bool {
		return r.call == "socket" && slices.Contains([]uint64{unix.AF_INET, unix.AF_INET6}, r.args[0]) && r.args[1]&0xf == unix.SOCK_DGRAM
	}

	everySpec(t, func(t *testing.T, s Spec, m machine) {
		for i, r := range slices.Concat(rows, loopback) {
			errno := r.none
			switch {
			case s.Net == NetLoopback && datagram(r):
				errno = stype
			case s.Net == NetLoopback || s.Net == NetHost && i < len(rows):
				errno = r.host
			}
			if s.DenyKillAll && r.call == "kill" && uint32(r.args[0]) == neg1 || s.DenySysV && r.call == "shmget" {
				errno = perm
			}
			want := Allow
			if errno == asked {
				want = Ask
			} else if errno != ok {
				want = Fail(errno)
			}
			for _, upper := range []uint64{0, high, 0x123 << 32, 1 << 63, neg1 << 32} {
				for mask := range 1 << len(r.args) { // which arguments get it
					args := slices.Clone(r.args)
					for i := range args {
						if mask>>i&1 == 1 {
							args[i] |= upper
						}
					}
					if got := m.call(t, s, r.call, args...); got != want {
						t.Fatalf("%s%#x: %v instead of %v", r.call, args, got, want)
					}
				}
			}
		}
	})
}

// Without Unix sockets nothing can be made that reaches a name.
func TestDenyUnix(t *testing.T) {
	none, typ := unix.EAFNOSUPPORT, unix.ESOCKTNOSUPPORT
	for _, arch := range arches {
		for _, net := range []Net{NetNone, NetHost, NetLoopback} {
			with, without := Spec{Arch: arch, Net: net}, Spec{Arch: arch, Net: net, DenyUnix: true}
			for _, r := range []struct {
				call     string
				family   uint64
				kind     uint64
				was, now Verdict
			}{
				{"socket", unix.AF_UNIX, unix.SOCK_STREAM, Allow, Fail(none)},
				{"socket", unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, Allow, Fail(none)},
				{"socket", unix.AF_NETLINK, unix.SOCK_RAW, Allow, Allow},
				{"socketpair", unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_NONBLOCK, Allow, Allow},
				{"socketpair", unix.AF_UNIX, unix.SOCK_SEQPACKET, Allow, Allow},
				{"socketpair", unix.AF_UNIX, unix.SOCK_DGRAM, Allow, Fail(typ)},
				{"socketpair", unix.AF_UNIX, unix.SOCK_RAW, Allow, Fail(typ)}, // the kernel makes a datagram socket of it
				{"socketpair", unix.AF_INET, unix.SOCK_STREAM, Fail(none), Fail(none)},
			} {
				if got := program(t, with).call(t, with, r.call, r.family, r.kind, 0); got != r.was {
					t.Errorf("%s net %d: %s(%d, %d): %v, want %v", arch, net, r.call, r.family, r.kind, got, r.was)
				}
				if got := program(t, without).call(t, without, r.call, r.family, r.kind, 0); got != r.now {
					t.Errorf("%s net %d, no Unix sockets: %s(%d, %d): %v, want %v", arch, net, r.call, r.family, r.kind, got, r.now)
				}
			}
		}
	}
}

// Any arguments at all: the program says what the tree says, and the tree sees
// nothing but the low halves.
func TestProgram_AgreesWithRules(t *testing.T) {
	everySpec(t, func(t *testing.T, s Spec, m machine) {
		rules, err := Rules(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.disagree(rules, 2000); err != nil {
			t.Error(err)
		}
	})
}

// disagree looks for a call to which the program does not answer as the rules
// do, by n tries with random arguments for each call that has tests.
func (m machine) disagree(rules []Rule, n int) error {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, r := range rules {
		if len(r.Branches) == 0 {
			continue
		}
		pool := interesting(r.Tree)
		for range n {
			var args, low [6]uint64
			for i := range args {
				args[i] = uint64(rnd.Uint32())<<32 | uint64(pool[rnd.IntN(len(pool))])
				if rnd.IntN(2) == 0 {
					args[i] = uint64(uint32(args[i]))
				}
				low[i] = uint64(uint32(args[i]))
			}
			got, want := m.ask(m.arch, uint32(r.Nr), args[:]...), r.Decide(args)
			if got != want || r.Decide(low) != want {
				return fmt.Errorf("%s%#x: the program says %v, the rule %v", r.Name, args, got, want)
			}
		}
	}
	return nil
}

// interesting are the values of a tree's branches, and others near them.
func interesting(t Tree) []uint32 {
	out := []uint32{0, 1, neg1, 1 << 31}
	for _, b := range t.Branches {
		out = append(out, b.Value, b.Value+1, b.Value-1, b.Value|1<<16, b.Value|1<<31)
		for bit := range 32 {
			if t.Mask>>bit&1 == 1 {
				out = append(out, 1<<bit, b.Value^1<<bit)
			}
		}
		out = append(out, interesting(b.Tree)...)
	}
	return out
}
