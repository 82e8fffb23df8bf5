package escapes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// tools are the programs that the arms run, in a folder that the ordinary user can read and that no
// fence covers.
type tools struct {
	dir                 string
	attempt, arm, fence string
	setuid, filecaps    string // copies of attempt that would gain something; "" if only root can make them
	cgroup              string // a control group that the user may write to; "" if there is none
	neighbour           int
	more                []string // flags of fence
	run                 string   // of several in one arm, its name
}

// build makes the programs once for a test.
func build(t *testing.T) tools {
	t.Helper()
	bed.Require(t, "users", "apptainer", "nonet")
	b := tools{dir: userDir(t)}
	b.attempt, b.arm, b.fence = filepath.Join(b.dir, "attempt"), filepath.Join(b.dir, "arm"), filepath.Join(b.dir, "fence")
	copyFile(t, bed.Bin(t, "fence"), b.fence, 0o755) // where it lies may be in /tmp
	for path, made := range map[string]func() (string, error){b.attempt: attemptProgram(), b.arm: armProgram()} {
		from, err := made()
		if err != nil {
			t.Fatal(err)
		}
		copyFile(t, from, path, 0o755)
	}
	if os.Geteuid() == 0 {
		b.privileged(t)
	}
	return b
}

var (
	attemptProgram = sync.OnceValue(func() func() (string, error) {
		return compiled("attempt", func(out string) *exec.Cmd {
			sources, _ := filepath.Glob("attempt/*.c")
			args := append([]string{"-std=gnu17", "-O1", "-Wall", "-Wno-unused-result", "-Wno-nonnull", "-static", "-o", out}, sources...)
			return exec.Command("gcc", args...)
		})
	})
	armProgram = sync.OnceValue(func() func() (string, error) {
		return compiled("arm", func(out string) *exec.Cmd {
			cmd := exec.Command("go", "build", "-o", out, "./arm")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			return cmd
		})
	})
)

var buildDir string // of this test process, made by TestMain

func compiled(name string, how func(out string) *exec.Cmd) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		out := filepath.Join(buildDir, name)
		if text, err := how(out).CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %v\n%s", name, err, text)
		}
		return out, nil
	})
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fence-escapes-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// userDir is a folder of the ordinary user on the node's own disk. Not in /tmp, over which fence
// lays an empty one.
func userDir(t *testing.T) string {
	t.Helper()
	t.Setenv("TMPDIR", filepath.Join(bed.Dir(), "tmp", "fencer"))
	return bed.TempDir(t)
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, mode)
	}
	if err == nil {
		err = os.Chmod(to, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// privileged makes what only root can: programs that gain the neighbour's id, which is harmless,
// or a capability; and a control group as a batch system hands it to its user.
func (b *tools) privileged(t *testing.T) {
	t.Helper()
	uid, gid, _ := bed.User(t)
	out, err := bed.Neighbour(t, "id", "-u").Output()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(string(out), &b.neighbour)
	b.setuid, b.filecaps = filepath.Join(b.dir, "setuid"), filepath.Join(b.dir, "filecaps")
	copyFile(t, b.attempt, b.setuid, 0o755)
	if err := os.Chown(b.setuid, b.neighbour, gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(b.setuid, os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, b.attempt, b.filecaps, 0o755)
	// struct vfs_cap_data: revision 2 with the effective bit, CAP_NET_RAW permitted.
	caps := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := syscall.Setxattr(b.filecaps, "security.capability", caps, 0); err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir, err := os.MkdirTemp(parent, "fence-escapes-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { syscall.Rmdir(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, "cgroup.procs"), uid, gid); err == nil {
			b.cgroup = dir
			return
		}
	}
}

// args are what all attempts are told.
func (b tools) args() map[string]string {
	return map[string]string{"setuid": b.setuid, "filecaps": b.filecaps, "cgroup": b.cgroup, "neighbour": fmt.Sprint(b.neighbour)}
}

// accepts is what the bare form wants said on a node whose site is visible.
var accepts = []string{"--accept", "landlock-hide", "--accept", "host-tmp", "--accept", "sockets", "--why", "a test of escapes"}

// fakeroot are the flags with which the user is user 0 in the container, and nobody else is anybody.
var fakeroot = []string{"--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command"}

// drive runs rows in an arm and returns the results by row.
func (b tools) drive(t *testing.T, arm int, list []wire.Row, flags ...string) map[string]wire.Result {
	t.Helper()
	spec := wire.Spec{Attempt: b.attempt, Args: b.args(), Rows: list}
	fence := b.fence
	if arm >= boxNone {
		spec.Attempt, fence, spec.Base = "/.fence/attempt", "/.fence/fence", "/tmp/escapes"
		spec.Args = map[string]string{"neighbour": fmt.Sprint(b.neighbour)}
	} else {
		spec.Base = filepath.Join(b.dir, fmt.Sprint("arm", arm, b.run))
	}
	switch arm {
	case landlockOnly:
		spec.Prefix = []string{b.arm, "landlock", "-write", "{work}", "-except", "{hidden}", "--"}
	case namespace, boxNamespace:
		spec.Prefix = append(append([]string{fence, "--form", "namespace", "--hide", "{hidden}"}, b.more...), "--")
	case bare, boxBare:
		spec.Prefix = append(append(append([]string{fence, "--form", "bare", "--hide", "{hidden}"}, accepts...), b.more...), "--")
	}
	in, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	cmd := b.driver(t, arm, flags)
	cmd.Stdin = bytes.NewReader(in)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, said.String())
	}
	results := map[string]wire.Result{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var r wire.Result
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		results[r.Row] = r
	}
	return results
}

