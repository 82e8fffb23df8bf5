package terminus

import (
	"context"

	"fence/pkg/model"
	"fence/pkg/trajectory"
)

// conversation is what a model is sent: its roles alternate, as some chat
// templates demand.
type conversation struct {
	opening string // the first message, which is never dropped
	pairs   []pair
}

// pair is a message to the model and its reply.
type pair struct {
	user, assistant model.Message
	upto            int // tokens of the conversation with this pair
}

func (c conversation) size() int {
	if len(c.pairs) == 0 {
		return 0
	}
	return c.pairs[len(c.pairs)-1].upto
}

// with is the conversation with one more message to the model.
func (c conversation) with(prompt string) []model.Message {
	var all []model.Message
	for _, p := range c.pairs {
		all = append(all, p.user, p.assistant)
	}
	return append(all, model.Message{Role: "user", Content: prompt})
}

// unwind drops the last pairs until no more than so many tokens are left, or
// one pair. What it keeps is a beginning of what was sent before, so that a
// server with a prefix cache has it already.
func (c conversation) unwind(tokens int) conversation {
	for len(c.pairs) > 1 && c.size() > tokens {
		c.pairs = c.pairs[:len(c.pairs)-1]
	}
	return c
}

// estimate is how many tokens a text may be, rather more than fewer: nobody
// but the server can tell.
func estimate(s string) int { return len(s)/3 + 8 }

// answer asks for the reply of a turn and makes it part of the conversation,
// after a hand-over if there is no more room.
func (a *agent) answer(ctx context.Context, t *trajectory.Turn) (model.Reply, error) {
	handedOver := false
	if !a.NoSummarize && len(a.chat.pairs) > 0 && a.full(t.Prompt) {
		if err := a.handOver(ctx, t); err != nil {
			return model.Reply{}, err
		}
		handedOver = true
	}
	reply, err := a.ask(ctx, t, a.chat)
	if model.ClassOf(err) == model.Context && !handedOver && !a.NoSummarize && len(a.chat.pairs) > 0 {
		if err := a.handOver(ctx, t); err != nil {
			return model.Reply{}, err
		}
		reply, err = a.ask(ctx, t, a.chat)
	}
	if err != nil {
		return model.Reply{}, err
	}
	a.chat.pairs = append(a.chat.pairs, a.paired(t.Prompt, reply, a.chat.size()))
	return reply, nil
}

// full says that a prompt would leave too little room for a reply.
func (a *agent) full(prompt string) bool {
	limit := a.model.Limits()
	return limit.Context > 0 && a.chat.size()+estimate(prompt) > limit.Context-a.reserve(limit)
}

func (a *agent) reserve(limit model.Limits) int {
	r := a.Reserve
	if r == 0 {
		r = 8000
	}
	return max(min(r, limit.Context/4), min(limit.Output, limit.Context/2))
}

// paired is a prompt with its reply, and the size of the conversation with
// both.
func (a *agent) paired(prompt string, r model.Reply, before int) pair {
	p := pair{user: model.Message{Role: "user", Content: prompt}, assistant: model.Message{Role: "assistant", Content: r.Content}}
	if a.SendReasoning {
		p.assistant.Reasoning = r.Reasoning
	}
	in, out := tokens(prompt, r, before)
	if p.assistant.Reasoning != r.Reasoning {
		out = estimate(r.Content)
	}
	p.upto = in + out
	return p
}

// tokens are those of a call as the server counted them, or may have done.
func tokens(prompt string, r model.Reply, before int) (in, out int) {
	in, out = before+estimate(prompt), estimate(r.Content+r.Reasoning)
	if r.PromptTokens != nil {
		in = *r.PromptTokens
	}
	if r.CompletionTokens != nil {
		out = *r.CompletionTokens
	}
	return in, out
}

