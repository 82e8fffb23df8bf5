/* Dies of a null pointer, two calls deep. */
static int inner(int *p) { return *p; }
static int outer(int *p) { return inner(p) + 1; }
int main(void) { return outer(0); }
