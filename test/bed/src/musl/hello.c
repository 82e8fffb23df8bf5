/* hello is the musl image's program: once linked to musl's loader, once static. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	printf("hello from musl (%s), uid %d gid %d\n", KIND, (int)getuid(), (int)getgid());
	return 0;
}
