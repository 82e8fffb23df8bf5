/*
 * attempt ROW [NAME=VALUE...]
 *
 * Makes the attempts of one row of the table (test/escapes) by raw system calls and prints one
 * JSON line for each: {"row":"16","step":"kill","errno":"EPERM"}. It harms nothing but the
 * fixtures it is told about: signals are such that a bystander ignores them, and what reaches
 * all of a user's processes at once has no effect on them.
 *
 * attempt victim ... is what it attacks (victim.c).
 */
#include "attempt.h"

static const char *row;
static char **args;

const char *arg(const char *name)
{
	size_t n = strlen(name);
	for (char **a = args; *a; a++)
		if (!strncmp(*a, name, n) && (*a)[n] == '=')
			return *a + n + 1;
	return "";
}

long num(const char *name) { return strtol(arg(name), NULL, 0); }

const char *path(const char *dir, const char *name)
{
	static char ring[8][4096];
	static int next;
	char *buf = ring[next++ % 8];
	snprintf(buf, sizeof ring[0], "%s/%s", arg(dir), name);
	return buf;
}

static long report(const char *step, long result, const char *outcome, const char *note)
{
	char line[512];
	int n = snprintf(line, sizeof line, "{\"row\":\"%s\",\"step\":\"%s\",\"errno\":\"%s\"", row, step, outcome);
	if (note)
		n += snprintf(line + n, sizeof line - n, ",\"note\":\"%s\"", note);
	if (*arg("what"))
		n += snprintf(line + n, sizeof line - n, ",\"what\":\"%s\"", arg("what"));
	n += snprintf(line + n, sizeof line - n, "}\n");
	/* At once and unbuffered: the next step may be the last. */
	if (write(1, line, n) != n)
		_exit(70);
	return result;
}

long noted(const char *step, long result, const char *note)
{
	const char *outcome = "OK";
	char unknown[32];
	if (result < 0 && !(outcome = strerrorname_np(-result))) {
		snprintf(unknown, sizeof unknown, "errno %ld", -result);
		outcome = unknown;
	}
	return report(step, result, outcome, note);
}

long did(const char *step, long result) { return noted(step, result, NULL); }

void died(const char *step, int signal)
{
	char outcome[32];
	snprintf(outcome, sizeof outcome, "SIG%s", sigabbrev_np(signal));
	report(step, 0, outcome, NULL);
}

void in_child(const char *step, void (*f)(void))
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		f();
		_exit(0);
	}
	if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status))
		died(step, WTERMSIG(status));
}

void reads(const char *step, long fd)
{
	static char buf[1 << 16];
	if (fd < 0) {
		did(step, fd);
		return;
	}
	long n = SYS(read, fd, buf, sizeof buf - 1);
	SYS(close, fd);
	if (n < 0) {
		did(step, n);
		return;
	}
	/* Files of /proc have zero bytes in them. */
	for (long i = 0; i < n; i++)
		if (!buf[i])
			buf[i] = '\n';
	buf[n] = 0;
	noted(step, n, strstr(buf, "canary") ? "canary" : "nothing");
}

void opens(const char *step, const char *file)
{
	reads(step, SYS(openat, AT_FDCWD, file, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

void executes(const char *step, const char *file, long fd, const char *as)
{
	char *argv[] = {"attempt", (char *)as, (char *)row, (char *)step, NULL}, *env[] = {NULL};
	pid_t pid = fork();
	if (pid == 0) {
		did(step, file ? SYS(execve, file, argv, env) : SYS(execveat, fd, "", argv, env, AT_EMPTY_PATH));
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

void writes(const char *step, const char *file, const char *text)
{
	long fd = SYS(openat, AT_FDCWD, file, O_WRONLY | O_CLOEXEC);
	if (fd < 0) {
		did(step, fd);
		return;
	}
	did(step, SYS(write, fd, text, strlen(text)));
	SYS(close, fd);
}

int main(int argc, char **argv)
{
	const struct row *tables[] = {net_rows, process_rows, kernel_rows, file_rows};
	if (argc < 2) {
		fprintf(stderr, "usage: attempt ROW [NAME=VALUE...]\n");
		return 2;
	}
	row = argv[1];
	args = argv + 2;
	signal(SIGURG, SIG_IGN);
	if (!strcmp(row, "victim"))
		return victim();
	if (!strcmp(row, "flip"))
		return flip();
	if (!strcmp(row, "others-namespace"))
		return others_namespace();
	if (argc == 4 && (!strcmp(row, "who") || !strcmp(row, "ran"))) {
		int asked = !strcmp(row, "who");
		row = argv[2];
		return asked ? who(argv[3]) : did(argv[3], 0);
	}
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		for (const struct row *r = tables[i]; r->name; r++)
			if (!strcmp(r->name, row)) {
				r->run();
				return 0;
			}
	fprintf(stderr, "attempt: no row %s\n", row);
	return 2;
}
