package session

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
	"fence/test/bed"
)

//go:embed testdata/attack.py
var attack string

// graded is a session for a task: the agent's domain, which lies below the
// verifier's unless open, and places of the verifier's alone.
func graded(t *testing.T, open bool, more ...string) *place {
	t.Helper()
	overlay := bed.TempDir(t)
	args := []string{"--overlay " + overlay, "agent=strict", "verifier=verifier"}
	if !open {
		args[2] += " --private verifier=/tests --private verifier=/logs/verifier --below agent=verifier"
	}
	for _, m := range more {
		if strings.HasPrefix(m, "--flag") {
			args[2] += " " + m
		} else {
			args = append(args, m)
		}
	}
	socket, serve := hosted(t, args...)
	hangUp := func() {
		_ = unix.Kill(serve.pid, unix.SIGTERM)
		serve.wait()
	}
	return &place{t: t, Client: session.Dial(socket, 0), overlay: overlay, hangUp: hangUp, serve: serve.pid, said: serve.said, mark: newMark()}
}

// state is what the status says of a domain.
func (p *place) state(name string) session.DomainStatus {
	p.t.Helper()
	st, err := p.Status(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, d := range st.Domains {
		if d.Name == name {
			return d
		}
	}
	p.t.Fatalf("there is no domain %s: %+v", name, st)
	return session.DomainStatus{}
}

// attacks runs the agent's attempts and returns what came of each.
func (p *place) attacks() map[string]string {
	p.t.Helper()
	// In a container without processes of its own, the node's others are none of ours.
	var others []string
	for _, pid := range find(func(pid int) bool { return descends(pid, p.serve) }) {
		others = append(others, ownName(pid))
	}
	r := p.do(session.Command{Domain: "agent", Env: []string{"SESSION=" + strings.Join(others, " ")}, Argv: []string{"bash", "-c", `
		sleep $1 >/dev/null 2>&1 & export MINE="$! $$ $PPID"; python3 -`, "bash", p.mark}}, attack)
	if r.exit.Code != 0 {
		p.t.Fatalf("%+v", r)
	}
	got := map[string]string{}
	for line := range strings.Lines(r.out) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[name] = result
	}
	return got
}

func (p *place) put(domain, dir string, files map[string]string) error {
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for name, text := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))})
		_, _ = io.WriteString(w, text)
	}
	_ = w.Close()
	r, err := p.try(session.Command{Domain: domain, Tool: "put", Argv: []string{dir}}, stream.String())
	if err == nil && r.exit.Code != 0 {
		err = fmt.Errorf("put: %+v", r)
	}
	return err
}

// withstands says where the agent's attempts come to anything but what they
// should.
func (p *place) withstands() {
	t := p.t
	t.Helper()
	if d := p.state("agent"); d.Below != "verifier" || d.Beside != "" {
		t.Fatalf("%+v", d)
	}
	if d := p.state("verifier"); strings.Join(d.Private, " ") != "/tests /logs/verifier" {
		t.Errorf("%+v", d)
	}
	p.sh("verifier", `sleep $1 >/dev/null 2>&1 & echo secret >/tests/solution; echo 0 >/logs/verifier/reward.txt`)
	want := map[string]string{"logs.replace": "EBUSY", "logs.exchange": "EBUSY", "userns": "EPERM", "priority": "EACCES", "frames": "0"}
	for _, place := range []string{"tests", "reward"} {
		for what, errno := range map[string]string{
			"seen": "empty", "write": "EROFS", "mkdir": "EROFS", "chmod": "EROFS", "umount": "EPERM", "mount": "EPERM", "bind": "EPERM", "remove": "EBUSY", "replace": "EBUSY",
		} {
			want[place+"."+what] = errno
		}
	}
	for what, errno := range map[string]string{"root": "EACCES", "cwd": "EACCES", "mem": "EACCES", "environ": "EACCES", "fd": "EACCES", "kill": "EPERM", "trace": "EPERM", "nice": "EPERM"} {
		want["others."+what] = errno
	}
	got := p.attacks()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: %q, want %q", name, got[name], w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d attempts, %d are expected: %v", len(got), len(want), got)
	}
	if got := p.sh("verifier", `ls -A / | grep -c away; ls -A /tests /logs/verifier; cat /logs/verifier/reward.txt; pgrep -fc "sleep $1"`); got != "0\n/logs/verifier:\nreward.txt\n\n/tests:\nsolution\n0\n2\n" {
		t.Errorf("the verifier finds\n%s", got)
	}
}

