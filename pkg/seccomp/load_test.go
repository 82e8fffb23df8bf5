package seccomp

import (
	"runtime"
	"testing"

	"fence/pkg/internal/sandboxtest"

	"golang.org/x/sys/unix"
)

// enforce applies a spec's filter to the calling thread, as fence does.
func enforce(t *testing.T, s Spec) {
	t.Helper()
	runtime.LockOSThread()
	s.Arch = runtime.GOARCH
	prog, err := Program(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := Load(prog); err != nil {
		t.Fatal(err)
	}
}

func TestLoad_Smoke(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) {
		enforce(t, Spec{})
		if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != unix.EAFNOSUPPORT {
			t.Errorf("socket: %v", err)
		}
	})
}
