package supervise

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/bed"
)

// patience is for a machine that does other things too; nothing takes that long.
const patience = 60 * time.Second

// start starts a command whose supervisor is the process itself, with pipes. end waits for it.
func start(t *testing.T, cmd *exec.Cmd) (in io.WriteCloser, out *bufio.Reader, end func() syscall.WaitStatus) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not cmd.StdoutPipe, which Wait closes: what is left of a command may still write.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); in.Close() })
	r.SetReadDeadline(time.Now().Add(patience))
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return in, bufio.NewReader(r), func() syscall.WaitStatus {
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(cmd.Process.Pid, &ws, 0, nil); err != nil {
			t.Fatal(err)
		}
		return ws
	}
}

func line(t *testing.T, out *bufio.Reader) string {
	t.Helper()
	text, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%q, and then %v", text, err)
	}
	return text
}

func expect(t *testing.T, out *bufio.Reader, want string) {
	t.Helper()
	if got := strings.TrimSpace(line(t, out)); got != want {
		t.Fatalf("%q, want %q", got, want)
	}
}

// Exit codes and the signals that a command dies of are the command's own.
func TestEnds(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		for script, want := range map[string]string{
			"exit 0": "exit status 0", "exit 7": "exit status 7", "exit 255": "exit status 255",
			"kill -TERM $$": "terminated", "kill -KILL $$": "killed", "kill -SEGV $$": "segmentation fault", "kill -INT $$": "interrupt",
		} {
			cmd := n.fenced("/bin/sh", "-c", script)
			err := cmd.Run()
			got := "exit status 0"
			if err != nil {
				got = strings.TrimPrefix(err.Error(), "signal: ")
			}
			if strings.TrimSuffix(got, " (core dumped)") != want {
				t.Errorf("%s: %s, want %s", script, got, want)
			}
		}
		for name, code := range map[string]int{"/bin/none": 127, "/etc/passwd": 126} {
			if err := n.fenced(name).Run(); err == nil || err.Error() != fmt.Sprint("exit status ", code) {
				t.Errorf("%s: %v, want %d", name, err, code)
			}
		}
	})
}

// A signal to the process that was started is one to the command, once; so is one to its group, which
// has both of them, from a terminal.
func TestSignals(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		// A signal that comes just before a call that waits ends the wait by the
		// byte that Python writes then.
		cmd := n.fenced("python3", "-c", `
import os, select, signal, sys
say = lambda text: os.write(1, (text + "\n").encode())
came, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
for s in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "WINCH", "ALRM"):
    signal.signal(getattr(signal, "SIG" + s), lambda n, f: say(signal.Signals(n).name))
signal.signal(signal.SIGRTMIN + 3, lambda n, f: say("RT"))
say("ready")
while True:
    ready = select.select([0, came], [], [])[0]
    if came in ready: os.read(came, 100)
    if 0 in ready:
        if not os.read(0, 100): sys.exit(9)
        say("line")
`)
		in, out, end := start(t, cmd)
		expect(t, out, "ready")
		for _, s := range []struct {
			signal syscall.Signal
			name   string
		}{{syscall.SIGHUP, "SIGHUP"}, {syscall.SIGINT, "SIGINT"}, {syscall.SIGQUIT, "SIGQUIT"}, {syscall.SIGTERM, "SIGTERM"}, {syscall.SIGUSR1, "SIGUSR1"},
			{syscall.SIGUSR2, "SIGUSR2"}, {syscall.SIGCONT, "SIGCONT"}, {syscall.SIGWINCH, "SIGWINCH"}, {syscall.SIGALRM, "SIGALRM"}, {syscall.Signal(37), "RT"}} {
			if err := cmd.Process.Signal(s.signal); err != nil {
				t.Fatal(err)
			}
			expect(t, out, s.name)
		}
		in.Write([]byte("\n"))
		expect(t, out, "line") // and no signal came twice
		in.Close()
		if ws := end(); ws.ExitStatus() != 9 {
			t.Errorf("it ended with %v", ws)
		}
	})
}

// Nothing of the supervisor's keeps a pipe open that the command has closed.
func TestPipes(t *testing.T) {
	n := newNode(t, "namespace")
	cmd := n.fenced("/bin/sh", "-c", `exec >&- 2>&-; read x; exit 4`)
	in, out, end := start(t, cmd)
	if text, err := out.ReadString('\n'); err != io.EOF {
		t.Errorf("%q, %v", text, err)
	}
	in.Write([]byte("\n"))
	if ws := end(); ws.ExitStatus() != 4 {
		t.Errorf("it ended with %v", ws)
	}
}

