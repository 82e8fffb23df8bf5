package modelserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"testing"
)

// Llama is llama.cpp's server on a Unix socket, started with --metrics.
type Llama struct{ Socket string }

// Counted is how many tokens it has read, without those that it had already,
// and written, by its own count.
func (l Llama) Counted(t testing.TB) (prompt, predicted int) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.Socket)
	}}}
	resp, err := c.Get("http://localhost/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) int {
		m := regexp.MustCompile(fmt.Sprintf(`(?m)^llamacpp:%s (\S+)$`, name)).FindSubmatch(data)
		if m == nil {
			t.Fatalf("no %s in %s", name, data)
		}
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	return read("prompt_tokens_total"), read("tokens_predicted_total")
}
