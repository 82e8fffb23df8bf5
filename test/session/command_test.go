package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
)

// mknod fails in two ways: Landlock's, and the one that any user sees.
const fenced = `mknod /tmp/device-$$ c 1 3 2>&1 | sed 's/.*: //'; grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status`

// Every command is fenced, whichever thread of the leader started it.
func TestEveryCommandIsFenced(t *testing.T) {
	const want = "Permission denied\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	control := inContainer(t, `apptainer -q exec $IMG bash -c "$1"`)
	control.Args = append(control.Args, "bash", fenced)
	out, err := control.Output()
	if err != nil || !strings.HasPrefix(string(out), "Operation not permitted\n") || !strings.HasSuffix(string(out), "Seccomp:\t0\n") {
		t.Fatalf("control: %v\n%s", err, out)
	}
	forms(t, func(p *place) {
		n := 200
		if os.Getenv("TEST_FULL") != "" || p.t.Name() == "TestEveryCommandIsFenced/namespace" {
			n = 1000
		}
		var all sync.WaitGroup
		for worker := range 4 {
			all.Go(func() {
				for i := worker; i < n; i += 4 {
					r, err := p.try(session.Command{Argv: []string{"sh", "-c", fenced}}, "")
					if err != nil || r.out != want {
						p.t.Errorf("command %d: %v\n%s%s", i, err, r.out, r.err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

// A later command ends what an earlier one left running, and what it left
// running lives until then, also when it writes to where nobody reads.
func TestLaterCommandsMeetEarlierOnes(t *testing.T) {
	forms(t, func(p *place) {
		p.sh("agent", `mkfifo /tmp/go /tmp/done
			(read x </tmp/go; echo to nobody; echo also >&2; echo $? >/tmp/done; exec sleep $1) &`)
		if got := p.sh("agent", `echo go >/tmp/go; cat /tmp/done`); got != "0\n" {
			t.Errorf("the server writes to nobody: %q", got)
		}
		p.sh("verifier", `if pkill -f "sleep $1"; then exit 1; fi`) // it sees it, and cannot
		p.sh("agent", `until pgrep -f "^sleep $1"; do :; done; pkill -f "^sleep $1"`)
		waitGone(p.t, "an earlier command", marked(p.mark))
	})
}

// Of other domains, the broker and the own leader, a command reaches nothing.
// What works with its own domain's earlier command is the control.
func TestWalls(t *testing.T) {
	forms(t, func(p *place) {
		if p.state("agent").PIDNamespace { // nobody else is there to be reached
			p.sh("verifier", `sleep $1 >/dev/null 2>&1 &`)
			got := p.sh("agent", `sleep $1 >/dev/null 2>&1 & python3 - $$ $! <<'EOF'
import errno, os, sys
mine = {os.getpid(), *map(int, sys.argv[1:])}
for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdigit()):
    if pid in mine: continue
    print(pid, open(f"/proc/{pid}/cmdline").read().replace("\0", " "))
    for f in "mem", "environ", "root", "cwd", "fd/3":
        try: os.close(os.open(f"/proc/{pid}/{f}", os.O_RDONLY)); print(f)
        except OSError as e: print(f, errno.errorcode[e.errno])
# Whose sockets /proc/1/net shows: none but this domain's own.
print(sum(len(open(f"/proc/1/net/{f}").readlines()) - 1 for f in ("tcp", "udp", "unix")))
EOF`)
			if want := "1 /proc/self/exe leader \nmem EACCES\nenviron EACCES\nroot EACCES\ncwd EACCES\nfd/3 EACCES\n0\n"; got != want {
				p.t.Errorf("the agent's domain sees\n%s\nwant\n%s", got, want)
			}
			return
		}
		for _, domain := range []string{"agent", "verifier"} {
			p.sh(domain, `sleep $1 >/dev/null 2>&1 & echo $! >/tmp/`+domain+`.pid`)
		}
		got := p.sh("agent", `python3 - <<'EOF'
import errno, os
mine = os.getppid()
while True:
    line = open(f"/proc/{mine}/cmdline").read().split("\0")
    if line[1] == "leader": break
    mine = int(open(f"/proc/{mine}/stat").read().rpartition(")")[2].split()[1])
broker = int(open(f"/proc/{mine}/stat").read().rpartition(")")[2].split()[1])
other = next(int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != mine and open(f"/proc/{p}/cmdline").read().split("\0")[1:2] == ["leader"])
def name(e): return errno.errorcode[e.errno]
def attempt(f):
    try: f(); return "ok"
    except OSError as e: return name(e)
# /tmp is one of each domain's own in neither form: the container's
earlier = int(open("/tmp/agent.pid").read())
foreign = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != earlier and open(f"/proc/{p}/cmdline").read().startswith("sleep\0")][0]
for who, pid in ("earlier", earlier), ("own leader", mine), ("broker", broker), ("other leader", other), ("other command", foreign):
    print(who, *(f"{f}={attempt(lambda: os.close(os.open(f'/proc/{pid}/{f}', os.O_RDONLY)))}" for f in ("mem", "environ", "root", "cwd")), "kill=" + attempt(lambda: os.kill(pid, 0)))
EOF`)
		want := `earlier mem=ok environ=ok root=ok cwd=ok kill=ok
own leader mem=EACCES environ=EACCES root=EACCES cwd=EACCES kill=ok
broker mem=EACCES environ=EACCES root=EACCES cwd=EACCES kill=EPERM
other leader mem=EACCES environ=EACCES root=EACCES cwd=EACCES kill=EPERM
other command mem=EACCES environ=EACCES root=EACCES cwd=EACCES kill=EPERM
`
		if got != want {
			p.t.Errorf("the agent's domain reaches\n%s\nwant\n%s", got, want)
		}
	})
}

// At its deadline a command ends with its children and theirs.
func TestTimeout(t *testing.T) {
	forms(t, func(p *place) {
		for _, tc := range []struct {
			name, script string
			signal       int
		}{
			{"by SIGTERM", `sleep $1 & (sleep $1 & sleep $1) & sleep $1`, 15},
			{"by SIGKILL", `trap '' TERM; sleep $1 & (sleep $1 & sleep $1) & sleep $1`, 9},
			{"children that do not listen", `(trap '' TERM; sleep $1 & sleep $1) & exec sleep $1`, 15},
			{"jobs in groups of their own", `set -m; (trap '' TERM; sleep $1) & exec sleep $1`, 15},
		} {
			r := p.do(session.Command{Argv: []string{"bash", "-c", tc.script, "bash", p.mark}, Timeout: 300, Grace: 300}, "")
			if r.exit.Signal != tc.signal || !r.exit.TimedOut || r.exit.Reason == "" {
				p.t.Errorf("%s: %+v", tc.name, r.exit)
			}
			if left := find(marked(p.mark)); len(left) > 0 {
				p.t.Errorf("%s: processes %v are left", tc.name, left)
			}
		}
		// Not at its deadline, it is as it would be.
		if r := p.do(session.Command{Argv: []string{"true"}, Timeout: 60000}, ""); r.exit.Code != 0 || r.exit.TimedOut {
			p.t.Errorf("in time: %+v", r.exit)
		}
	})
}

func TestHowItEnds(t *testing.T) {
	forms(t, func(p *place) {
		for script, want := range map[string]session.Exit{
			"exit 0": {}, "exit 3": {Code: 3}, "exit 255": {Code: 255},
			"kill -TERM $$": {Code: 143, Signal: 15}, "kill -KILL $$": {Code: 137, Signal: 9}, "kill -ABRT $$": {Code: 134, Signal: 6},
		} {
			r := p.do(session.Command{Argv: []string{"sh", "-c", script}}, "")
			got := r.exit
			got.UserUS, got.SystemUS, got.MaxRSSKB = 0, 0, 0
			if got != want {
				p.t.Errorf("%s: %+v, want %+v", script, got, want)
			}
		}
		for _, tc := range []struct {
			cmd  session.Command
			code int
			says string
		}{
			{session.Command{Argv: []string{"no-such-program"}}, 127, "no-such-program: no such command inside the fence"},
			{session.Command{Argv: []string{"/no/such"}}, 127, "/no/such: no such command inside the fence"},
			{session.Command{Argv: []string{"/etc/passwd"}}, 126, "executing /etc/passwd: permission denied"},
			{session.Command{Argv: []string{"/etc"}}, 126, "executing /etc: permission denied"},
			{session.Command{Argv: []string{""}}, 127, ""},
			{session.Command{Argv: []string{"true"}, Dir: "/no/such"}, 125, "the folder /no/such: no such file or directory"},
			{session.Command{Argv: []string{"true"}, Domain: "nobody"}, 2, `the session has no domain "nobody"`},
			{session.Command{Argv: []string{"true"}, Limits: map[string]uint64{"luck": 7}}, 2, `the limit "luck" is not known`},
			{session.Command{Argv: []string{"true"}, Env: []string{"novalue"}}, 2, "a variable is not NAME=VALUE"},
			{session.Command{Argv: []string{"echo", "a\x00b"}}, 2, "not UTF-8 text"},
			{session.Command{}, 2, "no command"},
		} {
			if _, err := p.try(tc.cmd, ""); code(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.says) {
				p.t.Errorf("%+v: %v (%d), want %d and %q", tc.cmd, err, code(err), tc.code, tc.says)
			}
		}
		// What it used, children that it waited for included.
		idle := p.do(session.Command{Argv: []string{"true"}}, "").exit
		busy := p.do(session.Command{Argv: []string{"sh", "-c", `python3 -c "
import time
x = bytearray(100 << 20)
while time.process_time() < 0.5: pass"`}}, "").exit
		if idle.UserUS+idle.SystemUS > 400_000 || idle.MaxRSSKB > 50<<10 || busy.UserUS+busy.SystemUS < 500_000 || busy.MaxRSSKB < 100<<10 {
			p.t.Errorf("idle %+v, busy %+v", idle, busy)
		}
	})
}

// A signal goes to the command's process group.
func TestSignals(t *testing.T) {
	forms(t, func(p *place) {
		signals := make(chan unix.Signal, 1)
		r, w := io.Pipe()
		done := make(chan session.Exit)
		go func() {
			exit, err := p.Run(p.t.Context(), session.Command{Domain: "agent", Argv: []string{"python3", "-c", `
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
child = os.fork()
if not child: print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
if child: os.wait()
print("parent" if child else "child", flush=True)
os._exit(9)`, p.mark}},
				session.Streams{Out: w, Signals: signals})
			if err != nil {
				p.t.Error(err)
			}
			w.Close()
			done <- exit
		}()
		buf := make([]byte, 64)
		n, _ := r.Read(buf)
		if string(buf[:n]) != "ready\n" {
			p.t.Fatalf("it says %q", buf[:n])
		}
		signals <- unix.SIGUSR1
		rest, _ := io.ReadAll(r)
		if exit := <-done; exit.Code != 9 || !slices.Equal(strings.Fields(string(rest)), []string{"child", "parent"}) {
			p.t.Errorf("%+v %q", exit, rest)
		}
		p.sh("agent", `pkill -f "^sleep $1" || true`)
	})
}

func TestSurroundings(t *testing.T) {
	forms(t, func(p *place) {
		mask := 0o027
		r := p.do(session.Command{
			Argv: []string{"bash", "-c", `pwd; umask; echo $A $B $PATH; ulimit -n -c; touch /tmp/m; stat -c %a /tmp/m; printf '[%s]' "$@"`, "bash", "--domain", "a b", "", "ü"},
			Dir:  "/usr/share", Umask: &mask, Env: []string{"A=1", "B=two", "A=3", "PATH=/usr/bin"}, Limits: map[string]uint64{"nofile": 77, "core": 0},
		}, "")
		want := "/usr/share\n0027\n3 two /usr/bin\nopen files                          (-n) 77\ncore file size              (blocks, -c) 0\n640\n[--domain][a b][][ü]"
		if r.out != want {
			p.t.Errorf("%q, want %q\n%s", r.out, want, r.err)
		}
		// The next has the domain's own again.
		if got := p.sh("agent", `pwd; umask; echo $A; ulimit -n`); got != "/\n0022\n\n4096\n" {
			p.t.Errorf("the next: %q", got)
		}
	})
}

func TestStreams(t *testing.T) {
	forms(t, func(p *place) {
		if r := p.do(session.Command{Argv: []string{"cat"}}, "to the end"); r.out != "to the end" {
			p.t.Errorf("cat: %q", r.out)
		}
		if r := p.do(session.Command{Argv: []string{"sh", "-c", "echo out; echo err >&2"}}, ""); r.out != "out\n" || r.err != "err\n" {
			p.t.Errorf("%q, %q", r.out, r.err)
		}
		data := make([]byte, 32<<20)
		rand.New(rand.NewSource(1)).Read(data)
		h := sha256.New()
		exit, err := p.Run(p.t.Context(), session.Command{Domain: "agent", Argv: []string{"cat"}}, session.Streams{In: bytes.NewReader(data), Out: h})
		if want := sha256.Sum256(data); err != nil || exit.Code != 0 || !bytes.Equal(h.Sum(nil), want[:]) {
			p.t.Errorf("32 MiB through cat: %+v %v", exit, err)
		}
		// What it wrote before its end is there, although a child has it open.
		if r := p.do(session.Command{Argv: []string{"bash", "-c", `head -c 60000 /dev/zero; sleep $1 &`, "bash", p.mark}}, ""); len(r.out) != 60000 {
			p.t.Errorf("%d bytes", len(r.out))
		}
		// Who reads late misses nothing.
		late, into := io.Pipe()
		exited := make(chan error)
		go func() {
			_, err := p.Run(p.t.Context(), session.Command{Domain: "agent", Argv: []string{"bash", "-c", `head -c 65536 /dev/zero; sleep $1 &`, "bash", p.mark}}, session.Streams{Out: into})
			into.Close()
			exited <- err
		}()
		late.Read(make([]byte, 1))
		p.sh("agent", `until [ $(pgrep -fc "^sleep $1") = 2 ]; do :; done`)
		if rest, _ := io.ReadAll(late); len(rest) != 65535 || <-exited != nil {
			p.t.Errorf("read late: %d bytes", len(rest))
		}
		// The caller's context ends it.
		ctx, cancel := context.WithCancel(p.t.Context())
		out, w := io.Pipe()
		go func() { out.Read(make([]byte, 1)); cancel() }()
		if _, err := p.Run(ctx, session.Command{Domain: "agent", Argv: []string{"bash", "-c", `echo; exec sleep $1`, "bash", p.mark + "1"}}, session.Streams{Out: w}); err != context.Canceled {
			p.t.Errorf("cancelled: %v", err)
		}
		waitGone(p.t, "a command whose caller went", marked(p.mark+"1"))
		// A writer that fails ends it.
		if _, err := p.Run(p.t.Context(), session.Command{Domain: "agent", Argv: []string{"yes"}}, session.Streams{Out: broken{}}); err == nil || !strings.Contains(err.Error(), "broken") {
			p.t.Errorf("a broken writer: %v", err)
		}
	})
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// leader is the process of that domain's leader, seen from the node.
func (p *place) leader(domain string) int {
	p.t.Helper()
	_, leaders := p.inside()
	mark := newMark()
	run, stop := context.WithCancel(p.t.Context())
	defer stop()
	go p.Run(run, session.Command{Domain: domain, Argv: []string{"sleep", mark}}, session.Streams{})
	for {
		for _, pid := range find(marked(mark)) {
			for _, l := range leaders {
				if stat(pid, 1) == strconv.Itoa(l) {
					return l
				}
			}
		}
		if p.t.Context().Err() != nil {
			p.t.Fatalf("no leader of %s among %v", domain, leaders)
		}
	}
}

// inside are the broker and the leaders, by their command lines.
func (p *place) inside() (broker int, leaders []int) {
	sid := p.runtime.Process.Pid
	var below func(pid int) bool
	below = func(pid int) bool {
		parent, _ := strconv.Atoi(stat(pid, 1))
		return pid == sid || parent > 1 && below(parent)
	}
	for _, pid := range find(func(pid int) bool { return below(pid) }) {
		switch line := cmdline(pid); {
		case len(line) > 1 && filepath.Base(line[0]) == "fence" && line[1] == "serve":
			broker = pid
		case len(line) == 2 && line[1] == "leader":
			leaders = append(leaders, pid)
		}
	}
	if broker == 0 || len(leaders) != 2 {
		p.t.Fatalf("the broker is %d, leaders are %v", broker, leaders)
	}
	return broker, leaders
}

type held struct{ fds, threads, rssKB, children int }

func holds(pid int) held {
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	h := held{fds: len(fds)}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "VmRSS: %d", &h.rssKB)
		fmt.Sscanf(line, "Threads: %d", &h.threads)
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if n, _ := strconv.Atoi(filepath.Base(d)); stat(n, 1) == strconv.Itoa(pid) {
			h.children++
		}
	}
	return h
}

// A thousand commands in a row and a hundred at once leave nothing: no
// memory, descriptors or zombies.
func TestSteady(t *testing.T) {
	p := newPlace(t, "namespace")
	var took []time.Duration
	row := func(n int) {
		for range n {
			begin := time.Now()
			if r := p.do(session.Command{Argv: []string{"/bin/true"}}, ""); r.exit.Code != 0 {
				t.Fatalf("%+v", r.exit)
			}
			took = append(took, time.Since(begin))
		}
	}
	atOnce := func() {
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				if r, err := p.try(session.Command{Argv: []string{"sh", "-c", "cat; echo " + strconv.Itoa(i)}}, "in "); err != nil || r.out != "in "+strconv.Itoa(i)+"\n" {
					t.Errorf("at once: %v %q %q", err, r.out, r.err)
				}
			})
		}
		all.Wait()
	}
	row(200)
	atOnce()
	broker, leaders := p.inside()
	watched := append([]int{broker}, leaders...)
	var before []held
	for _, pid := range watched {
		before = append(before, holds(pid))
	}
	took = nil
	row(1000)
	slices.Sort(took)
	var beside []time.Duration
	for range 7 {
		cmd := inContainer(t, `read x; exec apptainer -q exec $IMG /bin/true`)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now() // the shell is there by then, or soon
		io.WriteString(in, "go\n")
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		beside = append(beside, time.Since(begin))
	}
	slices.Sort(beside)
	p50 := took[len(took)/2]
	t.Logf("/bin/true, n=%d: p50 %v, p90 %v; apptainer exec of the same: p50 %v, %.0f times as much", len(took), p50, took[len(took)*9/10], beside[3], float64(beside[3])/float64(p50))
	atOnce()
	for i, pid := range watched {
		h, b := holds(pid), before[i]
		for begin := time.Now(); h.fds > b.fds && time.Since(begin) < 20*time.Second; h = holds(pid) {
			if _, err := p.Status(t.Context()); err != nil { // the last connections end when the broker comes to it
				t.Fatal(err)
			}
		}
		t.Logf("%v: %+v, before %+v", cmdline(pid), h, b)
		if h.fds > b.fds || h.children != b.children || h.rssKB > b.rssKB+4096 || h.threads > b.threads+8 {
			t.Errorf("it has grown")
		}
	}
}

// One client's command takes nobody else's time.
func TestAtOnce(t *testing.T) {
	forms(t, func(p *place) {
		// Each of these waits for the other.
		p.sh("agent", `mkfifo /tmp/a /tmp/b`)
		var all sync.WaitGroup
		all.Go(func() { p.sh("agent", `echo one >/tmp/a; cat /tmp/b`) })
		all.Go(func() { p.sh("agent", `cat /tmp/a; echo two >/tmp/b`) })
		all.Wait()
	})
}
