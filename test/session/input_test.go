package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
	"fence/test/bed"
)

func frame(json string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(json))), json...)
}

var oneLine = regexp.MustCompile(`^fence: [^\n]+\n(hint: [^\n]+\n)*$`)

// What a person gets wrong is one line, with the exit code for it.
func TestBadInput(t *testing.T) {
	socket, _ := hosted(t, "agent=strict", "verifier=strict")
	dir := bed.TempDir(t)
	long := filepath.Join(dir, strings.Repeat("l", 60), strings.Repeat("m", 60))
	if out, err := bed.Command(t, "mkdir", "-p", long).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	// A session of another version, which says so itself, and one that is not
	// a session at all.
	for name, says := range map[string]string{"other": `{"schema":"fence.session/v9"}`, "none": ""} {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		os.Chmod(filepath.Join(dir, name), 0o777)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if says != "" {
					c.Write(frame(says))
				}
				c.Close()
			}
		}()
	}
	// What a session leaves that was killed.
	dead, err := net.Listen("unix", filepath.Join(dir, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	os.Chmod(filepath.Join(dir, "dead"), 0o777)
	os.WriteFile(filepath.Join(dir, "file"), nil, 0o666)
	for _, tc := range []struct {
		line string
		code int
		says string
	}{
		{"run --socket S --domain agent -- true", 0, ""},
		{"run --socket S --domain nope -- true", 2, `the session has no domain "nope"`},
		{"run --socket S -- true", 2, "the session has several domains: agent, verifier"},
		{"run --socket S --domain agent true", 2, "there is no -- before the command"},
		{"run --socket S --domain agent --", 2, "no command"},
		{"run -- true", 2, "which session?"},
		{"run --socket S --domain agent --timeout 5 -- true", 2, `--timeout: "5" is not a value that it takes`},
		{"run --socket S --domain agent --umask 9 -- true", 2, `--umask: "9" is none`},
		{"run --socket S --domain agent --env HF_TOKEN=x -- true", 2, "--env: HF_TOKEN looks like a credential"},
		{"run --socket S --domain agent --limit nofile -- true", 2, `--limit: "nofile" is not NAME=NUMBER`},
		{"run --socket S --domain agent --dir tmp -- true", 2, `the folder "tmp" is not an absolute path`},
		{"run --socket S --domain agent --timeout 100ms -- sleep 1000", 124, "it did not end within 100ms and was ended"},
		{"run --socket S --domain agent --dir /no -- true", 125, "the folder /no: no such file or directory"},
		{"run --socket S --domain agent -- /etc/passwd", 126, "executing /etc/passwd: permission denied"},
		{"run --socket S --domain agent -- nosuch", 127, "nosuch: no such command inside the fence"},
		{"run --socket DIR/absent -- true", 3, "there is no session at DIR/absent: no such file or directory"},
		{"run --socket DIR/dead -- true", 3, "there is no session at DIR/dead: connection refused"},
		{"run --socket DIR/none -- true", 3, "the session is gone"},
		{"run --socket DIR/other -- true", 2, `the session speaks "fence.session/v9", this fence fence.session/v1`},
		{"run --socket S --end nope", 2, `the session has no domain "nope"`},
		{"run --socket S --status extra", 2, "--status and --end run no command"},
		{"get --socket S --domain agent", 2, "which files?"},
		{"serve --socket S -- true", 2, "another session is there"},
		{"serve --socket DIR/file -- true", 2, "there is something else, which is not a socket"},
		{"serve --socket DIR/no/s -- true", 2, "no such file or directory"},
		{"serve --socket /proc/s -- true", 2, ""},
		{"serve --socket LONG/" + strings.Repeat("n", 81) + " -- true", 2, "the name of a socket has at most 80 bytes"},
		{"serve --socket LONG/s -- true", 0, ""},
		{"serve --socket DIR/dead -- true", 0, ""}, // in its place
		{"serve --socket DIR/new -- sh -c 'exit 9'", 9, ""},
		{"serve --socket DIR/new -- nosuch", 127, "nosuch: no such command"},
		{"serve --socket DIR/new --", 2, "there is no command after --"},
		{"serve --socket DIR/new true", 2, `there is no -- before "true"`},
		{"serve --socket DIR/new", 2, "a session needs a domain"},
		{"serve --domain a=strict", 2, "fence serve takes --stdio or --socket PATH"},
		{"serve --socket DIR/new --domain a=strict --domain a=build", 2, "--domain: a is there twice"},
		{"serve --socket DIR/new --domain A=strict", 2, `--domain: "A=strict" is not NAME=POLICY`},
		{"serve --socket DIR/new --domain a=strict --flag b:read=/x", 2, `--flag: there is no domain "b"`},
		{"serve --socket DIR/new --domain a=strict --flag a:keep-fd=3", 2, `--flag: "a:keep-fd=3" is not NAME:FLAG=VALUE`},
		{"serve --socket DIR/new --domain a=strict --flag a:read=/usr", 2, "--flag: something is opened for the domain a without a reason"},
		{"serve --socket DIR/new --domain a=strict --flag a:read=/no/such --flag a:why=x", 125, "domain a: not fenced: /no/such"},
		{"serve --socket DIR/new --domain a=strict --below a=b", 2, `--below: "a=b" is not NAME=ABOVE`},
		{"serve --socket DIR/new --domain a=strict --below a=a", 2, `--below: "a=a" is not NAME=ABOVE`},
		{"serve --socket DIR/new --domain a=strict --domain b=strict --below a=b --below b=a", 2, "--below: a lies below b, which lies below another"},
		{"serve --socket DIR/new --domain a=loopback --domain b=strict --below a=b", 2, "--below: the domain a has the network mode loopback, and b, above it, none"},
		{"serve --socket DIR/new --domain a=strict --domain b=strict --below a=b --flag a:read=/usr --flag a:why=x", 2, "--below: the domain a opens /usr (read), and b, above it, does not"},
		{"serve --socket DIR/new --domain a=strict --domain b=strict --below a=b --flag b:form=bare", 2, "b asks for the bare form"},
		{"serve --socket DIR/new --domain a=strict --private a=tests", 2, `--private: "a=tests" is not NAME=`},
		{"serve --socket DIR/new --domain a=strict --private a=/", 2, `--private: "a=/" is not NAME=`},
		{"serve --socket DIR/new --domain a=strict --domain b=strict --private a=/x --private b=/y", 2, "only one domain can have folders of its own"},
		{"serve --socket DIR/new --domain a=strict --domain b=strict --below a=b --private a=/x", 2, "the domain a lies below another"},
		{"serve --socket DIR/new --domain a=strict --private a=/etc/passwd/x", 2, "/etc/passwd is not a folder"},
		{"serve --socket DIR/new --domain a=nosuch", 2, `domain a: --policy: "nosuch" is not a built-in policy`},
		{"serve --stdio --domain a=strict </dev/null", 2, "--stdio: descriptor 0 is not a Unix socket"},
		{"serve --socket DIR/new --domain a=strict --lifeline 77", 2, "--lifeline: descriptor 77 is not open"},
	} {
		line := strings.NewReplacer(" S ", " "+socket+" ", "DIR", dir, "LONG", long).Replace(tc.line + " ")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		cmd := bed.CommandContext(t, ctx, "bash", "-c", "exec fence "+line)
		withFence(t, cmd)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run()
		cancel()
		says := strings.ReplaceAll(tc.says, "DIR", dir)
		if cmd.ProcessState.ExitCode() != tc.code || !strings.Contains(stderr.String(), says) || tc.code != 0 && tc.code != 9 && !oneLine.MatchString(stderr.String()) {
			t.Errorf("fence %s: %v, want %d and %q\n%s", line, cmd.ProcessState, tc.code, says, stderr.String())
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "new")); len(left) > 0 {
		t.Errorf("left is %q", left)
	}
}

// What no client says ends its connection and nothing else.
func TestHostileClient(t *testing.T) {
	socket, _ := hosted(t, "agent=strict")
	hello := string(frame(`{"schema":"fence.session/v1"}`))
	for name, tc := range map[string]struct{ sent, says string }{
		"another version": {string(frame(`{"schema":"fence.session/v2"}`)), "this session speaks fence.session/v1, the client"},
		"no hello":        {string(frame(`{"run":{"argv":["true"]}}`)), "the client"},
		"garbage":         {"GET / HTTP/1.1\r\n\r\n", ""},
		"nothing":         {"", ""},
		"half a frame":    {hello + "\x00\x00\x01\x00{", ""},
		"too large":       {hello + "\xff\xff\xff\xff", "a frame of 4294967295 bytes"},
		"empty":           {hello + "\x00\x00\x00\x00", "a frame of 0 bytes"},
		"not JSON":        {hello + string(frame("}{")), "a frame that is none"},
		"two objects":     {hello + string(frame("{}{}")), "more than one object"},
		"an unknown key":  {hello + string(frame(`{"run":{"argv":["true"],"domain":"agent","timeout_ms":0,"grace_ms":0,"root":true}}`)), "unknown field"},
		"no request":      {hello + string(frame(`{}`)), "a request without one"},
		"no pipes":        {hello + string(frame(`{"run":{"argv":["true"],"domain":"agent","timeout_ms":0,"grace_ms":0}}`)), "a command comes with three pipes"},
		"a bad tool":      {hello + string(frame(`{"run":{"argv":["x"],"tool":"limit","domain":"agent","timeout_ms":0,"grace_ms":0}}`)), "not known"},
	} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, tc.sent)
		c.(*net.UnixConn).CloseWrite()
		said, _ := io.ReadAll(c)
		c.Close()
		if !strings.Contains(string(said), tc.says) {
			t.Errorf("%s: it answers %q, want %q", name, said, tc.says)
		}
	}
	p := &place{t: t, Client: session.Dial(socket, 0)}
	if got := p.sh("agent", "echo on"); got != "on\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// From inside, a socket that can be reached takes nothing.
