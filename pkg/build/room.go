package build

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/job"
)

// Least is what has to be free before one build more begins: bytes of the disks
// of scratch and of the cache, and bytes of memory. 0 asks for nothing. A build
// that would be alone begins with a part of it (see alone), for waiting would
// change nothing.
type Least struct{ Disk, Memory int64 }

// alone is which part of Least a build has to have that would be the only one.
const alone = 64

// leastFiles is how many files a disk has to take before one build more begins,
// where its file system counts them.
const leastFiles = 10_000

// young is how long a build counts as one that has not yet taken what it will.
const young = 30 * time.Second

// NoRoom is a build that was not begun.
type NoRoom struct {
	Class string // "disk" or "memory"
	Text  string
}

func (e *NoRoom) Error() string { return e.Text }

// room lets builds begin while the node has what they need.
type room struct {
	least Least
	say   func(string)
	dirs  []string
	free  func(dirs []string) ([]free, error)

	mu      sync.Mutex
	running map[*time.Time]bool // by when each began
	left    chan struct{}       // closed when one ends
	said    time.Time
}

// free is how much there is of something.
type free struct {
	class string // "disk" or "memory"
	what  string // for people: "the disk of /scratch"
	bytes int64
	files int64 // -1: they are not counted
}

func newRoom(least Least, say func(string), dirs ...string) *room {
	return &room{least: least, say: say, dirs: dirs, free: nodeFree, running: map[*time.Time]bool{}, left: make(chan struct{})}
}

// enter waits until there is room for one more build, and counts it until leave
// is called. If no build is running, it does not wait but fails.
func (r *room) enter(ctx context.Context) (leave func(), err error) {
	for {
		now := time.Now()
		r.mu.Lock()
		recent := 0
		for began := range r.running {
			if now.Sub(*began) < young {
				recent++
			}
		}
		have, err := r.free(r.dirs)
		if err != nil {
			r.mu.Unlock()
			return nil, err
		}
		short := short(have, r.least, len(r.running), recent)
		if short == nil {
			r.running[&now] = true
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				delete(r.running, &now)
				close(r.left)
				r.left = make(chan struct{})
			}, nil
		}
		others, left := len(r.running), r.left
		tell := others > 0 && now.Sub(r.said) > time.Minute
		if tell {
			r.said = now
		}
		r.mu.Unlock()
		if others == 0 {
			return nil, short
		}
		if tell {
			r.say(fmt.Sprintf("no further build begins for now: %s (%d running)", short.Text, others))
		}
		select {
		case <-left:
		case <-time.After(5 * time.Second): // others may have given something back
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// short says what there is not enough of for one more build, beside those that
// run, of which some have not yet taken what they will; nil if there is enough.
func short(have []free, least Least, running, recent int) *NoRoom {
	for _, f := range have {
		need, nodes := least.Disk, int64(leastFiles)
		if f.class == "memory" {
			need = least.Memory
		}
		if need == 0 {
			continue
		}
		if running == 0 {
			need, nodes = need/alone, nodes/alone
		} else {
			need *= int64(1 + recent)
		}
		switch {
		case f.bytes < need:
			return &NoRoom{f.class, fmt.Sprintf("%s has %s left, and a build is begun with %s (--min-%s)", f.what, mib(f.bytes), mib(need), f.class)}
		case f.files >= 0 && f.files < nodes:
			return &NoRoom{f.class, fmt.Sprintf("%s takes %d files more, and a build is begun with %d (--min-%s 0 leaves that out)", f.what, f.files, nodes, f.class)}
		}
	}
	return nil
}

func mib(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// nodeFree is what this node has, for builds in those folders.
func nodeFree(dirs []string) (all []free, err error) {
	for _, dir := range dirs {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return nil, fmt.Errorf("asking how full the disk of %s is: %w", dir, err)
		}
		f := free{"disk", "the disk of " + dir, int64(st.Bavail) * st.Bsize, int64(st.Ffree)}
		if st.Files == 0 {
			f.files = -1 // btrfs, some network file systems
		}
		all = append(all, f)
	}
	m := job.This().Memory()
	return append(all, free{"memory", m.Of, m.Bytes, -1}), nil
}

// slots are so many at a time, in the order of asking.
type slots chan struct{}

func (s slots) take(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	default:
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slots) give() { <-s }

// without does something that is not work, and gives the caller's slot to others
// if that takes longer than a moment. The caller has one again afterwards.
func (s slots) without(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Second):
	}
	s.give()
	err := <-done
	s <- struct{}{}
	return err
}
