/* attack: what a hostile command would try on the supervisor of its connections.
 *
 *   attack race N PORT...   N connects, while a thread changes the address between its own server and PORT of the node
 *   attack swap PORT      connect, bind and listen while a thread puts another socket in the descriptor's place
 *   attack flood N        N connects by many threads at once to a server of its own
 *   attack fill           a server whose queue is full; others must not wait for it
 *   attack reach IP PORT  what connect says
 *   attack alone          once something came on standard input: connect, bind and listen, and what they say
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *name(int r) { return r < 0 ? strerrorname_np(errno) : "OK"; }

static void must(int r, const char *what)
{
	if (r < 0) {
		printf("%s: %s\n", what, strerrorname_np(errno));
		exit(1);
	}
}

static struct sockaddr_in at(const char *ip, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_pton(AF_INET, ip, &a.sin_addr);
	return a;
}

static int tcp(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	must(fd, "socket");
	return fd;
}

static struct sockaddr_in own; /* of the server, as getsockname says */

static void *serve(void *l)
{
	for (;;) {
		int c = accept((long)l, NULL, NULL);
		if (c >= 0)
			close(c);
	}
	return NULL;
}

static int server(int backlog, int accepts)
{
	struct sockaddr_in a = at("127.0.0.1", 0);
	socklen_t len = sizeof own;
	pthread_t t;
	int l = tcp();
	must(bind(l, (void *)&a, sizeof a), "bind");
	must(listen(l, backlog), "listen");
	must(getsockname(l, (void *)&own, &len), "getsockname");
	if (accepts)
		must(-pthread_create(&t, NULL, serve, (void *)(long)l), "thread");
	return l;
}

/* The address that the race is about, and what it is changed between. */
static union {
	struct sockaddr_in a;
	_Atomic unsigned long long words[2];
} shared;
static struct sockaddr_in choices[9];
static int nchoices;
static atomic_long rewrites;
static atomic_int over;

static void *rewrite(void *unused)
{
	unsigned long long words[9][2];
	for (int i = 0; i < nchoices; i++)
		memcpy(words[i], &choices[i], 16);
	while (!over)
		for (int i = 0; i < nchoices; i++) {
			atomic_store_explicit(&shared.words[0], words[i][0], memory_order_relaxed);
			rewrites++;
		}
	return unused;
}

/* Two linger options: a port that is used again at once, and no TIME_WAIT. */
static void hurry(int fd)
{
	struct linger l = {1, 0};
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}

static int race(long n, int argc, char **argv)
{
	long ok = 0, refused = 0, escaped = 0, other = 0, tries = 0;
	pthread_t t;
	server(4096, 1);
	choices[nchoices++] = at("127.0.0.1", ntohs(own.sin_port));
	for (int i = 0; i < argc; i++) {
		choices[nchoices++] = at("127.0.0.1", atoi(argv[i]));
		choices[nchoices++] = at("192.0.2.1", ntohs(own.sin_port));
	}
	shared.a = choices[0];
	must(-pthread_create(&t, NULL, rewrite, NULL), "thread");
	for (; tries < n; tries++) {
		struct sockaddr_in peer;
		socklen_t len = sizeof peer;
		int fd = tcp();
		hurry(fd);
		if (!connect(fd, (void *)&shared.a, sizeof shared.a)) {
			must(getpeername(fd, (void *)&peer, &len), "getpeername");
			if (peer.sin_addr.s_addr == own.sin_addr.s_addr && peer.sin_port == own.sin_port)
				ok++;
			else
				escaped++;
		} else if (errno == ECONNREFUSED || errno == ENETUNREACH)
			refused++;
		else
			other++;
		close(fd);
	}
	over = 1;
	pthread_join(t, NULL);
	fprintf(stderr, "%ld rewrites, %ld tries: %ld ok, %ld refused, %ld other\n", rewrites, tries, ok, refused, other);
	printf("%s, escaped %ld\n", rewrites >= 1000000 && ok >= 1000 && refused >= 1000 ? "raced" : "no race", escaped);
	return 0;
}

static int target, swapped[2];

static void *swap(void *unused)
{
	while (!over) {
		dup2(swapped[0], target);
		dup2(swapped[1], target);
		rewrites++;
	}
	return unused;
}