func TestPeers(t *testing.T) {
	dir := bed.TempDir(t)
	flags := ` --flag agent:write=/s --flag agent:why=test`
	cmd := inContainer(t, `exec apptainer -q exec --bind `+dir+`:/s --bind `+bed.Bin(t, "fence")+`:/fence2 $IMG /.fence/fence serve --socket /s/s --domain agent=strict`+flags)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() })
	run := func(argv ...string) (string, int) {
		cmd := bed.Command(t, bed.Bin(t, "fence"), append([]string{"run", "--socket", filepath.Join(dir, "s"), "--wait", "20s"}, argv...)...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run("--", "echo", "from outside"); out != "from outside\n" || code != 0 {
		t.Fatalf("from outside: %q %d\n%s", out, code, said.String())
	}
	if out, code := run("--", "/.fence/fence", "run", "--socket", "/s/s", "--", "echo", "from inside"); code != 2 || !strings.Contains(out, "asked from outside its domains only") {
		t.Errorf("from inside: %q %d", out, code)
	}
	if out, _ := run("--status"); !strings.Contains(out, `"peers": "outside"`) {
		t.Errorf("the status: %s", out)
	}
}

// Another user's session is not asked, nor one's own by another user.
func TestPeers_Users(t *testing.T) {
	socket, _ := hosted(t, "agent=strict")
	for _, path := range []string{filepath.Dir(socket), socket} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	argv := []string{"run", "--socket", socket, "--status"}
	if out, err := bed.Command(t, bed.Bin(t, "fence"), argv...).CombinedOutput(); err != nil {
		t.Errorf("control: %v %s", err, out)
	}
	cmd := bed.Neighbour(t, bed.Bin(t, "fence"), argv...)
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "it is a socket of another user's (uid ") {
		t.Errorf("%v %s", cmd.ProcessState, out)
	}
	// Who does not look is not heard.
	out, err := bed.Neighbour(t, "python3", "-c", `import socket, struct
s = socket.socket(socket.AF_UNIX)
s.connect("`+socket+`")
print(s.recv(100))`).CombinedOutput()
	if err != nil || string(out) != "b''\n" {
		t.Errorf("%v %s", err, out)
	}
}

