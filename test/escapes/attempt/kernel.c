/* Rows 29 to 40, 53, 55: ways to more rights, and into parts of the kernel. */
#include "attempt.h"
#include <grp.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/nsfs.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define BAD ((void *)1L) /* a pointer that the kernel answers with EFAULT */

/* own_namespaces gives this process a user and a mount namespace, with the user as itself: all
 * capabilities in them. */
static long own_namespaces(long flags)
{
	char map[64];
	uid_t uid = getuid();
	gid_t gid = getgid();
	long r = SYS(unshare, CLONE_NEWUSER | flags);
	if (r < 0)
		return r;
	int fd = open("/proc/self/uid_map", O_WRONLY);
	write(fd, map, snprintf(map, sizeof map, "%d %d 1", uid, uid));
	close(fd);
	fd = open("/proc/self/setgroups", O_WRONLY);
	write(fd, "deny", 4);
	close(fd);
	fd = open("/proc/self/gid_map", O_WRONLY);
	write(fd, map, snprintf(map, sizeof map, "%d %d 1", gid, gid));
	close(fd);
	return r;
}

static void unshared(void)
{
	did("unshare", own_namespaces(CLONE_NEWNS));
	did("mount", SYS(mount, "escape", arg("work"), "tmpfs", 0L, NULL));
	did("chroot", SYS(chroot, arg("work")));
	did("fsopen", SYS(fsopen, "tmpfs", 0));
}

static long cloned(long flags)
{
	long pid = SYS(clone, flags | SIGCHLD, 0L, 0L, 0L, 0L);
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return pid < 0 ? pid : 0;
}

static void userns(void)
{
	in_child("unshare", unshared);
	did("clone-user", cloned(CLONE_NEWUSER));
	did("clone-mount", cloned(CLONE_NEWUSER | CLONE_NEWNS));
	did("clone-pid", cloned(CLONE_NEWUSER | CLONE_NEWPID));
	did("clone-net", cloned(CLONE_NEWUSER | CLONE_NEWNET));
	did("clone-ipc", cloned(CLONE_NEWUSER | CLONE_NEWIPC));
	did("clone-uts", cloned(CLONE_NEWUSER | CLONE_NEWUTS));
	did("clone-cgroup", cloned(CLONE_NEWUSER | CLONE_NEWCGROUP));
	did("clone-high-bits", cloned(0x700000000L | CLONE_NEWUSER));
	did("clone-plain", cloned(0));
}

static void clone_3(void)
{
	struct clone_args a = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
	long pid = SYS(clone3, &a, sizeof a);
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	did("clone3", pid);
}

static void join_pidfd(void)
{
	did("setns-pidfd", SYS(setns, pidfd(num("nspid")), CLONE_NEWUSER));
}

static void join(void)
{
	char p[64];
	in_child("setns-pidfd", join_pidfd);
	snprintf(p, sizeof p, "/proc/%ld/ns/user", num("nspid"));
	long fd = did("open-ns", SYS(openat, AT_FDCWD, p, O_RDONLY | O_CLOEXEC));
	if (fd >= 0)
		did("setns", SYS(setns, fd, CLONE_NEWUSER));
	did("setns-bad", SYS(setns, -1, 0));
}

