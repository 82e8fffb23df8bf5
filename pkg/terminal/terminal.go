// Package terminal is the terminal that a model works in. A tmux outside of the
// container is what keeps the screen; it is under fence itself and reaches
// nothing but a folder of its own. The shell is a command of the box's, on a
// terminal of the box's, and this program carries bytes between the two. So the
// image needs no tmux, nothing inside can reach or forge the screen, and a turn
// costs no new process.
package terminal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/box"
	"fence/pkg/session"
	"fence/pkg/terminus"
	"fence/pkg/tree"
)

// The size of every terminal, as Terminus-2 has it.
const Columns, Rows = 160, 40

// Options are one terminal.
type Options struct {
	// Run runs a command in the box; see box.Box.
	Run         func(context.Context, box.Command, session.Streams) (session.Exit, error)
	Fence, Tmux string // absolute paths on the node; see Find
	// Dir is an empty folder on a disk of this node, for this terminal alone.
	// Close removes it.
	Dir string
	// Record is given what tmux is of all that the shell and its programs print,
	// as they do; may be nil.
	Record   io.Writer
	Patience time.Duration // with a tmux that does not answer; 0 is half a minute
}

// Error says why there is no terminal (any more), with a fault's class and cause:
// terminal_failed of tmux, or of the fence that it runs under, which is the
// node's; no_shell of an image.
type Error struct{ Class, Cause, Message, Hint string }

// patience is with a tmux that does not answer.
const patience = 30 * time.Second

func failed(hint, format string, a ...any) *Error {
	return &Error{"terminal_failed", "infra", fmt.Sprintf(format, a...), hint}
}

func (e *Error) Error() string { return e.Message }

// Terminal is one that is up, with a shell in it. It is terminus.Terminal.
type Terminal struct {
	dir     string
	tmux    *server
	keys    *os.File // what tmux has as input for the shell
	screen  *os.File // what the shell prints, for tmux
	record  io.Writer
	marks   marks
	weighed int           // bytes that tmux was given since it was asked what it holds
	lost    atomic.Bool   // the history was emptied since the last look
	begun   chan struct{} // closed when the shell has printed something
	once    sync.Once
	life    context.Context // ends with Close
	end     context.CancelFunc
	ended   chan struct{} // closed when the shell has ended
	err     error         // why it did not end by itself, once ended is closed

	mark  mark
	notes []string
}

// shell is bash as a login shell, as Terminus-2 has it, else sh. Where the image
// sets no locale (then Apptainer says LANG=C) and has C.UTF-8, it is that. In the
// locale C bash takes the bytes of é for keys with Meta, if they are the first that
// it reads at once; one of them searches the history.
var shell = []string{"/bin/sh", "-c", `unset PS1
case $LC_ALL$LC_CTYPE$LANG in '' | C) for dir in /usr/lib/locale/C.[uU]*8; do [ ! -d $dir ] || export LANG=C.UTF-8; done ;; esac
for sh in /bin/bash /usr/bin/bash /usr/local/bin/bash; do [ -x $sh ] && SHELL=$sh exec $sh --login; done; SHELL=/bin/sh exec /bin/sh`}

// Start starts a terminal, and in it a shell in the agent's domain. The end of
// ctx is that of the start only: the shell, and what was started in it, live
// until the box ends.
func Start(ctx context.Context, o Options) (_ *Terminal, err error) {
	wait := cmp.Or(o.Patience, patience)
	ctx, cancel := context.WithTimeoutCause(ctx, wait, failed("does it work by hand? --tmux FILE names another", "%s, which keeps the terminal, has not answered for %s", o.Tmux, wait))
	defer cancel()
	t := &Terminal{dir: o.Dir, record: o.Record, begun: make(chan struct{}), ended: make(chan struct{})}
	t.life, t.end = context.WithCancel(context.WithoutCancel(ctx))
	shellRuns := false
	defer func() {
		if err != nil {
			if !shellRuns {
				close(t.ended)
			}
			t.Close()
		}
	}()
	if t.keys, err = fifo(filepath.Join(o.Dir, "keys")); err == nil {
		t.screen, err = fifo(filepath.Join(o.Dir, "screen"))
	}
	if err != nil {
		return nil, failed("--scratch DIR on a disk of this node", "the terminal's named pipes: %v", err)
	}
	if t.tmux, err = startServer(ctx, o.Fence, o.Tmux, o.Dir, t.screen.Name(), t.keys.Name()); err != nil {
		return nil, err
	}
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	shellRuns = true
	go func() {
		defer close(t.ended)
		_, t.err = o.Run(context.WithoutCancel(ctx), box.Command{
			Domain: box.Agent, Argv: shell, Env: map[string]string{"TERM": "xterm-256color"},
			TTY: &session.Size{Rows: Rows, Cols: Columns},
		}, session.Streams{In: t.keys, Out: printed{t}})
	}()
	return t, t.prompt(ctx)
}

// fifo makes a named pipe and opens it so that neither of its ends is ever
// missing.
func fifo(name string) (*os.File, error) {
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: name, Err: err}
	}
	return os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// ready waits for what runs in tmux's pane.
func (t *Terminal) ready(ctx context.Context) error {
	said := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(t.keys, make([]byte, 1))
		said <- err
	}()
	select {
	case err := <-said:
		return err
	case <-t.tmux.done:
		return t.tmux.why()
	case <-ctx.Done():
		return fmt.Errorf("starting the terminal: %w", context.Cause(ctx))
	}
}