// A lock on the socket's folder, which anybody may have who can read it, is
// waited for a while, and then named.
func TestListen_Locked(t *testing.T) {
	dir := bed.TempDir(t)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	serve := func() *exec.Cmd {
		return bed.Command(t, bed.Bin(t, "fence"), "serve", "--socket", filepath.Join(dir, "s"), "--", "true")
	}
	if out, err := serve().CombinedOutput(); err != nil {
		t.Errorf("control: %v %s", err, out)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := bed.CommandContext(t, ctx, bed.Bin(t, "fence"), serve().Args[1:]...)
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "somebody keeps its folder locked") {
		t.Errorf("%v %s", cmd.ProcessState, out)
	}
}

// A socket's name is that of a file, wherever it is seen from.
func TestListen_Names(t *testing.T) {
	for _, name := range []string{"s", "./s", "@s"} {
		dir := bed.TempDir(t)
		cmd := bed.Command(t, "bash", "-c", `fence serve --socket "$1" --domain agent=strict & fence run --socket "$1" --wait 20s -- echo on
code=$?; test -S "$1" || code=9; kill $!; wait $!; exit $code`, "bash", name)
		withFence(t, cmd)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "on\n" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
}

// The first process of a PID namespace has no parent that it sees, and goes
// without.
func TestHost_FirstProcess(t *testing.T) {
	bed.Require(t, "users")
	cmd := bed.Command(t, "unshare", "-r", "-p", "-f", "--mount-proc", bed.Bin(t, "fence"), "serve", "--socket", filepath.Join(bed.TempDir(t), "s"), "--", "sh", "-c", "exit 7")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%v %s", cmd.ProcessState, out)
	}
}

