package model

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzAnswer is any answer of a server's: what is read of it can be so, and has
// no key in it.
func FuzzAnswer(f *testing.F) {
	const secret = "sk-123456"
	for _, s := range []string{
		`{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":1,"completion_tokens":2.0}}`,
		`{"choices":[{"message":{"content":[{"text":"sk-123456"}],"reasoning":"\u0073k-123456"},"logprobs":{"content":[{"id":1,"logprob":-1}]}}],"usage":{"prompt_tokens":-1e300}}`,
		`{"data":[{"id":"sk-123456","max_model_len":4096.0,"meta":{"n_ctx":"x"}}]}`, `{"sk-123456":[null,1e400]}`, `Bearer sk-123456 {`, `null`, ``,
	} {
		f.Add([]byte(s))
	}
	key, err := newKey(secret, "a test")
	if err != nil {
		f.Fatal(err)
	}
	c, err := New(Options{Base: "http://h"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		clean := key.hideIn(body)
		var any, list any
		if bytes.Contains(clean, []byte(secret)) || json.Unmarshal(body, &any) == nil && json.Unmarshal(clean, &list) != nil {
			t.Errorf("%q became %q", body, clean)
		}
		if spelled, _ := json.Marshal(list); bytes.Contains(spelled, []byte(secret)) {
			t.Errorf("%q became %q", body, clean)
		}
		r, err := c.read(clean)
		if err != nil {
			return
		}
		for _, n := range []*int{r.PromptTokens, r.CompletionTokens, r.CachedTokens} {
			if n != nil && (*n < 0 || *n > mostTokens) {
				t.Errorf("%q counts %d", body, *n)
			}
		}
		if d := r.Detail; d != nil && d.PromptIDs == nil && d.CompletionIDs == nil && d.Logprobs == nil {
			t.Errorf("%q has details of nothing", body)
		}
	})
}
