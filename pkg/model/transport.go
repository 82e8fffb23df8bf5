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
	"strings"
	"syscall"
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
	errNothing  = errors.New("the answer has a choice without a message")
	errStatus   = errors.New("the answer is no success")
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
// whole, and hides the key in it. What it says is the exchange's: go-openai's
// types refuse answers for fields that nobody reads.
type transport struct {
	inner http.RoundTripper
	max   int64
	key   Key
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
	var body []byte
	if resp.StatusCode != http.StatusSwitchingProtocols { // what follows is no answer, and its end is not the context's
		body, err = io.ReadAll(io.LimitReader(resp.Body, t.max+1))
	}
	resp.Body.Close()
	x.status, x.header, x.body = resp.StatusCode, resp.Header, t.key.hideIn(body)
	switch {
	case int64(len(body)) > t.max:
		return nil, errTooLarge
	case err != nil:
		return nil, &cutError{len(body), err}
	case resp.StatusCode != http.StatusOK:
		return nil, errStatus
	default:
		kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if kind != "application/json" {
			return nil, &contentTypeError{cmp.Or(kind, "of no type")}
		}
	}
	resp.Body = io.NopCloser(strings.NewReader("{}"))
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

// hopelessError is why the server will not be reached, however long it is waited
// for.
type hopelessError string

func (e hopelessError) Error() string { return string(e) }

// dialUnix connects to the socket at path. The kernel takes 107 bytes of a
// path (unix(7)); a longer one is reached through its folder's descriptor.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	const most = 107
	var d net.Dialer
	st, err := os.Stat(path)
	if err == nil && st.Mode().Type() != os.ModeSocket || errors.Is(err, syscall.ENOTDIR) {
		return nil, hopelessError(path + " is no socket")
	}
	if len(path) <= most {
		return d.DialContext(ctx, "unix", path)
	}
	dir, err := os.OpenFile(filepath.Dir(path), syscall.O_DIRECTORY, 0) // a FIFO would be waited for
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	if len(short) > most {
		return nil, hopelessError("the name of the socket is too long: " + filepath.Base(path))
	}
	return d.DialContext(ctx, "unix", short)
}
