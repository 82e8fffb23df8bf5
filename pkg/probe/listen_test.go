package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// listening is what probe listen says while it listens.
func listening(t *testing.T, file string) *Canary {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan *Canary, 1), make(chan error, 1)
	go func() {
		ended <- Listen(ctx, ListenOptions{Canary: file, Scratch: t.TempDir(), Ready: func(c *Canary) { ready <- c }})
	}()
	var c *Canary
	select {
	case c = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return c
}

// What is no file of ours is written to, and is there afterwards.
func TestListen_IntoAFIFO(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() { b, _ := os.ReadFile(fifo); got <- string(b) }()
	listening(t, fifo)
	if s := <-got; !strings.Contains(s, CanarySchema) {
		t.Errorf("it got %q", s)
	}
	if _, err := os.Stat(fifo); err != nil {
		t.Error(err)
	}
}

// An error names what the person named, not what we made of it.
func TestListen_Refuses(t *testing.T) {
	dir := t.TempDir()
	missing, long := filepath.Join(dir, "missing"), filepath.Join(dir, strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		o       ListenOptions
		want    string
		scratch bool
	}{
		{ListenOptions{Canary: missing + "/c.json"}, "writing the canary file: open " + missing + "/c.json: no such file or directory", false},
		{ListenOptions{Canary: dir + "/c.json", Scratch: missing}, "making the canary's Unix socket in " + missing + ": no such file or directory", true},
		{ListenOptions{Canary: dir + "/c.json", Scratch: long}, "making the canary's Unix socket in " + long + ": invalid argument", true},
	} {
		err := Listen(t.Context(), tc.o)
		var scratch *ScratchError
		if err == nil || err.Error() != tc.want || errors.As(err, &scratch) != tc.scratch {
			t.Errorf("%+v: %v, want %s", tc.o, err, tc.want)
		}
		if _, err := os.Stat(tc.o.Canary); err == nil {
			t.Errorf("%s is there", tc.o.Canary)
		}
	}
}
