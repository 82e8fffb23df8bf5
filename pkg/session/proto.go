// Package session runs commands one after the other, or at once, in fences
// that stay up: a broker, a leader for each fence ("domain"), and clients
// outside. docs/session.md has the protocol.
//
// The broker stands outside every domain and decides who may ask for what and
// until when. A leader is an ordinary `fence` launch whose command is fence
// itself, so it lies inside the fence with the commands that it starts; a
// command can kill or stop it, and what it says is believed for its own
// commands only.
package session

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Schema is the version of the protocol, said first by both sides.
const Schema = "fence.session/v1"

const (
	maxRequest    = 8 << 20  // a frame of a client or a broker: arguments, environment
	maxNews       = 64 << 10 // a frame of a leader
	maxFDs        = 8
	leaderFD      = 3
	patience      = 10 * time.Second // for an answer that needs no work
	patienceStart = 30 * time.Second // for a command to have been started, on a busy node
	graceNormal   = 2 * time.Second  // between SIGTERM and SIGKILL
)

// Exit codes for what is not the command's own end; the rest are pkg/cli's.
const (
	CodeUsage    = 2
	CodeLost     = 3
	CodeTimedOut = 124
	CodeNotRun   = 125
	CodeCannot   = 126
	CodeNotFound = 127
)

// Error is an answer that is not the command's, with the exit code for it.
type Error struct {
	Code int    `json:"code"`
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

func (e *Error) Error() string { return e.Text }

func errorf(code int, format string, a ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, a...)}
}

// Size is that of a terminal, in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Command is what to run, where, and for how long.
type Command struct {
	Domain  string            `json:"domain"`           // may be empty where there is only one
	Tool    string            `json:"tool,omitempty"`   // "put" or "get": fence itself, with Argv as its arguments
	Argv    []string          `json:"argv"`             //
	Env     []string          `json:"env,omitempty"`    // NAME=VALUE, over the domain's own
	Dir     string            `json:"dir,omitempty"`    // else the domain's
	Umask   *int              `json:"umask,omitempty"`  // else the domain's
	Timeout int64             `json:"timeout_ms"`       // 0: none
	Grace   int64             `json:"grace_ms"`         // from SIGTERM to SIGKILL; 0: 2 s
	Limits  map[string]uint64 `json:"limits,omitempty"` // setrlimit(2), soft and hard
	TTY     *Size             `json:"tty,omitempty"`    // a terminal of the domain's own instead of three pipes
}

// check refuses what JSON or execve(2) would change or cut.
func (c *Command) check() error {
	if len(c.Argv) == 0 && c.Tool == "" {
		return errorf(CodeUsage, "no command")
	}
	for _, list := range [][]string{c.Argv, c.Env, {c.Dir}} {
		for _, s := range list {
			if strings.Contains(s, "\x00") || !utf8.ValidString(s) {
				return errorf(CodeUsage, "an argument, variable or folder is not UTF-8 text: %q", s)
			}
		}
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return errorf(CodeUsage, "a variable is not NAME=VALUE: %q", kv)
		}
	}
	for name := range c.Limits {
		if _, ok := rlimits[name]; !ok {
			return errorf(CodeUsage, "the limit %q is not known", name)
		}
	}
	switch {
	case c.Dir != "" && c.Dir[0] != '/':
		return errorf(CodeUsage, "the folder %q is not an absolute path", c.Dir)
	case c.Umask != nil && (*c.Umask < 0 || *c.Umask > 0o777):
		return errorf(CodeUsage, "the umask %o is none", *c.Umask)
	case c.Timeout < 0 || c.Grace < 0:
		return errorf(CodeUsage, "a time is negative")
	case c.Tool != "" && c.Tool != "put" && c.Tool != "get":
		return errorf(CodeUsage, "the tool %q is not known", c.Tool)
	}
	return nil
}

// Exit is how a command ended, and what it used with the children that it
// waited for.
type Exit struct {
	Code     int    `json:"code"`   // 128+Signal if a signal ended it
	Signal   int    `json:"signal"` // 0: it ended by itself
	UserUS   int64  `json:"user_us"`
	SystemUS int64  `json:"system_us"`
	MaxRSSKB int64  `json:"max_rss_kb"`
	TimedOut bool   `json:"timed_out"`
	Reason   string `json:"reason,omitempty"` // why the broker ended it
}

// Status is what a session consists of.
type Status struct {
	Schema  string         `json:"schema"`
	Peers   string         `json:"peers"` // "outside": asked for from outside the container only; "any": by any process but the domains'
	Domains []DomainStatus `json:"domains"`
}

// DomainStatus is one domain of it.
type DomainStatus struct {
	Name         string          `json:"name"`
	Policy       string          `json:"policy"`
	State        string          `json:"state"`             // alive, ended, lost
	Why          string          `json:"why,omitempty"`     // it is not alive
	Running      int             `json:"running"`           // commands
	TTY          bool            `json:"tty"`               // it has terminals of its own
	PIDNamespace bool            `json:"pid_namespace"`     // it sees its own processes only, and they end with its first
	Below        string          `json:"below,omitempty"`   // the domain that it lies below
	Beside       string          `json:"beside,omitempty"`  // why it does not, although it was asked for
	Private      []string        `json:"private,omitempty"` // folders that no other domain has
	Fence        json.RawMessage `json:"fence"`             // the fence.status record of its launch
}

// hello is the first frame of both sides, in every version.
type hello struct {
	Schema string `json:"schema"`
}

