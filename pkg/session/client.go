package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Client asks a session for things, from outside its domains.
type Client struct {
	dial func() (*conn, error)
}

// Dial is a client of the session whose socket lies at path, or will within
// the time to wait. Nothing is connected yet: each request has a connection of
// its own.
func Dial(path string, wait time.Duration) *Client {
	until := time.Now().Add(wait)
	return &Client{dial: func() (*conn, error) {
		c, err := connect(path)
		absent := func() bool {
			return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOTDIR)
		}
		for absent() && time.Now().Before(until) {
			time.Sleep(20 * time.Millisecond)
			c, err = connect(path)
		}
		switch {
		case absent():
			return nil, &Error{CodeLost, fmt.Sprintf("there is no session at %s: %v", path, err), "fence serve starts one; --wait 1m waits until it is there"}
		case err != nil:
			return nil, errorf(CodeUsage, "--socket: %s: %v", path, err)
		}
		return c, nil
	}}
}

func connect(path string) (c *conn, err error) {
	err = at(path, func(sa unix.Sockaddr) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, sa); err != nil {
			unix.Close(fd)
			return err
		}
		if uid, known := peer(fd); !known && os.Geteuid() != 0 {
			unix.Close(fd)
			return strangerError{uid}
		}
		c, err = newConn(fd, maxRequest)
		return err
	})
	return c, err
}

// Over is a client of the session that has the other end of fd, a connected
// Unix stream socket, as descriptor 0 (fence serve --stdio). When fd is
// closed, the session ends: it must be close-on-exec. It is taken over.
func Over(fd int) (*Client, io.Closer, error) {
	control, err := newConn(fd, maxNews)
	if err != nil {
		return nil, nil, err
	}
	return &Client{dial: func() (*conn, error) {
		c, theirs, err := pair(maxRequest)
		if err != nil {
			return nil, err
		}
		err = control.send(request{Connect: true}, theirs)
		unix.Close(theirs)
		if err != nil {
			c.close()
			return nil, errorf(CodeLost, "the session is gone: %v", err)
		}
		return c, nil
	}}, control.f, nil
}

// ask sends a request on a connection of its own. The connection ends with
// the context.
func (cl *Client) ask(ctx context.Context, q request, fds ...int) (c *conn, done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if c, err = cl.dial(); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, c.close)
	done = func() { stop(); c.close() }
	// The broker's own word first, even where it took neither of ours.
	sent := c.send(hello{Schema})
	if sent == nil {
		sent = c.send(q, fds...)
	}
	body, more, err := c.frame()
	closeAll(more)
	var h hello
	if err == nil && json.Unmarshal(body, &h) == nil && h.Schema != Schema {
		err = &Error{CodeUsage, fmt.Sprintf("the session speaks %.40q, this fence %s", h.Schema, Schema), "use the fence that started it"}
	}
	// Refused, the request finds nobody; why is here to be read.
	if err == nil && !errors.Is(sent, unix.EPIPE) && !errors.Is(sent, unix.ECONNRESET) {
		err = sent
	}
	if err != nil {
		done()
		return nil, nil, gone(ctx, err)
	}
	return c, done, nil
}

// gone is what an error of the connection means.
func gone(ctx context.Context, err error) error {
	var e *Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &e):
		return e
	}
	return errorf(CodeLost, "the session is gone: %v", err)
}

// last reads replies until the last.
func last(c *conn) (reply, error) {
	for {
		var a reply
		fds, err := c.recv(&a)
		closeAll(fds)
		switch {
		case err != nil:
			return a, err
		case a.Error != nil:
			return a, a.Error
		case a.Exit != nil || a.Status != nil || a.Ended:
			return a, nil
		}
	}
}

// Status asks what the session consists of.
func (cl *Client) Status(ctx context.Context) (Status, error) {
	a, err := cl.simple(ctx, request{Status: true})
	if err != nil || a.Status == nil {
		return Status{}, err
	}
	return *a.Status, nil
}

// End ends all of a domain. When it returns, nothing of it is left.
func (cl *Client) End(ctx context.Context, domain string) error {
	_, err := cl.simple(ctx, request{End: domain})
	return err
}

func (cl *Client) simple(ctx context.Context, q request) (reply, error) {
	c, done, err := cl.ask(ctx, q)
	if err != nil {
		return reply{}, err
	}
	defer done()
	a, err := last(c)
	if err != nil {
		err = gone(ctx, err)
	}
	return a, err
}

// Streams are a command's input and output, and what is done to it meanwhile.
// Nil: no input, and output goes nowhere. With a terminal all output is Out.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Signals  <-chan unix.Signal // for its process group
	Sizes    <-chan Size        // of its terminal
	Begin    func()             // called when the session has answered: Signals are heard from now on
}

