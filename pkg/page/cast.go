package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"fence/pkg/internal/readfile"
	"fence/pkg/trajectory"
)

// cast is the recording of a terminal: asciicast v2
// (https://docs.asciinema.org/manual/asciicast/v2).
type cast struct {
	Width  int     `json:"w"`
	Height int     `json:"h"`
	Start  float64 `json:"start"` // milliseconds since 1970, 0 where it is not said
	Events []event `json:"events"`
	Cut    bool    `json:"cut"` // it went on, and that is not shown
}

// event is a moment: "o", what was printed; "r", a new size "80x24"; "m", a
// name for the moment. It is written as in the recording: [seconds, kind, text].
type event struct {
	at         float64
	kind, text string
}

func (e event) MarshalJSON() ([]byte, error) { return json.Marshal([]any{e.at, e.kind, e.text}) }

// What a player does besides drawing, in the work of a letter ([trajectory.Plain]):
// an event is kept and looked at, and with a new size it lays out anew what can
// be scrolled back to.
const (
	eventWork  = 256
	resizeWork = 400_000
)

var sizes = regexp.MustCompile(`^(\d{1,3})x(\d{1,3})$`)

// recording reads what a replay needs; nil where there is none. Lines that are
// not as they should be, as the last one of a run that was killed, are passed
// over. Whoever wrote it, a player comes to its end: it has only what a recording
// of ours would have, and what takes too long to draw is cut off.
func recording(path string) *cast {
	f, err := readfile.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 64<<10), maxScreens)
	var head struct {
		Version   int     `json:"version"`
		Width     int     `json:"width"`
		Height    int     `json:"height"`
		Timestamp float64 `json:"timestamp"` // seconds
	}
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &head) != nil || head.Version != 2 {
		return nil
	}
	c := &cast{Width: width(head.Width), Height: height(head.Height), Start: seconds(head.Timestamp) * 1000, Events: []event{}}
	screen := trajectory.Plain{Width: c.Width, Height: c.Height}
	size, last := 0, 0.0
	for lines.Scan() {
		var raw []json.RawMessage
		var e event
		if json.Unmarshal(lines.Bytes(), &raw) != nil || len(raw) != 3 || json.Unmarshal(raw[0], &e.at) != nil ||
			json.Unmarshal(raw[1], &e.kind) != nil || json.Unmarshal(raw[2], &e.text) != nil {
			continue
		}
		e.at = max(seconds(e.at), last) // time does not go back
		last = e.at
		switch e.kind {
		case "o":
			if e.text = screen.Filter(time.Duration(e.at*float64(time.Second)), e.text); e.text == "" {
				continue
			}
		case "r":
			wh := sizes.FindStringSubmatch(e.text)
			if wh == nil {
				continue
			}
			w, _ := strconv.Atoi(wh[1])
			h, _ := strconv.Atoi(wh[2])
			screen.Width, screen.Height = width(w), height(h)
			e.text = fmt.Sprintf("%dx%d", screen.Width, screen.Height)
			screen.Work += resizeWork
		case "m":
			e.text = short(e.text, maxMark)
		default:
			continue
		}
		screen.Work += eventWork
		if size += len(e.text); size > maxScreens || screen.Work > maxWork {
			c.Cut = true
			return c
		}
		c.Events = append(c.Events, e)
	}
	c.Cut = lines.Err() != nil
	return c
}

func width(n int) int  { return min(max(n, 2), 500) }
func height(n int) int { return min(max(n, 1), 200) }

// seconds are some that can be reckoned with.
func seconds(s float64) float64 { return min(max(s, 0), maxSeconds) }
