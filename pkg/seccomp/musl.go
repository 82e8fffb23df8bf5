//go:build cgo && musl

package seccomp

// libseccomp.a as Debian ships it was compiled against glibc with checks on
// the format functions; musl has the functions and not the checked names.

/*
#include <stdarg.h>
#include <stdio.h>

int __fprintf_chk(FILE *f, int flag, const char *format, ...)
{
	va_list args;
	(void)flag;
	va_start(args, format);
	int n = vfprintf(f, format, args);
	va_end(args);
	return n;
}
*/
import "C"
