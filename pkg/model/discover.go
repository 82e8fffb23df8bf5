package model

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"fence/pkg/internal/text"
)

// listed is one model of /v1/models, with what each server adds to OpenAI's
// fields.
type listed struct {
	ID            string `json:"id"`
	Parent        string `json:"parent"`                // vLLM: the model that a LoRA adapter is for, which has its limits
	MaxModelLen   int    `json:"max_model_len"`         // vLLM, SGLang
	Loaded        int    `json:"loaded_context_length"` // LM Studio
	ContextLength int    `json:"context_length"`        // OpenRouter
	Meta          struct {
		Context int `json:"n_ctx"`       // llama.cpp in 2026: of one conversation
		Trained int `json:"n_ctx_train"` // llama.cpp: what the model could, not what the server gives
	} `json:"meta"`
}

func (l listed) context() int {
	return cmp.Or(l.MaxModelLen, l.Loaded, l.ContextLength, l.Meta.Context)
}

// Discover asks the server which models it has, and sets the name and the
// limits that were not given. A server that is not there is waited for as
// long as patience says. A server without a list is no error: what is unknown
// stays unknown.
func (c *Client) Discover(ctx context.Context, patience time.Duration) error {
	var list struct {
		Data []listed `json:"data"`
	}
	_, err := c.retry(ctx, patience, func(ctx context.Context, x *exchange) error {
		if _, err := c.api.ListModels(ctx); err != nil {
			return err
		}
		return json.Unmarshal(x.body, &list)
	})
	name := c.Name()
	if ClassOf(err) == Refused && name != "" {
		c.notice("the model server has no list of models: its limits are not known unless they are given")
		return nil
	} else if err != nil {
		return err
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	if name == "" && len(ids) == 1 {
		name = ids[0]
	}
	if i := slices.Index(ids, name); i >= 0 {
		m := list.Data[i]
		n := m.context()
		if base := slices.Index(ids, m.Parent); n == 0 && base >= 0 {
			n = list.Data[base].context()
		}
		if n == 0 && m.Meta.Trained > 0 {
			n = min(cmp.Or(c.slot(ctx), m.Meta.Trained), m.Meta.Trained)
		}
		c.mu.Lock()
		c.o.Name = name
		c.limits.Context = cmp.Or(c.limits.Context, n)
		c.mu.Unlock()
		return nil
	}
	have := "none"
	if len(ids) > 0 {
		have = strings.Join(ids[:min(len(ids), 10)], ", ")
	}
	return &Error{Class: Refused, Tries: 1,
		Message: text.Printable(fmt.Sprintf("the server has no model %q; it has %s", name, have)), Hint: "give one of them to --model"}
}

// slot is the context that llama.cpp's server gives to one conversation, which
// it tells beside the API, or 0.
func (c *Client) slot(ctx context.Context) int {
	x := &exchange{}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, exchangeKey{}, x), http.MethodGet, c.root+"/props", nil)
	if err != nil {
		return 0
	}
	if v := c.o.Key.value(); v != "" {
		req.Header.Set("Authorization", "Bearer "+v)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	var props struct {
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(x.body, &props) != nil {
		return 0
	}
	return props.Settings.Context
}
