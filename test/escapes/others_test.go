package escapes

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// Rows 56, 57, 62, 63 and 65, which need other programs than the attempt program.

// A second fence, whatever it is told to open, opens nothing that the first one closed.
func TestFenceInFence(t *testing.T) {
	b := build(t)
	p := newPlace(t, b)
	open := filepath.Join(b.dir, "open-all.toml")
	text := "version = 1\nextends = \"strict\"\n[network]\nmode = \"host\"\nwhy = \"a test\"\n"
	for _, call := range []string{"unshare", "mount", "ptrace", "io_uring_setup", "personality"} {
		text += fmt.Sprintf("[[open]]\nsyscall = %q\nwhy = \"a test\"\n", call)
	}
	if err := os.WriteFile(open, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	again := append([]string{b.fence, "--policy", open}, accepts...)
	inside := []string{"sh", "-c", `"$1" 1; "$1" 35; "$1" 53; "$1" 19 pid=$PPID; "$1" pinned hidden="$2"`, "sh", b.attempt, p.hidden}
	read := func(out string) map[string]string {
		got := map[string]string{}
		for path, steps := range byPath(t, out) {
			for step, outcome := range steps {
				got[path+step] = outcome
			}
		}
		return got
	}
	// The control: the policy opens these.
	status, said := ended(bed.Command(t, again[0], append(append(again[1:], "--"), inside...)...))
	if got := read(said); status != "OK" || got["socket"] != "OK" || got["io_uring_setup"] != "OK" || got["READ_IMPLIES_EXEC"] != "OK" || got["openat"] != "OK canary" {
		t.Fatalf("the open policy alone: %s %s", status, said)
	}
	argv := append(append(append(b.launch(namespace, p.hidden), again...), "--"), inside...)
	status, said = ended(bed.Command(t, argv[0], argv[1:]...))
	if status != "OK" {
		t.Fatalf("in the namespace form: %s %s", status, said)
	}
	got := read(said)
	for step, want := range map[string]string{
		"socket": "EAFNOSUPPORT", "io_uring_setup": "EPERM", "READ_IMPLIES_EXEC": "EPERM", "traceme": "EPERM", "openat": "ENOENT",
	} {
		if got[step] != want {
			t.Errorf("in the namespace form, %s: %s, want %s", step, got[step], want)
		}
	}
	// The outer bare form lets nobody list "/", without which the inner one
	// finds nothing to grant.
	argv = append(append(append(b.launch(bare, p.hidden), again...), "--"), inside...)
	if status, said = ended(bed.NoUserns(t, argv[0], argv[1:]...)); status != "126" && status != "125" {
		t.Errorf("in the bare form: %s %s", status, said)
	}
}

// What row 61 leaves open, limits that a person asks for close: beside each, the same without.
func TestLimitsBound(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	for _, arm := range []int{namespace, boxNamespace, bare, boxBare} {
		// In the bare form the user's other processes count too, and fence has
		// to start: with no thread to be had, Go's runtime ends.
		nproc := 100
		if arm == bare || arm == boxBare {
			uid, _, _ := bed.User(t)
			nproc += threads(t, uid)
		}
		b.more = []string{"--limit", fmt.Sprint("nproc=", nproc), "--limit", "fsize=1048576"}
		steps := b.drive(t, arm, []wire.Row{{Name: "61", With: []string{"in-tmp"}}})["61"].Steps
		for step, want := range map[string]string{"processes": "EAGAIN below 256", "tmp": "EFBIG below 32 MiB", "shm": "EFBIG below 32 MiB"} {
			got := "not tried"
			for _, s := range steps {
				if s.Step == step {
					got = s.Outcome()
				}
			}
			if got != want {
				t.Errorf("%s, %s: %s, want %s", armNames[arm], step, got, want)
			}
		}
	}
}

// threads is how many the user has on this machine, which is what RLIMIT_NPROC counts.
func threads(t *testing.T, uid int) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("the threads of this machine: %d, %v", len(tasks), err)
	}
	n := 0
	for _, task := range tasks {
		var st syscall.Stat_t
		if syscall.Lstat(task, &st) == nil && int(st.Uid) == uid {
			n++
		}
	}
	return n
}

