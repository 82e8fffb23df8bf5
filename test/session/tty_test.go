package session

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
	"fence/test/bed"
	"fence/test/clitest"
)

// screen is what a terminal shows, read as it comes.
type screen struct {
	t     *testing.T
	from  io.ReadCloser
	keys  io.Writer
	shown strings.Builder
	rest  string
}

// until reads on until the pattern has been shown, and returns all up to it.
func (s *screen) until(pattern string) string {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.AfterFunc(time.Minute, func() { s.t.Logf("waiting for %s, shown is %q", pattern, s.shown.String()); s.from.Close() })
	defer late.Stop()
	buf := make([]byte, 4096)
	for {
		if at := re.FindStringIndex(s.rest); at != nil {
			text := s.rest[:at[1]]
			s.rest = s.rest[at[1]:]
			return strings.ReplaceAll(text, "\r\n", "\n")
		}
		n, err := s.from.Read(buf)
		s.rest += string(buf[:n])
		s.shown.Write(buf[:n])
		if err != nil {
			s.t.Fatalf("the terminal ended (%v) before it showed %s:\n%q", err, pattern, s.shown.String())
		}
	}
}

func (s *screen) typed(keys, until string) string {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, keys); err != nil {
		s.t.Fatal(err)
	}
	return s.until(until)
}

// terminal runs a command on a terminal of the domain's.
func (p *place) terminal(size session.Size, env []string, argv ...string) (s *screen, sizes chan session.Size, done chan session.Exit) {
	in, keys := io.Pipe()
	from, out := io.Pipe()
	s, sizes, done = &screen{t: p.t, from: from, keys: keys}, make(chan session.Size), make(chan session.Exit, 1)
	go func() {
		exit, err := p.Run(p.t.Context(), session.Command{Domain: "agent", Argv: argv, Env: env, TTY: &size}, session.Streams{In: in, Out: out, Sizes: sizes})
		if err != nil {
			p.t.Error(err)
		}
		out.Close()
		done <- exit
	}()
	return s, sizes, done
}

// untilResized waits to hear of another size, and says it. A signal that comes
// before it waits stays.
const untilResized = `python3 -c '
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("rea" "dy", flush=True)
signal.sigwait([signal.SIGWINCH])
print(*os.get_terminal_size())'` + "\n"

// The kernel shows a key that is a signal when it has sent it: the shell may be
// quicker.
const prompt = `\[([0-9]+)\]> (\^[CZ])?$`

// says reports whether the last prompt is that of an exit code.
func says(shown, code string) bool {
	return strings.HasSuffix(strings.TrimRight(shown, "^CZ"), "["+code+"]> ")
}

func TestTTY(t *testing.T) {
	forms(t, func(p *place) {
		s, sizes, done := p.terminal(session.Size{Rows: 33, Cols: 111}, []string{"PS1=[$?]> ", "TERM=dumb"}, "bash", "--norc", "--noediting", "-i")
		s.until(prompt)
		for line, want := range map[string]string{
			"tty\n":                            "/dev/pts/0\n",
			"stty size\n":                      "33 111\n",
			"echo to the terminal >/dev/tty\n": "to the terminal\n",
			"script -qc tty /dev/null\n":       "/dev/pts/1\n",
			"ps -o tty= -p $$\n":               "pts/0",
		} {
			if got := s.typed(line, prompt); !strings.Contains(got, want) {
				p.t.Errorf("%s %q, want %q", line, got, want)
			}
		}
		// The size follows, and programs are told.
		s.typed(untilResized, "ready\r\n")
		sizes <- session.Size{Rows: 20, Cols: 70}
		if got := s.until(prompt); !strings.Contains(got, "70 20\n") {
			p.t.Errorf("after the resize: %q", got)
		}
		// Keys that are signals, and job control. The prompt is there when bash
		// has the terminal; a job is there when it has it.
		s.typed("sh -c 'echo rea''dy; exec sleep "+p.mark+"'\n", "ready\r\n")
		if got := s.typed("\x03", prompt); !says(got, "130") {
			p.t.Errorf("C-c: %q", got)
		}
		// Not a shell, which handles a signal before it waits, or a moment later.
		s.typed(`python3 -c '
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
print("rea" "dy", flush=True)
while signal.sigwait([signal.SIGCONT]): print("ba" "ck", flush=True)'`+"\n", "ready\r\n")
		if got := s.typed("\x1a", prompt); !strings.Contains(got, "Stopped") || !says(got, "148") {
			p.t.Errorf("C-z: %q", got)
		}
		s.typed("fg\n", "\nback\r\n")
		if got := s.typed("\x03", prompt); !says(got, "130") {
			p.t.Errorf("fg, C-c: %q", got)
		}
		if got := s.typed("sleep "+p.mark+" & jobs; kill %1; wait %1\n", prompt); !strings.Contains(got, "Running") || !says(got, "143") {
			p.t.Errorf("in the background: %q", got)
		}
		// A password is not shown.
		s.typed("read -s -p pass''word: word && echo ${word^^}\n", "password:")
		if got := s.typed("hidden\n", prompt); !strings.Contains(got, "HIDDEN") || strings.Contains(got, "hidden") {
			p.t.Errorf("read -s: %q", got)
		}
		s.typed("exit 6\n", "exit")
		go io.Copy(io.Discard, s.from)
		if exit := <-done; exit.Code != 6 || exit.Signal != 0 {
			p.t.Errorf("%+v", exit)
		}
	})
}

