package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/box"
	"fence/pkg/terminal"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/bed"
)

// screen is a terminal in a box of its own.
type screen struct {
	*terminal.Terminal
	*running
	kept *bytes.Buffer
	dir  string // of tmux, on the node
}

func openTerminal(t *testing.T, image string) *screen {
	t.Helper()
	return openTerminalIn(t, start(t, options(t, image)))
}

func openTerminalIn(t *testing.T, r *running) *screen {
	t.Helper()
	s, err := tryTerminal(t, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryTerminal(t *testing.T, r *running) (*screen, error) {
	t.Helper()
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		bed.Missing(t, "tmux: %v", err)
	}
	if err := terminal.Find(t.Context(), tmux); err != nil {
		t.Fatal(err)
	}
	s := &screen{running: r, kept: &bytes.Buffer{}, dir: filepath.Join(bed.TempDir(t), "terminal")}
	recording, err := trajectory.NewCast(s.kept, terminal.Columns, terminal.Rows, "", 0, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.Terminal, err = terminal.Start(t.Context(), terminal.Options{
		Run: r.Run, Fence: r.o.Fence, Tmux: tmux, Dir: s.dir, Record: recording,
	})
	if err != nil {
		return s, err
	}
	t.Logf("the terminal was up after %s", time.Since(began))
	t.Cleanup(func() {
		if err := s.Terminal.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, nil
}

// enter types and waits until the screen is as wanted: ends with a text (a
// prompt), or has it. What is new then is returned.
func (s *screen) enter(keys string, shows func(string) bool) terminus.Output {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if err := s.Send(ctx, keys, 0); err != nil {
		s.t.Fatalf("typing %.100q: %v", keys, err)
	}
	for now := ""; ; {
		seen, err := s.Screen(ctx)
		if err != nil {
			s.t.Fatalf("after %.100q: %v; it showed\n%s", keys, err, now)
		}
		now = seen
		if shows(now) {
			break
		}
		if err := s.Send(ctx, "", 5*time.Millisecond); err != nil {
			s.t.Fatalf("after %.100q: %v; it shows\n%s", keys, err, now)
		}
	}
	out, err := s.Output(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func has(text string) func(string) bool {
	return func(s string) bool { return strings.Contains(s, text) }
}

// prompts is a screen with a prompt at its end, behind a line that is the last
// of what was printed.
func prompts(last string) func(string) bool {
	return func(s string) bool { return strings.HasSuffix("\n"+s, "\n"+last+"\n$") }
}

// begin makes the prompt "$ ", and is what the terminal shows from then on.
func (s *screen) begin() {
	s.t.Helper()
	s.enter("PS1='$ ' PS2='> '; clear\n", func(s string) bool { return s == "$" })
}

// What is new is told byte for byte, whatever the programs do.
func TestTerminal_Output(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "debian")
	if out, err := s.Output(t.Context()); err != nil || out.Text != "root@task:/#" {
		t.Errorf("the first look: %q, %v", out.Text, err)
	}
	s.begin()
	long := strings.Repeat("0123456789", 50)
	for _, c := range []struct {
		name, keys string
		until      func(string) bool
		want       string
		screen     bool
	}{
		{"a command", "echo o'n'e\n", prompts("one"), "$ echo o'n'e\none\n$", false},
		{"nothing", "", prompts("one"), "$", false},
		{"a wrapped line", "printf '0123456789%.0s' {1..50}; echo\n", has("0123456789\n$"), "$ printf '0123456789%.0s' {1..50}; echo\n" + long + "\n$", false},
		{"a wrapped command", "echo " + long + " | wc -c\n", prompts("501"), "$ echo " + long + " | wc -c\n501\n$", false},
		{"half a line", "echo ab", has("$ echo ab"), "$ echo ab", false},
		{"characters that come alone", "é日🎉", has("$ echo abé日🎉"), "$ echo abé日🎉", false},
		{"the other half", "c\n", prompts("abé日🎉c"), "$ echo abé日🎉c\nabé日🎉c\n$", false},
		{"cleared", "clear; echo tw'o'\n", func(s string) bool { return s == "two\n$" }, "two\n$", true},
		{"cleared, history and all kept", "printf '\\033[H\\033[2J'; echo thr'e'e\n", func(s string) bool { return s == "three\n$" }, "$ printf '\\033[H\\033[2J'; echo thr'e'e\nthree\n$", false},
		{"reset, history and all kept", "printf '\\033c'; echo fo'u'r\n", func(s string) bool { return s == "four\n$" }, "$ printf '\\033c'; echo fo'u'r\nfour\n$", false},
		{"more than a screen", "seq 100\n", prompts("100"), "$ seq 100\n" + numbers(1, 100) + "$", false},
		{"a progress bar", "for i in 1 2 3; do printf '\\r%d0%% [%s]' $i $(printf %${i}s | tr ' ' '#'); done; echo; ec''ho done\n", prompts("done"),
			"$ for i in 1 2 3; do printf '\\r%d0%% [%s]' $i $(printf %${i}s | tr ' ' '#'); done; echo; ec''ho done\n30% [###]\ndone\n$", false},
		{"colours", "printf '\\033[38;2;255;120;0mora\\033[48;5;20mnge\\033[0m\\n'\n", prompts("orange"), "$ printf '\\033[38;2;255;120;0mora\\033[48;5;20mnge\\033[0m\\n'\norange\n$", false},
		{"wide characters", `printf '\xe6\x97\xa5\xe6\x9c\xac|\xf0\x9f\x8e\x89|e\xcc\x81|\xff|\n'` + "\n", has("|\n$"),
			`$ printf '\xe6\x97\xa5\xe6\x9c\xac|\xf0\x9f\x8e\x89|e\xcc\x81|\xff|\n'` + "\n日本|🎉|e\u0301||\n$", false},
		{"title, clipboard, answers", "printf '\\033]0;owned\\a\\033]52;c;b3duZWQ=\\a\\033kowned\\033\\\\\\033]2;owned\\033\\\\a\\033Ptmux;\\033\\033]0;x\\a\\033\\\\b\\n'\n", prompts("ab"),
			"$ printf '\\033]0;owned\\a\\033]52;c;b3duZWQ=\\a\\033kowned\\033\\\\\\033]2;owned\\033\\\\a\\033Ptmux;\\033\\033]0;x\\a\\033\\\\b\\n'\nab\n$", false},
		{"the other screen, and back", "printf '\\033[?1049h\\033[Hother'; read x; printf '\\033[?1049l'; ec''ho back\n", func(s string) bool { return s == "other" }, "other", true},
		{"back", "\n", prompts("back"), "$ printf '\\033[?1049h\\033[Hother'; read x; printf '\\033[?1049l'; ec''ho back\nback\n$", false},
		{"100,000 lines", "seq 100000\n", prompts("100000"), "$ seq 100000\n" + numbers(1, 100000) + "$", false},
		{"and then a little", "echo fi'v'e\n", prompts("five"), "$ echo fi'v'e\nfive\n$", false},
	} {
		out := s.enter(c.keys, c.until)
		if !ends(out, c.want) || out.Screen != c.screen {
			t.Errorf("%s: %v %s, want %v %s", c.name, out.Screen, short(out.Text), c.screen, short(c.want))
		}
	}
	// The recording has the text around them, and none of the strings: the echo of
	// what was typed has them with no ESC before them.
	shown := printed(t, s.kept.String())
	if !strings.Contains(shown, "\n\rab\r\n") || !strings.Contains(shown, "\x1b[38;2;255;120;0mora") {
		t.Errorf("what was printed around the strings, or a colour, is not in the recording: %s", short(shown))
	}
	if at := regexp.MustCompile(`\x1b[]Pk_^X][^\n]*`).FindString(shown); at != "" {
		t.Errorf("the recording has a string for the terminal: %q", at)
	}
	out := s.enter("yes 0123456789012345678901234567890123456789012345678901234567890123456789012345678 | head -c 50M; ec''ho end\n", prompts("end"))
	if out.Screen || !strings.HasPrefix(out.Text, "[more than ") || !strings.HasSuffix(out.Text, "345678\nend\n$") || len(out.Text)+out.Omitted < 7_000_000 {
		t.Errorf("50 MB: %v, %d bytes without %d: %s", out.Screen, len(out.Text), out.Omitted, short(out.Text))
	}
	if out := s.enter("echo si'x'\n", prompts("six")); out.Text != "$ echo si'x'\nsix\n$" {
		t.Errorf("after 50 MB: %s", short(out.Text))
	}
}

// printed is what the output events of a recording have together.
func printed(t *testing.T, cast string) string {
	t.Helper()
	var b strings.Builder
	_, events, _ := strings.Cut(cast, "\n")
	for line := range strings.Lines(events) {
		var e [3]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e[1] == "o" {
			b.WriteString(e[2].(string))
		}
	}
	return b.String()
}

// ends says whether an output is a text, or that without its middle.
func ends(out terminus.Output, want string) bool {
	const most = 2 * terminus.MaxOutput
	if out.Omitted == 0 || len(out.Text) < 2*most {
		return out.Text == want
	}
	missing := len(want) - len(out.Text)
	return strings.HasPrefix(want, out.Text[:most]) && strings.HasSuffix(want, out.Text[len(out.Text)-most:]) && out.Omitted >= missing && out.Omitted <= missing+2
}

func numbers(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func short(s string) string {
	if len(s) > 600 {
		return fmt.Sprintf("%d bytes: %q ... %q", len(s), s[:200], s[len(s)-200:])
	}
	return fmt.Sprintf("%q", s)
}

// Full-screen programs show their screen, and are left again; keys reach them
// by name.
func TestTerminal_Programs(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "debian")
	s.begin()
	look := func(name string, out terminus.Output, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out.Text, w) {
				t.Errorf("%s: no %q in %s", name, w, short(out.Text))
			}
		}
	}
	// vim, with text that a shell, tmux or a terminal would take for something else.
	text := "a;\n-x \"q\" 'p' $HOME \\n #{pane_id} ~ é日;"
	s.enter("cd /tmp; vi -c 'set showmode' f\n", has("~\n~"))
	s.enter("i", has("INSERT"))
	for _, part := range []string{text[:len(text)-2], text[len(text)-2:], ";"} { // within a character
		if err := s.Send(t.Context(), part, 0); err != nil {
			t.Fatal(err)
		}
	}
	look("vim", s.enter("Escape", func(s string) bool { return !strings.Contains(s, "INSERT") }), "-x \"q\" 'p' $HOME \\n #{pane_id} ~")
	out := s.enter(":wq\n", func(s string) bool { return strings.HasSuffix(s, " f\n$") })
	if out.Screen || !strings.HasPrefix(out.Text, "$ cd /tmp; vi") {
		t.Errorf("vim, left: %v %s", out.Screen, short(out.Text))
	}
	if got, want := s.sh(box.Agent, "cat /tmp/f"), text+";\n"; got != want {
		t.Errorf("vim wrote %q, want %q", got, want)
	}
	// less: the screen, keys, and back; what comes behind it is new.
	s.enter("clear\n", func(s string) bool { return s == "$" })
	out = s.enter("seq 1000 >n; less n\n", has("39"))
	if !out.Screen {
		t.Error("less is no screen")
	}
	look("less", out, "1\n2\n3\n", "39")
	look("less, a page on", s.enter("NPage", has("78")), "40\n41\n")
	look("less, the end", s.enter("G", has("1000\n")), "962\n", "(END)")
	look("less, up", s.enter("Up", func(s string) bool { return strings.HasPrefix(s, "961") }), "961\n962\n")
	out = s.enter("q", has("$ seq 1000 >n; less n\n$"))
	if out.Screen || out.Text != "$ seq 1000 >n; less n\n$" {
		t.Errorf("less, left: %v %s", out.Screen, short(out.Text))
	}
	// top draws over the screen and leaves it there.
	out = s.enter("top\n", has("PID"))
	look("top", out, "PID", "COMMAND", "load average")
	if out = s.enter("", has("PID")); !out.Screen || !strings.HasPrefix(out.Text, "top - ") {
		t.Errorf("top, a second time: %v %s", out.Screen, short(out.Text))
	}
	s.enter("q", func(s string) bool { return strings.HasSuffix(s, "$") })
	s.enter("clear\n", func(s string) bool { return s == "$" })
	// A REPL, its history, and an end of file.
	s.enter("python3 -q\n", has(">>>"))
	out = s.enter("print(6*7)\n", has("42\n>>>"))
	if out.Text != ">>> print(6*7)\n42\n>>>" {
		t.Errorf("python: %s", short(out.Text))
	}
	s.enter("for i in range(2):\n", has("\n..."))
	s.enter("  print(i)\n", has("print(i)\n..."))
	if out = s.enter("\n", has("1\n>>>")); out.Text != "...\n0\n1\n>>>" {
		t.Errorf("python: %s", short(out.Text))
	}
	s.enter("C-d", func(s string) bool { return strings.HasSuffix(s, ">>>\n$") })
	// Keys: an interrupt, also with a newline by mistake, the history, an edited line.
	s.enter("sh -c 'echo be\"\"gun1; exec sleep 100000'; ec''ho slept\n", func(s string) bool { return strings.HasSuffix(s, "\nbegun1") })
	out = s.enter("C-c", func(s string) bool { return strings.HasSuffix(s, "^C\n$") })
	look("C-c", out, "^C\n$")
	s.enter("\n", func(s string) bool { return strings.HasSuffix(s, "^C\n$\n$") }) // bash reads again
	s.enter("sh -c 'echo be\"\"gun2; exec sleep 100000'; ec''ho slept\n", func(s string) bool { return strings.HasSuffix(s, "\nbegun2") })
	out = s.enter("C-c\n", func(s string) bool { return strings.HasSuffix(s, "^C\n$") })
	if len(out.Notes) != 1 || !strings.Contains(out.Notes[0], "the key C-c") {
		t.Errorf("C-c with a newline: %q", out.Notes)
	}
	s.enter("\n", func(s string) bool { return strings.HasSuffix(s, "^C\n$\n$") })
	s.enter("echo k'e'y\n", prompts("key"))
	for _, k := range [][2]string{{"Up", "echo k'e'y"}, {"Home", "echo k'e'y"}, {"Delete", "cho k'e'y"}, {"DC", "ho k'e'y"}, {"End", "ho k'e'y"}, {"BSpace", "ho k'e'"}, {"C-a", "ho k'e'"}, {"p", "pho k'e'"}} {
		s.enter(k[0], func(s string) bool { return strings.HasSuffix(s, "\n$ "+k[1]) })
	}
	s.enter("C-u", func(s string) bool { return strings.HasSuffix(s, "\n$ ho k'e'") })
	s.enter("C-k", func(s string) bool { return strings.HasSuffix(s, "\n$") })
	// What only looks like a key's name is text.
	out = s.enter("echo Up C-c ^C; #\n", prompts("Up C-c ^C"))
	if out.Text != "$ echo Up C-c ^C; #\nUp C-c ^C\n$" {
		t.Errorf("no keys: %s", short(out.Text))
	}
	// Bracketed paste is asked for, and nothing is pasted.
	s.enter(`printf '\033[?2004h'; cat -v`+"\n", has("cat -v"))
	out = s.enter("plain\n", has("plain\nplain"))
	s.enter("C-c", func(s string) bool { return strings.HasSuffix(s, "^C\n$") })
	if strings.Contains(out.Text, "200~") {
		t.Errorf("bracketed paste: %s", short(out.Text))
	}
}

// Long input arrives whole; of a line for a program that reads lines the model
// is told what the terminal keeps.
func TestTerminal_LongInput(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "debian")
	s.begin()
	var text strings.Builder
	for i := range 600 {
		fmt.Fprintf(&text, "%04d é日本🎉 ;'\"\\ $x `y` #{z} -- ~!\n", i)
	}
	out := s.enter("cat >/tmp/f <<'E''ND'\n"+text.String()+"END\nec''ho ok\n", prompts("ok"))
	if got := s.sh(box.Agent, "cat /tmp/f"); got != text.String() {
		t.Errorf("a here-document of %d bytes came as %s", text.Len(), short(got))
	}
	if len(out.Notes) != 0 {
		t.Errorf("notes without a reason: %q", out.Notes)
	}
	long := strings.Repeat("0123456789abcdef", 1500) // more than the 16 KB of one message of tmux's
	out = s.enter("printf %s "+long+" | wc -c\n", prompts(fmt.Sprint(len(long))))
	if len(out.Notes) != 1 || !strings.Contains(out.Notes[0], "4095") {
		t.Errorf("a line of 24,000 bytes: notes %q", out.Notes)
	}
	// What a program that reads lines gets. Not what is to be seen of it: the kernel
	// keeps the last of an echo back until somebody types or prints again.
	s.enter("clear; cat >/tmp/g; ec''ho ended\n", func(s string) bool { return s == "" })
	if err := s.Send(t.Context(), long+"\nnext C-d\n", 0); err != nil {
		t.Fatal(err)
	}
	s.enter("C-d", prompts("ended"))
	if got, want := s.sh(box.Agent, "cat /tmp/g"), long[:4095]+"\nnext C-d\n"; got != want {
		t.Errorf("cat got %s, want %s", short(got), short(want))
	}
}

// Where the image has no bash, its sh is the shell. The model's server and all
// else of the terminal's are gone when it is closed; what runs in the shell is
// not.
func TestTerminal_Ends(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "busybox")
	s.enter("PS1='$ '\n", func(s string) bool { return strings.HasSuffix(s, "\n$") })
	s.enter("(while :; do sleep 1; done) & echo $! >/tmp/p; ec''ho on\n", prompts("on"))
	if err := s.Terminal.Close(); err != nil {
		t.Error(err)
	}
	s.sh(box.Agent, "kill -0 $(cat /tmp/p)")
	again := openTerminalIn(t, s.running)
	again.enter("PS1='$ '\n", func(s string) bool { return strings.HasSuffix(s, "\n$") })
	if err := again.Send(t.Context(), "exit\n", time.Hour); !errors.Is(err, terminus.ErrGone) {
		t.Errorf("the end of the shell: %v", err)
	}
	if err := again.Send(t.Context(), "", time.Hour); !errors.Is(err, terminus.ErrGone) {
		t.Errorf("after the end of the shell: %v", err)
	}
	// A tmux that stands still, and has been asked more than it has room for.
	stuck := openTerminalIn(t, s.running)
	pids := stuck.tmuxes()
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if err := stuck.Send(t.Context(), strings.Repeat("x", 100_000), 0); err != nil {
		t.Error(err)
	}
	if err := stuck.Terminal.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); len(line) > 0 {
			t.Errorf("%q is still there", line)
		}
	}
}

