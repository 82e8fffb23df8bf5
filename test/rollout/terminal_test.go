package rollout

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/box"
	"fence/pkg/session"
	"fence/pkg/terminal"
	"fence/pkg/terminus"
	"fence/test/bed"
)

// screen is a terminal in a box of its own.
type screen struct {
	*terminal.Terminal
	*running
	recorded *bytes.Buffer
}

func openTerminal(t *testing.T, image string) *screen {
	t.Helper()
	r := start(t, options(t, image))
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		bed.Missing(t, "tmux: %v", err)
	}
	if err := terminal.Find(tmux); err != nil {
		t.Fatal(err)
	}
	s := &screen{running: r, recorded: &bytes.Buffer{}}
	began := time.Now()
	s.Terminal, err = terminal.Start(t.Context(), terminal.Options{
		Run: r.Run, Fence: r.o.Fence, Tmux: tmux, Dir: filepath.Join(bed.TempDir(t), "terminal"), Record: s.recorded,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the terminal was up after %s", time.Since(began))
	t.Cleanup(func() {
		if err := s.Terminal.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// type_ types and waits until the screen shows a text; what is new is returned.
func (s *screen) type_(keys, until string) terminus.Output {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if err := s.Send(ctx, keys, 0); err != nil {
		s.t.Fatalf("typing %q: %v", keys, err)
	}
	for {
		now, err := s.Screen(ctx)
		if err != nil {
			s.t.Fatalf("after %q, until %q: %v", keys, until, err)
		}
		if strings.Contains(now, until) {
			break
		}
		if err := s.Send(ctx, "", 10*time.Millisecond); err != nil {
			s.t.Fatalf("after %q, until %q: %v\n%s", keys, until, err, now)
		}
	}
	out, err := s.Output(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func TestTerminal(t *testing.T) {
	if !asUser(t) {
		return
	}
	s := openTerminal(t, "debian")
	out, err := s.Output(t.Context())
	t.Logf("%+v %v", out, err)
	t.Logf("%+v", s.type_("PS1='$ '; clear\n", "\n"))
	t.Logf("%+v", s.type_("echo a'b'c\n", "abc"))
	t.Logf("%+v", s.type_("id; tty; echo $TERM $SHELL $-\n", "xterm"))
	var _ = box.Agent
	var _ session.Size
}
