/* Rows 41 to 65 as far as they are about files, descriptors, devices and what is shared by name. */
#include "attempt.h"
#include <mqueue.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static char *in(const char *prefix, const char *file)
{
	static char ring[4][4200];
	static int next;
	char *buf = ring[next++ % 4];
	snprintf(buf, sizeof ring[0], "%s%s", prefix, file);
	return buf;
}

static void ungranted(void)
{
	char p[64];
	const char *secret = path("hidden", "secret");
	snprintf(p, sizeof p, "/proc/%ld/root", num("pid"));
	opens("open", secret);
	opens("self-root", in("/proc/self/root", secret));
	opens("thread-root", in("/proc/thread-self/root", secret));
	opens("victim-root", in(p, secret));
	opens("dot-dot", in("/proc/self/cwd/../../../../../../../../..", secret));
	did("list", SYS(openat, AT_FDCWD, arg("hidden"), O_RDONLY | O_DIRECTORY));
	did("create", SYS(openat, AT_FDCWD, path("hidden", "new"), O_WRONLY | O_CREAT | O_EXCL, 0600));
	did("mkdir", SYS(mkdirat, AT_FDCWD, path("hidden", "newdir"), 0700));
	did("unlink", SYS(unlinkat, AT_FDCWD, path("hidden", "rubbish"), 0));
	opens("plain", path("plain", "readable"));
}

static void by_link(void)
{
	did("symlink", SYS(symlinkat, path("hidden", "secret"), AT_FDCWD, path("work", "link")));
	opens("open", path("work", "link"));
	did("symlink-dir", SYS(symlinkat, arg("hidden"), AT_FDCWD, path("work", "dir")));
	opens("open-dir", path("work", "dir/secret"));
	opens("made-outside", path("work", "link-made-outside"));
	did("create", SYS(openat, AT_FDCWD, path("work", "dir/new"), O_WRONLY | O_CREAT, 0600));
}

static void hard_link(void)
{
	char p[64];
	snprintf(p, sizeof p, "/proc/self/fd/%ld", pinned(path("hidden", "secret")));
	did("link", SYS(linkat, AT_FDCWD, path("hidden", "secret"), AT_FDCWD, path("work", "hard"), 0));
	did("link-fd", SYS(linkat, AT_FDCWD, p, AT_FDCWD, path("work", "hard-fd"), AT_SYMLINK_FOLLOW));
	did("link-in", SYS(linkat, AT_FDCWD, path("work", "granted"), AT_FDCWD, path("hidden", "in"), 0));
	/* A second name that a person gave the same file long ago. */
	opens("made-outside", path("plain", "second-name"));
}

static void moves(void)
{
	did("out", SYS(renameat2, AT_FDCWD, path("work", "granted"), AT_FDCWD, path("hidden", "out"), 0));
	did("in", SYS(renameat2, AT_FDCWD, path("hidden", "rubbish"), AT_FDCWD, path("work", "in"), 0));
	did("exchange", SYS(renameat2, AT_FDCWD, path("hidden", "secret"), AT_FDCWD, path("work", "granted2"), 2));
	did("within", SYS(renameat2, AT_FDCWD, path("work", "granted2"), AT_FDCWD, path("work", "sub/moved"), 0));
	did("folder-remove", SYS(unlinkat, AT_FDCWD, path("hidden", "empty"), AT_REMOVEDIR));
	did("folder-exchange", SYS(renameat2, AT_FDCWD, arg("hidden"), AT_FDCWD, path("work", "sub"), 2));
	did("folder", SYS(renameat2, AT_FDCWD, arg("hidden"), AT_FDCWD, path("work", "unhidden"), 0));
}

/* parents: a hidden folder is found by its name the next time. */
static void parents(void)
{
	did("rename", SYS(renameat2, AT_FDCWD, arg("base"), AT_FDCWD, in(arg("base"), ".moved"), 0));
	opens("secret", in(in(arg("base"), ".moved"), "/hidden/secret"));
}

