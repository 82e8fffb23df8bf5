package session

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
	"fence/test/bed"
)

// A domain's way to the proxy is a process that came to the broker. It
// outlives the end of another domain, and ends with its own.
func TestProxyOfADomain(t *testing.T) {
	dir := bed.TempDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "p.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	os.Chmod(filepath.Join(dir, "p.sock"), 0o777)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("the proxy"))
			c.Close()
		}
	}()
	socket, serve := hosted(t, "other=strict", "agent=proxy", "--bind "+filepath.Join(dir, "p.sock")+":/.fence/proxy.sock")
	p := &place{t: t, Client: session.Dial(socket, 0), said: serve.said, mark: newMark()}
	ask := `python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 3128)).recv(100).decode())'`
	if got := p.sh("agent", ask); got != "the proxy\n" {
		t.Fatalf("at first: %q", got)
	}
	if err := p.End(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if got := p.sh("agent", ask); got != "the proxy\n" {
		t.Errorf("after the other's end: %q", got)
	}
	// Nothing that a shell ignores in the background is ignored by commands:
	// only what the caller of all this ignores. The signals that end a broker are
	// its own, whoever ignored them (nohup): commands have them as at first.
	ignored := func(status string) uint64 {
		_, rest, _ := strings.Cut(status, "SigIgn:")
		line, _, _ := strings.Cut(rest, "\n")
		set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		return set
	}
	const brokers = 1<<(unix.SIGHUP-1) | 1<<(unix.SIGINT-1) | 1<<(unix.SIGTERM-1)
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ignored(p.sh("agent", `cat /proc/self/status`)), ignored(string(own))&^brokers; got != want {
		t.Errorf("ignored are %#x, by this process %#x", got, want)
	}
	if err := p.End(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
}

// Where connections have a supervisor, it stays outside, between the broker and
// the leader. Nothing else is different.
func TestSupervised(t *testing.T) {
	socket, serve := hosted(t, "agent=loopback", "other=loopback", "max_net_namespaces=0")
	p := &place{t: t, Client: session.Dial(socket, 0), said: serve.said, mark: newMark()}
	st, err := p.Status(t.Context())
	if err != nil || !strings.Contains(string(st.Domains[0].Fence), "supervisor") {
		t.Fatalf("%+v %v", st, err)
	}
	// Both have the same port, and each its own server.
	for _, d := range []string{"agent", "other"} {
		p.sh(d, `setsid python3 -c 'import socket
s = socket.create_server(("127.0.0.1", 8080))
open("/tmp/'$1.`+d+`'", "w").close()
while True: s.accept()[0].send(b"`+d+`")' >/dev/null 2>&1 & until [ -e /tmp/$1.`+d+` ]; do :; done`)
	}
	ask := `python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 8080)).recv(100).decode())'`
	for _, d := range []string{"agent", "other"} {
		if got := p.sh(d, ask); got != d+"\n" {
			t.Errorf("%s asks its own: %q", d, got)
		}
	}
	s, _, done := p.terminal(session.Size{Rows: 24, Cols: 80}, nil, "sh", "-c", "tty; tty </dev/tty; exit 4")
	s.until("/dev/pts/0\r\n/dev/[^\n]*\n")
	go io.Copy(io.Discard, s.from)
	if exit := <-done; exit.Code != 4 {
		t.Errorf("%+v", exit)
	}
	p.sh("agent", leave)
	if err := p.End(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
	if left := find(marked(p.mark)); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	_, err = p.try(session.Command{Domain: "other", Argv: []string{"bash", "-c", leave + "; kill -9 $PPID; sleep $1", "bash", p.mark}}, "")
	if code(err) != session.CodeLost {
		t.Errorf("its leader was killed: %v", err)
	}
	if left := find(marked(p.mark)); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