// driver is arm drive, as the ordinary user, where the arm is; the flags are Apptainer's.
func (b tools) driver(t *testing.T, arm int, flags []string) *exec.Cmd {
	t.Helper()
	switch arm {
	case bare:
		return bed.NoUserns(t, b.arm, "drive")
	case boxNone, boxNamespace, boxBare:
		return b.container(t, arm == boxBare, flags, bed.Image("debian"), "/.fence/arm", "drive")
	}
	return bed.Command(t, b.arm, "drive")
}

// container is a command in a container as fence env starts it, with the programs of the test
// beside fence. With noMore the node allows no namespaces but those that Apptainer takes.
func (b tools) container(t *testing.T, noMore bool, flags []string, image string, argv ...string) *exec.Cmd {
	t.Helper()
	script := `eval "$("$1" env)"; shift; exec apptainer -q exec "$@"`
	args := []string{"-c", script, "sh", b.fence, "--bind", b.attempt + ":/.fence/attempt:ro," + b.arm + ":/.fence/arm:ro"}
	args = append(append(args, flags...), image)
	args = append(args, argv...)
	if noMore {
		return bed.Limited(t, []string{"max_user_namespaces=1"}, "sh", args...)
	}
	return bed.Command(t, "sh", args...)
}

// form is the form that fence says it has in an arm.
func (b tools) form(t *testing.T, arm int) string {
	t.Helper()
	fence := b.fence
	if arm >= boxNone {
		fence = "/.fence/fence"
	}
	argv := append([]string{fence, "--status-fd", "1"}, accepts...)
	argv = append(argv, "--", "true")
	var cmd *exec.Cmd
	switch arm {
	case namespace:
		cmd = bed.Command(t, argv[0], argv[1:]...)
	case bare:
		cmd = bed.NoUserns(t, argv[0], argv[1:]...)
	default:
		cmd = b.container(t, arm == boxBare, nil, bed.Image("debian"), argv...)
	}
	out, err := cmd.CombinedOutput()
	var status struct{ Form string }
	if err == nil {
		err = json.Unmarshal(out, &status)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, strings.TrimSpace(string(out)))
	}
	return status.Form
}
