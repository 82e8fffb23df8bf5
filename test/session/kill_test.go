package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
	"fence/test/bed"
	"fence/test/clitest"
)

// leave starts what is hardest to end: in the background, of a session of its
// own, deaf to what can be ignored, and starting more.
const leave = `trap '' TERM HUP INT
(setsid sh -c 'trap "" TERM HUP INT; sleep '$1' & sleep '$1) >/dev/null 2>&1 &
setsid setsid sleep $1 >/dev/null 2>&1 &
until [ $(pgrep -fc "^sleep $1") -ge 3 ]; do :; done`

// Who waits for a session that does not answer is ended as any other program.
func TestSignals_BeforeAnAnswer(t *testing.T) {
	dir := bed.TempDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	os.Chmod(filepath.Join(dir, "s"), 0o777)
	ends := []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP}
	signal.Notify(make(chan os.Signal, 1), ends...) // who started us may have them ignored, and what we start would inherit that
	defer signal.Reset(ends...)
	for _, sig := range ends {
		cmd := bed.Command(t, bed.Bin(t, "fence"), "run", "--socket", filepath.Join(dir, "s"), "--", "true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil { // it has said what it wants
			t.Fatal(err)
		}
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
		if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != sig {
			t.Errorf("after %v it ends with %v", sig, cmd.ProcessState)
		}
		c.Close()
	}
}

// Descriptors that a domain has on their way keep nobody else from sending.
func TestDescriptorsInFlight(t *testing.T) {
	socket, serve := hosted(t, "agent=strict", "verifier=strict", "ulimit -n 4096")
	p := &place{t: t, Client: session.Dial(socket, 0), said: serve.said, mark: newMark()}
	got := p.sh("agent", `mkfifo /tmp/said; setsid python3 -c '
import array, errno, socket
pairs = []
def send(n):
    a, b = socket.socketpair()
    pairs.append((a, b))
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * n))])
ended = set()
for n in 253, 1:
    try:
        while True: send(n)
    except OSError as e: ended.add(errno.errorcode[e.errno])
with open("/tmp/said", "w") as f: print(*ended, file=f)
pairs[0][0].recv(1)' "$1" >/dev/null 2>&1 & cat /tmp/said`)
	if got != "ETOOMANYREFS\n" {
		t.Fatalf("the agent holds as many as it can: %q", got)
	}
	for _, domain := range []string{"verifier", "agent"} {
		if got := p.sh(domain, "echo on"); got != "on\n" {
			t.Errorf("%s: %q", domain, got)
		}
	}
	if err := p.End(t.Context(), "agent"); err != nil {
		t.Error(err)
	}
}

// What a domain leaves in the background with its output has a bound, and costs
// other domains nothing: neither descriptors nor the processor.
func TestLeftBehind(t *testing.T) {
	socket, serve := hosted(t, "agent=strict", "verifier=strict", "ulimit -n 128")
	p := &place{t: t, Client: session.Dial(socket, 0), said: serve.said, mark: newMark()}
	for range 70 {
		p.sh("agent", `setsid sleep $1 &`)
	}
	for _, domain := range []string{"verifier", "agent"} {
		if got := p.sh(domain, "echo on"); got != "on\n" {
			t.Errorf("%s: %q", domain, got)
		}
	}
	// Many at once, more than there is room for: each is served or lost.
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() { p.try(session.Command{Argv: []string{"true"}}, "") })
	}
	all.Wait()
	if got := p.sh("verifier", "echo on"); got != "on\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// Who writes for ever to nobody takes little of the broker's time, less than a
// fifth of what a command beside takes.
func TestLeftBehind_Writes(t *testing.T) {
	p := newPlace(t, "namespace")
	broker, _ := p.inside()
	used := func() (ticks int) {
		for _, field := range []int{11, 12} {
			n, _ := strconv.Atoi(stat(broker, field))
			ticks += n
		}
		return ticks
	}
	p.sh("agent", `yes & true`)
	before := used()
	p.sh("verifier", `python3 -c "
import time
while time.process_time() < 2: pass"`)
	if n := used() - before; n > 40 {
		t.Errorf("the broker has taken %d ticks in 200 of a command's", n)
	}
}