static int swaps(int port)
{
	long unix_ok = 0, listening = 0, away = 0, wild = 0;
	pthread_t t;
	struct sockaddr_in host = at("127.0.0.1", port), any = at("0.0.0.0", 0);
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int server = socket(AF_UNIX, SOCK_STREAM, 0);
	snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "attack-%d", getpid());
	must(bind(server, (void *)&un, sizeof un), "bind");
	must(listen(server, 100), "listen");
	must(-pthread_create(&t, NULL, serve, (void *)(long)server), "thread");
	target = dup(0);
	swapped[0] = socket(AF_UNIX, SOCK_STREAM, 0);
	swapped[1] = tcp();
	must(-pthread_create(&t, NULL, swap, NULL), "thread");
	for (int i = 0; i < 30000; i++) {
		struct sockaddr_in now;
		socklen_t len = sizeof now, n = sizeof(int);
		int on = 0, fd = swapped[1];
		switch (i % 4) {
		case 0:
			listen(target, 1);
			break;
		case 1:
			unix_ok += !connect(target, (void *)&un, sizeof un);
			break;
		case 2:
			connect(target, (void *)&host, sizeof host);
			break;
		case 3:
			bind(target, (void *)&any, sizeof any);
		}
		getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n);
		must(getsockname(fd, (void *)&now, &len), "getsockname");
		listening += on;
		wild += (on || now.sin_port) && (now.sin_addr.s_addr & htonl(0xff000000)) != htonl(0x7f000000);
		wild += now.sin_port && now.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
		len = sizeof now;
		away += !getpeername(fd, (void *)&now, &len);
		if (on || now.sin_port || i % 64 == 63) { /* a new one, that has done nothing yet */
			int fresh = tcp(), fresh_unix = socket(AF_UNIX, SOCK_STREAM, 0);
			dup2(fresh, swapped[1]), dup2(fresh_unix, swapped[0]);
			close(fresh), close(fresh_unix);
		}
	}
	over = 1;
	pthread_join(t, NULL);
	fprintf(stderr, "%ld swaps: %ld connects on AF_UNIX, %ld listeners\n", rewrites, unix_ok, listening);
	printf("%s, connected away %ld, on other addresses %ld\n", rewrites > 10000 && unix_ok && listening ? "raced" : "no race", away, wild);
	return 0;
}

static long each;
static atomic_long done, failed;

static void *connects(void *unused)
{
	for (long i = 0; i < each; i++) {
		int fd = tcp();
		hurry(fd);
		if (connect(fd, (void *)&own, sizeof own)) {
			fprintf(stderr, "connect: %s\n", name(-1));
			failed++;
		} else
			done++;
		close(fd);
	}
	return unused;
}

static int flood(long n)
{
	enum { threads = 200 };
	pthread_t t[threads];
	each = n / threads;
	server(4096, 1);
	for (int i = 0; i < threads; i++)
		must(-pthread_create(&t[i], NULL, connects, NULL), "thread");
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	printf("%ld connected, %ld failed\n", done, failed);
	return 0;
}

static void *waits(void *to)
{
	connect(tcp(), to, sizeof own);
	return NULL;
}

static int fill(void)
{
	pthread_t t;
	struct sockaddr_in full;
	server(0, 0);
	full = own;
	for (int i = 0; i < 40; i++) /* all but the first two wait until the kernel gives up */
		must(-pthread_create(&t, NULL, waits, &full), "thread");
	server(4096, 1);
	each = 1000;
	connects(NULL);
	printf("%ld connected, %ld failed\n", done, failed);
	fflush(stdout);
	_exit(0);
}

static int alone(void)
{
	char c;
	struct sockaddr_in a = at("127.0.0.1", 0);
	struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "/tmp/none"};
	server(5, 1);
	printf("before: connect %s\n", name(connect(tcp(), (void *)&own, sizeof own)));
	fflush(stdout);
	if (read(0, &c, 1) != 1)
		return 1;
	printf("after: connect %s", name(connect(tcp(), (void *)&own, sizeof own)));
	printf(", bind %s", name(bind(tcp(), (void *)&a, sizeof a)));
	printf(", listen %s", name(listen(tcp(), 1)));
	printf(", unix %s\n", name(connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&un, sizeof un)));
	return 0;
}

static int reach(const char *ip, int port)
{
	struct sockaddr_in a = at(ip, port);
	printf("%s\n", name(connect(tcp(), (void *)&a, sizeof a)));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 3 && argc < 8 && !strcmp(argv[1], "race"))
		return race(atol(argv[2]), argc - 3, argv + 3);
	if (argc == 3 && !strcmp(argv[1], "swap"))
		return swaps(atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "flood"))
		return flood(atol(argv[2]));
	if (argc == 2 && !strcmp(argv[1], "fill"))
		return fill();
	if (argc == 4 && !strcmp(argv[1], "reach"))
		return reach(argv[2], atoi(argv[3]));
	if (argc == 2 && !strcmp(argv[1], "alone"))
		return alone();
	return 2;
}
