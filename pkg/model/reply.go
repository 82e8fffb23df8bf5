package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// Reply is what the model said, and what that took. What the server did not
// say, or what cannot be, is nil.
type Reply struct {
	Content   string
	Reasoning string
	Model     string // as the server calls it
	Finish    string // stop, length, ...

	PromptTokens     *int // with those that were cached
	CompletionTokens *int
	CachedTokens     *int
	Detail           *Detail // nil unless asked for and given

	Tries int
	Took  time.Duration // of the try that succeeded
}

// Detail is what training needs of one reply. Each list is nil if the server
// did not give it.
type Detail struct {
	PromptIDs     []int
	CompletionIDs []int
	Logprobs      []float64 // natural, of each of CompletionIDs
}

// Truncated says that the reply ends where a limit was reached.
func (r Reply) Truncated() bool { return r.Finish == "length" }

// judge says what a server left out that was asked for.
func (c *Client) judge(r Reply) {
	d := r.Detail
	if d == nil {
		d = &Detail{}
	}
	switch {
	case d.CompletionIDs == nil:
		c.notice("the model server ignores return_token_ids: the records have null where token ids should be (vLLM gives them from version 0.10.2 on)")
	case d.PromptIDs == nil:
		c.notice("the model server gives no ids of the prompts' tokens: the records have null there")
	}
	if d.Logprobs == nil {
		c.notice("the model server ignores logprobs: the records have null where they should be")
	}
	if d.Logprobs != nil && d.CompletionIDs != nil && len(d.Logprobs) != len(d.CompletionIDs) {
		c.notice(fmt.Sprintf("the model server gave %d logprobs for %d tokens: such turns cannot be trained on", len(d.Logprobs), len(d.CompletionIDs)))
	}
}

// completion is what is read of an answer. It may be of other types where the
// reply does without.
type completion struct {
	Model          lax[string] `json:"model"`
	PromptTokenIDs lax[[]int]  `json:"prompt_token_ids"`
	Choices        []struct {
		Finish   lax[string] `json:"finish_reason"`
		TokenIDs lax[[]int]  `json:"token_ids"`
		Logprobs lax[struct {
			Content []struct {
				Logprob *float64 `json:"logprob"`
				ID      *int     `json:"id"` // llama.cpp, which has no token_ids
			} `json:"content"`
		}] `json:"logprobs"`
		Message *struct {
			Content          content                `json:"content"`
			ReasoningContent lax[string]            `json:"reasoning_content"`
			Reasoning        lax[string]            `json:"reasoning"` // vLLM 0.12 and later, for reasoning_content
			ToolCalls        lax[[]json.RawMessage] `json:"tool_calls"`
		} `json:"message"`
	} `json:"choices"`
	Usage json.RawMessage `json:"usage"`
}

// content is a message's: a text, or a list of parts of which some are text.
type content string

func (c *content) UnmarshalJSON(data []byte) error {
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(data, (*string)(c)) == nil {
		return nil
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return errors.New("a message's content is neither a text nor a list of texts")
	}
	*c = ""
	for _, p := range parts {
		*c += content(p.Text)
	}
	return nil
}

// lax is a field that may be missing, or of another type than it ought to have:
// is is nothing then.
type lax[T any] struct{ is T }

func (l *lax[T]) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &l.is) != nil {
		var none T
		l.is = none
	}
	return nil
}

// mostTokens is more than any context has, and less than what a sum of many
// could not hold.
const mostTokens = 1 << 40

// tokens is a number of them, or 0 where it is none.
func tokens(n lax[float64]) int {
	if n.is > 0 && n.is <= mostTokens && n.is == math.Trunc(n.is) {
		return int(n.is)
	}
	return 0
}

// usage is what a server says that a reply took. If one of its numbers cannot be
// a number of tokens, none of them is taken.
func usage(raw json.RawMessage) (prompt, completion, cached *int, ok bool) {
	var u struct {
		Prompt     *float64 `json:"prompt_tokens"`
		Completion *float64 `json:"completion_tokens"`
		Details    *struct {
			Cached *float64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	ok = raw == nil || json.Unmarshal(raw, &u) == nil
	number := func(n *float64) *int {
		switch {
		case n == nil:
			return nil
		case *n != 0 && tokens(lax[float64]{*n}) == 0:
			ok = false
		}
		return new(int(*n))
	}
	prompt, completion = number(u.Prompt), number(u.Completion)
	if u.Details != nil {
		cached = number(u.Details.Cached)
	}
	if !ok {
		return nil, nil, nil, false
	}
	return prompt, completion, cached, true
}

// read makes a Reply of an answer.
func (c *Client) read(body []byte) (Reply, error) {
	var all completion
	if err := json.Unmarshal(body, &all); err != nil {
		return Reply{}, err
	}
	if len(all.Choices) == 0 {
		return Reply{}, errNoChoice
	}
	first := all.Choices[0]
	if first.Message == nil {
		return Reply{}, errNothing
	}
	r := Reply{
		Content: string(first.Message.Content), Reasoning: cmp.Or(first.Message.ReasoningContent.is, first.Message.Reasoning.is),
		Model: all.Model.is, Finish: first.Finish.is,
	}
	if r.Content == "" && len(first.Message.ToolCalls.is) > 0 {
		c.notice("the model server takes replies for calls of tools, of which there are none: such replies are empty (vLLM: leave out --tool-call-parser)")
	}
	var ok bool
	if r.PromptTokens, r.CompletionTokens, r.CachedTokens, ok = usage(all.Usage); !ok {
		c.notice("the model server counts tokens as nobody can: such counts are taken for none, and the length of the texts counts")
	}
	got := Detail{PromptIDs: all.PromptTokenIDs.is, CompletionIDs: first.TokenIDs.is}
	var ids []int
	for _, t := range first.Logprobs.is.Content {
		if t.Logprob != nil {
			got.Logprobs = append(got.Logprobs, *t.Logprob)
		}
		if t.ID != nil {
			ids = append(ids, *t.ID)
		}
	}
	n := len(first.Logprobs.is.Content)
	if len(got.Logprobs) != n {
		got.Logprobs = nil
	}
	if got.CompletionIDs == nil && len(ids) == n {
		got.CompletionIDs = ids
	}
	if got.PromptIDs != nil || got.CompletionIDs != nil || got.Logprobs != nil {
		r.Detail = &got
	}
	return r, nil
}
