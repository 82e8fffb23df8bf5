package taint

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
	"fence/pkg/result"
	"fence/pkg/sif"
	"fence/test/bed"
)

// scene is an overlay's upper folder over a small image. Who opens a file there
// is as good as a container that does so through fuse-overlayfs.
type scene struct {
	t     testing.TB
	upper string
	*Watch
}

func newScene(t testing.TB) *scene {
	t.Helper()
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		bed.Missing(t, "mksquashfs")
	}
	dir := t.TempDir()
	s := &scene{t: t, upper: filepath.Join(dir, "upper")}
	root := &scene{t: t, upper: filepath.Join(dir, "root")}
	for _, p := range []string{"usr/bin/sh", "usr/bin/tool", "usr/bin/other", "etc/profile"} {
		root.write(p, "the image's")
	}
	root.write("etc/passwd", "u:x:7:7::/srv/u:/bin/sh\n")
	if err := sif.Pack(t.Context(), root.upper, filepath.Join(dir, "squashfs"), sif.PackOptions{Processors: 1, MemMiB: 64}); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "image.sif")
	if err := sif.Write(image, filepath.Join(dir, "squashfs"), sif.Meta{Arch: "amd64"}); err != nil {
		t.Fatal(err)
	}
	s.write("app/x", "")
	s.write("tests/empty", "")
	var err error
	if s.Watch, err = New(Options{Upper: s.upper, Image: image, Workdir: "/app", Private: []string{"/tests"}, Homes: []string{"/var/h"}, Runs: "/tests/test.sh"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.Before()
	return s
}

func (s *scene) at(p string) string { return filepath.Join(s.upper, p) }

func (s *scene) write(p, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.at(p)), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.at(p), []byte(text), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) open(p string) {
	s.t.Helper()
	f, err := os.Open(s.at(p))
	if err != nil {
		s.t.Fatal(err)
	}
	f.Close()
}

func (s *scene) after() {
	s.t.Helper()
	s.After()
}

// find wants those files to be found, or what is unknown to begin so.
func (s *scene) find(alive bool, want, unknown string) []result.Taint {
	s.t.Helper()
	found, why := s.Find(alive)
	var paths []string
	for _, f := range found {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); got != want || (unknown == "") != (why == "") || !strings.HasPrefix(why, unknown) {
		s.t.Errorf("%s, unknown %q; want %s, %q", got, why, want, unknown)
	}
	return found
}

func TestWatch(t *testing.T) {
	s := newScene(t)
	s.write("etc/profile.d/harness.sh", "x")
	s.Before()
	s.write("usr/bin/sh", "another")
	s.write("usr/bin/tool", "another")
	s.write("usr/bin/other", "the image's")
	s.write("etc/profile.d/\xff\n.sh", "x")
	homes := []string{"srv/u/.bashrc", "var/h/.bashrc", "var/other/.bashrc"}
	for _, p := range homes {
		s.write(p, "x")
	}
	s.after()
	s.write("tests/test.sh", "")
	s.open("usr/bin/sh")
	s.open("usr/bin/other")
	s.open("etc/profile.d/harness.sh")
	s.open("etc/profile.d/\xff\n.sh")
	for _, p := range homes {
		s.open(p)
	}
	s.find(false, "/etc/profile.d/\xff\n.sh /srv/u/.bashrc /usr/bin/sh /var/h/.bashrc", "")
}

// What is read to judge it is not opened by the verifier.
func TestWatch_OwnReading(t *testing.T) {
	s := newScene(t)
	for _, p := range []string{"a.pth", "b.pth", "c.pth"} {
		s.write("usr/lib/python3/dist-packages/"+p, "import os")
	}
	s.after()
	s.write("tests/test.sh", "")
	s.open("usr/lib/python3/dist-packages/b.pth")
	s.find(true, "/usr/lib/python3/dist-packages/b.pth", "")
}

// fuse-overlayfs opens a file by whatever name it came to know it.
func TestWatch_HardLinks(t *testing.T) {
	s := newScene(t)
	s.write("usr/bin/new", "another")
	if err := os.Link(s.at("usr/bin/new"), s.at("usr/bin/sh")); err != nil {
		t.Fatal(err)
	}
	s.after()
	s.write("tests/test.sh", "")
	s.open("usr/bin/new")
	s.find(false, "/usr/bin/sh", "")
}

