/* attempt: what a hostile command would try, one row of the table at a time. See main.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the C library of the machine may not know yet. */
#ifndef SYS_open_tree_attr
#define SYS_open_tree_attr 467
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_set_mempolicy_home_node
#define SYS_set_mempolicy_home_node 450
#endif

/* SYS(kill, pid, 0) makes that system call, past the C library's wrapper: the result, or minus the
 * error number. */
#define SYS(call, ...) result(syscall(SYS_##call, ##__VA_ARGS__))
static inline long result(long r) { return r == -1 ? -errno : r; }
static inline long pidfd(long pid) { return SYS(pidfd_open, pid, 0); }
static inline long pinned(const char *file) { return SYS(openat, AT_FDCWD, file, O_PATH | O_CLOEXEC); }

/* did reports one step: its name, what came of it, and hands the result on. */
long did(const char *step, long result);
/* noted is did with a word about what was seen, such as "canary". */
long noted(const char *step, long result, const char *note);
/* died reports a step whose process was ended by a signal. */
void died(const char *step, int signal);

/* The arguments NAME=VALUE of the row: "" and 0 if not given. */
const char *arg(const char *name);
long num(const char *name);
/* path is arg(dir) "/" name, good until the eighth next call. */
const char *path(const char *dir, const char *name);

/* in_child runs f in a process of its own; a signal that ends it is reported as the step's. */
void in_child(const char *step, void (*f)(void));
/* reads reports what reading the file from an open descriptor, or the failed open's error, gave:
 * the note is "canary" if the secret was in it, "nothing" if it was not. */
void reads(const char *step, long fd);
/* opens is reads of a path. */
void opens(const char *step, const char *file);
/* writes reports an attempt to open for writing and write text. */
void writes(const char *step, const char *file, const char *text);

/* WORD is what an attempt says to a socket that it reached. */
#define WORD "escape"

struct row {
	const char *name;
	void (*run)(void);
};
extern const struct row net_rows[], process_rows[], kernel_rows[], file_rows[];

int victim(void);
int others_namespace(void);
int flip(void);
int who(const char *step);

/* executes tries to execute an attempt program in a child, by path or, if that is NULL, by
 * descriptor. It runs "attempt who ROW STEP" or, for other uses, "attempt ran ROW STEP". */
void executes(const char *step, const char *file, long fd, const char *as);
