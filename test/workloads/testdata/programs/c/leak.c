/* Forgets 100 bytes. */
#include <stdlib.h>
#include <string.h>

int main(void)
{
	char *p = malloc(100);
	memset(p, 0, 100);
	p = 0;
	return p != 0;
}
