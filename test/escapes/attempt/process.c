/* Rows 16 to 28: ways to another process of the same user. */
#include "attempt.h"
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PID num("pid")
#define SECOND_CPU 2L /* as a mask */

static void queue(siginfo_t *info)
{
	memset(info, 0, sizeof *info);
	info->si_code = SI_QUEUE;
	info->si_pid = getpid();
	info->si_uid = getuid();
}

/* signals sends only what a process that does not expect it ignores. */
static void signals(void)
{
	siginfo_t info;
	queue(&info);
	did("kill", SYS(kill, PID, SIGURG));
	did("kill-0", SYS(kill, PID, 0));
	did("tkill", SYS(tkill, PID, SIGURG));
	did("tgkill", SYS(tgkill, PID, PID, SIGURG));
	did("rt_sigqueueinfo", SYS(rt_sigqueueinfo, PID, SIGURG, &info));
	did("rt_tgsigqueueinfo", SYS(rt_tgsigqueueinfo, PID, PID, SIGURG, &info));
	long fd = did("pidfd_open", SYS(pidfd_open, PID, 0));
	did("pidfd_send_signal", SYS(pidfd_send_signal, fd, SIGURG, NULL, 0));
	did("group", SYS(kill, -PID, SIGURG));
}

static void sigio(void)
{
	int fd[2];
	struct f_owner_ex owner = {F_OWNER_PID, PID};
	socketpair(AF_UNIX, SOCK_STREAM, 0, fd);
	did("F_SETSIG", SYS(fcntl, fd[0], F_SETSIG, SIGURG));
	did("F_SETOWN", SYS(fcntl, fd[0], F_SETOWN, PID));
	did("F_SETOWN_EX", SYS(fcntl, fd[0], F_SETOWN_EX, &owner));
	SYS(fcntl, fd[0], F_SETFL, O_ASYNC | O_NONBLOCK);
	did("write", SYS(write, fd[1], "x", 1));
}

static volatile sig_atomic_t got;
static void note_signal(int signal) { got = signal; }

/* everybody: kill(-1) says nothing about who got it, the victim does. Its effect within the
 * command's own domain is seen by a child. */
static void everybody(void)
{
	int ready[2], go[2], status;
	char c;
	pipe(ready), pipe(go);
	pid_t child = fork();
	if (child == 0) {
		signal(SIGURG, note_signal);
		write(ready[1], "x", 1);
		while (read(go[0], &c, 1) < 0)
			;
		_exit(got == SIGURG);
	}
	read(ready[0], &c, 1);
	did("kill", SYS(kill, -1, SIGURG));
	write(go[1], "x", 1);
	waitpid(child, &status, 0);
	noted("own-child", 0, WEXITSTATUS(status) ? "signalled" : "untouched");
}

static void traceme(void) { did("traceme", SYS(ptrace, PTRACE_TRACEME, 0, 0, 0)); }

/* release waits until a traced process has stopped for us, and lets it go. A signal that it was
 * about to take stops it first: let go there it would lose that signal and then stop, for good, for
 * us who are gone. */
static void release(int event)
{
	int status;
	while (waitpid(PID, &status, __WALL) == PID && WIFSTOPPED(status) && (event ? status >> 16 != event : WSTOPSIG(status) != SIGSTOP))
		SYS(ptrace, PTRACE_CONT, PID, 0L, (long)WSTOPSIG(status));
	SYS(ptrace, PTRACE_DETACH, PID, 0, 0);
}

static void trace(void)
{
	if (did("attach", SYS(ptrace, PTRACE_ATTACH, PID, 0, 0)) >= 0)
		release(0);
	if (did("seize", SYS(ptrace, PTRACE_SEIZE, PID, 0, 0)) >= 0) {
		SYS(ptrace, PTRACE_INTERRUPT, PID, 0, 0);
		release(PTRACE_EVENT_STOP);
	}
	in_child("traceme", traceme);
}