// Where the fence has a user namespace, nproc counts the command's processes and not the rest of the user's.
func TestLimitCountsTheCommand(t *testing.T) {
	b := build(t)
	others := bed.Command(t, "sh", "-c", "exec 3<&0; for i in $(seq 60); do cat <&3 & done; echo up; wait")
	end, err := others.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := others.StdoutPipe()
	if err == nil {
		err = others.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer others.Wait()
	defer end.Close()
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for form, runs := range map[string]bool{"namespace": true, "bare": false} {
		flags := append([]string{"--form", form, "--limit", "nproc=50"}, accepts...)
		status, said := ended(bed.Command(t, b.fence, append(flags, "--", "sh", "-c", "true & wait; echo ran")...))
		if strings.Contains(said, "ran") != runs || !runs && !strings.Contains(said, "Cannot fork") {
			t.Errorf("%s: %s %s", form, status, said)
		}
	}
}

// What the caller's environment loads into programs does not enter the launcher, which is static,
// and does not reach the command either.
func TestPreloadDoesNotEnterFence(t *testing.T) {
	b := build(t)
	lib, script := filepath.Join(b.dir, "evil.so"), filepath.Join(b.dir, "evil.sh")
	source := filepath.Join(b.dir, "evil.c")
	if err := os.WriteFile(source, []byte(`#include <unistd.h>
		__attribute__((constructor)) static void evil(void) { write(2, "evil\n", 5); }`), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-Wno-unused-result", "-o", lib, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(script, []byte("echo evil >&2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"LD_PRELOAD=" + lib, "BASH_ENV=" + script} {
		for _, arm := range nodeArms {
			// By env(1), so that it is set for fence and for nothing before it.
			argv := append([]string{"env", v}, append(b.launch(arm), "bash", "-c", "exit 0")...)
			status, said := ended(b.on(t, arm, argv...))
			if loaded := strings.Contains(said, "evil"); status != "OK" || loaded != (arm == none) {
				t.Errorf("%s, %s: %s %s", v, armNames[arm], status, said)
			}
		}
	}
}

// A tmux server outside does what anybody says who reaches its socket.
func TestTmuxOutside(t *testing.T) {
	b := build(t)
	p := newPlace(t, b)
	socket := filepath.Join(p.hidden, "tmux.sock")
	tmux := func(args ...string) []string {
		return append([]string{"tmux", "-S", socket, "-f", "/dev/null"}, args...)
	}
	start := tmux("new-session", "-d", "sleep 600")
	if status, said := ended(bed.Command(t, start[0], start[1:]...)); status != "OK" {
		t.Fatalf("tmux: %s %s", status, said)
	}
	defer func() {
		stop := tmux("kill-server")
		ended(bed.Command(t, stop[0], stop[1:]...))
	}()
	for _, c := range []struct {
		arm  int
		runs bool
	}{
		{none, true},
		{namespace, false},
		// Before Landlock ABI 9 only mounts close a socket: --accept sockets was
		// given for it.
		{bare, landlockABI(t) < 9},
	} {
		marker := filepath.Join(p.base, fmt.Sprint("outside", c.arm))
		argv := append(b.launch(c.arm, p.hidden), tmux("run-shell", "touch "+marker)...)
		status, said := ended(b.on(t, c.arm, argv...))
		_, err := os.Stat(marker)
		if ran := err == nil; ran != c.runs || (status == "OK") != c.runs {
			t.Errorf("%s: the server outside ran it: %v, want %v (%s %s)", armNames[c.arm], ran, c.runs, status, said)
		}
	}
}

// The cluster's own commands from inside. They ask for seconds before they give up, so all are
// tried at once.
func TestSlurmFromInside(t *testing.T) {
	bed.Require(t, "users", "apptainer", "slurm")
	b := build(t)
	for _, arm := range nodeArms {
		for _, argv := range [][]string{
			{"srun", "--immediate=30", "true"},
			{"sbatch", "--output=/dev/null", "--wrap", "true"},
			{"scontrol", "ping"},
		} {
			t.Run(armNames[arm]+"/"+argv[0], func(t *testing.T) {
				t.Parallel()
				status, said := ended(b.on(t, arm, append(b.launch(arm), argv...)...))
				// scontrol ping says that nobody is there, whatever its status.
				if ok := status == "OK" && !strings.Contains(said, "DOWN"); ok != (arm == none) {
					t.Errorf("%s: %s", status, said)
				}
			})
		}
	}
}

// In a container as fence env starts it, the processes of the node are out of sight (rows 24 and 28),
// and its abstract sockets, which the container alone leaves open, are the fence's to close.
func TestOutsideOfContainer(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	pid, name, _, end := b.outside(t)
	defer end()
	attempts := func(attempt string) string {
		return fmt.Sprintf("%[1]s 24 pid=%[2]d; %[1]s 28 pid=%[2]d; %[1]s 14 name=%[3]s", attempt, pid, name)
	}
	out, err := bed.Command(t, "sh", "-c", attempts(b.attempt)).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr(err))
	}
	const want = `
		cmdline            OK nothing | ENOENT | ENOENT | ENOENT
		status             OK nothing | ENOENT | ENOENT | ENOENT
		sched_setaffinity  OK | ESRCH | ESRCH | ESRCH
		connect            OK | OK | ECONNREFUSED | EPERM`
	check := func(where, out string, column int) {
		t.Helper()
		got := byPath(t, out)[""]
		for _, name := range []string{"comm", "stat", "limits", "mountinfo", "cgroup", "sendto", "sendmsg"} {
			delete(got, name)
		}
		expect(t, where, got, want, column)
	}
	check("on the node", string(out), 0)
	for i, arm := range []int{boxNone, boxNamespace, boxBare} {
		cmd := b.container(t, arm == boxBare, nil, bed.Image("debian"), append(fenced(arm), "sh", "-c", attempts("/.fence/attempt"))...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, stderr(err))
		}
		check(armNames[arm], string(out), i+1)
		// The first process is in the host's network and shows it, whoever asks.
		nets := "for n in 1 self; do grep -q @" + name + " /proc/$n/net/unix && echo $n; done; true"
		out, err = b.container(t, arm == boxBare, nil, bed.Image("debian"), append(fenced(arm), "sh", "-c", nets)...).Output()
		want := "1\nself\n"
		if arm == boxNamespace {
			want = "1\n"
		}
		if err != nil || string(out) != want {
			t.Errorf("%s: the host's sockets are seen in the network of %q, want %q (%v)", armNames[arm], out, want, err)
		}
	}
}

