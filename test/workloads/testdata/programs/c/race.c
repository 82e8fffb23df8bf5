/* Two threads write one variable. */
#include <pthread.h>

static int shared;

static void *write_it(void *arg)
{
	shared = (int)(long)arg;
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
