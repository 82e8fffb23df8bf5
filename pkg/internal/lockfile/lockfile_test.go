package lockfile

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/bed"
)

const soon = time.Millisecond

// TestMain: the test binary is also the owner that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("LOCKFILE_HOLD"); path != "" {
		if _, err := Acquire(context.Background(), path); err != nil {
			panic(err)
		}
		os.Stdout.WriteString("held\n")
		select {}
	}
	os.Exit(m.Run())
}

func TestAcquire_OneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside, rounds int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				l, err := acquire(t.Context(), path, soon, Beat)
				if err != nil {
					t.Error(err)
					return
				}
				if inside++; inside != 1 {
					t.Errorf("%d owners", inside)
				}
				rounds++
				inside--
				l.Release()
				l.Release()
			}
		})
	}
	wg.Wait()
	if rounds != 160 {
		t.Errorf("%d rounds", rounds)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// ended is a context that gives one look at the lock.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// holder starts a process that takes the lock path and says so on out.
func holder(t *testing.T) (path string, cmd *exec.Cmd, out io.Reader) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lock")
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "LOCKFILE_HOLD="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return path, cmd, out
}

func TestAcquire_KilledOwner(t *testing.T) {
	path, cmd, out := holder(t)
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(ended(t), path); err == nil || !strings.Contains(err.Error(), "of process ") {
		t.Errorf("beside a living owner: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = out.Read(make([]byte, 5)) // ends when it is dead; it is not waited for yet: a zombie
	l, err := Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	_ = cmd.Wait()
}

// An owner on this node that is stopped (Ctrl-Z) blocks nobody for longer than
// one on another node whose file does not change; one that goes on has its lock.
func TestWaiter_StoppedOwner(t *testing.T) {
	path, cmd, out := holder(t)
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	signal := func(sig syscall.Signal, option int) {
		t.Helper()
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		var ws unix.WaitStatus
		if _, err := unix.Wait4(cmd.Process.Pid, &ws, option, nil); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	w := newWaiter(path, me)
	w.lock.now = func() time.Time { return now }
	look := func(what string, want bool) {
		t.Helper()
		if dead, _, err := w.lock.dead(); dead != want || err != nil {
			t.Errorf("%s: dead %t, %v", what, dead, err)
		}
	}
	look("running", false)
	now = now.Add(Stale)
	look("running, for long", false)
	signal(syscall.SIGSTOP, unix.WUNTRACED)
	w.lock.seen = state{} // as if its last renewal was only now seen
	look("stopped just now", false)
	now = now.Add(Stale)
	look("stopped, for long", true)
	if !Held(path) {
		t.Error("GC would take what it needs")
	}
	w = newWaiter(path, me)
	w.lock.now = func() time.Time { return now }
	look("stopped, first look", false)
	now = now.Add(Stale)
	signal(syscall.SIGCONT, unix.WCONTINUED)
	look("going on", false)
}

// elsewhere is an owner on another node.
func elsewhere(t *testing.T, id string) Owner {
	t.Helper()
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	return Owner{ID: id, Node: "elsewhere", Boot: filepath.Dir(t.TempDir()), PIDs: me.PIDs, PID: me.PID, Start: me.Start}
}

func write(t *testing.T, path string, o Owner) {
	t.Helper()
	os.Remove(path)
	if err := create(path, o); err != nil {
		t.Fatal(err)
	}
}

// An owner on another node lives while its file changes, whatever the clocks
// say; this waiter's own tells how long it has not.
func TestWaiter_OtherNode(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		clock  time.Duration // of the other node, ahead of ours
		change time.Duration // each so often; 0: never
		after  time.Duration // of waiting, as the watched clock goes
		free   bool
	}{
		{name: "renewed", change: Beat, after: time.Hour},
		{name: "renewed, its clock is behind", clock: -skew / 2, change: Beat, after: time.Hour},
		{name: "renewed, its clock is ahead", clock: skew / 2, change: Beat, after: time.Hour},
		{name: "renewed, and seen a minute late", change: time.Minute + Beat, after: time.Hour},
		{name: "not yet long enough", after: Stale - time.Second},
		{name: "dead", after: Stale, free: true},
		{name: "dead, its clock is ahead", clock: skew / 2, after: Stale, free: true},
		{name: "dead, its clock is behind", clock: -skew / 2, after: Stale, free: true},
		{name: "dead for long", clock: -skew - Stale, free: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lock")
			write(t, path, elsewhere(t, "x"))
			begin := time.Now()
			now := begin
			touch := func() {
				at := now.Add(c.clock)
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
			}
			touch()
			w := newWaiter(path, me)
			w.lock.now = func() time.Time { return now }
			for last := begin; ; now = now.Add(time.Second) {
				if c.change > 0 && now.Sub(last) >= c.change {
					touch()
					last = now
				}
				l, owner, err := w.try(Beat)
				if err != nil {
					t.Fatal(err)
				}
				if l != nil {
					l.Release()
				}
				waited := now.Sub(begin)
				if free := l != nil; free != (c.free && waited >= c.after) {
					t.Fatalf("after %v: taken %t, of %v", waited, free, owner)
				} else if free || waited >= c.after {
					return
				}
			}
		})
	}
}

// A process that was found dead at one lock is dead at all that it had, but not
// at one that it has renewed since.
func TestWaiter_OtherLocksOfTheDead(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	dir, now := t.TempDir(), time.Now()
	of := func(name string, pid int, heard time.Duration) *waiter {
		o := elsewhere(t, name)
		o.PID = pid
		path := filepath.Join(dir, name)
		write(t, path, o)
		at := now.Add(heard)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return newWaiter(path, me)
	}
	taken := func(w *waiter) bool {
		l, _, err := w.try(Beat)
		if err != nil {
			t.Fatal(err)
		}
		if l != nil {
			l.Release()
		}
		return l != nil
	}
	first, second, renewed, another := of("first", 1<<22+1, 0), of("second", 1<<22+1, -Beat), of("renewed", 1<<22+1, Stale), of("another", 1<<22+2, 0)
	if taken(second) {
		t.Error("taken from one that is not known to be dead")
	}
	first.lock.now = func() time.Time { return now }
	if taken(first) {
		t.Error("taken at once")
	}
	now = now.Add(Stale)
	for _, c := range []struct {
		w    *waiter
		want bool
	}{{first, true}, {second, true}, {renewed, false}, {another, false}} {
		if got := taken(c.w); got != c.want {
			t.Errorf("%s: taken %t", c.w.lock.path, got)
		}
	}
}

// A file that says nothing may be one that is just being written, and a number
// of this node may be another process's by now.
func TestTry_OddFiles(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	recycled := me
	recycled.Start = "1"
	text, err := json.Marshal(recycled)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		text []byte
		age  time.Duration
		free bool
	}{
		{"empty, new", nil, 0, false},
		{"empty, old", nil, Stale + skew, true},
		{"half written, new", text[:len(text)/2], 0, false},
		{"this node, the number is another process's now", text, 0, true},
	} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, c.text, 0o644); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-c.age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		if held := Held(path); held == c.free {
			t.Errorf("%s: held %t", c.name, held)
		}
		l, _, err := Try(path)
		if err != nil || (l != nil) != c.free {
			t.Errorf("%s: taken %t, %v", c.name, l != nil, err)
		}
		if l != nil {
			l.Release()
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); l != nil && len(left) > 0 {
			t.Errorf("%s: left: %v", c.name, left)
		}
	}
}

