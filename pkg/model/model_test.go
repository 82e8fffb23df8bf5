package model_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fence/pkg/model"
	"fence/test/modelserver"
	"fence/test/registrytest"
)

var hello = []model.Message{{Role: "user", Content: "hello"}}

// client is one whose time passes when it waits.
func client(t *testing.T, o model.Options) *model.Client {
	t.Helper()
	if o.Sleep == nil {
		clock := registrytest.NewClock(time.Unix(1e9, 0))
		o.Now, o.Sleep = clock.Now, clock.Sleep
	}
	o.Name, o.Patience = cmp.Or(o.Name, "m"), cmp.Or(o.Patience, 10*time.Minute)
	c, err := model.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func key(t *testing.T, s string) model.Key {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(s+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := model.KeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestWhatIsAsked(t *testing.T) {
	zero := 0.0
	for _, c := range []struct {
		name   string
		o      model.Options
		fields string // beside model, messages and stream
	}{
		{"nothing that was not given", model.Options{}, `{}`},
		{"a temperature of 0", model.Options{Sampling: model.Sampling{Temperature: &zero}}, `{"temperature":0}`},
		{"details", model.Options{Details: true}, `{"logprobs":true,"return_token_ids":true}`},
		{"fields of one's own", model.Options{
			Sampling: model.Sampling{MaxTokens: 5, ReasoningEffort: "low"},
			Extra:    map[string]json.RawMessage{"max_tokens": []byte("7"), "cache_salt": []byte(`"a"`)},
		}, `{"cache_salt":"a","max_tokens":7,"reasoning_effort":"low"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, start := range []func(testing.TB, ...modelserver.Answer) *modelserver.Server{modelserver.Start, modelserver.StartUnix} {
				srv := start(t, modelserver.Say("hi"))
				c.o.Base, c.o.Name, c.o.Key = srv.Base, "hosted_vllm/Qwen/Qwen3-8B", key(t, "sk-123456")
				r, err := client(t, c.o).Chat(t.Context(), hello)
				if err != nil {
					t.Fatal(err)
				}
				if r.Content != "hi" || r.Finish != "stop" || *r.PromptTokens != 2 || *r.CompletionTokens != 1 || *r.CachedTokens != 1 || r.Tries != 1 {
					t.Errorf("reply: %+v", r)
				}
				got := srv.Requests()[0]
				if m := string(got.Body["model"]); m != `"Qwen/Qwen3-8B"` {
					t.Errorf("asked for the model %s", m)
				}
				if a := got.Header.Get("Authorization"); a != "Bearer sk-123456" {
					t.Errorf("Authorization: %q", a)
				}
				for _, f := range []string{"model", "messages", "stream"} {
					delete(got.Body, f)
				}
				if fields, _ := json.Marshal(got.Body); string(fields) != c.fields {
					t.Errorf("fields %s, want %s", fields, c.fields)
				}
			}
		})
	}
}

func TestFaults(t *testing.T) {
	say := modelserver.Say("fine")
	for _, c := range []struct {
		name   string
		script []modelserver.Answer
		class  model.Class // "" is an answer
		tries  int         // 0: as the patience lasts
		says   string
	}{
		{"429, then fine", []modelserver.Answer{modelserver.Busy("3"), modelserver.Busy(""), say}, "", 3, ""},
		{"429 with a day to wait", []modelserver.Answer{modelserver.Busy("86400")}, model.Rate, 1, "slow down"},
		{"429 with a date long past", []modelserver.Answer{modelserver.Busy("Fri, 31 Dec 1999 23:59:59 GMT"), say}, "", 2, ""},
		{"429 for ever", []modelserver.Answer{modelserver.Busy("")}, model.Rate, 0, "429"},
		{"500 for ever", []modelserver.Answer{modelserver.Status(500, `{"error":{"message":"out of memory"}}`)}, model.ServerGone, 0, "out of memory"},
		{"503 in HTML, then fine", []modelserver.Answer{modelserver.Status(503, `<h1>`), say}, "", 2, ""},
		{"a connection dropped", []modelserver.Answer{modelserver.Drop, say}, "", 2, ""},
		{"cut in the body", []modelserver.Answer{modelserver.Cut, say}, "", 2, ""},
		{"cut for ever", []modelserver.Answer{modelserver.Cut}, model.ServerGone, 0, "broke off after"},
		{"a page", []modelserver.Answer{modelserver.Page("text/html; charset=utf-8", "<html>log in\x1b[2J")}, model.BadReply, 3, `text/html, not application/json: <html>log in\x1b[2J`},
		{"no type", []modelserver.Answer{modelserver.Page("", `{"choices":[]}`)}, model.BadReply, 3, "not application/json"},
		{"a page, then fine", []modelserver.Answer{modelserver.Page("text/html", ""), say}, "", 2, ""},
		{"no JSON", []modelserver.Answer{modelserver.Raw(`{"choices":`)}, model.BadReply, 3, "no chat completion"},
		{"JSON null", []modelserver.Answer{modelserver.Raw(`null`)}, model.BadReply, 3, "no choices"},
		{"no choices", []modelserver.Answer{modelserver.Raw(`{"choices":[]}`)}, model.BadReply, 3, "no choices"},
		{"no message", []modelserver.Answer{modelserver.Raw(`{"choices":[{"message":null}]}`)}, model.BadReply, 3, "without a message"},
		{"no text", []modelserver.Answer{modelserver.Raw(`{"choices":[{"message":{"content":5}}]}`)}, model.BadReply, 3, "neither a text nor a list"},
		{"another protocol", []modelserver.Answer{modelserver.Switch}, model.BadReply, 1, "101 Switching Protocols"},
		{"204", []modelserver.Answer{modelserver.Status(204, "")}, model.BadReply, 1, "204 No Content"},
		{"206", []modelserver.Answer{modelserver.Status(206, `{"choices":[{"message":{"content":"fine"}}]}`)}, model.BadReply, 1, "206 Partial Content"},
		{"300", []modelserver.Answer{modelserver.Status(300, `{"choices":[{"message":{"content":"fine"}}]}`)}, model.BadReply, 1, "300 Multiple Choices"},
		{"304", []modelserver.Answer{modelserver.Status(304, "")}, model.BadReply, 1, "304 Not Modified"},
		{"huge", []modelserver.Answer{modelserver.Huge(5000)}, model.BadReply, 1, "too large"},
		{"401", []modelserver.Answer{modelserver.Status(401, `{"error":{"message":"Incorrect API key provided: sk-123456"}}`)}, model.Auth, 1, "provided: [key]"},
		{"403", []modelserver.Answer{modelserver.Status(403, `{"detail":"no"}`)}, model.Auth, 1, "403 Forbidden: no"},
		{"404", []modelserver.Answer{modelserver.Status(404, `{"object":"error","message":"The model m does not exist."}`)}, model.Refused, 1, "does not exist"},
		{"400", []modelserver.Answer{modelserver.Status(400, `{"error":"no such field"}`)}, model.Refused, 1, "no such field"},
		{"context", []modelserver.Answer{modelserver.Overflow(10, 20)}, model.Context, 1, "maximum context length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := modelserver.Start(t, c.script...)
			r, err := client(t, model.Options{Base: srv.Base, Key: key(t, "sk-123456"), MaxBytes: 4000}).Chat(t.Context(), hello)
			if got := model.ClassOf(err); got != c.class || (c.class == "") != (err == nil) {
				t.Fatalf("class %q, want %q: %v", got, c.class, err)
			}
			tries := len(srv.Requests())
			if c.class == "" && (r.Content != "fine" || r.Tries != tries) {
				t.Errorf("reply after %d requests: %+v", tries, r)
			}
			if tries != c.tries && (c.tries != 0 || tries < 8 || tries > 20) {
				t.Errorf("%d tries, want %d", tries, c.tries)
			}
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
		})
	}
}

func TestContextWithEveryStatus(t *testing.T) {
	for _, body := range []string{
		`{"error":{"message":"The decoder prompt is longer than the model’s context length"}}`,
		`{"error":{"code":400,"message":"no","type":"exceed_context_size_error"}}`,
	} {
		for _, status := range []int{400, 413, 500} {
			srv := modelserver.Start(t, modelserver.Status(status, body))
			_, err := client(t, model.Options{Base: srv.Base}).Chat(t.Context(), hello)
			if model.ClassOf(err) != model.Context || len(srv.Requests()) != 1 {
				t.Errorf("%d %s: %v", status, body, err)
			}
		}
	}
	if model.TooLong("max_tokens must be positive") || model.TooLong("") {
		t.Error("every message is taken for a full context")
	}
}

func TestAnEmptyReplyIsAReply(t *testing.T) {
	for _, body := range []string{
		`{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}`,
		`{"choices":[{"message":{"role":"assistant","content":null},"finish_reason":"stop"}]}`,
	} {
		srv := modelserver.Start(t, modelserver.Raw(body))
		r, err := client(t, model.Options{Base: srv.Base}).Chat(t.Context(), hello)
		if err != nil || r.Content != "" || r.PromptTokens != nil || r.Detail != nil || r.Truncated() {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// What is not needed may be missing, or of any type.
func TestAReplyIsReadForWhatIsNeeded(t *testing.T) {
	for _, c := range []struct{ fields, choice, message, want string }{
		{`"id":5,"created":1.7,"object":null,"model":7,"prompt_token_ids":"x","usage":{"total_tokens":1.5}`,
			`"index":0.5,"logprobs":{"content":[{"token":1,"bytes":[300],"logprob":-1}]},"token_ids":{}`, `"content":"x","reasoning":["a"]`, "x"},
		{`"model":"m"`, `"finish_reason":3,"logprobs":[]`, `"role":2,"content":[{"type":"text","text":"x"},{"type":"image_url"},{"type":"text","text":"y"}]`, "xy"},
	} {
		srv := modelserver.Start(t, modelserver.Raw(`{`+c.fields+`,"choices":[{`+c.choice+`,"message":{`+c.message+`}}]}`))
		if r, err := client(t, model.Options{Base: srv.Base}).Chat(t.Context(), hello); err != nil || r.Content != c.want {
			t.Errorf("%s: %+v, %v; want %s", c.message, r, err, c.want)
		}
	}
}

func TestCallsOfToolsAreSaid(t *testing.T) {
	srv := modelserver.Start(t, modelserver.Raw(`{"choices":[{"message":{"content":null,"tool_calls":[{"id":"a"}]}}]}`), modelserver.Raw(`{"choices":[{"message":{"content":"","tool_calls":[]}}]}`))
	for n := range 2 {
		cl := client(t, model.Options{Base: srv.Base})
		if r, err := cl.Chat(t.Context(), hello); err != nil || r.Content != "" || len(cl.Notices()) != 1-n {
			t.Errorf("answer %d: %+v, %v, %q", n, r, err, cl.Notices())
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		usage, want string
		notices     int
	}{
		{`{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}`, "12 3 4", 0},
		{`{"prompt_tokens":12.0,"completion_tokens":0}`, "12 0 -", 0},
		{`{"prompt_tokens":null,"completion_tokens":3,"prompt_tokens_details":null}`, "- 3 -", 0},
		{`null`, "- - -", 0},
		{`{}`, "- - -", 0},
		{`{"prompt_tokens":-1000000,"completion_tokens":3}`, "- - -", 1},
		{`{"prompt_tokens":12,"completion_tokens":-5}`, "- - -", 1},
		{`{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":-1}}`, "- - -", 1},
		{`{"prompt_tokens":12.5,"completion_tokens":3}`, "- - -", 1},
		{`{"prompt_tokens":1e300,"completion_tokens":3}`, "- - -", 1},
		{`{"prompt_tokens":1e400,"completion_tokens":3}`, "- - -", 1},
		{`{"prompt_tokens":9223372036854775807}`, "- - -", 1},
		{`{"prompt_tokens":"12","completion_tokens":3}`, "- - -", 1},
		{`[1]`, "- - -", 1},
	} {
		srv := modelserver.Start(t, modelserver.Raw(`{"choices":[{"message":{"content":"x"}}],"usage":`+c.usage+`}`))
		cl := client(t, model.Options{Base: srv.Base})
		var got []string
		for range 2 {
			r, err := cl.Chat(t.Context(), hello)
			if err != nil {
				t.Fatalf("%s: %v", c.usage, err)
			}
			got = nil
			for _, n := range []*int{r.PromptTokens, r.CompletionTokens, r.CachedTokens} {
				if n == nil {
					got = append(got, "-")
				} else {
					got = append(got, fmt.Sprint(*n))
				}
			}
		}
		if s := strings.Join(got, " "); s != c.want || len(cl.Notices()) != c.notices {
			t.Errorf("%s: %s, want %s; notices %q", c.usage, s, c.want, cl.Notices())
		}
	}
}

func TestTruncatedRepliesSaySo(t *testing.T) {
	srv := modelserver.Start(t, modelserver.Truncated("and th"))
	if r, err := client(t, model.Options{Base: srv.Base}).Chat(t.Context(), hello); err != nil || !r.Truncated() {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestReasoningUnderEitherName(t *testing.T) {
	for _, field := range []string{"reasoning_content", "reasoning"} {
		srv := modelserver.Start(t, modelserver.Raw(`{"choices":[{"message":{"content":"x","`+field+`":"hm"}}]}`))
		if r, err := client(t, model.Options{Base: srv.Base}).Chat(t.Context(), hello); err != nil || r.Reasoning != "hm" {
			t.Errorf("%s: %+v, %v", field, r, err)
		}
	}
}

func TestAHangingServerTimesOut(t *testing.T) {
	srv := modelserver.Start(t, modelserver.Hang)
	_, err := client(t, model.Options{Base: srv.Base, Timeout: 20 * time.Millisecond, Patience: time.Millisecond}).Chat(t.Context(), hello)
	var e *model.Error
	if !errors.As(err, &e) || e.Class != model.Timeout || e.Tries != 1 || e.Hint == "" {
		t.Errorf("%+v", e)
	}
}

func TestSeveralTrialsAtOnce(t *testing.T) {
	srv := modelserver.Start(t, modelserver.Busy(""), modelserver.Raw(`{"choices":[{"message":{"content":"x"}}]}`))
	srv.Models(`{"data":[{"id":"m","max_model_len":7}]}`)
	c := client(t, model.Options{Base: srv.Base, Details: true})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := c.Discover(t.Context(), 0); err != nil {
				t.Error(err)
			}
			if r, err := c.Chat(t.Context(), hello); err != nil || r.Content != "x" || c.Limits().Context != 7 {
				t.Error(r, err)
			}
		})
	}
	all.Wait()
	if n := len(c.Notices()); n != 2 || len(srv.Requests()) != 9 {
		t.Errorf("%d notices, %d requests", n, len(srv.Requests()))
	}
}

func TestAServerThatHangsOnce(t *testing.T) {
	srv := modelserver.Start(t, modelserver.Hang, modelserver.Say("awake"))
	r, err := client(t, model.Options{Base: srv.Base, Timeout: time.Second}).Chat(t.Context(), hello)
	if err != nil || r.Content != "awake" || r.Tries < 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNoRedirectIsFollowed(t *testing.T) {
	other := modelserver.Start(t, modelserver.Say("stolen"))
	srv := modelserver.Start(t, modelserver.Redirect(other.Base+"/chat/completions"))
	_, err := client(t, model.Options{Base: srv.Base, Key: key(t, "sk-123456")}).Chat(t.Context(), hello)
	if model.ClassOf(err) != model.BadReply || len(other.Requests()) != 0 || len(srv.Requests()) != 1 {
		t.Errorf("%d requests elsewhere, %v", len(other.Requests()), err)
	}
}

// A trial's own cap is no fault of the server's.
func TestTheCallersEndIsNotTheServers(t *testing.T) {
	capped := errors.New("the trial is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	srv := modelserver.Start(t, func(w http.ResponseWriter, r modelserver.Request) { cancel(capped); modelserver.Hang(w, r) })
	_, err := client(t, model.Options{Base: srv.Base}).Chat(ctx, hello)
	if !errors.Is(err, capped) || model.ClassOf(err) != "" {
		t.Error(err)
	}
}

func TestAServerThatIsGoneAndBack(t *testing.T) {
	for _, start := range []func(testing.TB, ...modelserver.Answer) *modelserver.Server{modelserver.Start, modelserver.StartUnix} {
		srv := start(t, modelserver.Say("back"))
		srv.Stop()
		clock, waits := registrytest.NewClock(time.Unix(1e9, 0)), 0
		c := client(t, model.Options{Base: srv.Base, Now: clock.Now, Sleep: func(ctx context.Context, d time.Duration) error {
			if waits++; waits == 3 {
				srv.Resume()
			}
			return clock.Sleep(ctx, d)
		}})
		if r, err := c.Chat(t.Context(), hello); err != nil || r.Tries != 4 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestAServerThatStaysAway(t *testing.T) {
	srv := modelserver.Start(t, modelserver.Say("never"))
	srv.Stop()
	_, err := client(t, model.Options{Base: srv.Base}).Chat(t.Context(), hello)
	var e *model.Error
	if !errors.As(err, &e) || e.Class != model.ServerGone || e.Tries < 8 || e.Hint == "" || !strings.Contains(e.Message, "connection refused") {
		t.Errorf("%+v", e)
	}
	// With no patience it is asked once.
	c, err := model.New(model.Options{Base: srv.Base, Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Chat(t.Context(), hello); !errors.As(err, &e) || e.Class != model.ServerGone || e.Tries != 1 {
		t.Errorf("without patience: %+v", e)
	}
}

// What will never answer is not waited for.
func TestNothingToWaitFor(t *testing.T) {
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	plain := modelserver.Start(t, modelserver.Say("x")).Base
	for base, says := range map[string]string{
		strings.Replace(plain, "http:", "https:", 1): "HTTP response to HTTPS",
		"unix:" + dir:  "no socket",
		"unix:" + file: "no socket",
		"unix:" + dir + "/" + strings.Repeat("s", 110): "too long",
		"unix:" + fifo + "/" + strings.Repeat("s", 80): "no socket",
	} {
		_, err := client(t, model.Options{Base: base}).Chat(t.Context(), hello)
		var e *model.Error
		if !errors.As(err, &e) || e.Class != model.ServerGone || e.Tries != 1 || !strings.Contains(e.Message, says) {
			t.Errorf("%s: %+v", base, err)
		}
	}
}

func TestDetails(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	srv := modelserver.Start(t, modelserver.Say("four tokens here"))
	c := client(t, model.Options{Base: srv.Base, Details: true, Log: logger})
	r, err := c.Chat(t.Context(), hello)
	if err != nil || len(r.Detail.PromptIDs) != 2 || len(r.Detail.CompletionIDs) != 4 || len(r.Detail.Logprobs) != 4 || r.Detail.Logprobs[0] != -0.5 {
		t.Fatalf("%+v, %v", r.Detail, err)
	}
	if n := c.Notices(); len(n) != 0 {
		t.Errorf("notices of a server that does as asked: %q", n)
	}

	ignores := modelserver.Start(t, modelserver.Raw(`{"choices":[{"message":{"content":"x"}}]}`))
	c = client(t, model.Options{Base: ignores.Base, Details: true, Log: logger})
	for range 3 {
		if r, err := c.Chat(t.Context(), hello); err != nil || r.Detail != nil {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if n := c.Notices(); len(n) != 2 || strings.Count(log.String(), "return_token_ids") != 1 {
		t.Errorf("notices %q, log %s", n, &log)
	}
}

func TestTokenIDsOfLlamaCpp(t *testing.T) {
	entry := `{"id":7,"token":"a","logprob":-1.5},{"id":8,"token":"b","logprob":-2}`
	for body, want := range map[string]string{
		entry:                            "[7 8] [-1.5 -2]",
		entry + `,{"logprob":-3}`:        "[] [-1.5 -2 -3]",
		entry + `,{"id":9}`:              "[7 8 9] []",
		entry + `,{"id":0,"logprob":0}`:  "[7 8 0] [-1.5 -2 0]",
		entry + `,{"id":9,"logprob":-9}`: "[7 8 9] [-1.5 -2 -9]",
	} {
		srv := modelserver.Start(t, modelserver.Raw(`{"choices":[{"message":{"content":"ab"},"logprobs":{"content":[`+body+`]}}]}`))
		c := client(t, model.Options{Base: srv.Base, Details: true})
		r, err := c.Chat(t.Context(), hello)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Detail.CompletionIDs, r.Detail.Logprobs); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
		if len(c.Notices()) == 0 {
			t.Errorf("%s: no word on the prompt's ids", body)
		}
	}
}

func TestALongSocketPath(t *testing.T) {
	srv := modelserver.StartUnix(t, modelserver.Say("far"))
	far := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.Symlink(filepath.Dir(strings.TrimPrefix(srv.Base, "unix:")), far); err != nil {
		t.Fatal(err)
	}
	if r, err := client(t, model.Options{Base: "unix:" + far + "/model.sock"}).Chat(t.Context(), hello); err != nil || r.Content != "far" {
		t.Error(r, err)
	}
}
