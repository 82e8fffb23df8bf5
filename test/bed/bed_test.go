package bed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// output runs a command of the bed and fails the test if it fails.
func output(t *testing.T, cmd interface{ CombinedOutput() ([]byte, error) }) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func TestCommandIsTheOrdinaryUser(t *testing.T) {
	Require(t, "users")
	t.Setenv("SECRET_OF_THE_CALLER", "x")
	uid, gid, home := User(t)
	got := output(t, Command(t, "sh", "-c", "id -u; id -g; id -G; pwd; env"))
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if want := []string{fmt.Sprint(uid), fmt.Sprint(gid)}; !slices.Equal(lines[:2], want) {
		t.Errorf("uid and gid %v, want %v", lines[:2], want)
	}
	if os.Geteuid() == 0 && lines[2] != fmt.Sprint(gid) {
		t.Errorf("groups %q, want only %d", lines[2], gid)
	}
	if lines[3] != home {
		t.Errorf("starts in %s, want %s", lines[3], home)
	}
	for _, v := range lines[4:] {
		name, _, _ := strings.Cut(v, "=")
		if !slices.Contains([]string{"HOME", "USER", "LOGNAME", "LANG", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}, name) {
			t.Errorf("the environment has %s", v)
		}
	}
}

func TestCommandNotFound(t *testing.T) {
	Require(t, "users")
	if err := Command(t, "no-such-program").Run(); err == nil {
		t.Error("a program that is not there ran")
	}
}

func TestApptainerAsTheOrdinaryUser(t *testing.T) {
	Require(t, "images", "site")
	uid, _, _ := User(t)
	got := output(t, Apptainer(t, "-q", "exec", Image("debian"), "sh", "-c", "id -u; cat "+ProjectReadme))
	if want := fmt.Sprintf("%d\ncanary: world-readable, of neighbour\n", uid); got != want {
		t.Errorf("in a container of the site: %q, want %q", got, want)
	}
}

func TestImages(t *testing.T) {
	Require(t, "images")
	for _, c := range []struct{ image, command, want string }{
		{"debian", "python3 -c 'print(6*7)'", "42"},
		{"busybox", "echo $0", "sh"},
		{"musl", "hello; hello-static", "hello from musl (static)"},
		{"dockerenv", "echo $JAVA_HOME $VIRTUAL_ENV; tool", "/opt/java /opt/venv\ntool from the image"},
	} {
		t.Run(c.image, func(t *testing.T) {
			got := output(t, Apptainer(t, "-q", "exec", "-C", Image(c.image), "sh", "-c", c.command))
			if !strings.Contains(got, c.want) {
				t.Errorf("%s: %q, want %q in it", c.command, got, c.want)
			}
			if _, err := os.Stat(filepath.Join(Root(c.image), "bin/sh")); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("static", func(t *testing.T) {
		// No C library, no shell, and no folder at all: a bind makes the one it needs.
		tools := TempDir(t)
		got := output(t, Apptainer(t, "-q", "exec", "-C", "--bind", tools+":/.fence:ro", Image("static"), "/static", "ls", "/"))
		if !strings.Contains(got, "hello from static") || !strings.Contains(got, "/ .fence") {
			t.Errorf("static: %q", got)
		}
	})
}

func TestNeighbourKeepsPrivateFilesPrivate(t *testing.T) {
	Require(t, "users", "site")
	if os.Geteuid() != 0 {
		Missing(t, "root: only root can be two people")
	}
	for _, path := range []string{ProjectPrivate, ProjectHidden} {
		output(t, Neighbour(t, "cat", path))
		if out, err := Command(t, "cat", path).CombinedOutput(); err == nil {
			t.Errorf("the ordinary user reads %s: %s", path, out)
		}
	}
	for _, path := range []string{ProjectReadme, ProjectNotes, ProjectOwn, ProjectToken} {
		output(t, Command(t, "cat", path))
	}
	output(t, Command(t, "sh", "-c", "f=$(mktemp -p "+ProjectScratch+") && rm $f"))
}

func TestLimits(t *testing.T) {
	Require(t, "nonet")
	if os.Geteuid() != 0 {
		Missing(t, "root: only root can set limits")
	}
	uid, _, _ := User(t)
	if got := output(t, NoNetns(t, "id", "-u")); got != fmt.Sprintln(uid) {
		t.Errorf("runs as %q, want %d", got, uid)
	}
	for _, c := range []struct {
		limit, command string
		works          bool
	}{
		{"max_net_namespaces=0", "unshare -Urn true", false},
		{"max_net_namespaces=0", "unshare -Ur true", true},
		{"max_user_namespaces=0", "unshare -U true", false},
		{"max_user_namespaces=1", "unshare -U true", true},
		{"max_user_namespaces=1", "unshare -Ur unshare -U true", false},
	} {
		out, err := Limited(t, []string{c.limit}, "sh", "-c", c.command).CombinedOutput()
		if (err == nil) != c.works {
			t.Errorf("%s: %s: %v %s", c.limit, c.command, err, out)
		}
		if !c.works && !strings.Contains(string(out), "No space left on device") {
			t.Errorf("%s: %s: refused for another reason: %s", c.limit, c.command, out)
		}
	}
}

func TestStale(t *testing.T) {
	Require(t, "stale")
	a, b := StaleDir("a"), StaleDir("b")
	name := fmt.Sprintf("test-%d", os.Getpid())
	output(t, Command(t, "sh", "-c", "cd "+a+" && echo one > "+name+" && stat -c %s "+b+"/"+name+" && echo longer > "+name))
	if got := output(t, Command(t, "stat", "-c", "%s", filepath.Join(b, name))); got != "4\n" {
		t.Errorf("the other side sees a new size at once: %s", got)
	}
	output(t, Command(t, "rm", filepath.Join(a, name)))
}

// A bed whose servers of the part stale were killed is mended by the next up, whatever that is for,
// and ended by down.
func TestDeadMounts(t *testing.T) {
	Require(t, "tools", "users")
	if os.Geteuid() != 0 {
		Missing(t, "root: only root mounts")
	}
	// In a mount namespace of its own: a dead mount is in the way of others too.
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 3600")
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("no mount namespace: %q %v", line, err)
	}
	there := fmt.Sprintf("/proc/%d/root", holder.Process.Pid)
	dir := t.TempDir()
	bed := func(script string, args ...string) string {
		t.Helper()
		cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(holder.Process.Pid), "--mount", "--wd=.", "./" + script}, args...)...)
		cmd.Env = append(os.Environ(), "BED_DIR="+dir)
		return output(t, cmd)
	}
	t.Cleanup(func() { bed("down") })
	sides := []string{filepath.Join(dir, "stale/a"), filepath.Join(dir, "stale/b")}
	// kill ends the servers and comes back when their mounts are dead.
	kill := func() {
		t.Helper()
		for _, side := range sides {
			pid := server(t, side)
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil {
				t.Fatal(err)
			}
			if _, err := os.ReadFile(filepath.Join(there, side, "here")); !errors.Is(err, unix.ENOTCONN) {
				t.Fatalf("a mount without its server: %v", err)
			}
		}
	}
	bed("up", "stale")
	kill()
	if said := bed("up", "users"); !strings.Contains(said, "answers no more") {
		t.Errorf("up says nothing of dead mounts: %q", said)
	}
	for _, side := range sides {
		if text, err := os.ReadFile(filepath.Join(there, side, "here")); err != nil || string(text) != "mounted\n" {
			t.Errorf("%s is not mended: %q %v", side, text, err)
		}
	}
	if said := bed("up", "users"); said != "" {
		t.Errorf("up with nothing to do: %q", said)
	}
	kill()
	bed("down")
	if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", holder.Process.Pid)); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("down leaves mounts behind: %v\n%s", err, mounts)
	}
}

