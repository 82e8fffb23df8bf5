package terminus

import (
	"context"
	"time"

	"fence/pkg/trajectory"
)

// Again types what a model typed, with the waits that it asked for. Before each
// turn it waits as long as the model took then, but no longer than pause, if
// that is not 0: what runs in the terminal goes on meanwhile. Limit is as
// Caps.Time. It returns how it ended and how many turns were typed; the Stop
// of one that came to its end is "done", however the model was ended.
func Again(ctx context.Context, t Terminal, turns []trajectory.Turn, pause, limit time.Duration) (end End, err error) {
	end.Stop, err = bounded(ctx, limit, func(ctx context.Context) (string, error) {
		var thought time.Duration
		for _, turn := range turns {
			thought += seconds(turn.ModelSec)
			if turn.Kind != trajectory.Act { // a hand-over, before the turn that it made room for
				continue
			}
			if pause > 0 {
				thought = min(thought, pause)
			}
			if err := t.Send(ctx, "", thought); err != nil {
				return "", err
			}
			thought = 0
			end.Turns++
			for _, c := range turn.Commands {
				if err := t.Send(ctx, c.Keystrokes, seconds(c.Duration)); err != nil {
					return "", err
				}
			}
			if _, err := t.Output(ctx); err != nil { // what was looked at is let go
				return "", err
			}
		}
		return "done", nil
	})
	return end, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