// On a node without namespaces a command can connect to the socket, which is
// hidden from it: Landlock stops no connect(2) below ABI 9. It is told by where
// it comes from, also when its parent has ended.
func TestPeers_BareForm(t *testing.T) {
	socket := filepath.Join(bed.TempDir(t), "s")
	argv := []string{"serve", "--socket", socket, "--domain", "agent=strict", "--domain", "verifier=strict"}
	for _, d := range []string{"agent", "verifier"} {
		for _, f := range []string{"accept=landlock-hide", "accept=host-tmp", "accept=sockets", "why=test"} {
			argv = append(argv, "--flag", d+":"+f)
		}
	}
	cmd := bed.Limited(t, []string{"max_user_namespaces=0"}, bed.Bin(t, "fence"), argv...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() })
	p := &place{t: t, Client: session.Dial(socket, 20*time.Second), said: &said}
	asks := `import os, socket, struct
s = socket.socket(socket.AF_UNIX)
s.connect("` + socket + `")
s.sendall(b"".join(struct.pack(">I", len(text)) + text for text in (b'{"schema":"fence.session/v1"}', b'{"end":"verifier"}')))
print(s.makefile("rb").read())`
	for name, script := range map[string]string{
		"a command": `python3 -c "$1"`,
		"an orphan": `(setsid python3 -c "$1" 2>&1 &) | cat`,
	} {
		r := p.do(session.Command{Argv: []string{"sh", "-c", script, "sh", asks}}, "")
		if !strings.Contains(r.out, "asked from outside its domains only") && !strings.Contains(r.out+r.err, "PermissionError") { // or ABI 9
			t.Errorf("%s hears %q %q", name, r.out, r.err)
		}
	}
	out, err := bed.Command(t, "python3", "-c", asks).CombinedOutput() // the control, from outside
	if err != nil || !strings.Contains(string(out), `"ended":true`) {
		t.Errorf("from outside: %v %s", err, out)
	}
}

// On a bare node nobody can tell who asks, so the socket is hidden.
func TestBareNode(t *testing.T) {
	bed.Require(t, "users")
	dir := bed.TempDir(t)
	socket := filepath.Join(dir, "s")
	lifeline, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := bed.Command(t, bed.Bin(t, "fence"), "serve", "--socket", socket, "--lifeline", "3", "--domain", "agent=strict")
	cmd.ExtraFiles = []*os.File{lifeline}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lifeline.Close()
	mark := newMark()
	sh := func(script string) string {
		out, err := bed.Command(t, bed.Bin(t, "fence"), "run", "--socket", socket, "--wait", "20s", "--", "bash", "-c", script, "bash", mark).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s%s", script, err, out, said.String())
		}
		return string(out)
	}
	if got := sh(`ls -l ` + socket + ` 2>&1 | tail -1; setsid sleep $1 >/dev/null 2>&1 & true`); strings.Contains(got, "srw") {
		t.Errorf("the socket is seen inside: %s", got)
	}
	st, err := session.Dial(socket, 0).Status(t.Context())
	if err != nil || st.Peers != "any" || !strings.Contains(string(st.Domains[0].Fence), socket) {
		t.Errorf("%+v %v", st, err)
	}
	end.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("at the end of its lifeline: %v\n%s", err, said.String())
	}
	waitGone(t, "its caller is gone", marked(mark))
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left")
	}
}
