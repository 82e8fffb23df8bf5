/* A user namespace can only be made by a process with one thread
 * (unshare(2), CLONE_NEWUSER), and the Go runtime starts threads before any
 * Go code runs. So it is made here, in a constructor, before the runtime
 * exists; every other step is Go code on a locked thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "userns.h"

struct fence_userns fence_userns;

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	ssize_t n = write(fd, text, strlen(text));
	int err = n == (ssize_t)strlen(text) ? 0 : (n < 0 ? errno : EIO);
	close(fd);
	return err;
}

/* wanted: the command line starts a command ("fence [flags] -- cmd", so
 * argv[1] is a flag or "--") and does not ask for the bare form. */
static int wanted(int argc, char **argv)
{
	if (argc < 3 || argv[1][0] != '-')
		return 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--"))
			return i + 1 < argc;
		if (!strcmp(argv[i], "--form=bare") || !strcmp(argv[i], "-form=bare"))
			return 0;
		if (!strcmp(argv[i], "--form") && i + 1 < argc && !strcmp(argv[i + 1], "bare"))
			return 0;
	}
	return 0;
}

__attribute__((constructor)) static void enter(int argc, char **argv)
{
	struct fence_userns *u = &fence_userns;
	char map[64];

	if (!wanted(argc, argv))
		return;
	u->tried = 1;
	/* The ids must be read before: afterwards they are the overflow ids. */
	uid_t uid = geteuid();
	gid_t gid = getegid();
	if (unshare(CLONE_NEWUSER)) {
		u->err = errno;
		return;
	}
	u->entered = 1;
	/* Ids stay what they were, so that id(1) and file owners look the same.
	 * gid_map needs setgroups denied first (user_namespaces(7)). */
	if ((u->map_err = put("/proc/self/setgroups", "deny")))
		return;
	snprintf(map, sizeof map, "%u %u 1", uid, uid);
	if ((u->map_err = put("/proc/self/uid_map", map)))
		return;
	snprintf(map, sizeof map, "%u %u 1", gid, gid);
	u->map_err = put("/proc/self/gid_map", map);
}
