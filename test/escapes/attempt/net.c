/* Rows 1 to 15: ways to a network, and to other programs' sockets. */
#include "attempt.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static struct sockaddr_in local4(long port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

/* arrives sends the word by which the victim tells an attempt from a bystander that connects to
 * whatever it finds. */
static long arrives(long fd, long connected)
{
	if (connected >= 0)
		SYS(write, fd, WORD, sizeof WORD);
	return connected;
}

static void connect4(const char *step, long fd, long port)
{
	struct sockaddr_in a = local4(port);
	if (fd >= 0)
		did(step, arrives(fd, SYS(connect, fd, &a, sizeof a)));
}

static void tcp(void) { connect4("connect", did("socket", SYS(socket, AF_INET, SOCK_STREAM, 0)), num("tcp")); }

static void udp(void)
{
	struct sockaddr_in a = local4(num("udp"));
	long fd = did("socket", SYS(socket, AF_INET, SOCK_DGRAM, 0));
	if (fd >= 0)
		did("sendto", SYS(sendto, fd, WORD, sizeof WORD, 0L, &a, sizeof a));
}

static void tcp6(void)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(num("tcp6")), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	long fd = did("socket", SYS(socket, AF_INET6, SOCK_STREAM, 0));
	if (fd >= 0)
		did("connect", arrives(fd, SYS(connect, fd, &a, sizeof a)));
}

static void mptcp(void)
{
	connect4("connect", did("socket", SYS(socket, AF_INET, SOCK_STREAM, IPPROTO_MPTCP)), num("tcp"));
}

static void fastopen(void)
{
	struct sockaddr_in a = local4(num("tcp"));
	struct iovec iov = {WORD, sizeof WORD};
	struct msghdr msg = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &iov, .msg_iovlen = 1};
	int on = 1;
	long fd = did("socket", SYS(socket, AF_INET, SOCK_STREAM, 0));
	if (fd < 0)
		return;
	did("sendto", SYS(sendto, fd, WORD, sizeof WORD, (long)MSG_FASTOPEN, &a, sizeof a));
	fd = SYS(socket, AF_INET, SOCK_STREAM, 0);
	did("sendmsg", SYS(sendmsg, fd, &msg, (long)MSG_FASTOPEN));
	fd = SYS(socket, AF_INET, SOCK_STREAM, 0);
	SYS(setsockopt, fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on);
	did("connect-later", arrives(fd, SYS(connect, fd, &a, sizeof a)));
}

static void listens(void)
{
	long fd = did("socket", SYS(socket, AF_INET, SOCK_STREAM, 0));
	if (fd >= 0)
		did("listen", SYS(listen, fd, 1));
}

/* asked is socket(family, type, protocol) with a flag that no kernel knows. A kernel that is asked
 * says EINVAL, whether or not it has the family; a filter answers as it would without the flag. */
static long asked(long family, long type, long protocol) { return SYS(socket, family, type | 0x100000, protocol); }

/* all_of reports the answer that every call gave, or the first that is another one. */
static void all_of(const char *step, long (*call)(int), int from, int to)
{
	long first = call(from);
	for (int i = from + 1; i <= to; i++)
		if (call(i) != first) {
			char note[32];
			snprintf(note, sizeof note, "not at %d", i);
			noted(step, call(i), note);
			return;
		}
	did(step, first);
}

static long netlink(int protocol) { return asked(AF_NETLINK, SOCK_RAW, protocol); }

static void vsock_netlink(void)
{
	did("vsock", asked(AF_VSOCK, SOCK_STREAM, 0));
	did("sock_diag", SYS(socket, AF_NETLINK, SOCK_RAW, 4));
	did("xfrm", asked(AF_NETLINK, SOCK_RAW, 6));
	all_of("netlink-1-to-31", netlink, 1, 31);
	/* Beside it: what getifaddrs(3) needs. */
	did("route", SYS(socket, AF_NETLINK, SOCK_RAW, 0));
}

