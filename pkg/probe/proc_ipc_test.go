package probe

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Many programs fill the whole address of an abstract socket: the rest is NUL,
// which the kernel's list shows as @.
func TestConnectUnix_AbstractPadded(t *testing.T) {
	short := fmt.Sprintf("@probe-test-%d", os.Getpid())
	for _, name := range []string{short, short + "@x", short + strings.Repeat("\x00", 108-len(short)), short + "\x00x"} {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		sa := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
		for i := range len(name) {
			sa.Path[i] = int8(name[i])
		}
		sa.Path[0] = 0
		if _, _, e := unix.Syscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(2+len(name))); e != 0 {
			t.Fatal(e)
		}
		shown := strings.ReplaceAll(name, "\x00", "@")
		if _, e := connectUnix(shown); e != unix.ECONNREFUSED {
			t.Errorf("%q, which nobody listens on: %v", shown, e)
		}
		if err := unix.Listen(fd, 8); err != nil {
			t.Fatal(err)
		}
		if _, e := connectUnix(shown); e != 0 {
			t.Errorf("%q: %v", shown, e)
		}
		unix.Close(fd)
	}
}
