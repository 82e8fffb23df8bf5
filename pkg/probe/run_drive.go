package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// class makes the attempts of one hazard class, in as many workers as it
// takes: each that hangs or dies costs the attempt it was in.
func (r *run) class(ctx context.Context, name string) {
	// The parent-death signal is tied to the thread that starts the worker.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	t := r.task
	t.Class = name
	for _, c := range r.table {
		if c.Worker == name && r.skipped(c.ID) {
			r.add(Finding{ID: c.ID, Outcome: Skipped, Evidence: "left out by the operator"})
			t.DoneIDs = append(t.DoneIDs, c.ID)
		}
	}
	fruitless := 0
	for {
		before := len(t.Done) + len(t.DoneIDs)
		end := r.worker(ctx, &t)
		if end.finished || ctx.Err() != nil {
			break
		}
		if len(t.Done)+len(t.DoneIDs) > before || end.serial && !t.Serial {
			fruitless = 0
		} else if fruitless++; fruitless > 1 {
			r.giveUp(name, &t, Finding{Outcome: Error, Evidence: end.why})
			break
		}
		t.Serial = t.Serial || end.serial
		if !time.Now().Before(r.deadline) {
			break
		}
	}
	r.giveUp(name, &t, Finding{Outcome: Timeout, Evidence: "the run's time was over"})
}

// giveUp gives every check of the class that is not done the finding f.
func (r *run) giveUp(name string, t *task, f Finding) {
	for _, c := range r.table {
		if c.Worker == name && !slices.Contains(t.DoneIDs, c.ID) {
			t.DoneIDs = append(t.DoneIDs, c.ID)
			f.ID = c.ID
			r.add(f)
		}
	}
}

// ending is how one worker ended.
type ending struct {
	finished bool
	serial   bool   // it died with several attempts in flight: try one at a time
	why      string // it ended early
}

// worker runs one worker and takes in what it finds. What it was in when it
// ended early becomes a finding, and t says what is done.
func (r *run) worker(ctx context.Context, t *task) ending {
	w, err := startWorker(*t)
	if err != nil {
		return ending{why: "the worker could not be started: " + oneLine(err.Error())}
	}
	defer w.close()

	inFlight := map[attempt]time.Time{}
	quiet := time.Now().Add(startLimit) // until its first word
	for {
		due := quiet
		for _, d := range inFlight {
			if due.IsZero() || d.Before(due) {
				due = d
			}
		}
		if due.IsZero() || due.After(r.deadline) {
			due = r.deadline
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			w.kill()
			return ending{why: "stopped"}
		case l, ok := <-w.lines:
			timer.Stop()
			if !ok {
				return r.died(w, t, inFlight)
			}
			quiet = time.Time{}
			if l.End {
				w.wait()
				return ending{finished: true}
			}
			r.take(l, t, inFlight)
		case <-timer.C:
			now := time.Now()
			w.kill()
			if !quiet.IsZero() {
				return ending{why: fmt.Sprintf("the worker said nothing for %v", startLimit)}
			}
			over := !now.Before(r.deadline)
			for a, d := range inFlight {
				if over || !now.Before(d) {
					r.blame(a, t, Finding{Outcome: Timeout, Evidence: "no answer before the deadline; its process was killed"})
				}
			}
			return ending{why: "the run's time was over"}
		}
	}
}

// take notes one message.
func (r *run) take(l line, t *task, inFlight map[attempt]time.Time) {
	switch {
	case l.Begin != nil:
		inFlight[*l.Begin] = time.Now().Add(r.limit(l.Begin.ID))
	case l.Found != nil:
		delete(inFlight, attempt{Key: l.Found.Key()})
		t.Done = append(t.Done, l.Found.Key())
		r.add(*l.Found)
	case l.Listed != "":
		delete(inFlight, attempt{Key: Key{ID: l.Listed}, Listing: true})
	case l.Checked != "":
		t.DoneIDs = append(t.DoneIDs, l.Checked)
	case l.Values != nil:
		r.mu.Lock()
		if r.values == nil {
			r.values = map[string]int{}
		}
		for k, v := range l.Values {
			r.values[k] = v
		}
		r.mu.Unlock()
	}
}

func (r *run) check(id string) Check {
	for _, c := range r.table {
		if c.ID == id {
			return c
		}
	}
	return Check{ID: id}
}

func (r *run) limit(id string) time.Duration {
	if l := r.check(id).limit; l > 0 {
		return l * r.stretch
	}
	return attemptLimit * r.stretch
}

// blame makes f the finding of the attempt.
func (r *run) blame(a attempt, t *task, f Finding) {
	f.ID, f.Target = a.ID, a.Target
	if a.Listing {
		f.Evidence = "looking for what to try it on: " + f.Evidence
		t.DoneIDs = append(t.DoneIDs, a.ID)
	} else {
		t.Done = append(t.Done, a.Key)
	}
	r.add(f)
}

