// Package model is a client of a server that speaks OpenAI's chat API: vLLM,
// SGLang, llama.cpp's server, or a paid one. It says of every call what it
// cost and why it failed, and waits for a server that is busy or gone.
//
// Nothing that it returns, logs or puts into an error holds the key. It
// follows no redirect and does not stream.
package model

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	openai "github.com/sashabaranov/go-openai"
)

// Options say which model, and how it is asked.
type Options struct {
	// Base is http://HOST:PORT/v1, https likewise, or unix:PATH for a server on
	// a Unix socket. Without a path, /v1 is meant.
	Base string
	// Name is what the server calls the model. LiteLLM's hosted_vllm/NAME means
	// NAME. "" is the only model that the server lists (see Discover).
	Name string
	Key  Key // none for most local servers

	Limits   Limits // what is 0 is discovered
	Sampling Sampling
	// Extra are fields of the request's body that stand beside ours, such as
	// vLLM's cache_salt or llama.cpp's json_schema. They win over Sampling.
	Extra map[string]json.RawMessage
	// Details asks for token ids and log-probabilities (vLLM 0.10.2 and later).
	Details bool

	Timeout  time.Duration // of one try, from the first byte out to the last one in; 0 is 10 minutes
	Patience time.Duration // with a server that is busy or gone, since the first try of a call; 0 is none
	MaxBytes int64         // of a reply; 0 is 64 MiB

	Log   *slog.Logger                               // nil discards
	Now   func() time.Time                           // nil is time.Now
	Sleep func(context.Context, time.Duration) error // nil sleeps
}

// Limits are in tokens; 0 is unknown.
type Limits struct {
	Context int // prompt and reply together
	Output  int // of one reply
}

// Sampling is sent where it is given, and otherwise left to the server.
type Sampling struct {
	Temperature     *float64
	TopP            *float64
	Seed            *int64
	MaxTokens       int
	ReasoningEffort string
}

// Message is one of a conversation.
type Message struct {
	Role      string `json:"role"` // user or assistant
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content,omitempty"` // of an assistant, if it is to be sent back
}

// Client asks one model. It may be used by several trials at a time.
type Client struct {
	o      Options
	api    *openai.Client
	http   *http.Client
	base   string // URL of the API
	fields map[string]json.RawMessage

	mu      sync.Mutex
	limits  Limits
	notices []string
}

// reserved are the fields that the client itself has to know.
var reserved = []string{"model", "messages", "stream", "n", "logprobs", "return_token_ids"}

// New checks the options. It does not reach for the server.
func New(o Options) (*Client, error) {
	o.Name = strings.TrimPrefix(o.Name, "hosted_vllm/")
	o.Timeout = cmp.Or(o.Timeout, 10*time.Minute)
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	base, inner, err := dialer(o.Base)
	if err != nil {
		return nil, err
	}
	c := &Client{o: o, base: base, limits: o.Limits}
	c.limits.Output = cmp.Or(c.limits.Output, o.Sampling.MaxTokens)
	if c.fields, err = fields(o); err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Transport:     &transport{inner: inner, max: o.MaxBytes, key: o.Key},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	conf := openai.DefaultConfig(o.Key.value())
	conf.BaseURL = base
	conf.HTTPClient = c.http
	c.api = openai.NewClientWithConfig(conf)
	return c, nil
}

// fields are those of every request that go-openai's type has not, or cannot
// say: it leaves out a temperature of 0.
func fields(o Options) (map[string]json.RawMessage, error) {
	f := map[string]json.RawMessage{}
	set := func(name string, given bool, v any) {
		if given {
			f[name], _ = json.Marshal(v) // numbers and a string
		}
	}
	s := o.Sampling
	set("temperature", s.Temperature != nil, s.Temperature)
	set("top_p", s.TopP != nil, s.TopP)
	set("seed", s.Seed != nil, s.Seed)
	set("max_tokens", s.MaxTokens > 0, s.MaxTokens)
	set("reasoning_effort", s.ReasoningEffort != "", s.ReasoningEffort)
	set("logprobs", o.Details, true)
	set("return_token_ids", o.Details, true)
	for _, name := range slices.Sorted(maps.Keys(o.Extra)) {
		if slices.Contains(reserved, name) {
			return nil, fmt.Errorf("field %q of a request to the model cannot be set: it has an option of its own, or replies could not be read", name)
		}
		if !json.Valid(o.Extra[name]) {
			return nil, fmt.Errorf("field %q of a request to the model: its value is not JSON", name)
		}
		f[name] = o.Extra[name]
	}
	return f, nil
}

