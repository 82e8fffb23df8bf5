package model

import (
	"encoding/json"
	"fmt"
	"time"

	openai "github.com/sashabaranov/go-openai"
)

// Reply is what the model said, and what that took. What the server did not
// say is nil.
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

// details are the parts of a reply that go-openai does not keep.
type details struct {
	PromptTokenIDs []int `json:"prompt_token_ids"`
	Choices        []struct {
		TokenIDs []int `json:"token_ids"`
		Logprobs *struct {
			Content []struct {
				Logprob *float64 `json:"logprob"`
				ID      *int     `json:"id"` // llama.cpp, which has no token_ids
			} `json:"content"`
		} `json:"logprobs"`
		Message struct {
			Reasoning string `json:"reasoning"` // vLLM 0.12 and later, for reasoning_content
		} `json:"message"`
	} `json:"choices"`
	Usage *struct {
		Prompt     *int `json:"prompt_tokens"`
		Completion *int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

// read makes a Reply of go-openai's and of the body that it came from.
func read(resp openai.ChatCompletionResponse, body []byte) (Reply, error) {
	if len(resp.Choices) == 0 {
		return Reply{}, errNoChoice
	}
	var d details
	if err := json.Unmarshal(body, &d); err != nil {
		return Reply{}, err
	}
	first := resp.Choices[0]
	r := Reply{
		Content: first.Message.Content, Reasoning: first.Message.ReasoningContent,
		Model: resp.Model, Finish: string(first.FinishReason),
	}
	more := d.Choices[0]
	if r.Reasoning == "" {
		r.Reasoning = more.Message.Reasoning
	}
	if u := d.Usage; u != nil {
		r.PromptTokens, r.CompletionTokens = u.Prompt, u.Completion
		if u.Details != nil {
			r.CachedTokens = u.Details.Cached
		}
	}
	got := Detail{PromptIDs: d.PromptTokenIDs, CompletionIDs: more.TokenIDs}
	if more.Logprobs != nil {
		var ids []int
		for _, t := range more.Logprobs.Content {
			if t.Logprob != nil {
				got.Logprobs = append(got.Logprobs, *t.Logprob)
			}
			if t.ID != nil {
				ids = append(ids, *t.ID)
			}
		}
		n := len(more.Logprobs.Content)
		if len(got.Logprobs) != n {
			got.Logprobs = nil
		}
		if got.CompletionIDs == nil && len(ids) == n {
			got.CompletionIDs = ids
		}
	}
	if got.PromptIDs != nil || got.CompletionIDs != nil || got.Logprobs != nil {
		r.Detail = &got
	}
	return r, nil
}