// What nobody can have made as a lock ends a wait like an owner that died: it is
// no reason to wait for ever.
func TestWaiter_Strange(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	nameless := me
	nameless.Node, nameless.PID, nameless.Start = t.TempDir(), 1<<30, ""
	for name, make := range map[string]func(path string) error{
		"a link that leads nowhere": func(path string) error { return os.Symlink("nowhere", path) },
		"a FIFO":                    func(path string) error { return unix.Mkfifo(path, 0o644) },
		"an owner without a start":  func(path string) error { write(t, path, nameless); return nil },
	} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		w := newWaiter(path, me)
		w.lock.now = func() time.Time { return now }
		if l, _, err := w.try(Beat); l != nil || err != nil {
			t.Errorf("%s: taken %t at once, %v", name, l != nil, err)
		}
		now = now.Add(Stale)
		l, _, err := w.try(Beat)
		if l == nil || err != nil {
			t.Errorf("%s: not taken, %v", name, err)
			continue
		}
		l.Release()
	}
}

// A waiter that saw a dead owner's lock does not remove the living one's that
// has taken its place since, nor that of one who was only slow.
func TestClear_WhatIsThereNow(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(path string){
		"another owner": func(path string) { write(t, path, elsewhere(t, "y")) },
		"renewed":       func(path string) { os.Chtimes(path, time.Now(), time.Now()) },
		"nothing":       nil,
	} {
		path := filepath.Join(t.TempDir(), "lock")
		write(t, path, elsewhere(t, "x"))
		old := time.Now().Add(-Stale - skew)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		w := newWaiter(path, me)
		if dead, _, err := w.lock.dead(); !dead || err != nil {
			t.Fatalf("%s: %t, %v", name, dead, err)
		}
		if change != nil {
			change(path)
		}
		freed, _, err := w.clear()
		if freed != (change == nil) || err != nil {
			t.Errorf("%s: cleared %t, %v", name, freed, err)
		}
		if _, err := os.Lstat(path); (err != nil) != (change == nil) {
			t.Errorf("%s: the lock: %v", name, err)
		}
	}
}

