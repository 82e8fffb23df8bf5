/* A user namespace can only be made by a process with one thread
 * (unshare(2), CLONE_NEWUSER), and the Go runtime starts threads before any
 * Go code runs. So it is made here, in a constructor, before the runtime
 * exists; every other step is Go code on a locked thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "userns.h"

struct fence_userns fence_userns;

/* This process in a /proc that can be written: a maker (below.go) finds the
 * one at its usual place read-only already, and is given another. */
static char self[64] = "/proc/self";

static int put(const char *name, const char *text)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", self, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	ssize_t n = write(fd, text, strlen(text));
	int err = n == (ssize_t)strlen(text) ? 0 : (n < 0 ? errno : EIO);
	close(fd);
	return err;
}

/* wanted: the command line starts a command ("fence [flags] -- cmd", so
 * argv[1] is a flag or "--") and does not ask for the bare form. It is read
 * from /proc, because only glibc hands it to a constructor; the flags stand
 * at its beginning. */
static char line[16384];

/* --user=UID[:GID]: who the command is inside; -1: as outside. That it is what
 * the flag's parser says is looked at later, by geteuid(2). */
static long user = -1, group = -1;

static int wanted(void)
{
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, line, sizeof line - 1);
	close(fd);
	const char *prev = "", *end = line + (n > 0 ? n : 0);
	int i = 0;
	for (const char *arg = line; arg < end; prev = arg, arg += strlen(arg) + 1, i++) {
		if (i == 1 && arg[0] != '-')
			return 0;
		if (i && !strcmp(arg, "--"))
			return 1;
		const char *ids = strncmp(arg, "--user=", 7) ? strcmp(prev, "--user") ? "" : arg : arg + 7;
		sscanf(ids, "%ld:%ld", &user, &group);
		if (!strcmp(arg, "--form=bare") || !strcmp(arg, "-form=bare"))
			return 0;
		if (!strcmp(arg, "bare") && (!strcmp(prev, "--form") || !strcmp(prev, "-form")))
			return 0;
	}
	/* Flags that go on past what was read: a launch, and namespaces are the
	 * default. */
	return n == sizeof line - 1;
}

/* The child of a supervisor (pkg/supervise) is started in the user namespace
 * that its parent made, and with the rights in it: argv[0] says so. What says
 * so without being it does not get far, and is told apart by the map. */
static int handed_over(unsigned int uid)
{
	char now[64];
	unsigned int inside, outside, n;
	int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	ssize_t got = read(fd, now, sizeof now - 1);
	close(fd);
	now[got > 0 ? got : 0] = 0;
	if (sscanf(now, "%u %u %u", &inside, &outside, &n) != 3)
		return EINVAL;
	fence_userns.uid = outside;
	return inside == uid && n == 1 && (outside == uid || user >= 0) ? 0 : EPERM;
}

/* The process goes on as its child, when it has ended itself: a child that asked
 * before to end with its parent (PR_SET_PDEATHSIG) would end with this one. The
 * child's number, as it is seen here, is told. */
static int succeed(int tell)
{
	struct pollfd us = {syscall(SYS_pidfd_open, getpid(), 0), POLLIN, 0};
	if (us.fd < 0)
		return errno;
	pid_t pid = fork();
	if (pid < 0)
		return errno;
	if (pid) {
		if (tell >= 0)
			dprintf(tell, "%d\n", pid);
		_exit(0);
	}
	while (poll(&us, 1, -1) < 0 && errno == EINTR)
		;
	close(us.fd);
	return 0;
}

/* The process goes on as the first of a PID namespace of its own. */
static int first_process(int tell)
{
	if (unshare(CLONE_NEWPID))
		return errno;
	fence_userns.own_pid = 1;
	return succeed(tell);
}

/* A joiner (below.go): argv[0] has the first of the descriptors and their
 * number. A user namespace is entered by a process with one thread only, a PID
 * namespace by a child. */
static int join(void)
{
	static const int kinds[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET};
	int fd, n;
	if (sscanf(line, "fence:join:%d:%d", &fd, &n) != 2 || n < 4 || n > 5)
		return EINVAL;
	for (int i = 0; i < n; i++)
		if (setns(fd + i, kinds[i]))
			return errno;
	return succeed(-1);
}

static pthread_t net_thread;

/* The network namespace is the dearest step, half a millisecond in the kernel:
 * this thread makes it while the Go runtime starts. */
static void *make_net(void *unused)
{
	struct fence_userns *u = &fence_userns;
	if (unshare(CLONE_NEWNET) || (u->net_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) < 0)
		u->net_err = errno;
	return unused;
}

void fence_net(void)
{
	if (net_thread)
		pthread_join(net_thread, NULL);
	net_thread = 0;
}

/* The Go runtime takes the signals for itself, and exec(2) then gives the
 * command the default where the caller had ignored one. */
static void record_signals(struct fence_userns *u)
{
	struct sigaction now;
	sigset_t mask;
	for (int sig = 1; sig < 32; sig++)
		if (!sigaction(sig, NULL, &now) && now.sa_handler == SIG_IGN)
			u->ignored |= 1UL << (sig - 1);
	if (!pthread_sigmask(SIG_SETMASK, NULL, &mask))
		memcpy(&u->blocked, &mask, sizeof u->blocked);
}

__attribute__((constructor)) static void enter(void)
{
	struct fence_userns *u = &fence_userns;
	char map[64];

	record_signals(u);
	if (!wanted())
		return;
	u->tried = 1;
	if (!strncmp(line, "fence:join:", 11)) {
		u->map_err = join();
		u->joined = !u->map_err;
		return;
	}
	/* The ids must be read before: afterwards they are the overflow ids. */
	uid_t uid = geteuid(), in = user < 0 ? uid : user;
	gid_t gid = getegid(), in_group = group < 0 ? gid : group;
	u->uid = uid;
	if (!strncmp(line, "fence:1:", 8)) {
		u->entered = 1;
		u->net_err = ENOSPC; /* asked of nobody: the parent was refused */
		u->map_err = handed_over(uid);
		return;
	}
	int proc, tell = -1;
	if (sscanf(line, "fence:make:%*d:%*d:%d:%d:%u", &proc, &tell, &u->uid) == 3)
		snprintf(self, sizeof self, "/proc/self/fd/%d/self", proc);
	else
		sscanf(line, "fence:lead:%d", &tell);
	if (unshare(CLONE_NEWUSER)) {
		u->err = errno;
		return;
	}
	u->entered = 1;
	/* Without --user ids stay what they were, so that id(1) and file owners look
	 * the same. With it, this one id is another inside; no more can be mapped.
	 * gid_map needs setgroups denied first (user_namespaces(7)). */
	if ((u->map_err = put("setgroups", "deny")))
		return;
	snprintf(map, sizeof map, "%u %u 1", in, uid);
	if ((u->map_err = put("uid_map", map)))
		return;
	snprintf(map, sizeof map, "%u %u 1", in_group, gid);
	if ((u->map_err = put("gid_map", map)))
		return;
	if (geteuid() != in || getegid() != in_group)
		u->map_err = EOVERFLOW;
	if (u->map_err)
		return;
	if (tell >= 0 && (u->pid_err = first_process(tell)))
		return;
	/* Signals are for the runtime's threads. */
	sigset_t all, was;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	/* Not into net_err at once: the thread may have written there already. */
	u->net_fd = -1;
	int err = pthread_create(&net_thread, NULL, make_net, NULL);
	if (err)
		u->net_err = err;
	pthread_sigmask(SIG_SETMASK, &was, NULL);
}