// tmuxes are the processes of the terminal's tmux: its client and its server.
func (s *screen) tmuxes() (pids []int) {
	s.t.Helper()
	out, err := exec.Command("pgrep", "-f", "tmux.*"+s.dir).Output()
	for _, f := range strings.Fields(string(out)) {
		pid, _ := strconv.Atoi(f)
		pids = append(pids, pid)
	}
	if err != nil || len(pids) != 2 {
		s.t.Fatalf("tmux of %s on the node: %v, %v", s.dir, pids, err)
	}
	return pids
}

// Whoever were to take over the tmux of a terminal, by what a program prints, would
// have its folder. The control is a tmux as a person starts it.
func TestTerminal_TmuxIsFenced(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "busybox")
	around := filepath.Dir(s.dir)
	canary := filepath.Join(around, "canary")
	if err := os.WriteFile(canary, []byte("yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	free := filepath.Join(around, "free")
	if out, err := exec.Command("tmux", "-S", free, "-f", "/dev/null", "new-session", "-d", "exec sleep 1000").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() { _ = exec.Command("tmux", "-S", free, "kill-server").Run() }()
	can := func(socket, script string) bool {
		return exec.Command("tmux", "-S", socket, "run-shell", "("+script+") >/dev/null 2>&1").Run() == nil
	}
	own := filepath.Join(s.dir, "socket")
	for script, want := range map[string]bool{
		"cat /etc/passwd":                           true,
		"echo >" + filepath.Join(s.dir, "made"):     true,
		"cat " + canary:                             false,
		"ls " + s.o.Scratch:                         false,
		"ls -A " + bed.Person(t).Home + " | grep .": false,
		"echo >" + filepath.Join(around, "made"):    false,
		"echo >/var/tmp/" + filepath.Base(around):   false,
		"tmux -S " + free + " list-sessions":        false,
		fmt.Sprintf("bash -c 'exec 3<>/dev/tcp/127.0.0.1/%d'", listener.Addr().(*net.TCPAddr).Port): false,
		fmt.Sprintf("cat /proc/%d/environ", os.Getpid()):                                            false,
		fmt.Sprintf("kill -0 %d", os.Getpid()):                                                      false,
	} {
		if can(own, script) != want {
			t.Errorf("under fence, %s: %v", script, !want)
		}
		if !can(free, script) {
			t.Errorf("the control cannot %s", script)
		}
	}
	_ = os.Remove("/var/tmp/" + filepath.Base(around))
	// The kernel's word for it: the client, the server, and what runs in the pane.
	pids := s.tmuxes()
	for _, pid := range pids {
		below, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		for _, f := range strings.Fields(string(below)) {
			child, _ := strconv.Atoi(f)
			pids = append(pids, child)
		}
	}
	if len(pids) < 3 {
		t.Errorf("nothing runs in the pane: %v", pids)
	}
	for _, pid := range pids {
		if got := restricted(t, pid); got != "1 2" {
			t.Errorf("NoNewPrivs and Seccomp of %d are %s", pid, got)
		}
	}
	if restricted(t, os.Getpid()) == "1 2" {
		t.Error("the control: this process is restricted, too")
	}
}

// restricted is what /proc says of a process: NoNewPrivs and Seccomp.
func restricted(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(status)) {
		if name, value, _ := strings.Cut(line, ":"); name == "NoNewPrivs" || name == "Seccomp" {
			found = append(found, strings.TrimSpace(value))
		}
	}
	return strings.Join(found, " ")
}