// The verifier's places and processes are out of the agent's reach, whatever
// it tries. The same attempts in a session without those places show that they
// would work.
func TestBelow_Attacks(t *testing.T) {
	graded(t, false).withstands()

	// The control.
	c := graded(t, true)
	c.sh("agent", `mkdir -p /tests /logs/verifier`)
	got := c.attacks()
	for name, w := range map[string]string{
		"tests.seen": "empty", "tests.write": "ok", "tests.mkdir": "ok", "tests.chmod": "ok", "tests.remove": "ok", "tests.replace": "ENOENT",
		"reward.write": "ok", "reward.mkdir": "ok", "reward.remove": "ok", "logs.exchange": "ok", "logs.replace": "ok",
	} {
		if got[name] != w {
			t.Errorf("without places of the verifier's own, %s: %q, want %q", name, got[name], w)
		}
	}
}

// Nor where both are users who are pretended: of one real user, as before.
func TestBelow_AttacksAsUsers(t *testing.T) {
	for name, flags := range map[string][]string{
		"both": {"--flag agent:user=1000:1001", "--flag verifier:user=7"}, "the agent": {"--flag agent:user=1000:1001"}, "the verifier": {"--flag agent:user=" + fmt.Sprint(bed.Person(t).UID), "--flag verifier:user=7"},
		"root": {"--flag agent:user=0:0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := graded(t, false, flags...)
			p.withstands()
			for _, d := range []string{"agent", "verifier"} {
				want, given := fmt.Sprint(bed.Person(t).UID), ""
				for _, f := range flags {
					if ids, ok := strings.CutPrefix(f, "--flag "+d+":user="); ok {
						given = ids
						want, _, _ = strings.Cut(ids, ":")
					}
				}
				// No other user can be had, whichever way.
				got := p.sh(d, `id -u; touch /tmp/mine; stat -c %u /tmp/mine; rm -f /tmp/mine; python3 - <<'E'
import os
for do in (os.setuid, os.seteuid, os.setgid, lambda i: os.chown("/tmp", i, -1), lambda i: os.setgroups([i])):
    for i in (0, 1, 1000, 1001, 7, 2001, 65534):
        if i in (os.getuid(), os.getgid()): continue
        try: do(i); print("became", i)
        except OSError: pass
E
su -c true 2>/dev/null && echo became root; true`)
				if got != want+"\n"+want+"\n" {
					t.Errorf("%s: %q, want %s", d, got, want)
				}
				if fence := string(p.state(d).Fence); strings.Contains(fence, `"user":"`+given+`"`) != (given != "") {
					t.Errorf("%s: %q in the status %s", d, given, fence)
				}
			}
		})
	}
}

// A verifier that renews its folders, as graders do, keeps them: a folder that
// was removed would take the masks of the others along.
func TestBelow_Renewed(t *testing.T) {
	p := graded(t, false)
	got := p.sh("verifier", `for f in /tests /logs/verifier; do mkdir -p $f/sub; rm -rf $f 2>&1 | grep -o 'Device or resource busy'; mkdir -p $f; echo mine >$f/x; done; mv /logs /away 2>&1 | grep -o 'Device or resource busy'; ls -A /tests /logs/verifier`)
	const busy = "Device or resource busy\n"
	if want := busy + busy + busy + "/logs/verifier:\nx\n\n/tests:\nx\n"; got != want {
		t.Errorf("the verifier: %q, want %q", got, want)
	}
	if got := p.sh("agent", `ls -A /tests /logs/verifier; echo 1 2>/dev/null >/logs/verifier/x || echo no`); got != "/logs/verifier:\n\n/tests:\nno\n" {
		t.Errorf("the agent: %q", got)
	}
}

// Nor does it change anything while the verifier works: attempts without end
// beside the filling, the tests and the reading.
func TestBelow_Race(t *testing.T) {
	race := `
import os
open("/tmp/racing", "w").close()
while True:
    for f in ("/logs/verifier/reward.txt", "/logs/verifier/reward.json", "/tests/test.sh", "/logs/reward.txt"):
        for do in (lambda: open(f, "w").write("1"), lambda: os.symlink("/tmp/racing", f), lambda: os.unlink(f)):
            try: do()
            except OSError: pass
    for a, b in (("/logs", "/logs2"), ("/tests", "/tests2"), ("/logs/verifier", "/logs/v2"), ("/tmp/own", "/logs/verifier"), ("/tmp/own", "/tests")):
        for do in (lambda: os.rename(a, b), lambda: os.mkdir(a), lambda: os.symlink("/tmp", a), lambda: os.rename(b, a)):
            try: do()
            except OSError: pass
`
	rounds := func(p *place) (wrong []string) {
		p.sh("agent", `mkdir -p /tests /logs/verifier; setsid python3 -c '`+race+`' "$1" >/dev/null 2>&1 & until [ -e /tmp/racing ]; do :; done`)
		for i := range 20 {
			test := fmt.Sprintf("#!/bin/sh\necho %d >/logs/verifier/reward.txt\necho '{\"reward\": 0}' >/logs/verifier/reward.json\n", i)
			if err := p.put("verifier", "/tests", map[string]string{"test.sh": test}); err != nil {
				wrong = append(wrong, err.Error())
				continue
			}
			r, err := p.try(session.Command{Domain: "verifier", Argv: []string{"sh", "-c", `sh /tests/test.sh; ls -A /tests /logs/verifier; cat /logs/verifier/*`}}, "")
			if want := fmt.Sprintf("/logs/verifier:\nreward.json\nreward.txt\n\n/tests:\ntest.sh\n{\"reward\": 0}\n%d\n", i); err != nil || r.out != want {
				wrong = append(wrong, fmt.Sprintf("%v %q", err, r.out+r.err))
			}
		}
		p.sh("agent", `pgrep -f "^python3 -c" >/dev/null`) // it still tries
		return wrong
	}
	if wrong := rounds(graded(t, false)); len(wrong) > 0 {
		t.Errorf("%d of 20 rounds went wrong: %s", len(wrong), wrong[0])
	}
	if wrong := rounds(graded(t, true)); len(wrong) == 0 {
		t.Error("without places of the verifier's own nothing went wrong either: the attempts show nothing")
	}
}

