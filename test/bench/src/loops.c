/* loops NAME N: does one small thing N times and prints nanoseconds for each.
 * The things are those that a filter or a ruleset could make slower. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	const char *name = argv[1];
	long n = atol(argv[2]);
	int a[2], b[2];
	pid_t peer = 0;
	char byte = 0;
	struct stat st;

	if (!strcmp(name, "pipe")) {
		if (pipe(a) || pipe(b))
			die("pipe");
		if (!(peer = fork())) {
			close(a[1]);
			while (read(a[0], &byte, 1) == 1)
				if (write(b[1], &byte, 1) != 1)
					_exit(1);
			_exit(0);
		}
	}
	double start = now();
	for (long i = 0; i < n; i++) {
		if (!strcmp(name, "getpid")) {
			syscall(SYS_getpid);
		} else if (!strcmp(name, "stat")) {
			if (stat("/usr/lib/os-release", &st))
				die("stat");
		} else if (!strcmp(name, "open")) {
			int fd = open("/usr/lib/os-release", O_RDONLY);
			if (fd < 0)
				die("open");
			close(fd);
		} else if (!strcmp(name, "pipe")) {
			if (write(a[1], &byte, 1) != 1 || read(b[0], &byte, 1) != 1)
				die("pipe");
		} else if (!strcmp(name, "exec")) {
			pid_t p = vfork();
			if (!p) {
				execl(argv[0], argv[0], "getpid", "0", (char *)0);
				_exit(127);
			}
			int status;
			if (waitpid(p, &status, 0) != p || status)
				die("exec");
		} else
			return 2;
	}
	double ns = (now() - start) / (n ? n : 1);
	if (n)
		printf("%.1f\n", ns);
	return 0;
}
