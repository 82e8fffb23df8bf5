package runner

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/result"
	"fence/test/clitest"
)

// What is said while a run goes on: nothing of what was there, a line for what
// ends.
func TestLive(t *testing.T) {
	items := Items(specs(3), oracle, 1)
	at := time.Unix(1000, 0)
	half := 0.5
	feed := func(l *Live) {
		l.began, l.now = at, func() time.Time { return at.Add(90 * time.Second) }
		l.Event(Event{Item: items[0], Kind: Kept, Trial: &result.Trial{Reward: &half}})
		l.Event(Event{Item: items[1], Kind: Begun, Text: "agent"})
		l.Event(Event{Item: items[1], Kind: Again, Text: "session_lost: gone; is tried again in 2s"})
		l.Event(Event{Item: items[1], Kind: Ended, Trial: &result.Trial{Reward: new(float64), Agent: result.AgentEnd{Stop: "turn_cap"}, Tainted: []result.Taint{{}}}})
		if got, want := l.note(), "0 solved, mean reward 0.25, about 1m30s to go, "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		l.Event(Event{Item: items[2], Kind: Ended, Trial: &result.Trial{StartedAt: at, FinishedAt: at.Add(11 * time.Second), Fault: &result.Fault{Class: "reward_missing", Cause: "task", Message: "no\x1b[31m reward"}}})
		if got, want := l.note(), "0 solved, mean reward 0.25, 1 faults, "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	path := filepath.Join(t.TempDir(), "stderr")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := NewLive(f, "rollout", 3)
	l.Start()
	feed(l)
	l.End()
	said, err := os.ReadFile(path)
	want := strings.NewReplacer("B", items[1].Name, "C", items[2].Name).Replace("rollout: B: session_lost: gone; is tried again in 2s\n" +
		"rollout: 2/3 B: reward 0, agent turn_cap, tainted, in 0.0s\n" +
		"rollout: 3/3 C: fault, reward_missing (task): no\\x1b[31m reward, in 11s\n")
	if err != nil || string(said) != want {
		t.Errorf("%s %v\nwant %s", said, err, want)
	}
	screen, tty := clitest.Terminal(t, 120)
	l = NewLive(tty, "rollout", 3)
	l.Start()
	feed(l)
	l.End()
	tty.Close()
	seen, _ := io.ReadAll(screen)
	if !bytes.HasSuffix(seen, []byte("\x1b[1A\x1b[J")) || !bytes.Contains(seen, []byte("3 of 3 trials, 0 solved, mean reward 0.25, 1 faults, ")) || bytes.Contains(seen, []byte("\x1b[31m")) {
		t.Errorf("%q", seen)
	}
}

// Live is what a run takes.
var _ = func(l *Live) Options {
	return Options{Event: l.Event, Say: l.Say, Try: func(context.Context, Item, string) result.Trial { panic("") }}
}
