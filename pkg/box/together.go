package box

import (
	"context"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"fence/pkg/job"
	"fence/pkg/session"
)

// boxes are those of this process that are up: they share a disk, and where they
// are not in steps of their own, a control group. Where one takes so much that
// there is none left for the others, it is to be known which.
type boxes struct {
	mu     sync.Mutex
	up     map[*Box]bool
	groups map[string]*kills // by control group
}

// kills are those of the kernel's, for want of memory, in a control group. Which
// process it was the kernel tells to root alone; it takes the largest of those
// with the same oom_score_adj, which all in boxes have.
type kills struct {
	n       int   // that are accounted for
	largest int64 // what the last one had, as far as it was known then, in bytes
}

var together = boxes{up: map[*Box]bool{}, groups: map[string]*kills{}}

// enter is of a box in which nothing of the task's runs yet.
func (t *boxes) enter(b *Box) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.up[b] = true
	b.disk = device(b.o.Scratch)
	group, n := job.This().OOMKills(b.watched.pid)
	if b.group = group; t.groups[group] == nil {
		t.groups[group] = &kills{n: n}
	}
}

// leave is of a box of which nothing is left. What the kernel has killed when it
// was over its memory was its own.
func (t *boxes) leave(b *Box) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.up, b)
	var e *Error
	group, n := job.This().OOMKills(os.Getpid())
	if k := t.groups[group]; k != nil && group == b.group && errors.As(b.err, &e) && e.Class == "memory_limit" {
		k.n = max(k.n, n)
	}
	for other := range t.up {
		if other.group == b.group {
			return
		}
	}
	delete(t.groups, b.group)
}

// ending says that somebody here has ended the box.
func (b *Box) ending() bool { return b.life != nil && b.life.Err() != nil }

// victims says which box has lost a process, now that the kernel has killed n in
// the group of b: none, one, or all that there are if that is not to be known. At
// the end of a command of b's: before were killed when that began, its largest
// process had used bytes, and killed says that it was ended by SIGKILL itself.
// When b is looked at, before is n.
func (t *boxes) victims(b *Box, n, before int, used int64, killed bool) (found []*Box) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, largest := t.groups[b.group], used
	switch {
	case k == nil:
		return nil
	case n > before && (killed || n == k.n && used >= k.largest): // whatever another was taken for
		found = []*Box{b}
	case n <= k.n:
		return nil
	default:
		var all []*Box
		var living int64
		found = []*Box{b}
		for other := range t.up {
			if other.group != b.group || other.ending() {
				continue
			}
			all = append(all, other)
			for pid, size := range other.sizes {
				if resident(pid) > 0 {
					living = max(living, size)
				} else if size > largest {
					largest, found = size, []*Box{other}
				}
			}
		}
		if largest < living { // it was not so large when it was looked at
			if before < n || b.saw < n { // the end of a command may tell
				b.saw = n
				return nil
			}
			found = all
		}
	}
	k.n, k.largest = n, largest
	return found
}

// on are the boxes whose scratch is on a disk.
func (t *boxes) on(disk uint64) (all []*Box) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for b := range t.up {
		if b.disk == disk {
			all = append(all, b)
		}
	}
	return all
}

// Settle waits, where the disk of a folder is full, until all boxes that have
// been ended there are gone, so that a try of a trial does not fail by what
// another has left.
func Settle(ctx context.Context, dir string) {
	if tooFull(dir) == nil {
		return
	}
	for _, b := range together.on(device(dir)) {
		if b.ending() {
			select {
			case <-b.gone:
			case <-ctx.Done():
			}
		}
	}
}

// device is the disk that a folder is on, 0 if there is none.
func device(dir string) uint64 {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return 0
	}
	return st.Dev
}

// looked notes what the processes of a box have now.
func (t *boxes) looked(b *Box, sizes map[int]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.sizes = sizes
}

// kills is how many processes the kernel has killed in the box's control group.
func (b *Box) kills() int {
	_, n := job.This().OOMKills(b.watched.pid)
	return n
}

// outOfMemory ends whatever box has lost a process, as the kernel has killed one
// for want of memory: see boxes.victims.
func (b *Box) outOfMemory(n, before int, exit session.Exit) {
	for _, v := range together.victims(b, n, before, exit.MaxRSSKB<<10, killed(exit)) {
		if l := v.o.Limits.Memory; v.o.Step != nil || l > 0 && v.Usage().MemoryBytes > l {
			v.kill(limit("memory_limit", "the kernel ended a process, as the container is beyond its memory"))
			continue
		}
		v.kill(&Error{
			Class: "memory_limit", Cause: "unknown", Message: "the node or the job has no memory left, and the kernel ended a process, most likely of this container",
			Hint: "fewer at once (-n), a --memory that all of them can have, or a job with more (sbatch --mem)",
		})
	}
}