// Of a module whose bytecode is newer, Python opens the bytecode alone.
func TestWatch_Bytecode(t *testing.T) {
	s := newScene(t)
	s.write("app/base64.py", "x")
	s.write("app/pytest.py", "x")
	s.write("app/__pycache__/pytest.cpython-311.pyc", "x")
	s.after()
	s.write("tests/test.sh", "")
	s.open("app/__pycache__/pytest.cpython-311.pyc")
	s.find(false, "/app/__pycache__/pytest.cpython-311.pyc /app/pytest.py", "")
}

// What the verifier opened may not be known: then what the agent changed counts
// as opened, and what it did not change does not.
func TestWatch_Unknown(t *testing.T) {
	s := newScene(t)
	s.write("usr/bin/sh", "another")
	s.write("usr/bin/other", "the image's")
	s.after()
	s.find(false, "/usr/bin/sh", "nothing was heard when the verifier opened /tests/test.sh")

	// More at once than the kernel remembers, while nobody listens.
	s = newScene(t)
	s.write("usr/bin/sh", "another")
	s.write("usr/bin/tool", "another")
	s.after()
	if err := s.opened.f.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	<-s.opened.done
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := fmt.Sscan(string(limit), &n); err != nil {
		t.Fatal(err)
	}
	for i := range n + 1 {
		s.open([]string{"usr/bin/sh", "usr/bin/tool"}[i%2])
	}
	s.find(false, "/usr/bin/sh /usr/bin/tool", "more files were opened at once")
}

