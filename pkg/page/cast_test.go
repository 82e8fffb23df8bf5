package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"fence/pkg/trajectory"
)

func TestRecording(t *testing.T) {
	c := recording(write1(t, `{"version": 2, "width": 80, "height": 9999, "timestamp": 100, "env": {}}
[0.5, "o", "a"]
[0.2, "o", "b"]
not json
[1, "i", "typed"]
[1, "x", "y"]
[1, "or", "y"]
[2, "r", "100x30"]
[3, "m", ""]
[4, "o"`))
	got, err := json.Marshal(c)
	if want := `{"w":80,"h":200,"start":100000,"events":[[0.5,"o","a"],[0.5,"o","b"],[2,"r","100x30"],[3,"m",""]],"cut":false}`; err != nil || string(got) != want {
		t.Errorf("%v %s, want %s", err, got, want)
	}
	for _, text := range []string{"", "x", `{"version": 1}`, `{"version": 3, "term": {}}`} {
		if c := recording(write1(t, text)); c != nil {
			t.Errorf("%q: %v", text, c)
		}
	}
	long := `{"version": 2, "width": 80, "height": 24}` + "\n" + strings.Repeat(`[1, "o", "`+strings.Repeat("x", 1<<20)+"\"]\n", 9)
	if c := recording(write1(t, long)); !c.Cut || len(c.Events) != 8 {
		t.Errorf("cut: %t after %d", c.Cut, len(c.Events))
	}
	long = `{"version": 2, "width": 80, "height": 24}` + "\n[1, \"o\", \"a\"]\n[2, \"o\", \"" + strings.Repeat("x", 9<<20) + "\"]\n"
	if c := recording(write1(t, long)); !c.Cut || len(c.Events) != 1 {
		t.Errorf("a long line: cut: %t after %d", c.Cut, len(c.Events))
	}
}

// Of a recording that others wrote a player gets what one of ours would have,
// and no more than it can draw in a while.
func TestRecording_Others(t *testing.T) {
	head := `{"version": 2, "width": 160, "height": 40}` + "\n"
	line := func(kind, text string) string {
		data, err := json.Marshal([]any{1, kind, text})
		if err != nil {
			t.Fatal(err)
		}
		return string(data) + "\n"
	}
	c := recording(write1(t, head+line("o", "a\x1b[2147483647S\x1b]0;t\ab\x1b[99")+line("o", "9T\x1b[6n")+line("r", "999x999")+line("r", "ax1")+line("o", "\x1b[99999L")+line("m", strings.Repeat("m", 1000))))
	got, err := json.Marshal(c)
	if err != nil || !strings.HasPrefix(string(got), `{"w":160,"h":40,"start":0,"events":[[1,"o","a\u001b[40Sb"],[1,"o","\u001b[40T"],[1,"r","500x200"],[1,"o","\u001b[200L"],[1,"m","mmm`) || len(got) > 500 {
		t.Errorf("%v %s", err, got)
	}
	for what, text := range map[string]string{
		"events":      strings.Repeat(line("o", "x"), 300_000),
		"sizes":       strings.Repeat(line("r", "500x200"), 1000),
		"scrolling":   strings.Repeat(line("o", strings.Repeat("\x1b[40S", 100)), 1000),
		"inserting":   strings.Repeat(line("o", "\x1b[4h"+strings.Repeat("x", 1000)), 1000),
		"two screens": strings.Repeat(line("o", strings.Repeat("\x1b[?47h\x1b[?47l", 100)), 1000),
	} {
		if c := recording(write1(t, head+text)); !c.Cut || len(c.Events) < 10 {
			t.Errorf("too many %s: cut: %t after %d", what, c.Cut, len(c.Events))
		}
	}
	// A long one that scrolls by is whole.
	if c := recording(write1(t, head+strings.Repeat(line("o", strings.Repeat("1234567\r\n", 1000)), 600))); c.Cut {
		t.Errorf("5 MB of lines are cut after %d", len(c.Events))
	}
}

// A recording of ours is read, and says to the millisecond when something was
// printed, whenever in a second it began.
func TestRecording_Ours(t *testing.T) {
	var b bytes.Buffer
	now := begin.Add(700 * time.Millisecond)
	c, err := trajectory.NewCast(&b, 160, 40, evil, 5000, func() time.Time { now = now.Add(time.Second); return now })
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Marker("turn 1"), c.Input("ls\n"), c.Close()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one\xff\r\n", "\x1b[31mtwo", strings.Repeat("not recorded", 500)} {
		if _, err := c.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	read := recording(write1(t, b.String()))
	got, err := json.Marshal(read)
	want := `{"w":160,"h":40,"start":1796040001000,"events":[[1.7,"m","turn 1"],[3.7,"o","one�\r\n"],[4.7,"o","\u001b[31mtwo"],[5.7,"m","more is not recorded: the limit of this recording was reached"]],"cut":false}`
	if err != nil || string(got) != want {
		t.Errorf("%v %s, want %s", err, got, want)
	}
	if at := int64(read.Start + 1000*read.Events[0].at); at != begin.Add(2700*time.Millisecond).UnixMilli() {
		t.Errorf("the first event was at %d", at)
	}
}