// What the agent fills or uses up is not the verifier's.
func TestBelow_Exhaustion(t *testing.T) {
	p := graded(t, false)
	full := session.Command{Domain: "agent", Limits: map[string]uint64{"nproc": 300}, Argv: []string{"python3", "-c", `
import os, sys, time
for d in ("/dev/shm", "/tmp"):
    size = os.statvfs(d).f_bavail * os.statvfs(d).f_frsize
    with open(d + "/full", "wb") as f:
        os.posix_fallocate(f.fileno(), 0, min(size, 64 << 20))
os.symlink("/etc", "/dev/shm/planted")
n = 0
while True:
    try: pid = os.fork()
    except BlockingIOError: break
    if not pid: time.sleep(1000)
    n += 1
print(n > 100)
sys.stdout.flush()
os.kill(os.getppid(), 0)
`}}
	if r := p.do(full, ""); r.out != "True\n" {
		t.Fatalf("%+v", r)
	}
	if err := p.put("verifier", "/tests", map[string]string{"test.sh": "ls -A /dev/shm; echo 1 >/logs/verifier/reward.txt\n"}); err != nil {
		t.Fatal(err)
	}
	if got := p.sh("verifier", `sh /tests/test.sh; cat /logs/verifier/reward.txt`); got != "1\n" {
		t.Errorf("%q", got)
	}
}

// The verifier sees, signals and reaches what the agent left, and can start it
// again; the agent's next command is one of its domain as before.
func TestBelow_VerifierReaches(t *testing.T) {
	p := graded(t, false, "--flag agent:net=loopback --flag verifier:net=loopback")
	serve := `setsid python3 -c 'import socket, sys
s = socket.create_server(("127.0.0.1", 8080), reuse_port=False)
open("/tmp/up", "w").close()
while True: s.accept()[0].send(sys.argv[1].encode())' `
	p.sh("agent", serve+`agent "$1" >/dev/null 2>&1 & until [ -e /tmp/up ]; do :; done`)
	ask := `python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 8080)).recv(100).decode())'`
	got := p.sh("verifier", ask+`
pid=$(pgrep -f "agent $1" | head -1)
readlink /proc/$pid/exe | sed 's/[0-9.]*$//'; tr '\0' '\n' </proc/$pid/environ | grep -c ^PATH=; ls /proc/$pid/fd | head -1
ls /proc/$pid/root/tests | wc -l
kill $pid; while [ -e /proc/$pid ]; do :; done; rm /tmp/up
`+serve+`verifier "$1" >/dev/null 2>&1 & until [ -e /tmp/up ]; do :; done; `+ask)
	if want := "agent\n/usr/bin/python\n1\n0\n0\nverifier\n"; got != want {
		t.Errorf("the verifier: %q, want %q", got, want)
	}
	if got := p.sh("agent", ask+`; pkill -f "verifier $1" || echo "and cannot end it"`); got != "verifier\nand cannot end it\n" {
		t.Errorf("the agent: %q", got)
	}
	// The end of the one above is that of the one below.
	if err := p.End(t.Context(), "verifier"); err != nil {
		t.Fatal(err)
	}
	if d := p.state("agent"); d.State != "ended" || !strings.Contains(d.Why, "verifier") {
		t.Errorf("%+v", d)
	}
	waitGone(t, "what the agent left", marked(p.mark))
}

