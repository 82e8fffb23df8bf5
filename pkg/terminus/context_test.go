package terminus_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fence/pkg/model"
	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/modelserver"
)

func TestHandOver(t *testing.T) {
	const limit = 4000
	long := &terminal{shows: strings.Repeat("line of output\n", 200)} // 750 tokens, as the server counts
	e := &episode{term: long, srv: modelserver.Start(t, modelserver.Within(limit, work))}
	e.run(t, t.Context(), terminus.Options{Caps: terminus.Caps{Turns: 12}}, model.Options{Limits: model.Limits{Context: limit}})
	if e.err != nil || e.end.Stop != "turn_cap" || e.end.Summaries == 0 || e.end.Turns != 12 {
		t.Fatalf("%+v, %v", e.end, e.err)
	}
	var kinds []string
	segment, calls := 1, 0
	for _, turn := range e.turns {
		if turn.Kind != trajectory.Act {
			kinds = append(kinds, turn.Kind)
			calls++
			continue
		}
		if calls > 0 {
			segment++
			n := slices.IndexFunc(e.srv.Requests(), func(r modelserver.Request) bool { return r.Messages[len(r.Messages)-1].Content == turn.Prompt })
			if first := e.srv.Requests()[n].Messages[0].Content; !strings.HasPrefix(first, "You carry out a task") || !strings.Contains(first, "You take over a task") {
				t.Errorf("after a hand-over the conversation begins %.80q", first)
			}
			if turn.Segment != segment || !strings.HasPrefix(turn.Prompt, "These are the other agent's answers:") {
				t.Errorf("turn %d, segment %d begins %.60q", turn.Turn, turn.Segment, turn.Prompt)
			}
			calls = 0
		}
	}
	if n := e.end.Summaries; len(kinds) != 3*n || !slices.Equal(kinds[:3], []string{"summary", "questions", "answers"}) {
		t.Errorf("%d hand-overs: %v", n, kinds)
	}
	for i, r := range e.srv.Requests() {
		if n := modelserver.Tokens(r.Messages); n > limit {
			t.Errorf("request %d has %d tokens, more than the model takes", i, n)
		}
		first := r.Messages[0].Content
		if !strings.Contains(first, "Make the file x.") {
			t.Errorf("request %d has lost the task: %.80q", i, first)
		}
		if !strings.HasPrefix(first, "You carry out a task") && !strings.HasPrefix(first, "You take over a task") {
			t.Errorf("request %d has lost the rules: %.80q", i, first)
		}
	}
}

// A server whose limit nobody knew is believed when it says that it is full.
func TestHandOverWhenTheServerSaysSo(t *testing.T) {
	long := &terminal{shows: strings.Repeat("line of output\n", 200)}
	e := &episode{term: long, srv: modelserver.Start(t, modelserver.Within(4000, work))}
	e.run(t, t.Context(), terminus.Options{Caps: terminus.Caps{Turns: 12}}, model.Options{})
	if e.err != nil || e.end.Stop != "turn_cap" || e.end.Summaries == 0 {
		t.Errorf("%+v, %v", e.end, e.err)
	}

	e = &episode{term: long, srv: modelserver.Start(t, modelserver.Within(4000, work))}
	e.run(t, t.Context(), terminus.Options{NoSummarize: true}, model.Options{})
	if e.err != nil || e.end.Stop != "context" || e.end.Turns < 3 || e.end.Summaries != 0 {
		t.Errorf("without hand-overs: %+v, %v", e.end, e.err)
	}
}

// The question whether it is sure has to be asked again after a hand-over.
func TestAHandOverForgetsThatTheModelWasDone(t *testing.T) {
	say := modelserver.Say
	e := run(t, terminus.Options{}, nil, done, modelserver.Overflow(4000, 5000), say("summary"), say("questions"), say("answers"), done, done)
	if e.err != nil || e.end.Stop != "done" || e.end.Turns != 3 || e.end.Summaries != 1 {
		t.Errorf("%+v, %v", e.end, e.err)
	}
	if !strings.Contains(e.last(6), "Do you want to end here?") {
		t.Errorf("asked %q", e.last(6))
	}
}

