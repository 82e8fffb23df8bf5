package session

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	// Nothing that a shell ignores in the background is ignored by commands.
	if got := p.sh("agent", `grep SigIgn /proc/self/status`); !strings.HasSuffix(got, "\t0000000000000000\n") {
		t.Errorf("ignored are %q", got)
	}
	if err := p.End(t.Context(), "agent"); err != nil {
		t.Fatal(err)
	}
}