// outside starts a victim of the same user outside of every container.
func (b tools) outside(t *testing.T) (pid int, name string, key int, end func()) {
	t.Helper()
	name, key = fmt.Sprintf("fence-escapes-outside-%d", os.Getpid()), 0x5d000000+os.Getpid()
	victim := bed.Command(t, b.attempt, "victim", "name="+name, fmt.Sprintf("key=%d", key), "hidden="+b.dir, "plain="+b.dir)
	ask, err := victim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	known := bufio.NewReader(answers)
	if _, err := known.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return victim.Process.Pid, name, key, func() {
		ask.Close()
		victim.Wait()
	}
}

// An agent's domain below a verifier's, in a session: what only a PID and an IPC
// namespace close is closed there, too. The control is a container without them
// and without a fence.
func TestOutsideOfSession(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	pid, name, key, end := b.outside(t)
	defer end()
	mark := fmt.Sprintf("hidden=/none-%d", os.Getpid())
	attempts := fmt.Sprintf(`for row in 24 26 27 28 50 51; do /.fence/attempt $row pid=%d name=%s key=%d; done
		mkfifo /tmp/never && /.fence/attempt 62 %s <>/tmp/never >/dev/null 2>&1`, pid, name, key, mark)
	const want = `
		cmdline             OK nothing | ENOENT
		comm                OK nothing | ENOENT
		status              OK nothing | ENOENT
		stat                OK nothing | ENOENT
		limits              OK nothing | ENOENT
		mountinfo           OK nothing | ENOENT
		cgroup              OK nothing | ENOENT
		get                 OK | EPERM
		set                 OK | EPERM
		setpriority         OK | EPERM
		setpriority-group   OK | EPERM
		ioprio_set          OK | EPERM
		ioprio_set-group    OK | EPERM
		sched_setscheduler  OK | EPERM
		sched_setparam      OK | EPERM
		sched_setattr       OK | EPERM
		sched_setaffinity   OK | ESRCH
		shmget              OK | ENOENT
		shmctl              OK | EINVAL
		semget              OK | ENOENT
		msgget              OK | ENOENT
		mq_open             OK | ENOENT
		mq_timedsend        OK | -
		own                 OK | OK
		own-dev-shm         OK | OK`
	box := "--bind " + b.attempt + ":/.fence/attempt:ro --overlay " + bed.TempDir(t) + " " + bed.Image("debian")
	for column, script := range []string{
		`unset APPTAINER_PID APPTAINER_IPC; apptainer -q exec ` + box + ` sh -c "$2"`,
		`"$1" serve --socket ` + b.dir + `/s -- apptainer -q exec ` + box + ` /.fence/fence serve --stdio \
			--domain agent=strict --domain verifier=verifier --below agent=verifier --private verifier=/tests &
		"$1" run --socket ` + b.dir + `/s --wait 1m --status | grep -q '"below": "verifier"' || exit 9
		"$1" run --socket ` + b.dir + `/s --domain agent -- sh -c "$2"
		kill $!; wait; true`,
	} {
		cmd := bed.Command(t, "sh", "-c", `eval "$("$1" env)"; `+script, "sh", b.fence, attempts)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, stderr(err))
		}
		got := byPath(t, string(out))[""]
		// Not told a number, of other users, or closed in the control as well.
		for _, name := range []string{"shmat", "semop", "msgsnd", "setpriority-user", "ioprio_set-user", "dev-shm", "dev-shm-write", "mq_unlink"} {
			delete(got, name)
		}
		expect(t, []string{"control", "session"}[column], got, want, column)
		left := bed.Command(t, "pkill", "-f", mark)
		if _ = left.Run(); left.ProcessState.Success() != (column == 0) {
			t.Errorf("%d: row 62: what was left lives on: %v", column, left.ProcessState.Success())
		}
	}
}