// promptTimeout is how long a shell may take to its first prompt; one without a
// prompt is a shell, too.
const promptTimeout = 3 * time.Second

// prompt waits until there is something to see.
func (t *Terminal) prompt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, promptTimeout)
	defer cancel()
	select {
	case <-t.begun:
	case <-t.ended:
		return t.gone()
	case <-ctx.Done():
		return nil
	}
	for {
		s, err := t.Screen(ctx)
		if s != "" || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := t.Send(ctx, "", 5*time.Millisecond); err != nil {
			return nil
		}
	}
}

// printed takes what the shell prints. What comes after Close goes nowhere, but
// it is read: a program that nobody listens to would stop.
type printed struct{ *Terminal }

func (p printed) Write(b []byte) (int, error) {
	p.once.Do(func() { close(p.begun) })
	if p.life.Err() != nil {
		return len(b), nil
	}
	shown := p.marks.pass(b)
	if p.record != nil {
		_, _ = p.record.Write(shown) // a recording says at its end that it is not whole; the model is to see what comes
	}
	if n, err := p.screen.Write(shown); err != nil && !errors.Is(err, os.ErrClosed) {
		return n, err
	}
	if p.weighed += len(b); p.weighed >= 256<<10 {
		p.weighed = 0
		p.weigh()
	}
	return len(b), nil
}

// weigh empties a history that takes too much of tmux's memory. What is not known
// is left: tmux has ended then, or the terminal is being closed.
func (t *Terminal) weigh() {
	answers, err := t.tmux.ask(t.life, "display-message -p -t %0 '#{history_bytes}'")
	if err != nil {
		return
	}
	if n, err := strconv.Atoi(strings.Join(answers[0].lines, "")); err == nil && n > mostHistory {
		t.lost.Store(true)
		_, _ = t.tmux.ask(t.life, "clear-history -t %0")
	}
}

// gone is why nothing can be typed or seen any more, or nil.
func (t *Terminal) gone() error {
	select {
	case <-t.ended:
		var lost *box.Error
		var not *session.Error
		switch {
		case errors.As(t.err, &not) && (not.Code == session.CodeNotFound || not.Code == session.CodeCannot):
			return &Error{"no_shell", "task", "there is no shell that a model could work in: " + not.Text, "the image needs a /bin/sh, or another --agent"}
		case t.err == nil, errors.As(t.err, &lost) && lost.Class == "session_lost":
			return terminus.ErrGone
		}
		return t.err
	case <-t.tmux.done:
		return t.tmux.why()
	default:
		return nil
	}
}

// Send types, and returns when wait is over since it was called, whether tmux has
// got to it by then or is still busy with what a program prints; see
// terminus.Terminal.
func (t *Terminal) Send(ctx context.Context, keys string, wait time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := t.gone(); err != nil {
		return err
	}
	commands, notes := typed(keys)
	t.notes = append(t.notes, notes...)
	if len(commands) > 0 {
		if _, err := t.ask(waiting, commands...); err != nil && waiting.Err() == nil {
			return err
		}
	}
	select {
	case <-t.ended:
		return t.gone()
	case <-t.tmux.done:
		return t.gone()
	case <-waiting.Done():
		return context.Cause(ctx)
	}
}

// ask asks tmux; that the shell has ended goes before what tmux says.
func (t *Terminal) ask(ctx context.Context, commands ...string) ([]text, error) {
	answers, err := t.tmux.ask(ctx, commands...)
	if err != nil && ctx.Err() == nil {
		if gone := t.gone(); gone != nil {
			return nil, gone
		}
	}
	return answers, err
}

// Screen is what is to be seen; see terminus.Terminal.
func (t *Terminal) Screen(ctx context.Context) (string, error) {
	answers, err := t.ask(ctx, "capture-pane -p -t %0")
	if err != nil {
		return "", err
	}
	return tidy(answers[0].lines), nil
}

// Output is what came since the last call; see terminus.Terminal.
func (t *Terminal) Output(ctx context.Context) (terminus.Output, error) {
	answers, err := t.ask(ctx, look...)
	if err != nil {
		return terminus.Output{}, err
	}
	v, err := parse(answers)
	if err != nil {
		return terminus.Output{}, err
	}
	v.lost = t.lost.Swap(false)
	var out terminus.Output
	out, t.mark = t.mark.next(v)
	out.Notes, t.notes = t.notes, nil
	return out, nil
}

// Close ends tmux and removes the folder. The shell stays, as with Terminus-2:
// tests may look for the servers that the model has started in it.
func (t *Terminal) Close() error {
	if t.life.Err() != nil {
		return nil
	}
	t.end()
	var errs []error
	if t.tmux != nil {
		errs = append(errs, t.tmux.close())
	}
	for _, f := range []*os.File{t.keys, t.screen} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(append(errs, tree.RemoveAll(t.dir))...)
}

// Find looks for a tmux that can be used.
func Find(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer for %s", patience))
	defer cancel()
	said := &apptainer.Tail{Most: 256}
	cmd := command(ctx, path, "-V")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, endTimeout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s -V: %w", path, cmp.Or(context.Cause(ctx), err))
	}
	version := strings.TrimSpace(said.String())
	if !recent(version) {
		return fmt.Errorf("%s is %q, and 3.2 is the first that can be used", path, version)
	}
	return nil
}
