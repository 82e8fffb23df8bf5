package rollout

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/box"
	"fence/pkg/session"
	"fence/test/bed"
)

// What goes beyond a limit ends its own box, and no other.
func TestBox_Limits(t *testing.T) {
	if !asUser(t) {
		return
	}
	other := start(t, options(t, "debian"))
	for _, c := range []struct{ name, script, class string }{
		{"memory", `python3 -c 'x = bytearray(400 << 20); print(len(x), flush=True); input()'`, "memory_limit"},
		{"shared memory", `dd if=/dev/zero of=/dev/shm/x bs=1M count=400 2>/dev/null; echo; read x`, "memory_limit"},
		{"processes", `python3 -c 'if True:
			import os, time
			while True:
				try:
					if os.fork() == 0: time.sleep(999)
				except OSError: time.sleep(1)'`, "process_limit"},
		{"a fork bomb", `echo 'while :; do sh /tmp/b & sh /tmp/b & done' >/tmp/b; sh /tmp/b 2>/dev/null; read x`, "process_limit"},
		{"files", `dd if=/dev/zero of=/app bs=1M count=400 2>/dev/null; echo; read x`, "disk_limit"},
		{"files in /tmp", `mkdir /tmp/d; dd if=/dev/zero of=/tmp/d/app bs=1M count=400 2>/dev/null; echo; read x`, "disk_limit"},
		{"files out of sight", `mkdir -p /tmp/d/e; exec 3>/tmp/d/e/app; chmod 0 /tmp/d; dd if=/dev/zero bs=1M count=400 >&3 2>/dev/null; read x`, "disk_limit"},
		{"files far down", `python3 -c 'if True:
			import os
			os.chdir("/tmp")
			for i in range(1100): os.mkdir("d"); os.chdir("d")
			input()'`, "disk_limit"},
		{"files without a name", `exec 3>/tmp/app; rm /tmp/app; dd if=/dev/zero bs=1M count=400 >&3 2>/dev/null; read x`, "disk_limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, "debian")
			o.Limits = box.Limits{Memory: 300e6, Processes: 200, Disk: 200e6}
			r := start(t, o)
			r.sh(box.Agent, `python3 -c 'x = bytearray(100 << 20)'; dd if=/dev/zero of=/y bs=1M count=50 2>/dev/null`) // within them
			in, w, err := os.Pipe()                                                                                    // which nobody writes to
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			defer w.Close()
			exit, err := r.Run(t.Context(), box.Command{Domain: box.Agent, Argv: []string{"sh", "-c", c.script}, Timeout: 20 * time.Second}, session.Streams{In: in})
			if class(err) != c.class {
				t.Fatalf("%v %+v", err, exit)
			}
			<-r.Done()
			if class(r.Err()) != c.class {
				t.Errorf("%v", r.Err())
			}
			t.Logf("%v; %+v", err, r.Usage())
			other.sh(box.Agent, "true")
		})
	}
	if other.Err() != nil {
		t.Error(other.Err())
	}
}

// Where a job has less memory than its trials take, the kernel ends a process:
// that is no verdict for its trial, whatever the solution makes of it, and the
// one beside it comes to its own. The control: with more there are two verdicts.
func TestRun_OutOfMemory(t *testing.T) {
	for limit, want := range map[string]string{"400M": "memory_limit unknown agent", "8G": "1"} {
		t.Run(limit, func(t *testing.T) {
			p := newPlace(t)
			p.task("eats", "python3 -c 'x = bytearray(700 << 20)'; touch /it\n", rewards, "")
			p.task("beside", "touch /it; until [ -e /.wheelhouse/go ]; do sleep 0.1; done\n", rewards, "")
			p.mkdir("wheels")
			script := `read go; "$@" | while read -r line; do echo "$line"; echo >wheels/go; done`
			cmd := p.command()
			args := []string{"run", "tasks", "--image", bed.Image("debian"), "--out", "out/run", "--scratch", p.path("scratch"), "--wheelhouse", "wheels",
				"--agent", "oracle", "--retries", "0", "-n", "2", "--no-gate", "other tests have it"}
			cmd.Args = append([]string{"bash", "-o", "pipefail", "-c", script, "bash", cmd.Path}, args...)
			cmd.Path = "/bin/bash"
			cmd.Stdin = &joins{procs: memoryGroup(t, limit), cmd: cmd}
			r := p.run(cmd)
			p.came(r, "oracle eats", want)
			p.came(r, "oracle beside", "1")
		})
	}
}