// died reads the end of a worker that had more to do.
func (r *run) died(w *workerProc, t *task, inFlight map[attempt]time.Time) ending {
	w.kill() // and what it started
	signal, said := w.fate()
	if len(inFlight) > 1 {
		return ending{serial: true, why: said}
	}
	for a := range inFlight {
		f := Finding{Outcome: Error, Evidence: said}
		if signal == "SIGSYS" {
			f = killedBySeccomp()
		} else if died := r.check(a.ID).died; died != nil && !a.Listing {
			if g, ok := died(signal); ok {
				f = g
			}
		}
		r.blame(a, t, f)
	}
	return ending{why: said}
}

// workerProc is a running worker.
type workerProc struct {
	proc   *os.Process
	lines  chan line
	exited chan *os.ProcessState
	state  *os.ProcessState
	out    *os.File
	mu     sync.Mutex
	stderr []byte
}

// startWorker starts a worker in a process group of its own that ends with
// this process.
func startWorker(t task) (*workerProc, error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	pipe := func() (*os.File, *os.File, error) {
		r, w, err := os.Pipe()
		if err == nil {
			files = append(files, r, w)
		}
		return r, w, err
	}
	keep := func(f *os.File) *os.File {
		files = slices.DeleteFunc(files, func(g *os.File) bool { return g == f })
		return f
	}
	inR, inW, err := pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := pipe()
	if err != nil {
		return nil, err
	}
	if t.Class == classFDs {
		copies := copyStdio(t.Inherited)
		defer func() {
			for _, fd := range copies {
				unix.Close(fd)
			}
		}()
		t.Inherited = slices.Clone(t.Inherited)
		for i := range t.Inherited {
			t.Inherited[i].Copy = copies[t.Inherited[i].FD]
		}
	}
	data, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	proc, err := os.StartProcess(self(), []string{"probe", WorkerName, t.Class}, &os.ProcAttr{
		Files: []*os.File{inR, outW, errW},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return nil, err
	}
	w := &workerProc{proc: proc, lines: make(chan line), exited: make(chan *os.ProcessState, 1), out: keep(outR)}
	in, stderr := keep(inW), keep(errR)
	go func() { // a worker that does not read must not hold us up
		in.Write(data)
		in.Close()
	}()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := stderr.Read(buf)
			w.mu.Lock()
			if room := 2048 - len(w.stderr); room > 0 {
				w.stderr = append(w.stderr, buf[:min(n, room)]...)
			}
			w.mu.Unlock()
			if err != nil {
				stderr.Close()
				return
			}
		}
	}()
	go func() {
		defer close(w.lines)
		sc := bufio.NewScanner(outR)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			var l line
			if json.Unmarshal(sc.Bytes(), &l) != nil {
				return // not one of ours: whoever wrote it, this worker is over
			}
			w.lines <- l
		}
	}()
	go func() {
		state, _ := proc.Wait()
		w.exited <- state
	}()
	return w, nil
}

// kill ends the worker and its children, and waits a moment for it to be
// gone. One that waits for a dead file server cannot be reaped: it is left.
func (w *workerProc) kill() {
	_ = unix.Kill(-w.proc.Pid, unix.SIGKILL)
	w.wait()
}

func (w *workerProc) wait() {
	if w.state != nil {
		return
	}
	timer := time.NewTimer(reapLimit)
	defer timer.Stop()
	select {
	case w.state = <-w.exited:
	case <-timer.C:
	}
}

// close lets go of the worker's output. Its reader may be waiting to hand
// over a line that nobody wants.
func (w *workerProc) close() {
	if w.state == nil {
		_ = unix.Kill(-w.proc.Pid, unix.SIGKILL)
	}
	w.out.SetReadDeadline(time.Now())
	go func() {
		for range w.lines {
		}
		w.out.Close()
	}()
}

// fate says how the worker ended: the name of the signal, if one killed it,
// and a sentence.
func (w *workerProc) fate() (signal, said string) {
	w.mu.Lock()
	tail, _, _ := strings.Cut(string(w.stderr), "\n\n")
	w.mu.Unlock()
	if w.state == nil {
		return "", "the worker closed its output and could not be reaped"
	}
	status, _ := w.state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		signal = unix.SignalName(status.Signal())
		return signal, "the worker was killed by " + signal
	}
	said = fmt.Sprintf("the worker ended early with status %d", status.ExitStatus())
	if tail = oneLine(tail); tail != "" {
		said += ": " + tail
	}
	return "", said
}

// copyStdio puts copies of the first three descriptors where a worker, whose
// own are pipes, can look at them.
func copyStdio(fds []inherited) map[int]int {
	copies := map[int]int{}
	for _, i := range fds {
		if i.FD > 2 {
			continue
		}
		if c, err := unix.FcntlInt(uintptr(i.FD), unix.F_DUPFD, 100); err == nil {
			copies[i.FD] = c
		}
	}
	return copies
}
