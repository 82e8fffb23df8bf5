// Package lockfile lets processes, also on different nodes that share a file
// system, do something one at a time. A lock is a file that only one of them
// can create; it says who has it, and its time of change is renewed while the
// owner lives. An owner that died blocks nobody: on the same node its process
// is gone, on another its file changes no more.
//
// File locks of the kernel are not used: NFS and Lustre do not all have them.
// Clocks are not compared: a waiter counts, by its own clock, how long the file
// has been as it is. Nor is what a node remembers of a file believed when a lock
// is taken from its owner: the file is looked at under a name that is new.
//
// The promise is weaker than that of a kernel's lock. An owner that stood still
// for longer than Stale (stopped, its storage away) can lose its lock to
// another: Lost tells it. So what is done under a lock must end in one step that
// does no harm when it is done twice, such as a rename.
package lockfile

import (
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/readfile"
)

// Beat is how often an owner renews its file, Stale how long a waiter on another
// node sees no change before the lock counts for nothing. Network file systems
// show times that are up to a minute old (acregmax of nfs(5)), so it is longer.
const (
	Beat  = 5 * time.Second
	Stale = 90 * time.Second
)

// skew is how far apart the clocks of two nodes are at most; munge(7) refuses
// five minutes. What is older than that and Stale needs nobody to watch it.
const skew = 10 * time.Minute

// Owner is what a lock's file says.
type Owner struct {
	ID    string `json:"id"`    // of this acquisition, random
	Node  string `json:"node"`  // name, for people
	Boot  string `json:"boot"`  // which start of which kernel
	PIDs  string `json:"pids"`  // which pid namespace PID is a number in
	PID   int    `json:"pid"`   // process
	Start string `json:"start"` // when it was started, in clock ticks since boot
}

func (o Owner) String() string { return fmt.Sprintf("process %d on %s", o.PID, o.Node) }

// Lock is a lock that is held.
type Lock struct {
	path string
	me   Owner
	stop chan struct{}
	lost chan struct{}
	done sync.WaitGroup
	once sync.Once
}

// Acquire waits until the lock path is this process's, or until ctx ends. The
// folder has to exist.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	return acquire(ctx, path, time.Second, Beat)
}

func acquire(ctx context.Context, path string, poll, beat time.Duration) (*Lock, error) {
	me, err := self()
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	w := newWaiter(path, me)
	for {
		l, owner, err := w.try(beat)
		if err != nil || l != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the lock %s of %s: %w", path, owner, context.Cause(ctx))
		case <-time.After(poll + rand.N(poll/4)):
		}
	}
}

// Try takes the lock path if nobody has it; else the lock is nil, and the owner
// who has.
func Try(path string) (*Lock, Owner, error) {
	me, err := self()
	if err != nil {
		return nil, me, fmt.Errorf("locking %s: %w", path, err)
	}
	return newWaiter(path, me).try(Beat)
}

// Held says whether a living process has the lock path, also where that cannot
// be told. A process on another node that died some minutes ago counts as living.
func Held(path string) bool {
	me, err := self()
	if err != nil {
		return true
	}
	dead, _, err := (&watch{path: path, me: me, now: time.Now}).dead()
	return !errors.Is(err, fs.ErrNotExist) && !dead
}

// Lost is closed when the lock turned out to be somebody else's.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Taken looks whether the lock is somebody else's, which Lost tells a beat later.
func (l *Lock) Taken() bool {
	owner, err := read(l.path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && owner.ID != l.me.ID
}

// Release gives the lock up. Calling it again does nothing.
func (l *Lock) Release() {
	l.once.Do(func() {
		close(l.stop)
		l.done.Wait()
		if owner, err := read(l.path); err == nil && owner.ID == l.me.ID {
			os.Remove(l.path)
		}
	})
}

func (l *Lock) beat(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		if l.Taken() {
			close(l.lost)
			return
		}
		// The file's time is the file server's, not this node's.
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, l.path, []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}, 0)
	}
}

// create makes the lock's file, which must not be there.
func create(path string, me Owner) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	data, err := json.Marshal(me)
	if err == nil {
		_, err = f.Write(data)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path)
	}
	return err
}

func read(path string) (Owner, error) {
	var o Owner
	data, err := readfile.Regular(path, 64<<10)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	return o, err
}

// waiter is a process that wants a lock, with what it has seen of it so far.
type waiter struct {
	lock, guard watch
}

func newWaiter(path string, me Owner) *waiter {
	return &waiter{watch{path: path, me: me, now: time.Now}, watch{path: path + ".break", me: me, now: time.Now}}
}

// try takes the lock if it is free, or its owner dead.
func (w *waiter) try(beat time.Duration) (*Lock, Owner, error) {
	path, me := w.lock.path, w.lock.me
	var owner Owner
	for range 2 { // the second time, one that is gone was cleared away
		err := create(path, me)
		if err == nil {
			l := &Lock{path: path, me: me, stop: make(chan struct{}), lost: make(chan struct{})}
			l.done.Go(func() { l.beat(beat) })
			return l, me, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, owner, fmt.Errorf("locking: %w", err)
		}
		var freed bool
		if freed, owner, err = w.clear(); err != nil {
			return nil, owner, fmt.Errorf("locking %s: %w", path, err)
		}
		if !freed {
			break
		}
	}
	return nil, owner, nil
}

