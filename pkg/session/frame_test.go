package session

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connected are two ends, the first for frames of at most max bytes.
func connected(t testing.TB, max int) (*conn, *os.File) {
	t.Helper()
	c, fd, err := pair(max)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "peer")
	t.Cleanup(func() { c.close(); f.Close() })
	return c, f
}

func frameOf(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// Whatever comes, a frame is read whole or refused, and is no longer than
// allowed.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{"", "\x00", `{"run":{"argv":["true"],"domain":"a","timeout_ms":0,"grace_ms":0}}`, `{"id":1,"exit":{"code":300}}`, "{}{}", `{"x":1}`, "null", "[]", "\xff{}"} {
		f.Add(frameOf(s))
	}
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x10{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 4096
		if len(data) > 1<<16 {
			return
		}
		for _, v := range []any{&request{}, &news{}, &order{}, &reply{}} {
			c, peer := connected(t, most)
			peer.Write(data)
			peer.Close()
			rest := data
			for {
				fds, err := c.recv(v)
				if len(fds) > 0 {
					t.Error("descriptors out of nothing")
				}
				if err == io.EOF && len(rest) > 0 {
					t.Errorf("it ends before %q", rest)
				}
				if err != nil {
					break
				}
				n := binary.BigEndian.Uint32(rest)
				if n > most || len(rest) < 4+int(n) {
					t.Fatalf("a frame of %d bytes out of %d", n, len(rest))
				}
				rest = rest[4+n:]
			}
		}
	})
}

