/* Threads that OpenMP binds, one to a processor each: says how many are. */
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>

int main(void)
{
	int bound = 0, sum = 0;
#pragma omp parallel num_threads(2) reduction(+ : bound, sum)
	{
		cpu_set_t set;
		sched_getaffinity(0, sizeof set, &set);
		bound += CPU_COUNT(&set) == 1;
		sum += omp_get_thread_num() + 1;
	}
	printf("threads 2, sum %d, bound %d\n", sum, bound);
	return 0;
}
