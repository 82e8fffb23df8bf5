// Package terminus lets a model work in a terminal, by the JSON protocol of
// Harbor's agent Terminus-2, and stops it where it is to be stopped. It knows
// neither the fence nor the container: the terminal is an interface.
// docs/terminus.md has the protocol and what differs from Terminus-2.
package terminus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"fence/pkg/model"
	"fence/pkg/trajectory"
)

// Version of the agent, for records. It changes when a model would notice.
const Version = "1"

// Model answers a conversation. *model.Client is one.
type Model interface {
	Chat(ctx context.Context, messages []model.Message) (model.Reply, error)
	Limits() model.Limits
}

// Terminal is where the model types. An error that is ErrGone says that the
// shell in it has ended; any other is a fault.
type Terminal interface {
	// Send types keys (the name of a key, or text; nothing if it is "") and
	// returns after wait, or when the context ends.
	Send(ctx context.Context, keys string, wait time.Duration) error
	// Output is what came since the last call.
	Output(ctx context.Context) (Output, error)
	// Screen is what is to be seen now.
	Screen(ctx context.Context) (string, error)
}

// Output is what a terminal has to show.
type Output struct {
	Text string
	// Omitted is how many bytes of it are missing, somewhere in its middle: more
	// than MaxOutput from either end.
	Omitted int
	// Screen says that Text is the screen as it is now, because what is new
	// could not be told from what was there.
	Screen bool
	// Notes are about what was typed since the last call, for the model.
	Notes []string
}

// ErrGone is what a terminal whose shell has ended answers.
var ErrGone = errors.New("the terminal has ended")

// Caps end an agent early; 0 is no cap.
type Caps struct {
	Turns        int
	Time         time.Duration
	OutputTokens int // of all replies
	TotalTokens  int // of all prompts and replies
}

// Options say what is to be done, and how much it may cost.
type Options struct {
	Trial       string // for the records
	Instruction string
	Caps        Caps

	NoSummarize   bool // stop where the context is full
	Reserve       int  // tokens that are kept free for a turn; 0 is 8,000, and at most a quarter of the context
	SendReasoning bool // a reply's reasoning goes back to the model

	Record func(trajectory.Turn) error // every call; nil for nowhere
	Log    *slog.Logger                // nil discards
	Now    func() time.Time            // nil is time.Now
}

// End is how an agent ended, and what it took.
type End struct {
	Stop    string // one of result.Stops
	Opening string // the first message to the model, "" if there was none
	Turns   int    // replies to what the terminal showed
	Tokens  trajectory.Tokens
	// Estimated says that the server did not count, so that the caps on tokens
	// went by the length of texts.
	Estimated bool

	Truncated int // replies that were cut off
	Unread    int // replies that could not be read
	Summaries int // hand-overs
	MetFence  int // turns whose output has words of a closed door

	ModelTime, TerminalTime time.Duration
}

// ErrTimeCap is the cause of a context whose end is the agent's own, as that of
// Caps.Time is: no fault, but the stop time_cap. Time that went to a model's
// server that failed, or never answered, is a fault of the server's.
var ErrTimeCap = errors.New("the agent's time is over")

type agent struct {
	Options
	model    Model
	terminal Terminal
	chat     conversation
	end      End
	turn     int
	segment  int
	in, out  int // tokens so far, estimated where nobody counted
}

// Run lets the model work until it has said twice that it is done, or is
// stopped. An error is a fault: of the model's server (a *model.Error), the
// terminal, the record, or the context's own end; Stop is then "error".
func Run(ctx context.Context, m Model, t Terminal, o Options) (End, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Record == nil {
		o.Record = func(trajectory.Turn) error { return nil }
	}
	a := &agent{Options: o, model: m, terminal: t, segment: 1}
	var err error
	a.end.Stop, err = bounded(ctx, o.Caps.Time, a.work)
	if a.end.Stop == "time_cap" && a.end.Turns+a.end.Summaries == 0 {
		a.end.Stop, err = "error", &model.Error{Class: model.Timeout, Message: "no reply came in all of the agent's time", Hint: "is the model's server overloaded? fewer at once (-n), or a longer --time-cap"}
	}
	return a.end, err
}

// bounded lets somebody work until a limit, 0 for none, and says how that
// ended: what is an end like others is no error.
func bounded(ctx context.Context, limit time.Duration, work func(context.Context) (string, error)) (stop string, err error) {
	inner := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeoutCause(ctx, limit, ErrTimeCap)
		defer cancel()
	}
	stop, err = work(inner)
	switch {
	case err == nil:
	case context.Cause(inner) == ErrTimeCap && model.ClassOf(err) == "":
		stop, err = "time_cap", nil
	case context.Cause(inner) == ErrTimeCap: // it went to a server that failed
		stop = "error"
	case ctx.Err() != nil:
		stop, err = "error", fmt.Errorf("the agent was stopped: %w", context.Cause(ctx))
	case errors.Is(err, ErrGone):
		stop, err = "session_lost", nil
	case model.ClassOf(err) == model.Context:
		stop, err = "context", nil
	default:
		stop = "error"
	}
	return stop, err
}

