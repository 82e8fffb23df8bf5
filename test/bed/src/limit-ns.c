/*
 * limit-ns USER max_KIND_namespaces=N... -- COMMAND...
 *
 * Runs COMMAND as USER where this node allows only N namespaces of a kind, as some clusters do.
 * The node's own settings stay as they are (and a machine without CAP_SYS_RESOURCE could not write
 * them): the limits are those of a user namespace of its own in which every id is mapped to
 * itself, so the command sees the same owners as outside. It ends as exec, with no process in
 * between: signals, terminals and statuses are the command's own. Needs root.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		err(125, "limit-ns: %s", path);
	close(fd);
}

/* map_all gives the parent's new user namespace the map of all ids. Only a process outside may. */
static void map_all(pid_t target)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/uid_map", (int)target);
	put(path, "0 0 4294967295\n");
	snprintf(path, sizeof path, "/proc/%d/gid_map", (int)target);
	put(path, "0 0 4294967295\n");
}

int main(int argc, char **argv)
{
	int i = 2, ready[2], status;
	char byte = 0, path[128];
	pid_t self = getpid(), helper;
	struct passwd *pw = argc > 1 ? getpwnam(argv[1]) : NULL;

	if (!pw || geteuid() != 0)
		errx(125, "usage, as root: limit-ns USER max_KIND_namespaces=N... -- COMMAND...");

	if (pipe2(ready, O_CLOEXEC))
		err(125, "limit-ns: pipe");
	helper = fork();
	if (helper < 0)
		err(125, "limit-ns: fork");
	if (helper == 0) {
		close(ready[1]);
		if (read(ready[0], &byte, 1) != 1)
			_exit(125);
		map_all(self);
		_exit(0);
	}
	close(ready[0]);
	if (unshare(CLONE_NEWUSER))
		err(125, "limit-ns: user namespace");
	if (write(ready[1], &byte, 1) != 1)
		err(125, "limit-ns: pipe");
	close(ready[1]);
	if (waitpid(helper, &status, 0) != helper || status != 0)
		errx(125, "limit-ns: the id map could not be written");

	for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
		char *eq = strchr(argv[i], '=');
		if (!eq || strchr(argv[i], '/'))
			errx(125, "limit-ns: %s is not max_KIND_namespaces=N", argv[i]);
		snprintf(path, sizeof path, "/proc/sys/user/%.*s", (int)(eq - argv[i]), argv[i]);
		put(path, eq + 1);
	}
	if (i + 1 >= argc)
		errx(125, "limit-ns: no command");

	if (setgroups(0, NULL) || setgid(pw->pw_gid) || setuid(pw->pw_uid))
		err(125, "limit-ns: becoming %s", pw->pw_name);
	setenv("HOME", pw->pw_dir, 1);
	setenv("USER", pw->pw_name, 1);
	setenv("LOGNAME", pw->pw_name, 1);
	setenv("SHELL", pw->pw_shell, 1);
	if (access(".", X_OK) && chdir(pw->pw_dir))
		err(125, "limit-ns: %s", pw->pw_dir);
	execvp(argv[i + 1], argv + i + 1);
	err(127, "limit-ns: %s", argv[i + 1]);
}