func TestATaskThatDoesNotFitAtAll(t *testing.T) {
	e := run(t, terminus.Options{Instruction: strings.Repeat("do ", 10_000)}, nil, modelserver.Within(4000, work))
	if e.err != nil || e.end.Stop != "context" || e.end.Turns != 0 {
		t.Errorf("%+v, %v", e.end, e.err)
	}
	// Nor is there room after a hand-over for what comes then.
	e = run(t, terminus.Options{}, nil, work, modelserver.Overflow(4000, 5000))
	if e.err != nil || e.end.Stop != "context" || e.end.Turns != 1 {
		t.Errorf("%+v, %v", e.end, e.err)
	}
}

func TestTokensAreTheServers(t *testing.T) {
	e := run(t, terminus.Options{}, nil, work, done, done)
	in, out := 0, 0
	for _, r := range e.srv.Requests() {
		in += modelserver.Tokens(r.Messages)
	}
	for _, turn := range e.turns {
		out += (len(turn.Reply) + 3) / 4
		if len(turn.CompletionIDs) != *turn.CompletionTokens || len(turn.Logprobs) != len(turn.CompletionIDs) || len(turn.PromptIDs) != *turn.PromptTokens {
			t.Errorf("turn %d has %d ids for %d tokens", turn.Turn, len(turn.CompletionIDs), *turn.CompletionTokens)
		}
	}
	if got := e.end.Tokens; *got.Prompt != in || *got.Completion != out || *got.Cached == 0 || e.end.Estimated {
		t.Errorf("%d in, %d out; the server counted %d and %d", *got.Prompt, *got.Completion, in, out)
	}
}

func TestACapOnTokensThatNobodyCounts(t *testing.T) {
	uncounted := modelserver.Raw(fmt.Sprintf(`{"choices":[{"message":{"content":%q},"finish_reason":"stop"}]}`, modelserver.Turn("", false, "ls\n")))
	e := run(t, terminus.Options{Caps: terminus.Caps{TotalTokens: 3000}}, nil, uncounted)
	if e.end.Stop != "token_cap" || !e.end.Estimated || e.end.Tokens.Prompt != nil {
		t.Errorf("%+v, %v", e.end, e.err)
	}
}

func TestASmallModelIsShownLess(t *testing.T) {
	e := &episode{srv: modelserver.Start(t, work, done), term: &terminal{shows: strings.Repeat("x", 5000), omitted: 700}}
	e.run(t, t.Context(), terminus.Options{}, model.Options{Limits: model.Limits{Context: 4000}})
	if got := e.last(1); !strings.Contains(got, "only 3000 bytes are shown: 2700 bytes in between") || e.end.Stop != "done" {
		t.Errorf("shown %d bytes; %+v, %v", len(got), e.end, e.err)
	}
}

// A reply may have any number of mistakes, and each may quote it: what the model
// is told of them takes no room from what the terminal shows.
func TestManyMistakesLeaveRoom(t *testing.T) {
	for says, commands := range map[string]string{
		"and 292 more\n\nNew terminal output:\n$ ": strings.Repeat(`{"keystrokes":"l","duration":1},`, 300) + `{"keystrokes":"ls\n","duration":1}`,
		" ...\n\nNew terminal output:\n$ ":         fmt.Sprintf(`{"keystrokes":"ls\n","duration":1,%q:1}`, strings.Repeat("x", 20_000)),
	} {
		many := modelserver.Say(`{"analysis":"a","plan":"p","commands":[` + commands + `]}`)
		e := &episode{srv: modelserver.Start(t, many, done)}
		e.run(t, t.Context(), terminus.Options{}, model.Options{Limits: model.Limits{Context: 12_000}})
		if got := e.last(1); !strings.Contains(got, says) || e.end.Summaries != 0 {
			t.Errorf("%d hand-overs, shown %.3000q", e.end.Summaries, got)
		}
	}
}
