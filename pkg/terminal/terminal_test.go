package terminal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/terminus"
)

// literal is how text is typed.
func literal(s string) string {
	b := "send-keys -t %0 -H"
	for i := range len(s) {
		b += fmt.Sprintf(" %02x", s[i])
	}
	return b
}

func TestTyped(t *testing.T) {
	key := func(s string) []string { return []string{"send-keys -t %0 -- " + s} }
	for keys, want := range map[string]struct {
		commands []string
		note     string
	}{
		"":                                {nil, ""},
		"ls\n":                            {[]string{literal("ls\n")}, ""},
		"C-c":                             {key("'C-c'"), ""},
		"^c":                              {key("'^c'"), ""},
		"M-C-x":                           {key("'M-C-x'"), ""},
		"C-;":                             {nil, "C-; is no key"},
		"C-'":                             {nil, "C-' is no key"},
		"^=":                              {nil, "^= is no key"},
		"c-Enter":                         {nil, "c-Enter is no key"},
		"C-KPEnter\n":                     {nil, "C-KPEnter is no key"},
		"C-/":                             {key("'C-/'"), ""},
		"M-'":                             {key(`"M-'"`), ""},
		"Up":                              {key("'Up'"), ""},
		"S-F5":                            {key("'S-F5'"), ""},
		"C-c\n":                           {key("'C-c'"), "the key C-c"},
		"C-Up\n":                          {key("'C-Up'"), "the key C-Up"},
		"Up\n":                            {[]string{literal("Up\n")}, ""},
		"up":                              {[]string{literal("up")}, ""},
		"a":                               {[]string{literal("a")}, ""},
		";":                               {[]string{literal(";")}, ""},
		"-x;":                             {[]string{literal("-x;")}, ""},
		"C-cC-c":                          {[]string{literal("C-cC-c")}, ""},
		"C-é":                             {[]string{literal("C-é")}, ""},
		"0x41":                            {[]string{literal("0x41")}, ""},
		"MouseDown":                       {[]string{literal("MouseDown")}, ""},
		"\x00'\"":                         {[]string{literal("\x00'\"")}, ""},
		strings.Repeat("x", 1999) + "é\n": {[]string{literal(strings.Repeat("x", 1000)), literal(strings.Repeat("x", 999) + "\xc3"), literal("\xa9\n")}, ""},
		strings.Repeat(strings.Repeat("x", 999)+"\n", 5):                                     {repeated(literal(strings.Repeat("x", 999)+"\n"), 5), ""},
		strings.Repeat("x", 999) + "y" + strings.Repeat("x", 3000) + strings.Repeat("x", 96): {nil, "A line of 4096 bytes"},
	} {
		commands, notes := typed(keys)
		if want.commands != nil && !reflect.DeepEqual(commands, want.commands) || (keys == "" || strings.Contains(want.note, "is no key")) && commands != nil {
			t.Errorf("%.40q is typed as %.300q, want %.300q", keys, commands, want.commands)
		}
		if got := strings.Join(notes, ""); (got == "") != (want.note == "") || !strings.Contains(got, want.note) {
			t.Errorf("%.40q: noted %q, want %q", keys, got, want.note)
		}
	}
}

func repeated(s string, n int) (all []string) {
	for range n {
		all = append(all, s)
	}
	return all
}