// A caller that goes while a launch waits for what never comes takes it along.
func TestKilled_Launching(t *testing.T) {
	dir := bed.TempDir(t)
	cmd := inContainer(t, `mkfifo `+dir+`/p.toml; fence serve --socket `+dir+`/s -- apptainer -q exec --bind `+dir+`:`+dir+` $IMG /.fence/fence serve --stdio --domain agent=`+dir+`/p.toml & echo $!; wait`)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var serve int
	if _, err := fmt.Fscan(out, &serve); err != nil {
		t.Fatal(err)
	}
	launch := func(pid int) bool {
		line := cmdline(pid)
		return len(line) > 2 && line[1] == "--policy" && line[2] == dir+"/p.toml"
	}
	for len(find(launch)) == 0 && t.Context().Err() == nil {
	}
	_ = unix.Kill(serve, unix.SIGKILL)
	_ = cmd.Wait()
	waitGone(t, "a launch", func(pid int) bool { return slices.Contains(cmdline(pid), "agent="+dir+"/p.toml") || launch(pid) })
}

// Whoever of those that keep the session up is killed: nothing of it is left.
// newPlace's cleanup waits for the end of each process, and of the runtime's
// helpers.
func TestKilled(t *testing.T) {
	for name, kill := range map[string]func(p *place){
		"the caller's end of the channel": func(p *place) { p.hangUp() },
		"the broker": func(p *place) {
			broker, _ := p.inside()
			if err := unix.Kill(broker, unix.SIGKILL); err != nil {
				p.t.Fatal(err)
			}
		},
		"apptainer, asked": func(p *place) { p.runtime.Process.Signal(unix.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			forms(t, func(p *place) {
				p.sh("agent", leave)
				p.sh("verifier", `setsid sleep $1 >/dev/null 2>&1 &`)
				done := make(chan error, 1)
				r, w := io.Pipe()
				go func() {
					_, err := p.Run(context.Background(), session.Command{Domain: "agent", Argv: []string{"sh", "-c", "echo; exec sleep " + p.mark}}, session.Streams{Out: w})
					done <- err
				}()
				r.Read(make([]byte, 1))
				kill(p)
				if err := <-done; code(err) != session.CodeLost {
					p.t.Errorf("who waits for a command hears %v", err)
				}
				_ = p.runtime.Wait()
				p.nothingLeft()
				if _, err := p.Status(p.t.Context()); code(err) != session.CodeLost {
					p.t.Errorf("who asks later hears %v", err)
				}
			})
		})
	}
}

// The same where a script started it: the script, fence serve, apptainer.
func TestKilled_Hosted(t *testing.T) {
	for _, who := range []string{"the script", "fence serve", "apptainer"} {
		t.Run(who, func(t *testing.T) {
			socket, serve := hosted(t, "agent=strict")
			p := &place{t: t, Client: session.Dial(socket, 0), said: serve.said, mark: newMark()}
			p.sh("agent", leave)
			helpers := 0
			var sid int
			find(func(pid int) bool { // apptainer leads a session of its own
				if stat(pid, 1) == fmt.Sprint(serve.pid) {
					sid = pid
				}
				return false
			})
			for range find(func(pid int) bool { return stat(pid, 3) == fmt.Sprint(sid) }) {
				helpers++
			}
			if sid == 0 || helpers < 2 {
				t.Fatalf("apptainer is %d, with %d processes", sid, helpers)
			}
			switch who {
			case "the script":
				serve.caller.Kill()
			case "fence serve":
				unix.Kill(serve.pid, unix.SIGKILL)
			default:
				unix.Kill(sid, unix.SIGKILL)
			}
			waitGone(t, who+" was killed", func(pid int) bool {
				return marked(p.mark)(pid) || stat(pid, 3) == fmt.Sprint(sid) || pid == serve.pid
			})
			_, err := os.Stat(socket)
			if left := err == nil; left != (who == "fence serve") { // nobody is there to remove it
				t.Errorf("%s was killed, and the socket: %v", who, err)
			}
			if _, err := p.Status(t.Context()); code(err) != session.CodeLost {
				t.Errorf("%s was killed, and a client hears %v", who, err)
			}
		})
	}
}