// A node that shows what was there half a minute ago takes no lock from an owner
// that has just taken it from a dead one.
func TestClear_StaleAttributes(t *testing.T) {
	bed.Require(t, "stale")
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.MkdirTemp(bed.StaleDir("a"), "lock-")
	if err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(bed.StaleDir("b"), filepath.Base(here))
	t.Cleanup(func() { os.RemoveAll(here) })
	write(t, here+"/lock", elsewhere(t, "x"))
	old := time.Now().Add(-Stale - skew)
	if err := os.Chtimes(here+"/lock", old, old); err != nil {
		t.Fatal(err)
	}
	w := newWaiter(there+"/lock", me)
	if dead, _, err := w.lock.dead(); !dead || err != nil {
		t.Fatalf("the dead owner: %t, %v", dead, err)
	}
	// The first node clears the lock away, and somebody there takes it.
	taken, _, err := Try(here + "/lock")
	if err != nil || taken == nil {
		t.Fatalf("taking it on the other side: %v", err)
	}
	defer taken.Release()
	if st, err := os.Stat(there + "/lock"); err != nil || !st.ModTime().Equal(time.Unix(0, w.lock.seen.mtime)) {
		t.Fatalf("the control: this side shows the new time already (%v)", err)
	}
	// As a waiter that found it dead before, and has the guard only now.
	if now, err := fresh(there+"/lock", me); err != nil || now == w.lock.seen || now.id != taken.me.ID {
		t.Errorf("a new look shows %v, %v; the dead owner's was %v", now, err, w.lock.seen)
	}
	if l, owner, err := w.try(Beat); l != nil || err != nil {
		t.Errorf("taken from %v: %v", owner, err)
	}
	if owner, err := read(here + "/lock"); err != nil || owner.ID != taken.me.ID {
		t.Errorf("the lock is %v's now: %v", owner, err)
	}
}

// Nobody removes a lock while another is about to, unless that one died at it.
func TestClear_Guarded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	gone := me
	gone.Start = "1"
	for guard, want := range map[*Owner]bool{&me: false, &gone: true} {
		write(t, path, gone)
		write(t, path+".break", *guard)
		w := newWaiter(path, me)
		first, _, err := w.clear()
		if first || err != nil {
			t.Errorf("cleared beside a guard: %v, %v", first, err)
		}
		if second, _, err := w.clear(); second != want || err != nil {
			t.Errorf("the second look: %v, %v, not %v", second, err, want)
		}
		os.Remove(path)
		os.Remove(path + ".break")
	}
}

func TestLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := acquire(t.Context(), path, soon, soon)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	for st, err := os.Stat(path); ; st, err = os.Stat(path) { // renewed
		if err != nil {
			t.Fatal(err)
		}
		if st.ModTime().After(old.Add(time.Minute)) {
			break
		}
	}
	other := l.me
	other.ID = "another"
	data, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
	<-l.Lost()
	l.Release()
	if owner, err := read(path); err != nil || owner.ID != "another" {
		t.Errorf("the other's lock: %v, %v", owner, err)
	}
}

func TestAcquire_NoFolder(t *testing.T) {
	if _, err := Acquire(t.Context(), filepath.Join(t.TempDir(), "none", "lock")); err == nil || !strings.Contains(err.Error(), "none/lock: no such file") {
		t.Error(err)
	}
}