static void truncates(void)
{
	did("truncate", SYS(truncate, path("hidden", "own"), 0L));
	did("O_TRUNC", SYS(openat, AT_FDCWD, path("hidden", "own"), O_RDONLY | O_TRUNC));
}

static void metadata(void)
{
	struct stat st;
	struct statfs fs;
	char buf[256];
	const char *own = path("hidden", "own"), *dir = arg("hidden");
	struct timespec then[2] = {{1, 0}, {1, 0}};
	did("chmod", SYS(fchmodat, AT_FDCWD, own, 0644));
	did("chown", SYS(fchownat, AT_FDCWD, own, getuid(), getgid(), 0));
	did("utime", SYS(utimensat, AT_FDCWD, own, then, 0));
	did("setxattr", SYS(setxattr, own, "user.escape", "x", 1L, 0));
	did("chmod-folder", SYS(fchmodat, AT_FDCWD, dir, 0777));
	did("stat", SYS(newfstatat, AT_FDCWD, own, &st, 0));
	did("access", SYS(faccessat, AT_FDCWD, own, R_OK));
	did("getxattr", SYS(getxattr, own, "user.note", buf, sizeof buf));
	did("readlink", SYS(readlinkat, AT_FDCWD, path("hidden", "pointer"), buf, sizeof buf));
	did("statfs", SYS(statfs, own, &fs));
	did("chdir", SYS(chdir, dir));
}

/* Descriptors 7, 8 and 9 are a hidden folder, a socket of the harness and a hidden file. */
static void inherited(void)
{
	opens("reopen", "/proc/self/fd/9");
	long fd = did("openat", SYS(openat, 7, "secret", O_RDONLY));
	SYS(close, fd);
	did("send", SYS(sendto, 8, "x", 1L, 0L, NULL, 0L));
	reads("read", SYS(dup, 9));
	did("ftruncate", SYS(ftruncate, 9, 3L));
	did("fchdir", SYS(fchdir, 7));
	opens("then-relative", "secret");
	did("highest", SYS(fcntl, 200, F_GETFD));
}

/* The hidden folder is the working folder at the start. */
static void working_folder(void)
{
	char here[4096];
	opens("relative", "secret");
	opens("up-and-down", "../hidden/secret");
	opens("proc-cwd", "/proc/self/cwd/secret");
	opens("proc-cwd-up", "/proc/self/cwd/../hidden/secret");
	long fd = SYS(openat, AT_FDCWD, ".", O_PATH | O_DIRECTORY);
	did("openat-dot", SYS(openat, fd, "secret", O_RDONLY));
	long n = SYS(getcwd, here, sizeof here);
	noted("getcwd", n, strcmp(here, arg("hidden")) ? "elsewhere" : "hidden");
	did("chdir", SYS(chdir, arg("hidden")));
	opens("then-relative", "secret");
}

static void nodes(void)
{
	did("char", SYS(mknodat, AT_FDCWD, path("work", "null"), S_IFCHR | 0600, makedev(1, 3)));
	did("block", SYS(mknodat, AT_FDCWD, path("work", "disk"), S_IFBLK | 0600, makedev(254, 0)));
	did("fifo", SYS(mknodat, AT_FDCWD, path("work", "fifo"), S_IFIFO | 0600, 0));
}

static void shared(void)
{
	struct sembuf up = {0, 1, IPC_NOWAIT};
	struct {
		long type;
		char text[8];
	} m = {1, "x"};
	long id = did("shmget", SYS(shmget, (long)num("key"), 0L, 0L));
	void *at = (void *)SYS(shmat, num("shmid"), NULL, 0);
	if ((long)at < 0 && (long)at > -4096)
		did("shmat", (long)at);
	else {
		noted("shmat", 0, strstr(at, "canary") ? "canary" : "nothing");
		memcpy(at, "changed", 8);
	}
	did("shmctl", SYS(shmctl, id < 0 ? num("shmid") : id, IPC_STAT, (char[512]){0}));
	did("semget", SYS(semget, (long)num("key"), 0, 0));
	did("semop", SYS(semop, num("semid"), &up, 1L));
	did("msgget", SYS(msgget, (long)num("key"), 0));
	did("msgsnd", SYS(msgsnd, num("msgid"), &m, sizeof m.text, IPC_NOWAIT));
	opens("dev-shm", in("/dev/shm/", arg("name")));
	writes("dev-shm-write", in("/dev/shm/", arg("name")), "changed");
	did("own-dev-shm", SYS(openat, AT_FDCWD, in("/dev/shm/", in(arg("name"), "-own")), O_RDWR | O_CREAT, 0600));
	SYS(unlinkat, AT_FDCWD, in("/dev/shm/", in(arg("name"), "-own")), 0);
}

