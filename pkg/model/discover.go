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
	ID            string       `json:"id"`
	Parent        lax[string]  `json:"parent"`                // vLLM: the model that a LoRA adapter is for, which has its limits
	MaxModelLen   lax[float64] `json:"max_model_len"`         // vLLM, SGLang
	Loaded        lax[float64] `json:"loaded_context_length"` // LM Studio
	ContextLength lax[float64] `json:"context_length"`        // OpenRouter
	Meta          lax[struct {
		Context lax[float64] `json:"n_ctx"`       // llama.cpp in 2026: of one conversation
		Trained lax[float64] `json:"n_ctx_train"` // llama.cpp: what the model could, not what the server gives
	}] `json:"meta"`
}

func (l listed) context() int {
	return cmp.Or(tokens(l.MaxModelLen), tokens(l.Loaded), tokens(l.ContextLength), tokens(l.Meta.is.Context))
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
		return c.get(ctx, x, c.base+"/models", &list)
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
		if base := slices.Index(ids, m.Parent.is); n == 0 && base >= 0 {
			n = list.Data[base].context()
		}
		if trained := tokens(m.Meta.is.Trained); n == 0 && trained > 0 {
			n = min(cmp.Or(c.slot(ctx), trained), trained)
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
	var props struct {
		Settings struct {
			Context lax[float64] `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	_, _ = c.retry(ctx, 0, func(ctx context.Context, x *exchange) error {
		return c.get(ctx, x, strings.TrimSuffix(c.base, "/v1")+"/props", &props)
	})
	return tokens(props.Settings.Context)
}

// get asks the server for a JSON document.
func (c *Client) get(ctx context.Context, x *exchange, url string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if v := c.o.Key.value(); v != "" {
		req.Header.Set("Authorization", "Bearer "+v)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close() // what it had is the exchange's
	return json.Unmarshal(x.body, to)
}
