// Package lockfile lets processes, also on different nodes that share a file
// system, do something one at a time. A lock is a file that only one of them
// can create; it says who has it, and its time of change is renewed while the
// owner lives. An owner that died blocks nobody: on the same node its process
// is gone, on another its file grows old.
//
// File locks of the kernel are not used: NFS and Lustre do not all have them.
//
// The promise is weaker than theirs. An owner that stood still for longer than
// Stale (stopped, its storage away) can lose its lock to another: Lost tells
// it. So what is done under a lock must end in one step that does no harm when
// it is done twice, such as a rename.
package lockfile

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Beat is how often an owner renews its file, Stale the age at which the file
// of an owner on another node counts for nothing. Network file systems show
// times that are up to a minute old (acregmax of nfs(5)), so it is longer.
const (
	Beat  = 5 * time.Second
	Stale = 90 * time.Second
)

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
	for {
		err := create(path, me)
		if err == nil {
			l := &Lock{path: path, me: me, stop: make(chan struct{}), lost: make(chan struct{})}
			l.done.Go(func() { l.beat(beat) })
			return l, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("locking: %w", err)
		}
		freed, owner, err := clear(path, me)
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if freed {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the lock %s of %s: %w", path, owner, context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

// Lost is closed when the lock turned out to be somebody else's.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

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
		owner, err := read(l.path)
		if errors.Is(err, fs.ErrNotExist) || (err == nil && owner.ID != l.me.ID) {
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
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	return o, err
}

// clear removes a lock whose owner is dead. Only one process does so at a
// time, the one that has the file path.break: else the second would remove
// the lock that the first has just taken.
func clear(path string, me Owner) (freed bool, owner Owner, err error) {
	dead, owner, err := isDead(path, me)
	if err != nil || !dead {
		return errors.Is(err, fs.ErrNotExist), owner, except(err, fs.ErrNotExist)
	}
	guard := path + ".break"
	if err := create(guard, me); errors.Is(err, fs.ErrExist) {
		if dead, _, err := isDead(guard, me); err == nil && dead {
			os.Remove(guard) // whoever was about to clear the lock died at it
		}
		return false, owner, nil
	} else if err != nil {
		return false, owner, err
	}
	defer os.Remove(guard)
	if dead, owner, err = isDead(path, me); err != nil || !dead {
		return errors.Is(err, fs.ErrNotExist), owner, except(err, fs.ErrNotExist)
	}
	return true, owner, except(os.Remove(path), fs.ErrNotExist)
}

func except(err, not error) error {
	if errors.Is(err, not) {
		return nil
	}
	return err
}

// isDead says whether nobody has the lock path any more.
func isDead(path string, me Owner) (bool, Owner, error) {
	owner, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, owner, err
	case err != nil: // not yet written, or its owner died before it was: only its age tells
		owner.Node = "an unknown node"
	case owner.Boot == me.Boot && owner.PIDs == me.PIDs:
		return started(owner.PID) != owner.Start, owner, nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return false, owner, err
	}
	now, err := clock(filepath.Dir(path))
	return err == nil && now.Sub(st.ModTime()) > Stale, owner, err
}

// clock is the time of the file system that dir is on: that of a file just
// made there.
func clock(dir string) (time.Time, error) {
	f, err := os.CreateTemp(dir, ".clock-")
	if err != nil {
		return time.Time{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return st.ModTime(), nil
}

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
	return Owner{rand.Text(), node, string(bytes.TrimSpace(boot)), pids, pid, started(pid)}, nil
}

// started says when a process was started, "" if there is none: the 22nd
// field of /proc/PID/stat, see proc_pid_stat(5). The second is a name in
// parentheses that can hold anything.
func started(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(data[max(0, bytes.LastIndexByte(data, ')')):]), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" { // ended, and only its parent has not noticed
		return ""
	}
	return fields[19]
}
