/* A POSIX message queue of its own. */
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>

int main(void)
{
	char buf[8192] = "";
	mqd_t q = mq_open("/queue", O_CREAT | O_RDWR, 0600, 0);
	if (q == (mqd_t)-1) {
		perror("mq_open");
		return 1;
	}
	mq_send(q, "through", 8, 0);
	mq_receive(q, buf, sizeof buf, 0);
	mq_unlink("/queue");
	return puts(buf) < 0;
}
