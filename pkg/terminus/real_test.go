package terminus_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/model"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/bed"
	"fence/test/modelserver"
)

// short makes the replies of a small model short, and each of them one command.
var short = strings.NewReplacer(`{"type":"string"}`, `{"type":"string","maxLength":20}`, `{"type":"number"}`, `{"enum":[0.1,1.0]}`,
	`"type":"array"`, `"type":"array","minItems":1,"maxItems":1`, `{"type":"boolean"}`, `{"const":false}`)

// TestARealModel plays two turns with SmolLM2-135M behind llama.cpp's server.
func TestARealModel(t *testing.T) {
	bed.Require(t, "model")
	socket := filepath.Join(bed.TempDir(t), "s")
	dir := filepath.Join(bed.Dir(), "model")
	ctx, stop := context.WithCancel(t.Context())
	cmd := bed.CommandContext(t, ctx, filepath.Join(dir, "llama-server"), "-m", filepath.Join(dir, "model.gguf"),
		"--host", socket+".sock", "-c", "2048", "-np", "1", "-t", "2", "--metrics", "--alias", "smol")
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		cmd.Wait()
		if t.Failed() {
			t.Log(log.String()[max(0, log.Len()-2000):])
		}
	}()
	zero, seed := 0.0, int64(1)
	m, err := model.New(model.Options{
		Base: "unix:" + socket + ".sock", Details: true, Sampling: model.Sampling{Temperature: &zero, Seed: &seed, MaxTokens: 80},
		Extra: map[string]json.RawMessage{"response_format": json.RawMessage(short.Replace(terminus.ReplyFormat))},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Discover(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if m.Name() != "smol" || m.Limits().Context != 2048 {
		t.Errorf("the server has %q with %+v", m.Name(), m.Limits())
	}
	var turns []trajectory.Turn
	term := &terminal{shows: "total 0\n"}
	end, err := terminus.Run(t.Context(), m, term, terminus.Options{
		Instruction: "Make the file x.", Caps: terminus.Caps{Turns: 2},
		Record: func(turn trajectory.Turn) error { turns = append(turns, turn); return nil },
	})
	if err != nil || end.Stop != "turn_cap" || end.Turns != 2 || len(term.typed) == 0 {
		t.Fatalf("%+v, %v; typed %q", end, err, term.typed)
	}
	t.Logf("%+v; typed %q; %d calls in %s", end, term.typed, len(turns), end.ModelTime)
	for _, turn := range turns {
		if turn.CompletionIDs == nil || len(turn.CompletionIDs) != len(turn.Logprobs) {
			t.Errorf("turn %d (%s): %d ids, %d logprobs, %d tokens", turn.Turn, turn.Kind, len(turn.CompletionIDs), len(turn.Logprobs), *turn.CompletionTokens)
		}
	}
	prompt, predicted := modelserver.Llama{Socket: socket + ".sock"}.Counted(t)
	if got := *end.Tokens.Prompt - *end.Tokens.Cached; got != prompt || *end.Tokens.Completion != predicted {
		t.Errorf("%d uncached and %d new tokens; the server says %d and %d", got, *end.Tokens.Completion, prompt, predicted)
	}
}
