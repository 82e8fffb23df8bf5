package model

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fence/pkg/internal/text"
)

// Class says whose an error is and what helps.
type Class string

// The classes. Context is the conversation's, refused and auth are the
// person's who asked; the others are the server's.
const (
	Context    Class = "context"     // the conversation does not fit into the model
	Auth       Class = "auth"        // 401, 403
	Refused    Class = "refused"     // another 4xx: no such model, a field that it does not take
	Rate       Class = "rate"        // 429 for longer than the patience lasts
	ServerGone Class = "server_gone" // no connection, a broken one, 5xx
	BadReply   Class = "bad_reply"   // an answer, but no chat completion
	Timeout    Class = "timeout"     // no whole answer in time
)

// Error is why the model did not answer.
type Error struct {
	Class   Class
	Status  int    // HTTP's; 0 without an answer
	Message string // one line, fit for a terminal, without the key
	Hint    string // what the person can do, or ""
	Tries   int

	after     string // Retry-After
	permanent bool   // another try would end the same
}

func (e *Error) Error() string {
	if e.Tries > 1 {
		return fmt.Sprintf("asking the model: %s (tried %d times)", e.Message, e.Tries)
	}
	return "asking the model: " + e.Message
}

// ClassOf is the class of an error of this package, or "".
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ""
}

// tooLong are the ways to say that a prompt does not fit, in lower case: the
// first seven are those that Harbor 0.9 knows; then llama.cpp's server,
// llama-cpp-python, SGLang, Ollama and TGI.
var tooLong = []string{
	"context length exceeded",
	"context_length_exceeded",
	"maximum context length",
	"`inputs` tokens + `max_new_tokens`",
	"model's context length", // vLLM 0.16
	"prompt is too long",
	"input is too long for requested model",
	"exceeds the available context size",
	"exceed_context_size_error",
	"exceed context window",
	"exceeds the context window",
	"longer than the model's context",
	"exceeds the maximum allowed length",
	"input length exceeds the context length",
	"maximum model length",
}

// TooLong says whether a server's words mean that the prompt does not fit.
func TooLong(message string) bool {
	message = strings.ReplaceAll(strings.ToLower(message), "’", "'")
	for _, w := range tooLong {
		if strings.Contains(message, w) {
			return true
		}
	}
	return false
}

// explain makes an Error of what a try ended with.
func (c *Client) explain(err error, x *exchange, timedOut bool) *Error {
	e := judge(err, x, timedOut)
	e.Status = x.status
	e.Message = text.Printable(c.o.Key.hide(e.Message))
	return e
}

func judge(err error, x *exchange, timedOut bool) *Error {
	var wrongType *contentTypeError
	var cut *cutError
	switch {
	case x.status != 0 && x.status != http.StatusOK:
		return answered(x)
	case timedOut:
		return &Error{Class: Timeout, Message: errTimeout.Error(),
			Hint: "a slow server needs fewer trials at a time (-n), or shorter replies (--max-output-tokens)"}
	case errors.As(err, &cut):
		return &Error{Class: ServerGone, Message: cut.Error()}
	case errors.Is(err, errTooLarge):
		return &Error{Class: BadReply, Message: errTooLarge.Error(), permanent: true, Hint: "set --max-output-tokens"}
	case errors.As(err, &wrongType):
		return &Error{Class: BadReply, Message: wrongType.Error() + said(x.body), Hint: "is the base URL that of the API, ending in /v1?"}
	case x.status != 0:
		return &Error{Class: BadReply, Message: fmt.Sprintf("the answer is no chat completion: %v", strip(err))}
	}
	e := &Error{Class: ServerGone, Message: strip(err).Error(), Hint: "is the model server running, and reached from this node?"}
	var cert *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var hopeless hopelessError
	if e.permanent = errors.As(err, &cert) || errors.As(err, &hopeless) || errors.Is(err, fs.ErrPermission); errors.As(err, &plain) || errors.Is(err, http.ErrSchemeMismatch) {
		e.permanent, e.Hint = true, "a server without TLS is http://"
	}
	return e
}

// answered judges an answer that is no success.
func answered(x *exchange) *Error {
	says := said(x.body)
	e := &Error{Class: Refused, Message: fmt.Sprintf("the server answered %d %s%s", x.status, http.StatusText(x.status), says)}
	switch s := x.status; {
	case s >= 400 && TooLong(string(x.body)):
		e.Class, e.Hint = Context, "the model's context is full"
	case s < 400 && x.header.Get("Location") != "":
		e.Class, e.permanent, e.Hint = BadReply, true, "no redirect is followed: give the URL that it leads to"
	case s < 400:
		e.Class, e.permanent, e.Hint = BadReply, true, "is the base URL that of the API, ending in /v1?"
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		e.Class, e.Hint = Auth, "the server wants another key: --api-key-file or --api-key-env"
	case s == http.StatusRequestTimeout:
		e.Class = Timeout
	case s == http.StatusTooManyRequests:
		e.Class, e.after, e.Hint = Rate, x.header.Get("Retry-After"), "fewer trials at a time: -n"
	case s == http.StatusTooEarly || s >= 500:
		e.Class, e.after = ServerGone, x.header.Get("Retry-After")
	case s == http.StatusNotFound:
		e.Hint = "is there such a model, and does the base URL end in /v1?"
	}
	return e
}

// said is the part of an error's body that is for people, with ": " before it.
func said(body []byte) string {
	var shapes struct {
		Error   json.RawMessage `json:"error"`   // OpenAI, vLLM, llama.cpp; a string in some
		Message string          `json:"message"` // vLLM before 0.10
		Detail  json.RawMessage `json:"detail"`  // FastAPI
	}
	var inner struct {
		Message string `json:"message"`
	}
	s := string(body)
	if json.Unmarshal(body, &shapes) == nil {
		var plain string
		switch {
		case json.Unmarshal(shapes.Error, &inner) == nil && inner.Message != "":
			s = inner.Message
		case json.Unmarshal(shapes.Error, &plain) == nil && plain != "":
			s = plain
		case shapes.Message != "":
			s = shapes.Message
		case len(shapes.Detail) > 0:
			s = strings.Trim(string(shapes.Detail), `"`)
		}
	}
	s = strings.TrimSpace(s)
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + " ..."
	}
	if s == "" {
		return ""
	}
	return ": " + s
}

// strip takes the URL off a message: it is the same in all of them.
func strip(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// again decides whether there is another try after the try'th, and when: by
// Retry-After (seconds or a date, RFC 9110 10.2.3), else after a second,
// doubled each time up to a minute; and up to half as much again, so that
// trials do not come back as one. A wait that outlasts what is left of the
// patience is not begun.
func (c *Client) again(e *Error, try int, left time.Duration, jitter float64) (time.Duration, bool) {
	switch e.Class {
	case Rate, ServerGone, Timeout:
	case BadReply:
		if try >= 3 {
			return 0, false
		}
	default:
		return 0, false
	}
	wait := min(time.Second<<min(try-1, 10), time.Minute)
	if s, err := strconv.Atoi(e.after); err == nil && s >= 0 && s < 1e9 {
		wait = cmp.Or(time.Duration(s)*time.Second, wait)
	} else if at, err := http.ParseTime(e.after); err == nil {
		wait = max(at.Sub(c.o.Now()), wait)
	}
	wait += time.Duration(jitter * float64(wait) / 2)
	return wait, !e.permanent && wait < left
}
