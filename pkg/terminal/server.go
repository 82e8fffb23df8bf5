package terminal

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
)

// policy is that of tmux and what runs in its pane: programs of the node, its
// own folder, and no network.
const policy = `version = 1

[filesystem]
read = ["@root"]
hide = ["@shared", "@home", "@sockets"]

[environment]
keep = ["PATH", "LANG", "HOME", "LD_LIBRARY_PATH"]
`

// Lines are how many can come between two looks without any being lost, as long as
// they take no more than mostHistory bytes of tmux's memory: up to 800 for a line of
// ASCII, 4,100 for one of colours or other characters. Each look frees them.
const (
	Lines       = 110_000
	mostHistory = 100 << 20
)

// settings are tmux's. The limit of the history counts for panes that are made
// later. Nobody is attached but this program, whose end is the server's. No
// title, clipboard or other wish of a program's goes anywhere.
const settings = `set -g history-limit %d
set -g status off
set -g destroy-unattached on
set -g set-clipboard off
set -g set-titles off
set -g allow-rename off
set -g automatic-rename off
set -g bell-action none
set -g visual-bell off
set -g visual-activity off
set -s focus-events off
set -s escape-time 0
set -s buffer-limit 1
set -s command-alias ''
set -q -g allow-passthrough off
set -g default-terminal screen-256color
set -g update-environment ''
`

// pane is what runs in the pane: it carries bytes between tmux and two named
// pipes, and says when it does.
const pane = `stty raw -echo && printf r >"$1" && { cat <"$0" & exec cat >"$1"; }`

// server is a tmux in control mode: one client, started by us, that takes
// commands as lines and answers in blocks (tmux(1), CONTROL MODE).
type server struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   io.ReadCloser
	said  apptainer.Tail
	mu    sync.Mutex
	last  <-chan struct{} // closed when all that was asked before is answered, and the client attached
	asked atomic.Pointer[request]
	done  chan struct{} // closed when the client has ended
	end   error
	pid   int // a pidfd of the server, or -1
}

func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	if libs, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok { // of a tmux that a module brings
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libs)
	}
	return cmd
}