// A screen that has the words of tmux's own answers in it, with any number, is
// an answer as any.
func TestRead(t *testing.T) {
	screen := "%end 1 7 1\n%error 1 7 1\n%begin 1 8 1\nword-1\n%exit\nWORD"
	answer := "%session-changed $0 0\n%begin 1 7 1\n" + screen + "\n%end 1 7 1\n%begin 1 8 1\nWORD-0\n%end 1 8 1\n" +
		"%begin 1 9 1\n%end 1 9 1\n%window-renamed @0 x\n%begin 1 10 1\nWORD-1\n%end 1 10 1\n%begin 1 11 1\nWORD\n%end 1 11 1\n"
	// The word itself cannot be guessed; here it is one that the screen has not.
	answer = strings.ReplaceAll(answer, "WORD-", "SECRET-")
	answer = strings.Replace(answer, "%begin 1 11 1\nWORD\n", "%begin 1 11 1\nSECRET\n", 1)
	r := bufio.NewReader(strings.NewReader(answer + "next\n"))
	first, _ := r.ReadString('\n')
	texts, err := read(r, first, "SECRET", 2)
	if err != nil || len(texts) != 2 || strings.Join(texts[0].lines, "\n") != screen || len(texts[1].lines) > 0 {
		t.Errorf("%v, %v", texts, err)
	}
	if rest, _ := r.ReadString('\n'); rest != "next\n" {
		t.Errorf("behind it is %q", rest)
	}
	failed := "%begin 1 7 1\nunknown command: x\n%error 1 7 1\n%begin 1 8 1\nSECRET\n%end 1 8 1\n"
	r = bufio.NewReader(strings.NewReader(failed))
	first, _ = r.ReadString('\n')
	if texts, err := read(r, first, "SECRET", 2); err == nil || !strings.Contains(err.Error(), "unknown command: x") {
		t.Errorf("a command that fails: %v, %v", texts, err)
	}
	for cut := range len(answer) {
		r := bufio.NewReader(strings.NewReader(answer[:cut]))
		first, err := r.ReadString('\n')
		if err != nil {
			continue
		}
		if texts, err := read(r, first, "SECRET", 2); err == nil {
			t.Fatalf("cut at %d: %v", cut, texts)
		}
	}
}

// Of a long answer both ends are held, and it is known how much is missing.
func TestRead_Long(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		n    int
	}{"lines": {strings.Repeat("é", 50) + "  \n", 100_000}, "one line": {strings.Repeat("0123456789", 1_000_000) + "\n", 1}, "a few": {strings.Repeat("x", kept-100) + "\n", 20}} {
		all := strings.Repeat(c.line, c.n)
		r := bufio.NewReader(strings.NewReader("%begin 1 7 1\nfirst\n" + all + "last\n%end 1 7 1\n%begin 1 8 1\nSECRET-0\n%end 1 8 1\n%begin 1 9 1\nSECRET\n%end 1 9 1\n"))
		first, _ := r.ReadString('\n')
		texts, err := read(r, first, "SECRET", 1)
		if err != nil || len(texts) != 1 {
			t.Fatalf("%s: %v, %v", name, texts, err)
		}
		whole := "first\n" + strings.ReplaceAll(all, "  \n", "\n") + "last"
		got := tidy(texts[0].lines)
		const end = 100_000
		if len(got) > 4*kept || got[:end] != whole[:end] || got[len(got)-end:] != whole[len(whole)-end:] {
			t.Errorf("%s: %d bytes, %.50q ... %q", name, len(got), got, got[len(got)-50:])
		}
		// Where a line was cut, it is two.
		if missing := len(whole) - len(got); texts[0].omitted < missing || texts[0].omitted > missing+2 {
			t.Errorf("%s: %d bytes are missing, said %d", name, missing, texts[0].omitted)
		}
	}
}