// tmux, started by the task itself.
func TestTmux(t *testing.T) {
	forms(t, func(p *place) {
		s, _, done := p.terminal(session.Size{Rows: 24, Cols: 80}, []string{"TERM=xterm"}, "tmux", "-f", "/dev/null", "new", "-s", "inner", "env", "PS1=in-tmux> ", "bash", "--norc")
		s.until("in-tmux> ")
		s.typed("stty size; echo $((6*7))\r", "42")
		if got := p.sh("agent", `tmux send-keys -t inner 'echo $((7*7))' Enter; until tmux capture-pane -p -t inner | grep -x 49; do :; done; tmux capture-pane -p -t inner | grep -E '^[0-9]+ 80$'`); got != "49\n23 80\n" {
			p.t.Errorf("from another command: %q", got)
		}
		// Its last words may be lost: the kernel hangs the terminal up when its session's leader ends.
		go io.Copy(io.Discard, s.from)
		if _, err := io.WriteString(s.keys, "\x02d"); err != nil {
			p.t.Error(err)
		}
		if exit := <-done; exit.Code != 0 {
			p.t.Errorf("%+v", exit)
		}
		// It lives on, until it is told.
		p.sh("agent", `tmux has-session -t inner && tmux kill-server`)
	})
}

// Programs that have the whole screen: a file is written with vim, its window
// grows, and less pages through what was written.
func TestTTY_WholeScreen(t *testing.T) {
	forms(t, func(p *place) {
		size, env := session.Size{Rows: 24, Cols: 80}, []string{"TERM=xterm"}
		ends := func(s *screen, done chan session.Exit, keys string) {
			p.t.Helper()
			if _, err := io.WriteString(s.keys, keys); err != nil {
				p.t.Error(err)
			}
			go io.Copy(io.Discard, s.from)
			if exit := <-done; exit.Code != 0 {
				p.t.Errorf("%+v", exit)
			}
		}
		s, sizes, done := p.terminal(size, env, "vi", "/tmp/text")
		s.until(`"/tmp/text" \[New`)
		s.typed("iline 1\x1b", "line 1")
		sizes <- session.Size{Rows: 31, Cols: 90}
		s.until(`\x1b\[30;1H`) // it draws what had not been there
		s.typed("yy98p:%s/$/ of it/\r", "99 substitutions")
		s.typed("Goend\x1b:w\r", "written")
		ends(s, done, ":q\r")
		if got := p.sh("agent", `wc -l </tmp/text; sort /tmp/text | uniq -c`); got != "100\n      1 end\n     99 line 1 of it\n" {
			p.t.Errorf("vi wrote\n%s", got)
		}
		p.sh("agent", `sed -i = /tmp/text`) // every second line is a number now
		s, _, done = p.terminal(size, env, "less", "/tmp/text")
		if got := s.until(`/tmp/text`); !strings.Contains(got, "\n12\n") || strings.Contains(got, "\n13\n") {
			p.t.Errorf("the first page: %q", got)
		}
		if got := s.typed(" ", `:`); !strings.Contains(got, "\n23\n") || strings.Contains(got, "\n24\n") {
			p.t.Errorf("the second page: %q", got)
		}
		s.typed("/^77$\r", `77`)
		s.typed("G", `\(END\)`)
		ends(s, done, "q")
	})
}

