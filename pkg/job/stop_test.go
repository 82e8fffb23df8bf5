package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestParseDeadline(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for s, want := range map[string]time.Time{
		"": {}, "none": {}, "1700000060": now.Add(time.Minute), "3h": now.Add(3 * time.Hour), "2023-11-14T22:14:20Z": now.Add(time.Minute),
	} {
		if got, err := ParseDeadline(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"tomorrow", "-3h", "0", "-5", "18:00"} {
		if got, err := ParseDeadline(s, now); err == nil {
			t.Errorf("%q is %v", s, got)
		}
	}
}

// The cause of the end says when the job ends, and what comes of it.
func TestUntil(t *testing.T) {
	for name, tc := range map[string]struct {
		flag string
		env  map[string]string
		ends bool
	}{
		"no job":             {"", nil, false},
		"soon":               {"1m", nil, true},
		"Slurm says so":      {"", map[string]string{"SLURM_JOB_END_TIME": "1700000000"}, true},
		"not minded":         {"none", map[string]string{"SLURM_JOB_END_TIME": "1700000000"}, false},
		"one's own is later": {"10h", map[string]string{"SLURM_JOB_END_TIME": "1700000000"}, false},
	} {
		said := make(chan string, 1)
		ctx, cancel, err := here(t, nil, tc.env).Until(t.Context(), tc.flag, "run", func(s string) { said <- s })
		if err != nil {
			t.Fatal(err)
		}
		if !tc.ends {
			cancel()
		}
		<-ctx.Done()
		var e Ending
		if is := errors.As(context.Cause(ctx), &e); is != tc.ends || is && (e.What != "run" || e.Error() != <-said) {
			t.Errorf("%s: %v", name, context.Cause(ctx))
		}
		cancel()
	}
	if _, _, err := here(t, nil, nil).Until(t.Context(), "tomorrow", "run", nil); err == nil {
		t.Error("tomorrow is a time")
	}
}

// A pipe that nobody reads ends the work if it is standard output, and only then.
func TestInterruptible_Pipes(t *testing.T) {
	if os.Getenv("TEST_PIPES") != "" {
		ctx, stop := Interruptible()
		defer stop()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		for range 100 {
			if _, err := w.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Fatalf("writing to nobody: %v", err)
			}
		}
		// Signals of a process to itself are delivered in order: after this one
		// those of the pipe have been.
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGUSR1)
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		<-heard
		for range 1000 {
			runtime.Gosched() // who heard of the pipe has its turn
		}
		if ctx.Err() != nil {
			t.Fatal("a pipe of somebody else's ended it")
		}
		fmt.Fprintln(os.Stderr, "goes on")
		_, _ = io.Copy(io.Discard, os.Stdin) // until nobody reads
		for ctx.Err() == nil {
			_, _ = os.Stdout.Write([]byte("x"))
		}
		fmt.Fprintln(os.Stderr, context.Cause(ctx))
		os.Exit(7)
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestInterruptible_Pipes")
	cmd.Env = append(os.Environ(), "TEST_PIPES=1")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	said, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("goes on\n"))
	_, err := io.ReadFull(said, line)
	out.Close()
	in.Close()
	more, _ := io.ReadAll(said)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); err != nil || code != 7 || string(line) != "goes on\n" || string(more) != "nobody reads what is printed\n" {
		t.Errorf("exit code %d, %v: %s%s", code, err, line, more)
	}
}