static void queue(void)
{
	long q = did("mq_open", SYS(mq_open, arg("name"), O_WRONLY | O_NONBLOCK, 0L, NULL));
	if (q >= 0)
		did("mq_timedsend", SYS(mq_timedsend, q, "x", 1L, 0, NULL));
	did("mq_unlink", SYS(mq_unlink, in(arg("name"), "-none")));
}

static void from_memory(void)
{
	char buf[1 << 16];
	int status;
	long n, fd = did("memfd_create", SYS(memfd_create, "program", 1 /* MFD_CLOEXEC */));
	long self = SYS(openat, AT_FDCWD, "/proc/self/exe", O_RDONLY);
	while ((n = SYS(read, self, buf, sizeof buf)) > 0)
		SYS(write, fd, buf, n);
	pid_t pid = fork();
	if (pid == 0) {
		char *argv[] = {"attempt", "in-memory", (char *)arg("hidden") - strlen("hidden="), NULL};
		did("execveat", SYS(execveat, fd, "", argv, ((char *[]){NULL}), AT_EMPTY_PATH));
		_exit(1);
	}
	waitpid(pid, &status, 0);
}

static void in_memory(void)
{
	did("socket", SYS(socket, AF_INET, SOCK_STREAM, 0));
	opens("hidden", path("hidden", "secret"));
}

static void knobs(void)
{
	char pid[16];
	snprintf(pid, sizeof pid, "%d", getpid());
	if (*arg("cgroup"))
		writes("cgroup.procs", path("cgroup", "cgroup.procs"), pid);
	writes("own-oom_score_adj", "/proc/self/oom_score_adj", "500");
	writes("own-coredump_filter", "/proc/self/coredump_filter", "0");
	writes("core_pattern", "/proc/sys/kernel/core_pattern", "|/bin/false");
	writes("modprobe", "/proc/sys/kernel/modprobe", "/bin/false");
	writes("ns_last_pid", "/proc/sys/kernel/ns_last_pid", "1");
	writes("ip_forward", "/proc/sys/net/ipv4/ip_forward", "0");
	writes("sysrq-trigger", "/proc/sysrq-trigger", "");
	writes("uevent_helper", "/sys/kernel/uevent_helper", "");
	writes("drop_caches", "/proc/sys/vm/drop_caches", "");
	writes("power", "/sys/power/state", "");
}

static void own_memory(void)
{
	static const char text[] = "read-only text";
	long fd = did("open", SYS(openat, AT_FDCWD, "/proc/self/mem", O_RDWR));
	if (fd >= 0)
		did("write-text", SYS(pwrite64, fd, "X", 1L, (long)text));
	did("open-read", SYS(openat, AT_FDCWD, "/proc/self/mem", O_RDONLY));
}

