/* What the constructor in userns.c did. */
struct fence_userns {
	int tried;   /* the command line asked for it */
	int err;     /* errno of unshare, 0 if it worked or was not tried */
	int entered; /* this process is in a user namespace of its own */
	int map_err; /* errno of writing the id maps: fatal when entered */
	int net_err; /* errno of making a network namespace; after fence_net */
	int pid_err; /* errno of making a PID namespace, where one was asked for */
	int own_pid; /* this is the first process of one */
	int joined;  /* it is in namespaces that were made for it (below.go) */
	unsigned int uid; /* the caller's: whose home is to be hidden */
	int net_fd;  /* that namespace, if net_err is 0 */
	unsigned long ignored, blocked; /* signals, of the caller: 1 << (number - 1) */
};
extern struct fence_userns fence_userns;

/* Waits until net_err and net_fd are there. */
void fence_net(void);
