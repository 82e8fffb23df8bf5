package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

// A flight gets one want, for all who ask for it meanwhile. Its body grows in
// a file that they read along. The last byte is held back until the whole is
// known to be right, so that nobody takes a wrong or cut body for a good one.
type flight struct {
	want   want
	cancel context.CancelFunc

	// Guarded by Proxy.mu.
	readers int
	landed  bool // nothing is written any more

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something below changes
	begun   bool          // what follows up to file is set, for good
	header  map[string]string
	length  int64 // of the body; -1 while unknown
	cached  bool  // no body came from upstream
	file    *os.File
	size    int64 // bytes that file has
	done    bool
	err     error // with done; a *refusal where upstream's answer is to be passed on

	sha256 hash.Hash
	check  hash.Hash // of the want's digest; the same where that is SHA-256 or none
}

// refusal is an answer of upstream's that has no body worth keeping: anything
// but 200.
type refusal struct {
	status int
	header map[string]string
	body   []byte
}

func (r *refusal) Error() string {
	return fmt.Sprintf("upstream answers %d %s", r.status, http.StatusText(r.status))
}

// passedOn are the headers of upstream's that clients see.
var passedOn = []string{"Content-Type", "Content-Encoding", "ETag", "Last-Modified", "Location", "Retry-After", "WWW-Authenticate"}

// contentLocation is where a page came from, redirects followed.
const contentLocation = "Content-Location"

func pick(h http.Header) map[string]string {
	m := map[string]string{}
	for _, k := range passedOn {
		if v := h.Get(k); v != "" {
			m[k] = v
		}
	}
	return m
}

// join is the flight for w, a new one where none is under way, and what to
// call when it is no longer read.
func (p *Proxy) join(w want) (fl *flight, first bool, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fl = p.flights[w.key]
	if fl == nil {
		ctx, cancel := context.WithCancel(p.ctx)
		fl = &flight{want: w, cancel: cancel, changed: make(chan struct{}), length: -1}
		p.flights[w.key], first = fl, true
		p.running.Add(1)
		go func() {
			defer p.running.Done()
			defer cancel()
			err := p.fly(ctx, fl)
			if err != nil && ctx.Err() == nil {
				p.log.Warn("a download failed", "url", show(w.url), "error", err)
			}
			fl.end(err)
			p.mu.Lock()
			defer p.mu.Unlock()
			fl.landed = true
			p.forget(fl)
		}()
	}
	fl.readers++
	return fl, first, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		fl.readers--
		p.forget(fl)
	})
}

// forget ends a flight that nobody reads, and lets go of one that has ended.
// p.mu is held.
func (p *Proxy) forget(fl *flight) {
	if (fl.landed || fl.readers == 0) && p.flights[fl.want.key] == fl {
		delete(p.flights, fl.want.key)
	}
	if fl.readers == 0 {
		fl.cancel()
		if fl.landed && fl.file != nil {
			fl.file.Close()
		}
	}
}

// fly gets fl's body: from the cache where that is fresh, or from upstream.
func (p *Proxy) fly(ctx context.Context, fl *flight) error {
	w := fl.want
	old, file := p.store.open(w.key)
	if old != nil && p.isFresh(old, w) {
		fl.begin(old.Header, old.Size, file, true)
		return nil
	}
	more := map[string]string{}
	if old != nil {
		defer func() {
			if !fl.cached {
				file.Close()
			}
		}()
		for k, v := range map[string]string{"If-None-Match": old.Header["ETag"], "If-Modified-Since": old.Header["Last-Modified"]} {
			if v != "" {
				more[k] = v
			}
		}
	}
	resp, err := p.send(ctx, http.MethodGet, w, more)
	if err == nil {
		defer func() { resp.Body.Close() }()
	}
	gone := err != nil || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500
	switch {
	case old != nil && gone && w.fresh >= immutable && ctx.Err() == nil:
		p.log.Warn("upstream could not be asked; the cached file is used", "url", show(w.url), "error", err)
	case err != nil:
		return err
	case old != nil && resp.StatusCode == http.StatusNotModified:
		old.Checked = p.now()
		if err := p.store.put(old); err != nil {
			p.log.Warn("the cached file is used, and will be asked for again", "url", show(w.url), "error", err)
		}
	case resp.StatusCode != http.StatusOK:
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		return &refusal{resp.StatusCode, pick(resp.Header), data}
	default:
		return p.receive(ctx, fl, &resp)
	}
	fl.begin(old.Header, old.Size, file, true)
	return nil
}

// isFresh reports whether e need not be asked for again. Nodes' clocks differ.
func (p *Proxy) isFresh(e *entry, w want) bool { return p.now().Sub(e.Checked).Abs() < w.fresh }