static void memory(void)
{
	static char seen[64], text[] = "overwritten";
	struct iovec here = {seen, sizeof seen - 1}, there = {(void *)num("addr"), sizeof seen - 1};
	long n = SYS(process_vm_readv, PID, &here, 1L, &there, 1L, 0L);
	noted("process_vm_readv", n, strstr(seen, "canary") ? "canary" : NULL);
	here.iov_base = text, here.iov_len = there.iov_len = sizeof text;
	did("process_vm_writev", SYS(process_vm_writev, PID, &here, 1L, &there, 1L, 0L));
}

static void steal(void)
{
	long pidfd = did("pidfd_open", SYS(pidfd_open, PID, 0));
	long fd = SYS(pidfd_getfd, pidfd, num("fd"), 0);
	if (fd >= 0)
		SYS(lseek, fd, 0, SEEK_SET);
	reads("pidfd_getfd", fd);
}

static void peek(void)
{
	static char page[4096] __attribute__((aligned(4096)));
	struct iovec iov = {page, sizeof page};
	unsigned long nodes = 1;
	void *head;
	size_t len;
	did("kcmp", SYS(kcmp, getpid(), PID, KCMP_VM, 0L, 0L));
	did("move_pages", SYS(move_pages, PID, 0L, NULL, NULL, NULL, 0L));
	did("migrate_pages", SYS(migrate_pages, PID, 8L, &nodes, &nodes));
	/* The kernel wants a capability for another's memory: on one's own it shows the filter. */
	did("process_madvise", SYS(process_madvise, pidfd(getpid()), &iov, 1L, (long)MADV_COLD, 0L));
	did("get_robust_list", SYS(get_robust_list, PID, &head, &len));
}

static char *proc(const char *file)
{
	static char p[256];
	snprintf(p, sizeof p, "/proc/%ld/%s", PID, file);
	return p;
}

static void link_of(const char *file)
{
	char to[4096];
	did(file, SYS(readlink, proc(file), to, sizeof to));
}