// The shell has nothing of the tmux within reach that keeps its screen, and can
// type nothing into its own terminal.
func TestTerminal_OutOfReach(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "debian")
	s.begin()
	pid := strconv.Itoa(s.tmuxes()[0])
	const sti = `perl -e '$x = "x"; print ioctl(STDIN, 0x5412, $x) ? "typed" : $! + 0, "\n"'` // TIOCSTI
	// Without a fence it is done, or refused by the kernel with EIO (dev.tty.legacy_tiocsti).
	if out, err := exec.Command("script", "-qec", sti, "/dev/null").Output(); err != nil || !bytes.Contains(out, []byte("typed")) && strings.TrimSpace(string(out)) != "5" {
		t.Errorf("the control: TIOCSTI on the node: %v, %q", err, out)
	}
	for keys, want := range map[string]string{
		"cat /proc/[0-9]*/comm | grep -c tmux; ec''ho .\n":                                       "0\n.",
		"cat /proc/" + pid + "/comm 2>&1 | grep -c tmux; ec''ho .\n":                             "0\n.",
		"env | grep -c -e TMUX -e " + s.dir + "; ec''ho .\n":                                     "0\n.",
		"ls " + s.dir + " 2>&1 | grep -c 'No such file'; ec''ho .\n":                             "1\n.",
		"mount | grep -c " + filepath.Base(s.dir) + "; ec''ho .\n":                               "0\n.",
		"tmux -S " + s.dir + "/socket kill-server 2>&1 | grep -c 'error connecting'; ec''ho .\n": "1\n.",
		"stty size; ec''ho .\n": "40 160\n.",
		sti + "; ec''ho .\n":    "1\n.", // EPERM
	} {
		s.enter("clear\n", func(s string) bool { return s == "$" })
		out := s.enter(keys, prompts("."))
		if !strings.HasSuffix(out.Text, "\n"+want+"\n$") {
			t.Errorf("%s shows %s, want %q", keys, short(out.Text), want)
		}
	}
}

