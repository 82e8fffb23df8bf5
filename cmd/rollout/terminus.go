package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/model"
	"fence/pkg/result"
	"fence/pkg/terminal"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/pkg/trial"
)

// modelFlags are those of the agent that is a model.
func modelFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "model", Usage: "`NAME` of the model, as its server knows it", DefaultText: "the only one that the server has"},
		&urfave.StringFlag{Name: "api-base", Usage: "the model's server: `URL` (http://HOST:PORT/v1), or unix:PATH"},
		&urfave.StringFlag{Name: "api-key-file", Usage: "the server's key is in `FILE`"},
		&urfave.StringFlag{Name: "api-key-env", Usage: "the server's key is in the variable `NAME`"},
		&urfave.DurationFlag{Name: "api-wait", Usage: "wait for a server that is not there yet or is gone, for `TIME`; 0 is not at all", Value: 10 * time.Minute},
		&urfave.IntFlag{Name: "max-turns", Usage: "end the agent after `N` replies; 0 is no cap", Value: 30},
		&urfave.DurationFlag{Name: "time-cap", Usage: "end the agent after `TIME`; a task's own time counts where it is less; 0 is no cap", Value: 30 * time.Minute},
		&urfave.IntFlag{Name: "max-output-tokens", Usage: "at most `N` tokens in a reply", DefaultText: "the server's"},
		&urfave.IntFlag{Name: "output-token-cap", Usage: "end the agent after `N` tokens of replies", DefaultText: "none"},
		&urfave.IntFlag{Name: "total-token-cap", Usage: "end the agent after `N` tokens of prompts and replies", DefaultText: "none"},
		&urfave.IntFlag{Name: "context", Usage: "the model has room for `N` tokens", DefaultText: "what the server says"},
		&urfave.BoolFlag{Name: "no-summarize", Usage: "end the agent when the context is full, instead of going on from a summary"},
		&urfave.Float64Flag{Name: "temperature", Usage: "`T` of the sampling", DefaultText: "the server's"},
		&urfave.Float64Flag{Name: "top-p", Usage: "`P` of the sampling", DefaultText: "the server's"},
		&urfave.Int64Flag{Name: "model-seed", Usage: "`S` of the sampling", DefaultText: "the server's"},
		&urfave.StringFlag{Name: "reasoning-effort", Usage: "`WORD` for models that reason", DefaultText: "the server's"},
		&urfave.BoolFlag{Name: "send-reasoning", Usage: "send the model what it reasoned before"},
		&urfave.StringSliceFlag{Name: "body", Usage: "`FIELD=JSON`: another field of each request"},
		&urfave.BoolFlag{Name: "token-ids", Usage: "ask for token ids and log-probabilities, for training"},
		&urfave.StringFlag{Name: "tmux", Usage: "keep the terminal with `FILE`", DefaultText: "the tmux on PATH"},
		&urfave.StringFlag{Name: "validated", Usage: "only tasks that 'rollout validate --out DIR' found fit: `DIR`"},
	}
}

// modelSettings are those flags of the model's that change what comes of a trial.
var modelSettings = []string{
	"max-turns", "time-cap", "max-output-tokens", "output-token-cap", "total-token-cap", "context", "no-summarize",
	"temperature", "top-p", "model-seed", "reasoning-effort", "send-reasoning", "token-ids",
}

// desk is where terminals are made for the agents of trials.
type desk struct {
	fence, tmux string
	scratch     string // folder for terminals
}

// terminusAgent is a model in a terminal.
type terminusAgent struct {
	desk
	client  *model.Client
	options terminus.Options // but what is to be done
	trial   string
}

// checkModel says what of a model's flags cannot be, before anything is made.
func checkModel(c *urfave.Context) error {
	base := strings.TrimRight(c.String("api-base"), "/")
	if base == "" {
		return cli.Usagef("--api-base http://HOST:PORT/v1, or unix:PATH", "no server of a model is named")
	}
	if !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") && !strings.HasPrefix(base, "unix:") {
		return cli.Usagef("--api-base http://HOST:PORT/v1, or unix:PATH", "--api-base: %q is no address of a server", base)
	}
	for _, end := range []string{"/chat/completions", "/completions", "/models", "/responses"} {
		if less, is := strings.CutSuffix(base, end); is {
			return cli.Usagef("--api-base "+less, "--api-base: %s is the address of one service, and what stands there gets /chat/completions added", base)
		}
	}
	for _, flag := range []string{"max-turns", "max-output-tokens", "output-token-cap", "total-token-cap", "context"} {
		if c.Int(flag) < 0 {
			return cli.Usagef("", "--%s: %d is less than none", flag, c.Int(flag))
		}
	}
	for _, flag := range []string{"time-cap", "api-wait"} {
		if c.Duration(flag) < 0 {
			return cli.Usagef("--"+flag+" 30m", "--%s: %s is less than none", flag, c.Duration(flag))
		}
	}
	return nil
}

