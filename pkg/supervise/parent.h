/* What a process that only stands in for its child does with signals. */

/* Installs handlers that hand signals on; until fence_forward_to says to whom
 * they are kept. Signals that are ignored stay so, since the child inherits
 * that, until then. */
void fence_forward(void);
void fence_forward_to(int pid);

/* Stops this process by the signal that stopped the child, until it is
 * continued. */
void fence_stop_as(int sig);

/* Ends this process by the signal that ended the child. */
void fence_die_of(int sig);