// work takes turns until one ends the agent.
func (a *agent) work(ctx context.Context) (string, error) {
	seen, err := a.terminal.Output(ctx)
	if err != nil {
		return "", err
	}
	prompt := opening(a.Instruction, a.shown(seen))
	a.chat.opening, a.end.Opening = prompt, prompt
	for pending := false; ; {
		a.turn++
		t := trajectory.Turn{Trial: a.Trial, Turn: a.turn, Kind: trajectory.Act, Prompt: prompt}
		reply, err := a.answer(ctx, &t)
		if err != nil {
			return "", err
		}
		if t.Prompt != prompt {
			pending = false // a hand-over took the place of the question
		}
		a.end.Turns++
		p := a.understand(&t, reply)
		stop, next := "", ""
		switch {
		case reply.Truncated():
			next = cutShort(a.model.Limits().Output, p)
		case p.Error != "":
			next = broken(p)
		default:
			out, err := a.carryOut(ctx, &t, p.Commands)
			if err != nil {
				if failed := a.record(t, ended(ctx, err)); failed != nil {
					return "", failed
				}
				return "", err
			}
			switch {
			case p.Complete && pending:
				stop = "done"
			case p.Complete:
				next = confirm(out)
			default:
				next = warned(p.Warnings, out)
			}
			pending = p.Complete
		}
		if stop == "" {
			stop = a.capped()
		}
		if err := a.record(t, stop); err != nil {
			return "", err
		}
		if stop != "" {
			return stop, nil
		}
		prompt = next
	}
}

// ended is how a turn ended that the terminal broke off.
func ended(ctx context.Context, err error) string {
	switch {
	case context.Cause(ctx) == ErrTimeCap:
		return "time_cap"
	case errors.Is(err, ErrGone):
		return "session_lost"
	}
	return "error"
}

// understand reads a reply, and notes in the turn what of it is to be done.
func (a *agent) understand(t *trajectory.Turn, reply model.Reply) Parsed {
	p := Parse(reply.Content)
	t.Analysis, t.Plan, t.TaskComplete, t.Warnings = p.Analysis, p.Plan, p.Complete, p.Warnings
	switch {
	case reply.Truncated():
		a.end.Truncated++
		t.Error, t.TaskComplete = "the reply was cut off", false
	case p.Error != "":
		a.end.Unread++
		t.Error = p.Error
	}
	return p
}

// carryOut types the commands, and is what the terminal shows then.
func (a *agent) carryOut(ctx context.Context, t *trajectory.Turn, commands []Command) (string, error) {
	began := a.Now()
	defer func() {
		took := a.Now().Sub(began)
		t.TerminalSec = took.Seconds()
		a.end.TerminalTime += took
	}()
	for _, c := range commands {
		t.Commands = append(t.Commands, trajectory.Command{Keystrokes: c.Keys, Duration: c.Wait.Seconds()})
		if err := a.terminal.Send(ctx, c.Keys, c.Wait); err != nil {
			return "", err
		}
	}
	out, err := a.terminal.Output(ctx)
	if err != nil {
		return "", err
	}
	t.Output = a.shown(out)
	if len(commands) > 0 && !out.Screen {
		t.Fence = metFence(out.Text)
	}
	if len(t.Fence) > 0 {
		a.end.MetFence++
	}
	return t.Output, nil
}

// shown is what the model is shown.
func (a *agent) shown(o Output) string {
	head := "New terminal output:\n"
	if o.Screen {
		head = "Current terminal screen:\n"
	}
	text := head + clip(o.Text, a.most(), o.Omitted)
	if len(o.Notes) > 0 {
		text = "NOTE: " + list(o.Notes) + "\n\n" + text
	}
	return text
}

// most is how many bytes of the terminal are shown at once: no more than a
// quarter of a small model's context, at three bytes a token.
func (a *agent) most() int {
	if n := a.model.Limits().Context; n > 0 {
		return min(MaxOutput, n*3/4)
	}
	return MaxOutput
}

// capped is why there is no next turn, or "".
func (a *agent) capped() string {
	c := a.Caps
	switch {
	case c.OutputTokens > 0 && a.out >= c.OutputTokens, c.TotalTokens > 0 && a.in+a.out >= c.TotalTokens:
		return "token_cap"
	case c.Turns > 0 && a.turn >= c.Turns:
		return "turn_cap"
	}
	return ""
}

func (a *agent) record(t trajectory.Turn, stop string) error {
	t.Stop = stop
	if err := a.Record(t); err != nil {
		return fmt.Errorf("recording turn %d: %w", t.Turn, err)
	}
	return nil
}