// A shell that ends before it has said anything, as an earlier step of a task
// may have left it, is no terminal, and no harm to whoever asked for one.
func TestTerminal_EndsAtOnce(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "debian"))
	r.sh(box.Agent, "echo exit >~/.bash_profile")
	if _, err := tryTerminal(t, r); !errors.Is(err, terminus.ErrGone) {
		t.Errorf("the error is %v", err)
	}
	r.sh(box.Agent, "rm ~/.bash_profile")
	openTerminalIn(t, r)
	_, err := tryTerminal(t, start(t, options(t, "static")))
	var none *terminal.Error
	if !errors.As(err, &none) || none.Class != "no_shell" || none.Cause != "task" {
		t.Errorf("in an image without a shell: %v", err)
	}
}

// BenchmarkTerminal says by how much a wait is too long, and how long a look
// takes: in one terminal and in eight, at rest and while "yes" prints.
func BenchmarkTerminal(b *testing.B) {
	if os.Geteuid() == 0 {
		b.Skip("as the bed's ordinary user: BED_BIN=... rollout.test -test.bench Terminal -test.run '^$' -test.benchtime 1x")
	}
	const wait = 100 * time.Millisecond
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "terminal-bench-")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	o := box.Options{
		Apptainer: filepath.Join(bed.Dir(), "bin", "apptainer"), Fence: bed.Bin(b, "fence"), Probe: bed.Bin(b, "probe"),
		Image: bed.Image("debian"), Scratch: filepath.Join(dir, "box"), Network: "loopback",
	}
	if err := os.Mkdir(o.Scratch, 0o700); err != nil {
		b.Fatal(err)
	}
	r, err := box.Start(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for _, c := range []struct {
		n    int
		keys string
	}{{1, ""}, {8, ""}, {1, "yes\n"}, {8, "yes\n"}} {
		var all sync.WaitGroup
		var mu sync.Mutex
		var waits, looks []time.Duration
		for i := range c.n {
			all.Go(func() {
				own := filepath.Join(dir, fmt.Sprint(c.n, len(c.keys), i))
				if err := os.Mkdir(own, 0o700); err != nil {
					b.Error(err)
					return
				}
				t, err := terminal.Start(b.Context(), terminal.Options{Run: r.Run, Fence: o.Fence, Tmux: tmux, Dir: own})
				if err != nil {
					b.Error(err)
					return
				}
				defer t.Close()
				err = t.Send(b.Context(), c.keys, wait)
				for k := 0; k < 50 && err == nil; k++ {
					began := time.Now()
					err = t.Send(b.Context(), "x", wait)
					waited := time.Since(began) - wait
					began = time.Now()
					if err == nil {
						_, err = t.Output(b.Context())
					}
					mu.Lock()
					waits, looks = append(waits, waited), append(looks, time.Since(began))
					mu.Unlock()
				}
				if err == nil {
					err = t.Send(b.Context(), "C-c", 0)
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
		slices.Sort(waits)
		slices.Sort(looks)
		at := func(d []time.Duration, q float64) float64 {
			return float64(d[int(q*float64(len(d)-1))].Microseconds()) / 1000
		}
		fmt.Printf("%d terminals, %q: waits too long by %.1f ms (median), %.1f (p90), %.1f (most); a look %.1f, %.1f, %.1f\n", c.n, c.keys,
			at(waits, .5), at(waits, .9), at(waits, 1), at(looks, .5), at(looks, .9), at(looks, 1))
	}
}
