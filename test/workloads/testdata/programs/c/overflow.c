/* Writes past the end of an array on the heap. */
#include <stdlib.h>

int main(int argc, char **argv)
{
	int *a = malloc(4 * sizeof *a);
	a[3 + argc] = 1;
	free(a);
	return 0;
}