/* What there is without end: it stops itself where the point is made. The children end with it. */
static void processes(void)
{
	const int enough = 256;
	static pid_t children[256];
	int n = 0;
	long r = 0;
	while (n < enough && (r = fork()) > 0)
		children[n++] = r;
	if (r == 0) {
		SYS(prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
		pause();
		_exit(0);
	}
	noted("processes", r < 0 ? -errno : 0, n < enough ? "below 256" : "256");
	for (int i = 0; i < n; i++)
		SYS(kill, children[i], SIGKILL);
	while (n-- > 0)
		waitpid(-1, NULL, 0);
}

static void files(const char *in)
{
	const int enough = 4096;
	char name[8];
	int n = 0;
	long fd = 0, dir = SYS(openat, AT_FDCWD, in, O_DIRECTORY | O_PATH);
	if (dir < 0) {
		did("files", dir);
		return;
	}
	for (; n < enough; n++) {
		snprintf(name, sizeof name, "%d", n);
		if ((fd = SYS(openat, dir, name, O_CREAT | O_WRONLY, 0600)) < 0)
			break;
		SYS(close, fd);
	}
	noted("files", fd < 0 ? fd : 0, n < enough ? "below 4096" : "4096");
	while (n-- > 0) {
		snprintf(name, sizeof name, "%d", n);
		SYS(unlinkat, dir, name, 0);
	}
	SYS(close, dir);
}

static void fills(const char *step, const char *in)
{
	const int enough = 32;
	static char mib[1 << 20];
	char name[128];
	int n = 0;
	long r = 0;
	snprintf(name, sizeof name, "%s/attempt-%d", in, getpid());
	long fd = SYS(openat, AT_FDCWD, name, O_CREAT | O_EXCL | O_WRONLY, 0600);
	if (fd < 0) {
		did(step, fd);
		return;
	}
	SYS(unlinkat, AT_FDCWD, name, 0);
	signal(SIGXFSZ, SIG_IGN);
	while (n < enough && (r = SYS(write, fd, mib, sizeof mib)) == sizeof mib)
		n++;
	noted(step, r < 0 ? r : 0, n < enough ? "below 32 MiB" : "32 MiB");
	SYS(close, fd);
}

static void bounds(void)
{
	struct rlimit l;
	char note[32];
	int n = 0;
	long fd;
	long r = SYS(prlimit64, 0, RLIMIT_CORE, NULL, &l);
	noted("core", r, l.rlim_max > 1 ? "any" : "none");
	processes();
	/* The folder is there where /tmp is not the command's own. */
	SYS(mkdirat, AT_FDCWD, arg("in-tmp"), 0700);
	files(arg("in-tmp"));
	fills("tmp", arg("in-tmp"));
	fills("shm", "/dev/shm");
	while ((fd = SYS(openat, AT_FDCWD, "/", O_PATH)) >= 0 && n < 4200)
		n++;
	snprintf(note, sizeof note, "%s 4096", n < 4096 ? "below" : "above");
	noted("descriptors", fd < 0 ? fd : 0, note);
}

/* A process that leaves: new session, parent gone. When the command has ended it tries what the
 * command could not do. */
static void leaves(void)
{
	int first[2];
	char c;
	pipe(first);
	if (fork() == 0) {
		SYS(setsid);
		if (fork() != 0)
			_exit(0);
		did("stays", 0);
		write(first[1], "x", 1);
		/* End of file on standard input is when the harness knows that the command has ended. */
		while (read(0, &c, 1) > 0)
			;
		did("socket", SYS(socket, AF_INET, SOCK_STREAM, 0));
		opens("hidden", path("hidden", "secret"));
		_exit(0);
	}
	close(first[1]);
	read(first[0], &c, 1);
}

static void devices(void)
{
	did("fuse", SYS(openat, AT_FDCWD, "/dev/fuse", O_RDWR));
	did("terminals", SYS(openat, AT_FDCWD, "/dev/pts", O_RDONLY | O_DIRECTORY));
	did("ptmx", SYS(openat, AT_FDCWD, "/dev/ptmx", O_RDWR | O_NOCTTY));
	did("null", SYS(openat, AT_FDCWD, "/dev/null", O_RDWR));
	did("urandom", SYS(openat, AT_FDCWD, "/dev/urandom", O_RDONLY));
}

/* ---- what the table of 65 rows lacks ---- */

/* A descriptor that stands for a path without opening it. */
static void by_descriptor(void)
{
	char p[64];
	long dir = did("O_PATH", pinned(arg("hidden")));
	reads("openat", SYS(openat, dir, "secret", O_RDONLY));
	snprintf(p, sizeof p, "/proc/self/fd/%ld", pinned(path("hidden", "secret")));
	opens("reopen", p);
	executes("execve", path("hidden", "program"), -1, "ran");
	executes("execveat", NULL, pinned(path("hidden", "program")), "ran");
}

/* watched: asks the harness to make a file in the hidden folder and says what it saw. */
static void watched(void)
{
	char buf[4096], c;
	long fd = SYS(inotify_init1, O_NONBLOCK);
	did("inotify_add_watch", SYS(inotify_add_watch, fd, arg("hidden"), IN_CREATE | IN_OPEN));
	did("ask", 0);
	if (read(0, &c, 1) != 1)
		return;
	long n = SYS(read, fd, buf, sizeof buf);
	struct inotify_event *e = (void *)buf;
	noted("event", n, n > 0 && e->len ? e->name : NULL);
}

/* other_terminal is a terminal of the same user that the harness has open. */
static void other_terminal(void)
{
	char c = '!';
	long fd = did("open", SYS(openat, AT_FDCWD, arg("terminal"), O_RDWR | O_NOCTTY | O_NONBLOCK));
	if (fd < 0)
		return;
	did("write", SYS(write, fd, "!", 1L));
	did("TIOCSTI", SYS(ioctl, fd, (long)TIOCSTI, &c));
}

/* Standard error is a file in a hidden folder, as a batch job's log often is. */
static void log_file(void)
{
	opens("reopen-read", "/proc/self/fd/2");
	did("reopen-write", SYS(openat, AT_FDCWD, "/proc/self/fd/2", O_WRONLY | O_APPEND));
	did("dot-dot", SYS(openat, 2, "../secret", O_RDONLY));
	did("write", SYS(write, 2, "", 0L));
	did("chmod", SYS(fchmod, 2, 0600));
}

/* controlling: the terminal that the harness was started from, with none of the standard
 * descriptors on it. */
static void controlling(void)
{
	char c;
	long fd = did("open", SYS(openat, AT_FDCWD, "/dev/tty", O_RDWR | O_NONBLOCK));
	if (fd < 0)
		return;
	did("write", SYS(write, fd, "!", 1L));
	did("ask-key", 0); /* the harness types one */
	if (read(0, &c, 1) != 1)
		return;
	long n = SYS(read, fd, &c, 1L);
	noted("read", n, n == 1 && c == 'k' ? "the key" : NULL);
	did("TIOCSTI", SYS(ioctl, fd, (long)TIOCSTI, "!"));
}

/* standard: standard input is a hidden folder, or a descriptor that only names one. */
static void standard(void)
{
	long fd = SYS(openat, 0, "secret", O_RDONLY);
	reads("openat", fd);
	opens("reopen", "/proc/self/fd/0/secret");
	did("status", SYS(fcntl, 7, F_GETFD));
}

/* waits: reads what is mounted while it runs. */
static void waits(void)
{
	char c;
	opens("before", path("hidden", "secret"));
	did("ask", 0);
	if (read(0, &c, 1) != 1)
		return;
	opens("after", path("hidden", "secret"));
}

/* flip swaps arg(base)/entry between a folder and a link to arg(hidden), until there is nothing
 * more to read, and says how often. It runs outside. */
int flip(void)
{
	char c, note[32];
	long n = 0;
	fcntl(0, F_SETFL, O_NONBLOCK);
	mkdir(path("base", "entry"), 0755);
	symlink(arg("hidden"), path("base", "other"));
	did("ready", 0);
	while (read(0, &c, 1) != 0)
		for (int i = 0; i < 100; i++)
			n += SYS(renameat2, AT_FDCWD, path("base", "entry"), AT_FDCWD, path("base", "other"), 2) == 0;
	snprintf(note, sizeof note, "%ld", n);
	noted("swapped", 0, note);
	return 0;
}

/* ---- for the next command: outside the table, see plant_test.go ---- */

/* plant writes a script to arg(what), which a runtime may run by itself the next time. */
static void plant(void)
{
	static const char script[] = "#!/bin/sh\necho planted\n";
	char dir[4096];
	const char *what = arg("what");
	snprintf(dir, sizeof dir, "%s", what);
	for (char *slash = strchr(dir + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		SYS(mkdirat, AT_FDCWD, dir, 0755);
		*slash = '/';
	}
	long fd = did("plant", SYS(openat, AT_FDCWD, what, O_WRONLY | O_CREAT | O_TRUNC, 0755));
	if (fd >= 0)
		did("write", SYS(write, fd, script, sizeof script - 1));
}

/* replace tries everything that would leave something else at arg(what) or change what is there.
 * Nothing of it stays if it works, so that one run shows each. */
static void replace(void)
{
	const char *what = arg("what");
	char other[] = "/etc/other", aside[] = "/etc/aside", beside[4200], init[4200];
	struct stat st;
	int dir = SYS(newfstatat, AT_FDCWD, what, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
	snprintf(beside, sizeof beside, "%s-aside", what);
	snprintf(init, sizeof init, "/proc/1/root%s", what);
	if (dir)
		SYS(mkdirat, AT_FDCWD, other, 0755);
	else
		close(open(other, O_CREAT | O_WRONLY, 0755));
	if (did("rename", SYS(renameat2, AT_FDCWD, what, AT_FDCWD, beside, 0)) >= 0)
		SYS(renameat2, AT_FDCWD, beside, AT_FDCWD, what, 0);
	if (did("rename-away", SYS(renameat2, AT_FDCWD, what, AT_FDCWD, aside, 0)) >= 0)
		SYS(renameat2, AT_FDCWD, aside, AT_FDCWD, what, 0);
	if (did("exchange", SYS(renameat2, AT_FDCWD, other, AT_FDCWD, what, 2)) >= 0)
		SYS(renameat2, AT_FDCWD, other, AT_FDCWD, what, 2);
	if (dir) {
		char child[4200];
		snprintf(child, sizeof child, "%s/new", what);
		long fd = did("create", SYS(openat, AT_FDCWD, child, O_WRONLY | O_CREAT | O_EXCL, 0755));
		if (fd >= 0)
			SYS(unlinkat, AT_FDCWD, child, 0);
	} else {
		SYS(linkat, AT_FDCWD, what, AT_FDCWD, "/etc/kept", 0);
		if (did("link", SYS(linkat, AT_FDCWD, what, AT_FDCWD, aside, 0)) >= 0)
			SYS(unlinkat, AT_FDCWD, aside, 0);
		did("open", SYS(openat, AT_FDCWD, what, O_WRONLY));
		did("truncate", SYS(truncate, what, st.st_size));
	}
	did("by-init", SYS(openat, AT_FDCWD, init, O_RDONLY));
	did("chmod", SYS(fchmodat, AT_FDCWD, what, 0755));
	if (!dir && did("remove", SYS(unlinkat, AT_FDCWD, what, 0)) >= 0)
		SYS(renameat2, AT_FDCWD, "/etc/kept", AT_FDCWD, what, 0);
	if (did("replace", SYS(renameat2, AT_FDCWD, other, AT_FDCWD, what, 0)) >= 0)
		return;
	SYS(unlinkat, AT_FDCWD, other, dir ? AT_REMOVEDIR : 0);
}

const struct row file_rows[] = {
	{"41", ungranted}, {"42", by_link}, {"43", hard_link}, {"44", moves}, {"45", truncates}, {"46", metadata},
	{"47", inherited}, {"48", working_folder}, {"49", nodes}, {"50", shared}, {"51", queue}, {"52", from_memory},
	{"54", knobs}, {"61", bounds}, {"62", leaves}, {"64", devices}, {"in-memory", in_memory}, {"own-memory", own_memory},
	{"parents", parents}, {"pinned", by_descriptor}, {"watched", watched}, {"other-terminal", other_terminal},
	{"log-file", log_file}, {"plant", plant}, {"replace", replace},
	{"controlling", controlling}, {"standard", standard}, {"waits", waits}, {0},
};