// What a mark would be put on is known, or it is left out; in any pieces.
func TestMarks(t *testing.T) {
	many := strings.Repeat("\u0301", 9)
	for in, want := range map[string]string{
		"abc é日🎉\x1b[31mred\r\n":         "abc é日🎉\x1b[31mred\r\n",
		"e\u0301 กำ ก็ نَّ 한":            "e\u0301 กำ ก็ نَّ 한",
		"e" + many + "e" + many:          "e\u0301\u0301\u0301e\u0301\u0301\u0301",
		"\u0301x":                        "x",
		"e\x1b[2G\u0301x":                "e\x1b[2Gx",
		"e\x1b[2;3H\x1b[1m\u0301":        "e\x1b[2;3H\x1b[1m",
		"e\x1b[\n2G\u0301":               "e\x1b[\n2G",
		"e\x1bM\u0301\x1b(B\u0301e":      "e\x1bM\x1b(Be",
		"e\b\u0301\re\u0301":             "e\b\re\u0301",
		"x\x1b]0;e\u0301\a\u0301":        "x\x1b]0;e\u0301\a",
		"e\u200d\u0301\u200b\ufeff":      "e\u0301",
		"\u1112\u1161\u11ab\u11ab\u11ab": "\u1112\u1161\u11ab\u11ab",
		"e\xff\u0301e\u0378\u0301":       "e\xffe\u0378",
		"e\u0085\u0301\xc3":              "e\u0301",
		"\ue0a0 \u00a0\u3000\u00ad":      "\ue0a0 \u00a0\u3000\u00ad",
	} {
		for piece := 1; piece <= len(in); piece++ {
			var m marks
			got := ""
			for rest := []byte(in); len(rest) > 0; rest = rest[min(piece, len(rest)):] {
				got += string(m.pass(rest[:min(piece, len(rest))]))
			}
			if got != want {
				t.Fatalf("%q in pieces of %d: %q, want %q", in, piece, got, want)
			}
		}
	}
	var m marks
	for r := rune(0x4e00); r < 0x9f00; r++ {
		for _, mark := range []rune{0x301, 0x302, 0x303, 0x304} {
			m.pass([]byte(string(r) + string(mark)))
		}
	}
	if len(m.known) != mostKnown || string(m.pass([]byte("\u4e00\u0301e\u0301"))) != "\u4e00\u0301e" {
		t.Errorf("%d are known", len(m.known))
	}
}

// seen is a view of some lines, none of which is wrapped, with the cursor in the
// last of them, of which those from row on are on the screen.
func seen(from int, all ...string) view {
	rows := append(append([]string(nil), all[from:]...), make([]string, Rows-len(all)+from)...)
	return view{cursor: len(all) - from - 1, history: from, all: append(all[:from:from], rows...), joined: rows, rows: rows, screen: rows}
}

func TestNext(t *testing.T) {
	var m mark
	step := func(name string, v view, want string, screen bool) {
		t.Helper()
		var out terminus.Output
		if out, m = m.next(v); out.Text != want || out.Screen != screen {
			t.Errorf("%s: %q %v, want %q %v", name, out.Text, out.Screen, want, screen)
		}
	}
	step("first", seen(0, "$ "), "$", false)
	step("nothing", seen(0, "$ "), "$", false)
	step("a command", seen(0, "$ ls", "a", "$ "), "$ ls\na\n$", false)
	step("the same again", seen(0, "$ ls", "a", "$ ls", "a", "$ "), "$ ls\na\n$", false)
	step("a blank line", seen(0, "$ ls", "a", "$ ls", "a", "$ sleep", ""), "$ sleep", false)
	step("still nothing", seen(0, "$ ls", "a", "$ ls", "a", "$ sleep", ""), "$ ls\na\n$ ls\na\n$ sleep", true)
	step("cleared", seen(0, "$ "), "$", true)
	step("drawn over", seen(0, "top", "x", "y"), "top\nx\ny", false)
	step("again", seen(0, "top 2", "x", "y"), "top 2\nx\ny", true)
	v := seen(0, "~", "~")
	v.alternate = true
	before := m
	step("another screen", v, "~\n~", true)
	if !reflect.DeepEqual(m, before) {
		t.Error("a full-screen program moves the mark")
	}
	step("and back", seen(0, "top 2", "x", "y", "$ "), "y\n$", false)
	scrolled := seen(2, "top 2", "x", "y", "$ seq", "1", "$ ")
	step("scrolled", scrolled, "$ seq\n1\n$", false)
	// What was looked at is dropped: the next look begins at the screen.
	step("scrolled, next", seen(0, "y", "$ seq", "1", "$ echo", "$ "), "$ echo\n$", false)
	full := seen(0, "a", "$ ")
	full.history = Lines * 9 / 10
	step("too much", full, fmt.Sprintf("[more than %d lines came; the first of them are gone]\na\n$", full.history), false)
	full = seen(1, "a", "$ ")
	full.lost = true
	step("too large", full, "[more than 1 lines came; the first of them are gone]\na\n$", false)
	// Something below the cursor: what is new cannot be told.
	menu := seen(0, "$ ", "menu")
	menu.cursor = 0
	m, before = mark{}, mark{}
	step("a menu", menu, "$\nmenu", false)
	step("the menu is gone", seen(0, "$ x", "$ "), "$ x\n$", true)
}

