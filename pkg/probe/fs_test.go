package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

// TestTryNamed: most network filesystems have no nameless files, so what the
// kernel says before that must do, or the operator's leave to make a name.
func TestTryNamed(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) {
		mine, err := os.MkdirTemp("", "probe-named-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(mine)
		for _, c := range []struct {
			name string
			t    task
			dir  string
			want Outcome
			mech string
		}{
			{"no Landlock", task{}, mine, Reachable, ""},
			{"somebody else's folder", task{}, "/usr", Denied, "dac"},
			{"a ruleset that might refuse later", task{Controls: Controls{Landlock: LandlockState{Layers: 1}}}, mine, Skipped, ""},
			{"a ruleset that could not be counted", task{Controls: Controls{Landlock: LandlockState{Layers: -1}}}, mine, Skipped, ""},
			{"a name is allowed", task{WriteTest: true, Controls: Controls{Landlock: LandlockState{Layers: 1}}}, mine, Reachable, ""},
			{"a name is allowed, elsewhere", task{WriteTest: true}, "/usr", Denied, "dac"},
		} {
			f := newSite(c.t, nil).tryNamed(c.dir, "EOPNOTSUPP")
			if f.Outcome != c.want || f.Mechanism != c.mech {
				t.Errorf("%s: %s %s: %s", c.name, f.Outcome, f.Mechanism, f.Evidence)
			}
		}
		if left, err := os.ReadDir(mine); err != nil || len(left) != 0 {
			t.Errorf("%d files were left, %v", len(left), err)
		}
	})
}

func TestWorkTmux_LeavesNothing(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		sandboxtest.Skip(t, "tmux is not installed")
	}
	p := newPlace(t)
	tmp := filepath.Join(p.task, "tmp")
	mkdir(t, tmp)
	r, _ := inside{spec: subjectSpec{Options: Options{WriteTest: true}}, env: []string{"TMPDIR=" + tmp}, dir: p.task}.report(t, p.prog)
	want(t, r, "work.tmux reachable")
	// The server takes its socket with it when it has said goodbye.
	for end := time.Now().Add(10 * time.Second); ; unix.Poll(nil, 10) {
		left, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s was left", left[0].Name())
		}
	}
	r, _ = inside{env: []string{"TMPDIR=" + tmp}, dir: p.task}.report(t, p.prog)
	want(t, r, "work.tmux skipped", "fs.task.write["+tmp+"] reachable")
}

// TestShared_AFileIsPathEnough: --shared may name a file, and a link.
func TestShared_AFileIsPathEnough(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "f"), filepath.Join(dir, "l")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	s := newSite(task{}, nil)
	for _, try := range []func(*site, string) Finding{sharedList, sharedRead, sharedWrite, sharedStat, sharedMeta} {
		for _, p := range []string{file, link} {
			if f := try(s, p); f.Outcome != Reachable {
				t.Errorf("%s: %+v", p, f)
			}
		}
		if f := try(s, filepath.Join(dir, "none")); f.Outcome != Absent || f.Errno != "ENOENT" {
			t.Errorf("a path that is not there: %+v", f)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "x" {
		t.Errorf("the file holds %q, %v", data, err)
	}
}

func TestCredFile_ReadsNothing(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	secret := filepath.Join(home, ".netrc")
	if err := os.WriteFile(secret, []byte("machine x password hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(home, ".npmrc")); err != nil {
		t.Fatal(err)
	}
	s := newSite(task{}, nil)
	for _, target := range []string{"~/.netrc", "~/.npmrc"} {
		f := credFile(s, target)
		if f.Outcome != Reachable || strings.Contains(f.Evidence, "hunter2") {
			t.Errorf("%s: %+v", target, f)
		}
	}
	if f := credFile(s, "~/.pypirc"); f.Outcome != Absent {
		t.Errorf("%+v", f)
	}
	// What is not there could be made.
	if f := credPlant(s, "~/.bashrc"); f.Outcome != Reachable || !strings.Contains(f.Evidence, "not there") {
		t.Errorf("%+v", f)
	}
	if f := credPlant(s, "~/.ssh/rc"); f.Outcome != Absent {
		t.Errorf("%+v", f)
	}
}

// A fence holds a folder by a mount of the folder on itself.
func TestOnItself(t *testing.T) {
	all := []mount{
		{ID: 1, Dev: "8:1", Root: "/", Point: "/"},
		{ID: 2, Parent: 1, Dev: "8:1", Root: "/home/ada", Point: "/home/ada"},
		{ID: 3, Parent: 2, Dev: "8:1", Root: "/home/ada/bin", Point: "/home/ada/bin"},
		{ID: 4, Parent: 1, Dev: "8:1", Root: "/srv/x", Point: "/mnt"},
		{ID: 5, Parent: 1, Dev: "8:2", Root: "/data", Point: "/data"},
	}
	for i, want := range []bool{false, true, true, false, false} {
		if got := onItself(all[i], all); got != want {
			t.Errorf("%s: %v, want %v", all[i].Point, got, want)
		}
	}
}
