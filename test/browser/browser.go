// Package browser opens pages in a headless Chromium, for tests: the DevTools
// protocol (https://chromedevtools.github.io/devtools-protocol/) over a pair of
// pipes, as much of it as they need.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Page is one tab.
type Page struct {
	t       testing.TB
	ctx     context.Context
	send    *os.File
	session string

	mu      sync.Mutex
	id      int
	replies map[int]chan reply
	loaded  chan struct{}
	said    []string
}

type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Binary is where Chromium is, "" if it is not there.
func Binary() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Open starts a browser with a window of that size, for one test; without a
// Chromium on the node the test is skipped, under TEST_REQUIRED it fails.
func Open(t testing.TB, width, height int) *Page {
	t.Helper()
	bin := Binary()
	if bin == "" {
		if os.Getenv("TEST_REQUIRED") != "" {
			t.Fatal("no chromium: apt-get install chromium")
		}
		t.Skip("no chromium")
	}
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	// In a container, or as root, its own sandbox cannot be had; what it is
	// shown here was made by the tests.
	cmd := exec.CommandContext(ctx, bin, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
		"--user-data-dir="+filepath.Join(home, "profile"), fmt.Sprintf("--window-size=%d,%d", width, height), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home)
	theirs, send, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	receive, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{theirs, answers}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	answers.Close()
	p := &Page{t: t, ctx: ctx, send: send, replies: map[int]chan reply{}, loaded: make(chan struct{}, 100)}
	go p.listen(receive)
	t.Cleanup(func() {
		p.call("Browser.close", nil, nil) //nolint:errcheck // it may be gone
		cancel()
		cmd.Wait() //nolint:errcheck // it was killed
		send.Close()
		receive.Close()
		if t.Failed() && stderr.Len() > 0 {
			t.Logf("chromium: %.2000s", stderr.String())
		}
	})
	var targets struct {
		TargetInfos []struct{ TargetID, Type string }
	}
	p.must("Target.getTargets", nil, &targets)
	for _, x := range targets.TargetInfos {
		if x.Type == "page" {
			var s struct{ SessionID string }
			p.must("Target.attachToTarget", map[string]any{"targetId": x.TargetID, "flatten": true}, &s)
			p.session = s.SessionID
		}
	}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.must(domain+".enable", nil, nil)
	}
	return p
}

func (p *Page) listen(from *os.File) {
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		data, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			reply
		}
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		p.mu.Lock()
		switch {
		case m.ID != 0:
			if c := p.replies[m.ID]; c != nil {
				c <- m.reply
			}
		case m.Method == "Page.loadEventFired":
			p.loaded <- struct{}{}
		case m.Method == "Runtime.consoleAPICalled" || m.Method == "Runtime.exceptionThrown" || m.Method == "Log.entryAdded" || m.Method == "Page.javascriptDialogOpening":
			p.said = append(p.said, m.Method+" "+string(m.Params))
		}
		p.mu.Unlock()
	}
}

func (p *Page) call(method string, params, into any) error {
	if params == nil {
		params = map[string]any{}
	}
	c := make(chan reply, 1)
	p.mu.Lock()
	p.id++
	id := p.id
	p.replies[id] = c
	p.mu.Unlock()
	message := map[string]any{"id": id, "method": method, "params": params}
	if p.session != "" && !strings.HasPrefix(method, "Browser.") {
		message["sessionId"] = p.session
	}
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := p.send.Write(append(data, 0)); err != nil {
		return err
	}
	select {
	case r := <-c:
		if r.Error != nil {
			return fmt.Errorf("%s: %s", method, r.Error.Message)
		}
		if into == nil {
			return nil
		}
		return json.Unmarshal(r.Result, into)
	case <-p.ctx.Done():
		return fmt.Errorf("%s: the browser does not answer", method)
	}
}

func (p *Page) must(method string, params, into any) {
	p.t.Helper()
	if err := p.call(method, params, into); err != nil {
		p.t.Fatal(err)
	}
}

// Go opens a file's page and waits for it and its scripts.
func (p *Page) Go(url string) {
	p.t.Helper()
	var r struct{ ErrorText string }
	p.must("Page.navigate", map[string]any{"url": url}, &r)
	if r.ErrorText != "" {
		p.t.Fatalf("%s: %s", url, r.ErrorText)
	}
	select {
	case <-p.loaded:
	case <-p.ctx.Done():
		p.t.Fatalf("%s was not loaded", url)
	}
}

// Eval runs an expression on the page, waits if it is a promise, and reads its
// value into into, which may be nil.
func (p *Page) Eval(expression string, into any) {
	p.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	p.must("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(r.Result.Value, into); err != nil {
		p.t.Fatalf("%s: %v: %s", expression, err, r.Result.Value)
	}
}

// Until waits for an expression to hold on the page, half a minute at most.
func (p *Page) Until(expression string) {
	p.t.Helper()
	var held bool
	p.Eval(`new Promise((done) => { const end = performance.now() + 30000; const look = () => (`+expression+`) ? done(true) : performance.now() > end ? done(false) : requestAnimationFrame(look); look(); })`, &held)
	if !held {
		p.t.Fatalf("it never was so: %s", expression)
	}
}

// Said is what the page has written to the console, thrown, asked in a dialog,
// or been refused by its policy.
func (p *Page) Said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.said...)
}

// Picture writes what the window shows, as PNG.
func (p *Page) Picture(path string) {
	p.t.Helper()
	var r struct{ Data string }
	p.must("Page.captureScreenshot", nil, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Prefers sets what a person's system prefers: "dark" or "light".
func (p *Page) Prefers(scheme string) {
	p.t.Helper()
	p.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Wide gives the window another width.
func (p *Page) Wide(width, height int) {
	p.t.Helper()
	p.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Click presses and lets go of the mouse there.
func (p *Page) Click(x, y float64) {
	p.t.Helper()
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		p.must("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}, nil)
	}
}