/* own_ns: back through the handles of the namespaces that the fence itself made. */
static void own_ns(void)
{
	long fd = did("open", SYS(openat, AT_FDCWD, "/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
	long user = did("NS_GET_USERNS", SYS(ioctl, fd, NS_GET_USERNS));
	did("NS_GET_PARENT", SYS(ioctl, user, NS_GET_PARENT));
	did("setns-user", SYS(setns, user, CLONE_NEWUSER));
	did("setns-mount", SYS(setns, fd, CLONE_NEWNS));
	opens("pid1-environ", "/proc/1/environ");
	opens("pid1-root", "/proc/1/root/etc/passwd");
}

/* The mount calls in a namespace of one's own, where nothing but the fence stands against them. */
static void mounts(void)
{
	struct mount_attr attr = {.attr_clr = MOUNT_ATTR_RDONLY};
	const char *work = arg("work");
	own_namespaces(CLONE_NEWNS);
	did("mount", SYS(mount, "escape", work, "tmpfs", 0L, NULL));
	did("bind", SYS(mount, "/etc", work, NULL, (long)MS_BIND, NULL));
	did("remount", SYS(mount, NULL, "/proc", NULL, (long)(MS_REMOUNT | MS_BIND), NULL));
	did("umount2", SYS(umount2, work, MNT_DETACH));
	did("unmask", SYS(umount2, arg("hidden"), 0));
	did("pivot_root", SYS(pivot_root, BAD, BAD));
	long fs = did("fsopen", SYS(fsopen, "tmpfs", 0));
	did("fsconfig", SYS(fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
	long m = did("fsmount", SYS(fsmount, fs, 0, 0));
	did("move_mount", SYS(move_mount, m, "", AT_FDCWD, work, MOVE_MOUNT_F_EMPTY_PATH));
	did("fspick", SYS(fspick, AT_FDCWD, BAD, 0));
	did("open_tree", SYS(open_tree, AT_FDCWD, "/etc", OPEN_TREE_CLONE));
	did("mount_setattr", SYS(mount_setattr, AT_FDCWD, BAD, 0, &attr, sizeof attr));
	did("open_tree_attr", SYS(open_tree_attr, AT_FDCWD, BAD, OPEN_TREE_CLONE, &attr, sizeof attr));
}

static void handles(void)
{
	struct {
		struct file_handle h;
		char room[128];
	} f = {.h.handle_bytes = 128};
	int id;
	did("name_to_handle_at", SYS(name_to_handle_at, AT_FDCWD, "/etc/passwd", &f, &id, 0));
	did("open_by_handle_at", SYS(open_by_handle_at, -1, BAD, O_RDONLY));
}

static void perf_bpf(void)
{
	struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_DUMMY,
		.exclude_kernel = 1, .exclude_hv = 1};
	did("bpf", SYS(bpf, BPF_MAP_CREATE, BAD, 1L << 20));
	did("perf_event_open", SYS(perf_event_open, &attr, 0, -1, -1, 0L));
}

static void modern(void)
{
	char ring[120] = {0};
	did("userfaultfd", SYS(userfaultfd, 1 /* UFFD_USER_MODE_ONLY */));
	did("io_uring_setup", SYS(io_uring_setup, 1, ring));
	did("io_uring_enter", SYS(io_uring_enter, -1, 0, 0, 0, NULL, 0L));
	did("io_uring_register", SYS(io_uring_register, -1, 0, NULL, 0));
#ifdef SYS_modify_ldt
	did("modify_ldt", SYS(modify_ldt, 0, ring, sizeof ring));
#endif
	did("fanotify_init", SYS(fanotify_init, 0x200 /* FAN_REPORT_FID */, O_RDONLY));
}

static void keys(void)
{
	did("keyctl", SYS(keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL));
	did("add_key", SYS(add_key, "user", "escape", "x", 1L, -3 /* session keyring */));
	did("request_key", SYS(request_key, "user", "no such key", NULL, -3));
}

static void terminal(void)
{
	char c = '!', sub[] = {2, '!'};
	did("TIOCSTI", SYS(ioctl, 0, (long)TIOCSTI, &c));
	did("TIOCSTI-high-bits", SYS(ioctl, 0, 0x7fL << 32 | TIOCSTI, &c));
	did("TIOCLINUX", SYS(ioctl, 0, (long)TIOCLINUX, sub));
	did("TIOCCONS", SYS(ioctl, 0, (long)TIOCCONS, NULL));
	did("write", SYS(write, 0, "", 0));
	int n;
	did("FIONREAD", SYS(ioctl, 0, (long)FIONREAD, &n));
}

static void undo(void)
{
	struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	struct sock_fprog prog = {1, &allow};
	struct landlock_ruleset_attr all = {.handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE};
	struct landlock_path_beneath_attr root = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE};
	/* What the two below ask for anyway; it cannot be taken back. */
	did("no_new_privs", SYS(prctl, PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L));
	did("no_new_privs-off", SYS(prctl, PR_SET_NO_NEW_PRIVS, 0L, 0L, 0L, 0L));
	did("seccomp-allow", SYS(seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog));
	did("seccomp-off", SYS(prctl, PR_SET_SECCOMP, 0L, 0L, 0L, 0L));
	did("socket", SYS(socket, AF_INET, SOCK_STREAM, 0));
	long fd = did("landlock", SYS(landlock_create_ruleset, &all, sizeof all, 0));
	root.parent_fd = open("/", O_PATH | O_CLOEXEC);
	did("landlock-grants", SYS(landlock_add_rule, fd, LANDLOCK_RULE_PATH_BENEATH, &root, 0));
	did("landlock-on", SYS(landlock_restrict_self, fd, 0));
	opens("hidden", path("hidden", "secret"));
}

static void privileged(void)
{
	if (*arg("setuid"))
		executes("run-setuid", arg("setuid"), -1, "who");
	if (*arg("filecaps"))
		executes("run-filecaps", arg("filecaps"), -1, "who");
}

/* who is what the privileged program then does. */
int who(const char *step)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[2] = {{0}};
	SYS(capget, &h, caps);
	int more = geteuid() != getuid() || caps[0].effective || caps[1].effective;
	noted(step, 0, more ? "gained" : "nothing gained");
	return 0;
}

static void ids(void)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct all[2] = {{~0u, ~0u, ~0u}, {~0u, ~0u, ~0u}};
	gid_t group = 0;
	did("setuid", SYS(setuid, 0));
	did("setgid", SYS(setgid, 0));
	did("setresuid", SYS(setresuid, num("neighbour"), num("neighbour"), num("neighbour")));
	did("setgroups", SYS(setgroups, 1, &group));
	did("capset", SYS(capset, &h, all));
	did("ambient", SYS(prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, (long)CAP_SYS_ADMIN, 0L, 0L));
	did("securebits", SYS(prctl, PR_SET_SECUREBITS, 0L, 0L, 0L, 0L));
	did("dumpable", SYS(prctl, PR_SET_DUMPABLE, 1L, 0L, 0L, 0L));
	did("ptracer", SYS(prctl, 0x59616d61L, -1L, 0L, 0L, 0L));
	did("mm", SYS(prctl, PR_SET_MM, 9999L, 0L, 0L, 0L));
}