// Run runs a command. When the context ends, the command is ended too. An
// *Error means that there is no exit status: nothing ran, or the session was
// lost. A Reader that still blocks when the command has ended is left to.
func (cl *Client) Run(ctx context.Context, cmd Command, s Streams) (Exit, error) {
	err := cmd.check()
	var asked [][]string
	if err == nil && cmd.Tool == "get" {
		asked, err = askedFor(cmd.Argv)
	}
	if err != nil {
		return Exit{}, err
	}
	if s.Out == nil {
		s.Out = io.Discard
	}
	if s.Err == nil {
		s.Err = io.Discard
	}
	var ours []*os.File
	var give []int
	if cmd.TTY == nil {
		var ends [6]int
		for i := 0; i < 6; i += 2 {
			if err := unix.Pipe2(ends[i:i+2], unix.O_CLOEXEC); err != nil {
				closeAll(ends[:i])
				return Exit{}, os.NewSyscallError("pipe2", err)
			}
		}
		give = []int{ends[0], ends[3], ends[5], ends[2], ends[4]}
		for _, fd := range []int{ends[1], ends[2], ends[4]} {
			_ = unix.SetNonblock(fd, true)
			ours = append(ours, os.NewFile(uintptr(fd), "pipe"))
		}
	}
	c, done, err := cl.ask(ctx, request{Run: &cmd}, give...)
	closeAll(give[:min(3, len(give))])
	if err != nil {
		for _, f := range ours {
			f.Close()
		}
		return Exit{}, err
	}
	defer done()
	if s.Begin != nil {
		s.Begin()
	}
	if cmd.TTY != nil {
		var a reply
		fds, err := c.recv(&a)
		if err == nil && a.Error != nil {
			err = a.Error
		}
		if err != nil || len(fds) != 1 {
			closeAll(fds)
			return Exit{}, gone(ctx, err)
		}
		_ = unix.SetNonblock(fds[0], true)
		ours = []*os.File{os.NewFile(uintptr(fds[0]), "terminal")}
	}
	defer func() {
		for _, f := range ours {
			f.Close()
		}
	}()

	ended := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-s.Signals:
				_ = c.send(request{Signal: int(sig)})
			case size := <-s.Sizes:
				control(ours[0], func(fd int) { _ = setSize(fd, size) })
			case <-ended:
				return
			}
		}
	}()
	go feed(ours[0], s.In, cmd.TTY != nil)
	var copies sync.WaitGroup
	var failed [2]error
	outputs := []io.Writer{s.Out, s.Err}
	if cmd.TTY != nil {
		outputs = outputs[:1]
	}
	for i, w := range outputs {
		from := &source{f: ours[len(ours)-len(outputs)+i], tty: cmd.TTY != nil}
		copies.Go(func() {
			if i == 0 && asked != nil {
				failed[i] = repack(asked, from, w)
			} else {
				_, failed[i] = io.Copy(w, from)
			}
			if failed[i] != nil {
				_ = c.send(request{Signal: int(unix.SIGTERM)}) // who writes to nobody gets SIGPIPE
				_, _ = io.Copy(io.Discard, from)
			}
		})
	}
	a, err := last(c)
	close(ended)
	// What it wrote is in the pipes now. Others may have them open for longer.
	for _, f := range ours[len(ours)-len(outputs):] {
		_ = f.SetReadDeadline(time.Unix(1, 0))
	}
	copies.Wait()
	if err != nil {
		return Exit{}, gone(ctx, err)
	}
	if a.Exit == nil {
		return Exit{}, errorf(CodeLost, "the session is gone: an answer to something else")
	}
	if a.Exit.Code != 0 && errors.Is(failed[0], errCut) {
		failed[0] = nil // its end says why
	}
	return *a.Exit, errors.Join(failed[:]...)
}

// feed writes what the command is to read, then its end.
func feed(to *os.File, from io.Reader, tty bool) {
	if from != nil {
		if _, err := io.Copy(to, from); err == nil && tty {
			_, _ = to.Write([]byte{4}) // ^D, as it is set at first
		}
	}
	if !tty {
		to.Close()
	}
}

// source reads until the end, or until the deadline and then what is there.
type source struct {
	f    *os.File
	tty  bool
	over bool
	left int // after the deadline
}

func (s *source) Read(buf []byte) (int, error) {
	if !s.over {
		n, err := s.f.Read(buf)
		switch {
		case errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed):
			return n, io.EOF // a terminal has no other end
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		}
		// What a pipe holds now. What a terminal holds, only reading says: its
		// kernel thread may be behind.
		s.over, s.left = true, 1<<20
		if !s.tty {
			control(s.f, func(fd int) { s.left, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
		}
	}
	n, err := 0, error(unix.EINTR)
	control(s.f, func(fd int) {
		for err == unix.EINTR {
			n, err = unix.Read(fd, buf[:min(len(buf), s.left)])
		}
	})
	if s.left -= n; n <= 0 {
		return 0, io.EOF
	}
	return n, nil
}

func control(f *os.File, do func(fd int)) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}

// Put unpacks a tar stream below a folder of the domain; see fence put.
func (cl *Client) Put(ctx context.Context, cmd Command, dir string, tar io.Reader) error {
	cmd.Tool, cmd.Argv = "put", []string{dir}
	return cl.tool(ctx, cmd, Streams{In: tar})
}

// Get packs paths below a folder of the domain into a tar stream.
func (cl *Client) Get(ctx context.Context, cmd Command, dir string, paths []string, tar io.Writer) error {
	cmd.Tool, cmd.Argv = "get", append([]string{dir}, paths...)
	return cl.tool(ctx, cmd, Streams{Out: tar})
}

func (cl *Client) tool(ctx context.Context, cmd Command, s Streams) error {
	var said tail
	s.Err = &said
	exit, err := cl.Run(ctx, cmd, s)
	if err == nil && exit.Code != 0 {
		err = &Error{exit.Code, said.text(fmt.Sprintf("fence %s ended with %d", cmd.Tool, exit.Code)), ""}
	}
	return err
}
