package rollout

import (
	"errors"
	"fmt"
	"io"
	"os"
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