// Name is the model's, without a provider.
func (c *Client) Name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.o.Name
}

// Limits are those that were given or have been discovered.
func (c *Client) Limits() Limits {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limits
}

// Notices are what a person should know of the server, each once.
func (c *Client) Notices() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.notices)
}

func (c *Client) notice(text string) {
	c.mu.Lock()
	known := slices.Contains(c.notices, text)
	if !known {
		c.notices = append(c.notices, text)
	}
	c.mu.Unlock()
	if !known {
		c.o.Log.Warn(text)
	}
}

// Chat asks the model for the next message. A server that is busy, gone or
// broken is asked again for as long as the patience lasts; the error is then
// an *Error. Where the context ends first it is the context's own, and an *Error
// too if the server had failed before.
func (c *Client) Chat(ctx context.Context, messages []Message) (Reply, error) {
	// go-openai's own messages leave out a content of "", without which some
	// servers refuse an assistant's message.
	all, err := json.Marshal(messages)
	if err != nil {
		return Reply{}, fmt.Errorf("asking the model: %w", err)
	}
	fields := maps.Clone(c.fields)
	fields["messages"] = all
	req := openai.ChatCompletionRequest{Model: c.Name()}
	var reply Reply
	tries, err := c.retry(ctx, c.o.Patience, func(ctx context.Context, x *exchange) (err error) {
		x.fields = fields
		began := c.o.Now()
		if _, err := c.api.CreateChatCompletion(ctx, req); err != nil {
			return err
		}
		reply, err = c.read(x.body)
		reply.Took = c.o.Now().Sub(began)
		return err
	})
	if err != nil {
		return Reply{}, err
	}
	reply.Tries = tries
	if c.o.Details {
		c.judge(reply)
	}
	return reply, nil
}

// retry calls once until it succeeds, what failed is not worth another try, or
// the patience is over. It returns how often it was called.
func (c *Client) retry(ctx context.Context, patience time.Duration, once func(context.Context, *exchange) error) (int, error) {
	began := c.o.Now()
	var failed *Error // the try before
	over := func() error {
		if failed != nil {
			return fmt.Errorf("%w; %w", failed, context.Cause(ctx))
		}
		return fmt.Errorf("asking the model: %w", context.Cause(ctx))
	}
	for try := 1; ; try++ {
		x := &exchange{}
		inner, cancel := context.WithTimeoutCause(context.WithValue(ctx, exchangeKey{}, x), c.o.Timeout, errTimeout)
		err := once(inner, x)
		timedOut := context.Cause(inner) == errTimeout
		cancel()
		switch {
		case err == nil:
			return try, nil
		case ctx.Err() != nil:
			return try, over()
		}
		e := c.explain(err, x, timedOut)
		e.Tries = try
		wait, again := c.again(e, try, patience-c.o.Now().Sub(began), rand.Float64())
		if !again {
			return try, e
		}
		c.o.Log.Info("the model is asked again", "try", try+1, "wait", wait.Round(time.Second), "because", e.Message)
		failed = e
		if err := c.o.Sleep(ctx, wait); err != nil {
			return try, over()
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dialer reads Options.Base: the URL, and what reaches it.
func dialer(base string) (string, http.RoundTripper, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64 // as many trials at a time as a node has
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		if path == "" {
			return "", nil, fmt.Errorf("model server %q: no socket is named: unix:/path/to/socket", base)
		}
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialUnix(ctx, path) }
		return "http://localhost/v1", t, nil
	}
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", nil, fmt.Errorf("model server: not a base URL such as http://node:8000/v1, nor unix:/path/to/socket")
	case u.User != nil:
		return "", nil, fmt.Errorf("model server at %s: a password in a URL is seen by every user of the node: put the key into a file", u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return "", nil, fmt.Errorf("model server at %s: a base URL has no query", u.Host)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", nil, fmt.Errorf("model server at %s: there is no port %s", u.Hostname(), port)
		}
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if u.Path == "" {
		u.Path = "/v1"
	}
	return u.String(), t, nil
}