// newTerminus reads the flags, and finds the server.
func newTerminus(ctx context.Context, c *urfave.Context, j *setup) (*terminusAgent, error) {
	a := &terminusAgent{options: terminus.Options{
		Caps:        terminus.Caps{Turns: c.Int("max-turns"), Time: c.Duration("time-cap"), OutputTokens: c.Int("output-token-cap"), TotalTokens: c.Int("total-token-cap")},
		NoSummarize: c.Bool("no-summarize"), SendReasoning: c.Bool("send-reasoning"),
		Log: slog.New(notices{}),
	}}
	var err error
	if a.desk, err = newDesk(c, j); err != nil {
		return nil, err
	}
	o := model.Options{
		Base: c.String("api-base"), Name: c.String("model"), Details: c.Bool("token-ids"), Patience: c.Duration("api-wait"), Log: a.options.Log,
		Limits:   model.Limits{Context: c.Int("context"), Output: c.Int("max-output-tokens")},
		Sampling: model.Sampling{MaxTokens: c.Int("max-output-tokens"), ReasoningEffort: c.String("reasoning-effort")},
		Extra:    map[string]json.RawMessage{},
	}
	if v := c.Float64("temperature"); c.IsSet("temperature") {
		o.Sampling.Temperature = &v
	}
	if v := c.Float64("top-p"); c.IsSet("top-p") {
		o.Sampling.TopP = &v
	}
	if v := c.Int64("model-seed"); c.IsSet("model-seed") {
		o.Sampling.Seed = &v
	}
	for _, text := range c.StringSlice("body") {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" || !json.Valid([]byte(value)) {
			return nil, cli.Usagef(`--body 'response_format={"type":"json_object"}'`, "--body: %q is not FIELD=JSON", text)
		}
		o.Extra[name] = json.RawMessage(value)
	}
	if o.Key, err = key(c); err != nil {
		return nil, err
	}
	if a.client, err = model.New(o); err != nil {
		return nil, cli.Usagef("", "%w", err)
	}
	if err := a.client.Discover(ctx, o.Patience); err != nil {
		var said *model.Error
		switch {
		case ctx.Err() != nil:
			return nil, &cli.Error{Code: cli.Unknown, Err: errors.New("stopped while the model's server was asked; nothing was run")}
		case errors.As(err, &said):
			return nil, cli.Usagef(cmp.Or(said.Hint, "is it running? --api-base says where"), "%w", err)
		}
		return nil, cli.Usagef("", "%w", err)
	}
	return a, nil
}

func key(c *urfave.Context) (model.Key, error) {
	file, name := c.String("api-key-file"), c.String("api-key-env")
	var key model.Key
	var err error
	switch {
	case file != "" && name != "":
		return key, cli.Usagef("", "--api-key-file and --api-key-env are both given")
	case file != "":
		key, err = model.KeyFile(file)
	case name != "":
		key, err = model.KeyEnv(name)
	}
	if err != nil {
		return key, cli.Usagef("", "%w", err)
	}
	if st, err := os.Stat(file); err == nil && st.Mode()&0o004 != 0 {
		fmt.Fprintf(os.Stderr, "rollout: warning: the mode of %s lets every user read the key: chmod 600\n", cli.Printable(file))
	}
	return key, nil
}

// newDesk looks for a tmux that can be used.
func newDesk(c *urfave.Context, j *setup) (desk, error) {
	const hint = "install tmux or load a module that has it; it has to be on this node, not in the images"
	at, err := exec.LookPath(cmp.Or(c.String("tmux"), "tmux"))
	if err == nil {
		at, err = filepath.Abs(at)
	}
	if err != nil {
		return desk{}, cli.Usagef(hint, "the terminal of a model is kept by tmux, and there is none: %w", err)
	}
	if err := terminal.Find(c.Context, at); err != nil {
		return desk{}, cli.Usagef(hint, "%w", err)
	}
	return desk{j.options.Box.Fence, at, j.scratch.Path}, nil
}

func (a *terminusAgent) of(trial string) trial.Agent {
	one := *a
	one.trial = trial
	return &one
}

func (a *terminusAgent) Info() result.AgentInfo {
	return result.AgentInfo{Name: "terminus", Version: terminus.Version, ModelInfo: &result.ModelInfo{Name: a.client.Name()}}
}

func (a *terminusAgent) Scripted() bool { return false }

// recordingMost is how much of what a terminal prints is recorded.
const recordingMost = 64 << 20