// request is a frame of a client: one of them, then signals and sizes.
type request struct {
	Run     *Command `json:"run,omitempty"`
	Status  bool     `json:"status,omitempty"`
	End     string   `json:"end,omitempty"`     // a domain
	Signal  int      `json:"signal,omitempty"`  // to the process group of the command
	Connect bool     `json:"connect,omitempty"` // on a --stdio connection: its descriptor is a new connection
}

// reply is a frame of the broker. Exit, Status, Ended and Error are the last.
type reply struct {
	Terminal bool    `json:"terminal,omitempty"` // with its master
	Exit     *Exit   `json:"exit,omitempty"`
	Status   *Status `json:"status,omitempty"`
	Ended    bool    `json:"ended,omitempty"`
	Error    *Error  `json:"error,omitempty"`
}

// order is a frame from the broker to a leader, about the command ID.
type order struct {
	ID     uint64   `json:"id,omitempty"`
	Start  *Command `json:"start,omitempty"`  // with three pipes, or a terminal
	Signal int      `json:"signal,omitempty"` // to its process group
	Last   bool     `json:"last,omitempty"`   // and what is left of its session ends with it
	Kill   bool     `json:"kill,omitempty"`   // its whole session
	End    bool     `json:"end,omitempty"`    // the domain
}

// news is a frame from a leader.
type news struct {
	Ready   bool   `json:"ready,omitempty"`
	TTY     bool   `json:"tty,omitempty"`
	PID     int    `json:"pid,omitempty"` // with Ready
	ID      uint64 `json:"id,omitempty"`
	Started bool   `json:"started,omitempty"`
	Failed  *Error `json:"failed,omitempty"`
	Exit    *Exit  `json:"exit,omitempty"`
}

// conn carries frames over a stream socket: four bytes of length, most
// significant first, then a JSON object. Descriptors come with the first byte.
type conn struct {
	f   *os.File
	raw syscall.RawConn
	max int        // of what is received
	w   sync.Mutex // a frame at a time
}

// newConn takes the descriptor over.
func newConn(fd, max int) (*conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "session")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &conn{f: f, raw: raw, max: max}, nil
}

// pair is a connection and the descriptor of its other side.
func pair(max int) (*conn, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	c, err := newConn(fds[0], max)
	if err != nil {
		unix.Close(fds[1])
		return nil, -1, err
	}
	return c, fds[1], nil
}

func (c *conn) close() { c.f.Close() }

// send waits a while for a peer that does not read, then gives up: half a
// frame may be gone, so the connection is of no use afterwards.
func (c *conn) send(v any, fds ...int) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.w.Lock()
	defer c.w.Unlock()
	if err := c.f.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for len(frame) > 0 {
		n, sent := 0, error(nil)
		err := c.raw.Write(func(fd uintptr) bool {
			n, sent = unix.SendmsgN(int(fd), frame, rights, nil, unix.MSG_NOSIGNAL)
			return sent != unix.EAGAIN
		})
		if err == nil && sent != unix.EINTR {
			err = os.NewSyscallError("sendmsg", sent)
		}
		if err != nil {
			return err
		}
		if n > 0 {
			frame, rights = frame[n:], nil
		}
	}
	return nil
}

// recv reads one frame into v, every unknown field refused, and returns the
// descriptors that came with it. io.EOF means that the peer has closed.
func (c *conn) recv(v any) (fds []int, err error) {
	body, fds, err := c.frame()
	if err == nil {
		err = decode(body, v)
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

// errTooMany is for a whole frame whose descriptors there was no room for.
var errTooMany = errors.New("too many descriptors")

func (c *conn) frame() (body []byte, fds []int, err error) {
	var head [4]byte
	fds, err = c.fill(head[:], nil)
	many := err == errTooMany
	if err != nil && !many {
		return nil, fds, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > uint32(c.max) {
		return nil, fds, fmt.Errorf("a frame of %d bytes", n)
	}
	body = make([]byte, n)
	if fds, err = c.fill(body, fds); err == io.EOF {
		err = io.ErrUnexpectedEOF
	} else if err == nil && many {
		err = errTooMany
	}
	return body, fds, err
}

func decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("a frame that is none: %w", err)
	}
	if len(bytes.TrimSpace(body[d.InputOffset():])) > 0 {
		return errors.New("a frame that is none: more than one object")
	}
	return nil
}

func (c *conn) fill(buf []byte, fds []int) ([]int, error) {
	oob, many := make([]byte, unix.CmsgSpace(4*maxFDs)), false
	for at := 0; at < len(buf); {
		var n, oobn, flags int
		var got error
		err := c.raw.Read(func(fd uintptr) bool {
			n, oobn, flags, _, got = unix.Recvmsg(int(fd), buf[at:], oob, unix.MSG_CMSG_CLOEXEC)
			return got != unix.EAGAIN
		})
		if err == nil && got != unix.EINTR {
			err = got
		}
		if oobn > 0 {
			var more []int
			if more, got = rights(oob[:oobn]); got != nil {
				err = got
			}
			fds = append(fds, more...)
		}
		if flags&unix.MSG_CTRUNC != 0 || len(fds) > maxFDs {
			closeAll(fds)
			fds, many = nil, true
		}
		switch {
		case err != nil:
			return fds, err
		case n == 0 && got == nil && at > 0:
			return fds, io.ErrUnexpectedEOF
		case n == 0 && got == nil:
			return fds, io.EOF
		}
		at += max(n, 0)
	}
	if many {
		return fds, errTooMany
	}
	return fds, nil
}

func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		more, bad := unix.ParseUnixRights(&m)
		if bad != nil {
			err = bad
		}
		fds = append(fds, more...)
	}
	return fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