static void persona(void)
{
	did("READ_IMPLIES_EXEC", SYS(personality, READ_IMPLIES_EXEC));
	did("query", SYS(personality, 0xffffffffL));
}

/* Each is asked in the way that tells the kernel's answer from the filter's, where there is one:
 * the note in the table says for which there is none. */
static void privileged_calls(void)
{
	did("swapoff", SYS(swapoff, BAD));
	did("swapon", SYS(swapon, BAD, 0));
	did("reboot", SYS(reboot, 0, 0, 0, NULL));
	did("init_module", SYS(init_module, BAD, 0L, BAD));
	did("finit_module", SYS(finit_module, -1, BAD, 0));
	did("delete_module", SYS(delete_module, BAD, 0));
	did("kexec_load", SYS(kexec_load, 0L, 0L, NULL, ~0L));
#ifdef SYS_iopl
	did("iopl", SYS(iopl, 0));
	did("ioperm", SYS(ioperm, 0L, 1L, 0));
#endif
	did("settimeofday", SYS(settimeofday, BAD, NULL));
	did("clock_settime", SYS(clock_settime, 0x7f, BAD));
	did("clock_adjtime", SYS(clock_adjtime, 0, (char[256]){1}));
	did("acct", SYS(acct, NULL));
	did("syslog", SYS(syslog, 99, NULL, 0));
	did("quotactl", SYS(quotactl, 0xff << 8, NULL, 0, NULL));
	did("quotactl_fd", SYS(quotactl_fd, -1, 0xff << 8, 0, NULL));
	did("sethostname", SYS(sethostname, BAD, -1));
	did("setdomainname", SYS(setdomainname, BAD, -1));
	did("vhangup", SYS(vhangup));
	did("uname", SYS(uname, (char[1024]){0}));
}

const struct row kernel_rows[] = {
	{"29", userns}, {"30", clone_3}, {"31", join}, {"32", mounts}, {"33", handles}, {"34", perf_bpf}, {"35", modern},
	{"36", keys}, {"37", terminal}, {"38", undo}, {"39", privileged}, {"40", ids}, {"53", persona},
	{"55", privileged_calls}, {"own-namespaces", own_ns}, {0},
};

/* others_namespace is the victim of row 31: a process of the same user in a user namespace of its
 * own, which belongs to that user. It says ready, or why it cannot, and stays until it is told. */
int others_namespace(void)
{
	char c;
	did("ready", own_namespaces(CLONE_NEWNS));
	read(0, &c, 1);
	return 0;
}