// A wrapped line is one, for the mark and for what is new.
func TestPlace_Wrapped(t *testing.T) {
	v := view{cursor: 3, joined: []string{"a", "bbbccc", "dddeee", ""}, rows: []string{"a", "bbb", "ccc", "ddd", "eee", ""}}
	for cursor, above := range []int{0, 1, 1, 2, 2, 3} {
		v.cursor = cursor
		if m := place(v); len(m.above) != above || m.lost != (above < 2) {
			t.Errorf("cursor in row %d: %+v", cursor, m)
		}
	}
	if m := place(view{cursor: 1, joined: []string{"x", "y"}, rows: []string{"z", "y"}}); !m.lost {
		t.Errorf("a screen that does not fit together: %+v", m)
	}
}

func TestRecent(t *testing.T) {
	for version, want := range map[string]bool{"tmux 3.2": true, "tmux 3.3a": true, "tmux next-3.5": true, "tmux master": true, "tmux 10.0": true, "tmux 3.1c": false, "tmux 2.9": false, "": false, "screen 5.0": false} {
		if recent(version) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
}

// busy is a tmux that takes a while over all that it is asked, and what it was asked.
func busy(t *testing.T, takes time.Duration) (*server, *[]string) {
	asks, in := io.Pipe()
	out, answers := io.Pipe()
	attached := make(chan struct{})
	s := &server{cmd: &exec.Cmd{}, in: in, out: out, last: attached, done: make(chan struct{}), pid: -1}
	asked, ended := &[]string{}, make(chan struct{})
	t.Cleanup(func() { in.Close(); <-ended; <-s.done })
	go s.listen(attached)
	go func() {
		defer close(ended)
		defer answers.Close()
		if _, err := io.WriteString(answers, attachment+"$0 it\n"); err != nil {
			return
		}
		for lines := bufio.NewScanner(asks); lines.Scan(); {
			time.Sleep(takes / 2)
			for command := range strings.SplitSeq(lines.Text(), " ; ") {
				word, own := strings.CutPrefix(command, "display-message -p ")
				if !own {
					*asked = append(*asked, command)
				}
				if _, err := fmt.Fprintf(answers, "%%begin 1 1 1\n%s\n%%end 1 1 1\n", word); err != nil {
					return
				}
			}
		}
	}()
	return s, asked
}

// What is asked before tmux has a client would be nobody's.
func TestAsk_Attached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks, in := io.Pipe()
		out, answers := io.Pipe()
		attached := make(chan struct{})
		s := &server{cmd: &exec.Cmd{}, in: in, out: out, last: attached, done: make(chan struct{}), pid: -1}
		go s.listen(attached)
		for _, c := range []struct {
			line  string
			asked bool
		}{{"%begin 1 0 0\n%end 1 0 0\n%sessions-changed\n", false}, {attachment + "$0 0\n", true}} {
			if _, err := io.WriteString(answers, c.line); err != nil {
				t.Fatal(err)
			}
			if !c.asked {
				go s.ask(t.Context(), "refresh-client")
			}
			synctest.Wait()
			if asked := s.asked.Load() != nil; asked != c.asked {
				t.Errorf("after %q it is asked: %v", c.line, asked)
			}
		}
		asks.Close()
		answers.Close()
		<-s.done
	})
}

