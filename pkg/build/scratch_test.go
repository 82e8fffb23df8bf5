package build

import (
	"os"
	"path/filepath"
	"testing"

	"fence/pkg/step"
)

func TestMain(m *testing.M) {
	step.Main()
	os.Exit(m.Run())
}

// What a process that is gone left is removed, whatever the modes; what a
// living one works in, and what is not ours, stays.
func TestScratch(t *testing.T) {
	parent := t.TempDir()
	living, err := newScratch(parent, "")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newScratch(parent, "")
	if err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dead.dir, "layers/closed")
	if err := os.MkdirAll(filepath.Join(closed, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	dead.lock.Close()                                     // as the kernel does when the process ends
	empty := filepath.Join(parent, scratchPrefix+"empty") // killed before there was a lock, or after
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"sifbuild", "other-sifbuild-1", scratchPrefix + "file"} {
		if err := os.WriteFile(filepath.Join(parent, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	again, err := newScratch(parent, "")
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		living.dir: true, again.dir: true, dead.dir: false, empty: false,
		filepath.Join(parent, "sifbuild"): true, filepath.Join(parent, "other-sifbuild-1"): true, filepath.Join(parent, scratchPrefix+"file"): true,
	} {
		if _, err := os.Lstat(p); (err == nil) != want {
			t.Errorf("%s: there is %t, want %t", p, err == nil, want)
		}
	}
	info, err := os.Stat(again.dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others get into the scratch folder: %v", info.Mode())
	}
	for _, s := range []*scratch{living, again} {
		if err := s.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(s.dir); err == nil {
			t.Errorf("%s is left", s.dir)
		}
	}
	if _, err := newScratch(filepath.Join(parent, "none"), ""); err == nil {
		t.Error("a scratch folder in a folder that is not there")
	}
}

// A new scratch folder that another process takes for a dead one's is not used.
func TestScratch_SweptWhenNew(t *testing.T) {
	for name, sweepIt := range map[string]func(dir string) *os.File{
		"before the lock was made": func(dir string) *os.File { os.Remove(dir); return nil },
		"after the lock was made": func(dir string) *os.File {
			s, err := lockScratch(dir)
			if err != nil || s == nil {
				t.Fatalf("a folder that nobody has: %v, %v", s, err)
			}
			return s.lock
		},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		lock := sweepIt(dir)
		if s, err := lockScratch(dir); s != nil || err != nil {
			t.Errorf("swept %s: %v, %v", name, s, err)
		}
		lock.Close()
	}
}

// A scratch folder that was being removed when its process was killed is known
// to be one: its lock is there until the rest is gone.
func TestScratch_LockGoesLast(t *testing.T) {
	parent := t.TempDir()
	s, err := newScratch(parent, "")
	if err != nil {
		t.Fatal(err)
	}
	// A removal that does not get through.
	if err := os.Remove(filepath.Join(s.dir, "lock")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "lock", "in the way"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err == nil {
		t.Error("no error")
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("left: %v, %v", entries, err)
	}
}
