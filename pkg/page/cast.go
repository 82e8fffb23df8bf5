package page

import (
	"bufio"
	"encoding/json"
	"strings"

	"fence/pkg/internal/readfile"
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

// recording reads what a replay needs; nil where there is none. Lines that are
// not as they should be, as the last one of a run that was killed, are passed
// over.
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
	c := &cast{Width: min(max(head.Width, 2), 500), Height: min(max(head.Height, 1), 200), Start: head.Timestamp * 1000, Events: []event{}}
	size, last := 0, 0.0
	for lines.Scan() {
		var raw []json.RawMessage
		var e event
		if json.Unmarshal(lines.Bytes(), &raw) != nil || len(raw) != 3 || json.Unmarshal(raw[0], &e.at) != nil ||
			json.Unmarshal(raw[1], &e.kind) != nil || json.Unmarshal(raw[2], &e.text) != nil || !strings.Contains("orm", e.kind) || len(e.kind) != 1 {
			continue
		}
		if size += len(e.text); size > maxScreens {
			c.Cut = true
			return c
		}
		e.at = max(e.at, last) // time does not go back
		last = e.at
		c.Events = append(c.Events, e)
	}
	c.Cut = lines.Err() != nil
	return c
}