// A wait is as long as it was asked for, however long tmux takes; what was typed
// meanwhile is typed, in its order.
func TestSend_Waits(t *testing.T) {
	for name, c := range map[string]struct {
		keys         string
		takes, ends  time.Duration // of tmux; when the shell ends
		stopped, end time.Duration // when the agent's time is over; when Send returns
		err          error
	}{
		"nothing typed":    {"", 0, time.Hour, time.Hour, 5 * time.Second, nil},
		"at once":          {"x", 0, time.Hour, time.Hour, 5 * time.Second, nil},
		"within the wait":  {"x", 4 * time.Second, time.Hour, time.Hour, 5 * time.Second, nil},
		"tmux is busy":     {"x", 10 * time.Minute, time.Hour, time.Hour, 5 * time.Second, nil},
		"the shell ends":   {"x", 0, 3 * time.Second, time.Hour, 3 * time.Second, terminus.ErrGone},
		"the time is over": {"x", 10 * time.Minute, time.Hour, 2 * time.Second, 2 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, asked := busy(t, c.takes)
				term := &Terminal{tmux: s, ended: make(chan struct{})}
				time.AfterFunc(c.ends, func() { close(term.ended) })
				ctx, cancel := context.WithTimeout(t.Context(), c.stopped)
				defer cancel()
				began := time.Now()
				if err := term.Send(ctx, c.keys, 5*time.Second); !errors.Is(err, c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
				if took := time.Since(began); took != c.end {
					t.Errorf("took %s, want %s", took, c.end)
				}
				if c.err != nil {
					return
				}
				var want []string
				if c.keys != "" {
					want = []string{literal(c.keys)}
				}
				for _, keys := range []string{"y", "z"} {
					began := time.Now()
					if err := term.Send(ctx, keys, 0); err != nil || time.Since(began) != 0 {
						t.Errorf("%v after %s", err, time.Since(began))
					}
					want = append(want, literal(keys))
				}
				if _, err := term.Screen(t.Context()); err != nil {
					t.Error(err)
				}
				if got := (*asked)[:len(*asked)-1]; !reflect.DeepEqual(got, want) {
					t.Errorf("typed %q, want %q", got, want)
				}
			})
		})
	}
}

// One that reads nothing, and whose pipe is full, is ended as any.
func TestClose_StandsStill(t *testing.T) {
	attached := make(chan struct{})
	close(attached)
	s := &server{cmd: exec.Command("sleep", "1000"), last: attached, done: make(chan struct{}), pid: -1}
	var err [3]error
	s.in, err[0] = s.cmd.StdinPipe()
	s.out, err[1] = s.cmd.StdoutPipe()
	err[2] = s.cmd.Start()
	if err := errors.Join(err[:]...); err != nil {
		t.Fatal(err)
	}
	go s.listen(nil)
	pipe, failed := s.in.(*os.File).SyscallConn()
	if failed == nil {
		failed = pipe.Write(func(fd uintptr) bool {
			for {
				if _, err := unix.Write(int(fd), make([]byte, 4096)); err == unix.EAGAIN {
					return true
				}
			}
		})
	}
	if failed != nil {
		t.Fatal(failed)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// A tmux that begins, and says nothing or not what it should, is not waited for.
func TestNoAnswer(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "tmux")
	for does, want := range map[string]string{"exec sleep 1000": "no answer", "exec yes": "no answer", "exit 3": "exit status 3", "echo tmux 2.9": "3.2 is the first", "echo tmux 3.4": ""} {
		if err := os.WriteFile(fake, []byte("#!/bin/sh\n"+does+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		wait := time.Hour
		if strings.HasPrefix(want, "no") {
			wait = time.Millisecond
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), wait, errors.New("no answer"))
		err := Find(ctx, fake)
		cancel()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", does, err, want)
		}
		if want != "no answer" {
			continue
		}
		_, err = Start(t.Context(), Options{Fence: fake, Tmux: "tmux", Dir: t.TempDir(), Patience: time.Millisecond})
		var broken *Error
		if !errors.As(err, &broken) || broken.Class != "terminal_failed" || !strings.Contains(err.Error(), "not answered for 1ms") {
			t.Errorf("%s: started with %v", does, err)
		}
	}
}