// ask calls the model with a conversation and the turn's prompt, and notes in
// the turn what came of it.
func (a *agent) ask(ctx context.Context, t *trajectory.Turn, c conversation) (model.Reply, error) {
	t.StartedAt, t.Segment = a.Now().UTC(), a.segment
	r, err := a.model.Chat(ctx, c.with(t.Prompt))
	took := a.Now().Sub(t.StartedAt)
	a.end.ModelTime += took
	if err != nil {
		return model.Reply{}, err
	}
	t.ModelSec, t.Tries = took.Seconds(), r.Tries
	t.Reply, t.Reasoning, t.Finish = r.Content, r.Reasoning, r.Finish
	t.PromptTokens, t.CompletionTokens, t.CachedTokens = r.PromptTokens, r.CompletionTokens, r.CachedTokens
	if r.Detail != nil {
		t.PromptIDs, t.CompletionIDs, t.Logprobs = r.Detail.PromptIDs, r.Detail.CompletionIDs, r.Detail.Logprobs
	}
	a.end.Tokens.Add(*t)
	if r.PromptTokens == nil || r.CompletionTokens == nil {
		a.end.Estimated = true
	}
	in, out := tokens(t.Prompt, r, c.size())
	a.in += in
	a.out += out
	return r, nil
}

// handOver replaces the conversation by what three calls make of it: the model
// writes a summary, asks what it does not say as one that sees nothing else,
// and answers that with the conversation before it. The turn's prompt is then
// the answers.
func (a *agent) handOver(ctx context.Context, t *trajectory.Turn) error {
	a.end.Summaries++
	a.Log.Info("the conversation is handed over", "trial", a.Trial, "turn", t.Turn, "tokens", a.chat.size())
	limit := a.model.Limits()
	room := a.chat.size() * 3 / 4
	if limit.Context > 0 {
		room = limit.Context - a.reserve(limit)
	}
	request := summaryRequest(a.Instruction)
	kept := a.chat.unwind(room - estimate(request))
	summary, kept, err := a.call(ctx, trajectory.Summary, request, kept)
	if err != nil {
		return err
	}
	screen, err := a.terminal.Screen(ctx)
	if err != nil {
		return err
	}
	ask := questionsRequest(a.Instruction, summary.assistant.Content, clip(screen, a.most(), 0))
	questions, _, err := a.call(ctx, trajectory.Questions, ask, conversation{})
	if err != nil {
		return err
	}
	request = answersRequest(questions.assistant.Content)
	kept = kept.unwind(room - estimate(request) - estimate(summary.user.Content+summary.assistant.Content))
	kept.pairs = append(kept.pairs[:len(kept.pairs):len(kept.pairs)], summary)
	answers, _, err := a.call(ctx, trajectory.Answers, request, kept)
	if err != nil {
		return err
	}
	questions.user.Content = a.chat.opening + "\n\n" + questions.user.Content
	questions.upto += estimate(a.chat.opening)
	a.chat.pairs = []pair{questions}
	a.segment++
	t.Prompt = continuation(answers.assistant.Content)
	return nil
}

// call is one of a hand-over's. A conversation that does not fit is made
// shorter until it does; what is then left of it is returned.
func (a *agent) call(ctx context.Context, kind, prompt string, c conversation) (pair, conversation, error) {
	for {
		t := trajectory.Turn{Trial: a.Trial, Turn: a.turn, Kind: kind, Prompt: prompt}
		reply, err := a.ask(ctx, &t, c)
		if err == nil {
			if reply.Truncated() {
				a.end.Truncated++
			}
			return a.paired(prompt, reply, c.size()), c, a.record(t, "")
		}
		shorter := c.unwind(c.size() * 3 / 4)
		if model.ClassOf(err) != model.Context || len(shorter.pairs) == len(c.pairs) {
			return pair{}, c, err
		}
		a.Log.Debug("a hand-over is tried with less", "trial", a.Trial, "pairs", len(shorter.pairs))
		c = shorter
	}
}