// receive takes the body of *resp, which it replaces when upstream has to be
// asked for the rest, and keeps what turns out right.
func (p *Proxy) receive(ctx context.Context, fl *flight, resp **http.Response) error {
	w, first := fl.want, *resp
	if !framed(first) && w.digest.IsNone() {
		return errors.New("upstream sends a body of unknown length, whose end could not be told from a broken connection")
	}
	if first.ContentLength > w.max {
		return fmt.Errorf("upstream sends %d bytes, more than the %d that are taken", first.ContentLength, w.max)
	}
	file, err := p.store.temp()
	if err != nil {
		return onDisk(err)
	}
	kept := false // and with that renamed
	defer func() {
		if !kept {
			os.Remove(file.Name())
		}
	}()
	fl.sha256 = sha256.New()
	fl.check = fl.sha256
	if !w.digest.IsNone() && w.digest.Algo() != "sha256" {
		fl.check = w.digest.Hash()
	}
	header := pick(first.Header)
	if w.page {
		header[contentLocation] = first.Request.URL.String()
	}
	fl.begin(header, first.ContentLength, file, false)
	for again := false; ; again = true {
		_, err = io.Copy(struct{ io.Writer }{fl}, (*resp).Body)
		if err == nil {
			break
		}
		var disk *diskError
		if again || ctx.Err() != nil || errors.As(err, &disk) || errors.Is(err, errTooLong) {
			return err
		}
		rest, err2 := p.rest(ctx, fl, first)
		if err2 != nil {
			return fmt.Errorf("%w; %w", err, err2)
		}
		(*resp).Body.Close()
		*resp = rest
	}
	if fl.length >= 0 && fl.size != fl.length {
		return fmt.Errorf("upstream sent %d bytes of %d", fl.size, fl.length)
	}
	if got := fl.check.Sum(nil); !w.digest.Is(got) {
		return fmt.Errorf("upstream sends something else than its index says: %s:%x, not %s", w.digest.Algo(), got, w.digest)
	}
	if !mayKeep(w, first) {
		return nil
	}
	sum := hex.EncodeToString(fl.sha256.Sum(nil))
	e := &entry{Key: w.key, SHA256: sum, Size: fl.size, Header: fl.header, Checked: p.now()}
	err = p.store.keep(file.Name(), e)
	kept = err == nil
	return onDisk(err)
}

// rest asks upstream to go on where fl's body broke off.
func (p *Proxy) rest(ctx context.Context, fl *flight, first *http.Response) (*http.Response, error) {
	more := map[string]string{"Range": fmt.Sprintf("bytes=%d-", fl.size)}
	tag, date := first.Header.Get("ETag"), first.Header.Get("Last-Modified")
	switch {
	case first.Uncompressed:
		return nil, errors.New("a compressed body cannot be resumed")
	case tag != "" && !strings.HasPrefix(tag, "W/"):
		more["If-Range"] = tag
	case date != "":
		more["If-Range"] = date
	case fl.want.digest.IsNone():
		return nil, errors.New("and gave nothing to know the rest by")
	}
	resp, err := p.once(ctx, http.MethodGet, fl.want, more)
	if err != nil {
		return nil, err
	}
	if err := continues(resp, fl.size, fl.length); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

var errTooLong = errors.New("upstream sends more than is taken")

// Write appends to the body. Only fly's goroutine calls it.
func (fl *flight) Write(b []byte) (int, error) {
	if fl.size+int64(len(b)) > fl.want.max {
		return 0, errTooLong
	}
	n, err := fl.file.Write(b)
	fl.sha256.Write(b[:n])
	if fl.check != fl.sha256 {
		fl.check.Write(b[:n])
	}
	fl.change(func() { fl.size += int64(n) })
	return n, onDisk(err)
}

func (fl *flight) begin(header map[string]string, length int64, file *os.File, cached bool) {
	fl.change(func() {
		fl.begun, fl.header, fl.length, fl.file, fl.cached = true, header, length, file, cached
		if cached {
			fl.size = length
		}
	})
}

func (fl *flight) end(err error) {
	fl.change(func() { fl.begun, fl.done, fl.err = true, true, err })
}

func (fl *flight) change(set func()) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	set()
	close(fl.changed)
	fl.changed = make(chan struct{})
}

// wait returns when ready says so of fl, whose lock is held then, or with
// ctx's error.
func (fl *flight) wait(ctx context.Context, ready func() bool) error {
	for {
		fl.mu.Lock()
		ok, changed := ready(), fl.changed
		fl.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reader reads fl's body as it comes. It ends with io.EOF only when the whole
// body is there and right.
func (fl *flight) reader(ctx context.Context) io.Reader { return &follower{fl: fl, ctx: ctx} }

type follower struct {
	fl  *flight
	ctx context.Context
	at  int64
}

func (a *follower) Read(b []byte) (int, error) {
	var upTo int64
	var done bool
	var err error
	werr := a.fl.wait(a.ctx, func() bool {
		upTo, done, err = a.fl.size, a.fl.done, a.fl.err
		if !done || err != nil {
			upTo--
		}
		return a.at < upTo || done
	})
	switch {
	case werr != nil:
		return 0, werr
	case a.at < upTo:
		n, err := a.fl.file.ReadAt(b[:min(int64(len(b)), upTo-a.at)], a.at)
		a.at += int64(n)
		return n, err
	case err != nil:
		return 0, err
	}
	return 0, io.EOF
}
