package model

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"path/filepath"
)

// exchange is one request and its answer, beneath go-openai: the fields that
// it cannot send, and all that came back.
type exchange struct {
	fields map[string]json.RawMessage // added to a body that is a JSON object

	status int // 0: no answer
	header http.Header
	body   []byte
}

type exchangeKey struct{}

var (
	errTimeout  = errors.New("no whole answer in time")
	errTooLarge = errors.New("the answer is too large")
	errNoChoice = errors.New("the answer has no choices")
)

// contentTypeError is an answer 200 that is no JSON.
type contentTypeError struct{ got string }

func (e *contentTypeError) Error() string {
	return fmt.Sprintf("the answer is %s, not application/json", e.got)
}

// cutError is a body that ended before its end.
type cutError struct {
	after int
	err   error
}

func (e *cutError) Error() string {
	return fmt.Sprintf("the answer broke off after %d bytes: %v", e.after, e.err)
}
func (e *cutError) Unwrap() error { return e.err }

// transport adds the exchange's fields to a request, and reads the answer
// whole before it hands it on.
type transport struct {
	inner http.RoundTripper
	max   int64
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		return nil, errors.New("BUG: a request to the model outside of an exchange")
	}
	if req.Body != nil && len(x.fields) > 0 {
		merged, err := merge(req.Body, x.fields)
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(merged)), nil }
		req.Body, _ = req.GetBody()
		req.ContentLength = int64(len(merged))
	}
	resp, err := t.inner.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, t.max+1))
	resp.Body.Close()
	x.status, x.header, x.body = resp.StatusCode, resp.Header, body
	switch {
	case int64(len(body)) > t.max:
		return nil, errTooLarge
	case err != nil:
		return nil, &cutError{len(body), err}
	case resp.StatusCode == http.StatusOK:
		kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if kind != "application/json" {
			return nil, &contentTypeError{cmp.Or(kind, "of no type")}
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

func merge(body io.ReadCloser, fields map[string]json.RawMessage) ([]byte, error) {
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	whole := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &whole); err != nil {
		return nil, err
	}
	for name, v := range fields {
		whole[name] = v
	}
	return json.Marshal(whole)
}

// dialUnix connects to the socket at path. The kernel takes 107 bytes of a
// path (unix(7)); a longer one is reached through its folder's descriptor.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	if len(path) <= 107 {
		return d.DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
