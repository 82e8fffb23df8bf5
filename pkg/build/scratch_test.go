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
	living, err := newScratch(parent)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newScratch(parent)
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
	dead.lock.Close() // as the kernel does when the process ends
	for _, other := range []string{"sifbuild", "other-sifbuild-1", scratchPrefix + "file"} {
		if err := os.WriteFile(filepath.Join(parent, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	again, err := newScratch(parent)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]bool{
		living.dir: true, again.dir: true, dead.dir: false,
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
	if _, err := newScratch(filepath.Join(parent, "none")); err == nil {
		t.Error("a scratch folder in a folder that is not there")
	}
}