func (a *terminusAgent) Run(ctx context.Context, e trial.Env) (result.AgentEnd, error) {
	return a.sit(ctx, e, a.trial, func(t *terminal.Terminal) (result.AgentEnd, error) {
		o := a.options
		o.Trial, o.Instruction, o.Caps.Time = a.trial, e.Instruction, sooner(o.Caps.Time, e.Timeout)
		end, used, err := terminus.Play(ctx, a.client, t, o, e.Dir, a.trial, a.client.Name())
		*e.Used = used
		if f, ok := terminus.Fault(err); ok {
			err = &trial.Fault{Fault: f}
		}
		return result.AgentEnd{Stop: end.Stop, Turns: end.Turns}, err
	})
}

// sit opens a terminal that is recorded, and lets somebody work in it.
func (d desk) sit(ctx context.Context, e trial.Env, title string, work func(*terminal.Terminal) (result.AgentEnd, error)) (end result.AgentEnd, err error) {
	t, closed, err := d.open(ctx, e, title)
	if err == nil {
		defer closed()
		if end, err = work(t); err == nil {
			return end, nil
		}
	}
	end.Stop = "error"
	var broken *terminal.Error
	switch {
	case errors.Is(err, terminus.ErrGone): // before the first turn
		return result.AgentEnd{Stop: "session_lost"}, nil
	case errors.As(err, &broken):
		err = trial.Faultf("agent", broken.Class, broken.Cause, broken.Hint, "%v", err)
	}
	return end, err
}

// open opens a terminal; closed is called when the agent ends.
func (d desk) open(ctx context.Context, e trial.Env, title string) (t *terminal.Terminal, closed func(), err error) {
	f, err := os.Create(filepath.Join(e.Dir, "recording.cast"))
	if err != nil {
		return nil, nil, err
	}
	recording, err := trajectory.NewCast(f, terminal.Columns, terminal.Rows, title, recordingMost, time.Now)
	if err == nil {
		var own string
		if own, err = os.MkdirTemp(d.scratch, "terminal-"); err == nil {
			t, err = terminal.Start(ctx, terminal.Options{Run: e.Box.Run, Fence: d.fence, Tmux: d.tmux, Dir: own, Record: recording})
		}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return t, func() {
		if err := errors.Join(t.Close(), recording.Close(), f.Close()); err != nil {
			e.Log("warning: the terminal: %v", err)
		}
	}, nil
}

// replayer types what a model typed in an earlier trial.
type replayer struct {
	desk
	then, now    string // the folders of that trial and of this one
	pause, limit time.Duration
}

func (r *replayer) Info() result.AgentInfo {
	return result.AgentInfo{Name: "replay", Version: terminus.Version}
}

func (r *replayer) Scripted() bool { return false }

func (r *replayer) Run(ctx context.Context, e trial.Env) (result.AgentEnd, error) {
	var turns []trajectory.Turn
	part, err := filepath.Rel(r.now, e.Dir) // of a task with steps, one's
	if err == nil {
		turns, err = terminus.ReadTurns(filepath.Join(r.then, part, terminus.TurnsFile))
	}
	if err != nil {
		return result.AgentEnd{}, trial.Faultf("agent", "agent_error", "unknown", "", "what was typed then is not known: %v", err)
	}
	return r.sit(ctx, e, filepath.Base(r.then), func(t *terminal.Terminal) (result.AgentEnd, error) {
		end, err := terminus.Again(ctx, t, turns, r.pause, sooner(r.limit, e.Timeout))
		return result.AgentEnd{Stop: end.Stop, Turns: end.Turns}, err
	})
}

// sooner is the lesser of two times, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// say is what a person should know of the model and its server.
func (a *terminusAgent) say() {
	limits := a.client.Limits()
	room := "an unknown context"
	if limits.Context > 0 {
		room = fmt.Sprintf("a context of %d tokens", limits.Context)
	}
	fmt.Fprintf(os.Stderr, "rollout: model %s, %s\n", cli.Printable(a.client.Name()), room)
}

// notices are what the model's packages log, as lines for people.
type notices struct{ attrs []slog.Attr }

func (notices) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (n notices) WithAttrs(a []slog.Attr) slog.Handler       { return notices{slices.Concat(n.attrs, a)} }
func (n notices) WithGroup(string) slog.Handler              { return n }

func (n notices) Handle(_ context.Context, r slog.Record) error {
	line := "rollout: " + r.Message
	add := func(a slog.Attr) bool {
		line += fmt.Sprintf(", %s %s", a.Key, a.Value)
		return true
	}
	for _, a := range n.attrs {
		add(a)
	}
	r.Attrs(add)
	_, err := fmt.Fprintln(os.Stderr, cli.Printable(line))
	return err
}