// memoryGroup is the list of processes of a new control group that may take so
// much memory.
func memoryGroup(t *testing.T, limit string) (procs string) {
	t.Helper()
	parent, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(parent + "/memory"); err == nil {
		parent, file = parent+"/memory", "memory.limit_in_bytes"
	}
	dir, err := os.MkdirTemp(parent, "fence-test-")
	if err != nil {
		bed.Missing(t, "the right to make control groups (%v)", err)
	}
	t.Cleanup(func() {
		err := os.Remove(dir)
		for end := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = os.Remove(dir) {
			time.Sleep(10 * time.Millisecond) // its last processes are ending
		}
		if err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, file), []byte(limit), 0))
	for file, most := range map[string]string{"memory.swap.max": "0", "memory.memsw.limit_in_bytes": limit} {
		if _, none := os.Stat(filepath.Join(dir, file)); err == nil && none == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(most), 0)
		}
	}
	if err != nil {
		bed.Missing(t, "a limit of memory for control groups (%v)", err)
	}
	return filepath.Join(dir, "cgroup.procs")
}

// joins is the input of a command that begins when there is a line, which is when
// it is in a control group.
type joins struct {
	procs string
	cmd   *exec.Cmd
	done  bool
}

func (j *joins) Read(b []byte) (int, error) {
	if j.done {
		return 0, io.EOF
	}
	j.done = true
	if err := os.WriteFile(j.procs, []byte(strconv.Itoa(j.cmd.Process.Pid)), 0); err != nil {
		return 0, err
	}
	return copy(b, "\n"), nil
}

// processes are those that have the folder of a box in their arguments or
// among their mounts.
func processes(dir string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		args, _ := os.ReadFile(p + "/cmdline")
		mounts, _ := os.ReadFile(p + "/mountinfo")
		if pid, err := strconv.Atoi(filepath.Base(p)); err == nil && strings.Contains(string(args)+string(mounts), dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func comm(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(name))
}

// A container that somebody kills is a fault of the node's, and nothing is left
// of it.
func TestBox_Killed(t *testing.T) {
	if !asUser(t) {
		return
	}
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		r := start(t, options(t, "debian"))
		killed := 0
		for _, pid := range processes(r.o.Scratch) {
			if strings.HasPrefix(comm(pid), "starter") {
				killed++
				if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
					t.Error(err)
				}
			}
		}
		_, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"sleep", "1000"}}, "")
		<-r.Done()
		if class(err) != "container_killed" || class(r.Err()) != "container_killed" || killed == 0 {
			t.Errorf("%v, %d: %v, %v", sig, killed, err, r.Err())
		}
	}
	// By what runs in it: the domain alone is lost.
	r := start(t, options(t, "debian"))
	_, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"sh", "-c", "kill -9 -1; sleep 1000"}}, "")
	if class(err) != "session_lost" || r.Err() != nil {
		t.Errorf("%v, %v", err, r.Err())
	}
	r.sh(box.Verifier, "true")
}

// What is left when this process is killed: nothing that runs.
func TestBox_HarnessIsKilled(t *testing.T) {
	bed.Require(t, "users", "images", "site")
	dir := bed.TempDir(t)
	cmd := userTest(t, asUserVar+"=1", holdVar+"="+dir)
	cmd.Args = append(cmd.Args[:1], "-test.run=^TestHold$", "-test.v")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := ""
	for buf := make([]byte, 1024); !strings.Contains(said, "held"); {
		n, err := out.Read(buf)
		if said += string(buf[:n]); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
	}
	var fds []unix.PollFd
	for _, pid := range processes(dir) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		defer unix.Close(fd)
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	var names []string
	for _, pid := range processes(dir) {
		names = append(names, comm(pid))
	}
	for _, want := range []string{"sleep", "fence-leader", "fuse-overlayfs", "squashfuse"} {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, want) }) {
			t.Fatalf("the control: %v", names)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, out)
	_ = cmd.Wait()
	for _, fd := range fds {
		for {
			n, err := unix.Poll([]unix.PollFd{fd}, 30000)
			if err == unix.EINTR {
				continue
			}
			if n == 0 {
				t.Errorf("left are %v", processes(dir))
			}
			break
		}
	}
	if left := processes(dir); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// TestHold is the process that is killed.
func TestHold(t *testing.T) {
	dir := os.Getenv(holdVar)
	if dir == "" {
		return
	}
	o := options(t, "debian")
	o.Scratch = filepath.Join(dir, "box")
	if err := os.Mkdir(o.Scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	r := start(t, o)
	r.sh(box.Agent, `setsid sh -c 'trap "" TERM HUP; sleep 86400.25; sleep 86400.25' >/dev/null 2>&1 & until pgrep -f '^sleep 86400'; do :; done`)
	fmt.Println("held")
	select {}
}