// server is the process that serves a mount of the part stale.
func server(t *testing.T, side string) int {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		line, _ := os.ReadFile(file) // it may have ended
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if filepath.Base(args[0]) == "bindfs" && args[len(args)-1] == side {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("nothing serves %s", side)
	return 0
}

func TestSlurm(t *testing.T) {
	Require(t, "slurm", "images")
	dir := SharedDir(t)
	script := "#!/bin/sh\n#SBATCH --array=0-3 --output=" + dir + "/out-%a\napptainer -q exec -C " + Image("busybox") + " id -u\n"
	cmd := Command(t, "sbatch", "--wait")
	cmd.Stdin = strings.NewReader(script)
	output(t, cmd)
	uid, _, _ := User(t)
	for i := range 4 {
		got, err := os.ReadFile(fmt.Sprintf("%s/out-%d", dir, i))
		if err != nil || string(got) != fmt.Sprintln(uid) {
			t.Errorf("job %d of the array: %q %v", i, got, err)
		}
	}
	// A step that outgrows its own memory ends alone.
	cmd = Command(t, "sbatch", "--wait", "--mem=500", "-n2", "--output="+dir+"/memory")
	cmd.Stdin = strings.NewReader("#!/bin/sh\nsrun -n1 --exact --overlap --mem=50 sh -c 'head -c 200m /dev/zero | tail | sleep 60'\necho step $?, job alive\n")
	output(t, cmd)
	if got, err := os.ReadFile(dir + "/memory"); err != nil || !strings.Contains(string(got), "step 137, job alive") {
		t.Errorf("a step over its memory: %s %v", got, err)
	}
}

func TestTempDir(t *testing.T) {
	Require(t, "users")
	var dir string
	t.Run("made", func(t *testing.T) {
		dir = TempDir(t)
		output(t, Command(t, "sh", "-c", "mkdir "+dir+"/d && touch "+dir+"/d/f && chmod 0 "+dir+"/d"))
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left behind: %v", dir, err)
	}
}

// recorder is a test that notes how it was ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Skipf(format string, args ...any)  { r.skipped = fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }
func (r *recorder) Context() context.Context          { return context.Background() }

func TestRequire(t *testing.T) {
	t.Setenv("BED_DIR", t.TempDir())
	t.Setenv("TEST_REQUIRED", "")
	r := &recorder{}
	Require(r, "images")
	if !strings.Contains(r.skipped, "test/bed/up images") || r.failed != "" {
		t.Errorf("without TEST_REQUIRED: skipped %q, failed %q", r.skipped, r.failed)
	}
	t.Setenv("TEST_REQUIRED", "1")
	r = &recorder{}
	Require(r, "images")
	if !strings.Contains(r.failed, "test/bed/up images") || r.skipped != "" {
		t.Errorf("with TEST_REQUIRED=1: skipped %q, failed %q", r.skipped, r.failed)
	}
}

func TestPublish(t *testing.T) {
	dir := t.TempDir()
	fresh, path := filepath.Join(dir, "p.build"), filepath.Join(dir, "p")
	for _, text := range []string{"one", "two"} {
		if err := os.WriteFile(fresh, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := publish(fresh, path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if info, _ := os.Stat(path); err != nil || string(got) != text || info.Mode().Perm() != 0o755 {
			t.Errorf("%q %v, want %q", got, err, text)
		}
	}
	before, _ := os.Stat(path)
	if err := publish(fresh, path); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("the same program was written again")
	}
}
