package scratch

import (
	"os"
	"path/filepath"
	"testing"
)

const prefix = "sifbuild-"

// What a process that is gone left is removed, whatever the modes; what a
// living one works in, and what is not ours, stays.
func TestScratch(t *testing.T) {
	parent := t.TempDir()
	living, err := New(parent, prefix)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := New(parent, prefix)
	if err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dead.Path, "layers/closed")
	if err := os.MkdirAll(filepath.Join(closed, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	dead.lock.Close()                              // as the kernel does when the process ends
	empty := filepath.Join(parent, prefix+"empty") // killed before there was a lock, or after
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"sifbuild", "other-sifbuild-1", prefix + "file"} {
		if err := os.WriteFile(filepath.Join(parent, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	again, err := New(parent, prefix)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		living.Path: true, again.Path: true, dead.Path: false, empty: false,
		filepath.Join(parent, "sifbuild"): true, filepath.Join(parent, "other-sifbuild-1"): true, filepath.Join(parent, prefix+"file"): true,
	} {
		if _, err := os.Lstat(p); (err == nil) != want {
			t.Errorf("%s: there is %t, want %t", p, err == nil, want)
		}
	}
	info, err := os.Stat(again.Path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others get into the scratch folder: %v", info.Mode())
	}
	for _, s := range []*Dir{living, again} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(s.Path); err == nil {
			t.Errorf("%s is left", s.Path)
		}
	}
	if _, err := New(filepath.Join(parent, "none"), prefix); err == nil {
		t.Error("a scratch folder in a folder that is not there")
	}
}

// A new scratch folder that another process takes for a dead one's is not used.
func TestScratch_SweptWhenNew(t *testing.T) {
	for name, sweepIt := range map[string]func(dir string) *os.File{
		"before the lock was made": func(dir string) *os.File { os.Remove(dir); return nil },
		"after the lock was made": func(dir string) *os.File {
			s, err := take(dir)
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
		if s, err := take(dir); s != nil || err != nil {
			t.Errorf("swept %s: %v, %v", name, s, err)
		}
		lock.Close()
	}
}

// A scratch folder that was being removed when its process was killed is known
// to be one: its lock is there until the rest is gone.
func TestScratch_LockGoesLast(t *testing.T) {
	parent := t.TempDir()
	s, err := New(parent, prefix)
	if err != nil {
		t.Fatal(err)
	}
	// A removal that does not get through.
	if err := os.Remove(filepath.Join(s.Path, "lock")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.Path, "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Path, "lock", "in the way"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err == nil {
		t.Error("no error")
	}
	entries, err := os.ReadDir(s.Path)
	if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("left: %v, %v", entries, err)
	}
}