// startServer starts a server whose pane shows what comes by the named pipe
// screen, and gives what is typed to keys.
func startServer(ctx context.Context, fence, tmux, dir, screen, keys string) (*server, error) {
	for name, text := range map[string]string{"policy.toml": policy, "tmux.conf": fmt.Sprintf(settings, Lines)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	args := []string{"--policy", filepath.Join(dir, "policy.toml"), "--write", dir, "--why", "the terminal's own folder"}
	if prefix := filepath.Dir(filepath.Dir(tmux)); prefix != "/" && prefix != "/usr" {
		args = append(args, "--read", prefix, "--why", "tmux lies there")
	}
	attached := make(chan struct{})
	s := &server{
		cmd: command(context.WithoutCancel(ctx), fence, append(args, "--", tmux, "-u", "-C", "-f", "tmux.conf", "-S", "socket",
			"new-session", "-x", strconv.Itoa(Columns), "-y", strconv.Itoa(Rows), "exec sh -c "+quoted(pane)+" "+quoted(screen)+" "+quoted(keys))...),
		said: apptainer.Tail{Most: 4 << 10}, last: attached, done: make(chan struct{}), pid: -1,
	}
	s.cmd.Env = append(s.cmd.Env, "HOME="+dir, "SHELL=/bin/sh")
	s.cmd.Dir, s.cmd.Stderr, s.cmd.WaitDelay = dir, &s.said, endTimeout
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if s.out, err = s.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.listen(attached)
	// Not %output: what the pane prints comes from us.
	answers, err := s.ask(ctx, "refresh-client -f no-output", "display-message -p '#{pid}'")
	if err == nil {
		var pid int
		if pid, err = strconv.Atoi(strings.Join(answers[1].lines, "")); err == nil {
			s.pid, err = unix.PidfdOpen(pid, 0)
		}
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// quoted is a word for sh and for tmux, which takes it in the same way.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// request is some commands that are being answered.
type request struct {
	word   string
	n      int // commands
	answer chan answer
	over   chan struct{} // closed when it is answered
}

type answer struct {
	texts []text
	err   error
}

// text is what one command has said, or the beginning and the end of that.
type text struct {
	lines   []string
	omitted int // bytes in between
}

// kept is how many bytes of the beginning of a text are held, and of its end: more
// than a screen has, or a model is shown.
const kept = 256 << 10

// ask has the server carry out commands, with nothing in between, and returns
// what each said. It fails as a whole. At the end of ctx nobody waits for the
// answer any more, but they are carried out, before all that is asked later.
//
// What a pane shows stands in the answer as it is, and may look like the end of
// it. So each command is followed by another that prints a word which nobody
// else can know.
func (s *server) ask(ctx context.Context, commands ...string) ([]text, error) {
	q := &request{rand.Text(), len(commands), make(chan answer, 1), make(chan struct{})}
	var script strings.Builder
	for i, c := range commands {
		if i > 0 {
			script.WriteString(" ; ")
		}
		fmt.Fprintf(&script, "%s ; display-message -p %s-%d", c, q.word, i)
	}
	// Where one fails, those behind it are left out, but not the next line.
	fmt.Fprintf(&script, "\ndisplay-message -p %s\n", q.word)
	s.mu.Lock()
	before := s.last
	s.last = q.over
	s.mu.Unlock()
	go func() {
		select {
		case <-before:
		case <-s.done:
			return
		}
		s.asked.Store(q)
		_, _ = io.WriteString(s.in, script.String()) // if it cannot be written, the client has ended
	}()
	select {
	case a := <-q.answer:
		return a.texts, a.err
	case <-s.done:
		return nil, s.why()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// why says how the client has ended.
func (s *server) why() error {
	return failed("fence check says what this node lacks", "tmux, which keeps the terminal, has ended under its fence: %s", apptainer.LastWords(s.said.String(), s.end))
}

// attachment is what the client says when it has a session. On a busy node tmux
// reads lines before that, and "no current client" is its answer.
const attachment = "%session-changed "

// listen reads answers until the client ends. attached is closed when it has a
// session, before which nobody asks.
func (s *server) listen(attached chan<- struct{}) {
	r := bufio.NewReaderSize(s.out, 64<<10)
	for began := false; ; {
		line, err := r.ReadString('\n')
		if err != nil {
			break
		}
		if !began && strings.HasPrefix(line, attachment) {
			began = true
			close(attached)
		}
		q := s.asked.Load()
		if q == nil {
			continue
		}
		texts, err := read(r, line, q.word, q.n)
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			break
		}
		s.asked.Store(nil)
		q.answer <- answer{texts, err}
		close(q.over)
	}
	s.end = s.cmd.Wait()
	close(s.done)
}

// read reads the answers to n commands, each of which is followed by a word of
// its own, from their first line on.
func read(r *bufio.Reader, line, word string, n int) (texts []text, failed error) {
	var section ends
	next := word + "-0"
	for {
		line = strings.TrimSuffix(line, "\n")
		last := line == word
		if last || line == next {
			if _, err := r.ReadString('\n'); err != nil { // the end of the word's own block
				return nil, err
			}
			switch {
			case last && len(texts) < n:
				_, err := block(section)
				return nil, cmp.Or(err, errors.New("tmux has not answered all"))
			case last:
				return texts, failed
			}
			said, err := block(section)
			texts, section, failed = append(texts, said), ends{}, cmp.Or(failed, err)
			next = fmt.Sprintf("%s-%d", word, len(texts))
		} else {
			section.add(line)
		}
		var cut int
		var err error
		if line, cut, err = readLine(r); err != nil {
			return nil, err
		}
		section.omitted += cut
	}
}

// ends are the lines of a text, without those in the middle of a long one.
type ends struct {
	first, last []string
	room        int // what last has taken of its own
	size        int
	omitted     int
}

func (e *ends) add(line string) {
	if room := kept - e.size; room > 0 {
		n := min(room, len(line))
		e.first, line = append(e.first, line[:n]), line[n:]
		if e.size += n + 1; line == "" {
			return
		}
	}
	e.last = append(e.last, line)
	for e.room += len(line) + 1; e.room > kept; {
		old, over := e.last[0], e.room-kept
		if over <= len(old) {
			e.last[0], e.room, e.omitted = old[over:], kept, e.omitted+over
			return
		}
		e.room -= len(old) + 1
		e.omitted += len(strings.TrimRight(old, " ")) + 1
		e.last[0], e.last = "", e.last[1:]
	}
}

// readLine reads a line, without the middle of a long one.
func readLine(r *bufio.Reader) (line string, omitted int, err error) {
	var b []byte
	for {
		part, err := r.ReadSlice('\n')
		b = append(b, part...)
		if len(b) > 4*kept {
			omitted += len(b) - 2*kept
			b = append(b[:kept], b[len(b)-kept:]...)
		}
		if err != bufio.ErrBufferFull {
			return string(b), omitted, err
		}
	}
}

// block is what the first command of an answer said: what lies between its
// %begin and the last line that is its end. What follows is the beginning of
// another's.
func block(section ends) (text, error) {
	all := slices.Concat(section.first, section.last)
	for i, line := range all {
		id, ok := strings.CutPrefix(line, "%begin ")
		if !ok {
			continue // a notification
		}
		for k := len(all) - 1; k > i; k-- {
			said := text{all[i+1 : k], section.omitted}
			switch all[k] {
			case "%end " + id:
				return said, nil
			case "%error " + id:
				return text{}, fmt.Errorf("tmux: %s", strings.Join(said.lines, "\n"))
			}
		}
	}
	return text{}, errors.New("tmux has not answered")
}

// endTimeout is for a process that was killed, which takes milliseconds.
const endTimeout = 5 * time.Second

// close kills the client and the server and waits for them. Neither is asked to
// end: one that stands still would never do it. What runs in the pane ends with its
// terminal.
func (s *server) close() error {
	s.in.Close()
	s.out.Close() // the server has its other end, too
	_ = s.cmd.Process.Kill()
	<-s.done
	if s.pid < 0 { // it has only just begun, and ends without a client
		return nil
	}
	defer unix.Close(s.pid)
	_ = unix.PidfdSendSignal(s.pid, unix.SIGKILL, nil, 0)
	if n, err := poll([]unix.PollFd{{Fd: int32(s.pid), Events: unix.POLLIN}}, endTimeout); n == 0 {
		return fmt.Errorf("tmux was killed and has not ended: %v", err)
	}
	return nil
}

func poll(fds []unix.PollFd, d time.Duration) (int, error) {
	until := time.Now().Add(d)
	for {
		n, err := unix.Poll(fds, int(max(0, time.Until(until).Milliseconds())))
		if err != unix.EINTR {
			return n, err
		}
	}
}

var tmuxVersion = regexp.MustCompile(`^tmux (?:next-)?(\d+)\.(\d+)`)

// recent says whether a version of tmux has all that is used of it.
func recent(version string) bool {
	if version == "tmux master" {
		return true
	}
	m := tmuxVersion.FindStringSubmatch(version)
	if m == nil {
		return false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return major > 3 || major == 3 && minor >= 2
}
