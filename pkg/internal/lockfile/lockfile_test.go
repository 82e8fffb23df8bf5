package lockfile

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
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

func TestAcquire_KilledOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "LOCKFILE_HOLD="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

// An owner on another node counts by the age of its file, against the file
// system's clock.
func TestAcquire_OtherNode(t *testing.T) {
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	other := Owner{ID: "x", Node: "elsewhere", Boot: "another", PIDs: me.PIDs, PID: me.PID, Start: me.Start}
	text, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	reused := me
	reused.Start = "1"
	recycled, err := json.Marshal(reused)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		text []byte
		age  time.Duration
		free bool
	}{
		{"renewed", text, Stale - 20*time.Second, false},
		{"old", text, Stale + 20*time.Second, true},
		{"empty, new", nil, 0, false},
		{"empty, old", nil, Stale + 20*time.Second, true},
		{"this node, the number is another process's now", recycled, 0, true},
	} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, c.text, 0o644); err != nil {
			t.Fatal(err)
		}
		now, err := clock(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now, now.Add(-c.age)); err != nil {
			t.Fatal(err)
		}
		l, err := Acquire(ended(t), path)
		if (err == nil) != c.free {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			l.Release()
		}
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
		for p, o := range map[string]Owner{path: gone, path + ".break": *guard} {
			if err := create(p, o); err != nil {
				t.Fatal(err)
			}
		}
		first, _, err := clear(path, me)
		if first || err != nil {
			t.Errorf("cleared beside a guard: %v, %v", first, err)
		}
		if second, _, err := clear(path, me); second != want || err != nil {
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
