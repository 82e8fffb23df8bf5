package terminus_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"fence/pkg/model"
	"fence/pkg/result"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/modelserver"
)

// script is a model each of whose answers follows from a byte.
type script struct {
	t     *testing.T
	bytes []byte
	limit int
}

func (s *script) Limits() model.Limits { return model.Limits{Context: s.limit} }

func (s *script) Chat(_ context.Context, messages []model.Message) (model.Reply, error) {
	for i, m := range messages {
		if m.Role != []string{"user", "assistant"}[i%2] {
			s.t.Fatalf("message %d is from %s", i, m.Role)
		}
	}
	if len(s.bytes) == 0 {
		return model.Reply{}, &model.Error{Class: model.ServerGone}
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	r := model.Reply{Finish: "stop", Tries: 1}
	switch b % 8 {
	case 0:
		r.Content = modelserver.Turn("a", false, "ls\n", "C-c")
	case 1:
		r.Content = modelserver.Turn("a", true, "pwd\n")
	case 2:
		r.Content = modelserver.Turn("a", true)
	case 3:
		r.Content = "{"
	case 4:
		r.Content, r.Finish = modelserver.Turn("a", true, "rm x\n"), "length"
	case 5:
		return model.Reply{}, &model.Error{Class: model.Context}
	case 6:
		r.Content = modelserver.Turn("a", false, "exit\n")
	case 7:
		n := int(b) * 100
		r.PromptTokens, r.CompletionTokens = &n, &n
		r.Detail = &model.Detail{CompletionIDs: []int{int(b)}}
	}
	return r, nil
}

// FuzzEpisode checks what holds however a model answers: what is recorded is
// what was typed, and a record can be made of it.
func FuzzEpisode(f *testing.F) {
	f.Add([]byte{0, 1, 2}, 0)
	f.Add([]byte{0, 0, 5, 0, 0, 0, 2, 2}, 4000)
	f.Add([]byte{255, 7, 5, 5, 3, 5, 4, 6}, 2000)
	f.Fuzz(func(t *testing.T, bytes []byte, limit int) {
		m := &script{t, bytes, limit % 100_000}
		term := &terminal{}
		term.send = func(_ context.Context, keys string) error {
			if keys == "exit\n" && len(m.bytes)%2 == 0 {
				return terminus.ErrGone
			}
			return nil
		}
		var turns []trajectory.Turn
		end, err := terminus.Run(t.Context(), m, term, terminus.Options{
			Instruction: "x", Caps: terminus.Caps{Turns: 20, TotalTokens: 100_000},
			Record: func(turn trajectory.Turn) error { turns = append(turns, turn); return nil },
		})
		if !slices.Contains(result.Stops, end.Stop) || (err != nil) != (end.Stop == "error") {
			t.Fatalf("stop %q, error %v", end.Stop, err)
		}
		if err != nil && !errors.As(err, new(*model.Error)) {
			t.Errorf("a fault of nobody's: %v", err)
		}
		var typed []string
		acts := 0
		for _, turn := range turns {
			for _, c := range turn.Commands {
				typed = append(typed, c.Keystrokes)
			}
			if turn.Error != "" && (turn.Commands != nil || turn.TaskComplete) {
				t.Errorf("turn %d was not understood, and done: %+v", turn.Turn, turn)
			}
			if turn.Kind == trajectory.Act {
				acts++
			}
		}
		if !slices.Equal(typed, term.typed) || acts != end.Turns {
			t.Errorf("typed %q, recorded %q; %d turns, recorded %d", term.typed, typed, end.Turns, acts)
		}
		trajectory.Details(turns)
		for i, s := range trajectory.Build("s", trajectory.Agent{}, end.Opening, turns).Steps {
			if s.StepID != i+1 {
				t.Errorf("step %d has the id %d", i+1, s.StepID)
			}
		}
	})
}
