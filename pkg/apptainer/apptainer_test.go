package apptainer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// All that a command has started is gone when Run is back, whatever it did to
// stay: its own session, no parent, no output that could be waited for.
func TestRun(t *testing.T) {
	const leave = "setsid sh -c 'echo $$; exec sleep 1000 >/dev/null' & "
	for _, c := range []struct {
		name, script string
		cancel       bool
		end          string
	}{
		{name: "ended", script: "{ " + leave + "} | { read pid; echo $pid; exit 3; }", end: "exit status 3"},
		{name: "killed", script: "{ " + leave + "} | { read pid; echo $pid; kill -KILL $$; sleep 1000; }", end: "exit status 137"},
		{name: "canceled", script: leave + "wait; sleep 1000", cancel: true, end: "exit status 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/bin/sh", "-c", c.script)
			cmd.ExtraFiles = []*os.File{null}
			out := &first{}
			if c.cancel {
				out.then = cancel
			}
			end, err := Run(ctx, cmd, Start{Out: out, Said: os.Stderr, Given: []io.Closer{null}})
			if err != nil {
				t.Fatal(err)
			}
			if end == nil || end.Error() != c.end {
				t.Errorf("%v, want %s", end, c.end)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(out.buf.String()))
			if err != nil {
				t.Fatalf("the control: nothing was left running: %q", out.buf.String())
			}
			if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
				t.Errorf("process %d lives on (%v)", pid, err)
			}
		})
	}
}

// first keeps what is written, and does something after the first of it.
type first struct {
	buf  bytes.Buffer
	then func()
}

func (f *first) Write(p []byte) (int, error) {
	if f.then != nil {
		defer f.then()
	}
	return f.buf.Write(p)
}

func TestLastWords(t *testing.T) {
	for said, want := range map[string]string{
		"": "it says nothing (signal: killed)",
		"INFO:    one\nFATAL:   no such image\nmore\n":                                 "no such image",
		"\x1b[91mERROR  : Failed to create user namespace: too many\n\x1b[0m":          "Failed to create user namespace: too many",
		"WARNING: x\nfence: not fenced, and the command was not run: y\nhint: fence\n": "not fenced, and the command was not run: y",
		"one\n\ntwo\n\n": "two",
	} {
		if got := LastWords(said, errors.New("signal: killed")); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

func TestTail(t *testing.T) {
	to := Tail{Most: 4}
	for range 9 {
		to.Write([]byte("abc"))
	}
	if got := to.String(); got != "cabc" {
		t.Errorf("%q", got)
	}
}