func TestConn(t *testing.T) {
	a, fd, err := pair(maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	b, err := newConn(fd, maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	// More than a socket holds, with descriptors, and a small one behind it.
	long := strings.Repeat("x", 4<<20)
	go func() {
		a.send(request{Run: &Command{Argv: []string{long}}}, p[0], p[1])
		a.send(request{Signal: 7})
	}()
	var q request
	fds, err := b.recv(&q)
	if err != nil || len(fds) != 2 || q.Run.Argv[0] != long {
		t.Fatalf("%v, %d descriptors", err, len(fds))
	}
	closeAll(fds)
	closeAll(p[:])
	if fds, err := b.recv(&q); err != nil || len(fds) != 0 || q.Signal != 7 {
		t.Errorf("%+v %v %v", q, fds, err)
	}
	// More descriptors than anybody sends are closed again.
	before, _ := os.ReadDir("/proc/self/fd")
	many := make([]int, 3*maxFDs)
	a.send(request{}, many...)
	if _, err := b.recv(&q); err == nil {
		t.Error("many descriptors are taken")
	}
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) != len(before) {
		t.Errorf("%d descriptors, were %d", len(after), len(before))
	}
}

// fake is a domain whose leader is a process that does nothing, and its end of
// the channel, on which we say what we like.
func fake(t *testing.T, b *broker, name string) (*domain, *conn) {
	t.Helper()
	c, theirs, err := pair(maxNews)
	if err != nil {
		t.Fatal(err)
	}
	leader, err := newConn(theirs, maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	d := &domain{Domain: Domain{Name: name}, b: b, c: c, devpts: -1, state: "alive", runs: map[uint64]*run{}, exited: make(chan struct{}), gone: make(chan struct{}), started: true}
	d.pid, err = b.r.start("/bin/sleep", []string{"sleep", "1000"}, &syscall.ProcAttr{}, func(unix.WaitStatus, *unix.Rusage) { close(d.exited) })
	if err != nil {
		t.Fatal(err)
	}
	b.domains = append(b.domains, d)
	go d.listen()
	t.Cleanup(func() {
		b.r.with(d.pid, func(*proc) { unix.Kill(d.pid, unix.SIGKILL) })
		d.end("ended", "the test is over")
		leader.close()
	})
	return d, leader
}

// A leader that lies loses its own domain and its own commands, whatever it
// says; the other's go on.
func TestHostileLeader(t *testing.T) {
	r, err := newReaper()
	if err != nil {
		t.Fatal(err)
	}
	said := func(v any) func(*conn) { return func(c *conn) { c.send(v) } }
	raw := func(data []byte) func(*conn) { return func(c *conn) { c.f.Write(data) } }
	for name, say := range map[string]func(*conn){
		"garbage":                nil,
		"nothing but an end":     func(c *conn) { c.close() },
		"not a frame":            raw([]byte("hello, broker")),
		"huge":                   raw([]byte("\x00\x10\x00\x00")),
		"an unknown key":         raw(frameOf(`{"id":1,"started":true,"pid":1}`)),
		"another's command":      said(news{ID: 77, Exit: &Exit{}}),
		"ready again":            said(news{ID: 1, Ready: true}),
		"an end before a begin":  said(news{ID: 1, Exit: &Exit{}}),
		"both":                   said(news{ID: 1, Started: true, Exit: &Exit{}}),
		"an exit code of 300":    func(c *conn) { c.send(news{ID: 1, Started: true}); c.send(news{ID: 1, Exit: &Exit{Code: 300}}) },
		"a reason of its own":    func(c *conn) { c.send(news{ID: 1, Started: true}); c.send(news{ID: 1, Exit: &Exit{TimedOut: true}}) },
		"twice begun":            func(c *conn) { c.send(news{ID: 1, Started: true}); c.send(news{ID: 1, Started: true}) },
		"an error with no code":  said(news{ID: 1, Failed: &Error{Text: "x"}}),
		"an error once it began": func(c *conn) { c.send(news{ID: 1, Started: true}); c.send(news{ID: 1, Failed: &Error{Code: 3}}) },
		"a descriptor":           func(c *conn) { c.send(news{ID: 1, Started: true}, 0) },
		"a flood": func(c *conn) {
			for c.send(news{ID: 1, Started: true}) == nil {
			}
		},
	} {
		if say == nil {
			say = raw(bytes.Repeat([]byte{0xaa}, 1<<16))
		}
		t.Run(name, func(t *testing.T) {
			b := &broker{r: r, ending: make(chan error, 1)}
			bad, liar := fake(t, b, "bad")
			good, honest := fake(t, b, "good")
			var answers [2]reply
			var both sync.WaitGroup
			for i, d := range []*domain{bad, good} {
				client, peer := connected(t, maxRequest)
				defer peer.Close()
				var p [2]int
				if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
					t.Fatal(err)
				}
				unix.Close(p[1])
				both.Go(func() { answers[i] = d.follow(client, &Command{Argv: []string{"x"}}, []int{p[0]}) })
			}
			for _, leader := range []*conn{liar, honest} { // the order is there
				var o order
				fds, err := leader.recv(&o)
				if err != nil || o.ID != 1 || len(fds) != 1 {
					t.Fatalf("%+v %v", o, err)
				}
				closeAll(fds)
			}
			say(liar)
			select {
			case <-bad.gone:
			case <-time.After(patience):
				t.Fatal("the domain is not lost")
			}
			if s := bad.status(); s.State != "lost" {
				t.Errorf("%+v", s)
			}
			honest.send(news{ID: 1, Started: true})
			honest.send(news{ID: 1, Exit: &Exit{Code: 7}})
			both.Wait()
			if answers[0].Error == nil || answers[0].Error.Code != CodeLost || answers[1].Exit == nil || answers[1].Exit.Code != 7 {
				t.Errorf("%+v", answers)
			}
			if s := good.status(); s.State != "alive" {
				t.Errorf("%+v", s)
			}
			r.mu.Lock()
			left := r.procs[bad.pid]
			r.mu.Unlock()
			if left != nil {
				t.Error("its leader lives")
			}
		})
	}
}

func TestCommandCheck(t *testing.T) {
	mask := 0o1000
	for _, c := range []Command{
		{}, {Argv: []string{"a\x00"}}, {Argv: []string{"\xff"}}, {Argv: []string{"a"}, Env: []string{"=x"}}, {Argv: []string{"a"}, Dir: "x"},
		{Argv: []string{"a"}, Umask: &mask}, {Argv: []string{"a"}, Timeout: -1}, {Argv: []string{"a"}, Tool: "limit"}, {Argv: []string{"a"}, Limits: map[string]uint64{"x": 1}},
	} {
		if c.check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if err := (&Command{Argv: []string{"a"}, Env: []string{"A="}, Dir: "/"}).check(); err != nil {
		t.Error(err)
	}
}
