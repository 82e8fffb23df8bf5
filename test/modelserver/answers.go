package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Turn is a reply in the agent's protocol. Each of keys is a command that is
// waited for a tenth of a second.
func Turn(analysis string, complete bool, keys ...string) string {
	type command struct {
		Keys string  `json:"keystrokes"`
		Wait float64 `json:"duration"`
	}
	commands := []command{}
	for _, k := range keys {
		commands = append(commands, command{k, 0.1})
	}
	data, err := json.Marshal(struct {
		Analysis string    `json:"analysis"`
		Plan     string    `json:"plan"`
		Commands []command `json:"commands"`
		Complete bool      `json:"task_complete"`
	}{analysis, "go on", commands, complete})
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(data)
}

// ReplyFormat is the body field that docs/terminus.md gives for servers that
// decode by a schema: FIELD=JSON.
func ReplyFormat(t testing.TB) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	data, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../docs/terminus.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(data), "\n--body '")
	block, _, ok := strings.Cut(block, "'\n```\n")
	if !ok {
		t.Fatal("docs/terminus.md has no --body")
	}
	return block
}

// Say is a whole answer. A token has four bytes; ids and logprobs are given if
// asked for.
func Say(text string) Answer { return say(text, "stop") }

// Truncated is an answer that reached a limit.
func Truncated(text string) Answer { return say(text, "length") }

func say(text, finish string) Answer {
	return func(w http.ResponseWriter, r Request) {
		n, out := Tokens(r.Messages), (len(text)+3)/4
		reply := map[string]any{
			"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": r.Body["model"],
			"usage": map[string]any{"prompt_tokens": n, "completion_tokens": out, "total_tokens": n + out,
				"prompt_tokens_details": map[string]any{"cached_tokens": n / 2}},
		}
		choice := map[string]any{"index": 0, "finish_reason": finish, "message": map[string]any{"role": "assistant", "content": text}}
		if string(r.Body["return_token_ids"]) == "true" {
			reply["prompt_token_ids"], choice["token_ids"] = count(n), count(out)
		}
		if string(r.Body["logprobs"]) == "true" {
			content := []map[string]any{}
			for range out {
				content = append(content, map[string]any{"token": "x", "logprob": -0.5, "bytes": []int{120}, "top_logprobs": []int{}})
			}
			choice["logprobs"] = map[string]any{"content": content}
		}
		reply["choices"] = []any{choice}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(reply)
	}
}

// Tokens is how long this server takes a conversation to be.
func Tokens(messages []Message) int {
	n := 0
	for _, m := range messages {
		n += (len(m.Content) + 3) / 4
	}
	return n
}

func count(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i
	}
	return ids
}

// Raw is an answer 200 with this body, as JSON.
func Raw(body string) Answer { return Status(http.StatusOK, body) }

// Status is an answer with a status and a JSON body.
func Status(status int, body string) Answer {
	return func(w http.ResponseWriter, _ Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// Page is an answer of another type than JSON.
func Page(contentType, body string) Answer {
	return func(w http.ResponseWriter, _ Request) {
		w.Header().Set("Content-Type", contentType)
		fmt.Fprint(w, body)
	}
}

// Busy is an answer 429; after is its Retry-After, "" for none.
func Busy(after string) Answer {
	return func(w http.ResponseWriter, r Request) {
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		Status(http.StatusTooManyRequests, `{"error":{"message":"slow down","type":"rate_limit","code":"429"}}`)(w, r)
	}
}

// Redirect sends the client elsewhere.
func Redirect(url string) Answer {
	return func(w http.ResponseWriter, r Request) {
		w.Header().Set("Location", url)
		Status(http.StatusTemporaryRedirect, "")(w, r)
	}
}

// Overflow is vLLM's answer to a prompt of n tokens that does not fit.
func Overflow(limit, n int) Answer {
	return Status(http.StatusBadRequest, fmt.Sprintf(
		`{"error":{"message":"This model's maximum context length is %d tokens. However, your request has %d input tokens. Please reduce the length of the input messages.","type":"BadRequestError","param":null,"code":400}}`, limit, n))
}

// Within answers a prompt that fits into limit tokens with inner, and any
// other with Overflow.
func Within(limit int, inner Answer) Answer {
	return func(w http.ResponseWriter, r Request) {
		if n := Tokens(r.Messages); n > limit {
			Overflow(limit, n)(w, r)
			return
		}
		inner(w, r)
	}
}

// Each has a script for each of several conversations that go on at once: for
// that whose first message has the words. Its last answer is given for ever.
func Each(scripts map[string][]Answer) Answer {
	var mu sync.Mutex
	given := map[string]int{}
	next := func(first string) Answer {
		mu.Lock()
		defer mu.Unlock()
		for words, script := range scripts {
			if strings.Contains(first, words) {
				given[words]++
				return script[min(given[words], len(script))-1]
			}
		}
		return Status(http.StatusTeapot, `{"error":{"message":"a conversation without a script"}}`)
	}
	return func(w http.ResponseWriter, r Request) { next(r.Messages[0].Content)(w, r) }
}

// Hang never answers.
func Hang(_ http.ResponseWriter, r Request) { <-r.gone.Done() }

// Drop closes the connection without an answer.
func Drop(w http.ResponseWriter, _ Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err) // HTTP/1 can be hijacked
	}
	conn.Close()
}

// Cut breaks off in the middle of the body.
func Cut(w http.ResponseWriter, _ Request) {
	body := `{"choices":[{"message":{"role":"assistant","content":"I was about to`
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+100))
	fmt.Fprint(w, body)
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// Huge is an answer of n bytes and more.
func Huge(n int) Answer { return Say(strings.Repeat("x", n)) }

// Switch changes the protocol, and then says nothing until the client goes.
func Switch(w http.ResponseWriter, _ Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err) // HTTP/1 can be hijacked
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(io.Discard, conn)
}
