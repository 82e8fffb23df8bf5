/* What the constructor in userns.c did. */
struct fence_userns {
	int tried;   /* the command line asked for it */
	int err;     /* errno of unshare, 0 if it worked or was not tried */
	int entered; /* this process is in a user namespace of its own */
	int map_err; /* errno of writing the id maps: fatal when entered */
};
extern struct fence_userns fence_userns;
