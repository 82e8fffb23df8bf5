// Package trajectory is what a model's work leaves on disk: a line for every
// turn while it goes on, and from those lines afterwards a trajectory in ATIF
// v1.7 and what Harbor calls rollout details. The terminal is recorded as an
// asciicast. Nothing in it comes from whoever watches the trial.
package trajectory

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"fence/pkg/internal/readfile"
)

// Schema is the first field of a turn's record.
const Schema = "rollout.turn/v1"

// The kinds of a turn: Act is one in the terminal; the others are the calls in
// which a conversation that became too long is handed over.
const (
	Act       = "turn"
	Summary   = "summary"
	Questions = "questions"
	Answers   = "answers"
)

// Turn is one call of the model and what came of it: a line of turns.jsonl.
// What the server did not say is null; token ids and log-probabilities are
// null too where nobody asked for them.
type Turn struct {
	Schema    string    `json:"schema"`
	Trial     string    `json:"trial"`
	Turn      int       `json:"turn"` // from 1; of a hand-over, the turn that it made room for
	Kind      string    `json:"kind"`
	Segment   int       `json:"segment"` // from 1, another one after each hand-over
	StartedAt time.Time `json:"started_at"`

	Prompt    string `json:"prompt"` // the message that was sent last
	Reply     string `json:"reply"`  // as it came
	Reasoning string `json:"reasoning"`
	Finish    string `json:"finish"` // stop, length, ...

	Analysis     string    `json:"analysis"`
	Plan         string    `json:"plan"`
	Commands     []Command `json:"commands"` // those that were typed
	TaskComplete bool      `json:"task_complete"`
	Error        string    `json:"error"` // why nothing of the reply was done, or ""
	Warnings     []string  `json:"warnings"`
	Output       string    `json:"output"` // of the terminal, as the model gets it
	Fence        []string  `json:"fence"`  // words in the output that a closed door may have caused
	Stop         string    `json:"stop"`   // of the last turn

	ModelSec    float64 `json:"model_sec"`    // with retries
	TerminalSec float64 `json:"terminal_sec"` // with the waits that the model asked for
	Tries       int     `json:"tries"`        // of the call

	PromptTokens     *int `json:"prompt_tokens"` // with those that were cached
	CompletionTokens *int `json:"completion_tokens"`
	CachedTokens     *int `json:"cached_tokens"`

	PromptIDs     []int     `json:"prompt_token_ids"`
	CompletionIDs []int     `json:"completion_token_ids"`
	Logprobs      []float64 `json:"logprobs"` // natural, of each of completion_token_ids
}

// Command is what was typed at once, and how long was waited then, in seconds.
type Command struct {
	Keystrokes string  `json:"keystrokes"`
	Duration   float64 `json:"duration"`
}

// Log writes turns to a file, a line each.
type Log struct {
	mu sync.Mutex
	f  *os.File
}

// Create begins a new file; one that is there is replaced.
func Create(path string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	return &Log{f: f}, nil
}

// Add writes one turn, whole.
func (l *Log) Add(t Turn) error {
	t.Schema = Schema
	if t.Commands == nil {
		t.Commands = []Command{}
	}
	if t.Warnings == nil {
		t.Warnings = []string{}
	}
	if t.Fence == nil {
		t.Fence = []string{}
	}
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(t); err != nil {
		return fmt.Errorf("turn %d: %w", t.Turn, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.f.Write(line.Bytes())
	return err
}

// Close ends the file.
func (l *Log) Close() error { return l.f.Close() }

// ReadFile reads the turns of a file, which may be anybody's: a regular one, up
// to 512 MiB of it. Beside an error are those that came before it.
func ReadFile(path string) ([]Turn, error) {
	f, err := readfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	turns, err := Read(io.LimitReader(f, 512<<20))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return turns, err
}

// Read reads turns. A last line without an end is what a killed writer left,
// and is passed over.
func Read(r io.Reader) ([]Turn, error) {
	var all []Turn
	b := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := b.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		var t Turn
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&t); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if t.Schema != Schema {
			return nil, fmt.Errorf("line %d: not a turn, but %q", n, t.Schema)
		}
		all = append(all, t)
	}
}

// Tokens are the sums over turns, each nil if no turn was counted.
type Tokens struct {
	Prompt, Cached, Completion *int
}

// Add adds what a turn took.
func (s *Tokens) Add(t Turn) {
	add := func(to **int, n *int) {
		if n == nil {
			return
		}
		if *to == nil {
			*to = new(int)
		}
		**to += *n
	}
	add(&s.Prompt, t.PromptTokens)
	add(&s.Cached, t.CachedTokens)
	add(&s.Completion, t.CompletionTokens)
}

// details is Harbor's RolloutDetail.
type details struct {
	PromptIDs     [][]int     `json:"prompt_token_ids"`
	CompletionIDs [][]int     `json:"completion_token_ids"`
	Logprobs      [][]float64 `json:"logprobs"`
}

// Details are the turns' token ids as Harbor keeps them in rollout_details: an
// entry for each segment of the conversation, the first first, then one for
// each call of a hand-over. A turn without ids has an empty list in each, so
// that the lists keep step. Without any ids there are no details.
func Details(turns []Turn) []json.RawMessage {
	var segments, calls []*details
	any := false
	for _, t := range turns {
		any = any || t.PromptIDs != nil || t.CompletionIDs != nil || t.Logprobs != nil
		var d *details
		switch {
		case t.Kind != Act:
			d = &details{}
			calls = append(calls, d)
		default:
			for len(segments) < t.Segment {
				segments = append(segments, &details{})
			}
			d = segments[t.Segment-1]
		}
		d.PromptIDs = append(d.PromptIDs, append([]int{}, t.PromptIDs...))
		d.CompletionIDs = append(d.CompletionIDs, append([]int{}, t.CompletionIDs...))
		d.Logprobs = append(d.Logprobs, append([]float64{}, t.Logprobs...))
	}
	if !any {
		return nil
	}
	var all []json.RawMessage
	for _, d := range append(segments, calls...) {
		if d.PromptIDs == nil {
			d.PromptIDs, d.CompletionIDs, d.Logprobs = [][]int{}, [][]int{}, [][]float64{} // a segment in which nothing was done
		}
		data, err := json.Marshal(d)
		if err != nil {
			panic(err) // numbers that came out of JSON
		}
		all = append(all, data)
	}
	return all
}
