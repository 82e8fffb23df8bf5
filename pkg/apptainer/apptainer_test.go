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
		run := func(t *testing.T, step *Step) {
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
			end, err := Run(ctx, cmd, Start{Out: out, Said: os.Stderr, Given: []io.Closer{null}, Step: step})
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
		}
		t.Run(c.name, func(t *testing.T) { run(t, nil) })
		// What is in place of srun closes descriptors and the environment, as that does.
		t.Run(c.name+" in a step", func(t *testing.T) {
			run(t, &Step{Argv: []string{"/bin/sh", "-c", `exec "$@" 3>&- 4>&- 5>&-`, "srun"}, Dir: t.TempDir()})
		})
	}
}

// A command in a step begins with its own environment, folder and input, not
// with srun's, however long the path of the socket is.
func TestRun_StepBegins(t *testing.T) {
	dir := t.TempDir() + strings.Repeat("/"+strings.Repeat("d", 50), 3)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "cat; pwd; /usr/bin/env")
	cmd.Env, cmd.Dir = []string{"OWN=1", "PWD=/usr"}, "/usr"
	var out bytes.Buffer
	pid := 0
	end, err := Run(t.Context(), cmd, Start{Text: "input\n", Out: &out, Started: func(p int) { pid = p }, Step: &Step{Argv: []string{"/usr/bin/env"}, Env: []string{"SRUN=1"}, Dir: dir}})
	if got := out.String(); end != nil || err != nil || pid == 0 || !strings.HasPrefix(got, "input\n/usr\n") || !strings.Contains(got, "OWN=1") || strings.Contains(got, "SRUN") {
		t.Errorf("%v, %v, %d: %s", end, err, pid, out.String())
	}
}

// A step that does not begin, or is not waited for, is none.
func TestRun_NoStep(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name, srun, end, said string
		ctx                   context.Context
	}{
		{"refused", "echo no room >&2; exit 7", "exit status 7", "no room\n", t.Context()},
		{"waits", "sleep 1000", "signal: terminated", "", canceled},
	} {
		var said bytes.Buffer
		end, err := Run(c.ctx, exec.Command("/bin/true"), Start{Said: &said, Started: func(int) { t.Errorf("%s: it has begun", c.name) },
			Step: &Step{Argv: []string{"/bin/sh", "-c", c.srun, "srun"}, Env: os.Environ(), Dir: t.TempDir()}})
		if err != nil || end == nil || end.Error() != c.end || said.String() != c.said {
			t.Errorf("%s: %v, %v, %q", c.name, end, err, said.String())
		}
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
		"Error for command \"exec\": unknown flag: --no-eval\n\nOptions for exec command:\n\nRun 'apptainer --help' for more\n": "unknown flag: --no-eval",
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