// fence run --tty on a terminal of the person's: keys go through one by one,
// the size follows, and the terminal is as before at the end, however that
// comes.
func TestTTY_OfThePerson(t *testing.T) {
	socket, _ := hosted(t, "agent=strict")
	for _, end := range []string{"exit", "SIGTERM"} {
		scr, tty := clitest.Terminal(t, 90)
		if err := tty.Chown(bed.Person(t).UID, bed.Person(t).GID); err != nil {
			t.Fatal(err)
		}
		before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		cmd := bed.Command(t, bed.Bin(t, "fence"), "run", "--socket", socket, "--tty", "--env", "PS1=[$?]> ", "--", "bash", "--norc", "--noediting", "-i")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s := &screen{t: t, from: scr, keys: scr}
		s.until(prompt)
		if during, _ := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); during.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
			t.Errorf("the terminal is not raw: %x", during.Lflag)
		}
		if got := s.typed("stty size\n", prompt); !strings.Contains(got, " 90\n") {
			t.Errorf("the size: %q", got)
		}
		s.typed(untilResized, "ready\r\n")
		if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 41, Col: 72}); err != nil {
			t.Fatal(err)
		}
		if got := s.until(prompt); !strings.Contains(got, "72 41\n") {
			t.Errorf("after the resize: %q", got)
		}
		want := 5
		if end == "exit" {
			s.typed("exit 5\n", "exit")
		} else {
			// An interactive bash does not end by it: the second is SIGHUP.
			want = 129
			cmd.Process.Signal(syscall.SIGTERM)
			cmd.Process.Signal(syscall.SIGHUP)
		}
		go io.Copy(io.Discard, scr)
		_ = cmd.Wait()
		if cmd.ProcessState.ExitCode() != want {
			t.Errorf("%s: %v, want %d", end, cmd.ProcessState, want)
		}
		if after, _ := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); *after != *before {
			t.Errorf("%s: the terminal is %+v, was %+v", end, after, before)
		}
	}
}

// hosted is a session as an sbatch script starts it, and the process that
// keeps it: fence serve -- apptainer exec. Of domains, "--bind X" is a flag of
// apptainer, "max_X=N" a limit of the node, and "ulimit X" or "unset X" comes
// first.
func hosted(t *testing.T, domains ...string) (socket string, serve *process) {
	t.Helper()
	socket = filepath.Join(bed.TempDir(t), "s")
	binds, named, first := "", "", ""
	var limits []string
	for _, d := range domains {
		if strings.HasPrefix(d, "--") {
			binds += " " + d
		} else if strings.HasPrefix(d, "ulimit ") || strings.HasPrefix(d, "unset ") {
			first += d + "; "
		} else if strings.HasPrefix(d, "max_") {
			limits = append(limits, d)
		} else {
			named += " --domain " + d
		}
	}
	script := `fence serve --socket ` + socket + ` -- apptainer -q exec` + binds + ` $IMG /.fence/fence serve --stdio` + named
	cmd := inContainer(t, first+script+` & echo $!; wait $!; exit $?`, limits...)
	serve = &process{said: &bytes.Buffer{}}
	cmd.Stderr = serve.said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(out, &serve.pid); err != nil {
		t.Fatal(err)
	}
	serve.caller = cmd.Process
	serve.wait = func() int { _ = cmd.Wait(); return cmd.ProcessState.ExitCode() }
	t.Cleanup(func() {
		_ = unix.Kill(serve.pid, unix.SIGTERM)
		serve.wait()
	})
	if _, err := session.Dial(socket, 20*time.Second).Status(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, serve.said)
	}
	return socket, serve
}

type process struct {
	pid    int // of fence serve
	caller *os.Process
	wait   func() int // for the caller
	said   *bytes.Buffer
}
