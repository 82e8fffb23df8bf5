/*
 * victim is what the attempts are aimed at: a process of the same user outside the fence. It
 * prints what it is (one JSON line), and its whole state as one line whenever a byte arrives on
 * standard input. Unharmed, the line stays the same.
 */
#include "attempt.h"
#include <arpa/inet.h>
#include <linux/ioprio.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

static volatile sig_atomic_t seen[65];
static void note_signal(int n) { seen[n]++; }

/* Attempts read it and write it. */
static char secret[64] = "canary: memory of the victim";

static int listener(int family, const void *addr, socklen_t n, int type)
{
	int fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, addr, n) || (type == SOCK_STREAM && listen(fd, 64)))
		return -1;
	return fd;
}

static int unix_listener(const char *name, int abstract, int type)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path + abstract, name, sizeof a.sun_path - 1 - abstract);
	return listener(AF_UNIX, &a, offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name), type);
}

static int port(int fd)
{
	struct sockaddr_in6 a = {0}; /* the port lies at the same place in both families */
	socklen_t n = sizeof a;
	return fd < 0 || getsockname(fd, (void *)&a, &n) ? 0 : ntohs(a.sin6_port);
}

/* arrived counts the attempts that came in on a listener, over the whole life of the victim.
 * Others connect too: the tests of probe look at every socket of the node. */
static long arrived(int listener, int type, long *count)
{
	char buf[64];
	int fd, n;
	for (;;) {
		memset(buf, 0, sizeof buf);
		if (type == SOCK_STREAM) {
			if ((fd = accept(listener, NULL, NULL)) < 0)
				return *count;
			n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
			close(fd);
		} else if ((n = recv(listener, buf, sizeof buf, 0)) < 0)
			return *count;
		*count += n > 0 && !memcmp(buf, WORD, sizeof WORD);
	}
}

static long field(const char *file, const char *name)
{
	char line[256];
	long v = -1;
	FILE *f = fopen(file, "r");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, name, strlen(name)))
			v = strtol(line + strlen(name), NULL, 0);
	if (f)
		fclose(f);
	return v;
}

int victim(void)
{
	char name[100], c, shm[128];
	int i;
	struct sigaction act = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
	for (i = 1; i < 65; i++)
		if (i != SIGKILL && i != SIGSTOP && i != SIGCHLD && i != SIGSEGV && i != 32 && i != 33)
			sigaction(i, &act, NULL);
	/* A group of its own, so that what is aimed at groups stays with it. */
	setpgid(0, 0);

	struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	snprintf(name, sizeof name, "%s-d", arg("name"));
	struct {
		const char *name;
		int fd, type;
		long count;
	} sockets[] = {
		{"tcp", listener(AF_INET, &a4, sizeof a4, SOCK_STREAM), SOCK_STREAM, 0},
		{"tcp6", listener(AF_INET6, &a6, sizeof a6, SOCK_STREAM), SOCK_STREAM, 0},
		{"udp", listener(AF_INET, &a4, sizeof a4, SOCK_DGRAM), SOCK_DGRAM, 0},
		{"abstract", unix_listener(arg("name"), 1, SOCK_STREAM), SOCK_STREAM, 0},
		{"abstract-datagram", unix_listener(name, 1, SOCK_DGRAM), SOCK_DGRAM, 0},
		{"hidden-socket", unix_listener(path("hidden", "munge.socket.2"), 0, SOCK_STREAM), SOCK_STREAM, 0},
		{"plain-socket", unix_listener(path("plain", "munge.socket.2"), 0, SOCK_STREAM), SOCK_STREAM, 0},
	};

	long key = num("key");
	int shmid = shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600);
	int semid = semget(key, 1, IPC_CREAT | IPC_EXCL | 0600), msgid = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
	static char none[32]; /* a victim that is fenced itself may have no such memory */
	char *segment = shmat(shmid, NULL, 0);
	if (segment == (void *)-1)
		segment = none;
	strcpy(segment, "canary: shared memory");
	struct mq_attr attr = {.mq_maxmsg = 8, .mq_msgsize = 64};
	snprintf(name, sizeof name, "/%s", arg("name"));
	mqd_t mq = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attr);
	snprintf(shm, sizeof shm, "/dev/shm/%s", arg("name"));
	int shmfd = open(shm, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	write(shmfd, "canary: dev shm", 15);

	printf("{\"pid\":%d,\"addr\":%ld,\"fd\":%d,\"dirfd\":%d,\"tcp\":%d,\"tcp6\":%d,\"udp\":%d,\"shmid\":%d,\"semid\":%d,\"msgid\":%d}\n", getpid(),
		(long)secret, open(path("hidden", "secret"), O_RDONLY), open(arg("hidden"), O_RDONLY | O_DIRECTORY), port(sockets[0].fd),
		port(sockets[1].fd), port(sockets[2].fd), shmid, semid, msgid);
	fflush(stdout);

	long n;
	while ((n = read(0, &c, 1)) != 0) {
		struct rlimit l;
		struct sched_param param;
		unsigned long cpus = 0;
		char text[64] = "";
		struct msqid_ds ds;
		if (n < 0)
			continue;
		printf("{\"signals\":\"");
		for (i = 1; i < 65; i++)
			if (seen[i])
				printf("%s ", sigabbrev_np(i) ? sigabbrev_np(i) : "RT");
		printf("\",\"memory\":\"%.11s\"", secret);
		getrlimit(RLIMIT_NOFILE, &l);
		printf(",\"nofile\":%ld,\"nice\":%d", (long)l.rlim_cur, getpriority(PRIO_PROCESS, 0));
		printf(",\"ioprio\":%ld,\"policy\":%d", syscall(SYS_ioprio_get, 1, 0), sched_getscheduler(0));
		sched_getparam(0, &param);
		syscall(SYS_sched_getaffinity, 0, sizeof cpus, &cpus);
		printf(",\"cpus\":%lu,\"oom\":%ld,\"tracer\":%ld", cpus, field("/proc/self/oom_score_adj", ""), field("/proc/self/status", "TracerPid:"));
		printf(",\"sysv-memory\":\"%.7s\",\"semaphore\":%d", segment, semctl(semid, 0, GETVAL));
		msgctl(msgid, IPC_STAT, &ds);
		mq_getattr(mq, &attr);
		printf(",\"messages\":%ld,\"posix-messages\":%ld", (long)ds.msg_qnum, attr.mq_curmsgs);
		pread(shmfd, text, sizeof text - 1, 0);
		printf(",\"posix-memory\":\"%.7s\"", text);
		for (i = 0; i < (int)(sizeof sockets / sizeof *sockets); i++)
			printf(",\"%s\":%ld", sockets[i].name, arrived(sockets[i].fd, sockets[i].type, &sockets[i].count));
		printf("}\n");
		fflush(stdout);
	}
	shmctl(shmid, IPC_RMID, NULL);
	semctl(semid, 0, IPC_RMID);
	msgctl(msgid, IPC_RMID, NULL);
	mq_unlink(name);
	unlink(shm);
	return 0;
}
