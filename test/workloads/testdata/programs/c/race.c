/* Two threads write one variable, each while the other one is there: of a
 * thread that has ended ThreadSanitizer may have forgotten what it wrote. The
 * counters order nothing (relaxed). */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static int shared;
static atomic_int started, written;

static void meet(atomic_int *at)
{
	atomic_fetch_add_explicit(at, 1, memory_order_relaxed);
	while (atomic_load_explicit(at, memory_order_relaxed) < 2)
		sched_yield();
}

static void *write_it(void *arg)
{
	meet(&started);
	shared = (int)(long)arg;
	meet(&written);
	return 0;
}

int main(void)
{
	pthread_t a, b;
	pthread_create(&a, 0, write_it, (void *)1);
	pthread_create(&b, 0, write_it, (void *)2);
	pthread_join(a, 0);
	pthread_join(b, 0);
	return 0;
}