// On a terminal: ^C reaches the command once, ^Z stops the job with the signal that a shell expects, and
// the shell's SIGCONT starts both again. What orphans are left, the supervisor takes and lets end.
func TestTerminal(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		ptmx, tty := openPTY(t)
		defer ptmx.Close()
		cmd := n.fenced("python3", "-c", `
import os, select, signal, subprocess, sys
say = lambda *words: os.write(1, (" ".join(map(str, words)) + "\n").encode())
count = 0
def hit(n, f):
    global count; count += 1; say("hit", count)
came, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGINT, hit)
signal.signal(signal.SIGCONT, lambda n, f: say("continued"))
subprocess.run(["sh", "-c", "sleep 0 & "])
say("ready", os.tcgetpgrp(0) == os.getpgrp())
while True:
    ready = select.select([0, came], [], [])[0]
    if came in ready: os.read(came, 100)
    if 0 not in ready: continue
    line = os.read(0, 100).decode().strip()
    if line == "end":
        say("hits", count); sys.exit(5)
    say("line", line)
`)
		onTTY(cmd, tty)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		out := bufio.NewReader(ptmx)
		until := func(want string) {
			t.Helper()
			for {
				text, err := out.ReadString('\n')
				if err != nil {
					t.Fatalf("waiting for %q: %q, %v", want, text, err)
				}
				if strings.Contains(text, want) {
					return
				}
			}
		}
		until("ready True")
		ptmx.Write([]byte{3}) // ^C
		until("hit 1")
		ptmx.Write([]byte("one\n"))
		until("line one")
		// The process is the leader of its session here, whose group is orphaned: ^Z does nothing to it, as
		// without a supervisor. TestJobControl has a shell. SIGSTOP stops the command, and so the job.
		pid := cmd.Process.Pid
		child := childOf(t, pid)
		if err := syscall.Kill(child, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() || ws.StopSignal() != syscall.SIGSTOP {
			t.Fatalf("the job is not stopped: %v, %v", ws, err)
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		until("continued")
		ptmx.Write([]byte("two\n"))
		until("line two")
		ptmx.Write([]byte("end\n"))
		until("hits 1")
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 5 {
			t.Errorf("it ended with %v, %v", ws, err)
		}
	})
}

func childOf(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if n, err := fmt.Sscan(string(data), &child); n != 1 || err != nil {
		t.Fatalf("the children of %d are %q", pid, data)
	}
	return child
}

// In an interactive shell with jobs: ^Z, jobs, fg, ^C in a pipeline, and a fenced shell with jobs of its own.
func TestJobControl(t *testing.T) {
	onNodes(t, func(t *testing.T, n node) {
		ptmx, tty := openPTY(t)
		defer ptmx.Close()
		cmd := n.limited("bash", "--norc", "--noprofile", "-i")
		cmd.Env = append(cmd.Env, "PS1=$ ", "TERM=dumb")
		onTTY(cmd, tty)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		tty.Close()
		out := bufio.NewReader(ptmx)
		var seen strings.Builder
		until := func(want string) {
			t.Helper()
			timer := time.AfterFunc(patience, func() { cmd.Process.Kill(); ptmx.Close() })
			defer timer.Stop()
			seen.Reset()
			for !strings.Contains(seen.String(), want) {
				b, err := out.ReadByte()
				if err != nil {
					t.Fatalf("waiting for %q: %v, after\n%s", want, err, seen.String())
				}
				seen.WriteByte(b)
			}
		}
		typed := func(text string) { ptmx.Write([]byte(text)) }
		fence := "'" + strings.Join(n.argv(), "' '") + "'"
		typed("stty -echo; set +o history; echo re''ady\n")
		until("ready")
		typed(fence + ` sh -c 'echo star"ted"; trap "echo caught; exit 3" INT; read x; echo "got $x"; read y'` + "\n")
		until("started")
		typed("\x1a")
		until("Stopped")
		typed("jobs -l; fg; echo st=$?\n")
		until("Stopped")
		typed("hello\n")
		until("got hello")
		typed("\x03")
		until("caught")
		until("st=3")
		// In a pipeline both die of it.
		typed(fence + ` sh -c 'echo star"ted" >/dev/tty; exec sleep 1000' | cat` + "\n")
		until("started")
		typed("\x03")
		typed("echo st=${PIPESTATUS[*]}\n")
		until("st=130 130")
		// A shell of its own inside, with jobs.
		typed(fence + " bash --norc --noprofile -i\n")
		typed("stty -echo; PS1='% '; echo ins''ide\n")
		until("inside")
		typed("cat\nhey\n")
		until("hey")
		typed("\x1a")
		until("Stopped")
		typed("echo job$(jobs | wc -l); kill -9 %1; fg\n")
		until("job1")
		typed("exit 6\n")
		typed("echo code=$?\n")
		until("code=6")
		typed("exit\n")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func openPTY(t *testing.T) (ptmx, tty *os.File) {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint("/dev/pts/", number)
	uid, gid := person(t)
	if err := os.Chown(name, uid, gid); err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ptmx, tty
}

// onTTY makes tty the terminal of cmd, in a session of its own.
func onTTY(cmd *exec.Cmd, tty *os.File) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

func person(t *testing.T) (uid, gid int) {
	uid, gid, _ = bed.User(t)
	return uid, gid
}
