/* Only a handler sees where a signal came from, and Go's do not tell. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <unistd.h>

#include "parent.h"

static volatile sig_atomic_t child;
static volatile unsigned long long early; /* signals from before it was there */
static struct sigaction handler;

static const int handed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGABRT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCONT,
	SIGTSTP, SIGTTIN, SIGTTOU, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGWINCH, SIGIO, SIGPWR,
	35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64};
#define EACH(i) (size_t i = 0; i < sizeof handed_on / sizeof *handed_on; i++)

static void hand_on(int sig, siginfo_t *info, void *unused)
{
	int was = errno;
	(void)unused;
	/* What a terminal sends goes to the whole process group, so the child has
	 * it. SIGHUP goes to the leader of a session too, wherever it is; a timer
	 * that was set before exec rings here. */
	if (info->si_code > 0 && sig != SIGALRM && !(sig == SIGHUP && getsid(0) == getpid()))
		return;
	if (child)
		kill(child, sig);
	else
		__atomic_or_fetch(&early, 1ULL << (sig - 1), __ATOMIC_SEQ_CST);
	errno = was;
}

void fence_forward(void)
{
	struct sigaction now;
	sigfillset(&handler.sa_mask);
	handler.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK; /* on Go's threads */
	handler.sa_sigaction = hand_on;
	for EACH(i)
		if (!sigaction(handed_on[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaction(handed_on[i], &handler, NULL);
}

void fence_forward_to(int pid)
{
	for EACH(i)
		sigaction(handed_on[i], &handler, NULL);
	child = pid;
	unsigned long long kept = __atomic_exchange_n(&early, 0, __ATOMIC_SEQ_CST);
	for (int sig = 1; kept; sig++, kept >>= 1)
		if (kept & 1)
			kill(pid, sig);
}

/* raise, whatever the handler and the mask are. */
static void surely(int sig)
{
	sigset_t one;
	signal(sig, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, sig);
	pthread_sigmask(SIG_UNBLOCK, &one, NULL);
	raise(sig);
}

void fence_stop_as(int sig)
{
	if (sig == SIGSTOP) {
		raise(SIGSTOP);
		return;
	}
	surely(sig);
	sigaction(sig, &handler, NULL);
}

void fence_die_of(int sig)
{
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_CORE, &none); /* the core is the child's */
	surely(sig);
}
