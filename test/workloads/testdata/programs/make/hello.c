#include <stdio.h>

extern const char *word;

int main(void) { return printf("hello %s\n", word) < 0; }
