package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// The names under which the binary is started again.
const (
	argInit = "sifbuild: step"    // first process of the step's namespaces
	argRun  = "sifbuild: command" // what becomes fence
	argExec = "step-exec"         // what fence starts, which becomes the command
)

// Descriptors that the first process is given.
const (
	fdSpec   = 3 // the Spec; when the other end closes, all of the step ends
	fdResult = 4
	fdStream = 5 // and those after it: Streams of Unpack
)

// Stream is a tar that a step unpacks.
type Stream func() (io.ReadCloser, error)

// Main takes over where the process was started for a step, and does not
// return then. It is the first thing that a program which calls Do does.
func Main() {
	switch {
	case os.Args[0] == argInit:
		os.Exit(initMain())
	case os.Args[0] == argRun:
		os.Exit(runMain())
	case len(os.Args) > 1 && (strings.HasPrefix(os.Args[0], inHost+"/") || os.Args[0] == inSelf) && os.Args[1] == argServe:
		os.Exit(serveMain())
	case len(os.Args) > 1 && os.Args[0] == inFence+"/sifbuild" && os.Args[1] == argExec:
		os.Exit(execMain())
	case len(os.Args) > 1 && os.Args[0] == inFence+"/sifbuild" && os.Args[1] == argTry:
		os.Exit(tryMain())
	case len(os.Args) > 1 && os.Args[0] == inFence+"/sifbuild" && os.Args[1] == argRan:
		os.Exit(0)
	}
}

// ErrIdle is the cause of a step that was ended because it printed nothing for
// longer than Spec.Idle.
var ErrIdle = errors.New("the command printed nothing for too long")

// Failure is a step that could not be done, as distinct from a command that
// was run and whose status is not 0.
type Failure struct {
	Kind string // "setup", "engine", "source", "user", "isolation", "command", "pack", "starved", "memory", "disk"
	Text string
}

func (f *Failure) Error() string { return f.Text }

// Do does one step by way of an engine and returns when all of its processes are gone. What the
// command prints, and what the step itself has to say, goes to log. A canceled
// context kills the step; the error is then ctx's cause. Streams are for Unpack.
func Do(ctx context.Context, e Engine, s Spec, log *os.File, streams ...Stream) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	specR, specW, err := os.Pipe()
	if err != nil {
		return Result{}, err
	}
	defer specR.Close()
	defer specW.Close()
	resultR, resultW, err := os.Pipe()
	if err != nil {
		return Result{}, err
	}
	defer resultR.Close()
	defer resultW.Close()

	// Not the log itself: what has a file's descriptor can change its mode, and write anything anywhere in it.
	outR, outW, err := os.Pipe()
	if err != nil {
		return Result{}, err
	}
	defer outR.Close()
	defer outW.Close()
	f := first{net: s.Run != nil && s.Run.Network == "none", out: outW, files: []*os.File{specR, resultW}}
	var feeds []*os.File
	for range streams {
		r, w, err := os.Pipe()
		if err != nil {
			return Result{}, err
		}
		defer r.Close()
		defer w.Close()
		f.files = append(f.files, r)
		feeds = append(feeds, w)
	}
	if s.Run != nil {
		run := *s.Run
		if run.Self, err = os.Readlink("/proc/self/exe"); err != nil {
			return Result{}, err
		}
		s.Run = &run
	}
	p, err := e.start(f)
	if err != nil {
		return Result{}, err
	}
	for _, f := range append(f.files, outW) {
		f.Close()
	}
	logged := make(chan struct{})
	var heard io.Reader = outR
	if s.Idle > 0 {
		idle := time.AfterFunc(s.Idle, func() { cancel(ErrIdle) })
		defer idle.Stop()
		heard = reader(func(p []byte) (int, error) {
			n, err := outR.Read(p)
			idle.Reset(s.Idle)
			return n, err
		})
	}
	go func() {
		defer close(logged)
		keep(log, heard)
	}()
	go func() {
		for i, open := range streams {
			if err := feed(feeds[i], open); err != nil {
				cancel(err)
				return
			}
		}
	}()
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
		case <-p.gone:
		case <-done:
			return
		}
		specW.Close() // the other end is its lifeline
		p.kill()
	}()
	go json.NewEncoder(specW).Encode(s) // a large copy list is more than a pipe holds

	said, readErr := io.ReadAll(resultR)
	waitErr := p.wait()
	<-logged // all that had the other end are gone
	close(done)
	<-stopped
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	var r Result
	if readErr == nil {
		readErr = json.Unmarshal(said, &r)
	}
	var failed *Failure
	var exit *exec.ExitError
	switch {
	case readErr != nil && errors.As(waitErr, &failed):
		return Result{}, failed
	case readErr != nil && errors.As(waitErr, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return Result{}, &Failure{"memory", "the step's first process was killed, probably for want of memory"}
	}
	if readErr != nil {
		return Result{}, &Failure{"setup", fmt.Sprintf("the step's process ended without a word: %v", waitErr)}
	}
	if r.Error != "" {
		return r, &Failure{r.Kind, r.Error}
	}
	return r, nil
}

type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// feed writes a stream to a step. A step that wants no more of it is no error here.
func feed(w *os.File, open Stream) error {
	defer w.Close()
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(w, r); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// logLimit is how much of what a step says is kept, in bytes.
const logLimit = 64 << 20

// keep writes to a log what comes, up to the limit, and reads all of it.
func keep(log io.Writer, r io.Reader) {
	n, err := io.Copy(log, io.LimitReader(r, logLimit))
	if err == nil && n == logLimit {
		fmt.Fprintf(log, "\n[sifbuild: the rest of what this step says is not kept: it is more than %d MiB]\n", logLimit>>20)
	}
	io.Copy(io.Discard, r)
}
