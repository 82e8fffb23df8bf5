package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

func TestCapabilitySet(t *testing.T) {
	for _, tt := range []struct {
		names []string
		want  uint64
	}{
		{nil, 0},
		{[]string{"CAP_CHOWN"}, 1 << unix.CAP_CHOWN},
		{[]string{"CAP_NET_BIND_SERVICE", "cap_net_bind_service"}, 1 << unix.CAP_NET_BIND_SERVICE},
		{[]string{"CAP_SETPCAP", "CAP_SYS_ADMIN", "CAP_CHECKPOINT_RESTORE"}, 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_CHECKPOINT_RESTORE},
	} {
		if got, err := capabilitySet(tt.names); got != tt.want || err != nil {
			t.Errorf("%v: %#x, %v, want %#x", tt.names, got, err, tt.want)
		}
	}
	for _, name := range []string{"", "CHOWN", "CAP_", "CAP_ALL", "CAP_CHOWN "} {
		if got, err := capabilitySet([]string{"CAP_KILL", name}); got != 0 || err == nil {
			t.Errorf("%q: %#x, %v", name, got, err)
		}
	}
}

// Each descriptor is described as Landlock and the self-test need it.
func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	must := func(fd int, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	sock := must(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	joined := func(kind int) int {
		pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		return must(pair[0], err)
	}
	cases := []struct {
		name string
		fd   int
		want Descriptor // Path is a beginning
	}{
		{"read", must(unix.Open(file, unix.O_RDONLY, 0)), Descriptor{File: true, Readable: true, Path: file}},
		{"append", must(unix.Open(file, unix.O_WRONLY|unix.O_APPEND, 0)), Descriptor{File: true, Writable: true, Path: file}},
		{"both", must(unix.Open(file, unix.O_RDWR, 0)), Descriptor{File: true, Readable: true, Writable: true, Path: file}},
		{"null", must(unix.Open("/dev/null", unix.O_RDWR, 0)), Descriptor{File: true, Readable: true, Writable: true, Path: "/dev/null"}},
		{"folder", must(unix.Open(dir, unix.O_RDONLY, 0)), Descriptor{Dir: true, Readable: true, Path: dir}},
		{"O_PATH", must(unix.Open(file, unix.O_PATH, 0)), Descriptor{File: true, PathOnly: true, Readable: true, Path: file}},
		{"O_PATH folder", must(unix.Open(dir, unix.O_PATH, 0)), Descriptor{Dir: true, PathOnly: true, Readable: true, Path: dir}},
		{"pipe's end to read", must(pipe[0], nil), Descriptor{Readable: true, Path: "pipe:["}},
		{"pipe's end to write", must(pipe[1], nil), Descriptor{Writable: true, Path: "pipe:["}},
		{"socket", sock, Descriptor{UnixAnywhere: true, Readable: true, Writable: true, Path: "socket:["}},
		{"connected socket", joined(unix.SOCK_STREAM), Descriptor{Readable: true, Writable: true, Path: "socket:["}},
		{"datagram socket", joined(unix.SOCK_DGRAM), Descriptor{UnixAnywhere: true, Readable: true, Writable: true, Path: "socket:["}},
	}
	if fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		cases = append(cases, struct {
			name string
			fd   int
			want Descriptor
		}{"terminal", must(fd, nil), Descriptor{File: true, TTY: true, Readable: true, Writable: true, Path: "/dev/"}})
	}
	for _, tt := range cases {
		got, err := describe(tt.fd)
		rest, ok := strings.CutPrefix(got.Path, tt.want.Path)
		tt.want.FD, tt.want.Path = tt.fd, tt.want.Path+rest
		if err != nil || !ok || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	if got, err := describe(1 << 20); err != unix.EBADF || got != (Descriptor{}) {
		t.Errorf("a closed one: %+v, %v", got, err)
	}
}

// What the search for a command ends with, when it does not end in one.
func TestExec_Errors(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) {
		a, b := t.TempDir(), t.TempDir()
		write := func(p string, mode fs.FileMode, text string) {
			t.Helper()
			if err := os.WriteFile(p, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
		write(a+"/denied", 0o644, "#!/bin/sh\nexit 1\n")
		write(a+"/garbage", 0o755, "no program\n")
		write(a+"/orphan", 0o755, "#!/no/such/interpreter\n")
		write(a+"/file", 0o644, "")
		for _, tt := range []struct {
			cmd  string
			want error // nil: *NotFoundError
			at   string
		}{
			{"missing", nil, ""},
			{"", nil, ""},
			{"/no/such", nil, ""},
			{"./missing", nil, ""},
			{a + "/file/below", nil, ""},
			{"orphan", nil, ""},
			{"denied", unix.EACCES, a + "/denied"},
			{a + "/denied", unix.EACCES, a + "/denied"},
			{a, unix.EACCES, a},
			{"garbage", unix.ENOEXEC, a + "/garbage"},
		} {
			rs := Ruleset{Env: []string{"X=PATH=/bin", "PATH=" + b + ":" + a + "/file:" + a + ":" + b}}
			err := Exec(rs, []string{tt.cmd, "argument"})
			var missing *NotFoundError
			var at *os.PathError
			switch {
			case tt.want == nil && (!errors.As(err, &missing) || missing.Command != tt.cmd || missing.Path != env(rs.Env, "PATH")):
				t.Errorf("%q: %v, want a NotFoundError", tt.cmd, err)
			case tt.want != nil && (!errors.Is(err, tt.want) || !errors.As(err, &at) || at.Path != tt.at):
				t.Errorf("%q: %v, want %v at %s", tt.cmd, err, tt.want, tt.at)
			}
		}
	})
}

// A file that may not be executed is passed over, as execvp(3) does, and the
// command gets the ruleset's environment and no other.
func TestExec_SearchGoesOn(t *testing.T) {
	if dir := os.Getenv("SANDBOX_TEST_EXEC"); dir != "" {
		t.Fatal(Exec(Ruleset{Env: []string{"PATH=" + dir + "/a:" + dir + "/b", "ONLY=this"}}, []string{"tool", "one two"}))
	}
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"a": 0o644, "b": 0o755} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		script := "#!/bin/sh\necho \"ran " + name + ", $1, $ONLY, ${SANDBOX_TEST_EXEC-unset}\"\n"
		if err := os.WriteFile(filepath.Join(dir, name, "tool"), []byte(script), mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestExec_SearchGoesOn$")
	cmd.Env = append(os.Environ(), "SANDBOX_TEST_EXEC="+dir)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ran b, one two, this, unset\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// The mount steps in a mount namespace of the test's own: each does what it
// says, what is shown inside a mask is what was there before, and the
// self-test knows when one is gone.
func TestApplyMounts(t *testing.T) {
	if !sandboxtest.InChild() && exec.Command("unshare", "--user", "--mount", "true").Run() != nil {
		sandboxtest.Skip(t, "no user and mount namespaces here")
	}
	attr := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	sandboxtest.Child{Root: true, Attr: attr}.Run(t, func(t *testing.T) {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		r := t.TempDir()
		if err := unix.Mount(r, r, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(r, unix.MNT_DETACH) }) // with all that is mounted in it
		for _, f := range []string{"secret/keep/deep/f", "secret/keep/again/f", "secret/other/f", "secret/file", "socket", "tmp/theirs", "ro/f", "pinned/f", "held/f"} {
			p := filepath.Join(r, f)
			if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte("there"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("pinned", r+"/link"); err != nil {
			t.Fatal(err)
		}
		ops := []MountOp{
			{Kind: MountMaskDir, Path: r + "/secret", Holds: 2},
			{Kind: MountShow, Path: r + "/secret/file", From: r + "/secret/file", ReadOnly: true},
			{Kind: MountShow, Path: r + "/secret/keep", From: r + "/secret/keep", Dir: true},
			{Kind: MountMaskDir, Path: r + "/secret/keep/again"},
			{Kind: MountMaskFile, Path: r + "/socket"},
			{Kind: MountTmp, Path: r + "/tmp"},
			{Kind: MountReadOnly, Path: r + "/bound"},
			{Kind: MountPin, Path: r + "/pinned", Dir: true},
			{Kind: MountPin, Path: r + "/link"},
			{Kind: MountHold, Path: r + "/held", Dir: true},
			{Kind: MountPin, Path: r + "/absent", Absent: true},
			{Kind: MountPin, Path: r + "/absent-dir", Absent: true, Dir: true},
		}
		if err := errors.Join(os.Mkdir(r+"/bound", 0o755), unix.Mount(r+"/ro", r+"/bound", "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		if err := mounted(ops[:1]); err == nil {
			t.Error("nothing is mounted, and the self-test is content")
		}
		if err := applyMounts(ops); err != nil {
			t.Fatal(err)
		}
		if err := mounted(ops); err != nil {
			t.Errorf("the self-test: %v", err)
		}

		list := func(p string) string {
			names, err := readDir(r + p)
			slices.Sort(names)
			if err != nil {
				return err.Error()
			}
			return strings.Join(names, " ")
		}
		for p, want := range map[string]string{
			"/secret": "file keep", "/secret/keep": "again deep", "/secret/keep/again": "", "/secret/keep/deep": "f", "/tmp": "",
			"/absent-dir": "", "/pinned": "f", "/link": "f", "/bound": "f",
		} {
			if got := list(p); got != want {
				t.Errorf("%s holds %q, want %q", p, got, want)
			}
		}
		write := func(p string) error { return os.WriteFile(r+p, []byte("changed"), 0o644) }
		for p, want := range map[string]error{
			"/secret/new": unix.EROFS, "/secret/file": unix.EROFS, "/secret/keep/deep/f": nil, "/secret/keep/again/new": unix.EROFS, "/tmp/mine": nil,
			"/bound/f": unix.EROFS, "/ro/f": nil, "/pinned/f": unix.EROFS, "/absent": unix.EROFS, "/absent-dir/new": unix.EROFS, "/beside": nil, "/held/f": nil,
		} {
			if err := write(p); !errors.Is(err, want) {
				t.Errorf("writing %s: %v, want %v", p, err, want)
			}
		}
		if data, err := os.ReadFile(r + "/socket"); len(data) > 0 {
			t.Errorf("a masked file has %q, %v", data, err)
		}
		for _, p := range []string{"/secret", "/socket", "/pinned", "/link", "/held", "/absent", "/absent-dir"} {
			if err := os.Rename(r+p, r+"/moved"); !errors.Is(err, unix.EBUSY) {
				t.Errorf("renaming %s: %v, want EBUSY", p, err)
			}
		}

		for i, op := range ops {
			if op.Kind == MountReadOnly || strings.Contains(op.Path, "/secret") {
				continue // a mount of the test's own; what has mounts in it
			}
			if err := unix.Unmount(op.Path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				t.Errorf("taking %s away: %v", op.Path, err)
			} else if mounted(ops[i:i+1]) == nil {
				t.Errorf("%s is gone, and the self-test is content", op.Path)
			}
		}

		for _, op := range []MountOp{{}, {Kind: 99}, {Kind: MountShow, Path: r + "/none"}, {Kind: MountMaskDir, Path: r + "/none"}, {Kind: MountMaskFile, Path: r + "/none"},
			{Kind: MountMaskDir, Path: r + "/beside"}, {Kind: MountTmp, Path: r + "/none"}, {Kind: MountReadOnly, Path: r + "/none"}, {Kind: MountPin, Path: r + "/none"}} {
			if err := applyMounts([]MountOp{op}); err == nil {
				t.Errorf("step %d on %q worked", op.Kind, op.Path)
			}
		}
	})
}

func TestIsName(t *testing.T) {
	for name, want := range map[string]bool{"": false, "A": true, "_a1": true, "1A": false, "A B": false, "A-B": false, "É": false, "A.B": false} {
		if isName(name) != want {
			t.Errorf("isName(%s) is %v", strconv.Quote(name), !want)
		}
	}
}