// A folder that is shut is looked into; one that cannot be, makes what was
// opened unknown.
func TestWatch_Shut(t *testing.T) {
	s := newScene(t)
	s.write("usr/bin/sh", "another")
	s.write("opt/deep/x", "")
	for _, p := range []string{"usr/bin/sh", "usr/bin", "opt/deep"} {
		if err := os.Chmod(s.at(p), 0); err != nil {
			t.Fatal(err)
		}
	}
	s.after()
	if err := os.Chmod(s.at("usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.at("usr/bin/sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("tests/test.sh", "")
	s.open("usr/bin/sh")
	s.find(false, "/usr/bin/sh", "")
	if err := os.Chmod(s.at("opt/deep"), 0o755); err != nil {
		t.Fatal(err)
	}

	s = newScene(t)
	deep := "opt"
	for range most {
		deep += "/d"
	}
	s.write(deep+"/x", "") // data: where it is, no program looks
	s.after()
	s.write("tests/test.sh", "")
	s.find(false, "", "")
}

func TestWatch_Links(t *testing.T) {
	s := newScene(t)
	link := func(to, p string) {
		if err := os.MkdirAll(filepath.Dir(s.at(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, s.at(p)); err != nil {
			t.Fatal(err)
		}
	}
	link("../../app/x", "usr/bin/sh")
	link("../../app/x", "usr/bin/tool")
	s.after()
	s.write("tests/test.sh", "")
	s.open("usr/bin/sh")
	s.find(false, "/usr/bin/sh", "")

	// Set back to what it was when the verifier began, as the agent could.
	s.after()
	s.write("tests/test.sh", "")
	s.open("usr/bin/tool")
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, s.at("usr/bin/tool"), []unix.Timespec{longAgo, {Nsec: unix.UTIME_OMIT}}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
	s.find(false, "/usr/bin/tool", "")
}

// What was another program for a moment only is seen where the agent left
// something running; the overlay's copy of an image's file is none.
func TestWatch_PutBack(t *testing.T) {
	for _, row := range []struct {
		name  string
		alive bool
		do    func(s *scene)
		want  string
	}{
		{"written twice", true, func(s *scene) { s.write("usr/bin/sh", "another"); s.write("usr/bin/sh", "the image's") }, "/usr/bin/sh"},
		{"by the tests", false, func(s *scene) { s.write("usr/bin/sh", "another"); s.write("usr/bin/sh", "the image's") }, ""},
		{"moved in twice", true, func(s *scene) { s.move("another", "usr/bin/sh"); s.move("the image's", "usr/bin/sh") }, "/usr/bin/sh"},
		{"copied once", true, func(s *scene) { s.move("the image's", "usr/bin/sh") }, ""},
		{"there and away", true, func(s *scene) {
			s.write("usr/local/bin/sh", "another")
			if err := os.Remove(s.at("usr/local/bin/sh")); err != nil {
				t.Fatal(err)
			}
		}, "/usr/local/bin/sh"},
		{"another name, there and away", true, func(s *scene) {
			s.write("usr/local/bin/job", "another")
			if err := os.Remove(s.at("usr/local/bin/job")); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			for _, d := range []string{"usr/bin", "usr/local/bin"} {
				if err := os.MkdirAll(s.at(d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			s.after()
			s.write("tests/test.sh", "")
			row.do(s)
			s.find(row.alive, row.want, "")
		})
	}
}

// What comes to be while the tests run is theirs, beside processes that the
// agent left: unless it is what tests do not do, or do not do twice.
func TestWatch_Beside(t *testing.T) {
	const packages, env, evil = "usr/local/lib/python3.11/dist-packages/", "root/.local/bin/env", "another"
	const installer = "export PATH=\"$HOME/.local/bin:$PATH\"\n"
	plugin := func(name string) func(s *scene) {
		return func(s *scene) { s.make(packages+name+"-1.dist-info/entry_points.txt", "[pytest11]\nx = x\n") }
	}
	made := func(p, text string) func(s *scene) { return func(s *scene) { s.make(p, text); s.open(p) } }
	all := func(list ...func(*scene)) func(*scene) {
		return func(s *scene) {
			for _, do := range list {
				do(s)
			}
		}
	}
	remove := func(p string) func(s *scene) {
		return func(s *scene) {
			if err := os.Remove(s.at(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	requires := func(line string) func(s *scene) {
		return func(s *scene) { s.make(packages+"pytest_json-1.dist-info/METADATA", "Name: x\n"+line+"\n") }
	}
	for _, row := range []struct {
		name string
		do   func(s *scene)
		want string
	}{
		{"a plugin", plugin("x"), "/" + packages + "x-1.dist-info/entry_points.txt"},
		{"a plugin that the tests name, and do not install", plugin("echo"), "/" + packages + "echo-1.dist-info/entry_points.txt"},
		{"a plugin that they install", plugin("pytest_json"), ""},
		{"one that it requires", all(requires("Requires-Dist: any-io>=4"), plugin("any_io")), ""},
		{"one that it requires for more", all(requires("Requires-Dist: any-io; extra == 'x'"), plugin("any_io")), "/" + packages + "any_io-1.dist-info/entry_points.txt"},
		{"a plugin that is changed", all(plugin("pytest_json"), plugin("pytest_json")), "/" + packages + "pytest_json-1.dist-info/entry_points.txt"},
		{"a module", made(packages+"m.py", "x"), ""},
		{"a module that is moved over", all(made(packages+"m.py", "x"), made(packages+"m.py", evil)), "/" + packages + "m.py"},
		{"a module that is written over", func(s *scene) { s.make(packages+"m.py", "x"); s.write(packages+"m.py", evil) }, "/" + packages + "m.py"},
		{"data that is written over", func(s *scene) { s.make("srv/d.py", "x"); s.write("srv/d.py", evil) }, ""},
		{"an installer's env", made(env, installer), ""},
		{"another env", made(env, evil), "/" + env},
		{"another env, and back", all(made(env, evil), made(env, installer)), "/" + env},
		{"another env, and away", all(made(env, evil), remove(env)), "/" + env},
		{"uvx", made("root/.local/bin/uvx", "x"), ""},
		{"uvx twice", all(made("root/.local/bin/uvx", "x"), made("root/.local/bin/uvx", evil)), "/root/.local/bin/uvx"},
		{"a shell in a home", made("root/.local/bin/sh", evil), "/root/.local/bin/sh"},
		{"an installer's line", made("root/.bashrc", ". \"$HOME/.local/bin/env\"\n"), ""},
		{"a line of the tests'", made("root/.bashrc", "export A=1\n"), ""},
		{"a statement of the tests'", made("root/.bashrc", "echo 1\n"), "/root/.bashrc"},
		{"a line of another's, not read", func(s *scene) { s.move(evil, "root/.bashrc") }, ""},
		{"a start file, and away", all(made("root/.bashrc", evil), remove("root/.bashrc")), "/root/.bashrc"},
		{"a hook", made("etc/profile.d/x.sh", evil), "/etc/profile.d/x.sh"},
		{"the image's hook", made("etc/profile", "the image's\nexport A=1\n"), ""},
		{"the image's hook, changed", made("etc/profile", "the image's\n"+evil+"\n"), "/etc/profile"},
		{"git's user", made("root/.gitconfig", "[user]\n\tname = a\n"), ""},
		{"git's command of the tests'", made("root/.gitconfig", "[core]\n\tpager = bat\n"), ""},
		{"git's command", made("root/.gitconfig", "[core]\n\tpager = /opt/x\n"), "/root/.gitconfig"},
		{"a module beside", made("app/pytest.py", evil), "/app/pytest.py"},
		{"one that the tests bring", made("app/pluggy.py", "x"), ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.o.Tests = []string{t.TempDir()}
			const test = "pip install -q 'pytest-json==1'\necho 1\necho 'export A=1' >>~/.bashrc\ngit config core.pager bat\ncp /tests/pluggy.py .\n"
			if err := os.WriteFile(filepath.Join(s.o.Tests[0], "test.sh"), []byte(test), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, d := range []string{packages + "x-1.dist-info", packages + "echo-1.dist-info", packages + "any_io-1.dist-info", packages + "pytest_json-1.dist-info", "root/.local/bin", "etc/profile.d", "srv"} {
				if err := os.MkdirAll(s.at(d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			s.after()
			s.write("tests/test.sh", "")
			row.do(s)
			s.find(true, row.want, "")
		})
	}
}

// What inotify says of a file in the upper folder of fuse-overlayfs 1.10.
func TestPut(t *testing.T) {
	const create, to, open, modify, closed = unix.IN_CREATE, unix.IN_MOVED_TO, unix.IN_OPEN, unix.IN_MODIFY, unix.IN_CLOSE_WRITE
	for _, row := range []struct {
		name  string
		masks []uint32
		want  int
	}{
		{"made", []uint32{create, open, modify, modify, closed, open, open}, 1},
		{"cp -p, chmod, touch", []uint32{create, open, open, modify, closed, modify, open, closed, open, open, closed}, 1},
		{"made, and written", []uint32{create, open, modify, closed, open, open, modify, modify, closed}, 2},
		{"made, and being written", []uint32{create, open, modify, closed, open, modify}, 2},
		{"linked", []uint32{create, open, modify, open}, 1},
		{"linked, and written", []uint32{create, open, modify, open, modify, modify, closed}, 2},
		{"moved", []uint32{to, open, modify, open}, 1},
		{"moved, and written", []uint32{to, open, modify, open, modify, closed}, 2},
		{"made as by later versions", []uint32{to, open, modify, closed}, 1},
		{"moved over", []uint32{to, to}, 2},
		{"there before, and written", []uint32{open, modify, modify, closed}, 1},
		{"there before, written, and put back", []uint32{open, modify, modify, closed, open, modify, closed}, 2},
		{"read", []uint32{open, open}, 0},
	} {
		var p put
		for _, m := range row.masks {
			p = p.hear(m)
		}
		if p.times != row.want {
			t.Errorf("%s: %d times, want %d", row.name, p.times, row.want)
		}
	}
}

// make makes a new file as fuse-overlayfs does.
func (s *scene) make(p, text string) {
	s.t.Helper()
	f, err := os.OpenFile(s.at("app/new"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if err := os.Rename(s.at("app/new"), s.at(p)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// move puts a file in place as an overlay does with its copies.
func (s *scene) move(text, p string) {
	s.t.Helper()
	s.write("app/copy", text)
	if err := os.Rename(s.at("app/copy"), s.at(p)); err != nil {
		s.t.Fatal(err)
	}
}

func TestWatch_Many(t *testing.T) {
	s := newScene(t)
	for i := range enough + 5 {
		s.write(fmt.Sprintf("etc/profile.d/%04d.sh", i), "x")
	}
	s.after()
	s.write("tests/test.sh", "")
	for i := range enough + 5 {
		s.open(fmt.Sprintf("etc/profile.d/%04d.sh", i))
	}
	found, _ := s.Find(false)
	if len(found) != enough+1 || found[enough].Why != "and more files" {
		t.Errorf("%d %v", len(found), found[len(found)-1])
	}
}

// Where more was changed than is looked through, nothing is known of the rest:
// that is no verdict without a taint.
func TestWatch_TooMany(t *testing.T) {
	for most, want := range map[int][2]string{1000: {"", ""}, 10: {"/", "there are more than 10 files"}} {
		s := newScene(t)
		s.most = most
		for i := range 20 {
			s.write(fmt.Sprintf("opt/%d", i), "")
		}
		s.after()
		s.write("tests/test.sh", "")
		if err := os.RemoveAll(s.at("opt")); err != nil { // to hide it
			t.Fatal(err)
		}
		s.find(true, want[0], want[1])
	}
}

// The processes of a step's agent live on: what they do between the tests of
// one step and the agent of the next, beside the harness, is theirs.
func TestWatch_Steps(t *testing.T) {
	s := newScene(t)
	s.write("usr/bin/other", "an agent's")
	s.after()
	s.write("tests/test.sh", "")
	s.write("usr/bin/tool", "a verifier's")
	if err := os.Chmod(s.at("usr/bin/other"), 0o700); err != nil { // it stays the agent's
		t.Fatal(err)
	}
	s.find(false, "", "")

	s.write("usr/bin/sh", "an agent's")
	s.after()
	s.write("tests/test.sh", "")
	for _, p := range []string{"sh", "tool", "other"} {
		s.open("usr/bin/" + p)
	}
	s.find(false, "/usr/bin/other /usr/bin/sh", "")
}

// What an agent leaves to be read is not kept without an end: empty room in
// files costs it nothing.
func TestWatch_MuchText(t *testing.T) {
	const dir = "usr/lib/python3/dist-packages/"
	for n, unknown := range map[int]string{1: "", textsLimit/textLimit + 1: "more text"} {
		s := newScene(t)
		var want []string
		for i := range n {
			p := fmt.Sprintf("%s%03d.pth", dir, i)
			s.write(p, "")
			if err := os.Truncate(s.at(p), textLimit); err != nil {
				t.Fatal(err)
			}
			want = append(want, "/"+p)
		}
		s.after()
		s.write("tests/test.sh", "")
		for i := range n {
			s.open(fmt.Sprintf("%s%03d.pth", dir, i))
		}
		if unknown == "" {
			want = nil // nothing is in it
		} else {
			want = want[len(want)-1:] // nobody looked into the last
		}
		s.find(false, strings.Join(want, " "), unknown)
	}
}

// The agent's processes are the user's, too, and can use up what the user may
// have of inotify.
func TestWatch_NoneLeft(t *testing.T) {
	for limit, want := range map[string]string{"max_inotify_instances": "no inotify instance is left", "max_inotify_watches": "no inotify watch is left"} {
		t.Run(limit, func(t *testing.T) {
			attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Credential: &syscall.Credential{NoSetGroups: true}}
			attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
			sandboxtest.Child{Root: true, Attr: attr}.Run(t, func(t *testing.T) {
				s := newScene(t)
				s.write("usr/bin/sh", "another")
				if err := os.WriteFile("/proc/sys/user/"+limit, []byte("0"), 0); err != nil {
					t.Fatal(err)
				}
				s.after()
				s.write("tests/test.sh", "")
				s.find(false, "/usr/bin/sh", want)
			})
		})
	}
}

func BenchmarkWatch(b *testing.B) {
	for name, dir := range map[string]string{"packages": "usr/local/lib/python3.11/dist-packages", "data": "app/data"} {
		for _, unknown := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/unknown=%v", name, unknown), func(b *testing.B) {
				s := newScene(b)
				for i := range 50_000 {
					s.write(fmt.Sprintf("%s/p%d/m%d.py", dir, i/100, i%100), "x")
				}
				for b.Loop() {
					s.after()
					if !unknown {
						s.write("tests/test.sh", "")
					}
					s.Find(true)
				}
			})
		}
	}
}
