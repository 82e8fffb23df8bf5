package session

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"fence/pkg/session"
	"fence/test/bed"
)

// Sessions work in other containers than those that fence env asks for: with a
// root of the person's own on an overlay, and among the node's processes, where
// nobody can tell who asks.
func TestContainers(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		peers string
	}{
		"root":            {[]string{"--fakeroot"}, "outside"},
		"processes":       {[]string{"unset APPTAINER_PID"}, "any"},
		"root, processes": {[]string{"--fakeroot", "unset APPTAINER_PID"}, "any"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				p := graded(t, open, c.flags...)
				st, err := p.Status(t.Context())
				if err != nil || st.Peers != c.peers {
					t.Errorf("%+v %v", st, err)
				}
				uid := fmt.Sprintln(bed.Person(t).UID)
				if strings.HasPrefix(name, "root") {
					uid = "0\n"
				}
				if got := p.sh("agent", `id -u`); got != uid {
					t.Errorf("the user inside is %s", got)
				}
				if got := p.sh("agent", fmt.Sprintf("ls -d /proc/%d 2>/dev/null | wc -l", os.Getpid())); !p.state("agent").PIDNamespace && (got == "1\n") != (c.peers == "any") {
					t.Errorf("processes of the node's: %s", got)
				}
				p.worksThere(open)
				if !open {
					p.withstands()
				}
				p.sh("agent", leave)
				p.sh("verifier", leave)
				if err := p.End(t.Context(), "agent"); err != nil {
					t.Error(err)
				}
				p.hangUp()
				waitGone(t, "the session", func(pid int) bool {
					return marked(p.mark)(pid) || slices.ContainsFunc(cmdline(pid), func(arg string) bool { return strings.Contains(arg, p.overlay) })
				})
			}
		})
	}
}

// worksThere tries what a session is for, in two domains that lie beside each
// other if open, and else the agent's below the verifier's.
func (p *place) worksThere(open bool) {
	t := p.t
	// A later command ends what an earlier one left; a domain beside it cannot.
	p.sh("agent", `sleep $1 >/dev/null 2>&1 & setsid sleep $1 >/dev/null 2>&1 & until [ $(pgrep -fc "^sleep $1") = 2 ]; do :; done`)
	p.sh("agent", `pkill -of "^sleep $1"`)
	want := map[bool]string{false: "ended\n", true: "cannot\n"}[open]
	if got := p.sh("verifier", `pkill -f "^sleep $1" && echo ended || echo cannot`); got != want {
		t.Errorf("the verifier and what the agent left: %q, want %q", got, want)
	}
	p.sh("agent", `pkill -f "^sleep $1"; true`)
	waitGone(t, "what was ended", marked(p.mark))
	for _, d := range []string{"agent", "verifier"} {
		if err := p.put(d, "/tmp/"+d, map[string]string{"a": d}); err != nil {
			t.Error(err)
		}
		if got := p.sh(d, `cat /tmp/`+d+`/a; tty=$(script -qec tty /dev/null); echo $tty`); got != d+"/dev/pts/0\r\n" {
			t.Errorf("%s: %q", d, got)
		}
	}
	r := p.do(session.Command{Argv: []string{"bash", "-c", `(trap "" TERM; sleep $1 & sleep $1) & exec sleep $1`, "bash", p.mark}, Timeout: 300, Grace: 300}, "")
	if !r.exit.TimedOut || len(find(marked(p.mark))) > 0 {
		t.Errorf("at its deadline: %+v, left are %v", r.exit, find(marked(p.mark)))
	}
	s, _, done := p.terminal(session.Size{Rows: 24, Cols: 80}, []string{"PS1=[$?]> ", "TERM=dumb"}, "bash", "--norc", "--noediting", "-i")
	s.until(prompt)
	s.typed("sh -c 'echo rea''dy; exec sleep "+p.mark+"'\n", "ready\r\n")
	if got := s.typed("\x1a", prompt); !strings.HasSuffix(got, "[148]> ") {
		t.Errorf("C-z: %q", got)
	}
	s.typed("kill %1; fg\n", prompt)
	s.typed("exit 6\n", "exit")
	go io.Copy(io.Discard, s.from)
	if exit := <-done; exit.Code != 6 {
		t.Errorf("%+v", exit)
	}
}
