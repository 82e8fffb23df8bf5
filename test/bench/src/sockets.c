/* sockets connect|unix|stream N: what a connection of one's own costs.
 * connect and unix print the median of N connects in nanoseconds, stream the
 * nanoseconds of N times 1 MiB through one connection. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
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

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static char block[1 << 20];

int main(int argc, char **argv)
{
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_un un;
	} a = {0};
	if (argc != 3)
		return 2;
	long n = atol(argv[2]);
	int local = !strcmp(argv[1], "unix");
	socklen_t len = local ? sizeof a.un : sizeof a.in;
	if (local) {
		a.un.sun_family = AF_UNIX;
		snprintf(a.un.sun_path + 1, sizeof a.un.sun_path - 1, "bench-%d", getpid());
	} else {
		a.in.sin_family = AF_INET;
		a.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	}
	int l = socket(a.any.sa_family, SOCK_STREAM, 0);
	if (l < 0 || bind(l, &a.any, len) || listen(l, 4096) || getsockname(l, &a.any, &len))
		die("server");
	if (!strcmp(argv[1], "stream")) {
		int fd = socket(AF_INET, SOCK_STREAM, 0), status;
		if (connect(fd, &a.any, len))
			die("connect");
		pid_t reader = fork();
		if (!reader) {
			int c = accept(l, 0, 0);
			close(fd);
			while (read(c, block, sizeof block) > 0)
				;
			_exit(0);
		}
		double start = now();
		for (long i = 0; i < n; i++)
			for (size_t done = 0; done < sizeof block;) {
				ssize_t k = write(fd, block + done, sizeof block - done);
				if (k < 0)
					die("write");
				done += k;
			}
		close(fd);
		waitpid(reader, &status, 0);
		printf("%.0f\n", (now() - start) / n);
		return 0;
	}
	double *took = calloc(n, sizeof *took);
	for (long i = 0; i < n; i++) {
		struct linger at_once = {1, 0};
		int fd = socket(a.any.sa_family, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
		double start = now();
		if (connect(fd, &a.any, len))
			die("connect");
		took[i] = now() - start;
		close(accept(l, 0, 0));
		close(fd);
	}
	qsort(took, n, sizeof *took, less);
	printf("%.0f\n", took[n / 2]);
	return 0;
}