// Terminals work in both: each has its own, and a rule of the one above for
// those of the one below.
func TestBelow_Terminals(t *testing.T) {
	p := graded(t, false)
	for _, domain := range []string{"agent", "verifier"} {
		r := p.do(session.Command{Domain: domain, Argv: []string{"script", "-qec", "stty rows 33; stty size; tty", "/dev/null"}}, "")
		if r.exit.Code != 0 || !strings.HasPrefix(r.out, "33 ") || !strings.Contains(r.out, "/dev/pts/0") {
			t.Errorf("%s: %+v", domain, r)
		}
	}
}

// The end of the agent's domain leaves the verifier's, which is lost to nobody.
func TestBelow_AgentEnds(t *testing.T) {
	p := graded(t, false)
	p.sh("agent", `sleep $1 >/dev/null 2>&1 & setsid sleep $1 >/dev/null 2>&1 &`)
	if err := p.End(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
	waitGone(t, "what the agent left", marked(p.mark))
	if got := p.sh("verifier", "echo on"); got != "on\n" {
		t.Errorf("%q", got)
	}
	if d := p.state("agent"); d.State != "ended" {
		t.Errorf("%+v", d)
	}
}

// Where namespaces are refused nothing hides the places from the agent: the
// status says so, the verifier waits for its end, and finds them empty.
func TestBelow_Forbidden(t *testing.T) {
	p := graded(t, false, "max_user_namespaces=1")
	d := p.state("agent")
	if d.Below != "" || !strings.Contains(d.Beside, "namespaces") {
		t.Errorf("%+v", d)
	}
	p.sh("agent", `echo 1 >/tests/test.sh; mkdir -p /tests/a/b; ln -s /etc /tests/a/etc; chmod 0 /tests/a; mv /logs/verifier /logs/moved; ln -s /tmp /logs/verifier; echo kept >/tmp/kept`)
	// Deeper than descriptors go, and shut at the end.
	p.sh("agent", `cd /tests && python3 -c '
import os
for i in range(1500): os.mkdir("d"); os.chdir("d")
open("f", "w").close(); os.mkdir("shut", 0)'`)
	_, err := p.try(session.Command{Domain: "verifier", Argv: []string{"true"}}, "")
	if code(err) != session.CodeNotRun || !strings.Contains(err.Error(), "agent") {
		t.Errorf("beside the agent the verifier runs: %v", err)
	}
	if err := p.put("verifier", "/tests", map[string]string{"x": "x"}); code(err) != session.CodeNotRun {
		t.Errorf("beside the agent its places are filled: %v", err)
	}
	if err := p.End(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
	if got := p.sh("verifier", `ls -A /tests /logs/verifier; stat -c %F /logs/verifier; cat /tmp/kept`); got != "/logs/verifier:\n\n/tests:\ndirectory\nkept\n" {
		t.Errorf("afterwards\n%s", got)
	}
	if err := p.put("verifier", "/tests", map[string]string{"test.sh": "echo 1 >/logs/verifier/reward.txt"}); err != nil {
		t.Fatal(err)
	}
	if got := p.sh("verifier", `sh /tests/test.sh; cat /logs/verifier/reward.txt`); got != "1\n" {
		t.Errorf("%q", got)
	}
}

// A folder of the caller's own is not emptied, for which it would have to be.
func TestBelow_ForbiddenMount(t *testing.T) {
	dir := bed.TempDir(t)
	cmd := inContainer(t, `echo mine >`+dir+`/t; fence serve --socket `+filepath.Join(bed.TempDir(t), "s")+` -- apptainer -q exec --bind `+dir+`:/tests $IMG /.fence/fence serve --stdio --domain agent=strict --flag agent:accept=landlock-hide --flag agent:why=x --domain v=strict --flag v:write=/tests --flag v:why=x --private v=/tests </dev/null; cat `+dir+`/t`, "max_user_namespaces=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "fence: /tests is mounted, and cannot be emptied") || !strings.HasSuffix(string(out), "\nmine\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A folder that is a link, or lies in a root that cannot be written, is none
// for a domain alone.
func TestBelow_Places(t *testing.T) {
	overlay := bed.TempDir(t)
	upper := filepath.Join(overlay, "upper")
	if out, err := bed.Command(t, "sh", "-c", "mkdir "+upper+" && ln -s /tmp "+upper+"/logs").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for want, flags := range map[string]string{
		"/logs is not a folder": "--overlay " + overlay,
		"--writable-tmpfs":      "",
	} {
		cmd := inContainer(t, `fence serve --socket `+filepath.Join(bed.TempDir(t), "s")+` -- apptainer -q exec `+flags+` $IMG /.fence/fence serve --stdio --domain v=verifier --private v=/logs/verifier </dev/null`)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) || !oneLine.Match(out) {
			t.Errorf("%q: %v\n%s", flags, err, out)
		}
	}
}
