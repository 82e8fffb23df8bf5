package job

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Interruptible ends with the signals that end a job, and when nobody reads
// standard output any more: records go there, and what a command has in scratch
// has to go. A signal that whoever started this program had ignored stays so:
// nohup(1), a shell's background. The cause of the end is a [Signal].
func Interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}, signal.Ignored)
	if len(signals) == 0 { // which Notify would take for all
		return ctx, func() { cancel(nil) }
	}
	got, done := make(chan os.Signal, 8), make(chan struct{})
	signal.Notify(got, signals...)
	go func() {
		for {
			select {
			case s := <-got:
				// It comes for every pipe and socket: a command that does not read
				// its input must not end all the others.
				if s != syscall.SIGPIPE || unread(1) || unread(2) {
					cancel(Signal{s.(syscall.Signal)})
				}
			case <-done:
				return
			}
		}
	}()
	// Until then a second one does not kill what is being put away.
	return ctx, sync.OnceFunc(func() {
		signal.Stop(got)
		close(done)
		cancel(nil)
	})
}

// Signal is why work is ended when somebody asks for it.
type Signal struct{ syscall.Signal }

func (s Signal) Error() string {
	if s.Signal == syscall.SIGPIPE {
		return "nobody reads what is printed"
	}
	return "the signal " + unix.SignalName(s.Signal) + " asked for it"
}

// Unwrap says that it is the end of a context like any other.
func (Signal) Unwrap() error { return context.Canceled }

// unread says that a descriptor is a pipe or a socket whose other end is closed.
func unread(fd int32) bool {
	p := []unix.PollFd{{Fd: fd}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// Margin is how long before a job's end work is ended: that is time enough to
// end what runs, remove what is in scratch, and print the records.
const Margin = 2 * time.Minute

// Ending is why work is ended before the job is.
type Ending struct {
	At   time.Time
	What string // of the work: "built"
}

func (e Ending) Error() string {
	return "the job ends at " + e.At.Format("15:04:05") + ", and two minutes before it nothing more is " + e.What
}

// Until ends ctx shortly before the job ends; say says so, and what is not known.
// deadline is of --deadline: "" for the end of the Slurm job. what is what the
// work does, "built" or "run".
func (h Here) Until(ctx context.Context, deadline, what string, say func(string)) (context.Context, context.CancelFunc, error) {
	end, err := ParseDeadline(deadline, time.Now())
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	at := func(end time.Time) {
		if end.IsZero() {
			return
		}
		stop := func() {
			say(Ending{end, what}.Error())
			cancel(Ending{end, what})
		}
		wait := time.Until(end.Add(-Margin))
		if wait <= 0 {
			stop()
			return
		}
		t := time.AfterFunc(wait, stop)
		context.AfterFunc(ctx, func() { t.Stop() })
	}
	if deadline != "" {
		at(end)
	} else {
		go func() { // Slurm may take its time
			end, err := h.End(ctx)
			if err != nil && ctx.Err() == nil {
				say(fmt.Sprintf("when the job ends is not known, so nothing is ended cleanly before it does (--deadline): %v", err))
			}
			at(end)
		}()
	}
	return ctx, func() { cancel(nil) }, nil
}

// ParseDeadline reads --deadline; "" and none are no time.
func ParseDeadline(s string, now time.Time) (time.Time, error) {
	if s == "" || s == "none" {
		return time.Time{}, nil
	}
	if sec, err := strconv.ParseInt(s, 10, 64); err == nil && sec > 0 {
		return time.Unix(sec, 0), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(d), nil
	}
	if at, err := time.Parse(time.RFC3339, s); err == nil {
		return at, nil
	}
	return time.Time{}, fmt.Errorf("%q is no time", s)
}