static void raw(void)
{
	did("packet", SYS(socket, AF_PACKET, SOCK_RAW, 0));
	did("raw", SYS(socket, AF_INET, SOCK_RAW, IPPROTO_ICMP));
	did("ping", SYS(socket, AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
}

static long family(int n) { return n == AF_NETLINK ? asked(AF_PACKET, SOCK_DGRAM, 0) : asked(n, SOCK_DGRAM, 0); }

static void families(void)
{
	did("alg", asked(AF_ALG, SOCK_SEQPACKET, 0));
	did("ib", asked(AF_IB, SOCK_DGRAM, 0));
	did("rds", asked(AF_RDS, SOCK_SEQPACKET, 0));
	did("smc", asked(AF_SMC, SOCK_STREAM, 0));
	did("tipc", asked(AF_TIPC, SOCK_DGRAM, 0));
	did("xdp", asked(AF_XDP, SOCK_RAW, 0));
	did("rxrpc", asked(AF_RXRPC, SOCK_DGRAM, 0));
	did("kcm", asked(AF_KCM, SOCK_DGRAM, 0));
	all_of("2-to-44-but-netlink", family, 2, 44);
}

static void high_bits(void)
{
	connect4("connect", did("socket", SYS(socket, 0x100000002L, (long)SOCK_STREAM, 0L)), num("tcp"));
	did("type", SYS(socket, 2L, 0x700000001L, 0L));
}

#ifdef __x86_64__
static void x32(void) { did("socket", result(syscall(0x40000000 + SYS_socket, AF_INET, SOCK_STREAM, 0))); }

static long int80(long nr, long a, long b, long c)
{
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
	return (int)r;
}

static void getpid80(void) { did("getpid", int80(20, 0, 0, 0)); }
static void socket80(void)
{
	int *a = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	a[0] = AF_INET, a[1] = SOCK_STREAM, a[2] = 0;
	did("socketcall", int80(102, 1, (long)a, 0));
}

static void i386(void)
{
	in_child("getpid", getpid80);
	in_child("socketcall", socket80);
}
#else
static void x32(void) {}
static void i386(void) {}
#endif

static void pair(void)
{
	int fd[2];
	did("socketpair", SYS(socketpair, AF_INET, SOCK_STREAM, 0, fd));
	did("unix", SYS(socketpair, AF_UNIX, SOCK_STREAM, 0, fd));
}

static socklen_t named(struct sockaddr_un *a, const char *name, int abstract)
{
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	strncpy(a->sun_path + abstract, name, sizeof a->sun_path - 1 - abstract);
	return offsetof(struct sockaddr_un, sun_path) + abstract + strlen(a->sun_path + abstract);
}

static void connect_unix(const char *step, const char *name, int abstract)
{
	struct sockaddr_un a;
	socklen_t n = named(&a, name, abstract);
	long fd = SYS(socket, AF_UNIX, SOCK_STREAM, 0);
	did(step, arrives(fd, SYS(connect, fd, &a, n)));
}

static void abstract(void)
{
	struct sockaddr_un a;
	char name[100];
	struct iovec iov = {WORD, sizeof WORD};
	struct msghdr msg = {.msg_name = &a, .msg_iov = &iov, .msg_iovlen = 1};
	connect_unix("connect", arg("name"), 1);
	snprintf(name, sizeof name, "%s-d", arg("name"));
	socklen_t n = named(&a, name, 1);
	long fd = SYS(socket, AF_UNIX, SOCK_DGRAM, 0);
	did("sendto", SYS(sendto, fd, WORD, sizeof WORD, 0L, &a, n));
	msg.msg_namelen = n;
	did("sendmsg", SYS(sendmsg, fd, &msg, 0L));
}

static void pathname(void)
{
	connect_unix("hidden", path("hidden", "munge.socket.2"), 0);
	SYS(symlink, path("hidden", "munge.socket.2"), path("work", "munge"));
	connect_unix("hidden-by-link", path("work", "munge"), 0);
	connect_unix("plain", path("plain", "munge.socket.2"), 0);
}

const struct row net_rows[] = {
	{"1", tcp}, {"2", udp}, {"3", tcp6}, {"4", mptcp}, {"5", fastopen}, {"6", listens}, {"7", vsock_netlink},
	{"8", raw}, {"9", families}, {"10", high_bits}, {"11", x32}, {"12", i386}, {"13", pair}, {"14", abstract},
	{"15", pathname}, {0},
};