// clear removes a lock whose owner is dead. Only one process does so at a
// time, the one that has the file path.break: else the second would remove
// the lock that the first has just taken.
func (w *waiter) clear() (freed bool, owner Owner, err error) {
	dead, owner, err := w.lock.dead()
	if err != nil || !dead {
		return errors.Is(err, fs.ErrNotExist), owner, except(err, fs.ErrNotExist)
	}
	if err := create(w.guard.path, w.guard.me); errors.Is(err, fs.ErrExist) {
		if dead, _, err := w.guard.dead(); err == nil && dead {
			os.Remove(w.guard.path) // whoever was about to clear the lock died at it
		}
		return false, owner, nil
	} else if err != nil {
		return false, owner, err
	}
	defer os.Remove(w.guard.path)
	now, err := fresh(w.lock.path, w.lock.me)
	if err != nil || now != w.lock.seen {
		return errors.Is(err, fs.ErrNotExist), owner, except(err, fs.ErrNotExist)
	}
	return true, owner, except(os.Remove(w.lock.path), fs.ErrNotExist)
}

func except(err, not error) error {
	if errors.Is(err, not) {
		return nil
	}
	return err
}

// state is what a living owner changes.
type state struct {
	id    string
	mtime int64 // nanoseconds, of whatever clock
}

// look reads a lock's file. One that says nothing is not yet written, or its
// owner died before it was: its time of change is all there is.
func look(path string) (Owner, state, error) {
	owner, err := read(path)
	stat := os.Stat
	if errors.Is(err, fs.ErrNotExist) {
		stat = os.Lstat // a link that leads nowhere keeps the name from everybody, too
	}
	if err != nil {
		owner = Owner{Node: "an unknown node"}
	}
	st, err := stat(path)
	if err != nil {
		return owner, state{}, err
	}
	return owner, state{owner.ID, st.ModTime().UnixNano()}, nil
}

// fresh is look past what this node remembers of names and attributes (bindfs
// and NFS with caches, for half a minute and more): by a name that is new.
func fresh(path string, me Owner) (state, error) {
	name := path + ".look-" + me.ID
	if err := os.Link(path, name); errors.Is(err, fs.ErrNotExist) {
		return state{}, err
	} else if err != nil {
		name = path // a file system without hard links
	} else {
		defer os.Remove(name)
	}
	_, now, err := look(name)
	return now, err
}

// watch is what a waiter has seen of a file, and since when that is so.
type watch struct {
	path  string
	me    Owner
	now   func() time.Time
	seen  state
	since time.Time // by this process's clock
}

// dead says whether nobody has the lock any more, as far as can be seen.
func (w *watch) dead() (bool, Owner, error) {
	owner, s, err := look(w.path)
	if err != nil {
		return false, owner, err
	}
	now := w.now()
	if s != w.seen || w.since.IsZero() {
		w.seen, w.since = s, now
	}
	if owner.ID != "" && owner.Start != "" && owner.Boot == w.me.Boot && owner.PIDs == w.me.PIDs {
		start, stopped := started(owner.PID)
		return start != owner.Start || stopped && now.Sub(w.since) >= Stale, owner, nil
	}
	who := owner
	who.ID = ""
	if now.Sub(w.since) >= Stale || now.Sub(time.Unix(0, s.mtime)) >= Stale+skew {
		deadOnes.Store(who, s.mtime)
		return true, owner, nil
	}
	// What a process had that is known to be dead needs no watching of its own,
	// as long as it has not been renewed since.
	last, ok := deadOnes.Load(who)
	return ok && owner.ID != "" && s.mtime <= last.(int64)+int64(3*Beat), owner, nil
}

// deadOnes are processes of other nodes that were found dead (Owner without ID),
// with when they were last heard of (int64, as of state).
var deadOnes sync.Map

func self() (Owner, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Owner{}, err
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return Owner{}, err
	}
	node, err := os.Hostname()
	if err != nil {
		return Owner{}, err
	}
	pid := os.Getpid()
	start, _ := started(pid)
	return Owner{cryptorand.Text(), node, string(bytes.TrimSpace(boot)), pids, pid, start}, nil
}

// started says when a process was started, "" if there is none: the 22nd
// field of /proc/PID/stat, see proc_pid_stat(5). The second is a name in
// parentheses that can hold anything. stopped is one that a signal has stopped,
// such as Ctrl-Z.
func started(pid int) (start string, stopped bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", false
	}
	_, rest, _ := strings.Cut(string(data[max(0, bytes.LastIndexByte(data, ')')):]), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" { // ended, and only its parent has not noticed
		return "", false
	}
	return fields[19], fields[0] == "T"
}