static void proc_secret(void)
{
	char p[4200];
	opens("environ", proc("environ"));
	long fd = SYS(openat, AT_FDCWD, proc("mem"), O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		SYS(lseek, fd, num("addr"), SEEK_SET);
	reads("mem", fd);
	did("mem-write", SYS(openat, AT_FDCWD, proc("mem"), O_WRONLY | O_CLOEXEC));
	opens("maps", proc("maps"));
	snprintf(p, sizeof p, "root%s", path("hidden", "secret"));
	opens("root", proc(p));
	opens("cwd", proc("cwd/hidden/secret"));
	snprintf(p, sizeof p, "fd/%ld", num("fd"));
	opens("fd", proc(p));
	snprintf(p, sizeof p, "fd/%ld/secret", num("dirfd"));
	opens("fd-dir", proc(p));
	opens("task-environ", proc("task/../environ"));
	link_of("exe");
	link_of("ns/mnt");
	opens("auxv", proc("auxv"));
	opens("io", proc("io"));
	opens("syscall", proc("syscall"));
	opens("stack", proc("stack"));
	opens("pagemap", proc("pagemap"));
	opens("fdinfo", proc("fdinfo/0"));
	writes("clear_refs", proc("clear_refs"), "1");
	writes("coredump_filter", proc("coredump_filter"), "0");
	writes("comm", proc("comm"), "changed");
}

/* proc_open are the files that ask for no more than the same user. */
static void proc_open(void)
{
	opens("cmdline", proc("cmdline"));
	opens("comm", proc("comm"));
	opens("status", proc("status"));
	opens("stat", proc("stat"));
	opens("limits", proc("limits"));
	opens("mountinfo", proc("mountinfo"));
	opens("cgroup", proc("cgroup"));
}

static void oom(void) { writes("write", proc("oom_score_adj"), "500"); }

static void prlimits(void)
{
	struct rlimit l = {0, 0};
	did("get", SYS(prlimit64, PID, RLIMIT_NOFILE, NULL, &l));
	l.rlim_cur = 20;
	did("set", SYS(prlimit64, PID, RLIMIT_NOFILE, &l, NULL));
	did("own", SYS(prlimit64, 0, RLIMIT_NOFILE, NULL, &l));
}

#define NOBODY_HAS 0x7ffffffeL /* a user or group number that names nothing */

static void priority(void)
{
	struct sched_param param = {0};
	struct {
		unsigned size, policy;
		unsigned long long flags;
		int nice;
		unsigned prio;
		unsigned long long runtime, deadline, period;
	} attr = {.size = 48, .policy = SCHED_IDLE};
	did("setpriority", SYS(setpriority, PRIO_PROCESS, PID, 5));
	did("setpriority-group", SYS(setpriority, PRIO_PGRP, PID, 6));
	/* The kernel says ESRCH: all of this user's processes are not this test's to change. */
	did("setpriority-user", SYS(setpriority, PRIO_USER, NOBODY_HAS, 0));
	did("ioprio_set", SYS(ioprio_set, 1, PID, 2 << 13 | 7));
	did("ioprio_set-group", SYS(ioprio_set, 2, PID, 2 << 13 | 6));
	did("ioprio_set-user", SYS(ioprio_set, 3, NOBODY_HAS, 2 << 13 | 7));
	did("sched_setscheduler", SYS(sched_setscheduler, PID, SCHED_BATCH, &param));
	did("sched_setparam", SYS(sched_setparam, PID, &param));
	did("sched_setattr", SYS(sched_setattr, PID, &attr, 0));
	did("own", SYS(setpriority, PRIO_PROCESS, 0, 1));
}

static void affinity(void)
{
	unsigned long mask = SECOND_CPU;
	did("sched_setaffinity", SYS(sched_setaffinity, PID, sizeof mask, &mask));
}

/* ---- what the table of 65 rows lacks ---- */

/* parent is whoever started the fence: the harness. */
static void parent(void)
{
	char p[64];
	long pid = num("parent");
	did("kill", SYS(kill, pid, SIGURG));
	did("attach", SYS(ptrace, PTRACE_SEIZE, pid, 0, 0));
	snprintf(p, sizeof p, "/proc/%ld/environ", pid);
	opens("environ", p);
	snprintf(p, sizeof p, "/proc/%ld/fd", pid);
	/* The numbers of open descriptors, not what they are. */
	did("list-fds", SYS(openat, AT_FDCWD, p, O_RDONLY | O_DIRECTORY));
	snprintf(p, sizeof p, "/proc/%ld/fd/0", pid);
	did("read-fd", SYS(readlinkat, AT_FDCWD, p, (char[64]){0}, 64));
}

/* sibling is another command under a fence of its own. */
static void sibling(void)
{
	signals();
	trace();
	memory();
	opens("environ", proc("environ"));
}

/* child: a command keeps its own children in hand. */
static void child(void)
{
	int hold[2], status;
	pipe(hold);
	pid_t pid = fork();
	if (pid == 0) {
		char c;
		close(hold[1]);
		read(hold[0], &c, 1);
		_exit(0);
	}
	char p[64];
	snprintf(p, sizeof p, "/proc/%d/environ", (int)pid);
	opens("environ", p);
	did("kill", SYS(kill, pid, SIGTERM));
	waitpid(pid, &status, 0);
	noted("ended", 0, WIFSIGNALED(status) ? "by SIGTERM" : "by itself");
}

/* adopted: a child whose parent is the one who started the fence. */
static void adopted(void)
{
	long pid = SYS(clone, CLONE_PARENT | SIGURG, 0L, 0L, 0L, 0L);
	if (pid == 0)
		_exit(0);
	did("clone", pid);
}

const struct row process_rows[] = {
	{"16", signals}, {"17", sigio}, {"18", everybody}, {"19", trace}, {"20", memory}, {"21", steal}, {"22", peek},
	{"23", proc_secret}, {"24", proc_open}, {"25", oom}, {"26", prlimits}, {"27", priority}, {"28", affinity},
	{"parent", parent}, {"sibling", sibling}, {"child", child}, {"adopted", adopted}, {0},
};