// A client that is killed takes its command along.
func TestKilled_Client(t *testing.T) {
	socket, _ := hosted(t, "agent=strict")
	for _, flags := range []string{"", "--tty"} {
		mark := newMark()
		line := []string{"run", "--socket", socket, "--", "sh", "-c", "trap '' HUP TERM; (sleep " + mark + ") & echo ready; sleep " + mark}
		if flags != "" {
			line = append(line[:3:3], append([]string{flags}, line[3:]...)...)
		}
		cmd := bed.Command(t, bed.Bin(t, "fence"), line...)
		cmd.Stdin, _ = os.Open(os.DevNull)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		buf := make([]byte, 7)
		if _, err := io.ReadFull(out, buf[:5]); err != nil || string(buf[:5]) != "ready" {
			t.Fatalf("%q %v", buf, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		waitGone(t, "the command of a killed client "+flags, marked(mark))
	}
}

// A domain that loses its leader, or whose leader does not answer, is lost;
// the other goes on. What is left of it is killed. In a PID namespace of its
// own a leader is out of its commands' reach, and is ended from outside.
func TestLeaderKilled(t *testing.T) {
	forms(t, func(p *place) {
		from := func() {}
		if p.state("agent").PIDNamespace {
			r, err := p.try(session.Command{Argv: []string{"bash", "-c", "for s in TERM KILL STOP INT HUP QUIT ABRT TSTP ILL TRAP BUS FPE SEGV STKFLT SYS PIPE USR1 ALRM; do kill -$s $PPID || exit 9; done; kill -9 -1; echo on"}}, "")
			if err != nil || r.out != "on\n" {
				p.t.Errorf("its commands end a leader: %v %+v", err, r)
			}
			leader := p.leader("agent")
			from = func() { _ = unix.Kill(leader, unix.SIGKILL) }
		}
		waiting := make(chan error, 1)
		r, w := io.Pipe()
		go func() {
			_, err := p.Run(p.t.Context(), session.Command{Domain: "agent", Argv: []string{"sh", "-c", "trap '' TERM; echo; sleep " + p.mark}}, session.Streams{Out: w})
			waiting <- err
		}()
		r.Read(make([]byte, 1))
		// All that a command can reach, itself and its leader included.
		var err error
		if p.state("agent").PIDNamespace {
			p.sh("agent", leave)
			from()
		} else {
			_, err = p.try(session.Command{Argv: []string{"bash", "-c", leave + "; kill -9 -1; kill -9 $PPID; sleep $1", "bash", p.mark}}, "")
		}
		heard := []error{<-waiting}
		if err != nil {
			heard = append(heard, err)
		}
		for _, err := range heard {
			if code(err) != session.CodeLost || !strings.Contains(err.Error(), "the domain agent is lost: its leader was killed") {
				p.t.Errorf("a command hears %v", err)
			}
		}
		if left := find(marked(p.mark)); len(left) > 0 {
			p.t.Errorf("left are %v", left)
		}
		if _, err := p.try(session.Command{Argv: []string{"true"}}, ""); code(err) != session.CodeLost {
			p.t.Errorf("the next hears %v", err)
		}
		if got := p.sh("verifier", `echo on`); got != "on\n" {
			p.t.Errorf("the other domain: %q", got)
		}
		st, err := p.Status(p.t.Context())
		if err != nil || st.Domains[0].State != "lost" || st.Domains[1].State != "alive" || st.Domains[0].Running != 0 {
			p.t.Errorf("%+v %v", st, err)
		}
	})
}

// Deadlines are not the leader's to keep.
func TestLeaderStopped(t *testing.T) {
	t.Parallel() // most of it is waiting for the leader
	p := newPlace(t, "bare")
	begin := time.Now()
	_, err := p.try(session.Command{Argv: []string{"bash", "-c", `kill -STOP $PPID; exec sleep $1`, "bash", p.mark}, Timeout: 200, Grace: 200}, "")
	if code(err) != session.CodeLost || !strings.Contains(err.Error(), "its leader does not answer") {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	if left := find(marked(p.mark)); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	p.sh("verifier", `echo on`)
}

// storm is a program whose processes fork and end faster than anybody lists
// them.
const storm = `cat >/tmp/storm <<'EOF'
import os
os.setsid()
for i in range(8):
    if os.fork() == 0:
        while True:
            if os.fork(): os._exit(0)
            os.setsid()
            if os.fork(): os._exit(0)
EOF
`

// A domain whose leader is gone cannot take its processes along: the broker
// chases them, and if it does not catch up, the session ends. Either way
// nothing of the storm is left, and who waits hears of it.
func TestLeaderKilledInAStorm(t *testing.T) {
	p := newPlace(t, "bare") // a PID namespace has no storm that outlives its first process
	_, err := p.try(session.Command{Argv: []string{"bash", "-c", storm + `python3 /tmp/storm $1 & until pgrep -f '^python3 /tmp/storm' >/dev/null; do :; done; kill -9 $PPID`, "bash", p.mark}}, "")
	if code(err) != session.CodeLost {
		t.Errorf("a command hears %v", err)
	}
	_, after := p.Status(t.Context())
	t.Logf("%v; the session afterwards: %v", err, after)
	waitGone(t, "a storm", marked(p.mark))
}

// A storm of forks ends with the domain.
func TestEnd(t *testing.T) {
	forms(t, func(p *place) {
		p.sh("agent", leave)
		p.sh("agent", storm+`python3 /tmp/storm $1 >/dev/null 2>&1 &`)
		p.sh("verifier", `sleep $1 >/dev/null 2>&1 & echo $! >/tmp/mine; until grep -aq ^sleep /proc/$!/cmdline; do :; done`)
		if err := p.End(p.t.Context(), "agent"); err != nil {
			p.t.Fatal(err)
		}
		if left := find(func(pid int) bool {
			line := cmdline(pid)
			return marked(p.mark)(pid) && line[0] != "sleep" || len(line) > 1 && line[1] == "/tmp/storm" && marked(p.mark)(pid)
		}); len(left) > 0 {
			p.t.Errorf("left are %v", left)
		}
		if n := len(find(marked(p.mark))); n != 1 {
			p.t.Errorf("%d processes, and the verifier's is one", n)
		}
		p.sh("verifier", `kill $(cat /tmp/mine)`)
		if err := p.End(p.t.Context(), "agent"); code(err) != session.CodeLost {
			p.t.Errorf("ended twice: %v", err)
		}
		st, err := p.Status(p.t.Context())
		if err != nil || st.Domains[0].State != "ended" {
			p.t.Errorf("%+v %v", st, err)
		}
		record, err := json.Marshal(st)
		if err == nil {
			err = clitest.Validate(p.t, "fence.session", record)
		}
		if err != nil {
			p.t.Errorf("%v\n%s", err, record)
		}
		if clitest.Validate(p.t, "fence.session", bytes.Replace(record, []byte("{"), []byte(`{"surprise":1,`), 1)) == nil {
			p.t.Error("the schema takes an unknown field")
		}
	})
}

// At any moment, while the session starts, works or ends.
func TestKilled_AtAnyMoment(t *testing.T) {
	moments := 6
	if os.Getenv("TEST_FULL") != "" {
		moments = 30
	}
	for i := range moments {
		socket := filepath.Join(bed.TempDir(t), "s")
		mark := newMark()
		cmd := inContainer(t, `fence serve --socket `+socket+` -- apptainer -q exec $IMG /.fence/fence serve --stdio --domain agent=strict & echo $!
			fence run --socket `+socket+` --wait 20s -- bash -c 'while :; do setsid sleep `+mark+` & sleep 0.01; done' >/dev/null 2>&1 &
			wait`)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var serve, runtime int
		fmt.Fscan(out, &serve)
		// A moment is when so many of its processes have been seen.
		deadline := time.Now().Add(30 * time.Second)
		for n := 0; n < 1+i*12/moments && time.Now().Before(deadline); {
			n = len(find(func(pid int) bool {
				if stat(pid, 1) == fmt.Sprint(serve) {
					runtime = pid
				}
				return runtime != 0 && stat(pid, 3) == fmt.Sprint(runtime) || marked(mark)(pid)
			}))
		}
		victim := []int{cmd.Process.Pid, serve, runtime}[i%3]
		if victim == 0 {
			victim = serve
		}
		_ = unix.Kill(victim, unix.SIGKILL)
		waitGone(t, fmt.Sprintf("moment %d, process %d of %d, %d, %d", i, victim, cmd.Process.Pid, serve, runtime), func(pid int) bool {
			return marked(mark)(pid) || runtime != 0 && stat(pid, 3) == fmt.Sprint(runtime) || pid == serve ||
				pid != cmd.Process.Pid && slices.Contains(cmdline(pid), socket)
		})
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// Whoever makes the first process of a domain ends before that asks to end with
// its parent, however long it takes: here each process ends 2 s late.
func TestDomainsOutliveTheirMakers(t *testing.T) {
	bed.Require(t, "tools")
	args := strings.Fields("-f -qq -o /dev/null -e trace=exit_group -e inject=exit_group:delay_enter=2000000")
	p := placeOf(t, bed.Command(t, "strace", append(args, bed.Bin(t, "fence"), "serve", "--stdio", "--domain", "agent=strict")...))
	// Without it a domain would come up in another way.
	if r, err := p.try(session.Command{Argv: []string{"echo", "on"}}, ""); err != nil || r.out != "on\n" || !p.state("agent").PIDNamespace {
		t.Errorf("%v %+v %+v", err, r, p.state("agent"))
	}
}