// A daemon that a command leaves lives on, fenced (row 62); in a container as fence env starts it,
// it ends with the container.
func TestContainerEndsWhatIsLeft(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	for _, c := range []struct {
		what  string
		cmd   *exec.Cmd
		lives bool
	}{
		{"on the node", bed.Command(t, b.fence, "--", b.attempt, "62", "hidden=/none"), true},
		{"in a container", b.container(t, false, nil, bed.Image("debian"), "/.fence/fence", "--", "/.fence/attempt", "62", "hidden=/none"), false},
	} {
		stdin, err := c.cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.SetReadDeadline(time.Now().Add(time.Minute)) // it ends, or this fails
		c.cmd.Stdout = write
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		write.Close()
		lines := bufio.NewReader(read)
		if first, err := lines.ReadString('\n'); !strings.Contains(first, "stays") {
			t.Fatalf("%s: %q %v", c.what, first, err)
		}
		if _, err := c.cmd.Process.Wait(); err != nil {
			t.Fatal(err)
		}
		// The command has ended. Only one that lives reports at the end of its
		// standard input.
		stdin.Close()
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Errorf("%s: it keeps its standard output open: %v", c.what, err)
		}
		if lived := len(rest) > 0; lived != c.lives {
			t.Errorf("%s: what was left lives: %v, want %v: %s", c.what, lived, c.lives, rest)
		}
		read.Close()
	}
}
