package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// WorkerName is the argument by which probe runs itself again as a worker.
const WorkerName = "__worker"

// line is one message from a worker to its parent.
type line struct {
	Begin   *attempt       `json:"begin,omitempty"`
	Found   *Finding       `json:"found,omitempty"`
	Listed  string         `json:"listed,omitempty"`  // id: its targets are known now
	Checked string         `json:"checked,omitempty"` // id: nothing is left to try
	Values  map[string]int `json:"values,omitempty"`  // facts for Controls
	End     bool           `json:"end,omitempty"`
}

// attempt is what a worker is about to do.
type attempt struct {
	Key
	Listing bool `json:"listing,omitempty"` // it looks for targets
}

// WorkerMain is a worker: cmd/probe calls it, before anything else, when its
// first argument is WorkerName, with the arguments after it. It returns the
// exit status.
//
// A worker first takes from itself what a crash could leave behind, then
// says before each attempt what it is about to do, so that whoever kills it
// knows what it hung in.
func WorkerMain(args []string, stdin io.Reader, stdout io.Writer) int {
	return workerMain(args, stdin, stdout, Checks())
}

func workerMain(args []string, stdin io.Reader, stdout io.Writer, table []Check) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "probe: a worker is started by probe itself")
		return 2
	}
	switch args[0] {
	case helperExit: // a child that is only there to be started
		return 0
	case helperHold: // a child that is there until its parent is not
		io.Copy(io.Discard, stdin)
		return 0
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2) // one for the attempt, one to see it die
	}
	dieQuietly()
	var t task
	if err := json.NewDecoder(stdin).Decode(&t); err != nil {
		fmt.Fprintln(os.Stderr, "probe: reading the worker's task:", err)
		return 2
	}
	var mu sync.Mutex
	enc := json.NewEncoder(stdout)
	s := newSite(t, func(l line) {
		mu.Lock()
		defer mu.Unlock()
		if enc.Encode(l) != nil {
			os.Exit(3) // the parent is gone
		}
	})
	s.work(table)
	s.say(line{End: true})
	return 0
}

// helpers are children of workers, not workers.
const (
	helperExit = "exit"
	helperHold = "hold"
)

// work makes every attempt of the class that is not yet made.
func (s *site) work(table []Check) {
	var wg sync.WaitGroup
	side := slices.Contains(concurrent, s.Class) && !s.Serial
	slots := make(chan struct{}, 64)
	for _, c := range table {
		if c.Worker != s.Class || slices.Contains(s.DoneIDs, c.ID) {
			continue
		}
		targets := []string{""}
		if c.targets != nil {
			s.say(line{Begin: &attempt{Key: Key{ID: c.ID}, Listing: true}})
			targets = dedupe(c.targets(s))
			s.say(line{Listed: c.ID})
			if len(targets) == 0 {
				f := c.none(s)
				f.ID = c.ID
				s.say(line{Found: &f})
			}
		}
		var left sync.WaitGroup
		for _, t := range targets {
			if slices.Contains(s.Done, Key{c.ID, t}) {
				continue
			}
			if !side {
				s.attempt(c, t)
				continue
			}
			wg.Add(1)
			left.Add(1)
			slots <- struct{}{}
			go func() {
				defer func() { <-slots; left.Done(); wg.Done() }()
				s.attempt(c, t)
			}()
		}
		if !side {
			s.say(line{Checked: c.ID})
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			left.Wait()
			s.say(line{Checked: c.ID})
		}()
	}
	wg.Wait()
}

// attempt makes one attempt on a thread of its own: what it does to that
// thread ends with it, and a filter that kills only the thread is noticed.
func (s *site) attempt(c Check, target string) {
	key := Key{c.ID, target}
	s.say(line{Begin: &attempt{Key: key}})
	start := time.Now()
	found := make(chan Finding, 1)
	tid := make(chan int, 1)
	go onOwnThread(func() {
		tid <- unix.Gettid()
		f := Finding{Outcome: Error, Evidence: "the probe broke"}
		defer func() {
			if r := recover(); r != nil {
				f = Finding{Outcome: Error, Evidence: oneLine(fmt.Sprintf("the probe broke: %v", r))}
			}
			found <- f
		}()
		f = c.try(s, target)
	})
	thread := <-tid
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case f := <-found:
			f.ID, f.Target = key.ID, key.Target
			f.ElapsedMS = float64(time.Since(start).Microseconds()) / 1000
			f.Evidence = oneLine(f.Evidence)
			s.say(line{Found: &f})
			return
		case <-tick.C:
			if unix.Tgkill(os.Getpid(), thread, 0) != unix.ESRCH {
				continue
			}
			select {
			case f := <-found: // it ended by itself just now
				found <- f
				continue
			default:
			}
			f := killedBySeccomp()
			f.ID, f.Target, f.Evidence = key.ID, key.Target, "the kernel killed the thread that tried it"
			s.say(line{Found: &f})
			os.Exit(4) // the runtime cannot go on without its thread
		}
	}
}

// onOwnThread runs f on a thread that ends with f, and that is not the first
// of the process: that one would be there, dead, until the process ends.
func onOwnThread(f func()) {
	runtime.LockOSThread() // and never unlocked: the thread is not used again
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() { // while this goroutine holds the first thread
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// self is how to run this program again.
func self() string {
	if _, err := os.Readlink("/proc/self/exe"); err == nil {
		return "/proc/self/exe"
	}
	if p, err := os.Executable(); err == nil {
		return p
	}
	return os.Args[0]
}
